//! Compaction on the simulated disk: what stays, what goes and when, and what a crash leaves of it.

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod kafkas;
mod keyed;
mod model;
mod rules;
