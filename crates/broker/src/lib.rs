//! A broker that speaks the Kafka protocol over replicated partitions.
//!
//! The `highwater` binary is [`command_line`] with an allocator. Programs may embed a broker too: a real one on a free
//! port, in their own process, for their own tests.
//!
//! ```
//! use highwater_broker::Broker;
//! use highwater_broker::config::{BrokerConfig, ListenAddress};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let directory = tempfile::tempdir()?;
//! let mut config = BrokerConfig::default();
//! config.data_dir = directory.path().join("data");
//! config.listen = ListenAddress { host: "127.0.0.1".to_owned(), port: 0 };
//! let broker = Broker::start_embedded(config).await?;
//! println!("point a Kafka client at {}", broker.local_addr());
//! broker.shutdown().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Cluster`] starts several brokers with one coordination store in a process and can kill, restart and pause each of
//! them: what the demo does, and what tests of a program's behaviour under a lost leader need.
//!
//! tokio serves sockets and timers and nothing that waits for a disk: partitions are owned by one thread at a time, reads
//! of logs and syncs run on threads of their own.

pub mod api;
pub mod client;
pub mod cluster;
pub mod config;

mod broker;
mod cli;
mod clock;
mod cluster_of;
mod coordinators;
mod damage;
mod deadlines;
mod demo;
#[cfg(test)]
mod draws;
mod driver;
mod fetch_sessions;
mod fetcher;
mod fetches;
mod follower_session;
mod gather;
mod groups;
mod healer;
mod history;
mod hosted;
mod net;
mod owner;
mod partitions;
mod peers;
mod readers;
mod seldom;
mod services;
mod sync;
mod threads;
mod topic_options;
mod transactions;
mod wire;

pub use broker::{Broker, Ready, StartError};
pub use cli::command_line;
pub use cluster_of::{Cluster, ClusterOptions, Configure};
pub use history::HistoryCounts;
pub use partitions::ShutdownError;
