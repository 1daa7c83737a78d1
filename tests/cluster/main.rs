//! Brokers in processes of their own, coordinated by a real ZooKeeper: what clients see while some of them fail.

mod apart;
mod attack;
mod clients;
mod coordinated;
mod leadership;
mod lost_leaders;
mod process;
mod tools;
