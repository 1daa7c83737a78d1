//! Three replicas over simulated disks, a lossy network and a store with compare-and-set, driven by a seed.
//!
//! The machines are the real ones: `Replica`, `Controller`, `Partition` and `Log`. Each seed draws a row of the table "what
//! may be lost when" (`docs/replication.md`) and a schedule of faults and of what operators do (moves of replicas, elections,
//! settings, brokers that hand over, the topic made again), runs until everything has healed and the replicas
//! are equal, and checks the invariants after every event (`truth.rs`); what the clients saw is judged at the end by
//! `highwater-checker`. One thread, no clock, no chance but the seed: a run repeats bit for bit.
//!
//! Beside it stands a second world with seeds of its own: coordinators of groups and of transactions over several such
//! partitions, and the clients that they serve ([`run_coordinators`]).
//!
//! ```
//! use highwater_sim::{Mutant, minimise, run, tell};
//!
//! let outcome = run(17, None, None);
//! assert_eq!(outcome.failure, None);
//! assert_eq!(outcome, run(17, None, None));
//!
//! // A mistake in the driver: it is found, and of the faults that it takes few are left.
//! let failing = (0..).find(|seed| run(*seed, Some(Mutant::CutsAtHighWatermark), None).failure.is_some()).unwrap();
//! let least = minimise(failing, Some(Mutant::CutsAtHighWatermark));
//! println!("{}", tell(failing, Some(Mutant::CutsAtHighWatermark), Some(least.faults)).1);
//! ```

mod cell;
mod coordinators;
mod counts;
mod fault;
mod minimise;
mod node;
mod plan;
mod random;
mod runs;
mod store;
mod trace;
mod truth;
mod world;

pub use cell::{Asked, Cell, Failure, Kind, ROWS, Row};
pub use coordinators::{
    CoordinatorOutcome, ManyCoordinators, Scenario, Strike, Struck, minimise_coordinators, run_coordinators,
    run_many_coordinators, tell_coordinators,
};
pub use counts::{CoordinatorCounts, Counts, Distribution};
pub use fault::Fault;
pub use minimise::{Minimised, minimise};
pub use plan::Mutant;
pub use runs::{Many, Outcome, run, run_cell, run_many, tell, tell_cell};
