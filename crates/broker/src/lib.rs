//! A broker that speaks the Kafka protocol over replicated partitions.

pub mod api;
pub mod client;
pub mod cluster;
pub mod config;

mod broker;
mod clock;
mod cluster_of;
mod deadlines;
mod fetcher;
mod fetches;
mod gather;
mod hosted;
mod net;
mod owner;
mod partitions;
mod readers;
mod services;
mod sync;
mod threads;
mod topic_options;
mod wire;

pub use broker::{Broker, Ready, StartError};
pub use cluster_of::{Cluster, ClusterOptions, Configure};
pub use partitions::ShutdownError;
