//! How the members of the attacked cluster reach one another, where their processes run, and links between them that are cut.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use highwater_testbed::{Network as Wire, Place};

use super::cluster::{BROKERS, Member};

/// Where each member listens.
#[derive(Debug)]
pub(super) struct Network {
    addresses: BTreeMap<Member, SocketAddr>,
    /// Only where each member has a host of its own.
    wire: Option<Wire>,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Broker(i32),
    Store,
    /// All producers and consumers.
    Clients,
}

impl End {
    const fn place(self) -> Place {
        match self {
            Self::Clients => Place::HERE,
            Self::Broker(id) => Place(id.unsigned_abs() as u8),
            Self::Store => Place(BROKERS.len() as u8 + 1),
        }
    }
}

impl From<Member> for End {
    fn from(member: Member) -> Self {
        match member {
            Member::Store => Self::Store,
            Member::Broker(id) => Self::Broker(id),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(id) => write!(f, "broker {id}"),
            Self::Store => write!(f, "ZooKeeper"),
            Self::Clients => write!(f, "the clients"),
        }
    }
}

/// Which words are lost on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// All to and from this one.
    Around(End),
    /// Those of either to the other.
    Between(End, End),
    /// Those of the first to the second. The others arrive.
    OneWay(End, End),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Around(end) => write!(f, "{end} is cut off from everybody"),
            Self::Between(one, other) => write!(f, "{one} and {other} are cut off from each other"),
            Self::OneWay(from, to) => write!(f, "what {from} sends to {to} is lost"),
        }
    }
}

impl Network {
    /// All on the loopback, on ports that are free now.
    pub(super) fn loopback() -> anyhow::Result<Self> {
        // Held until all are drawn, so that they differ.
        let mut held = Vec::new();
        let mut addresses = BTreeMap::new();
        for member in members() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("there is no free port")?;
            addresses.insert(member, listener.local_addr().context("a port has no number")?);
            held.push(listener);
        }
        Ok(Self { addresses, wire: None })
    }

    /// Each on a host of its own, and the clients on this one. This process must be in namespaces of its own.
    pub(super) fn hosts() -> anyhow::Result<Self> {
        let wire = Wire::start(End::Store.place().0).context("cannot make hosts for the cluster")?;
        let address = |member: Member| {
            let port = if member == Member::Store { 2181 } else { 9092 };
            (member, SocketAddr::new(End::from(member).place().address(), port))
        };
        Ok(Self { addresses: members().map(address).collect(), wire: Some(wire) })
    }

    /// Where a member listens.
    pub(super) fn address(&self, member: Member) -> anyhow::Result<SocketAddr> {
        self.addresses.get(&member).copied().with_context(|| format!("{member} has no address"))
    }

    /// A command that runs `program` where the member belongs, as a process that dies with this one.
    pub(super) fn command(&self, member: Member, program: &Path) -> Command {
        let place = if self.wire.is_some() { End::from(member).place() } else { Place::HERE };
        let there = Wire::command(place, program);
        // Without it brokers would outlive an attack that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(there.get_program()).args(there.get_args());
        command
    }

    /// From now on these words are lost.
    pub(super) fn cut(&mut self, cut: Cut) -> anyhow::Result<()> {
        let wire = self.wire.as_mut().context("on the loopback no link can be cut")?;
        match cut {
            Cut::Around(end) => wire.cut_off(end.place()),
            Cut::Between(one, other) => wire.cut_between(one.place(), other.place()),
            Cut::OneWay(from, to) => wire.cut_one_way(from.place(), to.place()),
        }
    }

    /// From now on all words arrive.
    pub(super) fn mend(&mut self) -> anyhow::Result<()> {
        self.wire.as_mut().map_or(Ok(()), Wire::mend)
    }
}

fn members() -> impl Iterator<Item = Member> {
    BROKERS.map(Member::Broker).into_iter().chain([Member::Store])
}
