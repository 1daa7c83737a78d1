//! A broker that speaks the Kafka protocol over replicated partitions.

pub mod cluster;

mod owner;
mod threads;
