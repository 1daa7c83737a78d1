//! Following: one task and one connection per leader broker, fetching for all partitions that follow it.
//!
//! A partition that wants records leaves its plan here; the task takes all plans at once, sends one Fetch, and gives
//! each partition its part of the answer, whereupon the partition leaves its next plan. What a plan says is the
//! partition's business (where to fetch, when to pause after a failure); this module knows connections only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use highwater_replication::{BrokerId, EpochEnd, FetchFailure, FetchPlan};
use highwater_storage::{LeaderEpoch, Offset, TopicId, TopicPartition};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ReplicaState};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::api::error_code::ErrorCode;
use crate::client::Connection;
use crate::hosted::{Command, Hosted, LeaderRecords, LeaderReply};
use crate::services::Services;

/// The version followers speak: topic ids, leader epochs, divergence in the answer, the broker's epoch.
const FETCH_VERSION: i16 = 17;

/// How long the leader may keep a fetch while one of our partitions is about to hand in its next plan (it flushes or
/// cuts first): that plan can only go out with the next request.
const SHORT_WAIT_MS: i32 = 10;

/// The largest answer that a follower takes: any that there can be. What it asked for bounds an answer, but for its first
/// batch, which comes whole: a leader may have taken one under a `max.message.bytes` and a `socket.request.max.bytes` that
/// were larger than today's, or larger than ours, and a follower that refused it would never get past it.
const RESPONSE_BYTES_MAX: usize = i32::MAX as usize;

/// The plans of all partitions that follow.
pub(crate) struct Fetchers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    leaders: BTreeMap<BrokerId, Leader>,
    leader_of: HashMap<TopicPartition, BrokerId>,
    paused: BTreeSet<TopicPartition>,
    all_paused: bool,
}

struct Leader {
    partitions: BTreeMap<TopicPartition, Following>,
    wake: Arc<Notify>,
}

struct Following {
    hosted: Weak<Hosted>,
    /// `None` while its last plan is being carried out or its next one is not made.
    plan: Option<FetchPlan>,
    /// Its last fetch succeeded, so the next plan is a matter of moments.
    prompt: bool,
}

/// A plan taken, with whom to tell.
struct Errand {
    hosted: Arc<Hosted>,
    plan: FetchPlan,
}

enum Turn {
    Fetch { errands: Vec<Errand>, more_to_come: bool },
    Wait(Arc<Notify>),
    End,
}

impl Fetchers {
    /// Nobody follows; these partitions are paused.
    pub(crate) fn new(paused: BTreeSet<TopicPartition>) -> Self {
        Self { state: Mutex::new(State { paused, ..State::default() }) }
    }

    /// Takes a partition's plan, instead of any earlier one. Starts the leader's task if there is none.
    pub(crate) fn want(&self, services: &Arc<Services>, hosted: &Weak<Hosted>, of: &TopicPartition, plan: FetchPlan) {
        let mut state = self.lock();
        let before = state.leader_of.insert(of.clone(), plan.leader);
        if let Some(before) = before.filter(|&before| before != plan.leader) {
            state.forget(before, of);
        }
        let mut start = false;
        let leader = state.leaders.entry(plan.leader).or_insert_with(|| {
            start = true;
            Leader { partitions: BTreeMap::new(), wake: Arc::new(Notify::new()) }
        });
        let following = Following { hosted: hosted.clone(), plan: Some(plan), prompt: false };
        leader.partitions.insert(of.clone(), following);
        leader.wake.notify_one();
        drop(state);
        if start {
            let task = run(Arc::clone(services), plan.leader);
            services.spawn(task);
        }
    }

    /// A partition does not follow any more.
    pub(crate) fn stop(&self, of: &TopicPartition) {
        let mut state = self.lock();
        if let Some(leader) = state.leader_of.remove(of) {
            state.forget(leader, of);
        }
    }

    /// Keeps all partitions from fetching, or lets them again. A fetch under way is still answered.
    pub(crate) fn pause_all(&self, pause: bool) {
        let mut state = self.lock();
        state.all_paused = pause;
        state.wake_all();
    }

    /// Keeps one partition from fetching, or lets it again.
    pub(crate) fn pause(&self, of: &TopicPartition, pause: bool) {
        let mut state = self.lock();
        if pause {
            state.paused.insert(of.clone());
        } else {
            state.paused.remove(of);
        }
        state.wake_all();
    }

    /// Takes what is to be fetched from a leader now.
    fn turn(&self, from: BrokerId) -> Turn {
        let mut state = self.lock();
        let State { leaders, paused, all_paused, .. } = &mut *state;
        let Some(leader) = leaders.get_mut(&from) else { return Turn::End };
        leader.partitions.retain(|_, following| following.hosted.strong_count() > 0);
        if leader.partitions.is_empty() {
            leaders.remove(&from);
            return Turn::End;
        }
        let (mut errands, mut more_to_come) = (Vec::new(), false);
        for (of, following) in &mut leader.partitions {
            if *all_paused || paused.contains(of) {
                continue;
            }
            match (following.plan.take(), following.hosted.upgrade()) {
                (Some(plan), Some(hosted)) => errands.push(Errand { hosted, plan }),
                _ => more_to_come |= following.prompt,
            }
        }
        if errands.is_empty() { Turn::Wait(Arc::clone(&leader.wake)) } else { Turn::Fetch { errands, more_to_come } }
    }

    /// Notes how a partition's fetch went, before it is told.
    fn answered(&self, of: &TopicPartition, from: BrokerId, well: bool) {
        let mut state = self.lock();
        if let Some(following) = state.leaders.get_mut(&from).and_then(|leader| leader.partitions.get_mut(of)) {
            following.prompt = well;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, leader: BrokerId, of: &TopicPartition) {
        if let Some(leader) = self.leaders.get_mut(&leader) {
            leader.partitions.remove(of);
            // Its task ends if that was the last one.
            leader.wake.notify_one();
        }
    }

    fn wake_all(&self) {
        for leader in self.leaders.values() {
            leader.wake.notify_one();
        }
    }
}

impl fmt::Debug for Fetchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let following: BTreeMap<_, _> =
            state.leaders.iter().map(|(leader, of)| (leader, of.partitions.len())).collect();
        f.debug_struct("Fetchers").field("following", &following).field("all_paused", &state.all_paused).finish()
    }
}

/// Fetches from one leader until no partition follows it any more.
async fn run(services: Arc<Services>, leader: BrokerId) {
    let mut connection: Option<Connection> = None;
    let mut rotation = 0usize;
    loop {
        let (mut errands, more_to_come) = match services.fetchers.turn(leader) {
            Turn::Fetch { errands, more_to_come } => (errands, more_to_come),
            Turn::Wait(wake) => {
                wake.notified().await;
                continue;
            }
            Turn::End => return,
        };
        // The answer's bytes run out in the order of the request: each partition gets its turn at the front.
        rotation = (rotation + 1) % errands.len();
        errands.rotate_left(rotation);
        let wait_ms = if more_to_come { SHORT_WAIT_MS } else { services.config.replica_fetch_wait_max_ms };
        match exchange(&services, leader, &mut connection, &request(&services, &errands, wait_ms)).await {
            Ok(response) => deliver(&services, leader, errands, response),
            Err(problem) => {
                tracing::debug!(%leader, problem, "cannot fetch");
                connection = None;
                for errand in errands {
                    fail(&services, leader, errand, FetchFailure::Unreachable);
                }
            }
        }
    }
}

async fn exchange(
    services: &Services,
    leader: BrokerId,
    connection: &mut Option<Connection>,
    request: &FetchRequest,
) -> Result<FetchResponse, String> {
    let address = {
        let image = services.cluster().ok_or("the cluster is not joined yet")?.image();
        let broker = image.brokers.get(&leader).ok_or("the leader is not registered")?;
        join_host_port(&broker.host, broker.port)
    };
    // A leader that came back somewhere else is not to be looked for where it was.
    if connection.as_ref().is_none_or(|connection| connection.address() != address) {
        let client_id = format!("highwater-follower-{}", services.config.broker_id);
        let timeout = Duration::from_millis(services.config.replica_socket_timeout_ms);
        let opened = Connection::connect_taking(RESPONSE_BYTES_MAX, &address, &client_id, timeout).await;
        *connection = Some(opened.map_err(|error| error.to_string())?);
    }
    match connection {
        Some(open) => open.send_version(request, FETCH_VERSION).await.map_err(|error| error.to_string()),
        None => Err("not connected".to_owned()),
    }
}

/// `HOST:PORT`, with brackets around an IPv6 address.
fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn request(services: &Services, errands: &[Errand], max_wait_ms: i32) -> FetchRequest {
    let config = &services.config;
    let mut topics: Vec<FetchTopic> = Vec::new();
    for Errand { hosted, plan } in errands {
        let partition = FetchPartition::default()
            .with_partition(hosted.topic_partition().partition)
            .with_current_leader_epoch(plan.leader_epoch.0)
            .with_fetch_offset(plan.from.0)
            .with_last_fetched_epoch(plan.last_fetched_epoch.unwrap_or(LeaderEpoch::NONE).0)
            .with_log_start_offset(plan.log_start.0)
            .with_partition_max_bytes(config.replica_fetch_bytes_max);
        let topic_id = Uuid::from_bytes(hosted.topic_id().0);
        // Partitions of one topic lie together but for the rotation, so at most one topic comes twice.
        match topics.last_mut().filter(|topic| topic.topic_id == topic_id) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(FetchTopic::default().with_topic_id(topic_id).with_partitions(vec![partition])),
        }
    }
    let epoch = errands.first().map_or(-1, |errand| errand.plan.broker_epoch.0);
    let me = kafka_protocol::messages::BrokerId(config.broker_id.0);
    FetchRequest::default()
        .with_replica_state(ReplicaState::default().with_replica_id(me).with_replica_epoch(epoch))
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(config.replica_fetch_bytes_min)
        .with_max_bytes(config.replica_fetch_response_bytes_max)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(topics)
}

fn deliver(services: &Services, leader: BrokerId, errands: Vec<Errand>, response: FetchResponse) {
    let mut parts: HashMap<(TopicId, i32), PartitionData> = HashMap::new();
    let whole = ErrorCode::from_number(response.error_code);
    for topic in response.responses {
        let id = TopicId(topic.topic_id.into_bytes());
        for part in topic.partitions {
            parts.insert((id, part.partition_index), part);
        }
    }
    for errand in errands {
        let key = (errand.hosted.topic_id(), errand.hosted.topic_partition().partition);
        let part = parts.remove(&key).filter(|_| whole == Some(ErrorCode::None));
        match part.map_or(Err(FetchFailure::Unreachable), outcome) {
            Ok(records) => {
                services.fetchers.answered(errand.hosted.topic_partition(), leader, true);
                let reply = LeaderReply { plan: errand.plan, result: Ok(records) };
                errand.hosted.submit(Command::Fetched(reply));
            }
            Err(failure) => fail(services, leader, errand, failure),
        }
    }
}

fn outcome(part: PartitionData) -> Result<LeaderRecords, FetchFailure> {
    match ErrorCode::from_number(part.error_code) {
        Some(ErrorCode::None) => {
            let diverging = &part.diverging_epoch;
            let diverging = (diverging.end_offset >= 0 || diverging.epoch >= 0)
                .then_some(EpochEnd { epoch: LeaderEpoch(diverging.epoch), end: Offset(diverging.end_offset) });
            Ok(LeaderRecords {
                records: part.records.unwrap_or_default(),
                high_watermark: Offset(part.high_watermark),
                log_start: Offset(part.log_start_offset),
                diverging,
            })
        }
        Some(ErrorCode::OffsetOutOfRange) => {
            let known = part.log_start_offset >= 0;
            Err(FetchFailure::OutOfRange { log_start: known.then_some(Offset(part.log_start_offset)) })
        }
        Some(ErrorCode::FencedLeaderEpoch) => Err(FetchFailure::FencedLeaderEpoch),
        Some(ErrorCode::UnknownLeaderEpoch) => Err(FetchFailure::UnknownLeaderEpoch),
        _ => Err(FetchFailure::Unreachable),
    }
}

fn fail(services: &Services, leader: BrokerId, errand: Errand, failure: FetchFailure) {
    let Errand { hosted, plan } = errand;
    services.fetchers.answered(hosted.topic_partition(), leader, false);
    hosted.submit(Command::Fetched(LeaderReply { plan, result: Err(failure) }));
}
