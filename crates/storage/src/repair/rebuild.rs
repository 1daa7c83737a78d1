//! Index files, epochs and snapshots, made anew from the batches in one pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::batch::BatchView;
use crate::checkpoint::{self, replace_file};
use crate::epochs::EpochHistory;
use crate::fs::OpenMode;
use crate::index::AbortedTransaction;
use crate::indexes::IndexWriter;
use crate::inspect::{
    AbortedEntries, InspectError, OpenTransactions, PartitionFiles, PartitionSummary, Piece, RootCheckpoints,
    SegmentFiles, SegmentWalk, contradiction,
};
use crate::io::IoContext;
use crate::log::{EPOCHS_FILE, write_epochs};
use crate::names::SegmentFile;
use crate::producers::{MAX_PRODUCERS, ProducerTable};
use crate::segment::Place;
use crate::snapshots;
use crate::transactions;
use crate::{LeaderEpoch, Offset};

use super::RepairError;

/// What is to be made anew.
#[derive(Clone, Debug, Default)]
pub(super) struct Rebuild {
    /// Offset and time indexes of these segments.
    pub(super) indexes: BTreeSet<Offset>,
    /// Indexes of aborted transactions of these segments.
    pub(super) transactions: BTreeSet<Offset>,
    /// The leader-epoch checkpoint.
    pub(super) epochs: bool,
    /// Producer snapshots.
    pub(super) snapshots: Snapshots,
}

/// Which producer snapshots are to be made anew.
#[derive(Clone, Debug)]
pub(super) enum Snapshots {
    /// At each segment's base, and at the end.
    All,
    /// At these offsets.
    At(BTreeSet<Offset>),
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::At(BTreeSet::new())
    }
}

impl Snapshots {
    pub(super) fn add(&mut self, offset: Offset) {
        if let Self::At(offsets) = self {
            offsets.insert(offset);
        }
    }
}

/// The pass over the batches.
struct Pass<'p> {
    rebuild: &'p Rebuild,
    place: &'p Place,
    files: PartitionFiles,
    producers: ProducerTable,
    open: OpenTransactions,
    epochs: EpochHistory,
    expected: Offset,
    /// No batch is missing so far, and none before the first is needed to know what was open there.
    knows_all: bool,
    due: Vec<Offset>,
    /// Snapshots were removed.
    has_removed: bool,
}

impl Rebuild {
    /// Returns the end of the log.
    pub(super) fn run(
        &self,
        place: &Place,
        checkpoints: &RootCheckpoints,
        read: &mut dyn FnMut(u64),
    ) -> Result<Offset, RepairError> {
        let summary = PartitionSummary::in_root(&*place.fs, &place.dir, checkpoints)?;
        let files = summary.files;
        let first = files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        let due: Vec<Offset> = match &self.snapshots {
            Snapshots::All => files.segments.iter().skip(1).map(|segment| segment.base).chain([Offset::MAX]).collect(),
            Snapshots::At(offsets) => offsets.iter().copied().collect(),
        };
        // The batches below the first segment's are gone. Nothing reads a snapshot of them.
        let (gone, mut due): (Vec<_>, Vec<_>) = due.into_iter().partition(|due| *due < first);
        let has_removed = !gone.is_empty();
        for offset in gone {
            place.remove(&place.path(offset, SegmentFile::ProducerSnapshot))?;
        }
        due.reverse();
        // What lies before the first segment is known from its snapshot only.
        let before = snapshots::read(place, first, MAX_PRODUCERS)?;
        let knows_all = first == Offset::ZERO || before.is_some();
        let producers = before.unwrap_or_else(|| ProducerTable::new(MAX_PRODUCERS));
        let mut pass = Pass {
            rebuild: self,
            place,
            files,
            producers,
            open: OpenTransactions::default(),
            epochs: EpochHistory::new(),
            expected: first,
            knows_all,
            due,
            has_removed,
        };
        let segments = pass.files.segments.clone();
        for segment in &segments {
            pass.segment(segment, read)?;
        }
        pass.finish(summary.log_start)
    }
}

impl Pass<'_> {
    fn segment(&mut self, files: &SegmentFiles, read: &mut dyn FnMut(u64)) -> Result<(), RepairError> {
        let (place, base, path) = (self.place, files.base, &files.log.path);
        let file = place.fs.open(path, OpenMode::Read).context("open", path)?;
        let mut indexes = IndexWriter::new(base, place.index_interval_bytes);
        let mut known = AbortedEntries::read(&*place.fs, files.transaction_index.as_ref())?;
        let mut aborted: BTreeMap<Offset, AbortedTransaction> = BTreeMap::new();
        let next = self.files.segments.iter().map(|segment| segment.base).find(|next| *next > base);
        let mut walk = SegmentWalk::new(&*file, base, files.log.bytes, next);
        self.knows_all &= base <= self.expected;
        self.expected = self.expected.max(base);
        loop {
            let before = walk.position();
            match walk.next_piece().context("read", path)? {
                Piece::End => break,
                Piece::Batch { position, batch, .. } => {
                    self.knows_all &= batch.base_offset() <= self.expected;
                    // Of what is missing an old index may know more than the batches.
                    aborted.extend(known.take(self.expected..batch.base_offset()));
                    self.snapshots_up_to(batch.base_offset())?;
                    indexes.add(position, batch.header());
                    if batch.leader_epoch() > self.epochs.latest() {
                        self.epochs.assign(batch.leader_epoch(), batch.base_offset());
                    }
                    self.transactions(&batch, &mut known, &mut aborted);
                    self.expected = batch.next_offset();
                }
                Piece::Damaged(damaged) => aborted.extend(known.take(damaged.offsets)),
                Piece::Zeros { .. } => {}
            }
            read(walk.position() - before);
        }
        indexes.finish();
        // Past the end of the log offsets will be given to other records.
        aborted.extend(known.take(self.expected..next.unwrap_or(self.expected)));
        if self.rebuild.indexes.contains(&base) {
            IndexWriter::write_files(place, base, indexes.indexes())?;
        }
        if self.rebuild.transactions.contains(&base) {
            let entries: Vec<_> = aborted.into_values().collect();
            transactions::write_file(place, base, &entries)?;
        }
        Ok(())
    }

    fn transactions(
        &mut self,
        batch: &BatchView<'_>,
        known: &mut AbortedEntries,
        aborted: &mut BTreeMap<Offset, AbortedTransaction>,
    ) {
        self.open.batch(batch.header());
        let completed = self.producers.replicated(batch);
        if !batch.is_control() {
            return;
        }
        let had_records = self.open.end(batch.producer_id());
        let last = batch.last_offset();
        let said = known.take(last..last.next()).next().map(|(_, entry)| entry);
        let said = said.filter(|entry| contradiction(entry, batch.header(), completed).is_none());
        let built = completed.filter(|_| had_records).and_then(|completed| completed.aborted());
        let entry = match (said, built) {
            // They agree on the transaction. What was open beside it only a replay without gaps can tell.
            (Some(said), Some(built)) if self.knows_all && said.first_offset == built.first_offset => Some(built),
            (said, built) => said.or(built),
        };
        aborted.extend(entry.map(|entry| (last, entry)));
    }

    fn snapshots_up_to(&mut self, offset: Offset) -> Result<(), RepairError> {
        while let Some(due) = self.due.pop_if(|due| *due <= offset) {
            let path = self.place.path(due, SegmentFile::ProducerSnapshot);
            replace_file(&*self.place.fs, &path, &self.producers.encode_snapshot())?;
        }
        Ok(())
    }

    fn finish(mut self, log_start: Offset) -> Result<Offset, RepairError> {
        let end = self.expected;
        if let Some(last) = self.due.first_mut().filter(|due| **due == Offset::MAX) {
            *last = end;
        }
        self.snapshots_up_to(end)?;
        // A snapshot of what lies behind the end is of another log, and misleads.
        let past = std::mem::take(&mut self.due);
        for &past in &past {
            self.place.remove(&self.place.path(past, SegmentFile::ProducerSnapshot))?;
        }
        self.has_removed |= !past.is_empty();
        if self.has_removed && snapshots::list(self.place)?.is_empty() {
            self.due.push(end);
            self.snapshots_up_to(end)?;
        }
        if self.rebuild.epochs {
            self.write_epochs(log_start, end)?;
        }
        Ok(end)
    }

    /// The batches' epochs, and those of leaders that wrote nothing, where the old checkpoint has them and they fit.
    fn write_epochs(&self, log_start: Offset, end: Offset) -> Result<(), RepairError> {
        let mut entries: BTreeMap<LeaderEpoch, Offset> = self.epochs.entries().iter().copied().collect();
        let known = match checkpoint::read_epochs(&*self.place.fs, &self.place.dir.join(EPOCHS_FILE)) {
            Ok(known) => known,
            Err(checkpoint::CheckpointError::Malformed { .. }) => Vec::new(),
            Err(error) => return Err(InspectError::from(error).into()),
        };
        for (epoch, start) in known.into_iter().filter(|(_, start)| *start <= end) {
            let before = entries.range(..epoch).next_back().is_none_or(|(_, before)| *before < start);
            let after = entries.range(epoch..).next().is_none_or(|(found, after)| *found > epoch && *after > start);
            if before && after {
                entries.insert(epoch, start);
            }
        }
        let invalid = |error: crate::InvalidHistory| crate::io::IoError {
            verb: "rebuild",
            path: self.place.dir.join(EPOCHS_FILE),
            source: io::Error::other(error.to_string()),
        };
        let mut history = EpochHistory::from_entries(entries.into_iter().collect()).map_err(invalid)?;
        history.truncate_from_start(log_start);
        write_epochs(self.place, history.entries())?;
        Ok(())
    }
}
