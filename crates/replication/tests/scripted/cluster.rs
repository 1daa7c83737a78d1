//! Three replicas, whose messages the tests carry.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Effect, FetchError, FetchFailure, FetchPlan, FetchReply, FetchRequest, FetchedRecords,
    Fetcher, Isolation, Partition, PartitionState, Produced, ReplicaConfig, Versioned, WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, EpochEnd, LeaderEpoch, Log, LogOptions, Offset, OpenError, OpenHints,
    ProduceRules, ReadLimit, Record, TimestampMs, TopicPartition, batches,
};

pub(crate) const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
pub(crate) const CONSUMER: Fetcher = Fetcher::Consumer { isolation: Isolation::ReadUncommitted };
pub(crate) const DIR: &str = "/books-0";

/// A disk with an empty directory for the partition.
pub(crate) fn disk() -> SimFs {
    let fs = SimFs::new(1);
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

/// A replica whose broker starts on this disk. The leader, 1 in epoch 0 with all three in sync, is not known yet.
pub(crate) fn start(id: i32, fs: &SimFs, options: LogOptions) -> Result<Partition, OpenError> {
    let (log, _) = Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options, OpenHints::default())?;
    let config = ReplicaConfig::new(BrokerId(id), BrokerEpoch(i64::from(id)));
    let mut partition = Partition::new(config, TopicPartition::new("books", 0), log, None);
    partition.apply_live_brokers(
        NOW,
        &(1..=3).map(|id| (BrokerId(id), BrokerEpoch(i64::from(id)))).collect::<BTreeMap<_, _>>(),
    );
    Ok(partition)
}

/// A replica of a new partition, on a disk of its own: 1 leads in epoch 0, and all are in sync.
pub(crate) fn replica(id: i32) -> Partition {
    let mut partition = start(id, &disk(), LogOptions::default()).unwrap();
    led_by(&mut partition, 1, 0, &[1, 2, 3]);
    partition
}

/// The store says: this leader, in this epoch, with this ISR.
pub(crate) fn led_by(partition: &mut Partition, leader: i32, epoch: i32, isr: &[i32]) {
    let state = PartitionState {
        leader: Some(BrokerId(leader)),
        leader_epoch: LeaderEpoch(epoch),
        isr: isr.iter().copied().map(BrokerId).collect(),
        controller_epoch: 1,
        doubtful: Vec::new(),
        recovering: false,
    };
    partition.apply_state(NOW, &Versioned { value: state, version: i64::from(epoch) }, &[1, 2, 3].map(BrokerId));
}

pub(crate) fn produce(leader: &mut Partition, value: &str, acks: Acks, token: u64) -> Produced {
    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(Record::new(NOW, value.as_bytes()));
    let batch = CheckedBatch::check(batch.build(), &ProduceRules::default(), NOW).unwrap();
    leader.produce(NOW, &batch, acks, NOW.after(30_000), WaitToken(token)).unwrap()
}

/// What a partition wants done since the last look.
pub(crate) fn effects(partition: &mut Partition) -> Vec<Effect> {
    std::iter::from_fn(|| partition.poll_effect()).collect()
}

/// The fetch that a follower wants to make.
pub(crate) fn plan(follower: &mut Partition) -> FetchPlan {
    let plan = |effect| if let Effect::Fetch(plan) = effect { Some(plan) } else { None };
    effects(follower).into_iter().filter_map(plan).next_back().unwrap()
}

/// A leader's answer on its way.
pub(crate) struct Reply {
    plan: FetchPlan,
    records: Vec<u8>,
    high_watermark: Offset,
    log_start: Offset,
    pub(crate) diverging: Option<EpochEnd>,
}

impl Reply {
    /// Has it answer another fetch than it was made for.
    pub(crate) fn answers(&mut self, plan: FetchPlan) {
        self.plan = plan;
    }
}

/// Brings a leader's refusal to its follower.
pub(crate) fn refuse(follower: &mut Partition, plan: FetchPlan, error: &FetchError) {
    let FetchError::OutOfRange { log_start, .. } = error else { panic!("{error}") };
    let failure = FetchFailure::OutOfRange { log_start: Some(*log_start) };
    follower.fetched(NOW, FetchReply { plan, result: Err(failure) });
}

/// Tells a follower that its leader's log differs from there on.
pub(crate) fn diverge(follower: &mut Partition, plan: FetchPlan, end: EpochEnd) {
    let nothing =
        FetchedRecords { records: &[], high_watermark: Offset(0), log_start: Offset(0), diverging: Some(end) };
    follower.fetched(NOW, FetchReply { plan, result: Ok(nothing) });
}

/// Brings a follower's fetch to the leader, which answers with records below `below` at most.
pub(crate) fn ask(leader: &mut Partition, id: i32, plan: FetchPlan, below: Offset) -> Result<Reply, FetchError> {
    let request = FetchRequest {
        by: Fetcher::Follower { id: BrokerId(id), broker_epoch: Some(plan.broker_epoch), log_start: plan.log_start },
        current_leader_epoch: Some(plan.leader_epoch),
        last_fetched_epoch: plan.last_fetched_epoch,
        from: plan.from,
    };
    let grant = leader.fetch(NOW, &request)?;
    let upper = grant.upper.min(below);
    let records = if grant.diverging.is_none() && upper > plan.from {
        leader.reader().read(plan.from, ReadLimit::bytes(1 << 20).below(upper)).unwrap().bytes
    } else {
        Vec::new()
    };
    let (high_watermark, log_start, diverging) = (grant.high_watermark, grant.log_start, grant.diverging);
    Ok(Reply { plan, records, high_watermark, log_start, diverging })
}

/// Brings a leader's answer to its follower.
pub(crate) fn answer(follower: &mut Partition, reply: &Reply) {
    let came = FetchedRecords {
        records: &reply.records,
        high_watermark: reply.high_watermark,
        log_start: reply.log_start,
        diverging: reply.diverging,
    };
    follower.fetched(NOW, FetchReply { plan: reply.plan, result: Ok(came) });
}

/// Brings a follower's fetch to the leader and the answer back, with at most so many records of it.
pub(crate) fn fetch(leader: &mut Partition, id: i32, follower: &mut Partition, records: usize) {
    let plan = plan(follower);
    let reply = ask(leader, id, plan, plan.from + i64::try_from(records).unwrap()).unwrap();
    answer(follower, &reply);
}

/// The offsets a consumer gets that reads from `from`.
pub(crate) fn consume(leader: &mut Partition, from: i64) -> Vec<i64> {
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
