//! What can be wrong with a log's files, how bad that is, and what a broker makes of it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use crate::{Offset, RepairedField};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing is wrong; it is worth knowing.
    Note,
    /// Something beside the records is missing or wrong, and the records tell what it should be.
    Error,
    /// Records are lost, or cannot be read.
    Loss,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Error => "error",
            Self::Loss => "loss",
        })
    }
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// No batch can be made out.
    Batch,
    /// A batch whose checksum does not match.
    Checksum,
    /// A batch, or a segment, whose offsets do not follow what is before it.
    Offsets,
    /// A header field outside of the checksum that only one value fits.
    Field,
    /// A batch whose leader epoch does not fit its neighbours.
    LeaderEpoch,
    /// Records that cannot be read, or are not what their batch says.
    Records,
    /// A batch whose largest timestamp is not that of its records.
    MaxTimestamp,
    /// The last write is not whole.
    TornTail,
    /// Zeros behind the last batch.
    ZeroTail,
    /// Offsets that no segment holds, between two segments.
    Gap,
    /// A segment's data file is gone, and its index files are left.
    SegmentMissing,
    /// Records that were synced are not there: the last files are gone, or were cut short.
    RecordsMissing,
    /// The offset index is missing.
    OffsetIndexMissing,
    /// The offset index is not what the batches say.
    OffsetIndex,
    /// The time index is missing or empty.
    TimeIndexMissing,
    /// The time index is not what the batches say.
    TimeIndex,
    /// The index of aborted transactions is not what the markers say.
    TransactionIndex,
    /// The leader-epoch checkpoint is missing.
    EpochsMissing,
    /// The leader-epoch checkpoint is damaged, or not what the batches say.
    Epochs,
    /// There is no producer snapshot, and there are producers.
    SnapshotsMissing,
    /// A producer snapshot that is damaged.
    Snapshot,
    /// A producer snapshot that is not what the batches say.
    SnapshotContent,
    /// A producer snapshot that knows fewer producers than the batches: they expired, or were forgotten.
    SnapshotProducers,
    /// A checkpoint of the data root that is damaged.
    Checkpoint,
    /// An offset in a checkpoint of the data root that is outside of the log.
    CheckpointOffset,
    /// A checkpoint of the data root has lines of partitions that are not there.
    CheckpointAbsent,
    /// The marker of a clean stop does not say what it should.
    CleanMarker,
    /// The state file of this crate is damaged, or does not fit the log.
    State,
    /// A part of the state file of this crate cannot be read, as where a power cut came while it was written.
    StateTorn,
    /// The state file of this crate is of the time before another program wrote here.
    StateForeign,
    /// A file that says whose data these are is damaged.
    Metadata,
    /// Files of interrupted or postponed work.
    Leftover,
    /// Index files without a segment.
    Orphan,
    /// Bytes that a recovery or a repair put aside.
    SetAside,
    /// A name that no log has.
    Unknown,
    /// Something that is being written right now.
    InUse,
}

impl FaultKind {
    /// All kinds. There will be more.
    pub const ALL: &'static [Self] = &[
        Self::Batch,
        Self::Checksum,
        Self::Offsets,
        Self::Field,
        Self::LeaderEpoch,
        Self::Records,
        Self::MaxTimestamp,
        Self::TornTail,
        Self::ZeroTail,
        Self::Gap,
        Self::SegmentMissing,
        Self::RecordsMissing,
        Self::OffsetIndexMissing,
        Self::OffsetIndex,
        Self::TimeIndexMissing,
        Self::TimeIndex,
        Self::TransactionIndex,
        Self::EpochsMissing,
        Self::Epochs,
        Self::SnapshotsMissing,
        Self::Snapshot,
        Self::SnapshotContent,
        Self::SnapshotProducers,
        Self::Checkpoint,
        Self::CheckpointOffset,
        Self::CheckpointAbsent,
        Self::CleanMarker,
        Self::State,
        Self::StateTorn,
        Self::StateForeign,
        Self::Metadata,
        Self::Leftover,
        Self::Orphan,
        Self::SetAside,
        Self::Unknown,
        Self::InUse,
    ];

    /// A name for machines, which does not change.
    pub fn code(self) -> &'static str {
        self.facts().0
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        self.facts().1
    }

    /// What a broker of ours does about it. Of damage in batches that were not synced [`Fault::highwater`] tells.
    pub fn highwater(self) -> &'static str {
        self.facts().2
    }

    /// What Kafka 4.1 does about it, as far as it was measured. Of one case of damage [`Fault::kafka`] tells more.
    pub fn kafka(self) -> &'static str {
        self.facts().3
    }

    fn facts(self) -> (&'static str, Severity, &'static str, &'static str) {
        use Severity::{Error, Loss, Note};
        const SERVED: &str = "serves what is before and behind, and an error for these offsets";
        const STOPS: &str = "does not notice below the recovery point or after a clean stop, and consumers stop here; \
                             above it, drops everything from here on";
        const REBUILT: &str = "rebuilds it from the batches";
        const NOTHING: &str = "ignores it";
        match self {
            Self::Batch => ("batch", Loss, SERVED, STOPS),
            Self::Checksum => ("checksum", Loss, SERVED, STOPS),
            Self::Offsets => ("offsets", Loss, SERVED, "serves it as it is"),
            Self::Field => (
                "field",
                Error,
                "reads it as it has to be, and corrects it",
                "takes it as it is: a wrong length or version ends what it reads, a wrong offset is served",
            ),
            Self::LeaderEpoch => (
                "leader-epoch",
                Error,
                "keeps the history that the neighbours and the checkpoint tell",
                "may take the wrong epoch in when it recovers, and forget the whole history for it",
            ),
            Self::Records => ("records", Loss, "serves the batch as it is", "serves the batch as it is"),
            Self::MaxTimestamp => (
                "max-timestamp",
                Error,
                "goes by the header: look-ups by time and retention may miss",
                "goes by the header: look-ups by time and retention may miss",
            ),
            Self::TornTail => (
                "torn-tail",
                Loss,
                "cuts it off at the next start",
                "cuts it off at the next start, unless the last stop was clean",
            ),
            Self::ZeroTail => (
                "zero-tail",
                Note,
                "cuts it off at the next start; no record is lost",
                "cuts it off at the next start, unless the last stop was clean",
            ),
            Self::Gap => (
                "gap",
                Note,
                "goes on behind it, unless its own state file says that there was none",
                "goes on behind it: compaction leaves such gaps",
            ),
            Self::SegmentMissing => (
                "segment-missing",
                Loss,
                "removes the indexes that are left and goes on behind the gap, unless its own state file says that there was \
                 none",
                "removes the indexes that are left and goes on behind the gap",
            ),
            Self::RecordsMissing => (
                "records-missing",
                Loss,
                "gives their offsets to other records, and says so when it opens the log",
                "gives their offsets to other records",
            ),
            Self::OffsetIndexMissing => ("index-missing", Error, REBUILT, REBUILT),
            Self::OffsetIndex => (
                "index",
                Error,
                "notices when it looks something up, and rebuilds it from the batches",
                "does not notice: look-ups may fail or miss records",
            ),
            Self::TimeIndexMissing => (
                "timeindex-missing",
                Error,
                REBUILT,
                "creates an empty one: look-ups by time and retention by time go wrong",
            ),
            Self::TimeIndex => (
                "timeindex",
                Error,
                "rebuilds it if it cannot be right in itself",
                "does not notice: look-ups by time and retention by time may go wrong",
            ),
            Self::TransactionIndex => {
                ("txnindex", Error, REBUILT, "does not notice: consumers of committed records may get aborted ones")
            }
            Self::EpochsMissing => ("epochs-missing", Error, REBUILT, "begins a new history with the next epoch"),
            Self::Epochs => (
                "epochs",
                Error,
                "rebuilds it if it is damaged; takes what recovery reads from the batches",
                "fails to start, or goes by it: replicas may cut at the wrong offset",
            ),
            Self::SnapshotsMissing => {
                ("snapshots-missing", Error, REBUILT, "writes empty ones: what is known of producers is lost")
            }
            Self::Snapshot => (
                "snapshot",
                Error,
                "takes an older one and the batches after it",
                "takes an older one and the batches after it",
            ),
            Self::SnapshotContent => ("snapshot-content", Error, "goes by it", "goes by it"),
            Self::SnapshotProducers => (
                "snapshot-producers",
                Note,
                "takes any sequence number from the producers it does not know",
                "takes any sequence number from the producers it does not know",
            ),
            Self::Checkpoint => (
                "checkpoint",
                Error,
                "goes on as if it were not there",
                "takes it for empty: recovers every log from its beginning, or serves what was deleted",
            ),
            Self::CheckpointOffset => (
                "checkpoint-offset",
                Error,
                "goes by the log's end, or begins the log anew at a start above it; compacts from the log's start",
                "goes by the log's end, or begins the log anew at a start above it; compacts from the log's start",
            ),
            Self::CheckpointAbsent => ("checkpoint-absent", Note, "drops them", "drops them"),
            Self::CleanMarker => (
                "clean-marker",
                Error,
                "takes the stop for clean, and the broker's epoch for unknown",
                "takes the stop for clean, and the broker's epoch for unknown",
            ),
            Self::State => {
                ("state", Error, "goes by the part of it that can be read, else by Kafka's checkpoints", NOTHING)
            }
            Self::StateTorn => ("state-torn", Note, "goes by the newest part that can be read", NOTHING),
            Self::StateForeign => ("state-foreign", Note, "goes by Kafka's checkpoints", NOTHING),
            Self::Metadata => ("metadata", Error, "loads the partition without a topic id", "refuses to start"),
            Self::Leftover => (
                "leftover",
                Note,
                "removes it, or puts it in place, at the next start",
                "removes it, or puts it in place, at the next start",
            ),
            Self::Orphan => ("orphan", Note, "removes it at the next start", "removes it at the next start"),
            Self::SetAside => ("set-aside", Note, "leaves it alone", NOTHING),
            Self::Unknown => ("unknown", Note, "leaves it alone", NOTHING),
            Self::InUse => ("in-use", Note, "is writing it", "is writing it"),
        }
    }
}

/// A header field outside of the checksum that only one value fits, by what is around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Correction {
    /// The field.
    pub field: RepairedField,
    /// What the file says.
    pub was: i64,
    /// What it has to be.
    pub is: i64,
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, was, is } = self;
        write!(f, "{field} {was} instead of {is}")
    }
}

/// Something that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// What kind of thing.
    pub kind: FaultKind,
    /// The file or directory it is in.
    pub file: PathBuf,
    /// Where in the file, in bytes from its start.
    pub position: Option<u64>,
    /// How many bytes it concerns.
    pub bytes: Option<u64>,
    /// Which offsets it concerns.
    pub offsets: Option<Range<Offset>>,
    /// What is wrong, in words.
    pub what: String,
    /// What corrects it, if it is one field with a wrong value.
    pub correction: Option<Correction>,
    /// Of damage in batches, whether the next opening by a broker of ours takes them for synced: by the flush mark, the
    /// recovery point, or a clean stop. If so, it is rot and stays; if not, it is what a torn write leaves, and is cut.
    pub is_synced: Option<bool>,
    /// Of damage in batches, whether Kafka would recover their segment when it is started; `None` also where nothing says,
    /// in a partition's directory on its own.
    pub kafka_recovers: Option<bool>,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self {
            kind,
            file: file.into(),
            position: None,
            bytes: None,
            offsets: None,
            what: what.into(),
            correction: None,
            is_synced: None,
            kafka_recovers: None,
        }
    }

    pub(crate) fn at(self, position: u64) -> Self {
        Self { position: Some(position), ..self }
    }

    pub(crate) fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    pub(crate) fn correction(self, correction: Option<Correction>) -> Self {
        Self { correction, ..self }
    }

    pub(crate) fn offsets(self, offsets: Range<Offset>) -> Self {
        Self { offsets: Some(offsets), ..self }
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }

    /// What a broker of ours does about it at its next start.
    pub fn highwater(&self) -> &'static str {
        match (self.kind, self.is_synced) {
            (FaultKind::Batch | FaultKind::Checksum | FaultKind::Offsets, Some(false)) => {
                "takes it for a torn write, since it was not synced: cuts the log off here at the next start, and puts \
                 intact batches behind it aside"
            }
            (kind, _) => kind.highwater(),
        }
    }

    /// What Kafka 4.1 does about it at its next start, as far as it was measured.
    pub fn kafka(&self) -> &'static str {
        match (self.kind, self.kafka_recovers) {
            (FaultKind::Batch | FaultKind::Checksum, Some(true)) => "drops everything from here on at the next start",
            (FaultKind::Batch | FaultKind::Checksum, Some(false)) => {
                "does not notice, and consumers stop here for good"
            }
            (kind, _) => kind.kafka(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_code_of_its_own() {
        let codes: BTreeSet<_> = FaultKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), FaultKind::ALL.len());
        for kind in FaultKind::ALL {
            assert!(kind.code().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{kind:?}");
            assert!(!kind.highwater().is_empty() && !kind.kafka().is_empty());
        }
    }
}
