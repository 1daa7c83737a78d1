//! Running a command: its output shown and counted, its time limited.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::Workspace;
use crate::tally::Tally;

/// How much of what a failed command printed is shown once more at the end.
const LAST_LINES: usize = 60;

/// A command of a part, run in the workspace's root.
#[derive(Debug)]
pub(crate) struct Run {
    command: Command,
    name: String,
}

/// What a command's output means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The command is one check: its exit code says whether it passed.
    Itself,
    /// The command runs checks and prints a line on each (or on all); none at all is a failure.
    Lines,
    /// The command prepares something: it counts only if it fails.
    Nothing,
}

impl Run {
    pub(crate) fn new(workspace: &Workspace, program: impl AsRef<Path>) -> Self {
        let mut run = Self::here(program);
        run.command.current_dir(&workspace.root).stdin(Stdio::null());
        run
    }

    /// A command that has no need of the workspace, and may ask the user something.
    pub(crate) fn here(program: impl AsRef<Path>) -> Self {
        let program = program.as_ref();
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { command: Command::new(program), name }
    }

    /// The cargo that runs this program.
    pub(crate) fn cargo(workspace: &Workspace) -> Self {
        Self::new(workspace, std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from))
    }

    /// By another name than its file's.
    pub(crate) fn called(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// In this directory.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Adds arguments, given as one text without quotes.
    pub(crate) fn words(self, words: &str) -> Self {
        words.split_whitespace().fold(self, |run, word| run.word(word))
    }

    /// Adds one argument.
    pub(crate) fn word(mut self, word: impl AsRef<std::ffi::OsStr>) -> Self {
        self.name.push(' ');
        self.name.push_str(&word.as_ref().to_string_lossy());
        self.command.arg(word);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs it, shows what it prints and counts it, and ends it with all its children at `deadline`.
    /// Returns whether the command succeeded: a failure is counted already.
    pub(crate) fn run(mut self, tally: &mut Tally, deadline: Instant, counts: Counts) -> bool {
        tally.say(format_args!("\n$ {self}"));
        let mut own = Tally::default();
        let mut last_lines = VecDeque::new();
        let outcome = execute(&mut self.command, deadline, |line| {
            tally.say(line);
            own.line(line);
            last_lines.push_back(line.to_owned());
            if last_lines.len() > LAST_LINES {
                last_lines.pop_front();
            }
        });
        let succeeded = matches!(outcome, Ok(status) if status.success());
        match outcome {
            Err(error) => own.fail(format!("{self}: {error:#}")),
            Ok(status) if !status.success() && own.failed() == 0 => own.fail(format!("{self}: {status}")),
            Ok(_) if counts == Counts::Lines && own.passed() + own.failed() == 0 => {
                own.fail(format!("{self}: ran no check"));
            }
            Ok(_) if counts == Counts::Itself && own.failed() == 0 => own.pass(),
            Ok(_) => {}
        }
        let succeeded = succeeded && own.failed() == 0;
        if !succeeded {
            own.keep_last_lines(&self.name, last_lines);
        }
        tally.merge(own);
        succeeded
    }

    /// Runs all of them, as many at a time as there are processors, each as [`Self::run`] does; what one prints is shown once
    /// it has ended.
    pub(crate) fn run_together(runs: Vec<Self>, tally: &mut Tally, deadline: Instant, counts: Counts) {
        let at_once = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
        let waiting = Mutex::new(runs.into_iter());
        let (ended, done) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..at_once {
                let (ended, waiting) = (ended.clone(), &waiting);
                scope.spawn(move || {
                    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(run) = next() {
                        let mut own = Tally::keeping();
                        run.run(&mut own, deadline, counts);
                        // The receiver is there until all have ended.
                        let _ = ended.send(own);
                    }
                });
            }
            drop(ended);
            for own in done {
                tally.merge(own);
            }
        });
    }

    /// Runs it, shows what it prints, counts nothing, and returns all that it printed, whatever its exit code.
    ///
    /// # Errors
    /// If it cannot be started or is still running at `deadline`.
    pub(crate) fn shown(mut self, tally: &mut Tally, deadline: Instant) -> anyhow::Result<String> {
        let mut printed = String::new();
        let ended = execute(&mut self.command, deadline, |line| {
            tally.say(line);
            printed.push_str(line);
            printed.push('\n');
        });
        ended.with_context(|| self.to_string())?;
        Ok(printed)
    }

    /// Runs it, shows the lines that `take` leaves, counts nothing, and returns whether it succeeded.
    ///
    /// # Errors
    /// If it cannot be started or is still running at `deadline`.
    pub(crate) fn sifted(
        mut self,
        tally: &mut Tally,
        deadline: Instant,
        mut take: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<bool> {
        tally.say(format_args!("\n$ {self}"));
        let ended = execute(&mut self.command, deadline, |line| {
            if !take(line) {
                tally.say(line);
            }
        });
        Ok(ended.with_context(|| self.to_string())?.success())
    }

    /// Runs it without showing or counting anything, and returns whether it succeeded and all that it printed.
    ///
    /// # Errors
    /// If it cannot be started or is still running at `deadline`.
    pub(crate) fn try_run(mut self, deadline: Instant) -> anyhow::Result<(bool, String)> {
        let mut printed = String::new();
        let status = execute(&mut self.command, deadline, |line| {
            printed.push_str(line);
            printed.push('\n');
        });
        let status = status.with_context(|| self.to_string())?;
        Ok((status.success(), printed))
    }

    /// Runs it quietly and returns its standard output.
    pub(crate) fn output(mut self) -> anyhow::Result<String> {
        let output = self.command.output().with_context(|| format!("cannot run {self}"))?;
        if !output.status.success() {
            bail!("{self}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn execute(command: &mut Command, deadline: Instant, mut show: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot be started")?;
    let (lines, printed) = mpsc::channel();
    let out = child.stdout.take().map(|pipe| forward(pipe, lines.clone()));
    let err = child.stderr.take().map(|pipe| forward(pipe, lines));

    let mut late = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The channel closes when both pipes do, that is when the command and all that inherited its pipes are gone.
        match printed.recv_timeout(if late { Duration::from_secs(5) } else { left }) {
            Ok(line) => show(&line),
            Err(mpsc::RecvTimeoutError::Timeout) if !late => {
                late = true;
                end_with_children(child.id());
            }
            Err(mpsc::RecvTimeoutError::Timeout | mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait().context("cannot be waited for")?;
    if late {
        bail!("stopped: it ran past the part's time limit");
    }
    for thread in [out, err].into_iter().flatten() {
        // A reader only ends early if it panicked, and it has nothing to panic about.
        let _ = thread.join();
    }
    Ok(status)
}

fn forward(pipe: impl Read + Send + 'static, lines: mpsc::Sender<String>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line);
            if lines.send(text.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    })
}

/// Kills a process and all that descend from it. A process group would be simpler, but a group of its own takes the
/// terminal's Ctrl-C away from the children.
fn end_with_children(root: u32) {
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(children_of(parent));
        next += 1;
    }
    for pid in doomed {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // One that has ended by itself in the meantime is what we want.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// The fourth field of `/proc/PID/stat`; the second is a name in parentheses that may hold anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit_ms: u64, counts: Counts) -> (bool, Tally) {
        let mut tally = Tally::default();
        let deadline = Instant::now() + Duration::from_millis(limit_ms);
        let succeeded = Run::here("sh").word("-c").word(script).run(&mut tally, deadline, counts);
        (succeeded, tally)
    }

    #[test]
    fn a_failing_command_is_one_named_failure() {
        let (succeeded, tally) = shell("exit 3", 10_000, Counts::Lines);
        assert!(!succeeded);
        assert_eq!((tally.passed(), tally.failed()), (0, 1));
        assert!(tally.failures()[0].contains("exit 3"), "{:?}", tally.failures());
    }

    #[test]
    fn the_end_of_what_a_failed_command_printed_is_kept() {
        let (_, tally) = shell("seq 200; exit 3", 10_000, Counts::Itself);
        let kept = tally.last_lines();
        assert_eq!((kept.len(), kept[1].as_str(), kept[LAST_LINES].as_str()), (LAST_LINES + 1, "141", "200"));
        assert!(shell("seq 200", 10_000, Counts::Itself).1.last_lines().is_empty());
    }

    #[test]
    fn commands_that_run_together_are_all_counted_and_shown_one_after_the_other() {
        let scripts = ["echo one; sleep 0.1; echo uno", "echo two; exit 3", "echo three; echo tre", "echo four"];
        let runs = scripts.map(|script| Run::here("sh").word("-c").word(script)).into();
        let mut tally = Tally::keeping();
        Run::run_together(runs, &mut tally, Instant::now() + Duration::from_secs(10), Counts::Itself);
        assert_eq!((tally.passed(), tally.failed()), (3, 1));
        assert!(tally.failures()[0].contains("exit 3"), "{:?}", tally.failures());
        for shown in ["\none\nuno\n", "\ntwo\n", "\nthree\ntre\n", "\nfour\n"] {
            assert!(tally.kept().contains(shown), "{}", tally.kept());
        }
    }

    #[test]
    fn a_command_that_checks_nothing_is_a_failure() {
        assert_eq!(shell("true", 10_000, Counts::Lines).1.failed(), 1);
        assert_eq!(shell("true", 10_000, Counts::Itself).1.passed(), 1);
        let nothing = shell("true", 10_000, Counts::Nothing).1;
        assert_eq!((nothing.passed(), nothing.failed()), (0, 0));
    }

    #[test]
    fn a_failed_check_fails_the_command_that_exits_0() {
        let (succeeded, tally) = shell("echo check ok: a; echo check FAILED: b: c >&2", 10_000, Counts::Lines);
        assert!(!succeeded);
        assert_eq!((tally.passed(), tally.failed()), (1, 1));
    }

    #[test]
    fn a_command_past_its_time_is_ended_with_its_children() {
        let started = Instant::now();
        let (succeeded, tally) = shell("sleep 61 & sleep 62; true", 300, Counts::Itself);
        assert!(!succeeded);
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(tally.failures()[0].contains("time limit"), "{:?}", tally.failures());
    }
}
