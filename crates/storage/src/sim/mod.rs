//! A test kit: your own program on a simulated disk, network and clock, one thread, one seed.
//!
//! A test that runs several machines in one thread owns all chance: the order of messages, which are lost, when a power cut
//! comes and what it leaves. From a seed all of it repeats exactly, so that a failure can be told, looked at and tried again
//! after the fix. This repository's own replication is tried like this (`tests/sim`, on the same parts):
//!
//! | part | what it stands for |
//! |---|---|
//! | [`SimFs`] | a machine's disk and its process: it dies within any call, fails, fills up |
//! | [`after_power_cut`] | one of the disks that a power cut may leave |
//! | [`Network`] | one-way links with delay, loss, doubling, reordering and cuts |
//! | [`Clock`] | what a machine takes for the time: steps and drift |
//! | [`Queue`] | what is going to happen, in order of virtual time |
//! | [`Random`] | chance, in streams that do not touch each other |
//!
//! The parts know nothing of each other or of your program. It has to be one that can be asked to take a step: it does file
//! access through [`Fs`](crate::fs::Fs), is told the time, is given its messages, and returns what it wants to send. The loop
//! around it is yours:
//!
//! ```
//! use highwater_storage::sim::{Clock, Fate, Network, Queue, Random};
//!
//! enum Event {
//!     Arrives { to: usize, message: &'static str },
//! }
//!
//! let seed = 17;
//! let mut network = Network::new(seed, 2, 10);
//! let mut chance = Random::stream(seed, 1);
//! let mut queue = Queue::new(0);
//! let mut clocks = [Clock::default(), Clock::default()];
//!
//! // Something goes wrong: half of the messages are lost for a second, and a clock goes back by an hour.
//! network.lose(2, 1_000);
//! clocks[1].step(-3_600_000);
//!
//! let (mut arrived, mut tries) = (false, 0);
//! while !arrived {
//!     for fate in network.send(queue.now(), 0, 1) {
//!         if let Fate::Arrives { after_ms } = fate {
//!             queue.schedule(after_ms, Event::Arrives { to: 1, message: "hello" });
//!         }
//!     }
//!     tries += 1;
//!     if let Some(Event::Arrives { to, message }) = queue.pop() {
//!         assert_eq!(message, "hello");
//!         assert_eq!(clocks[to].read(queue.now()), queue.now() - 3_600_000);
//!         arrived = true;
//!     }
//! }
//! assert!(tries < 100 && chance.below(6) < 6);
//! ```
//!
//! The example `simulate_your_program` is a whole one: a replicated queue of jobs on three machines.

mod clock;
mod network;
mod queue;
mod random;

pub use crate::fs::Random;
pub use clock::Clock;
pub use network::{Fate, Network};
pub use queue::Queue;

use crate::fs::SimFs;

/// One of the disks that a power cut at this moment may leave, started again; which one, `choice` says. The process that ran
/// on the disk is none of this one's: [`SimFs::kill`] it, or drop it.
pub fn after_power_cut(disk: &SimFs, choice: u64) -> SimFs {
    let mut random = Random::new(choice);
    let mut images = disk.images(IMAGES, random.draw());
    let chosen = random.index(images.len().max(1));
    if chosen < images.len() { images.swap_remove(chosen) } else { disk.process_crash_image() }
}

/// From so many one is chosen: the corners, and what is drawn.
const IMAGES: usize = 5;

#[cfg(test)]
mod tests;
