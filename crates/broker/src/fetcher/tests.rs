use bytes::BytesMut;
use kafka_protocol::protocol::Encodable;

use super::*;
use crate::config::BrokerConfig;

fn bytes(request: &FetchRequest) -> usize {
    let mut bytes = BytesMut::new();
    request.encode(&mut bytes, FETCH_VERSION).expect("it can be written");
    bytes.len()
}

#[tokio::test]
async fn a_request_for_a_thousand_idle_partitions_is_as_small_as_for_one() {
    let services = Services::new(BrokerConfig::default());
    let asked = Asked { current_leader_epoch: 3, from: 7, last_fetched_epoch: 2, log_start: 0, max_bytes: 1 << 20 };
    let key = |partition: i32| Key { topic: Topic::Id(TopicId([partition as u8 % 9; 16])), partition };
    let wanted: Vec<(Key, Asked)> = (0..1000).map(|partition| (key(partition), asked)).collect();
    let mut session = FollowerSession::default();
    let opens = request(&services, session.draft(&wanted), BrokerEpoch(5), 500);
    assert_eq!(opens.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 1000);
    assert!(bytes(&opens) > 32_000, "{}", bytes(&opens));
    session.answered(Some(ErrorCode::None), 9);
    let goes_on = request(&services, session.draft(&wanted), BrokerEpoch(5), 500);
    assert_eq!((goes_on.session_id, goes_on.session_epoch, goes_on.replica_state.replica_epoch), (9, 1, 5));
    assert!(bytes(&goes_on) < 64, "{}", bytes(&goes_on));
    // One is busy: it is forgotten, and comes back.
    session.answered(Some(ErrorCode::None), 9);
    let forgets = request(&services, session.draft(&wanted[1..]), BrokerEpoch(5), 500);
    let forgotten = &forgets.forgotten_topics_data[0];
    assert_eq!((forgotten.topic_id, &forgotten.partitions[..]), (Uuid::from_bytes([0; 16]), &[0][..]));
    session.answered(Some(ErrorCode::None), 9);
    let lists = request(&services, session.draft(&wanted), BrokerEpoch(5), 500);
    assert_eq!((lists.topics.len(), lists.topics[0].partitions[0].fetch_offset), (1, 7));
}

/// A plan that is given back is no newer than what came meanwhile.
#[tokio::test]
async fn plans_without_news_are_kept_unless_there_are_newer_ones() {
    let services = Services::new(BrokerConfig::default());
    let dir = tempfile::tempdir().expect("a directory");
    let hosted = crate::hosted::tests::hosted(&services, dir.path());
    let (of, leader) = (hosted.topic_partition().clone(), BrokerId(2));
    let plan = |from: i64| FetchPlan {
        leader,
        leader_epoch: LeaderEpoch(3),
        from: Offset(from),
        last_fetched_epoch: None,
        log_start: Offset(0),
        broker_epoch: BrokerEpoch(5),
    };
    let weak = Arc::downgrade(&hosted);
    let taken = || match services.fetchers.turn(leader) {
        Turn::Fetch { mut errands, .. } => errands.pop().map(|errand| errand.plan.from.0),
        _ => None,
    };
    let keep = |from: i64| {
        let errand = Errand { hosted: Arc::clone(&hosted), plan: plan(from) };
        services.fetchers.keep(leader, vec![errand]);
    };
    services.fetchers.want(&services, &weak, &of, plan(1));
    assert_eq!((taken(), taken()), (Some(1), None));
    keep(1);
    assert_eq!((taken(), taken()), (Some(1), None));
    services.fetchers.want(&services, &weak, &of, plan(2));
    keep(1);
    assert_eq!((taken(), taken()), (Some(2), None));
    services.fetchers.stop(&of);
    keep(2);
    assert_eq!(taken(), None, "it does not follow any more");
}
