//! A machine within the machine for processes under test: links that can be cut, disks that can be full.
//!
//! Everything is made in namespaces of this process's own, so that it takes no privileges, touches nothing outside, and goes
//! with the last process in it. Linux only; `unshare` and `nsenter` (util-linux) and `ip` (iproute2) do the work.

mod disk;
mod inside;
mod network;

use std::process::Command;

use anyhow::{Context, ensure};

pub use disk::Disk;
pub use inside::{command_inside, enter, is_inside, run_test_inside};
pub use network::{Network, Place};

/// Runs a tool to its end. An error says what was asked of it and what it said.
fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let asked = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot run `{}`", asked()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{}` fails ({}): {}", asked(), output.status, said.trim());
    Ok(())
}
