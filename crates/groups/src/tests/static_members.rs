//! Members that keep their place across restarts (KIP-345).

use super::*;

fn static_join(instance: &str, fresh: &str) -> Join {
    Join { group_instance_id: Some(instance.into()), fresh_id: fresh.into(), ..join("c") }
}

fn static_beat(rig: &mut Rig, instance: &str, member: &str, generation: i32) -> Answer {
    let member = MemberAt { group_instance_id: Some(instance.into()), ..at(member, generation) };
    let ticket = rig.ask(Request::Heartbeat(member));
    rig.answer(ticket)
}

/// A stable group of two static members, `a` and `b`; their ids.
fn two(rig: &mut Rig) -> (String, String) {
    let a = rig.ask(Request::Join(static_join("a", "1")));
    let a = rig.joined(a).member_id;
    assert_eq!(a, "a-1");
    let b = rig.ask(Request::Join(static_join("b", "1")));
    let again = rig.ask(Request::Join(Join { member_id: a.clone(), ..static_join("a", "x") }));
    assert_eq!(rig.joined(again).members.len(), 2);
    let b = rig.joined(b).member_id;
    let synced = rig.sync(&a, 2, &[(&a, "half"), (&b, "rest")]);
    assert_eq!(rig.assigned(synced).unwrap(), "half");
    let synced = rig.sync(&b, 2, &[]);
    assert_eq!(rig.assigned(synced).unwrap(), "rest");
    (a, b)
}

#[test]
fn a_follower_that_comes_back_gets_what_it_had() {
    let mut rig = Rig::new();
    let (a, b) = two(&mut rig);
    let back = rig.ask(Request::Join(static_join("b", "2")));
    let joined = rig.joined(back);
    assert_eq!((joined.generation, &*joined.member_id, &joined.leader), (2, "b-2", &a));
    let synced = rig.sync("b-2", 2, &[]);
    assert_eq!(rig.assigned(synced).unwrap(), "rest");
    assert_eq!(rig.heartbeat(&a, 2), Ok(()), "nobody is disturbed");
    assert_eq!(static_beat(&mut rig, "b", &b, 2), Answer::Heartbeat(Err(Refused::FencedInstanceId)));
}

#[test]
fn a_leader_that_comes_back_is_told_that_the_assignment_stands_if_it_understands() {
    for understands in [false, true] {
        let mut rig = Rig::new();
        let (a, _) = two(&mut rig);
        let back = Join { supports_skipping_assignment: understands, ..static_join("a", "2") };
        let back = rig.ask(Request::Join(back));
        let joined = rig.joined(back);
        assert_eq!((joined.generation, joined.skip_assignment), (2, understands));
        assert_eq!(joined.members.len(), if understands { 2 } else { 0 });
        assert_eq!(joined.leader, if understands { "a-2".into() } else { a });
        let synced = rig.sync("a-2", 2, &[]);
        assert_eq!(rig.assigned(synced).unwrap(), "half");
    }
}

#[test]
fn a_new_id_that_cannot_be_written_is_taken_back() {
    let mut rig = Rig::new();
    let (_, b) = two(&mut rig);
    rig.appends_end = Some(Appended::NotNow);
    let back = rig.ask(Request::Join(static_join("b", "2")));
    assert_eq!(rig.join_refused(back), Refused::CoordinatorNotAvailable);
    assert_eq!(static_beat(&mut rig, "b", &b, 2), Answer::Heartbeat(Ok(())));
}

#[test]
fn a_member_is_told_to_be_where_it_first_came_from() {
    let mut rig = Rig::new();
    let (_, follower) = two(&mut rig);
    let again = Join { client_host: "/10.0.0.9".into(), client_id: "else".into(), ..static_join("b", "again") };
    let ticket = rig.ask(Request::Join(again));
    let joined = rig.joined(ticket);
    assert_ne!(joined.member_id, follower);
    let described = rig.describe();
    let member = described.members.iter().find(|member| member.member_id == joined.member_id).unwrap();
    assert_eq!(member.client_host, "/127.0.0.1");
    assert_ne!(member.client_id, "else");
}

#[test]
fn a_static_member_that_says_something_new_makes_all_join_again() {
    let mut rig = Rig::new();
    two(&mut rig);
    let other = Join { protocols: vec![("sticky".into(), Bytes::new())], ..static_join("b", "2") };
    let back = rig.ask(Request::Join(other));
    assert!(rig.waits(back));
    assert_eq!(rig.describe().listing.state, GroupState::PreparingRebalance);
}

#[test]
fn the_former_self_is_fenced_while_it_waits() {
    let mut rig = Rig::new();
    rig.stable(1);
    let first = rig.ask(Request::Join(static_join("a", "1")));
    assert!(rig.waits(first));
    let second = rig.ask(Request::Join(static_join("a", "2")));
    assert_eq!(rig.join_refused(first), Refused::FencedInstanceId);
    assert!(rig.waits(second));
}

#[test]
fn static_members_keep_their_place_in_a_rebalance_until_their_session_ends() {
    let mut rig = Rig::new();
    let (a, b) = two(&mut rig);
    let third = rig.ask(Request::Join(static_join("c", "1")));
    rig.passes_ms(5_000);
    assert_eq!(static_beat(&mut rig, "a", &a, 2), Answer::Heartbeat(Err(Refused::RebalanceInProgress)));
    let again = rig.ask(Request::Join(Join { member_id: a.clone(), ..static_join("a", "x") }));
    rig.passes_ms(4_999);
    assert!(rig.waits(third));
    rig.passes_ms(1);
    assert_eq!(rig.joined(again).members.len(), 2, "b was silent for a session");
    assert_eq!(rig.joined(third).generation, 3);
    assert_eq!(static_beat(&mut rig, "b", &b, 3), Answer::Heartbeat(Err(Refused::UnknownMemberId)));
}

#[test]
fn administrators_take_static_members_out_by_their_instance_id() {
    let mut rig = Rig::new();
    let (a, _) = two(&mut rig);
    let left = rig.leave(&[("", Some("b")), ("wrong", Some("a")), ("", Some("nobody"))]);
    assert_eq!(left, [Ok(()), Err(Refused::FencedInstanceId), Err(Refused::UnknownMemberId)]);
    let members: Vec<_> = rig.describe().members.into_iter().map(|member| member.member_id).collect();
    assert_eq!(members, [a]);
}

/// They say that they take no time to join, and nobody is there to be waited for.
#[test]
fn static_members_that_are_all_away_are_waited_for() {
    let mut rig = Rig::new();
    two(&mut rig);
    for instance in ["a", "b"] {
        for rebalance_timeout_ms in [0, -1] {
            let fresh = format!("after{rebalance_timeout_ms}");
            let back = rig.ask(Request::Join(Join { rebalance_timeout_ms, ..static_join(instance, &fresh) }));
            rig.joined(back);
        }
    }
    assert_eq!(rig.leave(&[("", Some("b"))]), [Ok(())]);
    assert_eq!(rig.describe().listing.state, GroupState::PreparingRebalance);
    rig.passes_ms(9_999);
    assert_eq!(rig.describe().members.len(), 1);
    rig.passes_ms(1);
    assert_eq!(rig.describe().members.len(), 0, "its session is over");
}
