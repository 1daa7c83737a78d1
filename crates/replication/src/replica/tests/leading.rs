//! Leaders: progress, ISR, high watermark, epochs.

use super::*;
use crate::event::OffsetNotAvailable;
use crate::{ListedOffset, Which};

/// The textbook: log ends 5, 5 and 4 make a high watermark of 4, and a consumer gets offsets 0 to 3. The third replica
/// reaches 5: the high watermark is 5, and the consumer gets offset 4.
#[test]
fn the_textbook_example() {
    let mut rig = Rig::leading(0, 1, &[1, 2, 3]);
    rig.append(5);
    rig.fetch(2, 5);
    rig.fetch(3, 4);
    assert_eq!(rig.log.end(), Offset(5));
    assert_eq!(rig.follower(2).log_end, Some(Offset(5)));
    assert_eq!(rig.follower(3).log_end, Some(Offset(4)));
    assert_eq!(rig.hw(), 4);
    assert_eq!(rig.consume(0), [0, 1, 2, 3]);
    assert_eq!(rig.consume(4), [0i64; 0]);
    rig.fetch(3, 5);
    assert_eq!(rig.hw(), 5);
    assert_eq!(rig.consume(4), [4]);
}

/// Facts 61: nothing is known of followers until they fetch in this epoch.
#[test]
fn the_high_watermark_waits_for_a_fetch_of_every_member() {
    let mut rig = Rig::leading(10, 5, &[1, 2]);
    assert_eq!(rig.hw(), 0);
    rig.fetch(2, 10);
    assert_eq!(rig.hw(), 10);
    assert_eq!(rig.take_seen(), [Output::HighWatermark(Offset(10))]);
}

/// Facts 62: a follower that fetches where the leader's end was at its previous fetch had everything then.
#[test]
fn a_follower_that_keeps_pace_is_caught_up() {
    let mut rig = Rig::leading(10, 5, &[1, 2]);
    rig.now = 1000;
    rig.fetch(2, 5);
    assert_eq!(rig.follower(2).last_caught_up, Some(TimestampMs(0)), "since it became a member");
    rig.append(5);
    rig.now = 9000;
    rig.fetch(2, 10);
    assert_eq!(rig.follower(2).last_caught_up, Some(TimestampMs(1000)));
    rig.tick(2000);
    assert_eq!(rig.proposed(), None, "11 s after it began, 10 s after it was caught up");
    rig.tick(1);
    assert_eq!(rig.proposed().unwrap().2.isr, ids(&[1]));
}

/// Facts 63, R11: with the leader's end a follower may be silent for ever; one record later it may not.
#[test]
fn an_idle_follower_stays_in_sync() {
    let mut rig = Rig::leading(0, 5, &[1, 2]);
    rig.append(3);
    rig.fetch(2, 3);
    rig.tick(100_000);
    assert_eq!(rig.proposed(), None);
    assert_eq!(rig.replica.next_deadline(&rig.log), None, "nothing to look for");
    rig.append(1);
    assert!(rig.replica.next_deadline(&rig.log).unwrap() <= TimestampMs(rig.now));
    rig.tick(0);
    assert_eq!(rig.proposed().unwrap().2.isr, ids(&[1]));
}

/// Facts 64: a shrink counts only once it is committed.
#[test]
fn a_shrink_takes_effect_when_committed() {
    let mut rig = Rig::leading(0, 5, &[1, 2]);
    rig.append(10);
    rig.fetch(2, 4);
    assert_eq!(rig.hw(), 4);
    assert_eq!(rig.replica.next_deadline(&rig.log), Some(TimestampMs(10_001)));
    rig.tick(10_001);
    let proposal = rig.proposed().unwrap();
    assert_eq!((proposal.1, &proposal.2.isr), (1, &ids(&[1])));
    assert_eq!((rig.hw(), rig.isr(), rig.replica.maximal_isr()), (4, ids(&[1, 2]), ids(&[1, 2])));
    rig.tick(50_000);
    assert_eq!(rig.proposed(), None, "one proposal at a time");
    rig.commit(proposal);
    assert_eq!((rig.hw(), rig.isr()), (10, ids(&[1])));
}

/// Facts 65, R05: joining takes the high watermark and the start of the leader's epoch.
#[test]
fn a_follower_joins_from_the_epoch_start_on() {
    // Batches of 2 and 3 records, high watermark 1; the leader comes back with epoch 10 and one more record.
    let mut rig = Rig::with(config(), ModelLog::with_epochs(&[(8, 0)], 5), 1);
    rig.state(state(1, 10, &[1, 3]));
    rig.append(1);
    rig.seen.clear();
    for from in [0, 1, 4] {
        rig.fetch(2, from);
        assert_eq!(rig.proposed(), None, "at {from}");
    }
    rig.fetch(2, 5);
    let proposal = rig.proposed().unwrap();
    assert_eq!(proposal.2.isr, ids(&[1, 2, 3]), "in assignment order");
    assert_eq!((rig.isr(), rig.replica.maximal_isr()), (ids(&[1, 3]), ids(&[1, 3, 2])));
    rig.commit(proposal);
    assert_eq!(rig.isr(), ids(&[1, 2, 3]));
}

/// This leadership began at 10, and everything before is gone from our log by age: a follower with other records of epoch
/// 0 below fits there as well as one with the same. Both join once they have let go of them, and not before.
#[test]
fn a_follower_with_records_below_our_start_that_we_cannot_vouch_for_does_not_join() {
    let table = [
        ("older records below our start", 0, 10, Some(0), false),
        ("one offset of them", 9, 10, Some(0), false),
        ("without epochs", 0, 10, None, false),
        ("without epochs, and further", 0, 12, None, false),
        ("nothing below our start", 10, 10, Some(0), true),
        ("nothing at all", 10, 10, None, true),
        ("a record of ours: what is below it is ours too", 0, 11, Some(1), true),
        ("records of ours only", 11, 12, Some(1), true),
    ];
    for (name, log_start, from, last, joins) in table {
        let mut rig = Rig::leading(10, 1, &[1, 3]);
        rig.append(4);
        rig.fetch(3, 10);
        rig.log.advance_start(Offset(10));
        rig.seen.clear();
        rig.fetch_with(2, log_start, from, last);
        assert_eq!(rig.proposed().is_some(), joins, "{name}");
        // It counts in every other way, and joins by the next fetch that shows that it may.
        assert_eq!(rig.follower(2).log_end, Some(Offset(from)), "{name}");
        if !joins {
            rig.fetch_with(2, 10, from, last);
            assert!(rig.proposed().is_some(), "{name}");
        }
    }
}

#[test]
fn a_follower_below_the_high_watermark_does_not_join() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(10);
    rig.fetch(2, 8);
    assert_eq!(rig.hw(), 8);
    rig.fetch(3, 7);
    assert_eq!(rig.proposed(), None);
    rig.fetch(3, 8);
    assert!(rig.proposed().is_some());
}

/// R13: while 3 is on its way into the ISR it holds the high watermark.
#[test]
fn an_expansion_under_way_counts_at_once() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(5);
    rig.fetch(2, 5);
    rig.fetch(3, 5);
    let proposal = rig.proposed().unwrap();
    rig.append(4);
    rig.fetch(2, 9);
    rig.tick(60_000);
    assert_eq!(rig.hw(), 5, "3 is far too late to be about to join, but may be a member already");
    rig.decide(proposal.0, IsrDecision::Refused);
    assert_eq!((rig.hw(), rig.replica.maximal_isr()), (9, ids(&[1, 2])));
}

/// Facts 66: what becomes of a proposal for each answer.
#[test]
fn decisions_table() {
    #[derive(Debug, PartialEq)]
    enum After {
        Reverted,
        Repeats,
    }
    let stored = |version, isr: &[i32]| Versioned { value: state(1, 1, isr), version };
    let table = [
        ("refused", IsrDecision::Refused, After::Reverted),
        ("no answer", IsrDecision::Retry, After::Repeats),
        ("a session that is over, which we have not heard", IsrDecision::Fenced, After::Repeats),
        ("a conflict with what is known: a lagging read", IsrDecision::Conflict(stored(1, &[1, 2])), After::Repeats),
    ];
    for (name, decision, after) in table {
        let mut rig = Rig::leading(0, 1, &[1, 2]);
        rig.fetch(3, 0);
        let proposal = rig.proposed().unwrap();
        rig.decide(proposal.0, decision);
        let maximal = rig.replica.maximal_isr().len();
        let deadline = rig.replica.next_deadline(&rig.log);
        rig.tick(500);
        let got = match (maximal, rig.proposed()) {
            (2, None) => After::Reverted,
            (3, Some(again)) => {
                assert_eq!(again, proposal, "{name}: the same change under the same name");
                assert_eq!(deadline, Some(TimestampMs(500)), "{name}");
                After::Repeats
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(got, after, "{name}");
    }
    // A newer stored state is adopted whoever wrote it: ours (the reply was lost) or another's.
    for (decision, isr) in [
        (IsrDecision::Conflict(stored(2, &[1, 2, 3])), ids(&[1, 2, 3])),
        (IsrDecision::Committed(stored(2, &[1, 2, 3])), ids(&[1, 2, 3])),
        (IsrDecision::Conflict(stored(5, &[1])), ids(&[1])),
    ] {
        let mut rig = Rig::leading(0, 1, &[1, 2]);
        rig.fetch(3, 0);
        let proposal = rig.proposed().unwrap();
        rig.decide(proposal.0, decision);
        assert_eq!((rig.isr(), rig.replica.maximal_isr()), (isr.clone(), isr));
        rig.tick(500);
        assert_eq!(rig.proposed(), None, "it is settled");
    }
}

/// An attempt without an answer may succeed after the next one was refused. Only a write that succeeds rules it out.
#[test]
fn a_refusal_does_not_settle_an_earlier_attempt() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.fetch(3, 0);
    let proposal = rig.proposed().unwrap();
    rig.decide(proposal.0, IsrDecision::Retry);
    rig.tick(500);
    assert!(rig.proposed().is_some());
    rig.append(3);
    rig.fetch(2, 3);
    rig.decide(proposal.0, IsrDecision::Refused);
    assert_eq!((rig.replica.maximal_isr(), rig.hw()), (ids(&[1, 2, 3]), 0));
    let settles = rig.proposed().unwrap();
    assert_eq!(settles.2, state(1, 1, &[1, 2]), "the state as it is");
    rig.commit(settles);
    rig.tick(20_000);
    assert_eq!((rig.replica.maximal_isr(), rig.hw()), (ids(&[1, 2]), 3));
}

/// The same across a session: what was proposed in the old one may succeed in the new.
#[test]
fn a_proposal_outlives_its_session() {
    let mut rig = Rig::leading(0, 1, &[1]);
    rig.fetch(2, 0);
    let proposal = rig.proposed().unwrap();
    rig.handle(Input::SessionLost);
    rig.handle(Input::Registered(BrokerEpoch(11)));
    rig.state_at(1, state(1, 1, &[1]));
    rig.append(2);
    assert_eq!((rig.replica.maximal_isr(), rig.hw()), (ids(&[1, 2]), 0), "2 may be a member, and has nothing");
    rig.tick(0);
    assert_eq!(rig.proposed(), Some(proposal.clone()), "asked again, to know");
    rig.commit(proposal);
    rig.fetch(2, 2);
    assert_eq!((rig.isr(), rig.hw()), (ids(&[1, 2]), 2));
}

/// Facts 67: the watch may bring the commit before its reply, and a late reply settles nothing else.
#[test]
fn late_decisions_mean_nothing() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.fetch(3, 0);
    let first = rig.proposed().unwrap();
    rig.state_at(2, first.2.clone());
    assert_eq!(rig.isr(), ids(&[1, 2, 3]));
    rig.state_at(3, state(1, 1, &[1, 2]));
    rig.fetch(3, 0);
    let second = rig.proposed().unwrap();
    assert_ne!(second.0, first.0);
    for late in [
        IsrDecision::Committed(Versioned { value: first.2.clone(), version: 2 }),
        IsrDecision::Refused,
        IsrDecision::Retry,
        IsrDecision::Fenced,
    ] {
        rig.decide(first.0, late);
        assert_eq!((rig.isr(), rig.replica.maximal_isr().len()), (ids(&[1, 2]), 3));
    }
    rig.commit(second);
    assert_eq!(rig.isr(), ids(&[1, 2, 3]));
}

/// Facts 68: with the ISR below the minimum nothing is committed; the candidate that is about to join does not help.
#[test]
fn no_commit_below_min_insync_replicas() {
    let config = ReplicaConfig { min_insync_replicas: 3, ..config() };
    let mut rig = Rig::with(config, ModelLog::default(), 0);
    rig.state(state(1, 1, &[1, 2]));
    rig.append(4);
    rig.fetch(2, 4);
    rig.fetch(3, 4);
    let proposal = rig.proposed().unwrap();
    assert_eq!((rig.hw(), rig.replica.maximal_isr().len()), (0, 3));
    rig.commit(proposal);
    assert_eq!(rig.hw(), 4);
}

/// Facts 69, R12: out of the ISR, only a follower that may come back soon holds the high watermark.
#[test]
fn a_former_member_holds_the_high_watermark_only_while_registered() {
    for (registered, high_watermark) in [(true, 10), (false, 20)] {
        let mut rig = Rig::leading(0, 1, &[1, 2]);
        rig.append(10);
        rig.fetch(2, 10);
        rig.append(10);
        rig.state(state(1, 1, &[1]));
        if !registered {
            rig.live(&[(1, 10), (3, 30)]);
        }
        assert_eq!(rig.hw(), high_watermark, "registered: {registered}");
        assert_eq!(rig.replica.next_deadline(&rig.log), Some(TimestampMs(10_001)));
        rig.tick(10_001);
        assert_eq!(rig.hw(), 20, "and not for longer than the lag time");
        assert_eq!(rig.replica.next_deadline(&rig.log), None);
    }
}

/// Facts 70, KIP-903: what an earlier life of a broker sends changes nothing, and a life that is not the registered one
/// does not join.
#[test]
fn broker_epochs_fence_followers() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(4);
    let fetch = |rig: &mut Rig, epoch: i64, from: i64| {
        let by = Fetcher::Follower { id: BrokerId(3), broker_epoch: Some(BrokerEpoch(epoch)), log_start: Offset(0) };
        let request = FetchRequest { by, ..rig.request(3, from) };
        rig.fetch_as(&request)
    };
    assert!(matches!(fetch(&mut rig, 29, 4), Err(FetchError::NotLeader { .. })), "registered as 30");
    assert_eq!(rig.follower(3).log_end, None);
    // Its registration has not reached us yet: it is served and counted, but does not join.
    assert!(fetch(&mut rig, 31, 4).is_ok());
    assert_eq!((rig.follower(3).log_end, rig.proposed()), (Some(Offset(4)), None));
    assert!(matches!(fetch(&mut rig, 30, 4), Err(FetchError::NotLeader { .. })), "31 has fetched already");
    rig.live(&[(1, 10), (2, 20), (3, 31)]);
    fetch(&mut rig, 31, 4).unwrap();
    // The store has to see to it that 3 is still in this life when the change is written: we may hear of the next one
    // later than of everything its return has written.
    let joining =
        |output: &Output| matches!(output, Output::ProposeIsr { joining: Some((BrokerId(3), BrokerEpoch(31))), .. });
    assert!(rig.take_seen().iter().any(joining));
}

/// A member that comes back in another life may have lost what it had acknowledged.
#[test]
fn a_new_life_begins_without_progress() {
    let mut rig = Rig::leading(0, 1, &[1, 2]);
    rig.append(6);
    rig.fetch(2, 6);
    rig.append(2);
    rig.live(&[(1, 10), (2, 21)]);
    let by = Fetcher::Follower { id: BrokerId(2), broker_epoch: Some(BrokerEpoch(21)), log_start: Offset(0) };
    let request = FetchRequest { by, ..rig.request(2, 3) };
    rig.fetch_as(&request).unwrap();
    let follower = rig.follower(2);
    assert_eq!((follower.log_end, follower.last_caught_up), (Some(Offset(3)), None));
    assert_eq!(rig.hw(), 6, "what was committed stays committed");
    rig.tick(0);
    assert_eq!(rig.proposed().unwrap().2.isr, ids(&[1]), "far behind, and not caught up in this life");
}

/// Facts 71: a later version in the same epoch changes ISR and assignment only; an older version nothing.
#[test]
fn state_versions_table() {
    let mut rig = Rig::leading(5, 3, &[1, 2]);
    rig.append(1);
    rig.fetch(2, 4);
    rig.state_at(7, state(1, 3, &[1, 2, 3]));
    assert_eq!((rig.follower(2).log_end, rig.isr()), (Some(Offset(4)), ids(&[1, 2, 3])));
    rig.state_at(6, state(2, 3, &[2]));
    rig.state_at(7, state(2, 4, &[2]));
    assert_eq!((rig.replica.role(), rig.isr()), (Role::Leader, ids(&[1, 2, 3])));
    rig.fetch(3, 5);
    rig.fetch(2, 5);
    assert_eq!(rig.hw(), 5, "the epoch start did not move");
    rig.state_at(8, state(1, 4, &[1, 2, 3]));
    assert_eq!(rig.follower(2).log_end, None, "a new epoch knows nothing of its followers");
    assert_eq!(rig.log.latest_epoch(), LeaderEpoch(4));
}

/// Facts 72, KIP-207: a new leader does not tell an end below its predecessor's.
#[test]
fn offsets_are_not_told_before_they_are_known() {
    let mut rig = Rig::with(config(), ModelLog::with_epochs(&[(1, 0)], 5), 2);
    rig.state(state(1, 2, &[1, 2]));
    let list = |rig: &Rig, by, which| rig.replica.list_offset(&rig.log, by, Some(LeaderEpoch(2)), which);
    let replica = Fetcher::Follower { id: BrokerId(2), broker_epoch: None, log_start: Offset(0) };
    let at = |offset, epoch| Ok(ListedOffset::At { offset: Offset(offset), leader_epoch: LeaderEpoch(epoch) });
    let unknown = OffsetNotAvailable { high_watermark: Offset(2), epoch_start: Offset(5) };
    let not_available = FetchError::OffsetNotAvailable { high_watermark: Offset(2), epoch_start: Offset(5) };
    assert_eq!(list(&rig, CONSUMER, Which::Latest), Err(not_available));
    assert_eq!(list(&rig, CONSUMER, Which::Earliest), at(0, -1));
    assert_eq!(list(&rig, replica, Which::Latest), at(5, 2));
    // A fetch below is served, and does not tell either; a follower is told what there is.
    let fetch =
        |by, from| FetchRequest { by, current_leader_epoch: None, last_fetched_epoch: None, from: Offset(from) };
    let told = |rig: &mut Rig, by| rig.fetch_as(&fetch(by, 0)).map(|grant| (grant.high_watermark.0, grant.upper.0));
    assert_eq!((told(&mut rig, CONSUMER), told(&mut rig, replica)), (Ok((-1, 2)), Ok((2, 5))));
    assert_eq!(rig.fetch_as(&fetch(CONSUMER, 0)).unwrap().last_stable_offset, Offset(-1));
    let above = rig.fetch_as(&fetch(CONSUMER, 6));
    assert!(matches!(above, Err(FetchError::OutOfRange { high_watermark: Offset(-1), .. })), "{above:?}");
    let search = |upper, missing| Ok(ListedOffset::Search { upper: Offset(upper), missing });
    assert_eq!(list(&rig, CONSUMER, Which::Timestamp(TimestampMs(3))), search(2, Some(unknown)));
    rig.fetch(2, 5);
    assert_eq!(list(&rig, CONSUMER, Which::Latest), at(5, 2));
    assert_eq!(list(&rig, CONSUMER, Which::MaxTimestamp), search(5, None));
    assert_eq!(told(&mut rig, CONSUMER), Ok((5, 5)));
}

/// Facts 74, R20 and the epoch checks: who is refused with what, and that it leaves no trace.
#[test]
fn refused_fetches_table() {
    let mut rig = Rig::leading(5, 7, &[1, 2]);
    let current = LeaderEpoch(7);
    let table: [(i32, Option<i32>, &str); 6] = [
        (2, Some(6), "fenced"),
        (2, Some(8), "unknown"),
        (9, Some(7), "unknown"),
        (9, None, "not leader"),
        (9, Some(6), "fenced"),
        (2, Some(7), "served"),
    ];
    for (id, epoch, expected) in table {
        let request = FetchRequest { current_leader_epoch: epoch.map(LeaderEpoch), ..rig.request(id, 5) };
        let got = match rig.fetch_as(&request) {
            Err(FetchError::FencedLeaderEpoch { current: known, .. }) if known == current => "fenced",
            Err(FetchError::UnknownLeaderEpoch { current: known, .. }) if known == current => "unknown",
            Err(FetchError::NotLeader { .. }) => "not leader",
            Ok(_) => "served",
            other => panic!("{other:?}"),
        };
        assert_eq!(got, expected, "{id} in {epoch:?}");
        assert_eq!(rig.follower(2).log_end.is_some(), expected == "served");
        assert_eq!(rig.proposed(), None);
    }
    // A follower that names no epoch is served but acknowledges nothing.
    let request = FetchRequest { current_leader_epoch: None, ..rig.request(3, 5) };
    assert_eq!(rig.fetch_as(&request).unwrap().upper, Offset(5));
    assert_eq!(rig.follower(3).log_end, None);
    // Not the leader any more: the epoch is looked at first.
    rig.state(state(2, 8, &[2]));
    let request = FetchRequest { current_leader_epoch: Some(LeaderEpoch(7)), ..rig.request(3, 5) };
    assert!(matches!(rig.fetch_as(&request), Err(FetchError::FencedLeaderEpoch { .. })));
    let request = FetchRequest { current_leader_epoch: Some(LeaderEpoch(8)), ..rig.request(3, 5) };
    let elsewhere = FetchError::NotLeader { leader: Some(BrokerId(2)), leader_epoch: LeaderEpoch(8) };
    assert_eq!(rig.fetch_as(&request), Err(elsewhere));
}

/// Facts 73 end to end: a diverging or out-of-range fetch is no progress.
#[test]
fn divergence_is_no_progress() {
    let mut rig = Rig::new(ModelLog::with_epochs(&[(0, 0), (3, 2), (4, 8)], 10));
    rig.state(state(1, 5, &[1, 2]));
    let request = FetchRequest { last_fetched_epoch: Some(LeaderEpoch(2)), ..rig.request(2, 9) };
    let grant = rig.fetch_as(&request).unwrap();
    assert_eq!(grant.diverging, Some(EpochEnd { epoch: LeaderEpoch(0), end: Offset(2) }));
    let request = FetchRequest { from: Offset(11), ..rig.request(2, 0) };
    assert!(matches!(rig.fetch_as(&request), Err(FetchError::OutOfRange { log_end: Offset(10), .. })));
    assert_eq!((rig.follower(2).log_end, rig.hw()), (None, 0));
}

/// A leader's epoch is above everything in its own log, whatever the store says: two histories under one epoch could
/// never be told apart.
#[test]
fn a_leader_asks_for_an_epoch_above_its_log() {
    for last in [5, 9] {
        let mut rig = Rig::new(ModelLog::with_epochs(&[(last, 0)], 4));
        rig.state(state(1, 5, &[1, 2]));
        assert_eq!(rig.replica.role(), Role::Offline);
        assert_eq!(rig.produce(1, Acks::Leader, 1), Err(rig.replica.not_leader()));
        let proposal = rig.proposed().unwrap();
        assert_eq!(proposal.2, PartitionState { leader_epoch: LeaderEpoch(last + 1), ..state(1, 5, &[1, 2]) });
        rig.decide(proposal.0, IsrDecision::Retry);
        rig.tick(500);
        assert_eq!(rig.proposed().as_ref(), Some(&proposal));
        rig.commit(proposal);
        assert_eq!((rig.replica.role(), rig.log.latest_epoch()), (Role::Leader, LeaderEpoch(last + 1)));
    }
    let mut rig = Rig::new(ModelLog::with_epochs(&[(i32::MAX, 0)], 4));
    rig.state(state(1, 5, &[1]));
    assert_eq!(rig.replica.role(), Role::Fenced, "no epoch is left");
}

/// Decision 19: a session that is reported expired ends the leadership here; the same state, read again after the new
/// registration, gives it back, in the same epoch since this process wrote it.
#[test]
fn a_lost_session_steps_down_until_registered() {
    let mut rig = Rig::leading(2, 3, &[1, 2]);
    rig.append(1);
    rig.handle(Input::SessionLost);
    assert_eq!(rig.replica.role(), Role::Offline);
    rig.state_at(1, state(1, 3, &[1, 2]));
    assert_eq!(rig.replica.role(), Role::Offline, "not registered");
    rig.handle(Input::Registered(BrokerEpoch(11)));
    assert_eq!(rig.replica.role(), Role::Offline, "the state is not known yet");
    rig.state_at(1, state(1, 3, &[1, 2]));
    assert_eq!(rig.replica.role(), Role::Leader);
    assert_eq!(rig.follower(2).log_end, None);
    rig.fetch(3, 1);
    assert_eq!(rig.proposed(), None, "the epoch still starts at 2");
    rig.fetch(3, 2);
    assert!(rig.proposed().is_some());
    // As a follower, the plan carries the new life.
    rig.state(state(2, 4, &[2]));
    assert_eq!(rig.plan().unwrap().broker_epoch, BrokerEpoch(11));
}

/// A store whose state went back in time is not obeyed.
#[test]
fn an_older_epoch_in_a_newer_version_fences() {
    let mut rig = Rig::leading(0, 5, &[1, 2]);
    rig.state(state(1, 4, &[1, 2]));
    assert_eq!(rig.replica.role(), Role::Fenced);
    let reason = FenceReason::StoreWentBack { given: LeaderEpoch(4), known: LeaderEpoch(5) };
    assert!(rig.take_seen().contains(&Output::Fenced(reason)));
    assert_eq!(rig.produce(1, Acks::Leader, 1), Err(ProduceRefused::Storage));
    let request = rig.request(2, 0);
    assert_eq!(rig.fetch_as(&request), Err(FetchError::Storage));
}

/// An unclean leader says so, and tells the store when it has settled.
#[test]
fn an_unclean_election_is_recorded_and_settled() {
    let mut rig = Rig::new(ModelLog::with_epochs(&[(1, 0)], 4));
    rig.state(PartitionState { recovering: true, ..state(1, 2, &[1]) });
    assert!(rig.seen.contains(&Output::UncleanElection));
    let proposal = rig.proposed().unwrap();
    assert_eq!(proposal.2, state(1, 2, &[1]));
    rig.decide(proposal.0, IsrDecision::Refused);
    rig.tick(499);
    assert_eq!(rig.proposed(), None);
    rig.tick(1);
    // Another change is first: it is asked for again, and soon.
    assert!(rig.proposed().is_some());
    rig.state(PartitionState { recovering: true, controller_epoch: 2, ..state(1, 2, &[1]) });
    assert!(rig.replica.next_deadline(&rig.log).unwrap() <= TimestampMs(rig.now));
    rig.tick(0);
    let proposal = rig.proposed().unwrap();
    rig.commit(proposal);
    rig.tick(10_000);
    assert_eq!((rig.proposed(), rig.hw()), (None, 4));
    assert_eq!(rig.replica.next_deadline(&rig.log), None);
}

/// That a whole leader is there is what a member that stopped uncleanly waits for: it is taken out at once, and comes in
/// again when it has caught up.
#[test]
fn a_leader_takes_doubtful_members_out() {
    let mut rig = Rig::leading(0, 1, &[1, 2, 3]);
    rig.append(4);
    rig.fetch(2, 4);
    rig.fetch(3, 4);
    rig.state(PartitionState { doubtful: ids(&[3]), ..state(1, 1, &[1, 2, 3]) });
    let proposal = rig.proposed().unwrap();
    assert_eq!(proposal.2, state(1, 1, &[1, 2]), "however well it was caught up in its former life");
    assert_eq!(rig.replica.maximal_isr(), ids(&[1, 2, 3]), "until then it counts");
    rig.decide(proposal.0, IsrDecision::Refused);
    assert_eq!(rig.replica.next_deadline(&rig.log), Some(TimestampMs(500)));
    rig.tick(500);
    let proposal = rig.proposed().unwrap();
    rig.commit(proposal);
    assert_eq!((rig.isr(), rig.replica.next_deadline(&rig.log)), (ids(&[1, 2]), None));
    rig.fetch(3, 4);
    assert_eq!(rig.proposed().unwrap().2, state(1, 1, &[1, 2, 3]), "and nobody is doubtful");
}

#[test]
fn no_leader_not_assigned_and_not_in_its_own_isr_are_offline() {
    for wrong in [state(-1, 2, &[1]), state(9, 2, &[9]), state(1, 2, &[2])] {
        let mut rig = Rig::leading(0, 1, &[1, 2]);
        if wrong.leader == Some(BrokerId(9)) {
            rig.assignment = ids(&[9, 2]);
        }
        rig.state(wrong.clone());
        assert_eq!(rig.replica.role(), Role::Offline, "{wrong:?}");
    }
}

/// The controller keeps who is dead in the ISR; the leader takes it out without waiting for its lag.
#[test]
fn a_leader_takes_out_who_is_not_registered() {
    let mut rig = Rig::leading(0, 1, &[1, 2, 3]);
    rig.append(4);
    rig.fetch(2, 4);
    rig.live(&[(2, 20)]);
    assert_eq!(rig.proposed(), None, "that we are not there ourselves tells that this is old");
    rig.live(&[(1, 10), (2, 20)]);
    let proposal = rig.proposed().unwrap();
    assert_eq!(proposal.2, state(1, 1, &[1, 2]));
    rig.commit(proposal);
    assert_eq!(rig.hw(), 4);
}

/// While nobody leads a doubtful member says once in each life and epoch how far its log goes, after a flush.
#[test]
fn a_doubtful_member_publishes_its_flushed_end_while_nobody_leads() {
    let mut rig = Rig::new(ModelLog::with_epochs(&[(1, 0)], 4));
    rig.deferred_flush = true;
    rig.log.append(LeaderEpoch(1), 1);
    let published = |rig: &mut Rig| {
        let end = |output| if let Output::PublishEnd(end) = output { Some(end.leader_epoch.0) } else { None };
        rig.take_seen().into_iter().filter_map(end).collect::<Vec<_>>()
    };
    let doubtful = |leader, epoch| PartitionState { doubtful: ids(&[1]), ..state(leader, epoch, &[1, 2]) };
    rig.state(state(-1, 2, &[1, 2]));
    rig.state(doubtful(2, 3));
    assert_eq!(published(&mut rig), [], "it is whole, or somebody leads");
    rig.state(doubtful(-1, 4));
    assert_eq!(published(&mut rig), [], "not before it is flushed");
    rig.log.flush();
    rig.handle(Input::Flushed);
    assert_eq!(published(&mut rig), [4]);
    rig.state(doubtful(-1, 4));
    assert_eq!(published(&mut rig), [], "said already");
    rig.state(doubtful(-1, 5));
    assert_eq!(published(&mut rig), [5]);
}

/// Whose records are all deleted by age, in epochs that the power cut may have taken from its history, says no epoch: the
/// controller knows that all below its end was committed.
#[test]
fn a_doubtful_member_without_records_publishes_no_epoch() {
    let table = [("records", 3, 1), ("none, of an epoch it knows", 4, -1)];
    for (name, start, last_epoch) in table {
        let mut log = ModelLog::with_epochs(&[(1, 0)], 4);
        log.flush();
        log.advance_start(Offset(start));
        assert_eq!(log.latest_epoch(), LeaderEpoch(1));
        let mut rig = Rig::with(config(), log, 4);
        rig.state(PartitionState { doubtful: ids(&[1]), ..state(-1, 2, &[1, 2]) });
        let end =
            |output| if let Output::PublishEnd(end) = output { Some((end.last_epoch.0, end.log_end.0)) } else { None };
        let published: Vec<_> = rig.take_seen().into_iter().filter_map(end).collect();
        assert_eq!(published, [(last_epoch, 4)], "{name}");
    }
}
