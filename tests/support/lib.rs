//! Support for the tests of the whole: the real binary as a child process, and a plain client to talk to it.

mod client;
mod kafka;
pub mod messages;
mod random;
pub mod requests;
mod server;
mod zookeeper;

pub use client::Client;
pub use kafka::Kafka;
pub use random::Random;
pub use server::{Allocator, Ready, ServeOptions, Server, binary, highwater, run};
pub use zookeeper::ZooKeeper;
