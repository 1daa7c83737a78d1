//! The example every text on replication begins with, on three real logs: log ends of 5, 5 and 4 make a high watermark
//! of 4.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Effect, FetchPlan, FetchReply, FetchRequest, FetchedRecords, Fetcher, Isolation,
    Partition, PartitionState, Produced, ReplicaConfig, Versioned, WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ProduceRules, ReadLimit,
    Record, TimestampMs, TopicPartition, batches,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
const CONSUMER: Fetcher = Fetcher::Consumer { isolation: Isolation::ReadUncommitted };

fn replica(id: i32) -> Partition {
    let (fs, dir) = (SimFs::new(1), Path::new("/books-0"));
    fs.create_dir(dir).unwrap();
    let (log, _) = Log::open_with(Arc::new(fs), dir, LogOptions::default(), OpenHints::default()).unwrap();
    let config = ReplicaConfig::new(BrokerId(id), BrokerEpoch(i64::from(id)));
    let mut partition = Partition::new(config, TopicPartition::new("books", 0), log, None);
    partition.apply_live_brokers(
        NOW,
        &(1..=3).map(|id| (BrokerId(id), BrokerEpoch(i64::from(id)))).collect::<BTreeMap<_, _>>(),
    );
    let all = [1, 2, 3].map(BrokerId);
    let state = PartitionState {
        leader: Some(BrokerId(1)),
        leader_epoch: LeaderEpoch(0),
        isr: all.to_vec(),
        controller_epoch: 1,
        recovering: false,
    };
    partition.apply_state(NOW, &Versioned { value: state, version: 0 }, &all);
    partition
}

fn produce(leader: &mut Partition, value: &str, acks: Acks, token: u64) -> Produced {
    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(Record::new(NOW, value.as_bytes()));
    let batch = CheckedBatch::check(batch.build(), &ProduceRules::default(), NOW).unwrap();
    leader.produce(NOW, &batch, acks, NOW.after(30_000), WaitToken(token)).unwrap()
}

/// What a partition wants done since the last look.
fn effects(partition: &mut Partition) -> Vec<Effect> {
    std::iter::from_fn(|| partition.poll_effect()).collect()
}

/// The fetch that a follower wants to make.
fn plan(follower: &mut Partition) -> FetchPlan {
    let plan = |effect| if let Effect::Fetch(plan) = effect { Some(plan) } else { None };
    effects(follower).into_iter().filter_map(plan).next_back().unwrap()
}

/// Brings a follower's fetch to the leader and the answer back, with at most so many records of it.
fn fetch(leader: &mut Partition, id: i32, follower: &mut Partition, records: usize) {
    let plan = plan(follower);
    let request = FetchRequest {
        by: Fetcher::Follower { id: BrokerId(id), broker_epoch: Some(plan.broker_epoch), log_start: plan.log_start },
        current_leader_epoch: Some(plan.leader_epoch),
        last_fetched_epoch: plan.last_fetched_epoch,
        from: plan.from,
    };
    let grant = leader.fetch(NOW, &request).unwrap();
    let upper = grant.upper.min(plan.from + i64::try_from(records).unwrap());
    let bytes = if upper > plan.from {
        leader.reader().read(plan.from, ReadLimit::bytes(1 << 20).below(upper)).unwrap().bytes
    } else {
        Vec::new()
    };
    let came = FetchedRecords {
        records: &bytes,
        high_watermark: grant.high_watermark,
        log_start: grant.log_start,
        diverging: grant.diverging,
    };
    follower.fetched(NOW, FetchReply { plan, result: Ok(came) });
}

/// The offsets a consumer gets that reads from `from`.
fn consume(leader: &mut Partition, from: i64) -> Vec<i64> {
    let request =
        FetchRequest { by: CONSUMER, current_leader_epoch: None, last_fetched_epoch: None, from: Offset(from) };
    let grant = leader.fetch(NOW, &request).unwrap();
    if grant.upper <= request.from {
        return Vec::new();
    }
    let limit = ReadLimit::bytes(1 << 20).below(grant.upper).in_generation(grant.generation);
    let fetched = leader.reader().read(request.from, limit).unwrap();
    batches(&fetched.bytes).map(|batch| batch.unwrap().header().base_offset().0).collect()
}

#[test]
fn the_smallest_log_end_of_the_in_sync_replicas_is_the_high_watermark() {
    let (mut leader, mut second, mut third) = (replica(1), replica(2), replica(3));
    for token in 0..4 {
        produce(&mut leader, "a book", Acks::Leader, token);
    }
    assert_eq!(produce(&mut leader, "the fifth", Acks::All, 5), Produced::Waiting);

    // The second replica takes all five, the third four; their next fetches tell the leader so.
    fetch(&mut leader, 2, &mut second, 5);
    fetch(&mut leader, 3, &mut third, 4);
    let ends = [&leader, &second, &third].map(|partition| partition.log().end());
    assert_eq!(ends, [Offset(5), Offset(5), Offset(4)]);
    fetch(&mut leader, 2, &mut second, 0);
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!(leader.status().high_watermark, Offset(4));
    assert_eq!(consume(&mut leader, 0), [0, 1, 2, 3]);

    // A consumer waits for the fifth record, and its producer for the acknowledgement.
    assert_eq!(consume(&mut leader, 4), [0i64; 0]);
    leader.watch_fetch(WaitToken(6), CONSUMER, Offset(4));
    let waits = |effect: &Effect| !matches!(effect, Effect::ProduceDone { .. } | Effect::WakeFetch { .. });
    assert!(effects(&mut leader).iter().all(waits));

    // The third replica reaches 5.
    fetch(&mut leader, 3, &mut third, 5);
    assert_eq!((third.log().end(), leader.status().high_watermark), (Offset(5), Offset(4)), "not told yet");
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!(leader.status().high_watermark, Offset(5));
    assert_eq!(consume(&mut leader, 4), [4]);
    let told = effects(&mut leader);
    let acknowledged = |effect: &Effect| matches!(effect, Effect::ProduceDone { token: WaitToken(5), result: Ok(done) } if done.base_offset == Offset(4));
    assert!(told.iter().any(acknowledged), "{told:?}");
    assert!(told.iter().any(|effect| matches!(effect, Effect::WakeFetch { token: WaitToken(6) })), "{told:?}");

    // The followers hear of it with the answers to their next fetches.
    fetch(&mut leader, 2, &mut second, 0);
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!([second.status().high_watermark, third.status().high_watermark], [Offset(5); 2]);
}
