//! Following: one task and one connection per leader broker, fetching for all partitions that follow it.
//!
//! A partition that wants records leaves its plan here; the task takes all plans at once, sends one Fetch, and gives
//! each partition its part of the answer, whereupon the partition leaves its next plan. What a plan says is the
//! partition's business (where to fetch, when to pause after a failure); this module knows connections only.
//!
//! With a fetch session the leader tells only of partitions with something new. The plans of the others stay as they are:
//! an idle partition is not even told that there was a fetch.
//!
//! Partitions that are far behind have their plans answered in another way meanwhile: see [`read_ahead`].

mod read_ahead;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use highwater_replication::{BrokerEpoch, BrokerId, EpochEnd, FetchFailure, FetchPlan};
use highwater_storage::{LeaderEpoch, Offset, TopicId, TopicPartition};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic, ReplicaState};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use tokio::sync::Notify;
use uuid::Uuid;

use self::read_ahead::Ahead;
use crate::api::error_code::ErrorCode;
use crate::client::Connection;
use crate::fetch_sessions::{Asked, Key, Topic};
use crate::follower_session::{Draft, FollowerSession, Verdict, of_latest_life};
use crate::hosted::{Command, Hosted, LeaderRecords, LeaderReply};
use crate::services::Services;

/// The version followers speak: topic ids, leader epochs, divergence in the answer, the broker's epoch.
pub(crate) const FETCH_VERSION: i16 = 17;

/// How often the same is asked of a leader that does not go on with our session: the second time it opens one.
const ATTEMPTS_MAX: u32 = 2;

/// How long the leader may keep a fetch while one of our partitions is about to hand in its next plan (it flushes or
/// cuts first): that plan can only go out with the next request.
const SHORT_WAIT_MS: i32 = 10;

/// How long an answer is still waited for once another partition wants to be fetched: longer than one takes for which there
/// are records. Twice as long each time on end, up to the second of these: where many partitions change leaders one by one.
const LAST_WAIT: Duration = Duration::from_millis(10);
const LAST_WAIT_MAX: Duration = Duration::from_millis(160);

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

#[derive(Default)]
struct Leader {
    partitions: BTreeMap<TopicPartition, Following>,
    wake: Arc<Notify>,
    /// A partition has begun to follow, or asks again after a failure, since plans were taken last: for as long as it is not
    /// fetched for, it may keep records of its leader from being committed.
    in_hurry: bool,
    /// The task that reads ahead: whether there is one, what wakes it, and whose turn was last.
    reads_ahead: bool,
    wake_ahead: Arc<Notify>,
    last_ahead: Option<TopicPartition>,
}

struct Following {
    hosted: Weak<Hosted>,
    /// `None` while its last plan is being carried out or its next one is not made.
    plan: Option<FetchPlan>,
    /// Its last fetch succeeded, so the next plan is a matter of moments.
    prompt: bool,
    /// What is read on for it. Its plans are for the task that does so, as long as there is something.
    ahead: Option<Ahead>,
}

/// A plan taken, with whom to tell.
struct Errand {
    hosted: Arc<Hosted>,
    plan: FetchPlan,
}

enum Turn {
    Fetch { errands: Vec<Errand>, more_to_come: bool, wake: Arc<Notify> },
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
            Leader::default()
        });
        let known = leader.partitions.remove(of);
        let was_prompt = known.as_ref().is_some_and(|known| known.prompt);
        let ahead = known.filter(|known| known.hosted.ptr_eq(hosted)).and_then(|known| known.ahead);
        if ahead.is_some() {
            leader.wake_ahead.notify_one();
        } else {
            leader.in_hurry |= !was_prompt;
            leader.wake.notify_one();
        }
        let following = Following { hosted: hosted.clone(), plan: Some(plan), prompt: false, ahead };
        leader.partitions.insert(of.clone(), following);
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
        let before = leader.partitions.len();
        leader.partitions.retain(|_, following| following.hosted.strong_count() > 0);
        if leader.partitions.len() < before {
            // It ends with the last one that it reads ahead for.
            leader.wake_ahead.notify_one();
        }
        if leader.partitions.is_empty() {
            leaders.remove(&from);
            return Turn::End;
        }
        leader.in_hurry = false;
        let (mut errands, mut more_to_come) = (Vec::new(), false);
        for (of, following) in &mut leader.partitions {
            if *all_paused || paused.contains(of) {
                continue;
            }
            if following.ahead.is_some() {
                // Any moment its plan may be one to fetch with.
                more_to_come = true;
                continue;
            }
            match (following.plan.take(), following.hosted.upgrade()) {
                (Some(plan), Some(hosted)) => errands.push(Errand { hosted, plan }),
                _ => more_to_come |= following.prompt,
            }
        }
        let wake = Arc::clone(&leader.wake);
        if errands.is_empty() { Turn::Wait(wake) } else { Turn::Fetch { errands, more_to_come, wake } }
    }

    /// Waits until a partition is in a hurry whose plan was not among those taken last.
    async fn hurry(&self, from: BrokerId, wake: &Notify) {
        while !self.lock().leaders.get(&from).is_some_and(|leader| leader.in_hurry) {
            wake.notified().await;
        }
    }

    /// Gives plans back that there was nothing new for, unless there are newer ones by now, or none are wanted any more.
    fn keep(&self, from: BrokerId, errands: Vec<Errand>) {
        let mut state = self.lock();
        let Some(leader) = state.leaders.get_mut(&from) else { return };
        for Errand { hosted, plan } in errands {
            let following = leader.partitions.get_mut(hosted.topic_partition());
            let is_same = |following: &&mut Following| following.hosted.as_ptr() == Arc::as_ptr(&hosted);
            if let Some(following) = following.filter(is_same) {
                following.plan.get_or_insert(plan);
            }
        }
    }

    /// Notes how a partition's fetch went, before it is told, and what is to be read ahead for it. True if that needs a task
    /// that is to be started.
    fn answered(&self, of: &TopicPartition, from: BrokerId, well: bool, ahead: Option<Ahead>) -> bool {
        let mut state = self.lock();
        let Some(leader) = state.leaders.get_mut(&from) else { return false };
        let Some(following) = leader.partitions.get_mut(of) else { return false };
        following.prompt = well;
        following.ahead = ahead;
        if following.ahead.is_none() {
            return false;
        }
        leader.wake_ahead.notify_one();
        !std::mem::replace(&mut leader.reads_ahead, true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, leader: BrokerId, of: &TopicPartition) {
        if let Some(leader) = self.leaders.get_mut(&leader) {
            leader.partitions.remove(of);
            // Its tasks end if that was the last one.
            leader.wake.notify_one();
            leader.wake_ahead.notify_one();
        }
    }

    fn wake_all(&self) {
        for leader in self.leaders.values() {
            leader.wake.notify_one();
            leader.wake_ahead.notify_one();
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
    let mut peer = Peer { leader, connection: None, session: FollowerSession::default() };
    let mut rotation = 0usize;
    let mut last_wait = LAST_WAIT;
    loop {
        let (errands, more_to_come, wake) = match services.fetchers.turn(leader) {
            Turn::Fetch { errands, more_to_come, wake } => (errands, more_to_come, wake),
            Turn::Wait(wake) => {
                wake.notified().await;
                continue;
            }
            Turn::End => return,
        };
        let (life, mut errands, earlier) = of_latest_life(errands, |errand| errand.plan.broker_epoch);
        for errand in earlier {
            fail(&services, leader, errand, FetchFailure::Unreachable);
        }
        // The answer's bytes run out in the order of the request: each partition gets its turn at the front.
        rotation = (rotation + 1) % errands.len();
        errands.rotate_left(rotation);
        let wait_ms = if more_to_come { SHORT_WAIT_MS } else { services.config.replica_fetch_wait_max_ms };
        let fetched = tokio::select! {
            biased;
            fetched = peer.fetch(&services, &errands, life, wait_ms) => Some(fetched),
            // An idle leader keeps its answer back, and so what others want to ask. There is no way to call a request off
            // but with its connection.
            () = async {
                services.fetchers.hurry(leader, &wake).await;
                tokio::time::sleep(last_wait).await;
            }, if wait_ms > SHORT_WAIT_MS => None,
        };
        let Some(fetched) = fetched else {
            peer.connection = None;
            peer.session.reset();
            services.fetchers.keep(leader, errands);
            last_wait = (last_wait * 2).min(LAST_WAIT_MAX);
            continue;
        };
        last_wait = LAST_WAIT;
        match fetched {
            Ok((response, tells_all)) => {
                if !deliver(&services, leader, errands, response, tells_all) {
                    peer.session.reset();
                }
            }
            Err(problem) => {
                tracing::debug!(%leader, problem, "cannot fetch");
                peer.connection = None;
                for errand in errands {
                    fail(&services, leader, errand, FetchFailure::Unreachable);
                }
            }
        }
    }
}

/// A leader, as its task knows it.
struct Peer {
    leader: BrokerId,
    connection: Option<Connection>,
    session: FollowerSession,
}

impl Peer {
    /// Fetches, and says whether the answer tells of every partition.
    async fn fetch(
        &mut self,
        services: &Services,
        errands: &[Errand],
        life: BrokerEpoch,
        wait_ms: i32,
    ) -> Result<(FetchResponse, bool), String> {
        let wanted: Vec<(Key, Asked)> = errands.iter().map(|errand| wanted(services, errand)).collect();
        for _ in 0..ATTEMPTS_MAX {
            let request = request(services, self.session.draft(&wanted), life, wait_ms);
            let response = match exchange(services, self.leader, &mut self.connection, &request).await {
                Ok(response) => response,
                Err(problem) => {
                    self.session.reset();
                    return Err(problem);
                }
            };
            let code = ErrorCode::from_number(response.error_code);
            match self.session.answered(code, response.session_id) {
                Verdict::Full => return Ok((response, true)),
                Verdict::OnlyNews => return Ok((response, false)),
                Verdict::AskAgain => tracing::debug!(leader = %self.leader, ?code, "the fetch session begins anew"),
                Verdict::Failed => return Err(format!("answered with code {}", response.error_code)),
            }
        }
        Err("the leader refuses a new session".to_owned())
    }
}

async fn exchange(
    services: &Services,
    leader: BrokerId,
    connection: &mut Option<Connection>,
    request: &FetchRequest,
) -> Result<FetchResponse, String> {
    let open = connected(services, leader, "follower", connection).await?;
    open.send_version(request, FETCH_VERSION).await.map_err(|error| error.to_string())
}

/// The connection to another broker, opened if there is none to where it is now.
pub(crate) async fn connected<'a>(
    services: &Services,
    leader: BrokerId,
    as_what: &str,
    connection: &'a mut Option<Connection>,
) -> Result<&'a Connection, String> {
    let address = address_of(services, leader)?;
    // A leader that came back somewhere else is not to be looked for where it was.
    if connection.as_ref().is_none_or(|connection| connection.address() != address) {
        let client_id = format!("highwater-{as_what}-{}", services.config.broker_id);
        let timeout = Duration::from_millis(services.config.replica_socket_timeout_ms);
        let opened = Connection::connect_taking(RESPONSE_BYTES_MAX, &address, &client_id, timeout).await;
        *connection = Some(opened.map_err(|error| error.to_string())?);
    }
    connection.as_ref().ok_or_else(|| "not connected".to_owned())
}

/// Where a broker of the cluster listens.
fn address_of(services: &Services, id: BrokerId) -> Result<String, &'static str> {
    let image = services.cluster().ok_or("the cluster is not joined yet")?.image();
    let broker = image.brokers.get(&id).ok_or("it is not registered")?;
    Ok(join_host_port(&broker.host, broker.port))
}

/// `HOST:PORT`, with brackets around an IPv6 address.
fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn key(hosted: &Hosted) -> Key {
    Key { topic: Topic::Id(hosted.topic_id()), partition: hosted.topic_partition().partition }
}

fn wanted(services: &Services, Errand { hosted, plan }: &Errand) -> (Key, Asked) {
    let asked = Asked {
        current_leader_epoch: plan.leader_epoch.0,
        from: plan.from.0,
        last_fetched_epoch: plan.last_fetched_epoch.unwrap_or(LeaderEpoch::NONE).0,
        log_start: plan.log_start.0,
        max_bytes: services.config.replica_fetch_bytes_max,
    };
    (key(hosted), asked)
}

fn request(services: &Services, draft: Draft, life: BrokerEpoch, max_wait_ms: i32) -> FetchRequest {
    let config = &services.config;
    let mut forgotten: Vec<ForgottenTopic> = Vec::new();
    for key in draft.forget {
        let topic_id = topic_id(key.topic);
        match forgotten.last_mut().filter(|topic| topic.topic_id == topic_id) {
            Some(topic) => topic.partitions.push(key.partition),
            None => {
                forgotten.push(ForgottenTopic::default().with_topic_id(topic_id).with_partitions(vec![key.partition]));
            }
        }
    }
    let me = kafka_protocol::messages::BrokerId(config.broker_id.0);
    FetchRequest::default()
        .with_replica_state(ReplicaState::default().with_replica_id(me).with_replica_epoch(life.0))
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(config.replica_fetch_bytes_min)
        .with_max_bytes(config.replica_fetch_response_bytes_max)
        .with_session_id(draft.session_id)
        .with_session_epoch(draft.session_epoch)
        .with_topics(by_topic(draft.list))
        .with_forgotten_topics_data(forgotten)
}

fn topic_id(topic: Topic) -> Uuid {
    match topic {
        Topic::Id(id) => Uuid::from_bytes(id.0),
        // Followers name topics by id.
        Topic::Name(_) => Uuid::nil(),
    }
}

fn by_topic(list: Vec<(Key, Asked)>) -> Vec<FetchTopic> {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for (key, asked) in list {
        let partition = FetchPartition::default()
            .with_partition(key.partition)
            .with_current_leader_epoch(asked.current_leader_epoch)
            .with_fetch_offset(asked.from)
            .with_last_fetched_epoch(asked.last_fetched_epoch)
            .with_log_start_offset(asked.log_start)
            .with_partition_max_bytes(asked.max_bytes);
        let topic_id = topic_id(key.topic);
        // Partitions of one topic lie together but for the rotation, so at most one topic comes twice.
        match topics.last_mut().filter(|topic| topic.topic_id == topic_id) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(FetchTopic::default().with_topic_id(topic_id).with_partitions(vec![partition])),
        }
    }
    topics
}

/// Gives each partition its part of an answer. False if one that must be there is missing.
fn deliver(
    services: &Arc<Services>,
    leader: BrokerId,
    errands: Vec<Errand>,
    response: FetchResponse,
    tells_all: bool,
) -> bool {
    let mut parts = parts_of(response);
    let (mut unchanged, mut is_whole) = (Vec::new(), true);
    for errand in errands {
        match parts.remove(&key(&errand.hosted)).map(outcome) {
            Some(Ok(records)) => {
                let (of, ahead) = (errand.hosted.topic_partition(), Ahead::after(&errand.plan, &records));
                if services.fetchers.answered(of, leader, true, ahead) {
                    services.spawn(read_ahead::run(Arc::clone(services), leader));
                }
                let reply = LeaderReply { plan: errand.plan, result: Ok(records) };
                errand.hosted.submit(Command::Fetched(reply));
            }
            Some(Err(failure)) => fail(services, leader, errand, failure),
            None if tells_all => {
                is_whole = false;
                fail(services, leader, errand, FetchFailure::Unreachable);
            }
            None => unchanged.push(errand),
        }
    }
    services.fetchers.keep(leader, unchanged);
    is_whole
}

fn parts_of(response: FetchResponse) -> HashMap<Key, PartitionData> {
    let mut parts = HashMap::new();
    for topic in response.responses {
        let id = TopicId(topic.topic_id.into_bytes());
        for part in topic.partitions {
            parts.insert(Key { topic: Topic::Id(id), partition: part.partition_index }, part);
        }
    }
    parts
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
    services.fetchers.answered(hosted.topic_partition(), leader, false, None);
    hosted.submit(Command::Fetched(LeaderReply { plan, result: Err(failure) }));
}

#[cfg(test)]
mod tests;
