//! Walks the batches of a segment past damage, and says what is damaged, what is not, and what is only mislabelled.
//!
//! The checksum of a batch leaves out its base offset, length, epoch and format version. These are held against the
//! batches on both sides, the segment's bounds and the epoch history. A field that does not fit is put right where the
//! rest of the batch is intact and one value only fits; else the batch is damaged. Behind damage the walk goes on at the
//! next header with a fitting base offset whose checksum is right.

mod plausible;

use std::io;

use crate::batch::{BASE_OFFSET_BYTES, BatchFault, BatchHeader, HEADER_BYTES, MAGIC, MAGIC_END, frame_length};
use crate::epochs::EpochHistory;
use crate::error::{DamageKind, Damaged};
use crate::fs::File;
use crate::recovery::RepairedField;
use crate::window::Window;
use crate::{LeaderEpoch, Offset};
use plausible::{Checksum, has_plausible_fields, is_an_epoch, may_begin_batch};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 256 << 10;

/// Bytes read at a time by look-ups, which usually end within the distance of two index entries.
const SMALL_WINDOW_BYTES: usize = 8 << 10;

/// Batches above this are passed by reading their headers alone.
const LARGE_BATCH_BYTES: usize = 16 << 10;

/// Bytes whose checksum a survey computes in vain before it looks for no more batches behind damage: so many, and so many
/// times the bytes it goes over. A file made to have a header at every byte must not take forever.
const IN_VAIN_BYTES: u64 = 64 << 20;
const IN_VAIN_TIMES: u64 = 4;

/// How far behind a batch that nothing seems to follow the search looks for one that is followed.
const DOUBTFUL_BYTES: u64 = 1 << 20;

/// What a survey came upon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// A batch.
    Batch(Sound),
    /// Bytes in which no batch can be made out, or none that belongs there.
    Damage(Stretch),
    /// Nothing but zeros from this position to the end.
    Zeros(u64),
    /// The end, exactly at a batch boundary.
    End,
}

/// A batch that belongs where it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sound {
    pub(crate) position: u64,
    /// Its header, put right.
    pub(crate) header: BatchHeader,
    /// What was put right in it, and is still wrong in the file.
    pub(crate) fixes: Vec<Fix>,
    /// Its epoch cannot be right, and more than one would fit.
    pub(crate) doubtful_epoch: bool,
}

impl Sound {
    /// The batch's bytes with its header put right.
    pub(crate) fn put_right(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for (byte, right) in bytes.iter_mut().zip(self.first_bytes()) {
            *byte = right;
        }
        bytes
    }

    /// The first bytes of the batch as they have to be: those outside of the checksum.
    pub(crate) fn first_bytes(&self) -> impl Iterator<Item = u8> {
        // Of a message of the old formats only the offset is ever put right, and its checksum comes before its version.
        let bytes = if self.header.is_legacy() { BASE_OFFSET_BYTES } else { MAGIC_END };
        self.header.encode().into_iter().take(bytes)
    }
}

/// A field outside the checksum that can have one value only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fix {
    pub(crate) field: RepairedField,
    pub(crate) was: i64,
    pub(crate) is: i64,
}

impl Fix {
    /// What the field is to those who cannot have it put right.
    pub(crate) fn damage(&self) -> DamageKind {
        let Self { field, was, is } = *self;
        DamageKind::Field { field, was, is }
    }
}

/// Damaged bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) position: u64,
    pub(crate) bytes: u64,
    /// From the end of the batch before to the next one's first offset: what may have been in it.
    pub(crate) offsets: std::ops::Range<Offset>,
    pub(crate) what: DamageKind,
}

/// What holds for all batches of a survey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'e> {
    /// The segment's base offset.
    pub(crate) base: Offset,
    /// Where the survey begins: a batch boundary, and no offset below `expected` from there on.
    pub(crate) position: u64,
    pub(crate) expected: Offset,
    /// The epoch of the batch before, if that is known.
    pub(crate) epoch: LeaderEpoch,
    /// Where it ends, in bytes.
    pub(crate) end: u64,
    /// All offsets lie below: the next segment's base, or the log's end. [`Offset::MAX`] if that is not known.
    pub(crate) limit: Offset,
    /// The epochs, and the offset below which they are known to be right.
    pub(crate) epochs: Option<(&'e EpochHistory, Offset)>,
    /// From this position on all checksums are verified. Below it, only those of batches that do not fit.
    pub(crate) verify_from: u64,
    /// Bytes read at a time.
    pub(crate) window_bytes: usize,
}

impl Frame<'_> {
    /// A whole segment of `len` bytes, with no checksum verified that fits.
    pub(crate) fn whole(base: Offset, len: u64, limit: Offset) -> Self {
        Self {
            base,
            position: 0,
            expected: base,
            epoch: LeaderEpoch::NONE,
            end: len,
            limit,
            epochs: None,
            verify_from: u64::MAX,
            window_bytes: WINDOW_BYTES,
        }
    }

    /// The same for a survey that will be short.
    pub(crate) fn small(self) -> Self {
        Self { window_bytes: SMALL_WINDOW_BYTES, ..self }
    }

    /// The same with all checksums verified.
    pub(crate) fn verified(self) -> Self {
        Self { verify_from: 0, ..self }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Survey<'f> {
    window: Window<'f>,
    position: u64,
    expected: Offset,
    epoch: LeaderEpoch,
    limit: Offset,
    epochs: Option<(&'f EpochHistory, Offset)>,
    verify_from: u64,
    last_batch_bytes: usize,
    in_vain_left: u64,
    /// Damage that was found before, by falling position: it is passed over unread.
    known: Vec<Damaged>,
}

/// What is at a position, on the face of it.
#[derive(Clone, Copy, Debug)]
enum Look {
    Batch(BatchHeader),
    End,
    Bad(BatchFault),
}

impl<'f> Survey<'f> {
    pub(crate) fn new(file: &'f dyn File, frame: Frame<'f>) -> Self {
        Self {
            window: Window::new(file, frame.end, frame.window_bytes),
            position: frame.position,
            expected: frame.expected,
            epoch: frame.epoch,
            // No offset of a segment lies further from its base than an index entry can say.
            limit: frame.limit.min(frame.base.checked_add(1 << 31).unwrap_or(Offset::MAX)),
            epochs: frame.epochs,
            verify_from: frame.verify_from,
            last_batch_bytes: 0,
            in_vain_left: frame.end.saturating_mul(IN_VAIN_TIMES).saturating_add(IN_VAIN_BYTES),
            known: Vec::new(),
        }
    }

    /// Takes what is known to be damaged for damaged without reading it. By rising position.
    pub(crate) fn passing_over(mut self, mut known: Vec<Damaged>) -> Self {
        known.reverse();
        self.known = known;
        self
    }

    /// Verifies all checksums from here on.
    pub(crate) fn verify(&mut self) {
        self.verify_from = self.verify_from.min(self.position);
    }

    /// The epoch of the last batch that had one.
    pub(crate) fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// The end of the last batch, or of the damage behind it.
    pub(crate) fn expected(&self) -> Offset {
        self.expected
    }

    /// The next batch, or the damage before it.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let position = self.position;
        if let Some(known) = self.known_here() {
            return Ok(known);
        }
        let header = match self.look(position)? {
            Look::Batch(header) => header,
            Look::End => return Ok(Step::End),
            Look::Bad(fault) => return self.damaged(position, fault.into()),
        };
        let next = self.look(position + header.total_bytes() as u64)?;
        let fits = self.fits(&header, &next);
        // The checksum does not cover the format version, and an older one has another checksum.
        let verify = position >= self.verify_from || !fits || header.is_legacy();
        if verify && let Some(fault) = self.checksum_fault(position, &header)? {
            return self.damaged(position, fault.into());
        }
        if fits {
            return Ok(self.pass(Sound { position, header, fixes: Vec::new(), doubtful_epoch: false }));
        }
        self.refit(position, header, Vec::new())
    }

    /// The bytes of a batch that the last step returned, as they are in the file.
    pub(crate) fn bytes_of(&mut self, batch: &Sound) -> io::Result<&[u8]> {
        let total = batch.header.total_bytes();
        let bytes = self.window.get(batch.position, total)?;
        bytes.get(..total).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Passes over damage at the position that is known already.
    fn known_here(&mut self) -> Option<Step> {
        let position = self.position;
        while self.known.pop_if(|known| known.position < position && end_of(known) <= position).is_some() {}
        let known = self.known.pop_if(|known| known.position <= position)?;
        let end = end_of(&known).min(self.window.end());
        let Damaged { offsets, what, .. } = known;
        let offsets = offsets.start.max(self.expected)..offsets.end.max(self.expected);
        (self.position, self.expected) = (end.max(position), offsets.end);
        Some(Step::Damage(Stretch { position, bytes: self.position - position, offsets, what }))
    }

    /// What is at a position, if it is read as the start of a batch.
    fn look(&mut self, position: u64) -> io::Result<Look> {
        let end = self.window.end();
        if position >= end {
            return Ok(Look::End);
        }
        let bytes = if self.last_batch_bytes > LARGE_BATCH_BYTES && position < self.verify_from {
            self.window.get_only(position, HEADER_BYTES)?
        } else {
            self.window.get(position, HEADER_BYTES)?
        };
        let left = usize::try_from(end - position).unwrap_or(usize::MAX);
        let total = match frame_length(bytes) {
            Ok(total) => total,
            Err(fault) => return Ok(Look::Bad(fault)),
        };
        // Messages of the old formats may be shorter than a header: it ends with them, not with what follows.
        Ok(match bytes.get(..total.min(HEADER_BYTES)) {
            Some(first) if total <= left => Look::Batch(BatchHeader::decode_first(first)),
            _ => Look::Bad(BatchFault::Partial { have: left, need: total }),
        })
    }

    /// Whether a batch fits what is before and behind it.
    fn fits(&self, header: &BatchHeader, next: &Look) -> bool {
        let (first, last) = (header.base_offset(), header.last_offset());
        let in_order = |epoch: LeaderEpoch, next: LeaderEpoch| !epoch.is_some() || !next.is_some() || epoch <= next;
        let history = self.history_of(first);
        first >= self.expected
            && last >= first
            && last < self.limit
            && is_an_epoch(header.leader_epoch())
            && in_order(self.epoch, header.leader_epoch())
            && (!history.is_some() || !header.leader_epoch().is_some() || history == header.leader_epoch())
            && match next {
                Look::Batch(next) => next.base_offset() > last && in_order(header.leader_epoch(), next.leader_epoch()),
                Look::End => true,
                Look::Bad(_) => false,
            }
    }

    /// Decides about a batch whose checksum is right and which does not fit: it may be its neighbour that is wrong.
    fn refit(&mut self, position: u64, mut header: BatchHeader, mut fixes: Vec<Fix>) -> io::Result<Step> {
        let after = position + header.total_bytes() as u64;
        let (found, delta) = (header.base_offset(), i64::from(header.last_offset_delta()));
        let next = match self.look(after)? {
            Look::Batch(next) if self.in_vain_left > 0 && self.checksum_fault(after, &next)?.is_none() => Some(next),
            _ => None,
        };
        // What lies behind bounds this one only if both can be there, one after the other.
        let least_end = self.expected.checked_add(delta + 1).unwrap_or(Offset::MAX);
        let bound = next.map(|next| next.base_offset()).filter(|bound| *bound >= least_end && *bound <= self.limit);
        let bound = bound.unwrap_or(self.limit);
        if delta < 0 || least_end > bound {
            return self.misplaced(position, &header);
        }
        if !(self.expected..=bound + (-1 - delta)).contains(&found) {
            // Is there another batch or the end of the segment right behind, and no room but for this one?
            let touches = next.is_some() || after >= self.window.end();
            if bound != least_end || !touches {
                return self.misplaced(position, &header);
            }
            header.base_offset = self.expected;
            fixes.push(Fix { field: RepairedField::BaseOffset, was: found.0, is: self.expected.0 });
        }
        let mut doubtful_epoch = false;
        if let Some(fitting) = self.fitting_epoch(&header, next.as_ref())? {
            match fitting {
                Some(epoch) if epoch != header.leader_epoch() => {
                    let was = i64::from(header.leader_epoch().0);
                    fixes.push(Fix { field: RepairedField::LeaderEpoch, was, is: i64::from(epoch.0) });
                    header.leader_epoch = epoch;
                }
                Some(_) => {}
                None => doubtful_epoch = true,
            }
        }
        Ok(self.pass(Sound { position, header, fixes, doubtful_epoch }))
    }

    /// The epoch that a batch must have had: `None` if what it has may be right, `Some(None)` if it cannot be and more
    /// than one would fit.
    fn fitting_epoch(
        &mut self,
        header: &BatchHeader,
        next: Option<&BatchHeader>,
    ) -> io::Result<Option<Option<LeaderEpoch>>> {
        let found = header.leader_epoch();
        let before = self.epoch;
        let history = self.history_of(header.base_offset());
        let behind = next.map(|next| next.leader_epoch()).filter(|epoch| epoch.is_some());
        let within = |epoch: LeaderEpoch| epoch >= before && behind.is_none_or(|behind| epoch <= behind);
        if history.is_some() && within(history) {
            if found == history || found == LeaderEpoch::NONE {
                return Ok(None);
            }
            // Where the batches on both sides say the same as this one, it is the history that is wrong.
            let agreed = found == before && behind == Some(found);
            // The same if only one side does, unless the history changes right there.
            let changes_behind = next.is_some_and(|next| self.begins_at(next.leader_epoch(), next.base_offset()));
            let changes_here = self.begins_at(history, header.base_offset());
            if agreed || (behind == Some(found) && !changes_behind) || (found == before && !changes_here) {
                return Ok(None);
            }
            return Ok(Some(Some(history)));
        }
        if found == LeaderEpoch::NONE || (is_an_epoch(found) && within(found)) {
            return Ok(None);
        }
        match behind {
            Some(behind) if before.is_some() && before == behind => Ok(Some(Some(before))),
            // The batch behind is the one that is out of order.
            Some(behind) if before.is_some() && before > behind && is_an_epoch(found) && found >= before => Ok(None),
            // Nothing before. If this one is right, the one behind is wrong, and the one behind that tells.
            Some(behind) if !before.is_some() && is_an_epoch(found) => {
                let after = self.position + header.total_bytes() as u64;
                let second = match self.look(after + next.map_or(0, |next| next.total_bytes() as u64))? {
                    Look::Batch(second) => Some(second.leader_epoch()),
                    _ => None,
                };
                Ok(match second {
                    Some(second) if second >= found => None,
                    Some(_) => Some(Some(behind)),
                    None => Some(None),
                })
            }
            Some(behind) if !before.is_some() => Ok(Some(Some(behind))),
            _ => Ok(Some(None)),
        }
    }

    fn begins_at(&self, epoch: LeaderEpoch, start: Offset) -> bool {
        self.epochs.is_some_and(|(epochs, _)| epochs.entries().contains(&(epoch, start)))
    }

    /// The epoch at an offset by the history, [`LeaderEpoch::NONE`] if it does not tell.
    fn history_of(&self, offset: Offset) -> LeaderEpoch {
        let known = self.epochs.filter(|(_, upto)| offset < *upto);
        known.map_or(LeaderEpoch::NONE, |(epochs, _)| epochs.epoch_of(offset))
    }

    /// A whole batch whose offsets belong nowhere here.
    fn misplaced(&mut self, position: u64, header: &BatchHeader) -> io::Result<Step> {
        let (first, last) = (header.base_offset(), header.last_offset());
        let what = DamageKind::Offsets { first, last, expected: self.expected };
        let after = position + header.total_bytes() as u64;
        let next = self.resume_from(after)?;
        Ok(self.give_up(position, next, what))
    }

    /// Damage begins at `position`.
    fn damaged(&mut self, position: u64, what: DamageKind) -> io::Result<Step> {
        if self.is_zero_from(position)? {
            return Ok(Step::Zeros(position));
        }
        let mut next = self.resume_from(position + 1)?;
        let end = next.map_or_else(|| self.window.end(), |(next, _)| next);
        if let Some((header, fixes)) = self.as_one_batch(position, end)? {
            return self.refit(position, header, fixes);
        }
        // Records may hold whole batches. What was found inside of the damaged one, if its length is right, is no batch
        // of the log.
        if let Look::Batch(header) = self.look(position)?
            && let after = position + header.total_bytes() as u64
            && after > end
        {
            match self.look(after)? {
                Look::End => next = None,
                Look::Batch(behind) if self.may_follow(&behind) && self.checksum_fault(after, &behind)?.is_none() => {
                    next = Some((after, behind));
                }
                _ => {}
            }
        }
        Ok(self.give_up(position, next, what))
    }

    /// Passes over what lies between `position` and the next batch.
    fn give_up(&mut self, position: u64, next: Option<(u64, BatchHeader)>, what: DamageKind) -> Step {
        let end = next.map_or_else(|| self.window.end(), |(next, _)| next);
        if next.is_some() {
            // Damage that was found to be here before, by a look that took what is damaged for a batch, says nothing against
            // one whose checksum is right.
            self.known.retain(|known| known.position >= end || end_of(known) <= end);
        }
        let upto = next.map_or(self.limit, |(_, header)| header.base_offset());
        let offsets = self.expected..upto.max(self.expected);
        (self.position, self.expected) = (end, offsets.end);
        Step::Damage(Stretch { position, bytes: end - position, offsets, what })
    }

    /// The bytes between two positions as one batch, if its checksum is right once the fields outside of it are put
    /// right.
    fn as_one_batch(&mut self, position: u64, end: u64) -> io::Result<Option<(BatchHeader, Vec<Fix>)>> {
        let total = end - position;
        let Ok(length) = i32::try_from(total.saturating_sub(crate::batch::LENGTH_PREFIX_BYTES as u64)) else {
            return Ok(None);
        };
        let Some(mut header) = self.window.get(position, HEADER_BYTES)?.first_chunk::<HEADER_BYTES>().copied() else {
            return Ok(None);
        };
        let [magic] = MAGIC.to_be_bytes();
        let found_magic = std::mem::replace(&mut header[MAGIC_END - 1], magic);
        let mut header = BatchHeader::decode(&header);
        let fields = [
            (RepairedField::Length, i64::from(header.batch_length()), i64::from(length)),
            (RepairedField::Magic, i64::from(i8::from_be_bytes([found_magic])), i64::from(MAGIC)),
        ];
        header.batch_length = length;
        if !has_plausible_fields(&header) || self.checksum_fault(position, &header)?.is_some() {
            return Ok(None);
        }
        let fixes = fields.into_iter().filter(|(_, was, is)| was != is);
        Ok(Some((header, fixes.map(|(field, was, is)| Fix { field, was, is }).collect())))
    }

    /// Takes a batch as the last one.
    fn pass(&mut self, batch: Sound) -> Step {
        let total = batch.header.total_bytes();
        self.position = batch.position + total as u64;
        self.last_batch_bytes = total;
        self.expected = batch.header.next_offset();
        if batch.header.leader_epoch().is_some() && !batch.doubtful_epoch {
            self.epoch = batch.header.leader_epoch();
        }
        Step::Batch(batch)
    }

    /// Why a batch's checksum is wrong, if it is. Large batches are not read into memory as a whole.
    fn checksum_fault(&mut self, position: u64, header: &BatchHeader) -> io::Result<Option<BatchFault>> {
        let total = header.total_bytes();
        let mut checksum = Checksum::new(header);
        let mut done = checksum.covers_from();
        while done < total {
            let wanted = (total - done).min(WINDOW_BYTES);
            let bytes = self.window.get(position + done as u64, wanted)?;
            let Some(bytes) = bytes.get(..wanted) else {
                return Ok(Some(BatchFault::Partial { have: done + bytes.len(), need: total }));
            };
            checksum.update(bytes);
            done += wanted;
        }
        let computed = checksum.finish();
        if computed != header.crc() {
            self.in_vain_left = self.in_vain_left.saturating_sub(total as u64);
        }
        Ok((computed != header.crc()).then(|| BatchFault::Crc { stored: header.crc(), computed }))
    }

    fn is_zero_from(&mut self, mut position: u64) -> io::Result<bool> {
        while position < self.window.end() {
            let bytes = self.window.get(position, 1)?;
            if bytes.is_empty() {
                break;
            }
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            position += bytes.len() as u64;
        }
        Ok(true)
    }

    /// The next batch from `position` on whose offsets fit and whose checksum is right.
    ///
    /// Records may hold bytes that are batches themselves. One that is followed by another batch, damaged or not, or by
    /// the end, is taken before one that is not.
    fn resume_from(&mut self, mut position: u64) -> io::Result<Option<(u64, BatchHeader)>> {
        let offsets = self.expected.0..self.limit.0;
        let mut fallback: Option<(u64, BatchHeader)> = None;
        while position < self.window.end() && self.in_vain_left > 0 {
            if fallback.as_ref().is_some_and(|(doubtful, _)| position - doubtful > DOUBTFUL_BYTES) {
                break;
            }
            let bytes = self.window.get(position, HEADER_BYTES)?;
            let starts = bytes.len().saturating_sub(MAGIC_END - 1);
            let found = bytes.windows(MAGIC_END).position(|bytes| may_begin_batch(bytes, &offsets));
            let Some(at) = found else {
                if starts == 0 {
                    break;
                }
                position += starts as u64;
                continue;
            };
            position += at as u64;
            if let Look::Batch(header) = self.look(position)?
                && self.may_follow(&header)
                && self.checksum_fault(position, &header)?.is_none()
            {
                if self.is_followed(position, &header)? {
                    return Ok(Some((position, header)));
                }
                fallback = fallback.or(Some((position, header)));
            }
            position += 1;
        }
        Ok(fallback)
    }

    /// Whether the end or another batch, be it a damaged one, lies right behind this one.
    fn is_followed(&mut self, position: u64, header: &BatchHeader) -> io::Result<bool> {
        let after = position + header.total_bytes() as u64;
        Ok(match self.look(after)? {
            Look::End => true,
            Look::Batch(next) if next.base_offset() > header.last_offset() && self.may_follow(&next) => true,
            Look::Batch(next) => has_plausible_fields(&next) && self.checksum_fault(after, &next)?.is_none(),
            // Its offset fits, and what makes it a batch does not.
            Look::Bad(_) => {
                let first = self.window.get(after, MAGIC_END)?.first_chunk().map(|base| i64::from_be_bytes(*base));
                first.is_some_and(|first| header.last_offset().0 < first && first < self.limit.0)
            }
        })
    }

    fn may_follow(&self, header: &BatchHeader) -> bool {
        header.base_offset() >= self.expected && header.last_offset() < self.limit && has_plausible_fields(header)
    }
}

/// Where known damage ends in the file.
fn end_of(known: &Damaged) -> u64 {
    known.position.saturating_add(known.bytes)
}

#[cfg(test)]
mod tests;
