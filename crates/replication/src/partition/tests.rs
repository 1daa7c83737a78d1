//! A partition on the simulated disk: what goes between the log and the replica.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, SimFs};
use highwater_storage::{
    BatchBuilder, Codec, EpochEnd, Fetched, OpenHints, Origin, ProduceRules, ReadError, ReadLimit, Record,
    TransactionMarker,
};

use super::*;
use crate::Isolation;
use crate::event::{FetchFailure, FetchedRecords, ListedOffset, Which};

const ME: BrokerId = BrokerId(1);
const OTHER: BrokerId = BrokerId(2);
const FOLLOWER: Fetcher = Fetcher::Follower { id: OTHER, broker_epoch: Some(BrokerEpoch(2)), log_start: Offset::ZERO };
const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn partition(fs: &SimFs) -> Partition {
    let dir = Path::new("/books-0");
    let _already_there = highwater_storage::fs::Fs::create_dir(fs, dir);
    let (log, _) = Log::open_with(Arc::new(fs.clone()), dir, LogOptions::default(), OpenHints::default()).unwrap();
    let mut partition =
        Partition::new(ReplicaConfig::new(ME, BrokerEpoch(1)), TopicPartition::new("books", 0), log, None);
    partition.apply_live_brokers(NOW, &BTreeMap::from([(ME, BrokerEpoch(1)), (OTHER, BrokerEpoch(2))]));
    partition
}

/// The store says: this leader, in this epoch, with this ISR.
fn led_by(partition: &mut Partition, leader: BrokerId, epoch: i32, isr: &[BrokerId]) {
    let state = PartitionState {
        leader: Some(leader),
        leader_epoch: LeaderEpoch(epoch),
        isr: isr.to_vec(),
        controller_epoch: 1,
        doubtful: Vec::new(),
        recovering: false,
    };
    partition.apply_state(NOW, &Versioned { value: state, version: i64::from(epoch) }, &[ME, OTHER]);
}

fn batch(base: i64, epoch: i32, value: &str) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(base)).leader_epoch(LeaderEpoch(epoch));
    builder.push(Record::new(NOW, value.as_bytes()));
    builder.build()
}

fn produce(partition: &mut Partition, value: &str) -> Result<Produced, ProduceError> {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(NOW, value.as_bytes()));
    let checked = CheckedBatch::check(builder.build(), &ProduceRules::default(), NOW).unwrap();
    partition.produce(NOW, &checked, Acks::Leader, NOW.after(1000), WaitToken(1))
}

/// The leader's reply to the fetch that is awaited.
fn reply(partition: &mut Partition, epoch: i32, records: &[u8], diverging: Option<EpochEnd>) {
    let result = Ok(FetchedRecords { records, high_watermark: Offset(0), log_start: Offset(0), diverging });
    let log = partition.log();
    let plan = FetchPlan {
        leader: OTHER,
        leader_epoch: LeaderEpoch(epoch),
        from: log.end(),
        last_fetched_epoch: Some(log.latest_epoch()).filter(|epoch| epoch.is_some()),
        log_start: log.start(),
        broker_epoch: BrokerEpoch(1),
    };
    partition.fetched(NOW, FetchReply { plan, result });
}

/// A follower of epoch 1 with two records, the second of which its leader of epoch 2 does not have.
fn cut_as_a_follower(fs: &SimFs) -> Partition {
    let mut partition = partition(fs);
    led_by(&mut partition, OTHER, 1, &[ME, OTHER]);
    reply(&mut partition, 1, &[batch(0, 0, "kept"), batch(1, 1, "cut")].concat(), None);
    assert_eq!(partition.log().end(), Offset(2));
    led_by(&mut partition, OTHER, 2, &[ME, OTHER]);
    reply(&mut partition, 2, &[], Some(EpochEnd { epoch: LeaderEpoch(0), end: Offset(1) }));
    assert_eq!(partition.log().end(), Offset(1));
    partition
}

fn request(partition: &Partition, by: Fetcher) -> FetchRequest {
    let current_leader_epoch = Some(partition.replica.leader_epoch());
    FetchRequest { by, from: Offset(0), current_leader_epoch, last_fetched_epoch: None }
}

fn read(partition: &Partition, grant: &FetchGrant) -> Result<Fetched, ReadError> {
    let limit = ReadLimit::bytes(1 << 20).below(grant.upper).in_generation(grant.generation);
    partition.reader().read(Offset(0), limit)
}

#[test]
fn what_a_leader_grants_can_be_read_however_often_its_log_was_cut() {
    let fs = SimFs::new(1);
    let mut partition = cut_as_a_follower(&fs);
    led_by(&mut partition, ME, 3, &[ME]);
    produce(&mut partition, "new").unwrap();
    let consumer = Fetcher::Consumer { isolation: Isolation::ReadUncommitted };
    for by in [consumer, FOLLOWER] {
        let request = request(&partition, by);
        let grant = partition.fetch(NOW, &request).unwrap();
        assert_eq!(grant.upper, Offset(2));
        assert_eq!(read(&partition, &grant).unwrap().next, Offset(2), "{by:?}");
    }
}

/// Readers of committed records end before a transaction that is open, or whose marker is not committed, and are woken when it
/// is.
#[test]
fn readers_of_committed_records_wait_until_a_transaction_is_decided() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    led_by(&mut partition, ME, 3, &[ME, OTHER]);
    let all = Fetcher::Consumer { isolation: Isolation::ReadUncommitted };
    let committed = Fetcher::Consumer { isolation: Isolation::ReadCommitted };
    let append = |partition: &mut Partition, batch: Vec<u8>| {
        let rules = ProduceRules { origin: Origin::Coordinator, ..ProduceRules::default() };
        let checked = CheckedBatch::check(batch, &rules, NOW).unwrap();
        partition.produce(NOW, &checked, Acks::Leader, NOW.after(1000), WaitToken(1)).unwrap();
    };
    let replicated = |partition: &mut Partition| {
        let from = partition.log().end();
        let last_fetched_epoch = Some(partition.log().latest_epoch());
        let acknowledges = FetchRequest { from, last_fetched_epoch, ..request(partition, FOLLOWER) };
        partition.fetch(NOW, &acknowledges).unwrap();
    };
    let ends = |partition: &mut Partition| {
        let upper = |partition: &mut Partition, by| partition.fetch(NOW, &request(partition, by)).unwrap().upper.0;
        let list = partition.list_offset(committed, None, Which::Latest).unwrap();
        assert_eq!(
            list,
            ListedOffset::At { offset: Offset(upper(partition, committed)), leader_epoch: LeaderEpoch(3) }
        );
        let told = partition.fetch(NOW, &request(partition, all)).unwrap();
        assert_eq!(told.last_stable_offset.0, upper(partition, committed));
        (upper(partition, committed), told.upper.0)
    };
    let woken = |partition: &mut Partition| {
        let mut woken = Vec::new();
        while let Some(effect) = partition.poll_effect() {
            if let Effect::WakeFetch { token } = effect {
                woken.push(token.0);
            }
        }
        woken
    };
    produce(&mut partition, "alone").unwrap();
    let mut open = BatchBuilder::new(Codec::None).producer(7, 0, 0).transactional();
    open.push(Record::new(NOW, b"undecided"));
    append(&mut partition, open.build());
    replicated(&mut partition);
    assert_eq!(ends(&mut partition), (1, 2));
    partition.watch_fetch(WaitToken(11), committed, Offset(1));
    partition.watch_fetch(WaitToken(12), all, Offset(2));
    assert_eq!(woken(&mut partition), [0; 0]);
    let marker = TransactionMarker { producer_id: 7, producer_epoch: 0, coordinator_epoch: 0, is_abort: false };
    append(&mut partition, marker.to_batch(NOW));
    assert_eq!(ends(&mut partition), (1, 2), "the marker may still be lost");
    assert_eq!(woken(&mut partition), [0; 0]);
    replicated(&mut partition);
    assert_eq!(ends(&mut partition), (3, 3));
    let mut woken = woken(&mut partition);
    woken.sort_unstable();
    assert_eq!(woken, [11, 12]);
    partition.watch_fetch(WaitToken(13), committed, Offset(3));
    partition.unwatch_fetch(WaitToken(13));
    assert_eq!(partition.status().fetches_waiting, 0);
}

#[test]
fn what_was_granted_before_a_cut_is_not_read_after_it() {
    let fs = SimFs::new(1);
    let mut partition = cut_as_a_follower(&fs);
    led_by(&mut partition, ME, 3, &[ME]);
    produce(&mut partition, "two").unwrap();
    let request = request(&partition, FOLLOWER);
    let grant = partition.fetch(NOW, &request).unwrap();
    led_by(&mut partition, OTHER, 4, &[ME, OTHER]);
    reply(&mut partition, 4, &[], Some(EpochEnd { epoch: LeaderEpoch(0), end: Offset(1) }));
    reply(&mut partition, 4, &batch(1, 4, "another two"), None);
    assert_eq!(partition.log().end(), Offset(2), "the same offsets, another history");
    assert!(matches!(read(&partition, &grant), Err(ReadError::Superseded)));
}

/// Whichever call finds out that the disk fails, and by whichever error: the partition is given up at once, and says so.
#[test]
fn a_log_that_closes_takes_its_partition_along() {
    type Act = fn(&mut Partition);
    let leads: Act = |partition| {
        led_by(partition, ME, 4, &[ME]);
        assert!(produce(partition, "refused").is_err());
    };
    let follows: Act = |partition| reply(partition, 2, &batch(1, 2, "refused"), None);
    let keeps_house: Act = |partition| {
        partition.configure(
            NOW,
            ReplicaConfig::new(ME, BrokerEpoch(1)),
            LogOptions { retention_ms: 0, ..LogOptions::default() },
        );
        led_by(partition, ME, 4, &[ME]);
        let now = NOW.after(1 << 40);
        let mut steps = std::iter::from_fn(|| {
            let work = partition.begin_work(now)?;
            Some(partition.finish_work(now, work.run()))
        });
        assert!(steps.any(|step| step.is_err()));
    };
    let table = [
        ("a write of the leader", Fault::Eio, Call::Write, ".log", leads),
        ("a write of the follower", Fault::Eio, Call::Write, ".log", follows),
        ("a state that is not synced", Fault::SyncFails, Call::SyncData, "highwater-state", keeps_house),
    ];
    for (what, fault, call, part, act) in table {
        let fs = SimFs::new(1);
        let mut partition = cut_as_a_follower(&fs);
        fs.inject_lasting(fault, call, part, 1);
        act(&mut partition);
        assert!(fs.faults_hit() > 0, "{what}");
        assert_eq!(partition.status().role, Role::Fenced, "{what}");
        let effects: Vec<Effect> = std::iter::from_fn(|| partition.poll_effect()).collect();
        let fenced = effects.iter().filter(|effect| matches!(effect, Effect::Fenced { .. })).count();
        assert_eq!(fenced, 1, "{what}: {effects:?}");
    }
}

/// R18: a leader of epoch 2 has no batches of a later one; whoever sent them is not the leader that was asked.
#[test]
fn batches_of_a_later_epoch_than_the_fetch_are_refused() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    led_by(&mut partition, OTHER, 2, &[ME, OTHER]);
    reply(&mut partition, 2, &[batch(0, 2, "ours"), batch(1, 3, "foreign")].concat(), None);
    assert_eq!(partition.log().end(), Offset(0), "refused as a whole");
    partition.tick(NOW.after(1_000));
    reply(&mut partition, 2, &batch(0, 2, "ours"), None);
    assert_eq!(partition.log().end(), Offset(1));
}

/// R16: what is damaged on the way is not stored, and asked for again.
#[test]
fn a_damaged_reply_is_fetched_again() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    led_by(&mut partition, OTHER, 2, &[ME, OTHER]);
    let mut damaged = batch(0, 2, "whole");
    *damaged.last_mut().unwrap() ^= 1;
    reply(&mut partition, 2, &damaged, None);
    assert_eq!((partition.log().end(), partition.status().role), (Offset(0), Role::Follower));
    while partition.poll_effect().is_some() {}
    partition.tick(NOW.after(999));
    assert!(partition.poll_effect().is_none());
    partition.tick(NOW.after(1_000));
    assert!(matches!(partition.poll_effect(), Some(Effect::Fetch(FetchPlan { from: Offset(0), .. }))));
    reply(&mut partition, 2, &batch(0, 2, "whole"), None);
    assert_eq!(partition.log().end(), Offset(1));
}

/// R17: the limit on a producer's batch is the leader's business.
#[test]
fn a_follower_takes_what_its_own_limits_would_refuse() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    let mut options = LogOptions::default();
    options.rules.max_message_bytes = 1_000;
    partition.configure(NOW, ReplicaConfig::new(ME, BrokerEpoch(1)), options);
    led_by(&mut partition, OTHER, 2, &[ME, OTHER]);
    reply(&mut partition, 2, &batch(0, 2, &"long ".repeat(1_000)), None);
    assert_eq!(partition.log().end(), Offset(1));
}

/// R15: the leader's log starts inside of a batch, and an empty follower begins with that batch.
#[test]
fn an_empty_follower_begins_inside_of_a_batch() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    led_by(&mut partition, OTHER, 2, &[ME, OTHER]);
    let asked = |partition: &mut Partition| {
        let plan = |effect| if let Effect::Fetch(plan) = effect { Some(plan) } else { None };
        std::iter::from_fn(|| partition.poll_effect()).filter_map(plan).last().unwrap()
    };
    let plan = asked(&mut partition);
    let result = Err(FetchFailure::OutOfRange { log_start: Some(Offset(5)) });
    partition.fetched(NOW, FetchReply { plan, result });
    let plan = asked(&mut partition);
    assert_eq!((plan.from, partition.status().high_watermark), (Offset(5), Offset(5)));
    let mut ten = BatchBuilder::new(Codec::None).leader_epoch(LeaderEpoch(2));
    for _ in 0..10 {
        ten.push(Record::new(NOW, b"one of ten"));
    }
    let records = ten.build();
    let came = FetchedRecords { records: &records, high_watermark: Offset(10), log_start: Offset(5), diverging: None };
    partition.fetched(NOW, FetchReply { plan, result: Ok(came) });
    let status = partition.status();
    assert_eq!((status.log_start, status.high_watermark, status.log_end), (Offset(5), Offset(10), Offset(10)));
}

/// A checkpoint of housekeeping may take its time: a flush that somebody waits for begins beside it.
#[test]
fn a_flush_begins_beside_a_checkpoint_and_each_counts_for_what_it_synced() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    let config = ReplicaConfig { count_flushed: true, ..ReplicaConfig::new(ME, BrokerEpoch(1)) };
    partition.configure(NOW, config, LogOptions::default());
    led_by(&mut partition, ME, 3, &[ME]);
    let job = |partition: &mut Partition| {
        let job = |effect| if let Effect::FlushWanted(job) = effect { Some(*job) } else { None };
        std::iter::from_fn(|| partition.poll_effect()).find_map(job)
    };
    assert!(matches!(produce(&mut partition, "first"), Ok(Produced::Waiting)));
    let first = job(&mut partition).unwrap();
    partition.flushed(NOW, first.run());
    assert_eq!(partition.status().high_watermark, Offset(1));
    let checkpoint = partition.begin_checkpoint().unwrap();
    assert!(matches!(produce(&mut partition, "second"), Ok(Produced::Waiting)));
    let second = job(&mut partition).unwrap();
    partition.flushed(NOW, checkpoint.run());
    assert_eq!(partition.status().high_watermark, Offset(1), "the checkpoint began before the second");
    partition.flushed(NOW, second.run());
    assert_eq!((partition.status().high_watermark, partition.status().produces_waiting), (Offset(2), 0));
}

/// Nothing is lost with a checkpoint that is not run: the end of the replica's own is not taken for the end of that one.
#[test]
fn a_checkpoint_that_was_dropped_holds_up_no_flush() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    let config = ReplicaConfig { flush_ms: 1_000, ..ReplicaConfig::new(ME, BrokerEpoch(1)) };
    partition.configure(NOW, config, LogOptions::default());
    led_by(&mut partition, ME, 3, &[ME]);
    for (round, value) in (1..).zip(["first", "second", "third"]) {
        assert!(matches!(produce(&mut partition, value), Ok(Produced::Done(_))));
        if round == 1 {
            drop(partition.begin_checkpoint().unwrap());
        }
        let now = NOW.after(round * 5_000);
        partition.tick(now);
        let job = |effect| if let Effect::FlushWanted(job) = effect { Some(*job) } else { None };
        let job = std::iter::from_fn(|| partition.poll_effect()).find_map(job);
        let job = job.unwrap_or_else(|| panic!("no flush of the {value}"));
        partition.flushed(now, job.run());
        assert_eq!(partition.log().flushed(), Offset(round));
    }
}

#[test]
fn records_are_deleted_by_the_leader_up_to_what_is_committed_and_for_good() {
    let fs = SimFs::new(1);
    let mut partition = partition(&fs);
    assert_eq!(partition.delete_records(NOW, None), Err(DeleteRefused::NotLeader));
    led_by(&mut partition, ME, 1, &[ME, OTHER]);
    for value in ["a", "b", "c"] {
        produce(&mut partition, value).unwrap();
    }
    let fetch = |partition: &mut Partition, from: i64, start: i64| {
        let by = Fetcher::Follower { id: OTHER, broker_epoch: Some(BrokerEpoch(2)), log_start: Offset(start) };
        let request = FetchRequest {
            by,
            from: Offset(from),
            current_leader_epoch: Some(LeaderEpoch(1)),
            last_fetched_epoch: (from > 0).then_some(LeaderEpoch(1)),
        };
        partition.fetch(NOW, &request).unwrap().log_start
    };
    fetch(&mut partition, 2, 0);
    let told = |partition: &Partition| partition.status().followers[0].log_start;
    assert_eq!(told(&partition), Some(Offset(0)));
    let beyond = DeleteRefused::OutOfRange { before: Offset(3), high_watermark: Offset(2) };
    assert_eq!(partition.delete_records(NOW, Some(Offset(3))), Err(beyond));
    assert_eq!(partition.delete_records(NOW, Some(Offset(1))), Ok(Offset(1)));
    assert_eq!(partition.delete_records(NOW, Some(Offset(0))), Ok(Offset(1)), "what is gone stays so");
    assert_eq!(fetch(&mut partition, 2, 1), Offset(1), "the follower hears of it, and says that it did the same");
    assert_eq!(told(&partition), Some(Offset(1)));
    // The directory itself was made here without a sync.
    fs.sync_everything();
    assert_eq!(partition.delete_records(NOW, None), Ok(Offset(2)));
    // Whatever a power cut leaves.
    for disk in fs.images(20, 7) {
        assert_eq!(self::partition(&disk).log().start(), Offset(2));
    }
}
