//! The offset index and the time index of a segment, beside its batches.

use byteorder::{BigEndian, ByteOrder};

use crate::batch::BatchHeader;
use crate::fs::Fs;
use crate::io::IoError;
use crate::{Offset, TimestampMs};

use super::super::fault::{Fault, FaultKind};
use super::super::files::FileFacts;
use super::entries::Entries;

/// What of a segment a check has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) base: Offset,
    pub(super) data_bytes: u64,
    /// The segment still grew when the log was left: its indexes need not be complete.
    pub(super) is_open: bool,
}

/// Compares an offset index with the batches.
pub(super) struct OffsetIndexCheck {
    entries: Entries<8>,
    rules: Rules,
    /// The entry whose batch is still to come.
    next: Option<OffsetEntry>,
    /// The entry whose position was right, and whose offset has not yet been met as the last one of a batch.
    open: Option<OffsetEntry>,
    last: Option<OffsetEntry>,
}

#[derive(Clone, Copy)]
struct OffsetEntry {
    /// Where the entry stands in its file.
    at: u64,
    offset: Offset,
    position: u64,
}

impl OffsetIndexCheck {
    pub(super) fn open(fs: &dyn Fs, facts: &FileFacts, rules: Rules) -> Result<Option<Self>, IoError> {
        let Some(entries) = Entries::open(fs, facts)? else { return Ok(None) };
        let mut check = Self { entries, rules, next: None, open: None, last: None };
        check.advance()?;
        Ok(Some(check))
    }

    /// Takes the next entry that may be right in itself.
    fn advance(&mut self) -> Result<(), IoError> {
        let (Rules { base, data_bytes, .. }, last) = (self.rules, self.last);
        self.next = self.entries.next_right(|at, bytes| {
            let offset = base + i64::from(BigEndian::read_i32(&bytes[..4]));
            let position = u64::from(BigEndian::read_u32(&bytes[4..]));
            if offset < base {
                Err(format!("offset {offset} is below the segment's base"))
            } else if position >= data_bytes {
                Err(format!("position {position} is past the end of the data, {data_bytes}"))
            } else if last.is_some_and(|last| offset <= last.offset || position <= last.position) {
                Err(format!("offset {offset} at position {position} does not rise"))
            } else {
                Ok(OffsetEntry { at, offset, position })
            }
        })?;
        self.last = self.next.or(last);
        Ok(())
    }

    pub(super) fn batch(&mut self, position: u64, header: &BatchHeader) -> Result<(), IoError> {
        self.pass(position)?;
        if let Some(entry) = self.next.filter(|entry| entry.position == position) {
            self.give_up_open();
            if entry.offset < header.base_offset() {
                let what = format!("offset {} is before the batch at position {position}", entry.offset);
                self.entries.wrong(entry.at, what);
            } else {
                self.open = Some(entry);
            }
            self.advance()?;
        }
        match self.open {
            Some(entry) if entry.offset == header.last_offset() => self.open = None,
            Some(entry) if entry.offset < header.last_offset() => self.give_up_open(),
            _ => {}
        }
        Ok(())
    }

    /// Nothing can be said of entries that point into damage.
    pub(super) fn damaged(&mut self, position: u64, bytes: u64) -> Result<(), IoError> {
        self.pass(position)?;
        self.open = None;
        while self.next.is_some_and(|entry| entry.position < position + bytes) {
            self.advance()?;
        }
        Ok(())
    }

    /// Entries that point before `position` point at no batch.
    fn pass(&mut self, position: u64) -> Result<(), IoError> {
        while let Some(entry) = self.next.filter(|entry| entry.position < position) {
            self.entries.wrong(entry.at, format!("no batch begins at position {}", entry.position));
            self.advance()?;
        }
        Ok(())
    }

    fn give_up_open(&mut self) {
        if let Some(entry) = self.open.take() {
            let what =
                format!("offset {} is not the last of a batch from position {} on", entry.offset, entry.position);
            self.entries.wrong(entry.at, what);
        }
    }

    pub(super) fn finish(mut self) -> Result<Option<Fault>, IoError> {
        self.give_up_open();
        self.pass(u64::MAX)?;
        Ok(self.entries.finish(FaultKind::OffsetIndex, self.rules.is_open))
    }
}

/// Compares a time index with the batches.
pub(super) struct TimeIndexCheck {
    entries: Entries<12>,
    rules: Rules,
    next: Option<TimeEntry>,
    last: Option<TimeEntry>,
    largest: TimestampMs,
    has_damage: bool,
}

#[derive(Clone, Copy)]
struct TimeEntry {
    at: u64,
    timestamp: TimestampMs,
    offset: Offset,
}

impl TimeIndexCheck {
    pub(super) fn open(fs: &dyn Fs, facts: &FileFacts, rules: Rules) -> Result<Option<Self>, IoError> {
        let Some(entries) = Entries::open(fs, facts)? else { return Ok(None) };
        let largest = TimestampMs::NONE;
        let mut check = Self { entries, rules, next: None, last: None, largest, has_damage: false };
        check.advance()?;
        Ok(Some(check))
    }

    fn advance(&mut self) -> Result<(), IoError> {
        let (base, last) = (self.rules.base, self.last);
        self.next = self.entries.next_right(|at, bytes| {
            let timestamp = TimestampMs(BigEndian::read_i64(&bytes[..8]));
            let offset = base + i64::from(BigEndian::read_i32(&bytes[8..]));
            if offset < base {
                Err(format!("offset {offset} is below the segment's base"))
            } else if last.is_some_and(|last| timestamp <= last.timestamp || offset < last.offset) {
                Err(format!("timestamp {timestamp} at offset {offset} does not rise"))
            } else {
                Ok(TimeEntry { at, timestamp, offset })
            }
        })?;
        self.last = self.next.or(last);
        Ok(())
    }

    pub(super) fn batch(&mut self, header: &BatchHeader) -> Result<(), IoError> {
        self.largest = self.largest.max(header.max_timestamp());
        while let Some(entry) = self.next.filter(|entry| entry.offset <= header.last_offset()) {
            let is_here = entry.offset >= header.base_offset() && entry.timestamp == header.max_timestamp();
            let is_right = is_here && entry.timestamp == self.largest;
            if !self.has_damage && !is_right {
                let what = format!(
                    "timestamp {} at offset {}, where the largest is {}",
                    entry.timestamp, entry.offset, self.largest
                );
                self.entries.wrong(entry.at, what);
            }
            self.advance()?;
        }
        Ok(())
    }

    /// The largest timestamp may be in there.
    pub(super) fn damaged(&mut self) {
        self.has_damage = true;
    }

    pub(super) fn finish(mut self) -> Result<Option<Fault>, IoError> {
        while let Some(entry) = self.next.filter(|_| !self.has_damage) {
            self.entries.wrong(entry.at, format!("offset {} is past the end of the segment", entry.offset));
            self.advance()?;
        }
        let known = self.last.map_or(TimestampMs::NONE, |last| last.timestamp);
        let is_complete = self.rules.is_open || self.has_damage || known >= self.largest;
        if !is_complete {
            let path = self.entries.path().clone();
            let (kind, what) = if self.entries.is_empty() {
                (FaultKind::TimeIndexMissing, format!("empty, where {} is the largest timestamp", self.largest))
            } else {
                let what = format!("ends with timestamp {known}, where {} is the largest", self.largest);
                (FaultKind::TimeIndex, what)
            };
            return Ok(self.entries.finish(kind, false).or_else(|| Some(Fault::new(kind, path, what))));
        }
        Ok(self.entries.finish(FaultKind::TimeIndex, self.rules.is_open))
    }
}
