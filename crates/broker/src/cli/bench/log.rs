//! `highwater bench log`: how fast a log takes records here, beside what the disk could do.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use highwater_storage::{FlushPolicy, LeaderEpoch, Log, LogOptions, ProduceRules, SharedLog, WorkLimits};
use serde_json::json;

use super::histogram::Histogram;
use super::limits::{self, Limits};
use super::{Format, amount, batch_of, directory_in, now, said, watch_for_interrupt};

const ROUNDS: u32 = 5;

/// How often the line on a terminal changes: seldom enough to take nothing from what is measured.
const LIVE_EVERY: Duration = Duration::from_millis(200);

/// A round ends at this size at the latest, so that the disk is not filled.
const ROUND_BYTES_MAX: u64 = 1 << 30;

/// The batch is in memory, also while it is made.
const BATCH_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    /// Where to write: a directory is made there and removed at the end.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Bytes of each record's value.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    record_bytes: u32,
    /// Records in each append.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
    /// When appends are synced: `none`, `each`, `records=N` or `ms=N`.
    #[arg(long, default_value = "none", value_parser = parse_policy)]
    sync: FlushPolicy,
    /// Threads that append to the one log; they share syncs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Seconds for all rounds together, after a warm-up; the limits take as long again.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn parse_policy(text: &str) -> Result<FlushPolicy, String> {
    let number = |digits: &str| digits.parse().ok().filter(|number: &u32| *number > 0);
    match text.split_once('=') {
        None if text == "none" => Some(FlushPolicy::None),
        None if text == "each" => Some(FlushPolicy::EachAppend),
        Some(("records", digits)) => number(digits).map(|number| FlushPolicy::EveryMessages(u64::from(number))),
        Some(("ms", digits)) => number(digits).map(|number| FlushPolicy::EveryMs(i64::from(number))),
        _ => None,
    }
    .ok_or_else(|| "one of none, each, records=N, ms=N".to_owned())
}

/// A policy in the words of the command line.
fn policy_name(policy: FlushPolicy) -> String {
    match policy {
        FlushPolicy::None => "none".to_owned(),
        FlushPolicy::EachAppend => "each".to_owned(),
        FlushPolicy::EveryMessages(number) => format!("records={number}"),
        FlushPolicy::EveryMs(number) => format!("ms={number}"),
        other => format!("{other:?}"),
    }
}

/// One round's appends.
#[derive(Debug)]
struct Round {
    bytes_per_second: f64,
    appends_per_second: f64,
    latencies: Histogram,
}

/// Measures and prints. Exit code 130 if it was interrupted, with nothing left behind.
pub(crate) fn run(arguments: &LogArguments) -> anyhow::Result<ExitCode> {
    let batch_bytes = u64::from(arguments.record_bytes) * u64::from(arguments.batch);
    if batch_bytes > BATCH_BYTES_MAX {
        let LogArguments { record_bytes, batch, .. } = arguments;
        bail!("{batch} records of {record_bytes} bytes are more than an append of {BATCH_BYTES_MAX} bytes");
    }
    let stopped = watch_for_interrupt()?;
    let stop = || stopped.load(Ordering::Relaxed);
    let root = directory_in(&arguments.dir)?;
    let batch = batch_of(arguments.batch, arguments.record_bytes);
    let each = Duration::from_secs(u64::from(arguments.seconds)) / ROUNDS;
    let live = arguments.format == Format::Text && io::stderr().is_terminal();
    let mut rounds = Vec::new();
    for number in 0..=ROUNDS {
        // The first one warms up.
        let dir = root.path().join(format!("round-{number}"));
        let time = if number == 0 { each / 2 } else { each };
        let name = if number == 0 { "warming up".to_owned() } else { format!("round {number} of {ROUNDS}") };
        let tell = |so_far: f64| eprint!("\r\x1b[K{name}: {}", amount(so_far));
        let round = round(&dir, arguments, &batch, time, &stop, live.then_some(&tell))?;
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        if stop() {
            break;
        }
        if number > 0 {
            rounds.push(round);
        }
    }
    if live {
        eprint!("\r\x1b[Kmeasuring the bare disk");
    }
    let limits = limits::measure(root.path(), &batch, each, &stop)?;
    if live {
        eprint!("\r\x1b[K");
    }
    root.close().context("cannot remove what was written")?;
    if stop() {
        return Ok(ExitCode::from(130));
    }
    said(print(&mut io::stdout().lock(), arguments, batch.len(), &mut rounds, limits))
}

fn round(
    dir: &Path,
    arguments: &LogArguments,
    batch: &[u8],
    time: Duration,
    stop: &(dyn Fn() -> bool + Sync),
    tell: Option<&dyn Fn(f64)>,
) -> anyhow::Result<Round> {
    let rules = ProduceRules { max_message_bytes: usize::MAX, ..ProduceRules::default() };
    let options = LogOptions { flush: arguments.sync, retention: false, rules, ..LogOptions::default() };
    let log = SharedLog::new(Log::open(dir, options)?.0);
    let written = AtomicU64::new(0);
    let began = Instant::now();
    let append = || -> anyhow::Result<Histogram> {
        let mut latencies = Histogram::new();
        while began.elapsed() < time && !stop() {
            if written.fetch_add(batch.len() as u64, Ordering::Relaxed) >= ROUND_BYTES_MAX {
                written.fetch_sub(batch.len() as u64, Ordering::Relaxed);
                break;
            }
            let before = Instant::now();
            log.append(now(), LeaderEpoch(0), batch)?;
            latencies.record(before.elapsed());
        }
        Ok(latencies)
    };
    let mut latencies = Histogram::new();
    let done = AtomicBool::new(false);
    let results: Vec<_> = std::thread::scope(|scope| {
        // As in a program that uses the log: housekeeping runs beside, and writes zeros ahead of synced appends.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let limits = WorkLimits::new(log.reader().end());
                if !matches!(log.housekeeping_step(now(), &limits), Ok(Some(_))) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let threads: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(append)).collect();
        if let Some(tell) = tell {
            while !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::sleep(LIVE_EVERY.min(time.saturating_sub(began.elapsed())).max(Duration::from_millis(1)));
                tell(written.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64());
            }
        }
        let results = threads.into_iter().map(|thread| thread.join().expect("appending does not panic")).collect();
        done.store(true, Ordering::Relaxed);
        results
    });
    let seconds = began.elapsed().as_secs_f64();
    for result in results {
        latencies.add(&result?);
    }
    let bytes = written.into_inner() as f64;
    Ok(Round { bytes_per_second: bytes / seconds, appends_per_second: bytes / batch.len() as f64 / seconds, latencies })
}

fn print(
    out: &mut impl Write,
    arguments: &LogArguments,
    batch_bytes: usize,
    rounds: &mut [Round],
    limits: Limits,
) -> io::Result<()> {
    rounds.sort_by(|one, other| one.bytes_per_second.total_cmp(&other.bytes_per_second));
    let Some(median) = rounds.get(rounds.len() / 2) else { return Ok(()) };
    let mut latencies = Histogram::new();
    rounds.iter().for_each(|round| latencies.add(&round.latencies));
    let micros = |share| latencies.quantile(share).as_secs_f64() * 1e6;
    let rate = median.bytes_per_second;
    let Limits { buffered_write, synced_growing, synced_overwriting, checksum } = limits;
    if arguments.format == Format::Json {
        let spread: Vec<f64> = rounds.iter().map(|round| round.bytes_per_second).collect();
        let result = json!({
            "type": "bench-log", "record_bytes": arguments.record_bytes, "batch_records": arguments.batch, "batch_bytes": batch_bytes,
            "threads": arguments.threads, "sync": policy_name(arguments.sync),
            "log": {
                "bytes_per_second": rate, "appends_per_second": median.appends_per_second,
                "records_per_second": median.appends_per_second * f64::from(arguments.batch), "rounds": spread,
                "append_us": {
                    "p50": micros(0.5), "p99": micros(0.99), "p999": micros(0.999),
                    "max": latencies.max().as_secs_f64() * 1e6,
                },
            },
            "limits_bytes_per_second": {
                "buffered_write": buffered_write, "synced_growing": synced_growing,
                "synced_overwriting": synced_overwriting, "crc32c": checksum,
            },
            "ratios": {
                "buffered_write": rate / buffered_write, "synced_growing": rate / synced_growing,
                "synced_overwriting": rate / synced_overwriting,
            },
        });
        return writeln!(out, "{result}");
    }
    writeln!(
        out,
        "{} records of {} bytes an append, {} thread{}, synced: {}; median of {} rounds",
        arguments.batch,
        arguments.record_bytes,
        arguments.threads,
        if arguments.threads == 1 { "" } else { "s" },
        policy_name(arguments.sync),
        rounds.len()
    )?;
    writeln!(
        out,
        "log                               {:>12}   {:.0} appends/s, {:.0} records/s",
        amount(rate),
        median.appends_per_second,
        median.appends_per_second * f64::from(arguments.batch)
    )?;
    writeln!(
        out,
        "  an append takes                 p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs, max {:.1} µs",
        micros(0.5),
        micros(0.99),
        micros(0.999),
        latencies.max().as_secs_f64() * 1e6
    )?;
    writeln!(out, "the bare disk, by the same chunk                the log reaches")?;
    for (name, limit) in [
        ("buffered write", buffered_write),
        ("write + fdatasync, growing", synced_growing),
        ("write + fdatasync, overwriting", synced_overwriting),
    ] {
        writeln!(out, "  {name:<31} {:>12}   {:.2} of it", amount(limit), rate / limit)?;
    }
    writeln!(out, "  {:<31} {:>12}", "CRC-32C, one core", amount(checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_others_refused() {
        assert_eq!(parse_policy("none"), Ok(FlushPolicy::None));
        assert_eq!(parse_policy("each"), Ok(FlushPolicy::EachAppend));
        assert_eq!(parse_policy("records=7"), Ok(FlushPolicy::EveryMessages(7)));
        assert_eq!(parse_policy("ms=20"), Ok(FlushPolicy::EveryMs(20)));
        for name in ["none", "each", "records=7", "ms=20"] {
            assert_eq!(policy_name(parse_policy(name).unwrap()), name);
        }
        for bad in ["", "always", "records", "records=0", "ms=x", "each=1"] {
            assert!(parse_policy(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_append_that_is_not_to_be_held_in_memory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = LogArguments {
            dir: dir.path().to_owned(),
            record_bytes: 1 << 24,
            batch: 1 << 20,
            sync: FlushPolicy::None,
            threads: 1,
            seconds: 1,
            format: Format::Json,
        };
        assert!(run(&arguments).unwrap_err().to_string().contains("1048576 records of 16777216 bytes"));
    }

    #[test]
    fn nothing_is_left_behind() {
        for (threads, sync) in [(1, FlushPolicy::None), (3, FlushPolicy::EachAppend)] {
            let dir = tempfile::tempdir().unwrap();
            let arguments = LogArguments {
                dir: dir.path().to_owned(),
                record_bytes: 100,
                batch: 3,
                sync,
                threads,
                seconds: 1,
                format: Format::Json,
            };
            assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
