//! What the next opening will take for synced, and with it what it will make of damage: rot stays, a torn write is cut.

use std::path::Path;

use crate::Offset;
use crate::fs::Fs;
use crate::io::IoError;
use crate::state_file::{FlushMark, StateFile};

use super::super::fault::Fault;
use super::super::files::SegmentFiles;
use super::super::summary::{PartitionSummary, Stop, Writer};

/// Up to where the batches of a partition count as synced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    stop: Stop,
    /// The flush mark, where it says more than the recovery point. It divides its segment to the byte.
    mark: Option<FlushMark>,
    /// All offsets below count as synced.
    synced: Offset,
    /// How Kafka's own files say that the log was left, if it lies in a root that has any.
    kafka: Option<KafkaTrust>,
}

/// What Kafka goes by.
#[derive(Clone, Copy, Debug)]
struct KafkaTrust {
    clean: bool,
    recovery_point: Offset,
}

impl Trust {
    /// As recovery decides it: by the state file of ours, if it is about this log, else by the checkpoint of the root; where
    /// neither tells, a segment that was succeeded by another was synced before.
    pub(super) fn of(fs: &dyn Fs, dir: &Path, summary: &PartitionSummary) -> Result<Self, IoError> {
        let root = &summary.root;
        let own = StateFile::read(fs, dir)?.last().filter(|_| summary.writer == Writer::Highwater);
        let last = summary.files.segments.last().map_or(Offset::ZERO, |segment| segment.base);
        let recovery_point = own.map(|own| own.recovery_point).or(root.recovery_point).unwrap_or(last);
        let mark = own.and_then(|own| own.mark).filter(|mark| mark.offset >= recovery_point);
        let kafka = root
            .dir
            .as_ref()
            .map(|_| KafkaTrust { clean: root.clean, recovery_point: root.recovery_point.unwrap_or(Offset::ZERO) });
        let synced = mark.map_or(recovery_point, |mark| mark.offset);
        Ok(Self { stop: summary.stop, mark, synced, kafka })
    }

    /// Says of damage where `offset` was due in a segment, with `next` the base of the one behind it, what becomes of it.
    pub(super) fn judge(&self, fault: Fault, offset: Offset, files: &SegmentFiles, next: Option<Offset>) -> Fault {
        let position = fault.position.unwrap_or(0);
        let is_below = match self.mark.filter(|mark| mark.segment_base == files.base) {
            Some(mark) => position < mark.position,
            None => offset < self.synced,
        };
        let is_synced = self.stop == Stop::Clean || is_below;
        // Kafka reads whole segments, from the one in which the recovery point lies.
        let is_recovered = |kafka: KafkaTrust| !kafka.clean && next.is_none_or(|next| next > kafka.recovery_point);
        Fault { is_synced: Some(is_synced), kafka_recovers: self.kafka.map(is_recovered), ..fault }
    }
}
