//! A coordinator that takes over finds what the one before it had told.

use super::*;

/// A coordinator that has read the log of another one, and is not yet told that this was all.
fn successor(of: &Rig) -> Rig {
    let mut rig = Rig::loading(GroupConfig { initial_rebalance_delay_ms: 0, ..GroupConfig::default() });
    rig.now = of.now;
    for (transaction, records) in &of.log {
        let transaction = transaction.map(|producer| producer.id);
        rig.input(Input::Load(LoadedBatch::Records { transaction, records: records.clone() }));
    }
    rig
}

#[test]
fn members_and_offsets_are_there_again() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    rig.commit(Commit { member: at(&ids[0], generation), transaction: None, offsets: books(3) }).unwrap();
    let mut next = successor(&rig);
    let join = next.ask(Request::Join(join("c")));
    assert_eq!(next.join_refused(join), Refused::CoordinatorLoadInProgress);
    assert_eq!(next.heartbeat(&ids[0], generation), Ok(()), "it must not think that its session is over");
    next.input(Input::Loaded);
    assert_eq!(next.describe(), rig.describe());
    assert_eq!(next.heartbeat(&ids[0], generation), Ok(()));
    assert_eq!(next.offset("g", true), Ok(Some(3)));
    let synced = next.sync(&ids[1], generation, &[]);
    assert_eq!(next.assigned(synced).unwrap(), "part");
    next.passes_ms(10_000);
    assert_eq!(next.describe().members.len(), 0, "silent for a session after it was loaded");
}

#[test]
fn sessions_begin_when_all_is_loaded_however_long_that_takes() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    let mut next = successor(&rig);
    next.advance_to(next.now.uptime_ms + 60_000);
    next.input(Input::Loaded);
    assert_eq!(next.describe(), rig.describe());
    assert_eq!(next.heartbeat(&ids[0], generation), Ok(()));
    next.passes_ms(10_000);
    assert_eq!(next.describe().members.len(), 0);
}

#[test]
fn a_group_that_is_too_large_by_now_rebalances() {
    let mut rig = Rig::new();
    rig.stable(2);
    for members_max in [1, 2] {
        let mut next = Rig::loading(GroupConfig { members_max, ..GroupConfig::default() });
        for (_, records) in &rig.log {
            next.input(Input::Load(LoadedBatch::Records { transaction: None, records: records.clone() }));
        }
        next.input(Input::Loaded);
        let state = if members_max == 1 { GroupState::PreparingRebalance } else { GroupState::Stable };
        assert_eq!(next.describe().listing.state, state);
    }
}

#[test]
fn groups_and_offsets_that_went_stay_away() {
    let mut rig = Rig::new();
    let (ids, _) = rig.stable(1);
    assert_eq!(rig.leave(&[(&ids[0], None)]), [Ok(())]);
    rig.commit(Commit { member: anonymous("g"), transaction: None, offsets: books(3) }).unwrap();
    let ticket = rig.ask(Request::DeleteGroup("g".into()));
    assert_eq!(rig.answer(ticket), Answer::DeletedGroup(Ok(())));
    let mut next = successor(&rig);
    next.input(Input::Loaded);
    assert_eq!(next.groups(), [""; 0]);
}

#[test]
fn an_undecided_transaction_is_still_undecided() {
    let mut rig = Rig::new();
    let transaction = Some(Producer { id: 7, epoch: 0 });
    rig.commit(Commit { member: anonymous("g"), transaction, offsets: books(5) }).unwrap();
    let mut next = successor(&rig);
    next.input(Input::Loaded);
    assert_eq!(next.offset("g", true), Err(Refused::UnstableOffsetCommit));
    let mut decided = successor(&rig);
    decided.input(Input::Load(LoadedBatch::Marker { producer_id: 7, commits: true }));
    decided.input(Input::Loaded);
    assert_eq!(decided.offset("g", true), Ok(Some(5)));
}

#[test]
fn who_waits_is_sent_to_the_new_coordinator() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    let (joining, _) = rig.member("c2");
    rig.appends_end = None;
    let commit = Commit { member: at(&ids[0], generation), transaction: None, offsets: books(5) };
    let committing = rig.ask(Request::Commit(commit));
    rig.input(Input::Resigned);
    assert_eq!(rig.join_refused(joining), Refused::NotCoordinator);
    assert_eq!(rig.answer(committing), Answer::Commit(Err(Refused::NotCoordinator)));
    let later = rig.ask(Request::List);
    assert_eq!(rig.answer(later), Answer::Listed(Err(Refused::NotCoordinator)));
    assert_eq!(rig.coordinator.next_deadline_ms(), None);
}

#[test]
fn what_makes_no_sense_in_the_log_is_passed_over() {
    let mut coordinator = Coordinator::new(GroupConfig::default());
    let odd = Record { key: Bytes::from_static(b"\0\x01\0"), value: None };
    let good = Record {
        key: records::OffsetsKey::Offset { group: "g".into(), topic: "books".into(), partition: 0 }.encode(),
        value: Some(Bytes::from_static(b"\0\x02\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\x03")),
    };
    let batch = LoadedBatch::Records { transaction: None, records: vec![odd, good] };
    let effects = coordinator.handle(Now::default(), Input::Load(batch));
    assert_eq!(effects, [Effect::Odd("the record ends inside of the key's group".into())]);
    coordinator.handle(Now::default(), Input::Loaded);
    let fetch = FetchOffsets { group: "g".into(), partitions: None, require_stable: false };
    let effects = coordinator.handle(Now::default(), Input::Request(Ticket(1), Request::FetchOffsets(fetch)));
    let [Effect::Answer(_, Answer::Offsets(Ok(found)))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(found[0].offset.as_ref().unwrap().as_ref().unwrap().offset, 10);
}

/// A coordinator asks after the topics of what it has loaded: it was not there when one of them was deleted, or had not read that
/// far.
#[test]
fn offsets_of_topics_that_are_gone_go_when_a_coordinator_has_loaded() {
    let mut rig = Rig::new();
    let of = |topic: &str| CommittedOffset { topic: topic.into(), ..books(7).remove(0) };
    let offsets = vec![of("books"), of("films"), of("maps")];
    rig.commit(Commit { member: anonymous("g"), transaction: None, offsets }).unwrap();
    let transaction = Some(Producer { id: 7, epoch: 0 });
    rig.commit(Commit { member: anonymous("h"), transaction, offsets: vec![of("plays")] }).unwrap();
    let mut next = successor(&rig);
    // Of this one it hears before it has read all.
    next.input(Input::TopicDeleted("maps".into()));
    assert!(next.log.is_empty(), "what is read yet may be of it: {:?}", next.log);
    next.input(Input::Loaded);
    let topics = |topics: &[&str]| topics.iter().map(|&topic| topic.to_owned()).collect::<BTreeSet<_>>();
    // The tombstone of the one that it has heard of is on its way.
    assert_eq!(next.looked_up, [topics(&["books", "films", "maps", "plays"])]);
    for gone in ["films", "plays"] {
        next.input(Input::TopicDeleted(gone.into()));
    }
    let kept = |rig: &mut Rig, group: &str| {
        rig.fetch_of(group, None, true).into_iter().map(|found| found.topic.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((kept(&mut next, "g"), kept(&mut next, "h")), (vec!["books".to_owned()], vec![]));
    // And the log says so.
    let mut last = successor(&rig);
    for (_, records) in &next.log {
        last.input(Input::Load(LoadedBatch::Records { transaction: None, records: records.clone() }));
    }
    last.input(Input::Loaded);
    assert_eq!(kept(&mut last, "g"), ["books"]);
    assert_eq!(last.looked_up, [topics(&["books"])]);
}

#[test]
fn a_coordinator_without_offsets_asks_after_no_topic() {
    let mut rig = Rig::new();
    rig.stable(1);
    let mut next = successor(&rig);
    next.input(Input::Loaded);
    assert!(next.looked_up.is_empty());
}
