//! Compaction (`cleanup.policy=compact`): of the records of one key the last one stays.

mod offset_map;
mod options;

pub use options::{CompactionMemory, CompactionOptions};
