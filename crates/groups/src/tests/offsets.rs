//! Offsets, by members, by others and by transactions.

use super::*;

fn by(member: MemberAt, offset: i64) -> Commit {
    Commit { member, transaction: None, offsets: books(offset) }
}

fn films(offset: i64) -> CommittedOffset {
    CommittedOffset { topic: "films".into(), ..books(offset).remove(0) }
}

#[test]
fn whoever_is_no_member_may_commit_while_there_are_none() {
    let mut rig = Rig::new();
    assert_eq!(rig.offset("g", false), Ok(None));
    assert_eq!(rig.commit(by(anonymous("g"), 17)), Ok(vec![Ok(())]));
    assert_eq!(rig.offset("g", false), Ok(Some(17)));
    let (ids, generation) = rig.stable(1);
    assert_eq!(rig.commit(by(anonymous("g"), 3)), Err(Refused::UnknownMemberId));
    assert_eq!(rig.commit(by(at(&ids[0], generation), 18)), Ok(vec![Ok(())]));
    assert_eq!(rig.offset("g", false), Ok(Some(18)));
    assert_eq!(rig.commit(by(at(&ids[0], generation + 1), 19)), Err(Refused::IllegalGeneration));
    assert_eq!(rig.commit(by(at("who", generation), 19)), Err(Refused::UnknownMemberId));
    let elsewhere = MemberAt { group: "nobody's".into(), ..at("who", 3) };
    assert_eq!(rig.commit(by(elsewhere, 19)), Err(Refused::GroupIdNotFound));
}

#[test]
fn members_commit_while_they_rejoin_but_not_while_partitions_are_given_out() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(1);
    let (second, _) = rig.member("c1");
    assert_eq!(rig.commit(by(at(&ids[0], generation), 5)), Ok(vec![Ok(())]));
    let again = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    assert_eq!((rig.joined(again).generation, rig.joined(second).generation), (2, 2));
    assert_eq!(rig.commit(by(at(&ids[0], 2), 5)), Err(Refused::RebalanceInProgress));
}

#[test]
fn nothing_is_told_before_the_log_has_it() {
    let mut rig = Rig::new();
    rig.appends_end = None;
    let ticket = rig.ask(Request::Commit(by(anonymous("g"), 9)));
    assert!(rig.waits(ticket));
    assert_eq!(rig.offset("g", false), Ok(None));
    let append = rig.held.pop().unwrap();
    rig.input(Input::Appended(append, Appended::Late));
    assert_eq!(rig.answer(ticket), Answer::Commit(Err(Refused::CoordinatorNotAvailable)));
    assert_eq!(rig.offset("g", false), Ok(None));
    rig.input(Input::Appended(append, Appended::Committed));
    assert_eq!(rig.offset("g", false), Ok(Some(9)), "it was in the log after all");
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(rig.commit(by(anonymous("other"), 9)), Err(Refused::CoordinatorNotAvailable));
    assert_eq!(rig.offset("other", false), Ok(None));
    assert_eq!(rig.groups(), ["g"], "a group of which nothing was written is none");
}

#[test]
fn metadata_that_is_too_long_is_refused_alone() {
    let mut rig = Rig::new();
    let with =
        |length: usize, partition| CommittedOffset { metadata: "m".repeat(length), partition, ..books(1).remove(0) };
    let offsets = vec![with(4_097, 1), with(4_096, 0)];
    let done = rig.commit(Commit { member: anonymous("g"), transaction: None, offsets });
    assert_eq!(done, Ok(vec![Err(Refused::OffsetMetadataTooLarge), Ok(())]));
    assert_eq!(rig.fetch(None, false).iter().map(|found| found.partition).collect::<Vec<_>>(), [0]);
}

#[test]
fn a_transactions_offsets_count_once_it_is_decided() {
    for commits in [false, true] {
        let mut rig = Rig::new();
        rig.commit(by(anonymous("g"), 1)).unwrap();
        let transaction = Some(Producer { id: 7, epoch: 0 });
        rig.commit(Commit { transaction, ..by(anonymous("g"), 5) }).unwrap();
        assert_eq!(rig.log.last().unwrap().0, transaction);
        assert_eq!(rig.offset("g", false), Ok(Some(1)));
        assert_eq!(rig.offset("g", true), Err(Refused::UnstableOffsetCommit));
        rig.input(Input::Marker { producer_id: 8, commits: true });
        assert_eq!(rig.offset("g", true), Err(Refused::UnstableOffsetCommit), "it is another's");
        rig.input(Input::Marker { producer_id: 7, commits });
        assert_eq!(rig.offset("g", true), Ok(Some(if commits { 5 } else { 1 })));
    }
}

/// A reader that went by the offset before would read again what the transaction has read already.
#[test]
fn a_transactions_offsets_are_undecided_from_when_they_are_written_on() {
    for how in [Appended::Committed, Appended::Fenced] {
        let mut rig = Rig::new();
        rig.commit(by(anonymous("g"), 1)).unwrap();
        rig.appends_end = None;
        let transaction = Some(Producer { id: 7, epoch: 0 });
        let ticket = rig.ask(Request::Commit(Commit { transaction, ..by(anonymous("g"), 5) }));
        assert!(rig.waits(ticket));
        assert_eq!(rig.offset("g", false), Ok(Some(1)));
        assert_eq!(rig.offset("g", true), Err(Refused::UnstableOffsetCommit));
        let append = rig.held.pop().unwrap();
        rig.input(Input::Appended(append, how));
        let is_written = how == Appended::Committed;
        assert_eq!(rig.offset("g", true), if is_written { Err(Refused::UnstableOffsetCommit) } else { Ok(Some(1)) });
        rig.input(Input::Marker { producer_id: 7, commits: true });
        assert_eq!(rig.offset("g", true), Ok(Some(if is_written { 5 } else { 1 })));
    }
}

/// Who asks for all of a group's offsets is told of those it has; who names one is told that it is undecided.
#[test]
fn among_all_offsets_are_none_that_only_an_undecided_transaction_has_written() {
    let mut rig = Rig::new();
    rig.commit(by(anonymous("g"), 1)).unwrap();
    let transaction = Some(Producer { id: 7, epoch: 0 });
    let both = [books(5), vec![films(5)]].concat();
    rig.commit(Commit { transaction, offsets: both, ..by(anonymous("g"), 0) }).unwrap();
    for stable in [false, true] {
        assert_eq!(rig.fetch(None, stable).iter().map(|found| &*found.topic).collect::<Vec<_>>(), ["books"]);
    }
    let named = rig.fetch(Some(vec![("films".to_owned(), 0)]), true);
    assert_eq!(named[0].offset, Err(Refused::UnstableOffsetCommit));
}

#[test]
fn a_group_of_which_an_offset_was_written_is_one_until_offsets_are_looked_over() {
    let transaction = Some(Producer { id: 7, epoch: 0 });
    let check_ms = GroupConfig::default().offsets_retention_check_interval_ms;
    let deleted = by(anonymous("g"), 3);
    let aborted = Commit { transaction, ..by(anonymous("g"), 3) };
    let long = CommittedOffset { metadata: "m".repeat(4_097), ..books(1).remove(0) };
    for commit in [deleted, aborted] {
        let mut rig = Rig::new();
        let refused = Commit { offsets: vec![long.clone()], ..commit.clone() };
        assert_eq!(rig.commit(refused), Ok(vec![Err(Refused::OffsetMetadataTooLarge)]));
        assert_eq!(rig.groups(), [""; 0], "nothing was written");
        rig.commit(commit.clone()).unwrap();
        let ticket = rig.ask(Request::DeleteOffsets { group: "g".into(), partitions: vec![("books".into(), 0)] });
        assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Ok(vec![Ok(())])), "{commit:?}");
        rig.input(Input::Marker { producer_id: 7, commits: false });
        assert_eq!((rig.fetch(None, false).len(), rig.groups()), (0, vec!["g".to_owned()]), "{commit:?}");
        rig.passes_ms(check_ms);
        assert_eq!(rig.groups(), [""; 0], "{commit:?}");
        rig.commit(commit.clone()).unwrap();
        let ticket = rig.ask(Request::DeleteGroup("g".into()));
        assert_eq!(rig.answer(ticket), Answer::DeletedGroup(Ok(())), "{commit:?}");
        assert_eq!(rig.groups(), [""; 0], "{commit:?}");
    }
}

#[test]
fn a_group_without_a_name_has_offsets_and_no_members() {
    let mut rig = Rig::new();
    rig.commit(by(anonymous(""), 4)).unwrap();
    assert_eq!(rig.offset("", false), Ok(Some(4)));
    let member = MemberAt { group: String::new(), ..at("c", -1) };
    let sync = Sync { member: member.clone(), protocol_type: None, protocol: None, assignments: Vec::new() };
    let requests = [
        Request::Join(Join { group: String::new(), ..join("c") }),
        Request::Sync(sync),
        Request::Heartbeat(member),
        Request::Leave { group: String::new(), members: Vec::new() },
        Request::DeleteOffsets { group: String::new(), partitions: vec![("books".into(), 0)] },
    ];
    for request in requests {
        let ticket = rig.ask(request.clone());
        assert_eq!(rig.answer(ticket), request.refused(Refused::InvalidGroupId), "{request:?}");
    }
    assert_eq!(rig.offset("", false), Ok(Some(4)));
}

#[test]
fn what_was_written_later_stands_even_if_decided_before() {
    let mut rig = Rig::new();
    let transaction = Some(Producer { id: 7, epoch: 0 });
    rig.commit(Commit { transaction, ..by(anonymous("g"), 5) }).unwrap();
    rig.commit(by(anonymous("g"), 9)).unwrap();
    rig.input(Input::Marker { producer_id: 7, commits: true });
    assert_eq!(rig.offset("g", true), Ok(Some(9)));
}

#[test]
fn offsets_go_a_week_after_their_last_use() {
    let day = 24 * 60 * 60 * 1000;
    let mut rig = Rig::new();
    let long = Join { session_timeout_ms: 1_800_000, ..join("c0") };
    let own = CommittedOffset { retention_ms: Some(1_000), ..books(2).remove(0) };
    rig.commit(by(anonymous("simple"), 1)).unwrap();
    rig.commit(Commit { offsets: vec![own], ..by(anonymous("short"), 0) }).unwrap();
    let ticket = rig.ask(Request::Join(Join { requires_known_member_id: false, ..long }));
    let id = rig.joined(ticket).member_id;
    let synced = rig.sync(&id, 1, &[]);
    assert!(rig.assigned(synced).is_ok());
    rig.commit(Commit { offsets: [books(3), vec![films(3)]].concat(), ..by(at(&id, 1), 0) }).unwrap();
    let film = Some(vec![("films".to_owned(), 0)]);
    let lives_on = |rig: &mut Rig, for_ms: u64| {
        for _ in 0..for_ms / 1_200_000 {
            rig.passes_ms(1_200_000);
            rig.heartbeat(&id, 1).unwrap();
        }
    };
    lives_on(&mut rig, day);
    assert_eq!((rig.offset("short", false), rig.offset("simple", false)), (Ok(None), Ok(Some(1))));
    assert!(rig.fetch(film.clone(), false)[0].offset.as_ref().unwrap().is_some());
    lives_on(&mut rig, 6 * day + 1_200_000);
    assert_eq!(rig.offset("simple", false), Ok(None));
    assert_eq!(rig.offset("g", false), Ok(Some(3)), "it reads that topic");
    assert_eq!(rig.fetch(film, false)[0].offset, Ok(None), "but that one no more");
    assert_eq!(rig.leave(&[(&id, None)]), [Ok(())]);
    rig.passes_ms(7 * day - 1_200_000);
    assert_eq!(rig.offset("g", false), Ok(Some(3)), "its time counts from when its last member left");
    rig.passes_ms(2_400_000);
    assert_eq!(rig.offset("g", false), Ok(None));
    rig.passes_ms(600_000);
    assert_eq!(rig.groups(), [""; 0]);
}

#[test]
fn offsets_of_topics_that_are_read_cannot_be_deleted() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(1);
    let both = [books(3), vec![films(3)]].concat();
    rig.commit(Commit { offsets: both, ..by(at(&ids[0], generation), 0) }).unwrap();
    let partitions = vec![("books".to_owned(), 0), ("films".to_owned(), 0), ("films".to_owned(), 9)];
    let ticket = rig.ask(Request::DeleteOffsets { group: "g".into(), partitions });
    let results = vec![Err(Refused::GroupSubscribedToTopic), Ok(()), Ok(())];
    assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Ok(results)));
    assert_eq!(rig.fetch(None, false).iter().map(|found| &*found.topic).collect::<Vec<_>>(), ["books"]);
    let ticket = rig.ask(Request::DeleteOffsets { group: "none".into(), partitions: Vec::new() });
    assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Err(Refused::GroupIdNotFound)));
    let ticket = rig.ask(Request::DeleteOffsets { group: String::new(), partitions: Vec::new() });
    assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Err(Refused::InvalidGroupId)));
}

#[test]
fn what_a_generation_reads_is_known_before_its_partitions_are_given_out() {
    let mut rig = Rig::new();
    rig.commit(Commit { offsets: [books(3), vec![films(3)]].concat(), ..by(anonymous("g"), 0) }).unwrap();
    let ticket = rig.ask(Request::Join(Join { requires_known_member_id: false, ..join("c") }));
    rig.joined(ticket);
    assert_eq!(rig.describe().listing.state, GroupState::CompletingRebalance);
    let partitions = vec![("books".to_owned(), 0), ("films".to_owned(), 0)];
    let ticket = rig.ask(Request::DeleteOffsets { group: "g".into(), partitions });
    let results = vec![Err(Refused::GroupSubscribedToTopic), Ok(())];
    assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Ok(results)));
}

#[test]
fn only_groups_without_members_are_deleted() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(1);
    rig.commit(by(at(&ids[0], generation), 3)).unwrap();
    let deleted = |rig: &mut Rig, group: &str| {
        let ticket = rig.ask(Request::DeleteGroup(group.into()));
        match rig.answer(ticket) {
            Answer::DeletedGroup(done) => done,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(deleted(&mut rig, "g"), Err(Refused::NonEmptyGroup));
    assert_eq!(deleted(&mut rig, "none"), Err(Refused::GroupIdNotFound));
    assert_eq!(deleted(&mut rig, ""), Err(Refused::GroupIdNotFound));
    assert_eq!(rig.leave(&[(&ids[0], None)]), [Ok(())]);
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(deleted(&mut rig, "g"), Err(Refused::CoordinatorNotAvailable));
    assert_eq!(rig.offset("g", false), Ok(Some(3)), "it is still there");
    rig.appends_end = None;
    let ticket = rig.ask(Request::DeleteGroup("g".into()));
    let late = rig.ask(Request::Commit(by(anonymous("g"), 4)));
    assert_eq!(rig.answer(late), Answer::Commit(Err(Refused::CoordinatorNotAvailable)), "it would be lost");
    rig.held_end(Appended::Committed);
    assert_eq!(rig.answer(ticket), Answer::DeletedGroup(Ok(())));
    assert_eq!(rig.offset("g", false), Ok(None));
}

/// The tombstones of many offsets do not fit into one batch.
#[test]
fn a_group_with_many_offsets_is_deleted_in_pieces_and_stays_if_one_of_them_is_not_written() {
    let many = || (0..1_000).map(|partition| CommittedOffset { partition, ..books(7).remove(0) }).collect();
    for lost in [false, true] {
        let mut rig = Rig::new();
        rig.commit(Commit { offsets: many(), ..by(anonymous("g"), 0) }).unwrap();
        let before = rig.log.len();
        rig.appends_end = None;
        let ticket = rig.ask(Request::DeleteGroup("g".into()));
        let pieces = rig.log.split_off(before);
        assert_eq!(pieces.iter().map(|(_, records)| records.len()).sum::<usize>(), 1_001);
        let bytes = |records: &[Record]| records.iter().map(|record| record.key.len()).sum::<usize>();
        assert!(pieces.len() > 2 && pieces.iter().all(|(_, records)| bytes(records) < 17_000));
        let first = rig.held.remove(0);
        rig.input(Input::Appended(first, if lost { Appended::NotNow } else { Appended::Committed }));
        rig.held_end(Appended::Committed);
        let told = if lost { Err(Refused::CoordinatorNotAvailable) } else { Ok(()) };
        assert_eq!(rig.answer(ticket), Answer::DeletedGroup(told));
        let left = rig.fetch(None, false).len();
        assert_eq!(left, if lost { pieces[0].1.len() } else { 0 }, "what the log has");
        rig.appends_end = Some(Appended::Committed);
        let ticket = rig.ask(Request::DeleteGroup("g".into()));
        let told = if lost { Ok(()) } else { Err(Refused::GroupIdNotFound) };
        assert_eq!(rig.answer(ticket), Answer::DeletedGroup(told));
        assert!(rig.groups().is_empty());
    }
}

#[test]
fn a_deletion_is_of_the_group_that_was_there_and_of_none_that_comes_meanwhile() {
    let mut rig = Rig::new();
    let ticket = rig.ask(Request::Join(join("c")));
    assert_eq!(rig.join_refused(ticket), Refused::MemberIdRequired);
    rig.appends_end = None;
    let deleting = rig.ask(Request::DeleteGroup("g".into()));
    rig.passes_ms(10_000);
    let early = rig.ask(Request::Commit(by(anonymous("g"), 4)));
    assert_eq!(rig.answer(early), Answer::Commit(Err(Refused::CoordinatorNotAvailable)), "it would be lost");
    rig.held_end(Appended::Committed);
    assert_eq!(rig.answer(deleting), Answer::DeletedGroup(Ok(())));
    assert!(rig.groups().is_empty());
    rig.appends_end = Some(Appended::Committed);
    rig.commit(by(anonymous("g"), 5)).unwrap();
    assert_eq!(rig.offset("g", false), Ok(Some(5)));
}

#[test]
fn offsets_of_a_group_that_is_none_of_consumers_are_not_deleted_while_it_has_members() {
    let mut rig = Rig::new();
    let connect = Join { protocol_type: "connect".into(), requires_known_member_id: false, ..join("c") };
    let ticket = rig.ask(Request::Join(connect));
    rig.joined(ticket);
    let ticket = rig.ask(Request::DeleteOffsets { group: "g".into(), partitions: vec![("books".into(), 0)] });
    assert_eq!(rig.answer(ticket), Answer::DeletedOffsets(Err(Refused::NonEmptyGroup)));
}

#[test]
fn a_group_that_nobody_came_to_and_that_is_left_again_is_none() {
    let mut rig = Rig::new();
    let ticket = rig.ask(Request::Join(join("c")));
    let Answer::Join(Err((Refused::MemberIdRequired, id))) = rig.answer(ticket) else { panic!("79 is due") };
    assert_eq!(rig.leave(&[(&id, None)]), [Ok(())]);
    assert!(rig.groups().is_empty());
}

#[test]
fn who_was_told_an_id_and_has_not_joined_does_not_keep_a_group_from_being_deleted() {
    let mut rig = Rig::new();
    let ticket = rig.ask(Request::Join(join("c")));
    let Answer::Join(Err((Refused::MemberIdRequired, id))) = rig.answer(ticket) else { panic!("79 is due") };
    let ticket = rig.ask(Request::DeleteGroup("g".into()));
    assert_eq!(rig.answer(ticket), Answer::DeletedGroup(Ok(())));
    let ticket = rig.ask(Request::Join(Join { member_id: id, ..join("c") }));
    assert_eq!(rig.join_refused(ticket), Refused::UnknownMemberId);
    // The deadline of whoever was waited for is that of nobody.
    rig.passes_ms(20_000);
    assert!(rig.groups().is_empty());
}

#[test]
fn a_deleted_topic_takes_its_offsets_along() {
    let mut rig = Rig::new();
    rig.commit(by(anonymous("g"), 1)).unwrap();
    rig.input(Input::TopicDeleted("films".into()));
    assert_eq!(rig.offset("g", false), Ok(Some(1)));
    rig.input(Input::TopicDeleted("books".into()));
    assert_eq!(rig.offset("g", false), Ok(None));
}

/// A request may name a topic of 32 KiB once and a million partitions of it: to copy that for each took 32 GiB.
#[test]
fn the_names_of_topics_are_shared_between_what_is_asked_and_what_is_told() {
    let mut rig = Rig::new();
    rig.commit(Commit { member: anonymous("g"), transaction: None, offsets: books(3) }).unwrap();
    let names: [std::sync::Arc<str>; 2] = ["books".into(), "x".repeat(30_000).into()];
    let partitions: Vec<_> =
        (0..1_000).flat_map(|partition| names.iter().map(move |name| (name.clone(), partition))).collect();
    let fetch = FetchOffsets { group: "g".into(), partitions: Some(partitions.clone()), require_stable: true };
    let ticket = rig.ask(Request::FetchOffsets(fetch));
    let Answer::Offsets(Ok(told)) = rig.answer(ticket) else { panic!("offsets are due") };
    assert_eq!(told.len(), partitions.len());
    for (asked, told) in partitions.iter().zip(&told) {
        assert!(std::sync::Arc::ptr_eq(&asked.0, &told.topic));
        let committed = told.offset.as_ref().unwrap().as_ref().map(|value| value.offset);
        assert_eq!((told.partition, committed), (asked.1, (asked.1 == 0 && *asked.0 == *"books").then_some(3)));
    }
    let all = rig.fetch(None, true);
    assert_eq!(all.iter().map(|one| (&*one.topic, one.partition)).collect::<Vec<_>>(), [("books", 0)]);
}
