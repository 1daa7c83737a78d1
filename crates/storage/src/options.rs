//! What a log is told: its limits and policies.

use crate::check::ProduceRules;
use crate::compaction::CompactionOptions;
use crate::open_files::OpenFiles;
use crate::scrub::ScrubRate;

/// When [`crate::Log`] syncs by itself.
///
/// A broker leaves this at [`FlushPolicy::None`] and syncs on a thread of its own with [`crate::Log::begin_flush`], so
/// that one sync serves all that wait. Threads that share a log through [`crate::SharedLog`] get that without more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushPolicy {
    /// Never: the caller flushes, or [housekeeping](LogOptions::checkpoint_interval_ms) does now and then. A crash of the
    /// process loses nothing, a power cut loses what was not flushed.
    #[default]
    None,
    /// As soon as this many records are not synced yet (Kafka's `flush.messages`).
    EveryMessages(u64),
    /// With the first append, or step of [housekeeping](crate::Log::housekeeping), at least so many milliseconds after the
    /// first record that is not synced yet (Kafka's `flush.ms`): a power cut loses about as much as came in that time.
    EveryMs(i64),
    /// Before each append returns: nothing that was acknowledged is lost.
    EachAppend,
}

/// When zeros are kept ahead of the end of a log; see [`LogOptions::zero_ahead_bytes`]. They are worth their writing where
/// syncs come often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZeroAheadMode {
    /// While [`LogOptions::flush`] is anything but [`FlushPolicy::None`].
    #[default]
    ByPolicy,
    /// Always: for a caller that leaves the policy at [`FlushPolicy::None`] and syncs its appends itself.
    Always,
}

/// The limits and policies of one log. `Default` is Kafka 4.1's; names follow Kafka's topic configuration. There will be
/// more: write `LogOptions { segment_bytes, ..LogOptions::default() }`.
///
/// Clones share [`LogOptions::open_files`] and [`LogOptions::scrub_rate`], so that options made once and cloned for each log bound them all.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Bytes after which a segment is full; a leader's append must fit into one. 1 GiB. Small segments make retention
    /// exact and truncation quick, and cost files. At most 2^31-1, because index entries hold positions as `i32`.
    pub segment_bytes: u32,
    /// Milliseconds, by the time of its records, after which a segment is full although it has room. 7 days.
    pub segment_ms: i64,
    /// Up to this many milliseconds are taken off [`LogOptions::segment_ms`], another amount for each segment, so that
    /// many logs do not roll at once. 0.
    pub segment_jitter_ms: i64,
    /// An index entry is due once more than this many bytes were appended since the last. 4096. Smaller finds an
    /// offset with less reading and costs memory.
    pub index_interval_bytes: u32,
    /// Bytes after which an index is full, and its segment with it. 10 MiB.
    pub index_bytes_max: u32,
    /// Whether segments are removed by age and size at all (Kafka's `cleanup.policy` has `delete`). Segments below the
    /// log start always go. True.
    pub retention: bool,
    /// Milliseconds after which a segment may go, counted from its largest timestamp; -1 keeps all. 7 days.
    pub retention_ms: i64,
    /// Bytes of log above which the oldest segments may go; -1 keeps all. -1.
    pub retention_bytes: i64,
    /// How the log is compacted (Kafka's `cleanup.policy` has `compact`); `None` if it is not. `None`.
    pub compaction: Option<CompactionOptions>,
    /// When appends sync by themselves. [`FlushPolicy::None`].
    pub flush: FlushPolicy,
    /// Bytes of zeros that housekeeping keeps ahead of the end, at most up to the end of the segment, where
    /// [`LogOptions::zero_ahead`] says so: a synced append is then one write of the disk and not two. 4 MiB; 0 for none.
    /// Each log that is written to takes that much more of the disk until it is closed.
    pub zero_ahead_bytes: u32,
    /// Under which policy there are zeros ahead of the end. [`ZeroAheadMode::ByPolicy`].
    pub zero_ahead: ZeroAheadMode,
    /// Milliseconds after the first append behind a checkpoint when housekeeping makes the next, which syncs everything and
    /// moves the recovery point: so much of the log, and what came until the next step of housekeeping, is read again after
    /// a crash. 0 makes one in each round, -1 only behind full segments. 5 seconds. Appends do not wait for it.
    pub checkpoint_interval_ms: i64,
    /// Milliseconds between the moment a segment leaves the log and its files' removal, for readers. One minute.
    pub file_delete_delay_ms: i64,
    /// What producers' batches must keep to.
    pub rules: ProduceRules,
    /// Milliseconds after its last batch when an idempotent producer is forgotten. One day.
    pub producer_id_expiration_ms: i64,
    /// Producers remembered at most; past it the one idle for longest is forgotten. 100,000, which is about 20 MB.
    pub max_producer_ids: usize,
    /// Bytes of a log's files that hold intact batches from behind damage, which recovery cuts off and puts aside; past it
    /// what is cut off is gone. 0 keeps none. 1 GiB.
    pub side_files_bytes_max: u64,
    /// Milliseconds between the starts of two passes of the scrubber, which reads and verifies all segments that no longer
    /// grow; -1 for none. 7 days. The first pass begins when the log is opened.
    pub scrub_interval_ms: i64,
    /// How fast the scrubber reads; clones share it. 4 MiB a second. See [`ScrubRate`].
    pub scrub_rate: ScrubRate,
    /// The files kept open. See [`OpenFiles`].
    pub open_files: OpenFiles,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 60 * 60 * 1000,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            index_bytes_max: 10 << 20,
            retention: true,
            retention_ms: 7 * 24 * 60 * 60 * 1000,
            retention_bytes: -1,
            compaction: None,
            flush: FlushPolicy::None,
            zero_ahead_bytes: 4 << 20,
            zero_ahead: ZeroAheadMode::ByPolicy,
            checkpoint_interval_ms: 5000,
            file_delete_delay_ms: 60_000,
            rules: ProduceRules::default(),
            producer_id_expiration_ms: 24 * 60 * 60 * 1000,
            max_producer_ids: 100_000,
            side_files_bytes_max: 1 << 30,
            scrub_interval_ms: 7 * 24 * 60 * 60 * 1000,
            scrub_rate: ScrubRate::default(),
            open_files: OpenFiles::default(),
        }
    }
}

impl LogOptions {
    /// The first option whose value a log cannot work with.
    ///
    /// # Errors
    /// The option, and what it has to be.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        let invalid = |option, requirement| Err(InvalidOption { option, requirement });
        if self.segment_bytes == 0 || self.segment_bytes > i32::MAX as u32 {
            return invalid("segment_bytes", "between 1 and 2147483647");
        }
        if self.segment_ms < 1 {
            return invalid("segment_ms", "at least 1");
        }
        if self.segment_jitter_ms < 0 {
            return invalid("segment_jitter_ms", "at least 0");
        }
        if self.index_bytes_max < INDEX_BYTES_MIN || self.index_bytes_max > i32::MAX as u32 {
            return invalid("index_bytes_max", "between 24 and 2147483647");
        }
        if self.retention_ms < -1 {
            return invalid("retention_ms", "-1 (no limit) or at least 0");
        }
        if self.retention_bytes < -1 {
            return invalid("retention_bytes", "-1 (no limit) or at least 0");
        }
        if self.flush == FlushPolicy::EveryMessages(0) {
            return invalid("flush", "a number of messages of at least 1");
        }
        if matches!(self.flush, FlushPolicy::EveryMs(..0)) {
            return invalid("flush", "a number of milliseconds of at least 0");
        }
        if self.checkpoint_interval_ms < -1 {
            return invalid("checkpoint_interval_ms", "-1 (behind full segments only) or at least 0");
        }
        if self.file_delete_delay_ms < 0 {
            return invalid("file_delete_delay_ms", "at least 0");
        }
        if self.producer_id_expiration_ms < 1 {
            return invalid("producer_id_expiration_ms", "at least 1");
        }
        if self.scrub_interval_ms < -1 {
            return invalid("scrub_interval_ms", "-1 (never) or at least 0");
        }
        if self.max_producer_ids == 0 {
            return invalid("max_producer_ids", "at least 1");
        }
        self.compaction.as_ref().map_or(Ok(()), CompactionOptions::validate)
    }
}

/// Two time index entries: one that an append may make, and the one kept back for sealing.
const INDEX_BYTES_MIN: u32 = 24;

/// An option outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} must be {requirement}")]
pub struct InvalidOption {
    /// The field of [`LogOptions`].
    pub option: &'static str,
    /// What it has to be.
    pub requirement: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_extremes_are_taken_and_nonsense_is_named() {
        assert_eq!(LogOptions::default().validate(), Ok(()));
        let extreme = LogOptions {
            segment_bytes: i32::MAX as u32,
            segment_ms: 1,
            segment_jitter_ms: i64::MAX,
            index_interval_bytes: 0,
            retention_ms: i64::MAX,
            retention_bytes: 0,
            ..LogOptions::default()
        };
        assert_eq!(extreme.validate(), Ok(()));
        let refused = [
            (LogOptions { segment_bytes: 0, ..LogOptions::default() }, "segment_bytes"),
            (LogOptions { segment_bytes: 1 << 31, ..LogOptions::default() }, "segment_bytes"),
            (LogOptions { segment_ms: 0, ..LogOptions::default() }, "segment_ms"),
            (LogOptions { segment_jitter_ms: -1, ..LogOptions::default() }, "segment_jitter_ms"),
            (LogOptions { index_bytes_max: 23, ..LogOptions::default() }, "index_bytes_max"),
            (LogOptions { retention_ms: -2, ..LogOptions::default() }, "retention_ms"),
            (LogOptions { retention_bytes: -2, ..LogOptions::default() }, "retention_bytes"),
            (LogOptions { flush: FlushPolicy::EveryMessages(0), ..LogOptions::default() }, "flush"),
            (LogOptions { flush: FlushPolicy::EveryMs(-1), ..LogOptions::default() }, "flush"),
            (LogOptions { checkpoint_interval_ms: -2, ..LogOptions::default() }, "checkpoint_interval_ms"),
            (LogOptions { file_delete_delay_ms: -1, ..LogOptions::default() }, "file_delete_delay_ms"),
            (LogOptions { producer_id_expiration_ms: 0, ..LogOptions::default() }, "producer_id_expiration_ms"),
            (LogOptions { scrub_interval_ms: -2, ..LogOptions::default() }, "scrub_interval_ms"),
            (LogOptions { max_producer_ids: 0, ..LogOptions::default() }, "max_producer_ids"),
        ];
        for (options, option) in refused {
            assert_eq!(options.validate().map_err(|invalid| invalid.option), Err(option));
        }
    }
}
