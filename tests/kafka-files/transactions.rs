//! Topics with transactions: as they were written, cut in the middle of some, and compacted.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use highwater_storage::{BatchBuilder, Codec, LeaderEpoch, Offset, ReadLimit, TransactionMarker, batches};

use crate::features::{Draft, Topic, noise};

/// Producers and what they have open. A copy of it is what they know at some point of the log.
#[derive(Clone, Debug, Default)]
struct Producers {
    sequences: BTreeMap<i64, i32>,
    /// Offsets of the records of each open transaction.
    open: BTreeMap<i64, Vec<i64>>,
    aborted: usize,
}

impl Producers {
    /// Appends a batch to the producer's transaction.
    fn write(&mut self, topic: &mut Topic<'_>, producer: i64, drafts: Vec<Draft>) -> anyhow::Result<()> {
        let sequence = self.sequences.entry(producer).or_default();
        let builder = BatchBuilder::new(Codec::None).producer(producer, 0, *sequence).transactional();
        *sequence += i32::try_from(drafts.len())?;
        self.open.entry(producer).or_default().extend(topic.append(builder, drafts)?);
        Ok(())
    }

    /// Ends the producer's transaction.
    fn end(&mut self, topic: &mut Topic<'_>, producer_id: i64, is_abort: bool) -> anyhow::Result<()> {
        let (producer_epoch, coordinator_epoch) = (0, 0);
        let marker = TransactionMarker { producer_id, producer_epoch, coordinator_epoch, is_abort };
        topic.log.end_transaction(topic.now(), topic.epoch, &marker)?;
        for offset in self.open.remove(&producer_id).context("a transaction is open")? {
            topic.rows.get_mut(&offset).context("a record")?.is_aborted = is_abort;
        }
        self.aborted += usize::from(is_abort);
        Ok(())
    }

    /// Holds what the log knows against this.
    fn check(&self, topic: &Topic<'_>) -> anyhow::Result<()> {
        for (producer, sequence) in &self.sequences {
            let known = topic.log.producers().get(*producer).with_context(|| format!("{producer} is forgotten"))?;
            ensure!(known.last_sequence() == sequence - 1, "{producer}: {known:?} and not {sequence}");
        }
        let found = topic.log.reader().aborted_transactions(Offset::ZERO, topic.log.end())?;
        ensure!(found.len() == self.aborted, "{} are aborted, and not {}", found.len(), self.aborted);
        ensure!(topic.log.last_stable_offset(topic.log.end()) == topic.log.end(), "none is open");
        Ok(())
    }
}

/// The two whose transactions interleave.
const PAIR: [i64; 2] = [8000, 8001];

/// Two batches of each, in turn.
fn write_both(topic: &mut Topic<'_>, producers: &mut Producers, round: i64) -> anyhow::Result<()> {
    for producer in PAIR {
        let drafts = (0..2).map(|n| Draft { value: Some(noise(round * 2 + n, 90)), ..Draft::default() });
        producers.write(topic, producer, drafts.collect())?;
    }
    Ok(())
}

/// So many rounds of transactions; each third one is aborted.
fn rounds(topic: &mut Topic<'_>, producers: &mut Producers, rounds: i64) -> anyhow::Result<()> {
    for round in 0..rounds {
        write_both(topic, producers, round)?;
        write_both(topic, producers, round)?;
        for producer in PAIR {
            producers.end(topic, producer, (round + producer) % 3 == 0)?;
        }
    }
    Ok(())
}

/// Two producers whose transactions interleave; each third one is aborted.
pub(crate) fn transactional(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut producers = Producers::default();
    rounds(topic, &mut producers, 24)?;
    ensure!(producers.aborted == 16, "{} were aborted", producers.aborted);
    producers.check(topic)
}

/// Cut twice, several segments back: inside of two open transactions, and between the markers of two. What ended behind
/// the cut is open again, the producers go on with the sequence numbers of before, and it ends the other way.
pub(crate) fn truncated_transactional(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut producers = Producers::default();
    rounds(topic, &mut producers, 4)?;
    write_both(topic, &mut producers, 4)?;
    let (known, to) = (producers.clone(), topic.log.end().0);
    write_both(topic, &mut producers, 4)?;
    producers.end(topic, 8000, false)?;
    producers.end(topic, 8001, true)?;
    rounds(topic, &mut producers, 8)?;
    cut(topic, to)?;
    producers = known;
    write_both(topic, &mut producers, 5)?;
    producers.end(topic, 8000, true)?;
    producers.end(topic, 8001, false)?;

    rounds(topic, &mut producers, 3)?;
    write_both(topic, &mut producers, 6)?;
    producers.end(topic, 8000, true)?;
    let (known, to) = (producers.clone(), topic.log.end().0);
    producers.end(topic, 8001, true)?;
    rounds(topic, &mut producers, 8)?;
    cut(topic, to)?;
    producers = known;
    // Kafka's own epoch on this topic is the second one it gives: it elects a leader again after each stop.
    topic.epoch = LeaderEpoch(1);
    write_both(topic, &mut producers, 7)?;
    producers.end(topic, 8000, false)?;
    producers.end(topic, 8001, false)?;
    rounds(topic, &mut producers, 4)?;
    ensure!(producers.aborted > 5, "{} are aborted", producers.aborted);
    producers.check(topic)
}

/// Cuts at the end of a batch and begins another epoch.
fn cut(topic: &mut Topic<'_>, to: i64) -> anyhow::Result<()> {
    let segments = topic.log.segments().len();
    let end = topic.truncate_to(to)?;
    ensure!(end == to && topic.log.segments().len() + 1 < segments, "cut to {end} and not to {to}");
    topic.epoch = LeaderEpoch(topic.epoch.0 + 1);
    Ok(())
}

/// Compacted twice, with time for tombstones and markers to go in between. What only compaction makes is all there: empty
/// batches that tell a producer's last sequence number, batches that lost some of their records, markers with the time at
/// which they go and without, and aborted transactions whose records are gone.
pub(crate) fn compacted_transactional(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut producers = Producers::default();
    // Two that are never heard of again: all they wrote goes, but for one header of each.
    producers.write(topic, 9000, keyed(0, [0, 1, 2]))?;
    producers.end(topic, 9000, false)?;
    producers.write(topic, 9001, keyed(1, [3, 4, 5]))?;
    producers.end(topic, 9001, true)?;
    topic.append(BatchBuilder::new(Codec::Zstd).producer(9002, 0, 0), keyed(2, [6, 7]))?;
    producers.sequences.insert(9002, 2);
    keyed_rounds(topic, &mut producers, 0..16)?;
    let first = compact(topic, 0)?;
    keyed_rounds(topic, &mut producers, 16..32)?;
    let second = compact(topic, first)?;
    ensure!(first > 60 && second > first + 60, "compacted below {first} and {second}");
    keyed_rounds(topic, &mut producers, 32..34)?;

    producers.aborted = topic.log.reader().aborted_transactions(Offset::ZERO, topic.log.end())?.len();
    producers.check(topic)?;
    let seen = Shapes::of(topic, second)?;
    ensure!([9000, 9001, 9002].iter().all(|producer| seen.empty.contains(producer)), "{seen:?}");
    ensure!(seen.gaps > 3 && seen.markers_that_go > 1 && seen.markers > 1 && producers.aborted > 2, "{seen:?}");
    ensure!(topic.rows.range(..second).any(|(_, row)| row.value.is_none()), "a tombstone is left");
    Ok(())
}

/// Records of these keys, the last of them a tombstone in each second round.
fn keyed<const N: usize>(round: i64, keys: [i64; N]) -> Vec<Draft> {
    let drafts = keys.into_iter().enumerate().map(|(at, key)| Draft {
        key: Some(format!("key-{key}").into_bytes()),
        value: (at + 1 < N || round % 2 == 0).then(|| noise(round * 11 + key, 90)),
        ..Draft::default()
    });
    drafts.collect()
}

/// The pair's transactions, over few keys, so that later ones supersede them; and a third that aborts now and then.
fn keyed_rounds(topic: &mut Topic<'_>, producers: &mut Producers, rounds: std::ops::Range<i64>) -> anyhow::Result<()> {
    for round in rounds {
        // Keys of their own, which nothing supersedes, and those of all.
        producers.write(topic, 8000, keyed(round, [100 + round, round % 9, (round + 4) % 9]))?;
        producers.write(topic, 8001, keyed(round, [round % 7, 200 + round % 5]))?;
        producers.end(topic, 8001, round % 3 == 0)?;
        producers.write(topic, 8000, keyed(round, [(round + 2) % 9]))?;
        producers.end(topic, 8000, round % 4 == 1)?;
    }
    Ok(())
}

/// Compacts, and takes from the rows what has to be gone. `clean`: where the compaction before this one had ended.
/// Returns where this one ended.
fn compact(topic: &mut Topic<'_>, clean: i64) -> anyhow::Result<i64> {
    topic.log.flush()?;
    topic.keep_house()?;
    let cleaned = topic.log.cleaner_offset().0;
    let committed = topic.rows.range(..cleaned).filter(|(_, row)| !row.is_aborted);
    let last: BTreeMap<_, _> = committed.map(|(offset, row)| (row.key.clone(), *offset)).collect();
    topic.rows.retain(|offset, row| {
        let is_last = !row.is_aborted && last.get(&row.key) == Some(offset);
        // A tombstone that the one before saw is old enough by now.
        *offset >= cleaned || (is_last && (row.value.is_some() || *offset >= clean))
    });
    Ok(cleaned)
}

/// What there is below an offset that only compaction makes.
#[derive(Debug, Default)]
struct Shapes {
    /// Producers of batches without records.
    empty: BTreeSet<i64>,
    /// Batches with fewer records than offsets.
    gaps: usize,
    markers: usize,
    markers_that_go: usize,
}

impl Shapes {
    fn of(topic: &Topic<'_>, below: i64) -> anyhow::Result<Self> {
        let (reader, mut seen) = (topic.log.reader(), Self::default());
        let mut from = reader.start();
        while from.0 < below {
            let fetched = reader.read(from, ReadLimit::bytes(5000))?;
            for batch in batches(&fetched.bytes) {
                let batch = batch?;
                if batch.is_control() {
                    seen.markers += 1;
                    seen.markers_that_go += usize::from(batch.attributes().has_delete_horizon());
                } else if batch.record_count() == 0 {
                    seen.empty.insert(batch.producer_id());
                } else if i64::from(batch.record_count()) < batch.next_offset().0 - batch.base_offset().0 {
                    seen.gaps += 1;
                }
            }
            from = fetched.next;
        }
        Ok(seen)
    }
}
