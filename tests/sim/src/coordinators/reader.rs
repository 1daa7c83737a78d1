//! Consumers: whoever reads committed records of what was copied, and how members read.

use std::collections::BTreeSet;

use highwater_replication::{FetchRequest, Fetcher, Isolation};
use highwater_storage::{LeaderEpoch, ReadLimit, batches};

use super::*;
use crate::fault::CLIENTS;

/// One that reads an output, transactions as a whole, and holds what it reads against what must be there.
#[derive(Debug)]
pub(super) struct Reader {
    output: usize,
    offset: i64,
    leader_epoch: Option<LeaderEpoch>,
    /// The highest last stable offset that it was told.
    stable: i64,
    /// The next number of each input.
    pub(super) next: [i64; INPUTS.len()],
    /// The transactions of which it has seen records.
    pub(super) seen: BTreeSet<u64>,
}

impl Reader {
    pub(super) fn new(output: usize) -> Self {
        let (offset, stable, next) = (0, 0, [0; INPUTS.len()]);
        Self { output, offset, leader_epoch: None, stable, next, seen: BTreeSet::new() }
    }
}

/// A record of an output: which number of which input, and of which transaction.
pub(super) fn copied(input: usize, number: i64, serial: u64) -> [u8; 24] {
    let mut value = [0; 24];
    value[..8].copy_from_slice(&(input as u64).to_be_bytes());
    value[8..16].copy_from_slice(&number.to_be_bytes());
    value[16..].copy_from_slice(&serial.to_be_bytes());
    value
}

/// What a consumer of committed records is given: the values with their offsets, and where it goes on.
struct Read {
    records: Vec<(i64, Vec<u8>)>,
    next: i64,
    leader_epoch: LeaderEpoch,
    /// The last stable offset, if the leader knows of one yet.
    stable: Option<i64>,
}

impl World {
    /// Reads at some broker. One that names no epoch may be answered by a leader that is none any more: what it reads is
    /// true, and old.
    fn read(&mut self, at: usize, from: i64, epoch: Option<LeaderEpoch>, max_bytes: usize) -> Option<Read> {
        let node = self.whom_to_ask(at);
        let is_cut = |from, to| self.network.is_cut(self.now, from, to);
        if is_cut(CLIENTS, node) || is_cut(node, CLIENTS) || self.nodes[node].paused_until > self.now {
            return None;
        }
        let now = self.nodes[node].time(self.now);
        let request = FetchRequest {
            by: Fetcher::Consumer { isolation: Isolation::ReadCommitted },
            current_leader_epoch: epoch,
            last_fetched_epoch: None,
            from: Offset(from),
        };
        let replica = self.nodes[node].replica(at)?;
        let grant = replica.partition.fetch(now, &request).ok()?;
        let log = replica.partition.reader();
        let mut read = Read {
            records: Vec::new(),
            next: from,
            leader_epoch: grant.leader_epoch,
            stable: (grant.high_watermark.0 >= 0).then_some(grant.last_stable_offset.0),
        };
        // A new leader does not tell them before it knows.
        let is_stable = grant.last_stable_offset.0 < 0 || grant.upper <= grant.last_stable_offset.max(Offset(from));
        assert!(is_stable, "what is not decided is shown: {grant:?}");
        if grant.upper.0 > from && grant.diverging.is_none() {
            let fetched = log.read(Offset(from), ReadLimit::bytes(max_bytes).below(grant.upper)).ok()?;
            let mut aborted = log.aborted_transactions(Offset(from), fetched.next).ok()?;
            aborted.sort_by_key(|one| one.first_offset);
            read.take(&fetched.bytes, from, aborted);
        }
        self.settle(node);
        self.has_crashed(node);
        Some(read)
    }

    pub(super) fn reader_reads(&mut self, number: usize) {
        let Reader { output, offset, leader_epoch, .. } = self.readers[number];
        let max_bytes = self.chance.pick(&[1usize, 1 << 20]);
        let asked = leader_epoch.filter(|_| !self.chance.one_in(3));
        let Some(read) = self.read(OUTPUTS[output], offset, asked, max_bytes) else { return };
        let reader = &mut self.readers[number];
        // It does not take an older leader's word.
        let is_news = reader.leader_epoch.is_none_or(|known| read.leader_epoch >= known);
        if let Some(stable) = read.stable.filter(|_| is_news) {
            assert!(
                stable >= reader.stable,
                "the last stable offset of output {output} was {}, now {stable}",
                reader.stable
            );
            reader.stable = stable;
        }
        reader.leader_epoch = reader.leader_epoch.max(Some(read.leader_epoch));
        reader.offset = read.next;
        for (offset, value) in read.records {
            let word = |at: usize| u64::from_be_bytes(value[at..at + 8].try_into().expect("eight bytes"));
            let (input, copied, serial) = (word(0), word(8).cast_signed(), word(16));
            let next = &mut reader.next[usize::try_from(input).expect("an input")];
            assert_eq!(
                copied, *next,
                "output {output} has record {copied} of input {input} at {offset}, of transaction {serial}, where {next} comes next"
            );
            *next += 1;
            reader.seen.insert(serial);
            assert!(
                !self.truth.aborted.contains(&serial),
                "transaction {serial} was aborted, and output {output} shows it"
            );
            self.counts.consumed += 1;
        }
    }

    /// The next records of an input for a member: their numbers, which are their offsets.
    pub(super) fn read_input(&mut self, input: usize, from: i64) -> Vec<i64> {
        let max_bytes = self.chance.pick(&[1usize, 1 << 20]);
        let Some(read) = self.read(INPUTS[input], from, None, max_bytes) else { return Vec::new() };
        let number = |(offset, value): (i64, Vec<u8>)| {
            let number = i64::from_be_bytes(value.try_into().expect("eight bytes"));
            assert_eq!(number, offset, "input {input} has another record at {offset}");
            number
        };
        read.records.into_iter().map(number).collect()
    }
}

impl Read {
    /// As clients do: what an aborted transaction wrote is left out, from its first offset to its marker.
    fn take(&mut self, bytes: &[u8], from: i64, aborted: Vec<highwater_storage::AbortedTransaction>) {
        let mut aborted = aborted.into_iter().peekable();
        let mut aborting: BTreeSet<i64> = BTreeSet::new();
        for batch in batches(bytes) {
            let batch = batch.expect("whole batches");
            let header = batch.header();
            while let Some(one) = aborted.next_if(|one| one.first_offset <= header.last_offset()) {
                aborting.insert(one.producer_id);
            }
            self.next = header.next_offset().0;
            if header.is_control() {
                if TransactionMarker::of(&batch).is_some_and(|marker| marker.is_abort) {
                    aborting.remove(&header.producer_id());
                }
                continue;
            }
            if header.is_transactional() && aborting.contains(&header.producer_id()) {
                continue;
            }
            for record in batch.records().expect("uncompressed") {
                let record = record.expect("a whole record");
                let offset = header.base_offset().0 + i64::from(record.offset_delta);
                if offset >= from {
                    self.records.push((offset, record.value.expect("a value").to_vec()));
                }
            }
        }
    }
}
