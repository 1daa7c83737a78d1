//! A partition directory as bytes: a row of files, each with its kind, base offset and length before it.
//!
//! ```text
//! kind u8 │ base offset u32 │ length u24 │ bytes     (big endian; a length past the end means all that is left)
//! ```
//!
//! Bytes of any sort are some directory, and a directory that Kafka wrote makes a seed that damage can begin from.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, OpenMode, SimFs};
use highwater_storage::inspect::verify_partition;
use highwater_storage::io::FileExt;
use highwater_storage::{
    AppendError, BatchView, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ReadError, ReadLimit, TimestampMs, batches,
};

use crate::input::Input;
use crate::model::{DIR, NOW, Stored, batch, disk, open};

/// Names by kind. Those that begin with a dot are the ends of a segment's files.
const NAMES: [&str; 16] = [
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "highwater-state",
    ".log.swap",
    ".index.swap",
    ".timeindex.swap",
    ".txnindex.swap",
    ".log.cleaned",
    ".index.cleaned",
    ".log.deleted",
    ".log.damaged-100",
];

const HEADER_BYTES: usize = 8;

/// Puts the files on a new disk.
pub(crate) fn unpack(mut bytes: &[u8]) -> SimFs {
    let fs = disk();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let [kind, base @ .., length_2, length_1, length_0] = *header;
        let length = u32::from_be_bytes([0, length_2, length_1, length_0]);
        let length = usize::try_from(length).expect("three bytes").min(rest.len());
        let (content, rest) = rest.split_at(length);
        bytes = rest;
        let kind = NAMES[usize::from(kind) % NAMES.len()];
        let name =
            if kind.starts_with('.') { format!("{:020}{kind}", u32::from_be_bytes(base)) } else { kind.to_owned() };
        let file = fs.open(&Path::new(DIR).join(name), OpenMode::Truncate).expect("the simulated disk works");
        file.write_all_at(content, 0).expect("the simulated disk works");
    }
    fs.sync_everything();
    fs
}

/// Inputs that begin with this byte begin with a directory, not with an empty log.
const BEGINS_WITH_DIRECTORY: u8 = 0xd1;

/// Offsets and epochs above this leave no room for what a program does.
const BEGIN_MAX: i64 = 1 << 30;

/// The program in an input, and the disk that it begins on: an empty one, or one with the directory behind the program.
///
/// ```text
/// 0xd1 │ length of the program u16 │ program │ directory
/// ```
pub(crate) fn beginning(data: &[u8]) -> (&[u8], SimFs) {
    let Some(([BEGINS_WITH_DIRECTORY, length @ ..], rest)) = data.split_first_chunk::<3>() else {
        return (data, disk());
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let (program, directory) = rest.split_at(length.min(rest.len()));
    let fs = unpack(directory);
    // Of damage, each opening makes what it can: nothing to hold a list against.
    (program, if is_good(&fs) { fs } else { disk() })
}

/// Whether a verification finds nothing wrong in the log's directory.
pub(crate) fn is_good(fs: &SimFs) -> bool {
    verify_partition(&fs.process_crash_image(), Path::new(DIR), &mut |_| {}).is_ok_and(|verified| verified.is_good())
}

/// What a log holds that was there before the program, as a list, without times; `None` if some of it cannot be read, or
/// its offsets or epochs leave no room.
pub(crate) fn found(log: &Log) -> Option<Vec<Stored>> {
    let readable = Readable::verified(log);
    if !readable.is_whole() || log.end().0 > BEGIN_MAX || i64::from(log.latest_epoch().0) > BEGIN_MAX {
        return None;
    }
    let reader = log.reader();
    let stored = readable.batches().map(|batch| {
        let (base, next) = (batch.base_offset(), batch.header().next_offset());
        Stored { base, next, epoch: reader.epoch_of(base), bytes: batch.bytes().to_vec(), timestamps: Vec::new() }
    });
    Some(stored.collect())
}

/// The opposite of [`unpack`], for making seeds; `None` for a file that has no kind here.
#[cfg(test)]
pub(crate) fn pack(name: &str, content: &[u8]) -> Option<Vec<u8>> {
    let (base, end) = match name.split_once('.') {
        Some((base, end)) if base.len() == 20 => (base.parse().ok()?, format!(".{end}")),
        _ => (0u32, name.to_owned()),
    };
    let kind = NAMES.iter().position(|known| **known == end)?;
    let mut bytes = vec![u8::try_from(kind).ok()?];
    bytes.extend(base.to_be_bytes());
    bytes.extend(&u32::try_from(content.len()).ok()?.to_be_bytes()[1..]);
    bytes.extend(content);
    Some(bytes)
}

/// The names in the log's directory, in order: a directory has none, and the same input must run the same program.
pub(crate) fn file_names(fs: &SimFs) -> Vec<String> {
    let entries = fs.read_dir(Path::new(DIR)).expect("the directory is there");
    let mut names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

pub(crate) fn file_bytes(fs: &SimFs, name: &str) -> Vec<u8> {
    let mut found = Vec::new();
    fs.corrupt(&Path::new(DIR).join(name), |bytes| found.clone_from(bytes)).expect("it is there");
    found
}

/// The opposite of [`beginning`], for making seeds.
#[cfg(test)]
pub(crate) fn begin(program: &[u8], directory: &[u8]) -> Vec<u8> {
    let length = u16::try_from(program.len()).expect("programs are short").to_be_bytes();
    [&[BEGINS_WITH_DIRECTORY], &length[..], program, directory].concat()
}

/// What can be read of a log, and where it cannot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Readable {
    pub(crate) bytes: Vec<u8>,
    damaged: Vec<Range<Offset>>,
}

impl Readable {
    pub(crate) fn batches(&self) -> impl Iterator<Item = BatchView<'_>> {
        batches(&self.bytes).map(|batch| batch.expect("only whole batches are read"))
    }

    /// Whether this batch is there, whatever its epoch, which no checksum covers.
    pub(crate) fn holds(&self, batch: &BatchView<'_>) -> bool {
        let at = |batch: &BatchView<'_>| (batch.header().base_offset(), batch.bytes()[16..].to_vec());
        self.batches().any(|other| at(&other) == at(batch))
    }

    /// Behind a damaged batch, one with a wrong base offset is put right only if the damaged one is read as a batch first.
    /// So another opening, which verifies less, may find more, and the same records at other offsets; and where damage
    /// ends is told by what is found behind it.
    fn is_no_less_than(&self, before: &Self, when: &str) {
        let covered: BTreeSet<&[u8]> = self.batches().map(|batch| &batch.bytes()[16..]).collect();
        let is_there = |batch: BatchView<'_>| covered.contains(&batch.bytes()[16..]);
        assert!(before.batches().all(is_there), "opened again {when} the log has lost a batch");
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.damaged.is_empty()
    }

    pub(crate) fn of(log: &Log) -> Self {
        Self::within(log, ReadLimit::bytes(1 << 16))
    }

    /// With checksums held against the bytes.
    pub(crate) fn verified(log: &Log) -> Self {
        Self::within(log, ReadLimit::bytes(1 << 16).verified())
    }

    fn within(log: &Log, limit: ReadLimit) -> Self {
        let mut found = Self::default();
        let mut from = log.start();
        while from < log.end() {
            match log.read(from, limit) {
                Ok(fetched) => {
                    if fetched.bytes.is_empty() {
                        // Only offsets without a record are left: compaction may have taken the last ones.
                        assert_eq!(fetched.next, from, "nothing is read, and the next offset is another");
                        break;
                    }
                    assert!(fetched.next > from, "reading at {from} does not get on");
                    let mut rest = fetched.bytes.as_slice();
                    while !rest.is_empty() {
                        let (_, length) = BatchView::parse(rest).expect("only whole batches are read");
                        rest = &rest[length..];
                    }
                    found.bytes.extend_from_slice(&fetched.bytes);
                    from = fetched.next;
                }
                Err(ReadError::Corrupt { offsets, .. }) => {
                    assert!(offsets.end > from, "reading at {from} does not get on behind damage: {offsets:?}");
                    from = offsets.end;
                    found.damaged.push(offsets);
                }
                Err(error) => panic!("reading at {from}: {error}"),
            }
        }
        found
    }
}

/// Opens whatever is there, reads it, searches it, appends, and opens it again: it must be what it was.
pub(crate) fn any_directory(fs: &SimFs, options: &LogOptions) {
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let opened = Log::open_with(shared, Path::new(DIR), options.clone(), OpenHints::default());
    let (mut log, report) = opened.unwrap_or_else(|error| panic!("damage is no error: {error}"));
    // The next opening walks by headers what this one verified. Where damage lies behind damage, what is in between may be
    // part of a record, and whether it is taken for a batch hangs on what is found before it.
    let is_damaged_once = report.rotten.len() <= 1;
    let found = Readable::of(&log);
    assert_eq!(Readable::of(&log), found, "reading twice");
    search(&log);

    let end = log.end();
    let (bytes, _) = batch(&mut Input::new(&[0, 1, 2, 3]));
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    match log.append(NOW, epoch, &bytes) {
        Ok(appended) => assert_eq!(appended.first, end, "the first offset of an append"),
        // What the files say may leave no room for another batch.
        Err(AppendError::OffsetsExhausted | AppendError::StaleEpoch { .. } | AppendError::LargerThanSegment { .. }) => {
        }
        Err(error) => panic!("a good batch is refused: {error}"),
    }
    // With checksums: what this opening verified and found rotten, the next may not look at again.
    let (start, end, found) = (log.start(), log.end(), Readable::verified(&log));
    drop(log);
    let fs = fs.kill();
    let (log, _) = open(&fs, options);
    assert_eq!((log.start(), log.end()), (start, end), "opened again after a kill");
    let again = Readable::verified(&log);
    if is_damaged_once {
        again.is_no_less_than(&found, "after a kill");
    }
    log.close().expect("the simulated disk works");
    let (log, report) = open(&fs, options);
    assert!(report.clean, "a log that was closed is not clean");
    assert_eq!((log.start(), log.end()), (start, end), "opened again after it was closed");
    let closed = Readable::verified(&log);
    if is_damaged_once {
        closed.is_no_less_than(&again, "after it was closed");
    }
}

/// Searches by time: whatever an index says, what is found is as late as was asked for.
pub(crate) fn search(log: &Log) {
    let reader = log.reader();
    for time in [TimestampMs(i64::MIN), TimestampMs(0), NOW, NOW.after(1_000), TimestampMs(i64::MAX)] {
        // Damage in the way may be an error.
        let Ok(Some(found)) = reader.offset_for_timestamp(time, Offset::MAX) else { continue };
        assert!(found.timestamp >= time, "asked for {time}, found {found:?}");
        assert!(log.start() <= found.offset && found.offset < log.end(), "found outside of the log: {found:?}");
    }
    let _ = reader.max_timestamp(Offset::MAX);
}
