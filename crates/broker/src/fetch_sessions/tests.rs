use super::*;
use crate::draws::draws;

const CLIENT: Owner = Owner { is_follower: false, uses_topic_ids: true };
const FOLLOWER: Owner = Owner { is_follower: true, uses_topic_ids: true };
const ROOMY: Limits = Limits { slots: 1000, bytes: 1 << 20 };

fn key(partition: i32) -> Key {
    Key { topic: Topic::Id(TopicId([7; 16])), partition }
}

fn asked(from: i64) -> Asked {
    Asked { current_leader_epoch: 3, from, last_fetched_epoch: 2, log_start: 0, max_bytes: 1 << 20 }
}

fn told(end: i64) -> Told {
    Told { high_watermark: end, last_stable_offset: end, log_start: 0 }
}

const fn quiet(told: Told) -> Answered {
    Answered { has_records: false, told: Some(told) }
}

fn session(partitions: i32) -> Session {
    let mut session = Session::default();
    for partition in 0..partitions {
        session.ask(key(partition), asked(0));
    }
    session
}

fn order(session: &Session) -> Vec<i32> {
    session.parts().map(|(key, _)| key.partition).collect()
}

#[test]
fn only_what_is_new_is_told() {
    let mut session = session(1);
    let (zero, error) = (key(0), Answered { has_records: false, told: None });
    let moved = [
        told(5),
        Told { high_watermark: 6, ..told(5) },
        Told { high_watermark: 6, last_stable_offset: 6, log_start: 0 },
        Told { high_watermark: 6, last_stable_offset: 6, log_start: 1 },
        // A new leader does not know its high watermark.
        Told { high_watermark: -1, last_stable_offset: -1, log_start: 1 },
    ];
    for told in moved {
        assert!(session.has_news(&zero, quiet(told)), "{told:?}");
        assert!(!session.has_news(&zero, quiet(told)), "{told:?}");
    }
    // Errors are told each time, and what comes after one though it is what was told before it.
    assert!(session.has_news(&zero, error));
    assert!(session.has_news(&zero, error));
    assert!(session.has_news(&zero, quiet(moved[4])));
    let records = Answered { has_records: true, told: Some(moved[4]) };
    assert!(session.has_news(&zero, records));
    assert!(session.has_news(&zero, records));
    // A new offset is no news by itself.
    session.ask(key(0), asked(9));
    assert!(!session.has_news(&zero, quiet(moved[4])));
    assert_eq!(session.parts().next(), Some((&zero, asked(9))));
    assert!(!session.has_news(&key(1), records), "it was never asked for");
}

#[test]
fn who_gets_records_goes_to_the_end_and_the_others_stay() {
    let mut session = session(4);
    for partition in [0, 2] {
        assert!(session.has_news(&key(partition), Answered { has_records: true, told: Some(told(1)) }));
    }
    assert!(session.has_news(&key(1), quiet(told(1))));
    assert_eq!(order(&session), [1, 3, 0, 2]);
    session.ask(key(3), asked(4));
    session.ask(key(9), asked(4));
    session.forget(&key(0));
    session.forget(&key(0));
    assert_eq!(order(&session), [1, 3, 2, 9]);
    assert_eq!((session.bytes, session.turns.len()), (4 * PARTITION_BYTES, 4));
}

#[test]
fn a_session_goes_from_epoch_to_epoch_and_is_out_once_at_a_time() {
    let mut sessions = FetchSessions::new(ROOMY);
    let now = TimestampMs(0);
    let id = sessions.keep(now, CLIENT, session(2), 14).expect("room");
    assert_eq!(id, 7);
    assert_eq!(sessions.take(now, 8, 1, true).expect_err("another id"), Refusal::NotFound);
    assert_eq!(sessions.take(now, NO_SESSION, 1, true).expect_err("no id"), Refusal::NotFound);
    for epoch in [0, 2, -5] {
        assert_eq!(sessions.take(now, id, epoch, true).expect_err("another epoch"), Refusal::WrongEpoch);
    }
    assert_eq!(sessions.take(now, id, 1, false).expect_err("named otherwise"), Refusal::TopicIds);
    for epoch in 1..4 {
        let taken = sessions.take(now, id, epoch, true).expect("it is there");
        assert_eq!((taken.id(), order(&taken.session)), (7, vec![0, 1]));
        // Sent again by a client that did not wait, or the next one ahead of its time.
        for early in [epoch, epoch + 1] {
            assert_eq!(sessions.take(now, id, early, true).expect_err("it is out"), Refusal::WrongEpoch);
        }
        sessions.put_back(taken);
    }
    sessions.kept.get_mut(&id).expect("kept").epoch = i32::MAX;
    let taken = sessions.take(now, id, i32::MAX, true).expect("it is there");
    sessions.put_back(taken);
    assert!(sessions.take(now, id, 1, true).is_ok(), "after the last epoch comes the first again");
    sessions.close(id);
    assert_eq!(sessions.take(now, id, 2, true).expect_err("closed"), Refusal::NotFound);
    assert_eq!((sessions.bytes, sessions.kept.len()), (0, 0));
}

#[test]
fn a_session_that_was_closed_while_it_was_out_does_not_come_back() {
    let mut sessions = FetchSessions::new(ROOMY);
    let now = TimestampMs(0);
    let id = sessions.keep(now, CLIENT, session(2), 14).expect("room");
    let first = sessions.take(now, id, 1, true).expect("it is there");
    sessions.close(id);
    // The same id by chance.
    assert_eq!(sessions.keep(now, CLIENT, session(3), 14), Some(id));
    sessions.put_back(first);
    assert_eq!(order(&sessions.take(now, id, 1, true).expect("the second one").session).len(), 3);
    assert_eq!(sessions.bytes, 3 * PARTITION_BYTES);
}

#[test]
fn ids_are_positive_and_nobody_elses() {
    let mut sessions = FetchSessions::new(ROOMY);
    let mut ids = Vec::new();
    for random in [0, 1, 2, 3, u32::MAX, u32::MAX, u32::MAX - 1, 1 << 31] {
        ids.push(sessions.keep(TimestampMs(0), CLIENT, session(1), random).expect("room"));
    }
    assert_eq!(ids, [1, 2, 3, 4, i32::MAX, 5, 6, 1 << 30]);
}

/// Sessions of clients and followers, by what they are worth and how old they are, and a newcomer when there is no slot.
#[test]
fn a_newcomer_takes_the_slot_of_who_is_idle_or_worth_less() {
    let old = TimestampMs(PROTECTED_MS + 1);
    // Owner, partitions, idle since the beginning; for two sessions. Then the newcomer, the time, who leaves.
    type Row = ([(Owner, i32, bool); 2], (Owner, i32), TimestampMs, Option<usize>);
    let (c, f) = (CLIENT, FOLLOWER);
    let rows: [Row; 14] = [
        // Nobody is old: only a follower displaces, and only clients.
        ([(c, 1, false), (c, 2, false)], (c, 9), TimestampMs(0), None),
        ([(c, 2, false), (c, 1, false)], (f, 1), TimestampMs(0), Some(1)),
        ([(f, 1, false), (c, 5, false)], (f, 1), TimestampMs(0), Some(1)),
        ([(f, 1, false), (f, 2, false)], (f, 9), TimestampMs(0), None),
        // Just as old as is protected.
        ([(c, 1, true), (c, 2, true)], (c, 9), TimestampMs(PROTECTED_MS), None),
        // Idle: the first goes, whatever it is worth.
        ([(c, 1, false), (f, 9, true)], (c, 1), old, Some(1)),
        ([(f, 9, true), (f, 9, true)], (c, 1), old, Some(0)),
        // Old and in use: by worth.
        ([(c, 3, false), (c, 2, false)], (c, 3), old, Some(1)),
        ([(c, 3, false), (c, 2, false)], (c, 2), old, None),
        ([(c, 3, false), (c, 2, false)], (c, 1), old, None),
        ([(f, 1, false), (f, 2, false)], (c, 9), old, None),
        ([(f, 1, false), (c, 9, false)], (c, 10), old, Some(1)),
        ([(f, 1, false), (f, 2, false)], (f, 2), old, Some(0)),
        ([(f, 3, false), (f, 2, false)], (f, 2), old, None),
    ];
    for (there, (owner, partitions), now, leaves) in rows {
        let mut sessions = FetchSessions::new(Limits { slots: 2, ..ROOMY });
        let mut ids = Vec::new();
        for (owner, partitions, is_idle) in there {
            let id = sessions.keep(TimestampMs(0), owner, session(partitions), 0).expect("room");
            if !is_idle {
                let taken = sessions.take(now, id, 1, true).expect("it is there");
                sessions.put_back(taken);
            }
            ids.push(id);
        }
        let kept = sessions.keep(now, owner, session(partitions), 100);
        let gone: Vec<usize> = (0..2).filter(|&at| !sessions.kept.contains_key(&ids[at])).collect();
        assert_eq!(gone, Vec::from_iter(leaves), "{there:?} and then {owner:?} of {partitions} at {now}");
        assert_eq!(kept.is_some(), leaves.is_some());
        let bytes: usize = sessions.kept.values().map(|kept| kept.bytes).sum();
        assert_eq!((sessions.bytes, sessions.kept.len()), (bytes, 2));
    }
}

#[test]
fn memory_is_bounded_by_slots_and_by_bytes() {
    let now = TimestampMs(0);
    for limits in [Limits { slots: 0, ..ROOMY }, Limits { slots: 1, bytes: 3 * PARTITION_BYTES - 1 }] {
        assert_eq!(FetchSessions::new(limits).keep(now, FOLLOWER, session(3), 0), None, "{limits:?}");
    }
    assert_eq!(FetchSessions::new(ROOMY).keep(now, FOLLOWER, Session::default(), 0), None, "of nothing");
    let mut sessions = FetchSessions::new(Limits { slots: 9, bytes: 8 * PARTITION_BYTES });
    let ids: Vec<i32> = (0..4).map(|_| sessions.keep(now, CLIENT, session(2), 0).expect("room")).collect();
    assert_eq!(sessions.keep(now, CLIENT, session(1), 0), None);
    // A follower that needs the room of two.
    let follower = sessions.keep(now, FOLLOWER, session(3), 100).expect("two make room");
    assert_eq!(sessions.kept.len(), 3);
    assert!(!sessions.kept.contains_key(&ids[0]) && !sessions.kept.contains_key(&ids[1]));
    // One that grows past what there is goes; what it grew by does not stay counted.
    let mut taken = sessions.take(now, ids[2], 1, true).expect("it is there");
    taken.session.ask(key(5), asked(0));
    sessions.put_back(taken);
    assert_eq!(sessions.bytes, 8 * PARTITION_BYTES);
    let mut taken = sessions.take(now, ids[2], 2, true).expect("it is there");
    taken.session.ask(Key { topic: Topic::Name("n".into()), partition: 0 }, asked(0));
    sessions.put_back(taken);
    assert_eq!(sessions.take(now, ids[2], 3, true).expect_err("let go"), Refusal::NotFound);
    assert_eq!(sessions.bytes, 5 * PARTITION_BYTES);
    assert!(sessions.take(now, follower, 1, true).is_ok());
    // A hundred clients that each open a thousand and use none.
    for round in 0..100_000 {
        let now = TimestampMs(round);
        sessions.keep(now, CLIENT, session(1), u32::try_from(round).expect("small"));
        assert!(sessions.bytes <= 8 * PARTITION_BYTES && sessions.kept.len() <= 9);
    }
}

/// Clients without a thought for memory or speed: what each is to be told, by the rules of KIP-227.
#[derive(Default)]
struct Model {
    /// Partition, offset, what was told of it.
    parts: Vec<(i32, i64, Option<Told>)>,
}

impl Model {
    fn ask(&mut self, partition: i32, from: i64) {
        match self.parts.iter_mut().find(|part| part.0 == partition) {
            Some(part) => part.1 = from,
            None => self.parts.push((partition, from, None)),
        }
    }

    fn answer(&mut self, of: impl Fn(i32, i64) -> Answered) -> Vec<i32> {
        let mut news = Vec::new();
        for (partition, from, _) in self.parts.clone() {
            let at = self.parts.iter().position(|part| part.0 == partition).expect("it is there");
            let Answered { has_records, told } = of(partition, from);
            if has_records || told.is_none() || told != self.parts[at].2 {
                news.push(partition);
            }
            self.parts[at].2 = told;
            if has_records {
                let part = self.parts.remove(at);
                self.parts.push(part);
            }
        }
        news
    }
}

#[test]
fn many_exchanges_go_as_a_model_without_sessions_says() {
    for seed in 1..200u64 {
        let mut draw = draws(seed);
        let mut sessions = FetchSessions::new(ROOMY);
        let mut model = Model::default();
        let mut opened = Session::default();
        let mut ends = [0i64; 6];
        let mut fails = [false; 6];
        let (mut id, mut epoch) = (NO_SESSION, EPOCH_OPENING);
        for step in 0..60 {
            let partition = i32::try_from(draw(6)).expect("small");
            let place = usize::try_from(partition).expect("small");
            match draw(4) {
                0 => ends[place] += 1,
                1 => fails[place] = !fails[place],
                _ => {}
            }
            let answer = |partition: i32, from: i64| {
                let place = usize::try_from(partition).expect("small");
                let told = (!fails[place]).then(|| told(ends[place]));
                Answered { has_records: told.is_some() && from < ends[place], told }
            };
            let from = ends[place] - i64::from(draw(2) == 0);
            let forgets = draw(5) == 0;
            if id == NO_SESSION {
                model = Model::default();
                model.ask(partition, from);
                opened.ask(key(partition), asked(from));
                assert_eq!(model.answer(answer), [partition]);
                assert!(opened.has_news(&key(partition), answer(partition, from)));
                id = sessions.keep(TimestampMs(step), CLIENT, std::mem::take(&mut opened), 4).expect("room");
                epoch = 1;
                continue;
            }
            let mut taken = sessions.take(TimestampMs(step), id, epoch, true).expect("it is there");
            epoch += 1;
            let session = &mut taken.session;
            if forgets {
                model.parts.retain(|part| part.0 != partition);
                session.forget(&key(partition));
            } else {
                model.ask(partition, from);
                session.ask(key(partition), asked(from));
            }
            let parts: Vec<(Key, i64)> = session.parts().map(|(key, asked)| (key.clone(), asked.from)).collect();
            let wanted: Vec<(i32, i64)> = parts.iter().map(|(key, from)| (key.partition, *from)).collect();
            let expected: Vec<(i32, i64)> = model.parts.iter().map(|part| (part.0, part.1)).collect();
            assert_eq!(wanted, expected, "seed {seed}, step {step}");
            let told = parts.iter().filter(|(key, from)| session.has_news(key, answer(key.partition, *from)));
            let told: Vec<i32> = told.map(|(key, _)| key.partition).collect();
            assert_eq!(told, model.answer(answer), "seed {seed}, step {step}");
            if session.is_empty() {
                sessions.close(id);
                (id, epoch) = (NO_SESSION, EPOCH_OPENING);
            } else {
                sessions.put_back(taken);
            }
        }
    }
}
