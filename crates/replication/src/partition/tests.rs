//! A partition on the simulated disk: what goes between the log and the replica.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, SimFs};
use highwater_storage::{
    BatchBuilder, Codec, EpochEnd, Fetched, OpenHints, ProduceRules, ReadError, ReadLimit, Record,
};

use super::*;
use crate::Isolation;
use crate::event::{FetchedRecords, Role};

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
        let work = partition.begin_work(NOW.after(1 << 40)).unwrap();
        assert!(partition.finish_work(NOW, work.run()).is_err());
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
