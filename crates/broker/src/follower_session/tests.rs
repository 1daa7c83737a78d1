use highwater_storage::{TimestampMs, TopicId};

use super::*;
use crate::draws::draws;
use crate::fetch_sessions::{Answered, FetchSessions, Limits, Owner, Refusal, Session, Taken, Told, Topic};

const FOLLOWER: Owner = Owner { is_follower: true, uses_topic_ids: true };

fn key(partition: i32) -> Key {
    Key { topic: Topic::Id(TopicId([7; 16])), partition }
}

fn want(partition: i32, from: i64) -> (Key, Asked) {
    let asked = Asked { current_leader_epoch: 3, from, last_fetched_epoch: 2, log_start: 0, max_bytes: 1 << 20 };
    (key(partition), asked)
}

fn draft(session_id: i32, session_epoch: i32, list: &[(Key, Asked)], forget: &[i32]) -> Draft {
    Draft { session_id, session_epoch, list: list.to_vec(), forget: forget.iter().map(|&part| key(part)).collect() }
}

#[test]
fn only_changes_are_listed_and_who_does_not_want_is_forgotten() {
    let mut session = FollowerSession::default();
    let all = [want(0, 5), want(1, 5), want(2, 5)];
    assert_eq!(session.draft(&all), draft(0, 0, &all, &[]));
    assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::Full);
    assert_eq!(session.draft(&all), draft(9, 1, &[], &[]));
    assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::OnlyNews);
    // One has moved, one is busy, one is new.
    assert_eq!(session.draft(&[want(0, 5), want(2, 6), want(3, 0)]), draft(9, 2, &[want(2, 6), want(3, 0)], &[1]));
    assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::OnlyNews);
    assert_eq!(session.draft(&all), draft(9, 3, &[want(1, 5), want(2, 5)], &[3]));
    // All others at once, and each field counts.
    assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::OnlyNews);
    let (key, asked) = want(4, 0);
    for (epoch, asked) in (4..).zip([
        asked,
        Asked { current_leader_epoch: 4, ..asked },
        Asked { last_fetched_epoch: 3, ..asked },
        Asked { log_start: 1, ..asked },
        Asked { max_bytes: 1, ..asked },
    ]) {
        let wanted = [(key.clone(), asked)];
        let forget: &[i32] = if epoch == 4 { &[0, 1, 2] } else { &[] };
        assert_eq!(session.draft(&wanted), draft(9, epoch, &wanted, forget));
        assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::OnlyNews);
        assert_eq!(session.listed.len(), 1);
    }
}

#[test]
fn a_session_that_does_not_go_on_is_followed_by_a_full_request() {
    let all = [want(0, 5), want(1, 5)];
    let answers = [
        (Some(ErrorCode::FetchSessionIdNotFound), 0, Verdict::AskAgain, 0),
        (Some(ErrorCode::InvalidFetchSessionEpoch), 0, Verdict::AskAgain, 9),
        (Some(ErrorCode::FetchSessionTopicIdError), 0, Verdict::AskAgain, 9),
        (Some(ErrorCode::UnknownServerError), 0, Verdict::Failed, 9),
        (None, 0, Verdict::Failed, 9),
        // Answered, and closed by the leader; or the answer is of a session we do not know.
        (Some(ErrorCode::None), 0, Verdict::OnlyNews, 0),
        (Some(ErrorCode::None), 8, Verdict::OnlyNews, 8),
    ];
    for (code, session_id, verdict, closes) in answers {
        let mut session = FollowerSession::default();
        session.draft(&all);
        session.answered(Some(ErrorCode::None), 9);
        assert_eq!(session.draft(&all), draft(9, 1, &[], &[]));
        assert_eq!(session.answered(code, session_id), verdict, "{code:?}");
        assert_eq!(session.draft(&all), draft(closes, 0, &all, &[]), "{code:?}");
    }
    // No answer at all.
    let mut session = FollowerSession::default();
    session.draft(&all);
    session.answered(Some(ErrorCode::None), 9);
    session.draft(&all);
    session.reset();
    assert_eq!(session.draft(&all), draft(9, 0, &all, &[]));
    // A leader without room: full requests, and each asks for a session.
    for _ in 0..2 {
        assert_eq!(session.answered(Some(ErrorCode::None), 0), Verdict::Full);
        assert_eq!(session.draft(&all), draft(0, 0, &all, &[]));
    }
    let mut session = FollowerSession { id: 9, epoch: i32::MAX, listed: all.iter().cloned().collect() };
    session.draft(&all);
    assert_eq!(session.answered(Some(ErrorCode::None), 9), Verdict::OnlyNews);
    assert_eq!(session.draft(&all), draft(9, 1, &[], &[]));
}

#[test]
fn a_request_speaks_for_the_latest_life_only() {
    let planned = vec![("a", 4), ("b", 7), ("c", -1), ("d", 7)];
    let (life, current, earlier) = of_latest_life(planned, |planned| BrokerEpoch(planned.1));
    assert_eq!((life, current, earlier), (BrokerEpoch(7), vec![("b", 7), ("d", 7)], vec![("a", 4), ("c", -1)]));
}

/// Both halves against each other: whatever is lost, repeated or evicted, a request is answered for exactly the partitions
/// that it wants, and none whose end moved is left untold.
#[test]
fn a_leader_serves_exactly_what_a_follower_wants() {
    for seed in 1..300u64 {
        let mut draw = draws(seed);
        let mut leader = FetchSessions::new(Limits { slots: 2, bytes: 1 << 20 });
        let mut follower = FollowerSession::default();
        let mut ends = [0i64; 8];
        // What the follower knows of each partition it wants: nothing at first, and after each pause.
        let mut known: HashMap<Key, i64> = HashMap::new();
        for step in 0..80 {
            let now = TimestampMs(step);
            ends[usize::try_from(draw(8)).expect("small")] += 1;
            let wanted: Vec<(Key, Asked)> = (0..8).filter(|_| draw(8) != 0).map(|part| want(part, 0)).collect();
            if wanted.is_empty() {
                continue;
            }
            known.retain(|key, _| wanted.iter().any(|(wanted, _)| wanted == key));
            if draw(10) == 0 {
                // The leader starts anew, or others take the slots.
                leader = FetchSessions::new(Limits { slots: usize::try_from(draw(3)).expect("small"), bytes: 1 << 20 });
            }
            let mut told = None;
            for _ in 0..2 {
                let request = follower.draft(&wanted);
                let answer = serve(&mut leader, now, &request, &ends, u32::try_from(draw(1 << 20)).expect("small"));
                if draw(12) == 0 {
                    follower.reset();
                    break;
                }
                let verdict = match &answer {
                    Ok((id, ..)) => follower.answered(Some(ErrorCode::None), *id),
                    Err(Refusal::NotFound) => follower.answered(Some(ErrorCode::FetchSessionIdNotFound), 0),
                    Err(_) => follower.answered(Some(ErrorCode::InvalidFetchSessionEpoch), 0),
                };
                assert!(verdict != Verdict::Failed);
                if let Ok((_, served, news)) = answer {
                    let mut expected: Vec<Key> = wanted.iter().map(|(key, _)| key.clone()).collect();
                    expected.sort_unstable();
                    assert_eq!(served, expected, "seed {seed}, step {step}");
                    told = Some((verdict, news));
                    break;
                }
            }
            let Some((verdict, news)) = told else {
                known.clear();
                continue;
            };
            known.extend(news);
            if verdict == Verdict::Full {
                assert_eq!(known.len(), wanted.len(), "seed {seed}, step {step}");
            }
            for (key, _) in &wanted {
                let end = ends[usize::try_from(key.partition).expect("small")];
                assert_eq!(known.get(key), Some(&end), "seed {seed}, step {step}, {key:?}");
            }
        }
    }
}

/// A leader's answer: the session's id, whom it asked, and whom it tells of with their ends.
type Served = (i32, Vec<Key>, Vec<(Key, i64)>);

fn serve(
    leader: &mut FetchSessions,
    now: TimestampMs,
    request: &Draft,
    ends: &[i64; 8],
    random: u32,
) -> Result<Served, Refusal> {
    let end = |key: &Key| ends[usize::try_from(key.partition).expect("small")];
    let answered = |key: &Key| Answered {
        has_records: false,
        told: Some(Told { high_watermark: end(key), last_stable_offset: end(key), log_start: 0 }),
    };
    let mut taken: Option<Taken> = None;
    let mut opened = Session::default();
    let session = if request.session_epoch == EPOCH_OPENING {
        leader.close(request.session_id);
        &mut opened
    } else {
        &mut taken.insert(leader.take(now, request.session_id, request.session_epoch, true)?).session
    };
    for (key, asked) in &request.list {
        session.ask(key.clone(), *asked);
    }
    for key in &request.forget {
        session.forget(key);
    }
    let mut served: Vec<Key> = session.parts().map(|(key, _)| key.clone()).collect();
    let news = served.iter().filter(|key| session.has_news(key, answered(key))).map(|key| (key.clone(), end(key)));
    let news = news.collect();
    served.sort_unstable();
    let id = match taken {
        Some(taken) => {
            let id = taken.id();
            leader.put_back(taken);
            id
        }
        None => leader.keep(now, FOLLOWER, opened, random).unwrap_or(NO_SESSION),
    };
    Ok((id, served, news))
}
