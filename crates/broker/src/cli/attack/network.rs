//! How the members of the attacked cluster reach one another, and where their processes run.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::cluster::{BROKERS, Member};

/// Where each member listens.
#[derive(Debug)]
pub(super) struct Network {
    addresses: BTreeMap<Member, SocketAddr>,
}

impl Network {
    /// All on the loopback, on ports that are free now.
    pub(super) fn loopback() -> anyhow::Result<Self> {
        // Held until all are drawn, so that they differ.
        let mut held = Vec::new();
        let mut addresses = BTreeMap::new();
        for member in BROKERS.map(Member::Broker).into_iter().chain([Member::Store]) {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
            addresses.insert(member, listener.local_addr().context("a port has no number")?);
            held.push(listener);
        }
        Ok(Self { addresses })
    }

    /// Where a member listens.
    pub(super) fn address(&self, member: Member) -> anyhow::Result<SocketAddr> {
        self.addresses.get(&member).copied().with_context(|| format!("{member} has no address"))
    }

    /// A command that runs `program` where the member belongs, as a process that dies with this one.
    pub(super) fn command(&self, _member: Member, program: &Path) -> Command {
        // Without it brokers would outlive an attack that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }
}
