//! Three replicas over simulated disks, a lossy network and a store with compare-and-set, driven by a seed.
//!
//! The machines are the real ones: `Replica`, `Controller`, `Partition` and `Log`. Each seed draws a row of the table "what
//! may be lost when" (`docs/replication.md`) and a schedule of failures, runs until everything has healed and the replicas
//! are equal, and checks the invariants after every event (`truth.rs`).

mod node;
mod plan;
mod random;
mod runs;
mod store;
mod truth;
mod world;

pub use plan::Mutant;
pub use runs::{run, run_many, trace};
pub use world::Counts;
