//! Who waits at a leader, for what, and how long: produces, fetches, flushes.

use super::*;

/// R10: a consumer at the high watermark, above it, at the end and past it.
#[test]
fn consumers_never_see_above_the_high_watermark() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(8);
    rig.fetch(2, 5);
    assert_eq!(rig.consume(0), [0, 1, 2, 3, 4]);
    for from in [5, 6, 8] {
        assert_eq!(rig.consume(from), [0i64; 0], "{from}");
    }
    let request = FetchRequest { by: CONSUMER, current_leader_epoch: None, last_fetched_epoch: None, from: Offset(9) };
    assert!(matches!(rig.fetch_as(&request), Err(FetchError::OutOfRange { .. })));
    // A replica reads up to the end.
    let request = rig.request(2, 5);
    assert_eq!(rig.fetch_as(&request).unwrap().upper, Offset(8));
}

/// Facts 75: too few in sync before the append (19) and after it (20).
#[test]
fn min_insync_replicas_before_and_after_the_append() {
    let config = ReplicaConfig { min_insync_replicas: 2, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.state(state(1, 1, &[1, 2]));
    assert_eq!(rig.produce(3, Acks::All, 1), Ok(Produced::Waiting));
    rig.state(state(1, 1, &[1]));
    let refused = ProduceRefused::NotEnoughReplicas { in_sync: 1, needed: 2 };
    assert_eq!(rig.produce(3, Acks::All, 2), Err(refused));
    assert_eq!(rig.log.end(), Offset(3), "nothing was written");
    assert!(rig.produce(1, Acks::Leader, 3).is_ok(), "acks=1 does not ask");
    // The high watermark waits for the ISR to be large enough again.
    assert_eq!((rig.hw(), rig.produce_results()), (0, vec![]));
    rig.state(state(1, 1, &[1, 2]));
    rig.fetch(2, 4);
    let results = rig.produce_results();
    assert!(matches!(results[..], [(1, Ok(Acknowledged { base_offset: Offset(0), .. }))]), "{results:?}");
    // An append whose high watermark had passed, found while the ISR is too small: a duplicate is the way to get there.
    rig.state(state(1, 1, &[1]));
    let duplicate = Acknowledged {
        base_offset: Offset(0),
        last_offset: Offset(2),
        append_time: TimestampMs::NONE,
        log_start: Offset(0),
        duplicate: true,
    };
    let after = ProduceRefused::NotEnoughReplicasAfterAppend { in_sync: 1, needed: 2 };
    assert_eq!(rig.appended(duplicate, Acks::All, 4), Err(after));
}

#[test]
fn produces_are_answered_in_offset_order() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    for token in 1..=3 {
        assert_eq!(rig.produce(2, Acks::All, token), Ok(Produced::Waiting));
    }
    // A duplicate of the first batch waits for the original's offset.
    let duplicate = Acknowledged {
        base_offset: Offset(0),
        last_offset: Offset(1),
        append_time: TimestampMs::NONE,
        log_start: Offset(0),
        duplicate: true,
    };
    assert_eq!(rig.appended(duplicate, Acks::All, 9), Ok(Produced::Waiting));
    rig.seen.clear();
    rig.fetch(2, 3);
    assert_eq!(rig.produce_results().iter().map(|done| done.0).collect::<Vec<_>>(), [1, 9]);
    rig.fetch(2, 6);
    assert_eq!(rig.produce_results().iter().map(|done| done.0).collect::<Vec<_>>(), [2, 3]);
    assert!(matches!(rig.appended(duplicate, Acks::All, 9), Ok(Produced::Done(_))));
}

#[test]
fn produces_time_out() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.produce(2, Acks::All, 7).unwrap();
    rig.tick(29_999);
    assert_eq!(rig.produce_results(), []);
    rig.tick(1);
    assert_eq!(rig.produce_results(), [(7, Err(ProduceRefused::TimedOut))]);
    assert_eq!(rig.replica.status(&rig.log).produces_waiting, 0);
}

#[test]
fn only_so_many_wait() {
    let config = ReplicaConfig { waiting_max: 1, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.state(state(1, 1, &[1, 2]));
    rig.produce(1, Acks::All, 1).unwrap();
    assert_eq!(rig.produce(1, Acks::All, 2), Err(ProduceRefused::TooManyWaiting { waiting: 1 }));
    rig.fetch(2, 1);
    assert!(rig.produce(1, Acks::All, 3).is_ok());
}

/// Facts 76: what waits at a leader hears that it is none any more.
#[test]
fn stepping_down_answers_everything() {
    for lost_session in [false, true] {
        let mut rig = Rig::leading(0, 1, &[1, 2]);
        rig.produce(2, Acks::All, 7).unwrap();
        rig.replica.watch_fetch(&rig.log, WaitToken(8), CONSUMER, Offset(0));
        let follower = rig.request(2, 2).by;
        rig.replica.watch_fetch(&rig.log, WaitToken(9), follower, Offset(2));
        rig.settle();
        rig.seen.clear();
        let expected = if lost_session {
            rig.handle(Input::SessionLost);
            ProduceRefused::NotLeader { leader: None, leader_epoch: LeaderEpoch(1) }
        } else {
            rig.state(state(2, 2, &[2]));
            ProduceRefused::NotLeader { leader: Some(BrokerId(2)), leader_epoch: LeaderEpoch(2) }
        };
        let seen = rig.take_seen();
        assert!(seen.contains(&Output::ProduceDone { token: WaitToken(7), result: Err(expected) }), "{seen:?}");
        for token in [8, 9] {
            assert!(seen.contains(&Output::WakeFetch { token: WaitToken(token) }), "{seen:?}");
        }
        assert_eq!(rig.produce(1, Acks::None, 1), Err(expected));
        assert_eq!(rig.replica.status(&rig.log).fetches_waiting, 0);
    }
}

/// A leader that is elected again goes on: its records are still its own.
#[test]
fn produces_wait_through_a_re_election() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.produce(2, Acks::All, 7).unwrap();
    rig.state(state(1, 2, &[1, 2]));
    assert_eq!(rig.produce_results(), []);
    let request = FetchRequest { last_fetched_epoch: Some(LeaderEpoch(1)), ..rig.request(2, 2) };
    rig.fetch_as(&request).unwrap();
    assert!(matches!(rig.produce_results()[..], [(7, Ok(_))]));
}

/// Each watch fires once, when its kind of end passes it; at once if it has.
#[test]
fn watches_table() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(2);
    rig.fetch(2, 1);
    rig.seen.clear();
    let follower = rig.request(2, 0).by;
    let watch = |rig: &mut Rig, token, by, from| {
        rig.replica.watch_fetch(&rig.log, WaitToken(token), by, Offset(from));
        rig.settle();
        rig.woken()
    };
    assert_eq!(watch(&mut rig, 1, CONSUMER, 0), [1], "below the high watermark already");
    assert_eq!(watch(&mut rig, 2, follower, 1), [2], "below the end already");
    assert_eq!(watch(&mut rig, 3, CONSUMER, 1), [0u64; 0]);
    assert_eq!(watch(&mut rig, 4, follower, 2), [0u64; 0]);
    assert_eq!(watch(&mut rig, 5, CONSUMER, 2), [0u64; 0]);
    assert_eq!(watch(&mut rig, 6, CONSUMER, 1), [0u64; 0]);
    rig.replica.unwatch_fetch(WaitToken(6));
    rig.append(1);
    assert_eq!(rig.woken(), [4], "an append wakes followers");
    rig.fetch(2, 2);
    assert_eq!(rig.woken(), [3], "the high watermark wakes consumers, up to it");
    rig.fetch(2, 3);
    assert_eq!(rig.woken(), [5]);
}

/// A re-read of a fetch that waited acknowledges nothing.
#[test]
fn a_regrant_is_no_progress() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(2);
    let request = rig.request(2, 2);
    assert!(rig.replica.regrant(&rig.log, &request).is_ok());
    assert_eq!((rig.hw(), rig.follower(2).log_end), (0, None));
}

/// Decision 22: under a synced policy only flushed ends count, on both sides, and acks=1 waits too.
#[test]
fn a_synced_leader_counts_what_is_flushed() {
    let config = ReplicaConfig { flush_messages: 1, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.deferred_flush = true;
    rig.state(state(1, 1, &[1, 2]));
    assert_eq!(rig.produce(2, Acks::Leader, 1), Ok(Produced::Waiting));
    assert_eq!(rig.produce(2, Acks::All, 2), Ok(Produced::Waiting));
    assert_eq!(rig.take_seen().iter().filter(|output| **output == Output::Flush).count(), 1, "one at a time");
    rig.fetch(2, 4);
    assert_eq!((rig.hw(), rig.produce_results()), (0, vec![]), "the leader's own copy is not safe yet");
    rig.log.flush();
    rig.handle(Input::Flushed);
    assert_eq!(rig.hw(), 4);
    assert_eq!(rig.produce_results().iter().map(|done| done.0).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_synced_follower_fetches_after_its_flush() {
    let config = ReplicaConfig { count_flushed: true, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.deferred_flush = true;
    rig.state(state(2, 1, &[1, 2]));
    assert!(rig.plan().is_some());
    rig.reply_records(1, 0, 1, 3, 0);
    assert_eq!(rig.take_seen(), [Output::Flush]);
    rig.log.flush();
    rig.handle(Input::Flushed);
    assert_eq!(rig.plan().unwrap().from, Offset(3));
}

#[test]
fn flushes_in_the_background() {
    let config = ReplicaConfig { flush_messages: 10, flush_ms: 5_000, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.deferred_flush = true;
    rig.state(state(1, 1, &[1]));
    rig.now = 100;
    rig.append(9);
    assert!(!rig.take_seen().contains(&Output::Flush));
    assert_eq!(rig.replica.next_deadline(&rig.log), Some(TimestampMs(5_100)), "flush.ms from the first append");
    rig.append(1);
    assert!(rig.take_seen().contains(&Output::Flush), "flush.messages");
    rig.log.flush();
    rig.handle(Input::Flushed);
    rig.append(1);
    rig.tick(5_000);
    assert!(rig.take_seen().contains(&Output::Checkpoint));
    assert_eq!(rig.hw(), 11, "nothing waited for it");
}
