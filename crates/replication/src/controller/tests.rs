//! Tables of elections.

use super::*;
use crate::fixtures::{ids, state};

fn live(numbers: &[i32]) -> BTreeMap<BrokerId, BrokerEpoch> {
    numbers.iter().map(|id| (BrokerId(*id), BrokerEpoch(i64::from(*id) * 10))).collect()
}

fn facts(version: i64, state: PartitionState) -> PartitionFacts {
    PartitionFacts {
        assignment: ids(&[1, 2, 3]),
        state: Some(Versioned { value: state, version }),
        unclean_elections: false,
        ends: BTreeMap::new(),
        reassignment: Reassignment::default(),
    }
}

fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

/// A controller in epoch 7 that has seen these brokers and this partition, and its only commit.
fn controller(brokers: &[i32], facts: PartitionFacts) -> (Controller, Option<Commit>) {
    let mut controller = Controller::new(7);
    controller.set_brokers(&live(brokers));
    controller.set_partition(partition(), facts);
    let commit = controller.poll_commit();
    assert_eq!(controller.poll_commit(), None);
    (controller, commit)
}

/// Facts 13.7 (90, 91, 96), 8.13: state and live brokers before; leader, epoch, ISR after.
#[test]
fn elections_table() {
    use Election::{Elected, LeaderLost};
    type Row<'a> = (&'a str, PartitionState, &'a [i32], Option<(PartitionState, Election)>);
    let table: &[Row<'_>] = &[
        ("all live", state(1, 4, &[1, 2, 3]), &[1, 2, 3], None),
        ("the leader dies (90)", state(1, 4, &[2, 3, 1]), &[2, 3], Some((state(2, 5, &[2, 3, 1]), Elected))),
        ("in assignment order", state(1, 4, &[1, 3, 2]), &[2, 3], Some((state(2, 5, &[1, 3, 2]), Elected))),
        ("the first live one is not in sync", state(1, 4, &[1, 3]), &[2, 3], Some((state(3, 5, &[1, 3]), Elected))),
        ("a member dies (96): the leader takes it out", state(1, 4, &[1, 2, 3]), &[1, 3], None),
        ("a replica outside of the ISR dies", state(1, 4, &[1, 2]), &[1, 2], None),
        ("the last member dies (91)", state(1, 4, &[1]), &[2, 3], Some((state(-1, 5, &[1]), LeaderLost))),
        ("all die at once", state(1, 4, &[1, 2]), &[3], Some((state(-1, 5, &[1, 2]), LeaderLost))),
        ("still nobody", state(-1, 5, &[1]), &[2, 3], None),
        ("the last member returns (91)", state(-1, 5, &[1]), &[1, 2], Some((state(1, 6, &[1]), Elected))),
        ("one of the last returns", state(-1, 5, &[1, 2]), &[2], Some((state(2, 6, &[1, 2]), Elected))),
        ("the preferred leader is not in sync (92)", state(2, 4, &[2]), &[1, 2], None),
    ];
    for (name, before, brokers, expected) in table {
        let (_, commit) = controller(brokers, facts(8, before.clone()));
        let expected = expected.clone().map(|(state, why)| Commit {
            topic_partition: partition(),
            expected_version: Some(8),
            state: PartitionState { controller_epoch: 7, ..state },
            why,
        });
        assert_eq!(commit, expected, "{name}");
    }
}

#[test]
fn a_new_partition_starts_with_whoever_lives() {
    let new = PartitionFacts { state: None, ..facts(0, state(1, 0, &[])) };
    let (_, commit) = controller(&[3, 2], new.clone());
    let commit = commit.unwrap();
    assert_eq!((commit.expected_version, commit.why), (None, Election::Created));
    assert_eq!(commit.state, PartitionState { controller_epoch: 7, ..state(2, 0, &[2, 3]) });
    let (mut controller, commit) = controller(&[9], new);
    assert_eq!(commit, None, "nobody to hold it yet");
    controller.set_brokers(&live(&[3]));
    assert_eq!(controller.poll_commit().unwrap().state.isr, ids(&[3]));
}

#[test]
fn an_unclean_election_only_where_allowed_and_recorded() {
    let allowed = PartitionFacts { unclean_elections: true, ..facts(8, state(-1, 5, &[1])) };
    let (_, commit) = controller(&[3, 2], allowed.clone());
    let commit = commit.unwrap();
    assert_eq!(commit.why, Election::Unclean { abandoned: ids(&[1]) });
    assert_eq!(commit.state, PartitionState { controller_epoch: 7, recovering: true, ..state(2, 6, &[2]) });
    let clean = PartitionFacts { state: Some(Versioned { value: state(1, 5, &[1, 3]), version: 8 }), ..allowed };
    let (_, commit) = controller(&[2, 3], clean);
    assert_eq!(commit.unwrap().why, Election::Elected, "a member lives: nothing unclean about it");
}

/// A broker that died and came back between two looks and has not marked itself is whole: it goes on.
#[test]
fn a_new_life_is_no_reason_for_an_election() {
    let (mut controller, _) = controller(&[1, 2, 3], facts(8, state(1, 4, &[1, 2, 3])));
    let mut brokers = live(&[1, 2, 3]);
    brokers.insert(BrokerId(1), BrokerEpoch(99));
    controller.set_brokers(&brokers);
    assert_eq!(controller.poll_commit(), None);
    controller.set_partition(partition(), facts(9, doubtful(state(-1, 5, &[1, 2, 3]), &[1])));
    let expected = doubtful(state(2, 6, &[1, 2, 3]), &[1]);
    assert_eq!(controller.poll_commit().unwrap().state, PartitionState { controller_epoch: 7, ..expected });
}

#[test]
fn one_commit_at_a_time_and_conflicts_decide_anew() {
    let (mut controller, commit) = controller(&[2, 3], facts(8, state(1, 4, &[1, 2, 3])));
    let commit = commit.unwrap();
    controller.set_brokers(&live(&[3]));
    assert_eq!(controller.poll_commit(), None, "the first is under way");
    controller.committed(&commit, &CommitResult::Unknown);
    controller.retry();
    assert_eq!(controller.poll_commit().as_ref(), Some(&commit));
    // The leader's own change was first.
    controller.committed(&commit, &CommitResult::Conflict);
    controller.set_partition(partition(), facts(9, state(1, 4, &[1, 3])));
    let commit = controller.poll_commit().unwrap();
    assert_eq!((commit.expected_version, &commit.state.isr), (Some(9), &ids(&[1, 3])));
    assert_eq!((commit.state.leader, commit.state.leader_epoch), (Some(BrokerId(3)), LeaderEpoch(5)));
    // What is older than we know is no news.
    controller.set_partition(partition(), facts(8, state(1, 4, &[1, 2, 3])));
    controller.committed(&commit, &CommitResult::Committed(10));
    assert_eq!(controller.poll_commit(), None);
    controller.remove_partition(&partition());
    controller.set_brokers(&live(&[1]));
    assert_eq!(controller.poll_commit(), None);
}

#[test]
fn a_leader_that_closed_its_log_is_replaced() {
    let (mut controller, _) = controller(&[1, 2, 3], facts(8, state(1, 4, &[1, 2, 3])));
    let failed =
        |ids: &[i32]| BTreeMap::from([(partition(), ids.iter().copied().map(BrokerId).collect::<BTreeSet<_>>())]);
    controller.set_failed(failed(&[1]));
    let commit = controller.poll_commit().unwrap();
    assert_eq!(commit.state, PartitionState { controller_epoch: 7, ..state(2, 5, &[1, 2, 3]) });
    controller.committed(&commit, &CommitResult::Committed(9));
    // Nor does it lead in a later epoch, as long as its log is closed.
    controller.set_failed(failed(&[1, 2, 3]));
    let commit = controller.poll_commit().unwrap();
    assert_eq!((commit.state.leader, commit.why.clone()), (None, Election::LeaderLost));
    controller.committed(&commit, &CommitResult::Committed(10));
    assert_eq!(controller.poll_commit(), None);
    controller.set_failed(failed(&[1, 3]));
    assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(2)));
}

/// Field fault R12 (facts 9.6): who is about to stop is not elected, and leads no longer than until somebody else can. Leaving
/// and live brokers, the state before; leader and epoch after. The in-sync set is the next leader's to write.
#[test]
fn a_leaving_broker_hands_over_table() {
    use Election::{Elected, LeaderLost, Moved};
    type Row<'a> = (&'a str, &'a [i32], &'a [i32], PartitionState, Option<(PartitionState, Election)>);
    let table: &[Row<'_>] = &[
        ("the leader leaves", &[1], &[1, 2, 3], state(1, 4, &[1, 2, 3]), Some((state(2, 5, &[1, 2, 3]), Moved))),
        (
            "not to one that leaves too",
            &[1, 2],
            &[1, 2, 3],
            state(1, 4, &[1, 2, 3]),
            Some((state(3, 5, &[1, 2, 3]), Moved)),
        ),
        ("not to one outside of the ISR", &[1], &[1, 2, 3], state(1, 4, &[1]), None),
        ("not to a doubtful one", &[1], &[1, 2, 3], doubtful(state(1, 4, &[1, 2]), &[2]), None),
        ("not to a dead one", &[1], &[1, 3], state(1, 4, &[1, 2]), None),
        ("all leave: the leader leads to the end", &[1, 2, 3], &[1, 2, 3], state(1, 4, &[1, 2, 3]), None),
        ("a follower leaves: the leader takes it out", &[2], &[1, 2, 3], state(1, 4, &[1, 2, 3]), None),
        (
            "the leader dies beside one that leaves",
            &[2],
            &[2, 3],
            state(1, 4, &[1, 2, 3]),
            Some((state(3, 5, &[1, 2, 3]), Elected)),
        ),
        (
            "only one is left, and it leaves",
            &[2],
            &[2],
            state(1, 4, &[1, 2]),
            Some((state(-1, 5, &[1, 2]), LeaderLost)),
        ),
        ("nobody leads, and who could leaves", &[2], &[2, 3], state(-1, 5, &[2]), None),
    ];
    for (name, leaving, brokers, before, expected) in table {
        let mut controller = Controller::new(7);
        controller.set_leaving(leaving.iter().copied().map(BrokerId).collect());
        controller.set_brokers(&live(brokers));
        controller.set_partition(partition(), PartitionFacts { unclean_elections: false, ..facts(8, before.clone()) });
        let commit = controller.poll_commit().map(|commit| (commit.state, commit.why));
        let controlled = |state| PartitionState { controller_epoch: 7, ..state };
        assert_eq!(commit, expected.clone().map(|(state, why)| (controlled(state), why)), "{name}");
    }
}

#[test]
fn a_leader_that_leaves_is_no_reason_for_an_unclean_election_and_a_new_partition_does_without_it() {
    let unclean = PartitionFacts { unclean_elections: true, ..facts(8, state(1, 4, &[1])) };
    let (mut controller, _) = controller(&[1, 2, 3], unclean);
    controller.set_leaving(BTreeSet::from([BrokerId(1)]));
    assert_eq!(controller.poll_commit(), None, "the one in-sync replica leads while it is there");
    let other = TopicPartition::new("t", 1);
    controller.set_partition(other, PartitionFacts { state: None, ..facts(0, state(1, 0, &[])) });
    let created = controller.poll_commit().unwrap();
    assert_eq!((created.state.leader, created.state.isr), (Some(BrokerId(2)), ids(&[2, 3])));
    // It changed its mind, or is back in another life before anybody saw it gone.
    controller.set_partition(partition(), facts(9, state(2, 5, &[1, 2])));
    controller.set_leaving(BTreeSet::new());
    controller.set_brokers(&live(&[1, 3]));
    assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(1)));
}

fn doubtful(state: PartitionState, doubtful: &[i32]) -> PartitionState {
    PartitionState { doubtful: ids(doubtful), ..state }
}

/// What the brokers of [`live`] published, each in its present life, since nobody leads in epoch 6: broker, last epoch,
/// log end.
fn ends(published: &[(i32, i32, i64)]) -> BTreeMap<BrokerId, PublishedEnd> {
    let end = |&(id, epoch, end): &(i32, i32, i64)| {
        let life = BrokerEpoch(i64::from(id) * 10);
        let leader_epoch = LeaderEpoch(6);
        (BrokerId(id), PublishedEnd { life, leader_epoch, last_epoch: LeaderEpoch(epoch), log_end: Offset(end) })
    };
    published.iter().map(end).collect()
}

/// Decision 20: where no whole member is left, the one with most leads, once all are back.
#[test]
fn elections_among_doubtful_members_table() {
    type Row<'a> = (&'a str, PartitionState, &'a [i32], &'a [(i32, i32, i64)], Option<(PartitionState, &'a str)>);
    let all = || doubtful(state(-1, 6, &[1, 2, 3]), &[2, 3, 1]);
    let table: &[Row<'_>] = &[
        ("a whole leader goes on; it takes out the others", doubtful(state(1, 4, &[1, 2]), &[2]), &[1, 2], &[], None),
        ("a dead doubtful member stays", doubtful(state(1, 4, &[1, 2]), &[2]), &[1], &[], None),
        (
            "a whole one is first, however little the others lost",
            doubtful(state(-1, 4, &[1, 2, 3]), &[1, 3]),
            &[1, 2, 3],
            &[(1, 9, 90), (3, 9, 90)],
            Some((doubtful(state(2, 5, &[1, 2, 3]), &[1, 3]), "elected")),
        ),
        (
            "the leader dies beside a doubtful member",
            doubtful(state(1, 4, &[1, 2]), &[2]),
            &[2],
            &[(2, 4, 10)],
            Some((doubtful(state(-1, 5, &[1, 2]), &[2]), "lost")),
        ),
        ("a whole one is missing", doubtful(state(-1, 6, &[1, 2]), &[2]), &[2, 3], &[(2, 4, 10)], None),
        ("a doubtful one is missing", all(), &[1, 2], &[(1, 5, 10), (2, 5, 10)], None),
        ("one has not said yet", all(), &[1, 2, 3], &[(1, 5, 10), (2, 5, 10)], None),
        (
            "the highest end",
            all(),
            &[1, 2, 3],
            &[(1, 5, 10), (2, 5, 12), (3, 5, 11)],
            Some((state(2, 7, &[2]), "recovered")),
        ),
        (
            "the highest epoch before the highest end",
            all(),
            &[1, 2, 3],
            &[(1, 4, 20), (2, 4, 30), (3, 5, 11)],
            Some((state(3, 7, &[3]), "recovered")),
        ),
        (
            "of equal ones the first in the assignment",
            all(),
            &[1, 2, 3],
            &[(1, 5, 3), (2, 5, 12), (3, 5, 12)],
            Some((state(2, 7, &[2]), "recovered")),
        ),
        (
            "nothing is left in any of them",
            all(),
            &[1, 2, 3],
            &[(1, -1, 0), (2, -1, 0), (3, -1, 0)],
            Some((state(1, 7, &[1]), "recovered")),
        ),
        (
            "all that it had was committed, and is deleted: its offsets are not given again",
            all(),
            &[1, 2, 3],
            &[(1, 5, 3), (2, -1, 5), (3, 4, 7)],
            Some((state(2, 7, &[2]), "recovered")),
        ),
        (
            "one that goes as far as what is deleted",
            all(),
            &[1, 2, 3],
            &[(1, 5, 5), (2, -1, 5), (3, 4, 7)],
            Some((state(1, 7, &[1]), "recovered")),
        ),
        (
            "the last member",
            doubtful(state(-1, 6, &[3]), &[3]),
            &[1, 2, 3],
            &[(1, 9, 99), (3, 5, 10)],
            Some((state(3, 7, &[3]), "recovered")),
        ),
        ("what was said under an earlier leader", doubtful(state(-1, 8, &[1]), &[1]), &[1], &[(1, 5, 10)], None),
        (
            "with a leader that died there is one to come, in which all say it anew",
            doubtful(state(1, 6, &[1]), &[1]),
            &[1],
            &[(1, 5, 10)],
            Some((doubtful(state(-1, 7, &[1]), &[1]), "lost")),
        ),
    ];
    for (name, before, brokers, published, expected) in table {
        let facts = PartitionFacts { ends: ends(published), ..facts(8, before.clone()) };
        let (_, commit) = controller(brokers, facts);
        let why = |why: &Election| match why {
            Election::Elected => "elected",
            Election::LeaderLost => "lost",
            Election::Recovered { ends: of } => {
                assert!(of.keys().eq(before.isr.iter().collect::<BTreeSet<_>>()), "{name}: {of:?}");
                "recovered"
            }
            other => panic!("{name}: {other:?}"),
        };
        let got = commit.map(|commit| (commit.state, why(&commit.why)));
        let state = |state: &PartitionState| PartitionState { controller_epoch: 7, ..state.clone() };
        assert_eq!(got, expected.as_ref().map(|(after, why)| (state(after), *why)), "{name}");
    }
}

/// An end of an earlier life says nothing: what recovery found then may have been lost since.
#[test]
fn an_end_counts_in_the_life_that_published_it() {
    let mut published = ends(&[(1, 5, 10), (2, 5, 12)]);
    published.get_mut(&BrokerId(2)).unwrap().life = BrokerEpoch(19);
    let before = doubtful(state(-1, 6, &[1, 2]), &[1, 2]);
    let (mut controller, commit) = controller(&[1, 2], PartitionFacts { ends: published, ..facts(8, before.clone()) });
    assert_eq!(commit, None);
    controller.set_partition(partition(), PartitionFacts { ends: ends(&[(1, 5, 10), (2, 5, 9)]), ..facts(8, before) });
    assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(1)));
}

/// The topic prefers to go on: without those that are gone, but with the most that there is.
#[test]
fn an_unclean_election_prefers_the_doubtful_member_with_most() {
    let before = doubtful(state(-1, 6, &[1, 2, 3]), &[2, 3]);
    let both = [(2, 5, 10), (3, 5, 11)];
    for (live, published, leader, abandoned) in
        [(&[2, 3][..], &both[..], 3, [1, 2]), (&[2], &both[..1], 2, [1, 3]), (&[4], &[], 4, [1, 2])]
    {
        let (assignment, isr) = (ids(&[4, 1, 2, 3]), if leader == 4 { &[1, 2][..] } else { &[1, 2, 3] });
        let before = Versioned { value: PartitionState { isr: ids(isr), ..before.clone() }, version: 8 };
        let ends = ends(published);
        let reassignment = Reassignment::default();
        let facts = PartitionFacts { assignment, state: Some(before), ends, unclean_elections: true, reassignment };
        let commit = controller(live, facts).1.unwrap();
        assert_eq!(commit.why, Election::Unclean { abandoned: ids(&abandoned) });
        let expected = PartitionState { controller_epoch: 7, recovering: true, ..state(leader, 7, &[leader]) };
        assert_eq!(commit.state, expected);
    }
}

/// A member that is back tells what it has within a moment. A replica that was no member must not be first.
#[test]
fn an_unclean_election_waits_for_what_a_live_member_has() {
    let before = doubtful(state(-1, 6, &[1]), &[1]);
    let facts = |published: &[(i32, i32, i64)]| PartitionFacts {
        ends: ends(published),
        unclean_elections: true,
        ..facts(8, before.clone())
    };
    let (mut controller, commit) = controller(&[1, 2], facts(&[]));
    assert_eq!(commit, None);
    let version_9 = Versioned { value: before.clone(), version: 9 };
    controller.set_partition(partition(), PartitionFacts { state: Some(version_9), ..facts(&[(1, 5, 10)]) });
    assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(1)));
    // It may have died all the same.
    let (mut controller, _) = self::controller(&[1, 2], facts(&[]));
    controller.set_brokers(&live(&[2]));
    assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(2)));
}

#[test]
fn doubtful_returns_table() {
    type Row<'a> = (&'a str, PartitionState, Option<PartitionState>);
    let table: &[Row<'_>] = &[
        ("a follower", state(2, 4, &[1, 2]), Some(doubtful(state(2, 4, &[1, 2]), &[1]))),
        ("the leader", state(1, 4, &[1, 2]), Some(doubtful(state(-1, 5, &[1, 2]), &[1]))),
        ("the only one, as leader", state(1, 4, &[1]), Some(state(1, 5, &[1]))),
        ("the only one, leaderless", state(-1, 4, &[1]), Some(doubtful(state(-1, 4, &[1]), &[1]))),
        ("after another", doubtful(state(-1, 4, &[1, 2]), &[2]), Some(doubtful(state(-1, 4, &[1, 2]), &[2, 1]))),
        ("once more", doubtful(state(-1, 4, &[1, 2]), &[1]), None),
        ("no member: the version moves", state(2, 4, &[2]), Some(state(2, 4, &[2]))),
    ];
    for (name, before, after) in table {
        assert_eq!(return_doubtful(BrokerId(1), before), *after, "{name}");
    }
}

/// A partition that moves from 1, 2 to 3, 2, step by step as its leaders write the ISR, under a controller that knows nothing
/// of the steps before: elections by it, and the end.
#[test]
fn a_reassignment_is_seen_through_by_whoever_is_controller() {
    let reassignment = Reassignment { adding: ids(&[3]), removing: ids(&[1]) };
    let moving = |version, state| PartitionFacts {
        assignment: ids(&[3, 2, 1]),
        reassignment: reassignment.clone(),
        ..facts(version, state)
    };
    let (_, commit) = controller(&[1, 2, 3], moving(8, state(1, 4, &[1, 2])));
    assert_eq!(commit, None, "who comes is not in sync yet");
    let (_, commit) = controller(&[1, 2, 3], moving(9, state(1, 4, &[1, 2, 3])));
    let commit = commit.expect("who goes leads no more");
    assert_eq!(
        (commit.state.leader, commit.why, &commit.state.isr),
        (Some(BrokerId(3)), Election::Moved, &ids(&[1, 2, 3]))
    );
    let (mut machine, commit) = controller(&[1, 2, 3], moving(10, state(3, 5, &[1, 2, 3])));
    assert_eq!((commit, machine.poll_completion()), (None, None), "in the ISR still");

    machine.set_partition(partition(), moving(11, state(3, 5, &[3, 2])));
    let done = machine.poll_completion().expect("done");
    assert_eq!((done.state_version, &done.assignment), (11, &ids(&[3, 2])));
    let anew = PartitionState { controller_epoch: machine.epoch(), ..state(3, 6, &[3, 2]) };
    assert_eq!(done.state, anew, "fetches of the replica that went count no more");
    assert_eq!(machine.poll_completion(), None, "once");
    machine.completed(&done, &CommitResult::Unknown);
    machine.retry();
    assert_eq!(machine.poll_completion().as_ref(), Some(&done));
    machine.completed(&done, &CommitResult::Conflict);
    machine.set_partition(partition(), moving(12, state(3, 5, &[3])));
    let done = machine.poll_completion().expect("anew, for the state as it is now");
    assert_eq!(done.state_version, 12);
    machine.completed(&done, &CommitResult::Committed(1));
    machine.set_brokers(&live(&[1, 2, 3]));
    assert_eq!((machine.poll_commit(), machine.poll_completion()), (None, None));
}

/// What was decided before the move was taken back is not written over that.
#[test]
fn the_end_of_a_move_is_not_given_out_once_the_assignment_is_another() {
    let moving = PartitionFacts {
        assignment: ids(&[3, 2, 1]),
        reassignment: Reassignment { adding: ids(&[3]), removing: ids(&[1]) },
        ..facts(11, state(3, 5, &[3, 2]))
    };
    let (mut machine, commit) = controller(&[1, 2, 3], moving.clone());
    assert_eq!(commit, None);
    let taken_back = Reassignment { adding: Vec::new(), removing: ids(&[3]) };
    machine.set_partition(partition(), PartitionFacts { reassignment: taken_back, ..moving });
    assert_eq!(machine.poll_completion(), None);
}

/// Somebody who goes leads as long as nobody else can, and leads again if those that remain die.
#[test]
fn a_replica_that_goes_leads_rather_than_nobody() {
    let moving = |state| PartitionFacts {
        assignment: ids(&[3, 1]),
        reassignment: Reassignment { adding: ids(&[3]), removing: ids(&[1]) },
        unclean_elections: true,
        ..facts(8, state)
    };
    let (_, commit) = controller(&[1], moving(state(1, 4, &[1, 3])));
    assert_eq!(commit, None);
    let (mut machine, commit) = controller(&[1], moving(state(3, 4, &[1, 3])));
    let commit = commit.expect("an election");
    assert_eq!((commit.state.leader, commit.why), (Some(BrokerId(1)), Election::Elected));
    machine.set_brokers(&live(&[1, 3]));
}

/// Facts 8.13: leader, ISR and who is asked to lead; who leads by it.
#[test]
fn elections_on_request_table() {
    use ElectionKind::{Preferred, Unclean};
    use NotElected::{NoneEligible, NotNeeded, PreferredNotAvailable};
    type Row<'a> = (&'a str, ElectionKind, PartitionState, &'a [i32], Result<PartitionState, NotElected>);
    let recovering = |state| PartitionState { recovering: true, ..state };
    let table: &[Row<'_>] = &[
        ("back to the first", Preferred, state(2, 4, &[1, 2]), &[1, 2], Ok(state(1, 5, &[1, 2]))),
        ("it leads", Preferred, state(1, 4, &[1, 2]), &[1, 2], Err(NotNeeded)),
        ("it is not in sync", Preferred, state(2, 4, &[2]), &[1, 2], Err(PreferredNotAvailable)),
        ("it is doubtful", Preferred, doubtful(state(2, 4, &[1, 2]), &[1]), &[1, 2], Err(PreferredNotAvailable)),
        ("it is dead", Preferred, state(2, 4, &[1, 2]), &[2], Err(PreferredNotAvailable)),
        ("somebody leads", Unclean, state(2, 4, &[2]), &[1, 2], Err(NotNeeded)),
        ("nobody leads", Unclean, state(-1, 4, &[1]), &[2, 3], Ok(recovering(state(2, 5, &[2])))),
        ("a member lives", Unclean, state(-1, 4, &[1, 3]), &[2, 3], Ok(state(3, 5, &[1, 3]))),
        ("nobody lives", Unclean, state(-1, 4, &[1]), &[], Err(NoneEligible)),
        ("a member is about to say", Unclean, doubtful(state(-1, 6, &[1]), &[1]), &[1, 2], Err(NoneEligible)),
    ];
    for (name, kind, state, brokers, expected) in table {
        let (live, leaving) = (live(brokers), BTreeSet::new());
        let brokers = Brokers { live: &live, leaving: &leaving, failed: None };
        let elected = elect_on_request(&facts(8, state.clone()), brokers, *kind, 7).map(|(state, _)| state);
        let expected = expected.clone().map(|state| PartitionState { controller_epoch: 7, ..state });
        assert_eq!(elected, expected, "{name}");
    }
}

#[test]
fn leaderships_go_back_where_too_many_are_with_others() {
    let led_by = |leaders: &[i32]| {
        let mut machine = Controller::new(7);
        machine.set_brokers(&live(&[1, 2, 3]));
        for (number, leader) in (0..).zip(leaders) {
            let of = TopicPartition::new("t", number);
            machine.set_partition(of, facts(8, state(*leader, 4, &[1, 2, 3])));
        }
        machine
    };
    let back = |machine: &mut Controller, percentage| {
        machine.balance(percentage);
        let commits = std::iter::from_fn(|| machine.poll_commit());
        let number = |commit: Commit| {
            assert_eq!((commit.state.leader, commit.why), (Some(BrokerId(1)), Election::Preferred));
            commit.topic_partition.partition
        };
        commits.map(number).collect::<Vec<_>>()
    };
    assert_eq!(back(&mut led_by(&[1, 1, 1, 1, 2]), 20), [], "20 percent are not more than 20");
    assert_eq!(back(&mut led_by(&[1, 1, 1, 2, 2]), 20), [3, 4]);
    let mut machine = led_by(&[2, 1]);
    assert_eq!(back(&mut machine, 10), [0]);
    assert_eq!(back(&mut machine, 10), [], "that is under way");
    // A partition that moves is left alone, and one whose preferred replica is not there.
    let mut machine = led_by(&[2, 2]);
    let reassignment = Reassignment { adding: Vec::new(), removing: ids(&[3]) };
    let state = state(2, 4, &[1, 2, 3]);
    machine.set_partition(TopicPartition::new("t", 1), PartitionFacts { reassignment, ..facts(8, state) });
    assert_eq!(back(&mut machine, 10), [0]);
    let mut machine = led_by(&[2]);
    machine.set_leaving(BTreeSet::from([BrokerId(1)]));
    assert_eq!(back(&mut machine, 10), []);
}

#[test]
fn preferred_replicas_lead_where_somebody_asks_for_it() {
    let mut machine = Controller::new(7);
    machine.set_brokers(&live(&[1, 2, 3]));
    let wanted: Vec<TopicPartition> = (0..4).map(|number| TopicPartition::new("t", number)).collect();
    // To be moved, led by the preferred already, and with it out of sync; there is no fourth.
    for (number, state) in (0..).zip([state(2, 4, &[1, 2]), state(1, 4, &[1, 2]), state(2, 4, &[2])]) {
        machine.set_partition(TopicPartition::new("t", number), facts(8, state));
    }
    assert_eq!(machine.prefer(&wanted), 1);
    let commit = machine.poll_commit().expect("an election");
    assert_eq!((commit.topic_partition.partition, commit.state.leader), (0, Some(BrokerId(1))));
    assert_eq!((machine.prefer(&wanted), machine.poll_commit()), (1, None), "it is on its way");
    machine.committed(&commit, &CommitResult::Committed(9));
    assert_eq!((machine.prefer(&wanted), machine.poll_commit()), (0, None), "nothing is left to be decided");
}
