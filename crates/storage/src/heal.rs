//! Puts right bytes in the place of damaged ones, where another replica has them.
//!
//! The bytes come from outside and are believed only as far as they prove what they are: whole batches with right checksums,
//! of the leader epochs that this log's history has for their offsets, that lie between the batches around the damage, and
//! that have its very length. So the file keeps its shape, positions stay what they are, and readers go on beside it. Where
//! the other replica has other batches (it is compacted further, or its batches were) nothing is changed.
//!
//! Written in place: what is overwritten is damaged. A crash half way leaves it damaged, as it was, and a copy of the log
//! that has the same file under another name is healed with it.

use crate::batch::batches;
use crate::error::{DamageKind, Damaged, HealError, Misfit};
use crate::io::{FileExt, IoContext};
use crate::log::Log;

impl Log {
    /// Overwrites a damaged stretch, one of [`Log::damage`], with the batches that belong there, and syncs. Waits for the disk.
    ///
    /// # Errors
    /// [`HealError::Unknown`] and [`HealError::Misfit`] if nothing was changed. After [`HealError::Io`] a part may be
    /// written, and the stretch counts as damaged still. [`HealError::Closed`] if the sync failed.
    pub fn heal(&mut self, damaged: &Damaged, healed: &[u8]) -> Result<(), HealError> {
        self.shared.usable()?;
        let segments = self.shared.segments();
        let mut all = segments.with_ends(self.end());
        let found = all.find(|(segment, _)| segment.known_damage().all().contains(damaged));
        let Some((segment, _)) = found else { return Err(HealError::Unknown) };
        if damaged.offsets.end > self.flushed() {
            // What is not synced is written anew by whoever appends it again.
            return Err(HealError::Unknown);
        }
        self.fits(damaged, healed)?;
        let shared = self.shared.clone();
        let _writing = shared.writing_side_files();
        let (file, path) = (segment.file()?, segment.path());
        let mut there = vec![0; healed.len()];
        file.read_exact_at(&mut there, damaged.position).context("read", &path)?;
        if there == healed {
            return Err(Misfit::Same.into());
        }
        file.write_all_at(healed, damaged.position).context("write", &path)?;
        self.syncer().run(|| file.sync_data().context("sync", &path))?;
        segment.known_damage().healed(damaged);
        if segment.base() < self.active.segment.base() {
            segment.forget_indexes();
        }
        Ok(())
    }

    fn fits(&self, damaged: &Damaged, healed: &[u8]) -> Result<(), Misfit> {
        if matches!(damaged.what, DamageKind::Short) || damaged.bytes != healed.len() as u64 {
            return Err(Misfit::Length { damaged: damaged.bytes, healed: healed.len() as u64 });
        }
        let mut expected = damaged.offsets.start;
        for batch in batches(healed) {
            let Ok(batch) = batch else { return Err(Misfit::Batch) };
            let header = batch.header();
            if !batch.crc_matches() {
                return Err(Misfit::Batch);
            }
            let (first, next, epoch) = (header.base_offset(), header.next_offset(), header.leader_epoch());
            if first < expected || next <= first || next > damaged.offsets.end {
                return Err(Misfit::Offsets { first, last: header.last_offset() });
            }
            let known = self.epochs.epoch_of(first);
            if known.is_some() && epoch != known {
                return Err(Misfit::Epoch { first, epoch, known });
            }
            expected = next;
        }
        // No batch at all is no length but 0.
        if expected == damaged.offsets.start { Err(Misfit::Batch) } else { Ok(()) }
    }
}
