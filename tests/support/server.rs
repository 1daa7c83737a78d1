//! `highwater serve` as a child process.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_testbed::{Network, Place};
use rustix::process::{Pid, Signal, kill_process};

/// How long a broker may take until it is ready. It takes milliseconds; the machine may be busy.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Which of the two programs: the memory limits must hold whatever the allocator does with freed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// As users build it.
    Jemalloc,
    /// Built with `--cfg system_allocator`.
    System,
}

/// The `highwater` program: the one that the environment names, or one built now.
///
/// `HIGHWATER_BINARY` and `HIGHWATER_BINARY_SYSTEM_ALLOCATOR` are set by `cargo xtask test`, which builds both anyway.
pub fn binary(allocator: Allocator) -> anyhow::Result<PathBuf> {
    static BUILT: [OnceLock<Result<PathBuf, String>>; 2] = [const { OnceLock::new() }; 2];
    let (variable, built, options): (_, _, &[&str]) = match allocator {
        Allocator::Jemalloc => ("HIGHWATER_BINARY", &BUILT[0], &[]),
        Allocator::System => ("HIGHWATER_BINARY_SYSTEM_ALLOCATOR", &BUILT[1], &["--cfg", "system_allocator"]),
    };
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let path = built.get_or_init(|| build(allocator, options).map_err(|error| format!("{error:#}")));
    path.clone().map_err(anyhow::Error::msg)
}

/// Builds the program in a target directory for each allocator: both have one name, and a test must not replace the
/// binary under another one.
fn build(allocator: Allocator, options: &[&str]) -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("tests/ has no parent directory")?;
    // The test program is TARGET/PROFILE/deps/it-HASH.
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).context("the tests run outside a target directory")?;
    let target = match allocator {
        Allocator::Jemalloc => target.to_path_buf(),
        Allocator::System => target.join("system-allocator"),
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["rustc", "--quiet", "--release", "--package", "highwater-broker", "--bin", "highwater", "--target-dir"])
        .arg(&target)
        .arg("--")
        .args(options)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo cannot build highwater: {status}");
    Ok(target.join("release/highwater"))
}

/// A command of the program as users build it, with no standard input.
pub fn highwater() -> anyhow::Result<Command> {
    let mut command = Command::new(binary(Allocator::Jemalloc)?);
    command.stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    Ok(command)
}

/// How to start a broker.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    allocator: Allocator,
    place: Option<Place>,
    port: u16,
    settings: Vec<String>,
    descriptors_max: Option<u32>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { allocator: Allocator::Jemalloc, place: None, port: 0, settings: Vec::new(), descriptors_max: None }
    }
}

impl ServeOptions {
    /// With this allocator instead of jemalloc.
    pub fn allocator(mut self, allocator: Allocator) -> Self {
        self.allocator = allocator;
        self
    }

    /// On this host of a network, and its address, instead of the loopback here.
    pub fn place(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// On this port instead of a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// With so many descriptors at most, soft limit and hard.
    pub fn descriptors_max(mut self, descriptors: u32) -> Self {
        self.descriptors_max = Some(descriptors);
        self
    }

    /// With one of Kafka's keys set.
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.settings.push(format!("{key}={value}"));
        self
    }
}

/// What the line says that a broker prints when it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where its data are.
    pub data: PathBuf,
    /// How many partitions it found there.
    pub partitions: u64,
    /// How many records it had to scan.
    pub records_recovered: u64,
    /// How long that took it.
    pub millis: u64,
}

impl Ready {
    /// Reads `ready: listening on HOST:PORT, data in DIR (N partitions, M records recovered in T ms)`.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let fields = || -> Option<Self> {
            let rest = line.strip_prefix("ready: listening on ")?;
            let (address, rest) = rest.split_once(", data in ")?;
            // The directory's name may hold anything, so the rest is read from the end.
            let (data, rest) = rest.strip_suffix(" ms)")?.rsplit_once(" (")?;
            let (partitions, rest) = rest.split_once(" partitions, ")?;
            let (records, millis) = rest.split_once(" records recovered in ")?;
            Some(Self {
                address: address.parse().ok()?,
                data: data.into(),
                partitions: partitions.parse().ok()?,
                records_recovered: records.parse().ok()?,
                millis: millis.parse().ok()?,
            })
        };
        fields().with_context(|| format!("this is no ready line: {line:?}"))
    }
}

/// A running broker. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Held so that the broker can go on writing to it.
    _stdout: BufReader<ChildStdout>,
    ready: Ready,
    options: ServeOptions,
    log: PathBuf,
}

impl Server {
    /// Starts a broker on this data directory, on a free port, and waits until it is ready.
    pub fn start(data: &Path) -> anyhow::Result<Self> {
        Self::start_with(data, ServeOptions::default())
    }

    /// Starts a broker and waits until it is ready. What it logs goes to a file beside its data directory.
    pub fn start_with(data: &Path, options: ServeOptions) -> anyhow::Result<Self> {
        let log = data.with_extension("stderr");
        let stderr = File::options().create(true).append(true).open(&log);
        let stderr = stderr.with_context(|| format!("cannot open {}", log.display()))?;
        let binary = binary(options.allocator)?;
        let mut command = match options.descriptors_max {
            None => Network::command(options.place.unwrap_or(Place::HERE), binary),
            Some(most) => {
                let mut shell = Network::command(options.place.unwrap_or(Place::HERE), "sh");
                shell.arg("-c").arg(format!("ulimit -n {most} && exec \"$0\" \"$@\"")).arg(binary);
                shell
            }
        };
        let host = options.place.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Place::address);
        let listen = SocketAddr::new(host, options.port);
        command.arg("serve").arg("--listen").arg(listen.to_string()).arg("--data-dir").arg(data);
        for setting in &options.settings {
            command.arg("--set").arg(setting);
        }
        command.env("RUST_BACKTRACE", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().context("cannot start the broker")?;
        let stdout = child.stdout.take().context("the broker has no standard output")?;
        let first = first_line(stdout);
        let ready = first.and_then(|(line, stdout)| Ok((Ready::parse(&line)?, stdout)));
        match ready {
            Ok((ready, stdout)) => Ok(Self { child, _stdout: stdout, ready, options, log }),
            Err(error) => {
                // It may have ended by itself: then this fails, and that is all right.
                let _ = child.kill();
                let status = child.wait()?;
                let said = fs::read_to_string(&log).unwrap_or_default();
                Err(error.context(format!("the broker did not get ready ({status}); it said:\n{said}")))
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.ready.address
    }

    /// What it said when it was ready.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The broker's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has logged, over all restarts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// kill -9: nothing is flushed, nobody is told.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the broker")?;
        self.child.wait().context("cannot wait for the broker")?;
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("the broker has no process id")?;
        kill_process(pid, signal).context("cannot signal the broker")
    }

    /// Waits until the process has ended, at most so long. Returns how it ended and how long that took.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<(ExitStatus, Duration)> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, started.elapsed()));
            }
            if started.elapsed() > limit {
                bail!("the broker still runs after {limit:?}; it said:\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGTERM, and waits for the end. Returns how it ended and how long that took.
    pub fn stop(&mut self) -> anyhow::Result<(ExitStatus, Duration)> {
        self.signal(Signal::TERM)?;
        self.wait(Duration::from_secs(20))
    }

    /// Starts it again on the same directory and port, after it was killed or stopped.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let options = self.options.clone().port(self.ready.address.port());
        *self = Self::start_with(&self.ready.data.clone(), options)?;
        Ok(())
    }

    /// The most memory that the process has had resident, in KiB, since the last [`Server::reset_peak_memory`].
    pub fn peak_memory_kib(&self) -> anyhow::Result<u64> {
        self.memory("VmHWM:")
    }

    /// The memory that the process has resident now, in KiB.
    pub fn memory_kib(&self) -> anyhow::Result<u64> {
        self.memory("VmRSS:")
    }

    /// Makes the peak what is resident now.
    pub fn reset_peak_memory(&self) -> anyhow::Result<()> {
        let path = format!("/proc/{}/clear_refs", self.pid());
        fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }

    fn memory(&self, key: &str) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let kib =
            line.and_then(|rest| rest.trim().strip_suffix(" kB")).with_context(|| format!("no {key} in {path}"))?;
        kib.trim().parse().with_context(|| format!("{key} in {path} is no number"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the process has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- the broker's log, {}\n{}", self.log.display(), last_lines(&self.log(), 40));
        }
    }
}

/// The first line of a child's output, and its output for keeping open.
fn first_line(stdout: ChildStdout) -> anyhow::Result<(String, BufReader<ChildStdout>)> {
    let (sender, line) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        // The receiver is gone only if the test gave up.
        let _ = sender.send(read.map(|_| (line.trim_end().to_owned(), reader)));
    });
    let read = line.recv_timeout(READY_LIMIT).with_context(|| format!("no line within {READY_LIMIT:?}"))?;
    read.context("cannot read its first line")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs the program to its end, within a minute, and returns its exit code and both its outputs.
pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> anyhow::Result<(i32, String, String)> {
    let mut command = highwater()?;
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().context("cannot start highwater")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("it has no process id")?;
    let (sender, ended) = mpsc::channel::<()>();
    // A command that should have failed at once may serve for ever instead.
    let watchdog = thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            // It has just ended by itself if this fails.
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().context("cannot wait for highwater")?;
    drop(sender);
    watchdog.join().map_err(|_| anyhow::anyhow!("the watchdog failed"))?;
    let code = output.status.code().with_context(|| format!("highwater ended by {}", output.status))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((code, text(&output.stdout), text(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_read() {
        let line = "ready: listening on 127.0.0.1:9092, data in /a (b), c (3 partitions, 42 records recovered in 7 ms)";
        let ready = Ready::parse(line).unwrap();
        assert_eq!(ready.address.port(), 9092);
        assert_eq!(ready.data, Path::new("/a (b), c"));
        assert_eq!((ready.partitions, ready.records_recovered, ready.millis), (3, 42, 7));
        assert!(Ready::parse("ready").is_err());
    }
}
