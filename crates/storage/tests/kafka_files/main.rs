//! Directories that real Kafka brokers wrote, against what Kafka's own classes and clients read in them
//! (`tests/data/README.md`): first the files as they lie there, then logs opened on copies of them.

mod case;
mod damaged;
mod files;
mod logs;
mod roots;
mod rows;
mod transactions;
