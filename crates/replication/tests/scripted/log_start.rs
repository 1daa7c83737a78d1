//! A leader whose log starts above where its follower's log differs from it.
//!
//! The seeded driver's run 45247: a leader died with records that nobody else had; its successor wrote others at their
//! offsets, committed them, and deleted them by age, with every trace of the older epoch. When the old leader came back
//! as a follower, its log ended where the new one began, in an epoch that the new leader knows nothing of: which fits. It
//! was counted as in sync with the wrong records still in it.
//!
//! The run 18384: its log went further, and was cut to where the new one began. The records below went with the next
//! answer, but what they said of their producer stayed, and counted when it was elected again. The run 6411: so it did where
//! its log ended right there, and nothing was cut.

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Effect, EpochEnd, FetchRequest, ListedOffset, Partition, Produced, ReplicaConfig,
    WaitToken, Which, vouches,
};
use highwater_storage::fs::SimFs;
use highwater_storage::{BatchBuilder, CheckedBatch, Codec, LeaderEpoch, LogOptions, Offset, ProduceRules, Record};

use crate::cluster::{CONSUMER, NOW, answer, ask, disk, effects, fetch, led_by, plan, produce, start};

/// Up to here all three agree.
const COMMON: i64 = 4;

struct Story {
    /// 2, in epoch 1.
    leader: Partition,
    /// 1, which led epoch 0, on its disk.
    fs: SimFs,
    /// Where the leader's log starts, and its high watermark.
    leader_start: Offset,
}

/// Of so many records in epoch 0 the log of 1 ends where the leader's will begin.
fn as_far_as_the_leaders_start() -> usize {
    usize::try_from(story(FURTHER).leader_start.0).unwrap()
}

/// So many go beyond that.
const FURTHER: usize = 40;

/// Runs the story up to the return of 1, which has so many records of epoch 0. One, that nobody else gets, is the first of
/// a producer.
fn story(records: usize) -> Story {
    let small = LogOptions { segment_bytes: 400, file_delete_delay_ms: 0, ..LogOptions::default() };
    let disks = [1, 2, 3].map(|_| disk());
    let [mut first, mut leader, mut third] =
        [1, 2, 3].map(|id| start(id, &disks[id as usize - 1], small.clone()).unwrap());
    for replica in [&mut first, &mut leader, &mut third] {
        led_by(replica, 1, 0, &[1, 2, 3]);
    }
    for token in 0..records {
        if token as i64 == COMMON + 1 {
            assert!(!produce_first(&mut first));
        } else {
            produce(&mut first, "of epoch 0", Acks::Leader, token as u64);
        }
    }
    fetch(&mut first, 2, &mut leader, COMMON as usize);
    fetch(&mut first, 3, &mut third, COMMON as usize);
    drop(first);
    let fs = disks[0].kill();

    // 2 leads on, 3 follows it. What fills the first segments of 2 is committed, and goes.
    for replica in [&mut leader, &mut third] {
        led_by(replica, 2, 1, &[2, 3]);
    }
    for token in 0..20 {
        produce(&mut leader, "of epoch 1", Acks::Leader, token);
    }
    let committed = leader.log().segments()[2].base;
    while third.log().end() < committed {
        // An answer holds records of one segment.
        let missing = committed - third.log().end();
        fetch(&mut leader, 3, &mut third, missing as usize);
    }
    fetch(&mut leader, 3, &mut third, 0);
    assert_eq!(leader.status().high_watermark, committed);
    let config = ReplicaConfig::new(BrokerId(2), BrokerEpoch(2));
    leader.configure(NOW, config, LogOptions { retention_bytes: 1, ..small });
    while let Some(work) = leader.begin_work(NOW) {
        leader.finish_work(NOW, work.run()).unwrap();
    }
    assert_eq!(leader.log().start(), committed, "all that is committed is gone, and nothing else");
    assert_eq!(leader.log().epochs(), [(LeaderEpoch(1), committed)]);
    Story { leader, fs, leader_start: committed }
}

/// The first batch of an idempotent producer, and whether the leader takes it for one that it has.
fn produce_first(leader: &mut Partition) -> bool {
    let mut batch = BatchBuilder::new(Codec::None).producer(7, 0, 0);
    batch.push(Record::new(NOW, b"the first of a producer"));
    let batch = CheckedBatch::check(batch.build(), &ProduceRules::default(), NOW).unwrap();
    match leader.produce(NOW, &batch, Acks::Leader, NOW.after(30_000), WaitToken(1_000)).unwrap() {
        Produced::Done(done) => done.duplicate,
        Produced::Waiting => panic!("nothing to wait for"),
    }
}

/// 1 starts again and follows 2.
fn returned(story: &Story) -> Partition {
    let mut first = start(1, &story.fs, LogOptions::default()).unwrap();
    led_by(&mut first, 2, 1, &[2, 3]);
    first
}

/// The ISR that a leader proposes.
fn proposed(leader: &mut Partition) -> Option<Vec<i32>> {
    let isr = |effect| match effect {
        Effect::ProposeIsr { state, .. } => Some(state.isr.iter().map(|id| id.0).collect()),
        _ => None,
    };
    effects(leader).into_iter().filter_map(isr).next_back()
}

#[test]
fn a_follower_lets_go_of_what_lies_below_the_leaders_start_before_it_is_in_sync() {
    let mut story = story(as_far_as_the_leaders_start());
    let mut first = returned(&story);
    assert_eq!((first.log().start(), first.log().end()), (Offset(0), story.leader_start));
    effects(&mut story.leader);
    let asked = plan(&mut first);
    assert_eq!((asked.from, asked.last_fetched_epoch), (story.leader_start, Some(LeaderEpoch(0))));
    // It has reached the high watermark and the start of the epoch, and it fits.
    let reply = ask(&mut story.leader, 1, asked, story.leader_start + 1).unwrap();
    assert_eq!(reply.diverging, None);
    assert_eq!(story.leader.status().high_watermark, asked.from);
    assert_eq!(proposed(&mut story.leader), None, "with other records than were committed there");
    answer(&mut first, &reply);
    assert_eq!((first.log().start(), first.log().end()), (story.leader_start, story.leader_start));
    fetch(&mut story.leader, 1, &mut first, 1);
    assert_eq!(proposed(&mut story.leader), Some(vec![1, 2, 3]));
    // Elected again it has never seen the producer of what it lost.
    led_by(&mut first, 1, 2, &[1, 2, 3]);
    assert!(!produce_first(&mut first), "acknowledged, and in no log");
}

#[test]
fn a_follower_cut_to_the_leaders_start_starts_over_and_forgets_the_producers_of_what_it_lost() {
    let mut story = story(FURTHER);
    let mut first = returned(&story);
    let asked = plan(&mut first);
    let reply = ask(&mut story.leader, 1, asked, Offset(1_000)).unwrap();
    let end = EpochEnd { epoch: LeaderEpoch(0), end: story.leader_start };
    assert_eq!(reply.diverging, Some(end), "the best that the leader knows of epoch 0");
    answer(&mut first, &reply);
    assert_eq!((first.log().start(), first.log().end()), (story.leader_start, story.leader_start));
    effects(&mut story.leader);
    fetch(&mut story.leader, 1, &mut first, 1);
    assert_eq!(proposed(&mut story.leader), Some(vec![1, 2, 3]), "it holds nothing that the leader does not know");
    // Elected again it has never seen the producer, whose batch is nowhere any more.
    led_by(&mut first, 1, 2, &[1, 2, 3]);
    assert!(!produce_first(&mut first), "acknowledged, and in no log");
    assert!(produce_first(&mut first));
}

/// Field fault R26 (KAFKA-9212): a consumer stored its position with an epoch of which the leader has deleted every record.
#[test]
fn r26_a_position_of_an_epoch_that_is_deleted_is_good() {
    let mut leader = story(FURTHER).leader;
    let start = leader.log().start();
    let ends = |epoch| leader.end_of_epoch(CONSUMER, None, LeaderEpoch(epoch)).unwrap();
    assert_eq!(ends(0), EpochEnd { epoch: LeaderEpoch(0), end: start }, "not below the position");
    assert_eq!(ends(i32::MIN), EpochEnd::NONE);
    let listed = leader.list_offset(CONSUMER, None, Which::Earliest).unwrap();
    assert_eq!(listed, ListedOffset::At { offset: start, leader_epoch: LeaderEpoch::NONE }, "which is -1 for a client");
    for last_fetched_epoch in [None, Some(LeaderEpoch(0)), Some(LeaderEpoch(1))] {
        let request = FetchRequest { by: CONSUMER, current_leader_epoch: None, last_fetched_epoch, from: start };
        let grant = leader.fetch(NOW, &request).unwrap();
        assert_eq!((grant.diverging, grant.log_start), (None, start), "{last_fetched_epoch:?}");
    }
}

/// 1 crashes at every call by which it starts over and stores the leader's first records: whatever it comes back with, as long as it holds
/// anything below the leader's start its log does not pass for the leader's.
#[test]
fn a_crash_does_not_leave_the_leaders_records_above_others() {
    let records = as_far_as_the_leaders_start();
    let mut states = Vec::new();
    for calls in 0.. {
        let mut story = story(records);
        let mut first = returned(&story);
        let asked = plan(&mut first);
        let reply = ask(&mut story.leader, 1, asked, story.leader_start + 1).unwrap();
        story.fs.crash_after(calls);
        answer(&mut first, &reply);
        if !story.fs.crashed() {
            fetch(&mut story.leader, 1, &mut first, 1);
        }
        let ended = !story.fs.crashed();
        drop(first);
        for image in story.fs.images(8, calls).into_iter().chain([story.fs.kill()]) {
            let again = start(1, &image, LogOptions::default()).unwrap();
            let log = again.log();
            let last = Some(log.latest_epoch()).filter(|epoch| epoch.is_some());
            let pass = vouches(story.leader.log(), last, log.start());
            assert!(!pass || log.start() >= story.leader_start, "{calls} calls: {:?}", again.status());
            states.push((log.start(), log.end()));
        }
        if ended {
            break;
        }
    }
    states.sort_unstable();
    states.dedup();
    let (old, new) = (Offset(0), Offset(i64::try_from(records).unwrap()));
    assert!(
        states.contains(&(old, new)) && states.contains(&(new, new)) && states.contains(&(new, new + 1)),
        "{states:?}"
    );
}
