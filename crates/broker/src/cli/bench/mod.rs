//! `highwater bench`: measures on the machine it runs on.

mod catch_up;
mod groups;
mod histogram;
mod idle;
mod limits;
mod log;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use tempfile::TempDir;

use crate::config::{BrokerConfig, Settings};
use crate::driver::random::Random;

/// Ticks of the kernel's clock in `/proc`: the same on every Linux that this builds for.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Write to a log in one directory, beside the bare limits of its disk.
    Log(log::LogArguments),
    /// Have a follower catch up that was away, beside a bare copy of the same files.
    CatchUp(catch_up::CatchUpArguments),
    /// See what partitions cost in which nothing happens.
    Idle(idle::IdleArguments),
    /// Let groups rebalance and commit, at a broker of its own or any other.
    Groups(groups::GroupsArguments),
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Runs what was asked for, and tells how the process is to exit.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        BenchCommand::Log(arguments) => log::run(arguments),
        BenchCommand::CatchUp(arguments) => catch_up::run(arguments),
        BenchCommand::Idle(arguments) => idle::run(arguments),
        BenchCommand::Groups(arguments) => groups::run(arguments),
    }
}

/// A flag that an interrupt sets, for the measurement to end and clean up.
fn watch_for_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let flag = Arc::clone(&stopped);
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    Ok(stopped)
}

/// A directory in `dir` for what is written while it is measured.
fn directory_in(dir: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("highwater-bench-").tempdir_in(dir);
    made.with_context(|| format!("cannot make a directory in {}", dir.display()))
}

/// Measures in a directory in `dir`, which is gone afterwards however it ended.
fn in_directory<T>(dir: &Path, measure: impl AsyncFnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let root = directory_in(dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(root.path()));
    runtime.shutdown_timeout(Duration::from_secs(1));
    root.close().context("cannot remove what was written")?;
    measured
}

/// The brokers' configuration: the defaults, but for what is set.
fn configuration(set: &[String]) -> anyhow::Result<BrokerConfig> {
    let mut settings = Settings::new();
    for pair in set {
        settings.set(pair)?;
    }
    Ok(settings.build()?.0)
}

/// What a process has used of its processors so far.
fn processor_seconds_of(process: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    used(&stat).with_context(|| format!("{path} is not as proc(5) says"))
}

/// User and system time in a line of `/proc/PID/stat`. The name before them may hold anything, a parenthesis too.
fn used(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

/// How the process is to exit once the results are printed.
fn said(printed: io::Result<()>) -> anyhow::Result<ExitCode> {
    match printed {
        // Whoever read the results has seen enough of them.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print the result"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A batch with bytes that no disk can squeeze.
fn batch_of(records: u32, record_bytes: u32) -> Bytes {
    let mut builder = BatchBuilder::new(Codec::None);
    let mut random = Random::new(1);
    let mut value = vec![0; record_bytes as usize];
    let now = now();
    for _ in 0..records {
        for byte in &mut value {
            *byte = random.below(256) as u8;
        }
        builder.push(Record::new(now, &value));
    }
    builder.build().into()
}

fn now() -> TimestampMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn amount(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.2} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.2} MB/s", bytes_per_second / 1e6)
    }
}

/// The middle one, or 0 of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
