//! Looking into data that nobody has open, or that a running broker has: reading without changing anything.
//!
//! Everything here works on one partition's directory, a data root or a single segment file, of this crate or of Kafka,
//! in whatever state it is. Nothing is locked, created, repaired or removed; memory stays bounded by three
//! times the largest batch, a mebibyte and some for each segment and each fault (`tests/memory_of_work.rs` measures it);
//! no number in a file is trusted. What is found is told in the words that recovery uses.
//!
//! | to know | use |
//! |---|---|
//! | what a path is | [`Target::of`] |
//! | who has it open | [`in_use_by`] |
//! | which files a partition consists of | [`PartitionFiles::list`] |
//! | the batches of a segment, and what lies between them | [`SegmentWalk`] |
//! | where two replicas part | [`Comparison::of`] |
//! | what a data root says of all of its partitions, read once | [`RootCheckpoints::read`] |
//! | what is wrong with any of it | [`verify_partition`], [`verify_root`], [`verify_file`] |
//! | sizes, offsets, epochs, how it was closed | [`PartitionSummary::of`], [`RootSummary::of`] |

mod diff;
mod fault;
mod files;
mod records;
mod root;
mod summary;
mod target;
mod verify;
mod walk;

pub use crate::root_checkpoints::RootCheckpoints;
pub use diff::{Comparison, Parting, Side};
pub use fault::{Correction, Fault, FaultKind, Severity};
pub use files::{FileFacts, PartitionFiles, SegmentFiles};
pub use records::RecordsFault;
pub use root::RootSummary;
pub use summary::{PartitionSummary, SegmentSummary, Stop, Writer, position_before};
pub use target::{InspectError, Target, in_use_by};
pub(crate) use target::{checkpoints_around, root_of};
pub(crate) use verify::{
    AbortedEntries, OpenTransactions, Terms, contradiction, verify_file_on, verify_locked_root, verify_partition_on,
};
pub use verify::{Verified, VerifyEvent, verify_file, verify_partition, verify_partition_in_root, verify_root};
pub use walk::{DamagedBytes, Piece, SegmentWalk};
