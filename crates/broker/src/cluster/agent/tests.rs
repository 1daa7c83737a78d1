use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use highwater_replication::{IsrDecision, PartitionState, PublishedEnd};
use highwater_storage::TopicPartition;

use super::*;
use crate::cluster::{
    AdminError, BoxFuture, ClusterHandle, CommitError, EmbeddedSession, EmbeddedStore, Intent, NewTopic, Op, OpDone,
    TopicRef,
};

struct Member {
    handle: ClusterHandle,
    session: Arc<EmbeddedSession>,
}

fn endpoint(id: i32) -> Endpoint {
    Endpoint { host: "localhost".to_owned(), port: 9000 + u16::try_from(id).unwrap(), rack: None }
}

async fn join(store: &EmbeddedStore, id: i32, last_stop: LastStop) -> Member {
    // Long enough for a machine that is busy with other tests, or sessions would expire that should not.
    let session = Arc::new(store.session(3000));
    let mut config = ClusterConfig::new(BrokerId(id));
    config.registration_timeout_ms = 20_000;
    let handle = ClusterHandle::join(config, session.clone()).await.unwrap();
    handle.register(endpoint(id), last_stop).await.unwrap();
    Member { handle, session }
}

async fn three() -> (EmbeddedStore, Vec<Member>) {
    let store = EmbeddedStore::in_memory();
    let mut members = Vec::new();
    for id in 1..=3 {
        members.push(join(&store, id, LastStop::Clean).await);
    }
    for member in &members {
        see(&member.handle, |image| image.brokers.len() == 3 && image.controller.is_some()).await;
    }
    (store, members)
}

/// Waits until the image is as `wanted`.
async fn see(handle: &ClusterHandle, wanted: impl Fn(&MetadataImage) -> bool) -> Arc<MetadataImage> {
    let mut changes = handle.changes();
    let seen = tokio::time::timeout(Duration::from_secs(20), changes.wait_for(|image| wanted(image))).await;
    match seen {
        Ok(image) => image.unwrap().clone(),
        Err(_) => panic!("broker {} never saw it: {:#?}", handle.id(), handle.image()),
    }
}

fn new_topic(name: &str, replicas: &[&[i32]]) -> NewTopic {
    let replicas = replicas.iter().map(|ids| ids.iter().copied().map(BrokerId).collect());
    NewTopic { name: name.to_owned(), assignment: Some((0..).zip(replicas).collect()), ..NewTopic::default() }
}

fn state_of(image: &MetadataImage, topic: &str) -> Versioned<PartitionState> {
    image.topic(topic).unwrap().partition(0).unwrap().state.clone()
}

fn led_by(topic: &'static str, id: i32) -> impl Fn(&MetadataImage) -> bool {
    move |image| image.topic(topic).is_some_and(|topic| topic.partitions[0].state.value.leader == Some(BrokerId(id)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_brokers_elect_re_elect_and_return() {
    let (store, mut members) = three().await;
    let image = members[0].handle.image();
    assert_eq!(image.cluster_id.len(), 22);
    assert_eq!(image.brokers[&BrokerId(2)].port, 9002);
    let controller = image.controller.unwrap();

    let created = members[0].handle.create_topic(&new_topic("t", &[&[2, 3, 1]]), Intent::Apply).await.unwrap();
    for member in &members {
        let image = see(&member.handle, led_by("t", 2)).await;
        let state = state_of(&image, "t").value;
        assert_eq!((state.leader_epoch.0, state.isr.len()), (0, 3));
        assert_eq!(image.topic("t").unwrap().id, created.id);
        assert!(Arc::ptr_eq(image.topic("t").unwrap(), image.topic_by_id(created.id).unwrap()));
    }

    // The leader falls silent without a goodbye: the next one in the assignment leads. To take the dead one out of the ISR
    // is its matter.
    let killed = members.remove(1);
    assert_eq!(killed.handle.id(), BrokerId(2));
    killed.handle.abandon();
    drop(killed);
    for member in &members {
        let image = see(&member.handle, led_by("t", 3)).await;
        let state = state_of(&image, "t").value;
        assert_eq!((state.leader_epoch.0, state.isr.len()), (1, 3));
        assert!(!image.brokers.contains_key(&BrokerId(2)));
    }

    // It returns: a later life, doubtful, and the leader stays.
    let first_epoch = image.brokers[&BrokerId(2)].epoch;
    members.push(join(&store, 2, LastStop::Unclean).await);
    let image = see(&members[0].handle, |image| image.brokers.len() == 3).await;
    assert!(image.brokers[&BrokerId(2)].epoch > first_epoch);
    let state = state_of(&image, "t").value;
    assert_eq!((state.leader, state.doubtful), (Some(BrokerId(3)), vec![BrokerId(2)]));

    // Whoever is controller says goodbye: another one takes over at once, with a higher epoch, and works.
    let at = members.iter().position(|member| Some(member.handle.id()) == members[0].handle.image().controller);
    let left = members.remove(at.unwrap());
    let before = state_of(&left.handle.image(), "t").value.controller_epoch;
    left.handle.leave().await;
    let image = see(&members[0].handle, |image| {
        image.controller.is_some_and(|id| id != left.handle.id()) && !image.brokers.contains_key(&left.handle.id())
    })
    .await;
    members[0].handle.create_topic(&new_topic("u", &[&[members[1].handle.id().0]]), Intent::Apply).await.unwrap();
    let image_after = see(&members[0].handle, led_by("u", members[1].handle.id().0)).await;
    assert!(state_of(&image_after, "u").value.controller_epoch > before, "{controller} {image:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_session_steps_down_and_registers_again() {
    let (_store, members) = three().await;
    members[0].handle.create_topic(&new_topic("t", &[&[1, 2]]), Intent::Apply).await.unwrap();
    see(&members[0].handle, led_by("t", 1)).await;
    let mut registration = members[0].handle.registration();
    let Registration::Registered(first) = *registration.borrow_and_update() else { panic!("not registered") };

    // Its heart stops for longer than the timeout and beats again, the process lives all the time.
    members[0].session.pause_heart(true);
    registration.wait_for(|state| *state == Registration::Unregistered).await.unwrap();
    see(&members[1].handle, led_by("t", 2)).await;
    members[0].session.pause_heart(false);
    let again = tokio::time::timeout(
        Duration::from_secs(20),
        registration.wait_for(|state| matches!(state, Registration::Registered(epoch) if *epoch > first)),
    );
    again.await.unwrap().unwrap();
    // Published before the registration: the image is of after the expiry.
    let image = members[0].handle.image();
    assert_eq!(state_of(&image, "t").value.leader, Some(BrokerId(2)));
    assert!(image.brokers[&BrokerId(1)].epoch > first);
}

#[tokio::test]
async fn a_leader_commits_its_in_sync_replicas_by_compare_and_set() {
    let (_store, members) = three().await;
    let id = members[0].handle.create_topic(&new_topic("t", &[&[1, 2, 3]]), Intent::Apply).await.unwrap().id;
    let image = see(&members[0].handle, led_by("t", 1)).await;
    let stored = state_of(&image, "t");
    let (handle, of) = (&members[0].handle, TopicPartition::new("t", 0));

    let shrunk = PartitionState { isr: vec![BrokerId(1)], ..stored.value.clone() };
    let IsrDecision::Committed(committed) = handle.propose_state(&of, id, stored.version, &shrunk, None).await else {
        panic!("refused")
    };
    assert_eq!(committed.value, shrunk);
    // Once more with the version of before, as after a lost reply: the answer shows what is stored.
    assert_eq!(
        handle.propose_state(&of, id, stored.version, &shrunk, None).await,
        IsrDecision::Conflict(committed.clone())
    );
    let grown = PartitionState { isr: vec![BrokerId(1), BrokerId(2)], ..shrunk.clone() };
    let foreign = PartitionState { isr: vec![BrokerId(1), BrokerId(9)], ..shrunk.clone() };
    assert_eq!(handle.propose_state(&of, id, committed.version, &foreign, None).await, IsrDecision::Refused);
    assert_eq!(handle.propose_state(&of, TopicId([1; 16]), committed.version, &grown, None).await, IsrDecision::Fenced);
    // A member in another life than the registered one has not shown what it holds.
    let life = image.brokers[&BrokerId(2)].epoch;
    let former = Some((BrokerId(2), BrokerEpoch(life.0 - 1)));
    assert_eq!(handle.propose_state(&of, id, committed.version, &grown, former).await, IsrDecision::Refused);
    let present = Some((BrokerId(2), life));
    assert!(matches!(
        handle.propose_state(&of, id, committed.version, &grown, present).await,
        IsrDecision::Committed(Versioned { version, .. }) if version > committed.version
    ));
    see(&members[2].handle, |image| state_of(image, "t").value == grown).await;

    // Of a topic that was deleted and made again, nothing of the old one can be proposed.
    handle.delete_topic(&TopicRef::Name("t".to_owned())).await.unwrap();
    let second = handle.create_topic(&new_topic("t", &[&[1, 2, 3]]), Intent::Apply).await.unwrap().id;
    let image = see(handle, |image| image.topic_by_id(second).is_some() && led_by("t", 1)(image)).await;
    assert_eq!(handle.propose_state(&of, id, state_of(&image, "t").version, &shrunk, None).await, IsrDecision::Fenced);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_again_under_its_name_is_another_in_every_image() {
    let (_store, members) = three().await;
    let mut seen = members[2].handle.changes();
    for _ in 0..10 {
        let id = members[0].handle.create_topic(&new_topic("t", &[&[1], &[2]]), Intent::Apply).await.unwrap().id;
        members[0].handle.delete_topic(&TopicRef::Name("t".to_owned())).await.unwrap();
        let again = members[1].handle.create_topic(&new_topic("t", &[&[3]]), Intent::Apply).await.unwrap().id;
        assert_ne!(id, again);
        let image = see(&members[2].handle, |image| image.topic_by_id(again).is_some() && led_by("t", 3)(image)).await;
        assert_eq!(image.topic("t").unwrap().partitions.len(), 1);
        assert!(image.topic_by_id(id).is_none());
        members[2].handle.delete_topic(&TopicRef::Id(again)).await.unwrap();
        see(&members[2].handle, |image| image.topics.is_empty() && image.by_id.is_empty()).await;
        // No image ever showed a state of one topic under the id of another.
        let image = seen.borrow_and_update().clone();
        for topic in image.topics.values() {
            for partition in &topic.partitions {
                let leader = partition.state.value.leader;
                assert!(leader.is_none_or(|leader| partition.assignment.contains(&leader)), "{topic:?}");
            }
        }
    }
}

/// A broker tells that its replica has failed.
async fn fails(handle: &ClusterHandle, of: &TopicPartition, id: TopicId) {
    assert!(handle.note_offline(of, id, highwater_storage::LeaderEpoch(0)), "that was told before");
    handle.announce_replicas().await;
}

#[tokio::test]
async fn a_replica_whose_log_failed_hands_over() {
    let (_store, members) = three().await;
    let id = members[0].handle.create_topic(&new_topic("t", &[&[1, 2]]), Intent::Apply).await.unwrap().id;
    see(&members[0].handle, led_by("t", 1)).await;
    fails(&members[0].handle, &TopicPartition::new("t", 0), id).await;
    let image = see(&members[2].handle, led_by("t", 2)).await;
    assert!(image.offline.contains(&(id, 0, BrokerId(1))));
    assert_eq!(image.staying_with_logs(id, 0).into_keys().collect::<Vec<_>>(), [2, 3].map(BrokerId));
    // The new leader takes it out, and cannot take it back in.
    let of = TopicPartition::new("t", 0);
    let led = state_of(&image, "t");
    let alone = PartitionState { isr: vec![BrokerId(2)], ..led.value.clone() };
    let decision = members[1].handle.propose_state(&of, id, led.version, &alone, None).await;
    let IsrDecision::Committed(stored) = decision else { panic!("{decision:?}") };
    let grown = PartitionState { isr: vec![BrokerId(2), BrokerId(1)], ..alone };
    see(&members[1].handle, |image| !image.offline.is_empty()).await;
    let decision = members[1].handle.propose_state(&of, id, stored.version, &grown, None).await;
    assert_eq!(decision, IsrDecision::Refused);
}

/// An announcement speaks of one topic: of the next one of that name another has to be made in its place.
#[tokio::test]
async fn a_failed_replica_of_a_topic_made_again_hands_over_too() {
    let (_store, members) = three().await;
    let of = TopicPartition::new("t", 0);
    for _ in 0..2 {
        let id = members[0].handle.create_topic(&new_topic("t", &[&[1, 2]]), Intent::Apply).await.unwrap().id;
        see(&members[0].handle, led_by("t", 1)).await;
        fails(&members[0].handle, &of, id).await;
        let image = see(&members[2].handle, led_by("t", 2)).await;
        assert_eq!(image.offline.iter().collect::<Vec<_>>(), [&(id, 0, BrokerId(1))]);
        members[1].handle.delete_topic(&TopicRef::Id(id)).await.unwrap();
        see(&members[0].handle, |image| image.topic("t").is_none()).await;
    }
}

/// What was said of a failed replica ends with the log that takes its place, in this session and in the next, and a failure of that
/// one is told as well.
#[tokio::test]
async fn a_failed_replica_that_has_a_log_again_may_be_in_sync_and_lead() {
    let (_store, members) = three().await;
    let of = TopicPartition::new("t", 0);
    let id = members[0].handle.create_topic(&new_topic("t", &[&[1, 2]]), Intent::Apply).await.unwrap().id;
    see(&members[0].handle, led_by("t", 1)).await;
    assert!(!members[0].handle.note_online(&of), "nothing was said of it");
    for _ in 0..2 {
        fails(&members[0].handle, &of, id).await;
        see(&members[1].handle, |image| image.offline.contains(&(id, 0, BrokerId(1)))).await;
        let image = see(&members[1].handle, led_by("t", 2)).await;
        let led = state_of(&image, "t");
        assert!(members[0].handle.note_online(&of));
        members[0].handle.announce_replicas().await;
        for member in &members {
            see(&member.handle, |image| image.offline.is_empty()).await;
        }
        let alone = PartitionState { isr: vec![BrokerId(2)], ..led.value.clone() };
        let decision = members[1].handle.propose_state(&of, id, led.version, &alone, None).await;
        let IsrDecision::Committed(stored) = decision else { panic!("{decision:?}") };
        let grown = PartitionState { isr: vec![BrokerId(1), BrokerId(2)], ..alone };
        let decision = members[1].handle.propose_state(&of, id, stored.version, &grown, None).await;
        let IsrDecision::Committed(stored) = decision else { panic!("{decision:?}") };
        see(&members[1].handle, |image| state_of(image, "t").version == stored.version).await;
    }
    members[0].session.pause_heart(true);
    see(&members[1].handle, |image| image.brokers.len() == 2).await;
    members[0].session.pause_heart(false);
    let image = see(&members[1].handle, |image| image.brokers.len() == 3).await;
    assert!(image.offline.is_empty(), "{:?}", image.offline);
}

/// A controller that was deposed without noticing: its commits check an epoch that has moved on.
#[tokio::test]
async fn a_commit_under_an_old_controller_epoch_changes_nothing() {
    let store = EmbeddedStore::in_memory();
    let member = join(&store, 1, LastStop::Clean).await;
    see(&member.handle, |image| image.controller == Some(BrokerId(1))).await;
    let epoch = member.session.read(znodes::CONTROLLER_EPOCH).await.unwrap().unwrap();
    assert_eq!(epoch.data, "1");
    let next = znodes::encode_controller_epoch(2);
    let path = znodes::CONTROLLER_EPOCH.to_owned();
    member.session.commit(vec![Op::Set { path, data: next, version: None }]).await.unwrap();
    let other = store.session(10_000);
    member.handle.create_topic(&new_topic("t", &[&[1]]), Intent::Apply).await.unwrap();
    see(&member.handle, |image| image.topic("t").is_some()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(other.read(&znodes::state_path("t", 0)).await, Ok(None), "written by a deposed controller");
    // By then it has found out; when the office is free it runs again and goes on under epoch 3.
    other.commit(vec![Op::Delete { path: znodes::CONTROLLER.to_owned(), version: None }]).await.unwrap();
    let image = see(&member.handle, led_by("t", 1)).await;
    assert_eq!(state_of(&image, "t").value.controller_epoch, 3);
}

#[tokio::test]
async fn a_second_broker_with_a_taken_number_is_told_so() {
    let store = EmbeddedStore::in_memory();
    let first = join(&store, 1, LastStop::Clean).await;
    let session = Arc::new(store.session(10_000));
    let mut config = ClusterConfig::new(BrokerId(1));
    config.registration_timeout_ms = 300;
    let second = ClusterHandle::join(config.clone(), session.clone()).await.unwrap();
    let started = Instant::now();
    let error = second.register(endpoint(1), LastStop::Clean).await.unwrap_err();
    assert!(matches!(error, JoinError::DuplicateBroker { id: BrokerId(1), .. }), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(300));
    // The first one leaves: now the number is free.
    first.handle.leave().await;
    second.register(endpoint(1), LastStop::Clean).await.unwrap();

    config.cluster_id = Some("another-cluster".to_owned());
    let error = ClusterHandle::join(config, session).await.unwrap_err();
    assert!(matches!(error, JoinError::ClusterId { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_ask_at_once_one_topic_is_made() {
    let (_store, members) = three().await;
    let mut tasks = Vec::new();
    for turn in 0..20 {
        let handle = members[turn % 3].handle.clone();
        tasks.push(tokio::spawn(async move { handle.auto_create_topic("books").await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let image = see(&members[0].handle, |image| image.topics.len() == 1).await;
    let id = image.topic("books").unwrap().id;
    for member in &members {
        member.handle.wait_for_leaders("books", 1, 10_000).await.unwrap();
        assert_eq!(member.handle.image().topic("books").unwrap().id, id);
    }
}

/// Names that only differ in dots and underscores cannot pass each other by, however close they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_colliding_names_at_once_one_is_made() {
    let (_store, members) = three().await;
    for round in 0..100 {
        let create = |member: usize, name: String| {
            let handle = members[member].handle.clone();
            tokio::spawn(async move { handle.auto_create_topic(&name).await })
        };
        let (first, second) = (create(0, format!("a.{round}")), create(1, format!("a_{round}")));
        let results = [first.await.unwrap(), second.await.unwrap()];
        let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert!(matches!(refused.as_slice(), [AdminError::InvalidTopic(_)]), "{round}: {refused:?}");
    }
}

/// The news of a state comes before the news of its topic: nothing of the new topic is shown under the old one's id.
#[tokio::test]
async fn a_state_of_another_topic_of_the_same_name_is_not_taken_for_ones_own() {
    let (_store, members) = three().await;
    let handle = &members[0].handle;
    let old = handle.create_topic(&new_topic("t", &[&[1, 2], &[1, 2]]), Intent::Apply).await.unwrap().id;
    handle.wait_for_leaders("t", 2, 10_000).await.unwrap();
    let store: Arc<dyn Coordination> = members[2].session.clone();
    let mut view = View::new(BrokerId(1), store, MetadataImage::default());
    let (events, _kept) = mpsc::unbounded_channel();
    view.load(events).await.unwrap();
    assert!(view.image.topic_by_id(old).is_some());

    handle.delete_topic(&TopicRef::Id(old)).await.unwrap();
    let new = handle.create_topic(&new_topic("t", &[&[3]]), Intent::Apply).await.unwrap().id;
    handle.wait_for_deletion(old, 10_000).await.unwrap();
    handle.wait_for_leaders("t", 1, 10_000).await.unwrap();
    view.refresh_states(&"t".into(), &[0, 1]).await.unwrap();
    assert_eq!(view.image.topic("t").unwrap().id, new);
    assert_eq!(state_of(&view.image, "t").value.leader, Some(BrokerId(3)));
    assert!(view.image.topic_by_id(old).is_none());
}

/// A partition without a leader gets one as soon as it can: nothing is left leaderless for good.
#[tokio::test]
async fn the_last_in_sync_replica_leads_again_when_it_returns() {
    let (store, mut members) = three().await;
    members[0].handle.create_topic(&new_topic("t", &[&[3]]), Intent::Apply).await.unwrap();
    see(&members[0].handle, led_by("t", 3)).await;
    let killed = members.pop().unwrap();
    killed.handle.abandon();
    drop(killed);
    let image = see(&members[0].handle, |image| state_of(image, "t").value.leader.is_none()).await;
    assert_eq!(state_of(&image, "t").value.isr, [BrokerId(3)]);
    let before = state_of(&image, "t").value.leader_epoch;
    let back = join(&store, 3, LastStop::Unclean).await;
    // It may have lost something, so it says first how far its log goes. In an earlier life, or of an earlier state, that
    // does not count.
    let is_back = |image: &MetadataImage| image.brokers.contains_key(&BrokerId(3));
    let image =
        see(&members[0].handle, |image| is_back(image) && !state_of(image, "t").value.doubtful.is_empty()).await;
    let (id, leader_epoch) = (image.topic("t").unwrap().id, state_of(&image, "t").value.leader_epoch);
    let of = TopicPartition::new("t", 0);
    let end = PublishedEnd {
        life: image.brokers[&BrokerId(3)].epoch,
        leader_epoch,
        last_epoch: highwater_storage::LeaderEpoch(0),
        log_end: highwater_storage::Offset(5),
    };
    let former = PublishedEnd { life: BrokerEpoch(0), ..end };
    back.handle.note_end(&of, id, former);
    back.handle.publish_ends().await;
    let image = see(&members[0].handle, |image| image.ends.len() == 1).await;
    assert_eq!(image.ends[&(id, 0, BrokerId(3))], former);
    assert_eq!(state_of(&image, "t").value.leader, None);
    back.handle.note_end(&of, id, end);
    back.handle.publish_ends().await;
    let image = see(&members[0].handle, led_by("t", 3)).await;
    assert!(state_of(&image, "t").value.doubtful.is_empty());
    assert!(state_of(&image, "t").value.leader_epoch > before);
}

/// The cost of a change must not grow with the square of what there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_partitions_are_set_up_in_no_time() {
    let store = EmbeddedStore::in_memory();
    let member = join(&store, 1, LastStop::Clean).await;
    let started = Instant::now();
    let new = NewTopic { name: "wide".to_owned(), partitions: Some(5000), ..NewTopic::default() };
    member.handle.create_topic(&new, Intent::Apply).await.unwrap();
    member.handle.wait_for_leaders("wide", 5000, 60_000).await.unwrap();
    for topic in 0..50 {
        member.handle.auto_create_topic(&format!("narrow-{topic}")).await.unwrap();
    }
    for topic in 0..50 {
        member.handle.wait_for_leaders(&format!("narrow-{topic}"), 1, 60_000).await.unwrap();
    }
    // Another broker reads all of it when it joins, and a deletion takes all of it away.
    let second = join(&store, 2, LastStop::Clean).await;
    assert_eq!(second.handle.image().topic("wide").unwrap().partitions.len(), 5000);
    second.handle.delete_topic(&TopicRef::Name("wide".to_owned())).await.unwrap();
    see(&member.handle, |image| image.topics.len() == 50).await;
    let took = started.elapsed();
    println!("took {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A session whose connection breaks for so many questions that only agents ask: the next ones, or those that follow a
/// registration.
#[derive(Debug)]
struct Breaks {
    inner: Arc<EmbeddedSession>,
    next: AtomicU32,
    after_registration: AtomicU32,
}

impl Breaks {
    fn breaks(&self, path: &str) -> bool {
        let is_it = [znodes::CLUSTER_ID, znodes::TOPIC_IDS, znodes::LEAVING_BROKERS].contains(&path);
        is_it && self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    }
}

impl Coordination for Breaks {
    fn read(&self, path: &str) -> BoxFuture<'_, Result<Option<Node>, CoordinationError>> {
        if self.breaks(path) {
            return Box::pin(async { Err(CoordinationError::Unavailable) });
        }
        self.inner.read(path)
    }
    fn children(&self, path: &str) -> BoxFuture<'_, Result<Vec<String>, CoordinationError>> {
        if self.breaks(path) {
            return Box::pin(async { Err(CoordinationError::Unavailable) });
        }
        self.inner.children(path)
    }
    fn watch(&self, path: &str, kind: Watch) -> BoxFuture<'static, Result<(), CoordinationError>> {
        self.inner.watch(path, kind)
    }
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<OpDone>, CommitError>> {
        let is_it = |op: &Op| matches!(op, Op::CreateEphemeral { path, .. } if path.starts_with(znodes::BROKER_IDS));
        let registers = ops.iter().any(is_it);
        Box::pin(async move {
            let done = self.inner.commit(ops).await;
            if registers && done.is_ok() {
                self.next.store(self.after_registration.swap(0, Ordering::AcqRel), Ordering::Release);
            }
            done
        })
    }
    fn fits(&self, ops: &[Op]) -> bool {
        self.inner.fits(ops)
    }
    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
    fn abandon(&self) {
        self.inner.abandon();
    }
}

/// It gave up at once when the connection broke before it had joined or registered, and when it broke after that it took its own node
/// for that of another broker with its number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_for_a_moment_is_no_reason_not_to_register() {
    for (first, before, after) in [(3, 0, 0), (0, 3, 0), (0, 0, 3)] {
        let store = EmbeddedStore::in_memory();
        let (next, after_registration) = (AtomicU32::new(first), AtomicU32::new(after));
        let breaks = Arc::new(Breaks { inner: Arc::new(store.session(20_000)), next, after_registration });
        let mut config = ClusterConfig::new(BrokerId(1));
        config.registration_timeout_ms = 5_000;
        let handle = ClusterHandle::join(config, breaks.clone()).await.unwrap();
        assert_eq!(breaks.next.swap(before, Ordering::AcqRel), 0, "the connection broke");
        let epoch = handle.register(endpoint(1), LastStop::Unclean).await.unwrap();
        assert_eq!(breaks.next.load(Ordering::Acquire), 0, "the connection broke");
        assert_eq!(*handle.registration().borrow(), Registration::Registered(epoch));
        let node = breaks.read(&znodes::broker_path(BrokerId(1))).await.unwrap().unwrap();
        assert_eq!(BrokerEpoch(node.created), epoch);
    }
}
