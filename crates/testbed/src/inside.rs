//! Into namespaces of one's own, and what to say where that cannot be.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// Names the network namespace that this program was in before, to the program that is started inside.
const OUTSIDE: &str = "HIGHWATER_TESTBED_OUTSIDE";

/// A user of one's own (root inside, oneself to everybody else), network devices and mounts of one's own.
const UNSHARE: [&str; 4] = ["--user", "--map-root-user", "--net", "--mount"];

/// The tools that do the work, and the Debian package of each.
const TOOLS: [(&str, &str); 4] =
    [("unshare", "util-linux"), ("nsenter", "util-linux"), ("mount", "mount"), ("ip", "iproute2")];

/// Whether this process was started by [`command_inside`]. A variable alone is not believed: where root is the root of the
/// machine, its own devices and mounts would be changed.
pub fn is_inside() -> bool {
    match (std::env::var_os(OUTSIDE), network_namespace()) {
        (Some(outside), Ok(here)) => outside != here && is_root_of_nobody_else(),
        _ => false,
    }
}

/// Whether the user namespace has one user only, as those that are made here. The machine's has all, a container's many; in
/// one like this nothing can be changed that belongs to another.
fn is_root_of_nobody_else() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // Each line: the first user inside, the first outside, how many.
    matches!(map.split_whitespace().collect::<Vec<_>>()[..], ["0", _, "1"])
}

/// A command that runs `program` in namespaces of its own, as the same process that `spawn` starts.
///
/// # Errors
/// Names the tool that is missing, or why this machine lets nobody make namespaces.
pub fn command_inside(program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
    for (tool, package) in TOOLS {
        ensure!(on_path(tool), "`{tool}` is missing: install Debian's package {package}");
    }
    let tried = Command::new("unshare").args(UNSHARE).arg("true").output().context("cannot run unshare")?;
    if !tried.status.success() {
        bail!(
            "this machine lets nobody make namespaces ({}): cut links and full disks need user namespaces, which may be \
             switched off (kernel.unprivileged_userns_clone, user.max_user_namespaces, \
             kernel.apparmor_restrict_unprivileged_userns) or kept from a container",
            String::from_utf8_lossy(&tried.stderr).trim()
        );
    }
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(program).env(OUTSIDE, network_namespace()?);
    Ok(command)
}

/// Goes on inside: this program is started anew there, with the same arguments and the same process id. Inside it does nothing.
///
/// # Errors
/// As [`command_inside`].
pub fn enter() -> anyhow::Result<()> {
    if is_inside() {
        return Ok(());
    }
    ensure!(std::env::var_os(OUTSIDE).is_none(), "unshare left this process where it was");
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let error = command_inside(program)?.args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot run unshare")
}

/// For tests, whose harness has threads and cannot go inside itself: runs `body` inside, in another process of this test
/// program that runs the test of this `name` only. What it said is printed.
///
/// # Errors
/// As [`command_inside`], that of the body, or that there is no test of this name.
pub fn run_test_inside(name: &str, body: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if is_inside() {
        return body();
    }
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let arguments = ["--exact", name, "--include-ignored", "--nocapture"];
    let output = command_inside(program)?.args(arguments).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && said.contains("test result: ok. 1 passed"), "inside, {name} fails");
    Ok(())
}

fn network_namespace() -> anyhow::Result<PathBuf> {
    fs::read_link("/proc/self/ns/net").context("this kernel has no network namespaces")
}

fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_program(&directory.join(tool)))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}
