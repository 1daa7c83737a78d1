//! Tells whoever runs the broker what is damaged in a partition's files, and what to do about it.

use highwater_storage::{CutReason, Damaged, Offset, RecoveryReport, TimestampMs, TopicPartition};

/// What to do where records are damaged. A partition with other replicas can also be fetched anew from them.
const ADVICE: &str =
    "`highwater log verify` tells all of it; `highwater log repair`, with the broker stopped, puts it aside";

/// What was told of one log, so that it is told once in a broker's life.
#[derive(Debug, Default)]
pub(crate) struct Told {
    damaged: Vec<Damaged>,
    timestamp_ahead: bool,
}

impl Told {
    /// With what the log knew when it was opened, which [`tell_recovery`] tells.
    pub(crate) fn at_open(known: Vec<Damaged>) -> Self {
        Self { damaged: known, timestamp_ahead: false }
    }

    /// What of the damage that is known now was not told yet.
    pub(crate) fn news(&mut self, known: Vec<Damaged>) -> Vec<Damaged> {
        let news = known.iter().filter(|damaged| !self.damaged.contains(damaged)).cloned().collect();
        self.damaged = known;
        news
    }

    /// Whether no timestamp later than now was told of yet. One is enough: their producer's clock is wrong.
    pub(crate) fn is_first_ahead(&mut self) -> bool {
        !std::mem::replace(&mut self.timestamp_ahead, true)
    }
}

/// Warns of everything in the files of a log that was not as it should be when it was opened.
pub(crate) fn tell_recovery(partition: &TopicPartition, report: &RecoveryReport) {
    for missing in &report.missing {
        tracing::warn!(
            %partition, first_offset = missing.start.0, end_offset = missing.end.0, log_end_offset = report.end.0,
            "records are gone that were synced, with their file or the end of it; look at the disk. From the log's end on \
             their offsets are given to other records"
        );
    }
    if report.foreign_mark {
        tracing::warn!(
            %partition, flushed_offset = report.flushed.0,
            "the files are not as this broker left them: another program wrote or cut them; what it recorded of them is not gone by"
        );
    }
    for name in &report.ignored {
        tracing::warn!(%partition, name, "passed over in the partition's directory: no log has a file of this name");
    }
    for damaged in &report.rotten {
        tell_damaged(partition, damaged);
    }
    for repaired in &report.repaired {
        let (file, position) = (repaired.segment.display(), repaired.position);
        if repaired.in_place {
            tracing::warn!(
                %partition, %file, position, field = %repaired.field, was = repaired.was, is = repaired.is,
                "corrected a batch's header that had rotted; no record is lost, but look at the disk"
            );
        } else {
            tracing::warn!(
                %partition, %file, position, field = %repaired.field, was = repaired.was, is = repaired.is,
                advice = ADVICE, "a batch's header has rotted and is left as it is"
            );
        }
    }
    if let Some(cut) = report.cut.as_ref().filter(|cut| cut.reason != CutReason::Zeros) {
        tracing::warn!(
            %partition, file = %cut.file.display(), position = cut.at, bytes = cut.bytes, segments = cut.segments,
            end_offset = cut.end.0, reason = %cut.reason,
            "cut the end of the log off: what was not synced when the broker stopped"
        );
    }
    for aside in &report.put_aside {
        let (first, last) = aside.offsets;
        let (segment, position, bytes, batches) = (aside.segment.display(), aside.position, aside.bytes, aside.batches);
        match &aside.file {
            Some(file) => tracing::warn!(
                %partition, file = %file.display(), %segment, position, bytes, batches, first_offset = first.0,
                last_offset = last.0,
                "put intact batches aside that lay behind damage; `highwater log dump` reads them, remove the file when done"
            ),
            None => tracing::warn!(
                %partition, %segment, position, bytes, batches, first_offset = first.0, last_offset = last.0,
                "intact batches that lay behind damage are lost: there was no room to put them aside"
            ),
        }
    }
}

/// Warns of one damaged stretch of a segment.
pub(crate) fn tell_damaged(partition: &TopicPartition, damaged: &Damaged) {
    tracing::warn!(
        %partition, file = %damaged.segment.display(), position = damaged.position, bytes = damaged.bytes,
        first_offset = damaged.offsets.start.0, end_offset = damaged.offsets.end.0, what = %damaged.what,
        advice = ADVICE, "a part of the log is damaged; what lies around it is served"
    );
}

/// Warns of wrong index files, which cost no record.
pub(crate) fn tell_wrong_indexes(partition: &TopicPartition, base: Offset) {
    tracing::warn!(
        %partition, segment = base.0,
        "index files were wrong and are written anew; `highwater log verify` tells whether more is wrong"
    );
}

/// Warns of a timestamp later than now, by which retention would keep a segment for ever.
pub(crate) fn tell_timestamp_ahead(partition: &TopicPartition, base: Offset, timestamp: TimestampMs) {
    tracing::warn!(
        %partition, segment = base.0, timestamp = timestamp.0,
        "a record has a timestamp later than now: retention goes by the time its segment was last written; look at the \
         producers' clocks and at message.timestamp.after.max.ms"
    );
}
