//! Other people's test suites on the real binary: `cargo xtask soak suites`, and a quick choice of them in the test run.
//!
//! `tests/suites` has the scripts that run them, what Apache Kafka passes, and where Highwater may differ, with reasons.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::Run;
use crate::tally::Tally;
use crate::{Workspace, install, soak};

/// The suites, in the order they run.
const SUITES: [&str; 7] = ["kcat", "java-tools", "franz-go", "sarama", "kafka-python", "rskafka", "librdkafka"];

/// What `cargo xtask soak suites` is told.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak suites", no_binary_name = true)]
struct Arguments {
    /// The suites to run; none means all.
    #[arg(value_name = "SUITE", value_parser = clap::builder::PossibleValuesParser::new(SUITES))]
    suites: Vec<String>,
    /// Only the test of this name; may be given several times.
    #[arg(long, value_name = "TEST")]
    only: Vec<String>,
    /// Only the tests that are in the test run.
    #[arg(long, conflicts_with_all = ["suites", "only"])]
    quick: bool,
    /// Run them on a debug build.
    #[arg(long)]
    debug: bool,
    /// Run them on the broker that listens there, with the settings of `tests/suites/broker.properties`.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "debug")]
    bootstrap: Option<String>,
}

/// Runs suites whole.
pub(crate) fn soak(
    workspace: &Workspace,
    arguments: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let arguments = Arguments::parse_from(arguments);
    let is_chosen = |suite: &str| arguments.suites.is_empty() || arguments.suites.iter().any(|chosen| chosen == suite);
    let chosen = match arguments.quick {
        true => quick_choice(workspace)?,
        false => SUITES
            .iter()
            .filter(|suite| is_chosen(suite))
            .map(|suite| Chosen { suite: (*suite).to_owned(), tests: arguments.only.clone() })
            .collect(),
    };
    if let Some(bootstrap) = arguments.bootstrap {
        return run(workspace, &chosen, &bootstrap, tally, deadline);
    }
    let Some(binary) = soak::binary(workspace, arguments.debug, tally, deadline) else { return Ok(()) };
    let broker = Broker::start(workspace, &binary)?;
    run(workspace, &chosen, &broker.address, tally, deadline)
}

/// Runs the quick choice on a broker of this binary.
pub(crate) fn quick(workspace: &Workspace, binary: &Path, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let chosen = quick_choice(workspace)?;
    let broker = Broker::start(workspace, binary)?;
    run(workspace, &chosen, &broker.address, tally, deadline)
}

/// What `tests/suites/quick.tsv` lists.
fn quick_choice(workspace: &Workspace) -> anyhow::Result<Vec<Chosen>> {
    let mut chosen: Vec<Chosen> = Vec::new();
    for [suite, test] in table(workspace, "quick.tsv")? {
        match chosen.iter_mut().find(|chosen| chosen.suite == suite) {
            Some(chosen) => chosen.tests.push(test),
            None => chosen.push(Chosen { suite, tests: vec![test] }),
        }
    }
    Ok(chosen)
}

/// A suite, and which of its tests; none means all.
#[derive(Debug)]
struct Chosen {
    suite: String,
    tests: Vec<String>,
}

impl Chosen {
    /// Whether this test runs: by its own name, or as part of one.
    fn has(&self, test: &str) -> bool {
        let whole = test.split('/').next().unwrap_or(test);
        self.tests.is_empty() || self.tests.iter().any(|chosen| chosen == whole)
    }
}

/// Verdicts by suite and test.
type Verdicts = BTreeMap<(String, String), Verdict>;

/// What one line of a suite says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    passed: bool,
    line: String,
}

fn run(
    workspace: &Workspace,
    suites: &[Chosen],
    bootstrap: &str,
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let kafka = verdicts(&read(workspace, "kafka-4.1.txt")?);
    let differences: BTreeMap<(String, String), String> =
        table(workspace, "differences.tsv")?.into_iter().map(|[suite, test, why]| ((suite, test), why)).collect();
    let mut totals = Vec::new();
    for chosen in suites {
        let started = Instant::now();
        let printed = match prepare(workspace, &chosen.suite).and_then(|kafka_libs| {
            tally.say(format_args!("\n== {}", chosen.suite));
            let mut run = Run::new(workspace, "bash")
                .word("tests/suites/run.sh")
                .word(&chosen.suite)
                .word(bootstrap)
                .env("SUITES_CACHE", workspace.target.join("suites"))
                .env("KAFKA_LIBS", kafka_libs.unwrap_or_default());
            if !chosen.tests.is_empty() {
                run = run.env("SUITES_ONLY", format!("^({})$", chosen.tests.join("|")));
            }
            run.shown(tally, deadline)
        }) {
            Ok(printed) => printed,
            Err(error) => {
                tally.fail(format!("{}: {error:#}", chosen.suite));
                continue;
            }
        };
        let here = verdicts(&format!("== {}\n{printed}", chosen.suite));
        let judged = judge(chosen, &kafka, &here, &differences);
        tally.say(format_args!("{judged} in {:.0} s", started.elapsed().as_secs_f64()));
        for _ in 0..judged.passed {
            tally.pass();
        }
        for failure in &judged.failures {
            tally.fail(failure.clone());
        }
        totals.push((judged, started.elapsed()));
    }
    tally.say("\n== totals");
    for (judged, took) in totals {
        tally.say(format_args!("{judged} in {:.0} s", took.as_secs_f64()));
        for difference in &judged.differences {
            tally.say(format_args!("  differs: {difference}"));
        }
    }
    Ok(())
}

/// Gets what a suite needs, and returns the directory of Kafka's jars where it is among that.
fn prepare(workspace: &Workspace, suite: &str) -> anyhow::Result<Option<PathBuf>> {
    match suite {
        "kcat" => install::kcat().map(|_| None),
        "java-tools" => install::kafka(workspace).map(Some),
        "franz-go" | "sarama" => install::go(workspace).map(|_| None),
        "kafka-python" => install::python(workspace, install::CLIENTS).map(|_| None),
        "rskafka" | "librdkafka" => {
            install::c_libraries()?;
            install::kafka(workspace).map(Some)
        }
        _ => bail!("there is no suite of this name"),
    }
}

/// What a suite comes to.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    suite: String,
    passed: usize,
    on_kafka: usize,
    differences: Vec<String>,
    failures: Vec<String>,
}

impl std::fmt::Display for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:<11} {:>3} passed, {:>3} on Kafka 4.1, {} known differences, {} unexpected",
            self.suite,
            self.passed,
            self.on_kafka,
            self.differences.len(),
            self.failures.len()
        )
    }
}

/// Holds what passed here to what passes on Kafka. A difference that is listed and none any more fails too, so that the
/// list stays true.
fn judge(
    chosen: &Chosen,
    kafka: &Verdicts,
    here: &Verdicts,
    differences: &BTreeMap<(String, String), String>,
) -> Judged {
    let suite = &chosen.suite;
    let mut judged =
        Judged { suite: suite.clone(), passed: 0, on_kafka: 0, differences: Vec::new(), failures: Vec::new() };
    let of_suite = |(key, _): &(&(String, String), &Verdict)| key.0 == *suite && chosen.has(&key.1);
    judged.on_kafka = kafka.iter().filter(of_suite).filter(|(_, verdict)| verdict.passed).count();
    let mut all: BTreeMap<&str, Option<&Verdict>> = BTreeMap::new();
    all.extend(kafka.iter().filter(of_suite).filter(|(_, verdict)| verdict.passed).map(|(key, _)| (&*key.1, None)));
    // What is skipped says nothing, and what fails on Kafka may fail here.
    let fails_there = |key: &(String, String)| kafka.get(key).is_some_and(|verdict| verdict.line.starts_with("FAIL "));
    let says = |(key, verdict): &(&(String, String), &Verdict)| {
        verdict.passed || (verdict.line.starts_with("FAIL ") && !fails_there(key))
    };
    all.extend(here.iter().filter(of_suite).filter(says).map(|(key, verdict)| (&*key.1, Some(verdict))));
    for (test, verdict) in all {
        let known = differences.get(&(suite.clone(), test.to_owned()));
        match (verdict.is_some_and(|verdict| verdict.passed), known) {
            (true, None) => judged.passed += 1,
            (true, Some(_)) => {
                judged.failures.push(format!("{suite}: {test}: passes, and stands in differences.tsv"));
            }
            (false, Some(why)) => judged.differences.push(format!("{test}: {why}")),
            (false, None) => {
                let line = verdict.map_or("no result", |verdict| &verdict.line);
                judged.failures.push(format!("{suite}: {test}: {line}"));
            }
        }
    }
    judged
}

/// Reads lines `== SUITE` and `PASS|FAIL|SKIP TEST -- why`; others say nothing.
fn verdicts(text: &str) -> Verdicts {
    let mut suite = "";
    let mut verdicts = Verdicts::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            suite = name.trim();
        }
        let mut words = line.split(' ');
        if let (Some(word @ ("PASS" | "FAIL" | "SKIP")), Some(test)) = (words.next(), words.next()) {
            let verdict = Verdict { passed: word == "PASS", line: line.to_owned() };
            verdicts.insert((suite.to_owned(), test.to_owned()), verdict);
        }
    }
    verdicts
}

fn read(workspace: &Workspace, name: &str) -> anyhow::Result<String> {
    let path = workspace.root.join("tests/suites").join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The rows of a table in `tests/suites`, without its heading.
fn table<const COLUMNS: usize>(workspace: &Workspace, name: &str) -> anyhow::Result<Vec<[String; COLUMNS]>> {
    let row = |line: &str| {
        let columns: Vec<String> = line.split('\t').map(str::to_owned).collect();
        columns.try_into().map_err(|_| anyhow::anyhow!("{name}: not {COLUMNS} columns: {line}"))
    };
    read(workspace, name)?.lines().skip(1).map(row).collect()
}

/// A broker as a child process, on a port of its own and a directory that is empty at its start.
#[derive(Debug)]
struct Broker {
    process: Child,
    address: String,
    /// Kept open: what it says later has nowhere else to go.
    _printed: BufReader<ChildStdout>,
}

impl Broker {
    fn start(workspace: &Workspace, binary: &Path) -> anyhow::Result<Self> {
        let directory = workspace.target.join("suites/broker");
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let log = fs::File::create(directory.join("log")).context("cannot create the broker's log")?;
        // Given rather than left to the broker: tests ask where the address it advertises is from.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.context("no port is free")?.to_string();
        let mut process = Command::new(binary)
            .arg("serve")
            .arg(workspace.root.join("tests/suites/broker.properties"))
            .args(["--listen", &address, "--set", &format!("advertised.listeners=PLAINTEXT://{address}"), "--data-dir"])
            .arg(directory.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut printed = BufReader::new(process.stdout.take().context("the broker's output is a pipe")?);
        let mut ready = String::new();
        let read = printed.read_line(&mut ready);
        let broker = Self { process, address: address_in(&ready).unwrap_or_default(), _printed: printed };
        ensure!(
            read.is_ok() && !broker.address.is_empty(),
            "the broker did not get ready: {ready:?}; its log is {}",
            directory.join("log").display()
        );
        Ok(broker)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// `ready: listening on HOST:PORT, data in …`
fn address_in(ready: &str) -> Option<String> {
    let rest = ready.strip_prefix("ready: listening on ")?;
    rest.split(',').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KAFKA: &str =
        "== kcat\nPASS a\nPASS b\nPASS c/x\nPASS c\nSKIP d -- not here\nFAIL e\n2 passed\n== sarama\nPASS a\n";

    fn judged(tests: &[&str], here: &str, differences: &[(&str, &str)]) -> Judged {
        let chosen = Chosen { suite: "kcat".to_owned(), tests: tests.iter().map(|&test| test.to_owned()).collect() };
        let known = |&(test, why): &(&str, &str)| (("kcat".to_owned(), test.to_owned()), why.to_owned());
        judge(&chosen, &verdicts(KAFKA), &verdicts(here), &differences.iter().map(known).collect())
    }

    #[test]
    fn what_passes_on_kafka_passes_here() {
        let all = judged(&[], "== kcat\nPASS a\nPASS b\nPASS c/x\nPASS c\n", &[]);
        assert_eq!((all.passed, all.on_kafka, all.failures.len()), (4, 4, 0));
        let some = judged(&["c"], "== kcat\nPASS c/x\nPASS c\n", &[]);
        assert_eq!((some.passed, some.on_kafka, some.failures.len()), (2, 2, 0));
    }

    #[test]
    fn a_failure_and_a_test_that_did_not_run_are_named() {
        let found = judged(&[], "== kcat\nPASS a\nFAIL b -- rc=1\nSKIP c/x\nPASS c\nFAIL new\nFAIL e\n", &[]);
        assert_eq!(found.failures, ["kcat: b: FAIL b -- rc=1", "kcat: c/x: no result", "kcat: new: FAIL new"]);
    }

    #[test]
    fn a_listed_difference_is_allowed_as_long_as_it_is_one() {
        let here = "== kcat\nPASS a\nFAIL b\nPASS c/x\nPASS c\n";
        let known = judged(&[], here, &[("b", "for a reason")]);
        assert_eq!((known.failures.len(), known.differences.len()), (0, 1));
        assert_eq!(known.differences, ["b: for a reason"]);
        let stale = judged(&[], here, &[("b", "for a reason"), ("a", "long ago")]);
        assert_eq!(stale.failures, ["kcat: a: passes, and stands in differences.tsv"]);
    }

    #[test]
    fn the_ready_line_tells_the_address() {
        let ready = "ready: listening on 127.0.0.1:4711, data in d (0 partitions, 0 records recovered in 1 ms)\n";
        assert_eq!(address_in(ready).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(address_in("error: the port is taken"), None);
    }
}
