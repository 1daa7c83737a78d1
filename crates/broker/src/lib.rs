//! A broker that speaks the Kafka protocol over replicated partitions.

pub mod api;
pub mod client;
pub mod cluster;
pub mod config;

mod broker;
mod net;
mod clock;
mod deadlines;
mod fetches;
mod gather;
mod owner;
mod readers;
mod threads;
mod wire;
