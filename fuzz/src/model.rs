//! What a log must hold, as a list.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{
    BatchBuilder, BatchView, Codec, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ReadLimit, Record, RecoveryReport,
    TimestampMs,
};

use crate::input::Input;

/// Where the log lies.
pub(crate) const DIR: &str = "/log";

/// The clock of all programs, and the timestamp that those of records are counted from.
pub(crate) const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

/// One batch as it must be stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) base: Offset,
    pub(crate) next: Offset,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) bytes: Vec<u8>,
    /// Those of its records; none if it was there before the program.
    pub(crate) timestamps: Vec<TimestampMs>,
}

/// All batches of a log, from the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Where the log starts.
    pub(crate) start: Offset,
    pub(crate) batches: Vec<Stored>,
}

impl Model {
    pub(crate) fn end(&self) -> Offset {
        self.batches.last().map_or(self.start, |batch| batch.next)
    }

    /// The start of the batch that holds the offset, or the end if none does: where a log ends that is cut there.
    pub(crate) fn boundary(&self, offset: Offset) -> Offset {
        let holds = |batch: &&Stored| batch.base <= offset && offset < batch.next;
        self.batches.iter().find(holds).map_or(self.end(), |batch| batch.base)
    }

    pub(crate) fn cut(&mut self, end: Offset) {
        self.batches.retain(|batch| batch.next <= end);
    }

    /// First offset of each epoch.
    pub(crate) fn epochs(&self) -> Vec<(LeaderEpoch, Offset)> {
        let mut epochs: Vec<(LeaderEpoch, Offset)> = Vec::new();
        for batch in &self.batches {
            // Messages of the formats before batches have none.
            if batch.epoch.is_some() && epochs.last().is_none_or(|(epoch, _)| *epoch < batch.epoch) {
                epochs.push((batch.epoch, batch.base));
            }
        }
        epochs
    }

    /// The first record at or after a time.
    fn at_time(&self, time: TimestampMs) -> Option<Offset> {
        self.batches.iter().find_map(|batch| {
            let at = batch.timestamps.iter().position(|timestamp| *timestamp >= time)?;
            Some(batch.base + i64::try_from(at).expect("batches are small"))
        })
    }

    /// Appends a batch drawn from the input as the leader in `epoch`, to the log and to the list.
    pub(crate) fn append(&mut self, log: &mut Log, epoch: LeaderEpoch, input: &mut Input<'_>) {
        let (batch, timestamps) = batch(input);
        let base = self.end();
        let appended = log.append(NOW, epoch, &batch).expect("a good batch is taken");
        assert_eq!(appended.first, base, "the first offset of an append");
        self.push(base, epoch, &batch, timestamps);
        assert_eq!(appended.last.next(), self.end(), "the last offset of an append");
        assert_eq!(log.end(), self.end());
    }

    /// Adds a batch with the offset and epoch that a leader stamps on it.
    pub(crate) fn push(&mut self, base: Offset, epoch: LeaderEpoch, batch: &[u8], timestamps: Vec<TimestampMs>) {
        let mut bytes = batch.to_vec();
        bytes[..8].copy_from_slice(&base.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&epoch.0.to_be_bytes());
        let next = base + i64::try_from(timestamps.len()).expect("batches are small");
        self.batches.push(Stored { base, next, epoch, bytes, timestamps });
    }

    /// Holds a log against the list: ends, every byte, every batch by an offset inside it, times, epochs.
    pub(crate) fn check(&self, log: &Log) {
        assert_eq!((log.start(), log.end()), (self.start, self.end()), "start and end");
        let mut bytes = Vec::new();
        let mut from = self.start;
        while from < log.end() {
            let fetched = log.read(from, ReadLimit::bytes(700)).expect("what is there can be read");
            assert!(fetched.next > from, "reading at {from} does not get on");
            bytes.extend_from_slice(&fetched.bytes);
            from = fetched.next;
        }
        assert_eq!(from, self.end(), "reading ends at the end");
        let expected: Vec<u8> = self.batches.iter().flat_map(|batch| batch.bytes.iter().copied()).collect();
        assert!(bytes == expected, "what is read is not what was appended");

        for batch in &self.batches {
            let inside = Offset((batch.base.0 + batch.next.0) / 2);
            let fetched = log.read(inside, ReadLimit::bytes(1)).expect("what is there can be read");
            assert!(fetched.bytes == batch.bytes, "reading at {inside} does not give the batch that holds it");
            let below = log.read(batch.base, ReadLimit::bytes(1).below(inside)).expect("what is there can be read");
            assert!(below.bytes.is_empty(), "a batch that reaches the upper offset is read");
        }
        assert_eq!(log.epochs(), self.epochs(), "epochs");
        if self.batches.iter().all(|batch| !batch.timestamps.is_empty()) {
            self.check_times(log);
        }
    }

    fn check_times(&self, log: &Log) {
        let reader = log.reader();
        for batch in &self.batches {
            let time = batch.timestamps[0];
            for time in [time, time.after(1)] {
                let found = reader.offset_for_timestamp(time, Offset::MAX).expect("times can be looked up");
                assert_eq!(found.map(|found| found.offset), self.at_time(time), "the first record at {time} or later");
            }
        }
        let largest = self.batches.iter().flat_map(|batch| &batch.timestamps).max().copied();
        let found = reader.max_timestamp(Offset::MAX).expect("times can be looked up");
        assert_eq!(found.map(|found| found.timestamp), largest, "the largest timestamp");
    }
}

/// A batch of one to five records with timestamps that rise and fall, compressed or not.
pub(crate) fn batch(input: &mut Input<'_>) -> (Vec<u8>, Vec<TimestampMs>) {
    let codec = input.choose(&[Codec::None, Codec::None, Codec::None, Codec::Lz4]);
    let mut builder = BatchBuilder::new(codec);
    let mut timestamps = Vec::new();
    for _ in 0..1 + input.below(5) {
        let timestamp = NOW.after(i64::from(input.byte()) * 10);
        let value = vec![input.byte(); input.below(200)];
        builder.push(Record::new(timestamp, &value));
        timestamps.push(timestamp);
    }
    (builder.build(), timestamps)
}

/// Small segments and dense indexes, so that short programs meet their edges.
pub(crate) fn options(input: &mut Input<'_>) -> LogOptions {
    LogOptions {
        segment_bytes: input.choose(&[1_500, 2_500, 6_000, 1 << 20]),
        index_interval_bytes: input.choose(&[0, 1, 300, 4_096]),
        index_bytes_max: input.choose(&[24, 48, 4_096]),
        ..LogOptions::default()
    }
}

/// A disk with an empty directory for the log.
pub(crate) fn disk() -> SimFs {
    let fs = SimFs::new(1);
    fs.create_dir(Path::new(DIR)).expect("the simulated disk is empty");
    fs.sync_dir(Path::new("/")).expect("the simulated disk works");
    fs
}

pub(crate) fn open(fs: &SimFs, options: &LogOptions) -> (Log, RecoveryReport) {
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    Log::open_with(shared, Path::new(DIR), options.clone(), OpenHints::default()).expect("a log can be opened")
}

/// Whether every batch in these bytes is whole, has its checksum, and follows the one before.
pub(crate) fn assert_sound(bytes: &[u8], from: Offset) -> Offset {
    let mut rest = bytes;
    let mut next = from;
    while !rest.is_empty() {
        let (batch, length) = BatchView::parse(rest).expect("only whole batches are read");
        assert!(batch.crc_matches(), "a batch without its checksum is read");
        assert!(batch.header().next_offset() > next, "offsets do not rise");
        next = batch.header().next_offset();
        rest = &rest[length..];
    }
    next
}
