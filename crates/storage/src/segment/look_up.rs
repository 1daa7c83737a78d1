//! Finding batches in a segment, past damage.

use super::{Located, Segment};
use crate::Offset;
use crate::batch::{BatchFault, BatchHeader};
use crate::error::{DamageKind, Damaged, ReadError};
use crate::fs::File;
use crate::indexes::Indexes;
use crate::io::IoContext;
use crate::recovery::RepairedField;
use crate::scan::{Found, Walk};
use crate::survey::{Frame, Sound, Step, Stretch, Survey};

impl Segment {
    /// The first batch that holds `target` or a later offset. All offsets of the segment lie below `limit`.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if `target` lies in damage.
    pub(crate) fn locate(&self, target: Offset, limit: Offset) -> Result<Option<Located>, ReadError> {
        let (len, file) = (self.len(), self.file()?);
        if !self.damage.is_some() {
            // What the index says is held against the batches on the way: one read finds them all.
            let from = self.indexes()?.position_of(target).context_at("read an index of", || self.path())?;
            let mut walk = Walk::small(&*file, from, len);
            let mut expected = self.base;
            while let Found::Batch(position, header) = walk.next_header().context_at("read", || self.path())? {
                if header.base_offset() < expected {
                    break;
                }
                if header.last_offset() >= target {
                    // A batch that begins further on may be the one behind damage, or say so wrongly.
                    if header.base_offset() > target || header.last_offset() >= limit {
                        break;
                    }
                    return Ok(Some(Located { position, header }));
                }
                expected = header.next_offset();
            }
        }
        self.locate_past_damage(target, limit, false)
    }

    /// As [`Segment::locate`], by a closer look: the batches around it have to agree. `verified` if its checksum has to
    /// be right as well.
    pub(crate) fn locate_past_damage(
        &self,
        target: Offset,
        limit: Offset,
        verified: bool,
    ) -> Result<Option<Located>, ReadError> {
        let (len, file) = (self.len(), self.file()?);
        // From a batch before it, so that it is known where it has to begin.
        let from = self.position_near(&*file, target + -1, len)?;
        let mut survey = self.survey(&*file, from, limit);
        if verified {
            survey.verify();
        }
        loop {
            match survey.step().context_at("read", || self.path())? {
                Step::Batch(batch) if batch.header.last_offset() < target => {}
                Step::Batch(batch) => {
                    if let Some(damaged) = self.mislabelled(&batch) {
                        return Err(damaged.into());
                    }
                    return Ok(Some(Located { position: batch.position, header: batch.header }));
                }
                Step::Damage(stretch) if stretch.offsets.end > target => {
                    return Err(self.damage(stretch).into());
                }
                Step::Damage(_) => {}
                // Room that was allocated ahead has the next segment begin where the batches end. Here they are missing.
                Step::Zeros(position) if survey.expected().max(target) < limit && limit < Offset::MAX => {
                    let (bytes, offsets) = (len - position, survey.expected()..limit);
                    return Err(self
                        .damage(Stretch { position, bytes, offsets, what: BatchFault::Length(0).into() })
                        .into());
                }
                Step::Zeros(_) | Step::End => return Ok(None),
            }
        }
    }

    /// As [`Segment::locate_past_damage`], where a batch that holds `target` ends below `limit` for sure.
    pub(crate) fn locate_below(&self, target: Offset, limit: Offset) -> Result<Located, ReadError> {
        let missing = |what| {
            let (position, offsets) = (self.len(), target..limit);
            ReadError::from(self.damage(Stretch { position, bytes: 0, offsets, what }))
        };
        self.locate_past_damage(target, limit, true)?.ok_or_else(|| missing(DamageKind::Short))
    }

    /// The first batch that `wanted` wants, of those from (about) the one that holds `near` on. Damage is passed over. All
    /// offsets of the segment lie below `limit`.
    pub(crate) fn locate_where(
        &self,
        near: Offset,
        limit: Offset,
        wanted: impl Fn(&BatchHeader) -> bool,
    ) -> Result<Option<Located>, ReadError> {
        let (len, file) = (self.len(), self.file()?);
        let from = self.position_near(&*file, near, len)?;
        if !self.damage.is_some() {
            let mut walk = Walk::small(&*file, from, len);
            let mut expected = self.base;
            loop {
                match walk.next_header().context_at("read", || self.path())? {
                    Found::Batch(_, header) if header.base_offset() < expected || header.last_offset() >= limit => {
                        break;
                    }
                    Found::Batch(position, header) if wanted(&header) => return Ok(Some(Located { position, header })),
                    Found::Batch(_, header) => expected = header.next_offset(),
                    Found::End => return Ok(None),
                    Found::Bad(..) => break,
                }
            }
        }
        let mut survey = self.survey(&*file, from, limit);
        loop {
            match survey.step().context_at("read", || self.path())? {
                Step::Batch(batch) if self.mislabelled(&batch).is_none() && wanted(&batch.header) => {
                    return Ok(Some(Located { position: batch.position, header: batch.header }));
                }
                Step::Batch(_) | Step::Damage(_) => {}
                Step::Zeros(_) | Step::End => return Ok(None),
            }
        }
    }

    /// Where to cut so that no offset from `to` on is left, and the end of what stays. Damage that may hold `to` goes as
    /// a whole, as the batch that holds it does.
    pub(crate) fn cut_for(&self, to: Offset, limit: Offset) -> Result<(u64, Offset), ReadError> {
        let (len, file) = (self.len(), self.file()?);
        // From a batch that stays, so that the end of the last one that does is known.
        let from = self.position_near(&*file, to + -1, len)?;
        let mut survey = self.survey(&*file, from, limit);
        let mut kept_end = None;
        loop {
            match survey.step().context_at("read", || self.path())? {
                Step::Batch(Sound { position, header, .. }) if header.last_offset() >= to => {
                    let first = if position == 0 { self.base } else { header.base_offset() };
                    return Ok((position, kept_end.unwrap_or(first)));
                }
                Step::Damage(Stretch { position, offsets, .. }) if offsets.end > to => {
                    return Ok((position, kept_end.unwrap_or(offsets.start)));
                }
                Step::Batch(Sound { header, .. }) => kept_end = Some(header.next_offset()),
                Step::Damage(Stretch { offsets, .. }) => kept_end = Some(offsets.end),
                Step::Zeros(position) => return Ok((position, kept_end.unwrap_or(self.base))),
                Step::End => return Ok((len, kept_end.unwrap_or(self.base))),
            }
        }
    }

    /// A survey of its data file from `position`, a batch boundary, on.
    pub(crate) fn survey<'f>(&self, file: &'f dyn File, position: u64, limit: Offset) -> Survey<'f> {
        let frame = Frame { position, ..Frame::whole(self.base, self.len(), limit).small() };
        Survey::new(file, frame).passing_over(self.damage.all())
    }

    /// The damage that a batch is to readers if a field that tells where it is and what is wrong in the file.
    pub(crate) fn mislabelled(&self, batch: &Sound) -> Option<Damaged> {
        let fix = batch.fixes.iter().find(|fix| fix.field != RepairedField::LeaderEpoch)?;
        let header = &batch.header;
        Some(self.damage(Stretch {
            position: batch.position,
            bytes: header.total_bytes() as u64,
            offsets: header.base_offset()..header.next_offset(),
            what: fix.damage(),
        }))
    }

    /// Where to begin to look for the batch that holds `near`: what the index says, if a batch confirms it.
    fn position_near(&self, file: &dyn File, near: Offset, len: u64) -> Result<u64, ReadError> {
        let indexes = self.indexes()?;
        let position = indexes.position_of(near).context_at("read an index of", || self.path())?;
        if position == 0 {
            return Ok(0);
        }
        let pointed_at = Walk::small(file, position, len).next_header().context_at("read", || self.path())?;
        if matches!(&pointed_at, Found::Batch(_, header) if (self.base..=near).contains(&header.base_offset())) {
            return Ok(position);
        }
        let Indexes::Files(bad) = &indexes else {
            // Those of the active segment came from their files when the log was opened, with only the last entry held
            // against a batch. From the start the walk finds what there is, slowly: this one or the damage in the data.
            return Ok(0);
        };
        let rebuilt = self.rebuild_wrong_indexes(bad)?;
        rebuilt.position_of(near).context_at("read an index of", || self.path()).map_err(ReadError::from)
    }
}
