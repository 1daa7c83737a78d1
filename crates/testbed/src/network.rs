//! Hosts on one wire, each a network namespace, whose links to one another are cut one way or both.
//!
//! ```text
//!   here ── bridge ──┬── place 1
//!                    ├── place 2
//!                    └── place 3
//! ```
//!
//! Each host knows the hardware addresses of the others for good. A link is cut by giving the sender a wrong one for the
//! receiver: frames go out and nobody takes them, as on a wire that is cut. No packet filter is needed for that, which
//! a kernel may lack. (A route that refuses would be another fault: the sender would hear of it.)

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::inside::is_inside;
use crate::run;

/// A host on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u8);

impl Place {
    /// Where this process is itself.
    pub const HERE: Self = Self(0);

    /// The address that the others reach it under: one of those that are set aside for documentation.
    pub const fn address(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, self.0.saturating_add(1)))
    }

    fn name(self) -> String {
        format!("place{}", self.0)
    }

    fn hardware_address(self) -> String {
        format!("02:00:00:00:00:{:02x}", self.0)
    }

    /// One that nobody has.
    fn wrong_hardware_address(self) -> String {
        format!("02:00:00:00:ff:{:02x}", self.0)
    }

    /// The name that the host itself has for its device.
    const fn device(self) -> &'static str {
        if self.0 == Self::HERE.0 { "wire" } else { "eth0" }
    }
}

/// Several hosts. Gone with the processes in them and this one.
#[derive(Debug)]
pub struct Network {
    places: Vec<Place>,
    cut: BTreeSet<(Place, Place)>,
}

impl Network {
    /// Makes hosts 1 to `count`, at most 200, beside this one.
    ///
    /// # Errors
    /// This process is not inside (see [`crate::enter`]), or the system refuses.
    pub fn start(count: u8) -> anyhow::Result<Self> {
        ensure!(is_inside(), "this process is not in namespaces of its own");
        ensure!((1..=200).contains(&count), "{count} hosts on one wire");
        // Names of namespaces are files, where only root may write: this hides them from this process and its children.
        let names = if Path::new("/run/netns").exists() { "/run/netns" } else { "/run" };
        run("mount", &["-t", "tmpfs", "tmpfs", names])?;
        let network = Self { places: (0..=count).map(Place).collect(), cut: BTreeSet::new() };
        run("ip", &["link", "set", "lo", "up"])?;
        run("ip", &["link", "add", Place::HERE.device(), "type", "bridge"])?;
        for &place in &network.places {
            if place != Place::HERE {
                network.attach(place)?;
            }
            network.ip(place, &format!("link set {} address {}", place.device(), place.hardware_address()))?;
            network.ip(place, &format!("addr add {}/24 dev {}", place.address(), place.device()))?;
            network.ip(place, &format!("link set {} up", place.device()))?;
        }
        for &from in &network.places {
            for to in network.others(from) {
                network.set_link(from, to, true)?;
            }
        }
        Ok(network)
    }

    /// Makes a host with a device that is plugged in here.
    fn attach(&self, place: Place) -> anyhow::Result<()> {
        let (name, plug) = (place.name(), format!("to{}", place.0));
        run("ip", &["netns", "add", &name])?;
        run("ip", &["link", "add", &plug, "type", "veth", "peer", "name", place.device(), "netns", &name])?;
        run("ip", &["link", "set", &plug, "master", Place::HERE.device(), "up"])?;
        self.ip(place, "link set lo up")
    }

    /// The command `ip` on a host.
    fn ip(&self, place: Place, words: &str) -> anyhow::Result<()> {
        let name = place.name();
        let mut arguments = if place == Place::HERE { vec![] } else { vec!["-n", name.as_str()] };
        arguments.extend(words.split(' '));
        run("ip", &arguments)
    }

    /// The hosts, this one first.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    fn others(&self, place: Place) -> impl Iterator<Item = Place> {
        self.places.iter().copied().filter(move |&other| other != place)
    }

    /// A command that runs `program` on a host, as the same process that `spawn` starts.
    pub fn command(place: Place, program: impl AsRef<OsStr>) -> Command {
        if place == Place::HERE {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", Self::namespace(place).display())).arg(program);
        command
    }

    /// The file that is a host's network namespace.
    pub fn namespace(place: Place) -> PathBuf {
        Path::new("/run/netns").join(place.name())
    }

    /// From now on nothing that `from` sends reaches `to`; what `to` sends still reaches `from`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut_one_way(&mut self, from: Place, to: Place) -> anyhow::Result<()> {
        self.set_link(from, to, false)?;
        self.cut.insert((from, to));
        Ok(())
    }

    /// From now on neither reaches the other.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut_between(&mut self, one: Place, other: Place) -> anyhow::Result<()> {
        self.cut_one_way(one, other)?;
        self.cut_one_way(other, one)
    }

    /// From now on this host reaches nobody and nobody reaches it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut_off(&mut self, place: Place) -> anyhow::Result<()> {
        let others: Vec<Place> = self.others(place).collect();
        others.into_iter().try_for_each(|other| self.cut_between(place, other))
    }

    /// Which ways are cut, from whom to whom.
    pub fn cut(&self) -> impl Iterator<Item = (Place, Place)> {
        self.cut.iter().copied()
    }

    /// Everybody reaches everybody again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn mend(&mut self) -> anyhow::Result<()> {
        while let Some(&(from, to)) = self.cut.first() {
            self.set_link(from, to, true)?;
            self.cut.remove(&(from, to));
        }
        Ok(())
    }

    fn set_link(&self, from: Place, to: Place, whole: bool) -> anyhow::Result<()> {
        let address = if whole { to.hardware_address() } else { to.wrong_hardware_address() };
        let (peer, device) = (to.address(), from.device());
        self.ip(from, &format!("neigh replace {peer} lladdr {address} nud permanent dev {device}"))
    }
}
