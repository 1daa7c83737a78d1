use std::path::Path;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, Partition, ReplicaConfig};
use highwater_storage::{
    BatchBuilder, Codec, EpochEnd, Log, LogOptions, ProduceRules, Record, TimestampMs, TopicId, batches,
};

use super::super::Turn as Ordinary;
use super::*;
use crate::config::BrokerConfig;

const LEADER: BrokerId = BrokerId(2);

const EPOCH: LeaderEpoch = LeaderEpoch(3);

fn plan(from: i64) -> FetchPlan {
    FetchPlan {
        leader: LEADER,
        leader_epoch: EPOCH,
        from: Offset(from),
        last_fetched_epoch: Some(EPOCH),
        log_start: Offset(0),
        broker_epoch: BrokerEpoch(5),
    }
}

/// Records from one offset to before another, in batches of one, and the high watermark that came with them.
fn came(from: i64, to: i64, high_watermark: i64) -> LeaderRecords {
    let mut records = Vec::new();
    for offset in from..to {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(1), b"value"));
        let mut batch = builder.build();
        // As a leader stamps it: its checksum does not cover offset and epoch.
        batch[..8].copy_from_slice(&offset.to_be_bytes());
        batch[12..16].copy_from_slice(&EPOCH.0.to_be_bytes());
        records.extend(batch);
    }
    LeaderRecords {
        records: records.into(),
        high_watermark: Offset(high_watermark),
        log_start: Offset(0),
        diverging: None,
    }
}

fn hosted(services: &Arc<Services>, dir: &Path, partition: i32) -> Arc<Hosted> {
    let of = TopicPartition::new("t", partition);
    let (log, _) = Log::open(dir.join(partition.to_string()), LogOptions::default()).expect("a log");
    let replica = Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(5)), of.clone(), log, None);
    Hosted::new(of, TopicId([7; 16]), replica, ProduceRules::default(), services)
}

/// Followers by their partitions, and from where each is to go on.
type Places = Vec<(i32, i64)>;

/// Followers of one leader, whose answers the test gives.
struct Rig {
    services: Arc<Services>,
    followers: Vec<Arc<Hosted>>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(followers: i32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let services = Services::new(BrokerConfig::default());
        let followers = (0..followers).map(|partition| hosted(&services, dir.path(), partition)).collect();
        Self { services, followers, _dir: dir }
    }

    fn want(&self, follower: usize, from: i64) {
        let hosted = &self.followers[follower];
        let weak = Arc::downgrade(hosted);
        // Not by way of `want`, which starts the task that fetches.
        let mut state = self.services.fetchers.lock();
        let leader = state.leaders.entry(LEADER).or_default();
        let before = leader.partitions.remove(hosted.topic_partition());
        let ahead = before.and_then(|before| before.ahead);
        let following = Following { hosted: weak, plan: Some(plan(from)), prompt: false, ahead };
        leader.partitions.insert(hosted.topic_partition().clone(), following);
    }

    /// What an ordinary fetch asks for: which followers, from where.
    fn fetched(&self) -> Places {
        match self.services.fetchers.turn(LEADER) {
            Ordinary::Fetch { errands, .. } => {
                let of =
                    |errand: &super::super::Errand| (errand.hosted.topic_partition().partition, errand.plan.from.0);
                errands.iter().map(of).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The answer to that, for one of them. True if the task that reads ahead is to be started.
    fn answered(&self, follower: usize, from: i64, came: &LeaderRecords) -> bool {
        let of = self.followers[follower].topic_partition();
        self.services.fetchers.answered(of, LEADER, true, Ahead::after(&plan(from), came))
    }

    /// What is delivered and asked for by reading ahead.
    fn turn(&self) -> Option<(Places, Vec<Question>)> {
        let turn = self.services.fetchers.turn_ahead(LEADER, true)?;
        let of = |delivery: &Delivery| {
            let came = delivery.reply.result.as_ref().expect("records");
            let first = batches(&came.records).next().expect("a batch").expect("a batch").base_offset();
            assert_eq!(first, delivery.reply.plan.from);
            (delivery.hosted.topic_partition().partition, first.0)
        };
        Some((turn.deliveries.iter().map(of).collect(), turn.questions))
    }

    fn came(&self, question: Question, came: Came) {
        self.services.fetchers.came_ahead(LEADER, question, came);
    }
}

fn places(questions: &[Question]) -> Places {
    questions.iter().map(|asked| (asked.hosted.topic_partition().partition, asked.place.from.0)).collect()
}

#[test]
fn it_is_read_on_where_more_is_committed_than_came() {
    let from = |came: LeaderRecords| Place::behind(&plan(5), &came).map(|place| place.from.0);
    assert_eq!(from(came(5, 8, 20)), Some(8));
    assert_eq!(from(came(5, 8, 9)), Some(8));
    // All that is committed has come; we are in sync, and what we have not acknowledged is not committed.
    assert_eq!(from(came(5, 8, 8)), None);
    assert_eq!(from(came(5, 8, 5)), None);
    assert_eq!(from(came(5, 5, 20)), None, "nothing came");
    let diverging = Some(EpochEnd { epoch: EPOCH, end: Offset(4) });
    assert_eq!(from(LeaderRecords { diverging, ..came(5, 8, 20) }), None);
    let torn = LeaderRecords { records: Bytes::from_static(b"nonsense"), ..came(5, 5, 20) };
    assert_eq!(from(torn), None);
}

#[tokio::test]
async fn plans_are_answered_by_what_was_read_ahead_until_all_that_is_committed_has_come() {
    let rig = Rig::new(1);
    rig.want(0, 0);
    assert_eq!(rig.fetched(), [(0, 0)]);
    assert!(rig.answered(0, 0, &came(0, 3, 9)), "a task is needed");
    let (delivered, mut questions) = rig.turn().expect("it goes on");
    assert_eq!((delivered, places(&questions)), (vec![], vec![(0, 3)]));
    // Asked once.
    let (delivered, none) = rig.turn().expect("it goes on");
    assert_eq!((delivered, places(&none)), (vec![], vec![]));
    // The plan comes before the answer, and is not fetched for.
    rig.want(0, 3);
    assert_eq!(rig.fetched(), []);
    assert_eq!(rig.turn().expect("it goes on").0, []);
    rig.came(questions.remove(0), Came::Records(came(3, 6, 9)));
    let (delivered, mut questions) = rig.turn().expect("it goes on");
    assert_eq!((delivered, places(&questions)), (vec![(0, 3)], vec![(0, 6)]));
    // The answer comes before the plan.
    rig.came(questions.remove(0), Came::Records(came(6, 9, 9)));
    assert_eq!(rig.turn().expect("it goes on").0, []);
    rig.want(0, 6);
    let (delivered, questions) = rig.turn().expect("it delivers");
    assert_eq!((delivered, places(&questions)), (vec![(0, 6)], vec![]));
    // What comes next acknowledges all of it.
    rig.want(0, 9);
    assert_eq!(rig.fetched(), [(0, 9)]);
    assert!(rig.turn().is_none(), "the task ends");
}

#[tokio::test]
async fn what_is_not_as_expected_is_fetched() {
    let other_epoch = FetchPlan { leader_epoch: LeaderEpoch(4), ..plan(3) };
    let other_history = FetchPlan { last_fetched_epoch: Some(LeaderEpoch(2)), ..plan(3) };
    for (what, next) in [("a cut", plan(2)), ("an election", other_epoch), ("another history", other_history)] {
        let rig = Rig::new(1);
        rig.want(0, 0);
        rig.fetched();
        rig.answered(0, 0, &came(0, 3, 9));
        let (_, mut questions) = rig.turn().expect("it goes on");
        rig.came(questions.remove(0), Came::Records(came(3, 6, 9)));
        rig.want(0, 3);
        let of = rig.followers[0].topic_partition();
        let mut state = rig.services.fetchers.lock();
        state.leaders.get_mut(&LEADER).and_then(|leader| leader.partitions.get_mut(of)).expect("it follows").plan =
            Some(next);
        drop(state);
        assert!(rig.turn().is_none(), "{what}: nothing is delivered, nothing is read ahead");
        assert_eq!(rig.fetched(), [(0, next.from.0)], "{what}");
    }
    // The leader refuses, or has nothing there.
    let rig = Rig::new(1);
    rig.want(0, 0);
    rig.fetched();
    rig.answered(0, 0, &came(0, 3, 9));
    let (_, mut questions) = rig.turn().expect("it goes on");
    rig.want(0, 3);
    rig.came(questions.remove(0), Came::of(Place { leader_epoch: EPOCH, from: Offset(3), last_epoch: EPOCH }, None));
    assert_eq!(rig.fetched(), [(0, 3)]);
}

#[test]
fn an_answer_without_records_says_whether_there_are_some() {
    let place = Place { leader_epoch: EPOCH, from: Offset(3), last_epoch: EPOCH };
    assert!(matches!(Came::of(place, Some(came(3, 5, 9))), Came::Records(_)));
    assert!(matches!(Came::of(place, Some(came(3, 3, 9))), Came::NotYet), "others came before it");
    assert!(matches!(Came::of(place, Some(came(3, 3, 3))), Came::Nothing));
    assert!(matches!(Came::of(place, None), Came::Nothing));
    let diverging = Some(EpochEnd { epoch: EPOCH, end: Offset(2) });
    assert!(matches!(Came::of(place, Some(LeaderRecords { diverging, ..came(3, 5, 9) })), Came::Nothing));
}

#[tokio::test]
async fn what_is_in_hand_is_bounded_and_everybody_has_a_turn() {
    let rig = Rig::new(6);
    for follower in 0..6 {
        rig.want(follower, 0);
    }
    assert_eq!(rig.fetched().len(), 6);
    for follower in 0..6 {
        rig.answered(follower, 0, &came(0, 3, 9));
    }
    // All six append what has come.
    assert_eq!(places(&rig.turn().expect("it goes on").1), []);
    for follower in 0..3 {
        rig.want(follower, 3);
    }
    let (_, questions) = rig.turn().expect("it goes on");
    assert_eq!(places(&questions), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (5, 3)]);
    // The first had all of the answer; next time another one comes first.
    for question in questions {
        rig.came(question, Came::NotYet);
    }
    let (_, questions) = rig.turn().expect("it goes on");
    assert_eq!(places(&questions), [(1, 3), (2, 3), (3, 3), (4, 3), (5, 3), (0, 3)]);
    for question in questions {
        rig.came(question, Came::NotYet);
    }
    rig.services.fetchers.pause(rig.followers[2].topic_partition(), true);
    let (_, questions) = rig.turn().expect("it goes on");
    assert_eq!(places(&questions), [(3, 3), (4, 3), (5, 3), (0, 3), (1, 3)]);
}

#[tokio::test]
async fn it_is_asked_in_nobodys_name_and_without_a_session() {
    let rig = Rig::new(1);
    let place = Place { leader_epoch: EPOCH, from: Offset(3), last_epoch: EPOCH };
    let asked = request(&rig.services, &[Question { hosted: Arc::clone(&rig.followers[0]), place }]);
    assert_eq!((asked.replica_state.replica_id.0, asked.session_epoch, asked.max_wait_ms), (-1, EPOCH_FINAL, 0));
    let part = &asked.topics[0].partitions[0];
    assert_eq!((part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch), (3, 3, 3));
}
