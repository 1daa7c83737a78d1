//! Members that come and go.

use super::*;

#[test]
fn a_member_is_given_an_id_and_leads_alone() {
    let mut rig = Rig::new();
    let (ticket, id) = rig.member("app");
    assert_eq!(id, "app-fresh");
    let joined = rig.joined(ticket);
    assert_eq!((joined.generation, &*joined.protocol, &*joined.leader, &*joined.member_id), (1, "range", &*id, &*id));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.members[0].metadata, subscription("books"));
    let synced = rig.sync(&id, 1, &[(&id, "all of it")]);
    assert_eq!(rig.assigned(synced).unwrap(), "all of it");
    assert_eq!(rig.heartbeat(&id, 1), Ok(()));
    let described = rig.describe();
    assert_eq!((described.listing.state.name(), &*described.protocol), ("Stable", "range"));
    assert_eq!(described.members[0].assignment, "all of it");
}

#[test]
fn old_clients_are_let_in_without_asking_twice() {
    let mut rig = Rig::new();
    let ticket = rig.ask(Request::Join(Join { requires_known_member_id: false, ..join("old") }));
    assert_eq!(rig.joined(ticket).member_id, "old-fresh");
}

#[test]
fn what_cannot_join_is_told_why() {
    let mut rig = Rig::new();
    let table = [
        (Join { group: String::new(), ..join("c") }, Refused::InvalidGroupId),
        (Join { session_timeout_ms: 5_999, ..join("c") }, Refused::InvalidSessionTimeout),
        (Join { session_timeout_ms: 1_800_001, ..join("c") }, Refused::InvalidSessionTimeout),
        (Join { member_id: "unknown".into(), ..join("c") }, Refused::UnknownMemberId),
        (Join { protocol_type: String::new(), ..join("c") }, Refused::InconsistentGroupProtocol),
        (Join { protocols: Vec::new(), ..join("c") }, Refused::InconsistentGroupProtocol),
    ];
    for (join, why) in table {
        let ticket = rig.ask(Request::Join(join.clone()));
        assert_eq!(rig.join_refused(ticket), why, "{join:?}");
    }
    assert_eq!(rig.groups(), [""; 0], "none of them has left a group behind");
    rig.stable(1);
    let table = [
        (Join { member_id: "unknown".into(), ..join("c") }, Refused::UnknownMemberId),
        (Join { protocol_type: "connect".into(), ..join("c") }, Refused::InconsistentGroupProtocol),
        (Join { protocols: vec![("own".into(), Bytes::new())], ..join("c") }, Refused::InconsistentGroupProtocol),
    ];
    for (join, why) in table {
        let ticket = rig.ask(Request::Join(join.clone()));
        assert_eq!(rig.join_refused(ticket), why, "{join:?}");
    }
    assert_eq!(rig.describe().listing.state, GroupState::Stable);
}

/// As in Kafka: its group goes on with what it has agreed on, until it is left.
#[test]
fn a_member_that_is_alone_speaks_what_it_has_spoken() {
    let mut rig = Rig::new();
    let (ids, _) = rig.stable(1);
    let own = |protocols: &[&str]| Join {
        member_id: ids[0].clone(),
        protocols: protocols.iter().map(|&name| (name.to_owned(), Bytes::new())).collect(),
        ..join("c0")
    };
    let before = join("c0").protocols[0].0.clone();
    let ticket = rig.ask(Request::Join(own(&["other"])));
    assert_eq!(rig.join_refused(ticket), Refused::InconsistentGroupProtocol);
    assert_eq!(rig.describe().listing.state, GroupState::Stable);
    let ticket = rig.ask(Request::Join(own(&["other", &before])));
    assert_eq!(rig.joined(ticket).protocol, "other");
}

#[test]
fn a_second_member_makes_the_first_join_again() {
    let mut rig = Rig::new();
    let (ids, _) = rig.stable(1);
    let (second, second_id) = rig.member("c1");
    assert!(rig.waits(second));
    assert_eq!(rig.heartbeat(&ids[0], 1), Err(Refused::RebalanceInProgress));
    let again = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    let (first, second) = (rig.joined(again), rig.joined(second));
    assert_eq!((first.generation, second.generation), (2, 2));
    assert_eq!((&first.leader, &second.leader), (&ids[0], &ids[0]));
    assert_eq!((first.members.len(), second.members.len()), (2, 0));
    // Whoever asks before the leader has given out waits; a member it forgets gets nothing.
    let waiting = rig.sync(&second_id, 2, &[]);
    assert!(rig.waits(waiting));
    assert_eq!(rig.heartbeat(&second_id, 2), Ok(()));
    let synced = rig.sync(&ids[0], 2, &[(&ids[0], "everything"), ("who is that", "nothing")]);
    assert_eq!(rig.assigned(synced).unwrap(), "everything");
    assert_eq!(rig.assigned(waiting).unwrap(), "");
}

#[test]
fn what_members_have_been_given_is_told_while_they_join_again() {
    let mut rig = Rig::new();
    let (ids, _) = rig.stable(1);
    let (second, _) = rig.member("c1");
    assert!(rig.waits(second));
    let described = rig.describe();
    assert_eq!(described.listing.state, GroupState::PreparingRebalance);
    let of = |id: &str| described.members.iter().find(|member| member.member_id == id).unwrap();
    assert_eq!((&of(&ids[0]).assignment[..], of(&ids[0]).metadata.len()), (&b"part"[..], 0));
}

#[test]
fn members_of_one_client_id_are_distinct() {
    let mut rig = Rig::with(GroupConfig::default());
    let one = rig.ask(Request::Join(Join { fresh_id: "1".into(), ..join("same") }));
    let two = rig.ask(Request::Join(Join { fresh_id: "2".into(), ..join("same") }));
    let Answer::Join(Err((_, one))) = rig.answer(one) else { panic!() };
    let Answer::Join(Err((_, two))) = rig.answer(two) else { panic!() };
    assert_ne!(one, two);
    let first = rig.ask(Request::Join(Join { member_id: one, ..join("same") }));
    let second = rig.ask(Request::Join(Join { member_id: two, ..join("same") }));
    rig.passes_ms(6_000);
    assert_eq!((rig.joined(first).members.len(), rig.joined(second).generation), (2, 1));
}

#[test]
fn who_was_told_an_id_and_does_not_come_is_waited_for_as_long_as_a_session() {
    let mut rig = Rig::new();
    rig.stable(1);
    let lost = rig.ask(Request::Join(Join { fresh_id: "lost".into(), ..join("c") }));
    assert_eq!(rig.join_refused(lost), Refused::MemberIdRequired);
    let (ticket, _) = rig.member("c");
    rig.passes_ms(9_999);
    assert!(rig.waits(ticket));
    // With the one that was told its id the first member goes, which was silent as well.
    rig.passes_ms(1);
    assert_eq!(rig.joined(ticket).generation, 2);
}

#[test]
fn the_first_members_wait_for_others() {
    let mut rig = Rig::with(GroupConfig::default());
    let (first, _) = rig.member("c0");
    rig.passes_ms(2_999);
    assert!(rig.waits(first));
    let second = rig.ask(Request::Join(Join { requires_known_member_id: false, ..join("c1") }));
    rig.passes_ms(1);
    assert!(rig.waits(first), "the group has grown: it waits once more");
    rig.passes_ms(2_999);
    assert!(rig.waits(second));
    rig.passes_ms(1);
    assert_eq!((rig.joined(first).members.len(), rig.joined(second).generation), (2, 1));
}

#[test]
fn growth_is_waited_for_no_longer_than_a_rebalance_may_take() {
    let mut rig = Rig::with(GroupConfig::default());
    let quick = |number: u64| Join {
        rebalance_timeout_ms: 7_000,
        requires_known_member_id: false,
        fresh_id: number.to_string(),
        ..join("c")
    };
    let first = rig.ask(Request::Join(quick(0)));
    for number in 1..=6 {
        rig.passes_ms(1_000);
        rig.ask(Request::Join(quick(number)));
    }
    assert!(rig.waits(first));
    rig.passes_ms(1_000);
    assert_eq!(rig.joined(first).members.len(), 7);
}

#[test]
fn a_member_that_is_silent_for_a_session_is_out() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    rig.passes_ms(5_000);
    assert_eq!(rig.heartbeat(&ids[0], generation), Ok(()));
    rig.passes_ms(4_999);
    assert_eq!(rig.heartbeat(&ids[0], generation), Ok(()));
    rig.passes_ms(1);
    assert_eq!(rig.describe().members.len(), 1);
    assert_eq!(rig.heartbeat(&ids[1], generation), Err(Refused::UnknownMemberId));
    assert_eq!(rig.heartbeat(&ids[0], generation), Err(Refused::RebalanceInProgress));
}

#[test]
fn members_that_do_not_come_back_are_left_behind() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    let (third, third_id) = rig.member("c2");
    let again = rig.ask(Request::Join(Join { member_id: ids[1].clone(), ..join("c1") }));
    // The leader lives, but does not join within the rebalance time-out.
    for _ in 0..11 {
        rig.passes_ms(5_000);
        assert_eq!(rig.heartbeat(&ids[0], generation), Err(Refused::RebalanceInProgress));
        assert!(rig.waits(third));
    }
    rig.passes_ms(5_000);
    let (second, third) = (rig.joined(again), rig.joined(third));
    assert_eq!((second.generation, &second.leader), (3, &ids[1]), "the one that joined first leads now");
    assert_eq!((second.members.len(), third.members.len()), (2, 0));
    assert_eq!(rig.heartbeat(&ids[0], generation), Err(Refused::UnknownMemberId));
    assert_eq!(rig.heartbeat(&third_id, 3), Ok(()));
}

#[test]
fn members_that_do_not_ask_for_their_assignment_are_left_behind() {
    let mut rig = Rig::new();
    let (first, id) = rig.member("c0");
    assert_eq!(rig.joined(first).generation, 1);
    for _ in 0..11 {
        rig.passes_ms(5_000);
        assert_eq!(rig.heartbeat(&id, 1), Ok(()));
    }
    rig.passes_ms(5_000);
    let gone = rig.describe();
    assert_eq!((gone.listing.state, gone.members.len()), (GroupState::Empty, 0));
}

#[test]
fn a_member_that_leaves_is_not_waited_for() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    assert_eq!(rig.leave(&[(&ids[1], None), ("who", None)]), [Ok(()), Err(Refused::UnknownMemberId)]);
    assert_eq!(rig.heartbeat(&ids[0], generation), Err(Refused::RebalanceInProgress));
    let again = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    assert_eq!(rig.joined(again).members.len(), 1);
    assert_eq!(rig.leave(&[(&ids[0], None)]), [Ok(())]);
    assert_eq!(rig.describe().listing.state, GroupState::Empty);
}

#[test]
fn the_generation_of_a_member_must_be_the_groups() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(1);
    for other in [generation - 1, generation + 1, -1] {
        assert_eq!(rig.heartbeat(&ids[0], other), Err(Refused::IllegalGeneration));
        let ticket = rig.sync(&ids[0], other, &[]);
        assert_eq!(rig.assigned(ticket), Err(Refused::IllegalGeneration));
    }
    let ticket = rig.sync("who", generation, &[]);
    assert_eq!(rig.assigned(ticket), Err(Refused::UnknownMemberId));
    let table = [
        (Some("consumer"), Some("range"), true),
        (Some("connect"), None, false),
        (None, Some("sticky"), false),
        (None, None, true),
    ];
    for (kind, protocol, fits) in table {
        let sync = Sync {
            member: at(&ids[0], generation),
            protocol_type: kind.map(Into::into),
            protocol: protocol.map(Into::into),
            assignments: Vec::new(),
        };
        let ticket = rig.ask(Request::Sync(sync));
        let expected = if fits { Ok(Bytes::from_static(b"part")) } else { Err(Refused::InconsistentGroupProtocol) };
        assert_eq!(rig.assigned(ticket), expected, "{kind:?} {protocol:?}");
    }
}

#[test]
fn joining_again_with_nothing_new_disturbs_nobody_unless_it_is_the_leader() {
    let mut rig = Rig::new();
    let (ids, generation) = rig.stable(2);
    let same = rig.ask(Request::Join(Join { member_id: ids[1].clone(), ..join("c1") }));
    assert_eq!(rig.joined(same).generation, generation);
    let films = vec![("range".into(), subscription("films"))];
    let changed = rig.ask(Request::Join(Join { member_id: ids[1].clone(), protocols: films, ..join("c1") }));
    assert!(rig.waits(changed));
    let leader = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    assert_eq!((rig.joined(leader).generation, rig.joined(changed).generation), (generation + 1, generation + 1));
    // While its assignment is awaited the leader is told again what it was told.
    let leader = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    let told = rig.joined(leader);
    assert_eq!((told.generation, told.members.len()), (generation + 1, 2));
    let synced = rig.sync(&ids[0], generation + 1, &[]);
    assert_eq!(rig.assigned(synced).unwrap(), "");
    let leader = rig.ask(Request::Join(Join { member_id: ids[0].clone(), ..join("c0") }));
    assert!(rig.waits(leader), "it wants partitions to be given out anew");
}

#[test]
fn the_protocol_most_like_best_is_taken() {
    let mut rig = Rig::new();
    let speaks = |names: &[&str], client: &str| Join {
        protocols: names.iter().map(|&name| (name.to_owned(), Bytes::new())).collect(),
        requires_known_member_id: false,
        ..join(client)
    };
    let first = rig.ask(Request::Join(speaks(&["a", "b", "c"], "c0")));
    let leader = rig.joined(first).member_id;
    let second = rig.ask(Request::Join(speaks(&["d", "c", "b"], "c1")));
    let third = rig.ask(Request::Join(speaks(&["c", "b"], "c2")));
    let again = rig.ask(Request::Join(Join { member_id: leader, ..speaks(&["a", "b", "c"], "c0") }));
    assert_eq!(
        rig.joined(again).protocol,
        "c",
        "b has the vote of the first, c those of the others; a and d not all speak"
    );
    assert_eq!((rig.joined(second).protocol, rig.joined(third).protocol), ("c".into(), "c".into()));
}

#[test]
fn a_full_group_takes_nobody() {
    let mut rig = Rig::with(GroupConfig { members_max: 1, initial_rebalance_delay_ms: 0, ..GroupConfig::default() });
    let (ids, generation) = rig.stable(1);
    let ticket = rig.ask(Request::Join(join("c1")));
    assert_eq!(rig.join_refused(ticket), Refused::GroupMaxSizeReached);
    assert_eq!(rig.heartbeat(&ids[0], generation), Ok(()));
}

#[test]
fn an_assignment_that_cannot_be_written_is_given_to_nobody() {
    let (later, never) = (Refused::CoordinatorNotAvailable, Refused::UnknownServerError);
    for (how, why) in [(Appended::NotNow, later), (Appended::TooLarge, never), (Appended::Refused, never)] {
        let mut rig = Rig::new();
        let (joined, id) = rig.member("c0");
        assert_eq!(rig.joined(joined).generation, 1);
        rig.appends_end = Some(how);
        let synced = rig.sync(&id, 1, &[(&id, "all")]);
        assert_eq!(rig.assigned(synced), Err(why));
        assert_eq!(rig.describe().listing.state, GroupState::PreparingRebalance);
        rig.appends_end = Some(Appended::Committed);
        let again = rig.ask(Request::Join(Join { member_id: id.clone(), ..join("c0") }));
        assert_eq!(rig.joined(again).generation, 2);
        let synced = rig.sync(&id, 2, &[(&id, "all")]);
        assert_eq!(rig.assigned(synced).unwrap(), "all");
    }
}

#[test]
fn an_assignment_that_is_late_is_waited_for() {
    let mut rig = Rig::new();
    let (joined, id) = rig.member("c0");
    assert_eq!(rig.joined(joined).generation, 1);
    rig.appends_end = None;
    let synced = rig.sync(&id, 1, &[(&id, "all")]);
    let append = rig.held.pop().unwrap();
    rig.input(Input::Appended(append, Appended::Late));
    assert!(rig.waits(synced));
    rig.input(Input::Appended(append, Appended::Committed));
    assert_eq!(rig.assigned(synced).unwrap(), "all");
}

#[test]
fn a_request_that_is_sent_again_takes_the_place_of_the_first() {
    let mut rig = Rig::new();
    rig.stable(1);
    let (first, id) = rig.member("c1");
    let second = rig.ask(Request::Join(Join { member_id: id, ..join("c1") }));
    assert_eq!(rig.join_refused(first), Refused::RebalanceInProgress);
    assert!(rig.waits(second));
}

#[test]
fn a_session_goes_on_when_a_wait_for_an_assignment_ends() {
    let mut rig = Rig::new();
    let (ids, _) = rig.stable(2);
    let again = Join { member_id: ids[0].clone(), ..join("c0") };
    let leads = rig.ask(Request::Join(again.clone()));
    let follows = rig.ask(Request::Join(Join { member_id: ids[1].clone(), ..join("c1") }));
    assert_eq!((rig.joined(leads).generation, rig.joined(follows).generation), (3, 3));
    let waits = rig.sync(&ids[1], 3, &[]);
    rig.passes_ms(9_000);
    assert_eq!(rig.heartbeat(&ids[0], 3), Ok(()));
    // The follower's session ends while it waits, which is not held against it.
    rig.passes_ms(9_000);
    let films = vec![("range".into(), subscription("films"))];
    rig.ask(Request::Join(Join { protocols: films, ..again }));
    assert_eq!(rig.assigned(waits), Err(Refused::RebalanceInProgress));
    rig.passes_ms(9_999);
    assert_eq!(rig.describe().members.len(), 2);
    rig.passes_ms(1);
    assert_eq!(rig.describe().members.len(), 1, "but it has one again");
}

/// A member that is waited for is all that the group has; when its time is up the group goes only with the record that says so.
#[test]
fn whoever_joins_while_a_group_is_deleted_does_not_go_with_it() {
    let mut rig = Rig::new();
    let ticket = rig.ask(Request::Join(join("c0")));
    assert!(matches!(rig.answer(ticket), Answer::Join(Err((Refused::MemberIdRequired, _)))));
    rig.appends_end = None;
    let deleting = rig.ask(Request::DeleteGroup("g".into()));
    assert!(rig.waits(deleting));
    rig.passes_ms(300_000);
    let joining = Join { requires_known_member_id: false, ..join("c0") };
    let early = rig.ask(Request::Join(joining.clone()));
    assert!(matches!(rig.answer(early), Answer::Join(Err((Refused::CoordinatorNotAvailable, _)))));
    for append in std::mem::take(&mut rig.held) {
        rig.input(Input::Appended(append, Appended::Committed));
    }
    assert_eq!(rig.answer(deleting), Answer::DeletedGroup(Ok(())));
    let ticket = rig.ask(Request::Join(joining));
    rig.passes_ms(3_000);
    assert_eq!(rig.joined(ticket).generation, 1);
}

/// As many as a request may list. To compare each with each of every other member took minutes, in which no group of the
/// coordinator was served.
#[test]
fn members_that_could_do_it_in_very_many_ways_find_the_one_that_all_can() {
    let mut rig = Rig::new();
    let (members, ways) = (6, 30_000);
    let all = |number: usize| Join {
        protocols: (0..ways)
            .map(|way| (format!("{number} {way}"), Bytes::new()))
            .chain([("all".to_owned(), Bytes::from(number.to_string())), ("all".to_owned(), Bytes::new())])
            .collect(),
        requires_known_member_id: false,
        fresh_id: number.to_string(),
        ..join("app")
    };
    let mut waiting = vec![rig.ask(Request::Join(all(0)))];
    let first = rig.joined(waiting.remove(0));
    assert_eq!((first.protocol.as_str(), first.members.len()), ("0 0", 1));
    waiting.extend((1..members).map(|number| rig.ask(Request::Join(all(number)))));
    // It joins again, since others have come.
    waiting.push(rig.ask(Request::Join(Join { member_id: first.member_id.clone(), ..all(0) })));
    let told: Vec<_> = waiting.into_iter().map(|ticket| rig.joined(ticket)).collect();
    assert!(told.iter().all(|joined| joined.protocol == "all"));
    let leader = told.iter().find(|joined| joined.member_id == first.member_id).unwrap();
    let metadata: Vec<_> = leader.members.iter().map(|member| member.metadata.clone()).collect();
    assert_eq!(metadata, ["0", "1", "2", "3", "4", "5"].map(Bytes::from), "the first of a name counts");
    let other = Join { protocols: vec![("3 7".to_owned(), Bytes::new())], ..all(9) };
    let refused = rig.ask(Request::Join(other));
    assert_eq!(rig.join_refused(refused), Refused::InconsistentGroupProtocol);
}

/// Each request would be kept for a session, of which a client says how long it is.
#[test]
fn ids_that_nobody_joins_with_take_so_much_memory_and_no_more() {
    let config = GroupConfig {
        initial_rebalance_delay_ms: 0,
        pending_members_max: 100,
        pending_members_bytes_max: 200_000,
        ..GroupConfig::default()
    };
    let asks = |number: u64| Join {
        group: "g".into(),
        fresh_id: format!("{number}"),
        session_timeout_ms: 1_800_000,
        ..join("c")
    };
    let many_groups = |number: u64| Join { group: format!("g{number}"), ..asks(number) };
    let long_names = |number: u64| Join { client_id: "c".repeat(32_000), ..asks(number) };
    let each: [(&dyn Fn(u64) -> Join, usize); 3] = [(&asks, 100), (&many_groups, 100), (&long_names, 1)];
    for (asks, kept_max) in each {
        let mut rig = Rig::with(config.clone());
        let mut ids = Vec::new();
        for number in 0..500 {
            let ticket = rig.ask(Request::Join(asks(number)));
            let Answer::Join(Err((Refused::MemberIdRequired, id))) = rig.answer(ticket) else { panic!("79 is due") };
            ids.push(Join { member_id: id, ..asks(number) });
            let pending: usize = rig.coordinator.pending_members();
            assert!((1..=kept_max).contains(&pending), "{pending} after {number}");
            assert!(rig.groups().len() <= kept_max);
        }
        // The first one has been forgotten, as after its session, and joins anew; the last one joins.
        let ticket = rig.ask(Request::Join(ids.remove(0)));
        assert_eq!(rig.join_refused(ticket), Refused::UnknownMemberId);
        let last = ids.pop().unwrap();
        let ticket = rig.ask(Request::Join(last.clone()));
        assert!(rig.waits(ticket) || matches!(rig.answer(ticket), Answer::Join(Ok(_))));
    }
}

/// Those that have joined since do not count: they are members, whose number has a limit of its own.
#[test]
fn whoever_has_joined_is_not_forgotten_for_those_that_only_ask() {
    let config = GroupConfig { pending_members_max: 3, initial_rebalance_delay_ms: 0, ..GroupConfig::default() };
    let mut rig = Rig::with(config);
    let (ids, generation) = rig.stable(2);
    for number in 0..20 {
        let asks = Join { fresh_id: format!("{number}"), group: format!("other{number}"), ..join("c") };
        let ticket = rig.ask(Request::Join(asks));
        assert_eq!(rig.join_refused(ticket), Refused::MemberIdRequired);
    }
    for id in &ids {
        assert_eq!(rig.heartbeat(id, generation), Ok(()));
    }
    assert_eq!(rig.coordinator.pending_members(), 3);
}
