//! Faults that other logs had, each as its report tells it (`docs/replication-faults.md` has their numbers), between
//! replicas on real logs.

use std::path::Path;
use std::sync::Arc;

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Effect, EpochEnd, FetchPlan, FetchRequest, ListedOffset, Partition, ProduceError,
    Produced, ReplicaConfig, WaitToken, Which,
};
use highwater_storage::fs::Fs;
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ProduceRules, ReadLimit,
    Record, batches,
};

use crate::cluster::{
    CONSUMER, DIR, NOW, answer, ask, consume, disk, diverge, effects, fetch, led_by, plan, produce, refuse, replica,
    start,
};

fn end_of(leader: &Partition, epoch: i32) -> (i32, i64) {
    let EpochEnd { epoch, end } = leader.end_of_epoch(CONSUMER, None, LeaderEpoch(epoch)).unwrap();
    (epoch.0, end.0)
}

/// KAFKA-6857, KAFKA-7415: an epoch in which nothing was written is known where it began, and an epoch that is not known is
/// not answered with the log's end.
#[test]
fn r03_elections_without_a_record_have_their_place_in_the_history() {
    let mut leader = replica(1);
    for token in 0..3 {
        produce(&mut leader, "of epoch 0", Acks::Leader, token);
    }
    led_by(&mut leader, 1, 2, &[1, 2, 3]);
    assert_eq!([0, 1, 2].map(|epoch| end_of(&leader, epoch)), [(0, 3), (0, 3), (2, 3)]);
    for unknown in [-1, 3, i32::MIN, i32::MAX] {
        assert_eq!(end_of(&leader, unknown), (-1, -1), "{unknown}");
    }
    // It is gone without a trace once the next begins at the same offset.
    led_by(&mut leader, 1, 4, &[1, 2, 3]);
    produce(&mut leader, "of epoch 4", Acks::Leader, 3);
    assert_eq!([1, 2, 3, 4].map(|epoch| end_of(&leader, epoch)), [(0, 3), (0, 3), (0, 3), (4, 4)]);
    assert_eq!(leader.log().epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(4), Offset(3))]);
}

/// KAFKA-3919: all lose power, and the one that leads has kept less than its follower.
#[test]
fn r19_a_follower_that_kept_more_than_its_leader_is_cut_and_opens_again() {
    let disks = [disk(), disk()];
    let [mut leader, mut follower] =
        [1, 2].map(|id| start(id, &disks[id as usize - 1], LogOptions::default()).unwrap());
    for replica in [&mut leader, &mut follower] {
        led_by(replica, 1, 0, &[1, 2]);
    }
    for token in 0..6 {
        produce(&mut leader, "before the power cut", Acks::Leader, token);
    }
    fetch(&mut leader, 2, &mut follower, 6);
    drop((leader, follower));
    let [leaders, followers] = disks.map(|disk| disk.kill());
    let options = LogOptions::default();
    let (mut log, _) =
        Log::open_with(Arc::new(leaders.clone()), Path::new(DIR), options, OpenHints::default()).unwrap();
    log.truncate_to(Offset(3)).unwrap();
    drop(log);

    let mut leader = start(1, &leaders, LogOptions::default()).unwrap();
    let mut follower = start(2, &followers, LogOptions::default()).unwrap();
    for replica in [&mut leader, &mut follower] {
        led_by(replica, 1, 1, &[1]);
    }
    for token in 0..2 {
        produce(&mut leader, "after it", Acks::Leader, token);
    }
    // An answer from where the leader begins to differ, as one would get it who did not ask with an epoch.
    let asked = plan(&mut follower);
    let mut wrong =
        ask(&mut leader, 2, FetchPlan { from: Offset(3), last_fetched_epoch: None, ..asked }, Offset(9)).unwrap();
    wrong.answers(asked);
    answer(&mut follower, &wrong);
    assert_eq!(follower.log().end(), Offset(6), "nothing is stored that begins below the end");

    // With it the two find where they part.
    follower.tick(NOW.after(10_000));
    fetch(&mut leader, 2, &mut follower, 0);
    assert_eq!(follower.log().end(), Offset(3));
    fetch(&mut leader, 2, &mut follower, 9);
    assert_eq!(records(&follower), records(&leader));
    drop(follower);
    let again = start(2, &followers.kill(), LogOptions::default()).unwrap();
    assert_eq!(records(&again), records(&leader));
}

fn records(partition: &Partition) -> Vec<(i64, i32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut from = partition.log().start();
    while from < partition.log().end() {
        let fetched = partition.reader().read(from, ReadLimit::bytes(1 << 20)).unwrap();
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            for record in batch.records().unwrap() {
                let record = record.unwrap();
                let offset = batch.header().base_offset().0 + i64::from(record.offset_delta);
                found.push((offset, batch.header().leader_epoch().0, record.value.unwrap().to_vec()));
            }
        }
        from = fetched.next;
    }
    found
}

/// KAFKA-15608, KAFKA-8002: a log that was moved without the file of its epochs leads, and followers join.
#[test]
fn r21_a_leader_that_lost_the_file_of_its_epochs_takes_followers_in() {
    let disks = [disk(), disk()];
    let [mut leader, mut follower] =
        [1, 2].map(|id| start(id, &disks[id as usize - 1], LogOptions::default()).unwrap());
    for replica in [&mut leader, &mut follower] {
        led_by(replica, 1, 0, &[1]);
    }
    for token in 0..4 {
        produce(&mut leader, "of epoch 0", Acks::Leader, token);
    }
    fetch(&mut leader, 2, &mut follower, 4);
    led_by(&mut leader, 1, 3, &[1]);
    produce(&mut leader, "of epoch 3", Acks::Leader, 4);
    leader.close().unwrap();
    let moved = disks[0].kill();
    moved.remove_file(&Path::new(DIR).join("leader-epoch-checkpoint")).unwrap();
    let mut leader = start(1, &moved, LogOptions::default()).unwrap();
    led_by(&mut leader, 1, 5, &[1]);
    led_by(&mut follower, 1, 5, &[1]);
    fetch(&mut leader, 2, &mut follower, 9);
    effects(&mut leader);
    fetch(&mut leader, 2, &mut follower, 0);
    assert_eq!(records(&follower), records(&leader));
    let joins = |effect: &Effect| matches!(effect, Effect::ProposeIsr { state, .. } if state.isr.len() == 2);
    assert!(effects(&mut leader).iter().any(joins), "its end is the leader's, and so is its history");
}

/// A batch of an idempotent producer.
fn numbered(partition: &mut Partition, sequence: i32) -> Result<Produced, ProduceError> {
    let mut batch = BatchBuilder::new(Codec::None).producer(7, 0, sequence);
    batch.push(Record::new(NOW, b"a record of a producer with a number"));
    let batch = CheckedBatch::check(batch.build(), &ProduceRules::default(), NOW).unwrap();
    partition.produce(NOW, &batch, Acks::Leader, NOW.after(30_000), WaitToken(1))
}

/// Whether it was there already; none if it was refused.
fn known(done: Result<Produced, ProduceError>) -> Option<bool> {
    match done {
        Ok(Produced::Done(done)) => Some(done.duplicate),
        _ => None,
    }
}

/// A follower that is cut forgets what the records that are gone said of their producers: elected, it would take their
/// next attempt for one that it has, and answer for a batch that is in no log.
#[test]
fn a_cut_takes_back_what_is_known_of_producers() {
    let [mut leader, mut follower] = [1, 2].map(replica);
    numbered(&mut leader, 0).unwrap();
    fetch(&mut leader, 2, &mut follower, 1);
    numbered(&mut leader, 1).unwrap();
    fetch(&mut leader, 2, &mut follower, 1);
    led_by(&mut follower, 3, 1, &[1, 2, 3]);
    let asked = plan(&mut follower);
    diverge(&mut follower, asked, EpochEnd { epoch: LeaderEpoch(0), end: Offset(1) });
    led_by(&mut follower, 2, 2, &[2]);
    assert_eq!(known(numbered(&mut follower, 0)), Some(true));
    assert_eq!(known(numbered(&mut follower, 1)), Some(false));
}

/// KAFKA-6003, KAFKA-9144: a follower gets of a producer only what retention has left, which begins anywhere.
#[test]
fn r24_a_producer_goes_on_with_a_replica_that_never_saw_its_first_records() {
    let small = LogOptions { segment_bytes: 400, file_delete_delay_ms: 0, ..LogOptions::default() };
    let mut leader = start(1, &disk(), small.clone()).unwrap();
    led_by(&mut leader, 1, 0, &[1]);
    for sequence in 0..20 {
        numbered(&mut leader, sequence).unwrap();
    }
    let config = ReplicaConfig::new(BrokerId(1), BrokerEpoch(1));
    leader.configure(NOW, config, LogOptions { retention_bytes: 1, ..small });
    while let Some(work) = leader.begin_work(NOW) {
        leader.finish_work(NOW, work.run()).unwrap();
    }
    let left = leader.log().start();
    assert!(left > Offset(0) && left < Offset(20), "{left}");

    let mut second = start(2, &disk(), LogOptions::default()).unwrap();
    led_by(&mut second, 1, 0, &[1]);
    let asked = plan(&mut second);
    let refused = ask(&mut leader, 2, asked, Offset(99)).err().unwrap();
    refuse(&mut second, asked, &refused);
    while second.log().end() < Offset(20) {
        fetch(&mut leader, 2, &mut second, 99);
    }
    assert_eq!(records(&second), records(&leader));
    led_by(&mut second, 2, 1, &[2]);
    assert_eq!(known(numbered(&mut second, 19)), Some(true), "sent again");
    assert_eq!(known(numbered(&mut second, 20)), Some(false));
    assert_eq!(known(numbered(&mut second, 30)), None, "a gap");
}

/// With acks=1 a record may be cut that its producer was told of; no consumer was shown it.
#[test]
fn r25_no_consumer_has_seen_what_is_cut_later() {
    let [mut leader, mut second, mut third] = [1, 2, 3].map(replica);
    for token in 0..3 {
        let done = produce(&mut leader, "on one broker only", Acks::Leader, token);
        assert!(matches!(done, Produced::Done(_)));
        produce(&mut leader, "nobody waits", Acks::None, 10 + token);
    }
    assert_eq!(consume(&mut leader, 0), [0i64; 0]);
    let end = leader.list_offset(CONSUMER, None, Which::Latest).unwrap();
    assert_eq!(end, ListedOffset::At { offset: Offset(0), leader_epoch: LeaderEpoch(0) });
    // Its fetch waits, and a change of the leader sends it away without a record.
    leader.watch_fetch(WaitToken(99), CONSUMER, Offset(0));
    for replica in [&mut second, &mut third, &mut leader] {
        led_by(replica, 2, 1, &[1, 2, 3]);
    }
    let told = effects(&mut leader);
    assert!(told.iter().any(|effect| matches!(effect, Effect::WakeFetch { token: WaitToken(99) })), "{told:?}");
    let asked = told.into_iter().find_map(|effect| if let Effect::Fetch(plan) = effect { Some(plan) } else { None });
    produce(&mut second, "another at offset 0", Acks::Leader, 0);
    let diverges = ask(&mut second, 1, asked.unwrap(), Offset(9)).unwrap();
    answer(&mut leader, &diverges);
    assert_eq!(leader.log().end(), Offset(0), "what was acknowledged to acks=1 is gone");
    for (id, follower) in [(1, &mut leader), (3, &mut third)] {
        fetch(&mut second, id, follower, 9);
        fetch(&mut second, id, follower, 0);
        assert_eq!(records(follower), records(&second));
    }
    assert_eq!(consume(&mut second, 0), [0]);
}

/// KAFKA-12153: the last stable offset between a cut in front of an open transaction and what is written there next.
#[test]
fn r29_the_last_stable_offset_stays_within_the_log_through_cuts() {
    let fs = disk();
    let mut follower = start(2, &fs, LogOptions::default()).unwrap();
    let mut leader = replica(1);
    led_by(&mut follower, 1, 0, &[1, 2, 3]);
    let stable = |partition: &Partition| {
        let high_watermark = partition.status().high_watermark;
        let stable = partition.log().last_stable_offset(high_watermark);
        assert!(
            stable <= high_watermark && high_watermark <= partition.log().end(),
            "{stable} {:?}",
            partition.status()
        );
        stable
    };
    for token in 0..10 {
        produce(&mut leader, "outside of transactions", Acks::Leader, token);
    }
    for sequence in 0..10 {
        let mut batch = BatchBuilder::new(Codec::None).producer(7, 0, sequence).transactional();
        batch.push(Record::new(NOW, b"of an open transaction"));
        let batch = CheckedBatch::check(batch.build(), &ProduceRules::default(), NOW).unwrap();
        leader.produce(NOW, &batch, Acks::Leader, NOW.after(30_000), WaitToken(1)).unwrap();
    }
    fetch(&mut leader, 2, &mut follower, 15);
    fetch(&mut leader, 2, &mut follower, 5);
    assert_eq!((follower.log().end(), follower.status().high_watermark), (Offset(20), Offset(0)));
    assert_eq!(follower.log().last_stable_offset(Offset(20)), Offset(10));
    assert_eq!(stable(&follower), Offset(0));
    // Another leader has five records of the transaction, and the one after that has none.
    for (epoch, kept, unstable) in [(1, 15, 10), (2, 8, 8)] {
        led_by(&mut follower, 3, epoch, &[1, 2, 3]);
        let asked = plan(&mut follower);
        diverge(&mut follower, asked, EpochEnd { epoch: LeaderEpoch(0), end: Offset(kept) });
        assert_eq!(follower.log().end(), Offset(kept));
        assert_eq!(follower.log().last_stable_offset(Offset(kept)), Offset(unstable), "of {kept}");
        stable(&follower);
    }
    led_by(&mut follower, 2, 3, &[2]);
    for token in 0..7 {
        produce(&mut follower, "at the offsets of the transaction", Acks::Leader, token);
    }
    assert_eq!((follower.log().end(), stable(&follower)), (Offset(15), Offset(15)));
    let request = FetchRequest { by: CONSUMER, current_leader_epoch: None, last_fetched_epoch: None, from: Offset(0) };
    let grant = follower.fetch(NOW, &request).unwrap();
    assert_eq!((grant.last_stable_offset, grant.high_watermark), (Offset(15), Offset(15)));
}
