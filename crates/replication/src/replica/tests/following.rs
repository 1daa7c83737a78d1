//! Followers: replies, cuts, failures.

use super::*;

fn following(log: ModelLog, epoch: i32, checkpointed: i64) -> Rig {
    let mut rig = Rig::with(config(), log, checkpointed);
    rig.state(state(2, epoch, &[1, 2]));
    assert_eq!(rig.replica.role(), Role::Follower);
    rig
}

#[test]
fn a_follower_copies_and_learns_the_high_watermark() {
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    let plan = rig.plan().unwrap();
    assert_eq!((plan.leader, plan.from, plan.last_fetched_epoch), (BrokerId(2), Offset(2), Some(LeaderEpoch(3))));
    rig.reply_records(4, 2, 4, 3, 4);
    assert_eq!((rig.log.end(), rig.hw()), (Offset(5), 4));
    let plan = rig.plan().unwrap();
    assert_eq!((plan.from, plan.last_fetched_epoch), (Offset(5), Some(LeaderEpoch(4))));
    // Never above its own end, never back, and the leader's start follows it.
    rig.reply(4, 5, Ok(head(3, 0)));
    rig.handle(Input::Replicated);
    assert_eq!(rig.hw(), 4, "a leader that was just elected knows less");
    rig.reply(4, 5, Ok(head(50, 2)));
    rig.handle(Input::Replicated);
    assert_eq!((rig.hw(), rig.log.start()), (5, Offset(2)));
}

/// Late, doubled and foreign replies change nothing (invariant I7).
#[test]
fn replies_that_were_not_asked_for_table() {
    let table: [(&str, i32, i64); 3] = [("older epoch", 3, 2), ("newer epoch", 5, 2), ("another offset", 4, 1)];
    for (name, epoch, from) in table {
        let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
        rig.seen.clear();
        for result in [Ok(head(9, 9)), Ok(diverging(1, 0)), Err(FetchFailure::OutOfRange { log_start: None })] {
            assert_eq!(rig.reply(epoch, from, result), ReplyStep::Done, "{name}");
        }
        assert_eq!((rig.take_seen(), rig.log.end(), rig.hw()), (vec![], Offset(2), 1), "{name}");
    }
    // A reply to a follower that leads by now.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    rig.state(state(1, 5, &[1]));
    assert_eq!(rig.reply(4, 2, Ok(head(9, 9))), ReplyStep::Done);
    // The second copy of a reply.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    rig.reply_records(4, 2, 4, 3, 4);
    rig.reply_records(4, 2, 4, 3, 4);
    assert_eq!(rig.log.end(), Offset(5));
}

/// A reply may come so late that the log was cut meanwhile and has grown to the same end again, in the same epoch: it
/// speaks of another history, and cutting by it would take committed records away.
#[test]
fn a_reply_from_before_a_cut_means_nothing_after_it() {
    let mut rig = following(ModelLog::with_epochs(&[(0, 0)], 16), 1, 12);
    let first = rig.plan().unwrap();
    rig.reply_to(&first, Ok(diverging(0, 12)));
    assert_eq!(rig.log.end(), Offset(12));
    rig.reply_records(1, 12, 1, 4, 16);
    let second = rig.plan().unwrap();
    assert_eq!((second.from, second.leader_epoch), (first.from, first.leader_epoch));
    rig.reply_to(&first, Ok(diverging(0, 12)));
    assert_eq!((rig.log.end(), rig.hw()), (Offset(16), 16));
    let step = ReplyStep::Append { leader_epoch: LeaderEpoch(1), log_start: Offset(0) };
    assert_eq!(rig.reply_to(&second, Ok(head(16, 0))), step);
}

/// Facts 80 and 81, R02, R04: a diverging answer cuts, and nothing else in it counts.
#[test]
fn diverging_answers_cut() {
    let mut rig = following(ModelLog::with_epochs(&[(0, 0), (2, 1), (4, 2)], 3), 6, 1);
    rig.reply(6, 3, Ok(diverging(2, 2)));
    assert_eq!((rig.log.end(), rig.hw()), (Offset(2), 1));
    let why = CutReason::Diverged(EpochEnd { epoch: LeaderEpoch(2), end: Offset(2) });
    assert!(rig.seen.contains(&Output::Truncate { to: Offset(2), why }));
    assert_eq!(rig.plan().unwrap().last_fetched_epoch, Some(LeaderEpoch(2)));
    // R04: no byte goes, but the entry of an election without a write does.
    let mut rig = following(ModelLog::with_epochs(&[(1, 0), (3, 10)], 10), 6, 1);
    assert_eq!(rig.plan().unwrap().last_fetched_epoch, Some(LeaderEpoch(3)));
    rig.reply(6, 10, Ok(diverging(1, 10)));
    let plan = rig.plan().unwrap();
    assert_eq!((plan.from, plan.last_fetched_epoch), (Offset(10), Some(LeaderEpoch(1))));
    // The same once more would change nothing: no endless dialogue at full speed.
    rig.reply(6, 10, Ok(diverging(1, 10)));
    assert_eq!(rig.plan(), None);
    rig.tick(1_000);
    assert!(rig.plan().is_some());
}

/// The leader's start comes first: with a record of the leader's, and the records below that start still here, a crash
/// would leave a log that looks like the leader's all the way down.
#[test]
fn the_leaders_start_is_taken_over_before_its_records() {
    let table = [
        ("as far as the leader is committed", 0, head(12, 10), 10),
        ("nor above what is committed", 0, head(8, 10), 8),
        ("which we may know better", 9, head(8, 10), 9),
        ("ours is higher", 0, head(12, 0), 3),
        ("an answer without a start or a high watermark", 5, head(-1, -1), 3),
    ];
    for (name, checkpointed, answer, start) in table {
        let mut log = ModelLog::with_epochs(&[(0, 0)], 12);
        log.advance_start(Offset(3));
        let mut rig = following(log, 1, checkpointed);
        let high_watermark = rig.hw().max(answer.high_watermark.0.min(12));
        let ReplyStep::Append { log_start, .. } = rig.reply(1, 12, Ok(answer)) else { panic!("{name}: refused") };
        assert_eq!((log_start.0.max(3), rig.log.start(), rig.log.end()), (start, Offset(start), Offset(12)), "{name}");
        assert_eq!(rig.plan().map(|plan| plan.log_start), Some(Offset(3)), "{name}: asks on before it has appended");
        rig.log.append(LeaderEpoch(1), 2);
        rig.handle(Input::Replicated);
        assert_eq!(rig.hw(), high_watermark.max(answer.high_watermark.0.min(14)), "{name}");
        assert_eq!(rig.plan().unwrap().log_start, Offset(start), "{name}");
        // Refused records leave a start that has moved, which is committed whatever else is.
        rig.reply(1, 14, Ok(head(14, 14)));
        rig.handle(Input::ReplicatedRefused);
        assert_eq!((rig.log.start(), rig.hw(), rig.plan()), (Offset(14), 14, None), "{name}");
        rig.tick(1_000);
        assert_eq!(rig.plan().unwrap().log_start, Offset(14), "{name}");
    }
}

/// A log that ends where the leader's begins fits, whatever is in it: what that says of producers must not stay.
#[test]
fn where_all_lies_below_the_leaders_start_the_log_starts_over() {
    for (name, leader_epoch, starts_over) in [("nobody knows whose it is", 1, true), ("it is the leader's", 0, false)] {
        for leader_start in [12, 13] {
            let mut rig = following(ModelLog::with_epochs(&[(0, 0)], 12), leader_epoch, 0);
            let step = rig.reply(leader_epoch, 12, Ok(head(40, leader_start)));
            let why = CutReason::LeaderStartsAbove(Offset(12));
            let reset = rig.seen.contains(&Output::Reset { start: Offset(12), why });
            assert_eq!((reset, step == ReplyStep::Done), (starts_over, starts_over), "{name}: {step:?}");
            assert_eq!((rig.log.start(), rig.log.end()), (Offset(12), Offset(12)), "{name}: never above our own end");
        }
    }
}

/// What would be left nobody can compare with the leader's, and it would be gone with the next answer but for its
/// producers.
#[test]
fn a_cut_at_or_below_the_leaders_start_starts_over_there() {
    let table = [("at it", 5, true), ("below it", 7, true), ("above it", 4, false), ("the leader has all", 0, false)];
    for (name, leader_start, starts_over) in table {
        let mut rig = following(ModelLog::with_epochs(&[(0, 0)], 12), 1, 3);
        let answer = ReplyHead { log_start: Offset(leader_start), ..diverging(0, 5) };
        rig.reply(1, 12, Ok(answer));
        let start = if starts_over { leader_start } else { 0 };
        assert_eq!((rig.log.start(), rig.log.end()), (Offset(start), Offset(start.max(5))), "{name}");
        let plan = rig.plan().unwrap();
        assert_eq!((plan.from, plan.last_fetched_epoch.is_none()), (rig.log.end(), starts_over), "{name}");
    }
    let mut rig = following(ModelLog::with_epochs(&[(0, 0)], 12), 1, 3);
    rig.reply(1, 12, Ok(diverging(0, 0)));
    let why = CutReason::Diverged(EpochEnd { epoch: LeaderEpoch(0), end: Offset(0) });
    assert!(rig.seen.contains(&Output::Truncate { to: Offset(0), why }), "nothing starts above 0: {:?}", rig.seen);
}

/// A cut below the high watermark (an unclean leader) takes the high watermark along.
#[test]
fn a_cut_lowers_the_high_watermark_with_the_end() {
    let mut rig = following(ModelLog::with_epochs(&[(1, 0), (2, 4)], 8), 6, 7);
    rig.reply(6, 8, Ok(diverging(1, 3)));
    assert_eq!((rig.log.end(), rig.hw()), (Offset(3), 3));
}

/// Facts 82, 83, 84, 87 and R15: every failure of a fetch.
#[test]
fn fetch_failures_table() {
    // What waits is asked again after the back-off, not before: soon where the leader has not heard of its election yet.
    for (failure, backoff) in [
        (FetchFailure::Unreachable, 1_000),
        (FetchFailure::UnknownLeaderEpoch, 2),
        (FetchFailure::OutOfRange { log_start: None }, 1_000),
        (FetchFailure::OutOfRange { log_start: Some(Offset(0)) }, 1_000),
    ] {
        let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
        rig.seen.clear();
        rig.reply(4, 2, Err(failure));
        assert_eq!(rig.replica.next_deadline(&rig.log), Some(TimestampMs(backoff)), "{failure:?}");
        rig.tick(backoff - 1);
        assert_eq!(rig.plan(), None, "{failure:?}");
        rig.tick(1);
        assert_eq!(rig.plan().unwrap().from, Offset(2), "{failure:?}");
        assert_eq!((rig.log.end(), rig.hw()), (Offset(2), 1), "{failure:?}");
    }
    // A leader that goes on not to have heard of it is asked less and less often; another epoch begins anew.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    for epoch in [4, 5] {
        for backoff in [2, 4, 8, 16, 32, 50, 50] {
            rig.reply(epoch, 2, Err(FetchFailure::UnknownLeaderEpoch));
            let due = rig.replica.next_deadline(&rig.log).unwrap();
            assert_eq!(due, TimestampMs(rig.now + backoff));
            rig.tick(backoff);
        }
        rig.state(state(2, epoch + 1, &[2, 1]));
    }
    // Fenced: only the store helps.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    rig.seen.clear();
    rig.reply(4, 2, Err(FetchFailure::FencedLeaderEpoch));
    rig.tick(1_000_000);
    assert_eq!((rig.plan(), rig.replica.next_deadline(&rig.log)), (None, None));
    rig.state(state(3, 5, &[3, 1]));
    assert_eq!(rig.plan().unwrap().leader, BrokerId(3));
    // 84: the leader's log starts above our end.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 1), 4, 1);
    rig.reply(4, 1, Err(FetchFailure::OutOfRange { log_start: Some(Offset(2)) }));
    assert_eq!((rig.log.start(), rig.log.end(), rig.hw()), (Offset(2), Offset(2), 2));
    let plan = rig.plan().unwrap();
    assert_eq!((plan.from, plan.last_fetched_epoch), (Offset(2), None));
    // 83: a leader that lost everything is behind an empty log of ours.
    let mut log = ModelLog::default();
    log.reset(Offset(30));
    let mut rig = following(log, 4, 30);
    rig.reply(4, 30, Err(FetchFailure::OutOfRange { log_start: Some(Offset(0)) }));
    assert_eq!((rig.log.start(), rig.log.end(), rig.hw()), (Offset(0), Offset(0), 0));
    // Our last epochs are above the leader's: they never were in its history.
    let mut rig = following(ModelLog::with_epochs(&[(3, 0), (9, 4)], 6), 5, 1);
    rig.reply(5, 6, Err(FetchFailure::OutOfRange { log_start: Some(Offset(0)) }));
    assert_eq!((rig.log.end(), rig.log.latest_epoch()), (Offset(4), LeaderEpoch(3)));
    // 87: damaged records were refused by the log: asked for again later.
    let mut rig = following(ModelLog::default(), 4, 0);
    let step = ReplyStep::Append { leader_epoch: LeaderEpoch(4), log_start: Offset(0) };
    assert_eq!(rig.reply(4, 0, Ok(head(3, 0))), step);
    rig.seen.clear();
    rig.handle(Input::ReplicatedRefused);
    assert_eq!((rig.plan(), rig.hw()), (None, 0));
    rig.tick(1_000);
    assert_eq!(rig.plan().unwrap().from, Offset(0));
}

/// Facts 85: the classic rule is the fallback for records without epochs, and only for them.
#[test]
fn a_log_without_epochs_is_cut_to_the_high_watermark() {
    let mut log = ModelLog::with_epochs(&[(0, 0)], 9);
    log.forget_epochs();
    let mut rig = following(log, 4, 5);
    assert!(rig.seen.contains(&Output::Truncate { to: Offset(5), why: CutReason::NoEpochs }));
    assert_eq!(rig.plan().unwrap().from, Offset(5));
    let rig = following(ModelLog::with_epochs(&[(0, 0)], 9), 4, 5);
    assert_eq!(rig.log.end(), Offset(9), "R01: with epochs nothing is cut before the leader is asked");
}

/// R01: the follower whose high watermark lagged restarts and is elected; nothing is lost.
#[test]
fn a_restarted_follower_keeps_what_it_acknowledged() {
    let mut rig = Rig::with(config(), ModelLog::with_epochs(&[(1, 0)], 2), 1);
    rig.state(state(2, 1, &[2, 1]));
    rig.reply(1, 2, Err(FetchFailure::Unreachable));
    rig.state(state(1, 2, &[1]));
    rig.append(1);
    assert_eq!((rig.log.end(), rig.hw()), (Offset(3), 3));
}

#[test]
fn leader_changes_stop_the_old_fetch() {
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    rig.seen.clear();
    rig.state(state(2, 4, &[2]));
    assert_eq!(rig.take_seen(), [], "only the ISR changed");
    rig.state(state(3, 5, &[3, 1]));
    let seen = rig.take_seen();
    assert_eq!(seen[0], Output::StopFetching);
    assert!(matches!(seen[1], Output::Fetch(FetchPlan { leader: BrokerId(3), .. })));
    rig.state(state(1, 6, &[1]));
    assert_eq!(rig.take_seen()[0], Output::StopFetching);
}

/// R08: whatever a checkpoint says, the high watermark lies within the log.
#[test]
fn checkpointed_high_watermarks_are_clamped() {
    let mut log = ModelLog::with_epochs(&[(1, 0)], 80);
    log.advance_start(Offset(50));
    for (checkpointed, expected) in [(Some(-1), 50), (Some(1_000_000_000_000), 80), (None, 50), (Some(60), 60)] {
        let replica = Replica::new(config(), &log, checkpointed.map(Offset));
        assert_eq!(replica.high_watermark(), Offset(expected), "{checkpointed:?}");
    }
}

/// A broken invariant closes this replica and nothing else.
#[test]
fn broken_invariants_fence() {
    let mut rig = Rig::leading(0, 1, &[1]);
    rig.append(5);
    rig.seen.clear();
    rig.log.truncate(Offset(2));
    rig.replica.check(&rig.log);
    assert_eq!(rig.replica.role(), Role::Fenced);
    let fenced = rig.replica.poll_output();
    assert!(matches!(fenced, Some(Output::Fenced(FenceReason::Invariant(_)))), "{fenced:?}");
    // An append that answers with offsets below the high watermark.
    let mut rig = Rig::leading(0, 1, &[1]);
    rig.append(5);
    let answer = Acknowledged {
        base_offset: Offset(4),
        last_offset: Offset(4),
        append_time: TimestampMs::NONE,
        log_start: Offset(0),
        duplicate: false,
    };
    assert_eq!(rig.appended(answer, Acks::Leader, 1), Err(ProduceRefused::Storage));
    assert_eq!(rig.replica.role(), Role::Fenced);
}

/// A leader with damage reads what is committed from those that follow it. Nobody else does, and nothing comes of it.
#[test]
fn a_follower_lends_its_leader_what_is_committed() {
    let mut rig = Rig::with(config(), ModelLog::with_epochs(&[(0, 0)], 9), 6);
    rig.log.advance_start(Offset(2));
    rig.state(state(2, 3, &[1, 2, 3]));
    assert_eq!((rig.replica.role(), rig.hw()), (Role::Follower, 6));
    let status = rig.replica.status(&rig.log);
    let by = |id: i32| Fetcher::Follower { id: BrokerId(id), broker_epoch: None, log_start: Offset(0) };
    let rows = [
        (by(2), Some(3), 2, true),
        (by(2), Some(3), 5, true),
        (by(2), Some(3), 6, false),
        (by(2), Some(3), 1, false),
        (by(3), Some(3), 2, false),
        (by(2), Some(2), 2, false),
        (by(2), Some(4), 2, false),
        (by(2), None, 2, false),
        (CONSUMER, Some(3), 2, false),
    ];
    for (by, epoch, from, lends) in rows {
        let current_leader_epoch = epoch.map(LeaderEpoch);
        let request = FetchRequest { by, current_leader_epoch, last_fetched_epoch: None, from: Offset(from) };
        let granted = rig.fetch_as(&request);
        assert_eq!(granted.is_ok(), lends, "{request:?}: {granted:?}");
        assert!(granted.is_err() || granted.is_ok_and(|grant| grant.upper == Offset(6) && grant.diverging.is_none()));
    }
    assert_eq!(rig.replica.status(&rig.log), status);
}

/// What is known to be lost when a follower that is behind is elected all the same.
#[test]
fn a_follower_remembers_up_to_where_its_last_leader_had_committed() {
    let mut rig = following(ModelLog::with_epochs(&[(3, 0)], 2), 4, 1);
    let step = rig.reply(4, 2, Ok(head(30, 0)));
    assert!(matches!(step, ReplyStep::Append { .. }));
    rig.handle(Input::Replicated);
    assert_eq!((rig.hw(), rig.replica.leaders_high_watermark()), (2, (Offset(30), LeaderEpoch(4))));
    // The next leader may have been one that lacks it, and says itself what counts.
    rig.state(state(3, 5, &[3, 1]));
    assert_eq!(rig.replica.leaders_high_watermark(), (Offset(2), LeaderEpoch(5)));
}
