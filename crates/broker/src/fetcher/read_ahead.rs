//! Catching up: reading on at the leader while what came before is being appended.
//!
//! A follower's fetch says that it holds everything below the offset it names, so there is one at a time, and it is sent when
//! the records of the one before are in the log. That is right for followers that are about as far as their leader. One that
//! is far behind would stand still while the leader reads and sends, and the leader while it appends. So where the leader has
//! told of a high watermark above what it sent, the next records are asked for at once, on a connection of their own and as a
//! consumer asks for them: that acknowledges nothing, and gives nothing that is not committed. When the partition hands in
//! the plan that they answer, it gets them.
//!
//! ```text
//!  fetch ─► records, HW is above them ─┬─► append ──► plan ──┬─► append ──► plan ──► fetch
//!                                      └─► read on ─► records ─┘ HW is not above these
//! ```
//!
//! Whatever is not as expected (another plan, an error, nothing there) ends this, and the plan goes out as a fetch. So does one
//! now and then, for the leader to see how far we are.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater_replication::{BrokerId, FetchPlan};
use highwater_storage::{LeaderEpoch, Offset, TopicPartition, last_batch};
use kafka_protocol::messages::fetch_request::ReplicaState;
use kafka_protocol::messages::{self, FetchRequest, FetchResponse};
use tokio::sync::Notify;

use super::{Fetchers, Following, Leader, by_topic, connected, key, outcome, parts_of};
use crate::client::Connection;
use crate::fetch_sessions::{Asked, EPOCH_FINAL, Key};
use crate::hosted::{Command, Hosted, LeaderRecords, LeaderReply};
use crate::services::Services;

/// How long nothing is shown to the leader of how far we are.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// The most that one answer carries, but for a batch that is larger: enough that requests do not count, and so little that
/// its bytes are still in the processor's caches when they are appended.
const ANSWER_BYTES_MAX: i32 = 1 << 20;

/// Partitions that one request asks for: those with little left share an answer.
const QUESTIONS_MAX: usize = 16;

/// While so many answers wait for their partitions or are being appended nothing more is asked for: what they take is bounded.
const IN_HAND_MAX: usize = 4;

/// Where to read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    leader_epoch: LeaderEpoch,
    from: Offset,
    last_epoch: LeaderEpoch,
}

impl Place {
    /// The place behind what was fetched, if more is committed there.
    fn behind(plan: &FetchPlan, came: &LeaderRecords) -> Option<Self> {
        // For a member of the in-sync set there never is: what it has not acknowledged is not committed.
        if came.diverging.is_some() || came.high_watermark <= plan.from {
            return None;
        }
        let last = last_batch(&came.records)?;
        let header = last.header();
        let (leader_epoch, last_epoch) = (plan.leader_epoch, header.leader_epoch());
        let place = Self { leader_epoch, from: header.next_offset(), last_epoch };
        (came.high_watermark > place.from).then_some(place)
    }

    /// Whether a plan asks for just this.
    fn is_of(&self, plan: &FetchPlan) -> bool {
        let planned = (plan.leader_epoch, plan.from, plan.last_fetched_epoch);
        planned == (self.leader_epoch, self.from, Some(self.last_epoch))
    }
}

/// What a partition reads on.
#[derive(Debug)]
pub(super) struct Ahead {
    place: Place,
    phase: Phase,
    /// When the leader saw last how far we are.
    shown: Instant,
}

/// How far it is with that.
#[derive(Debug)]
enum Phase {
    /// To be asked for.
    Wanted,
    /// Asked for.
    Out,
    /// There, until the partition has a plan for it.
    Held(LeaderRecords),
}

/// What came for a place.
enum Came {
    Records(LeaderRecords),
    /// Others have used up the answer's bytes.
    NotYet,
    /// Nothing to go on with.
    Nothing,
}

impl Came {
    fn of(place: Place, part: Option<LeaderRecords>) -> Self {
        match part {
            Some(came) if came.diverging.is_some() => Self::Nothing,
            Some(came) if !came.records.is_empty() => Self::Records(came),
            Some(came) if came.high_watermark > place.from => Self::NotYet,
            _ => Self::Nothing,
        }
    }
}

/// What becomes of a plan.
enum Use {
    /// Its answer is there, and where to read on from there.
    Answered(LeaderRecords, Option<Ahead>),
    /// Its answer is on its way.
    Later(Ahead),
    /// It is to go out as a fetch.
    Fetch,
}

impl Ahead {
    /// Begins after a fetch, which has shown the leader how far we are.
    pub(super) fn after(plan: &FetchPlan, came: &LeaderRecords) -> Option<Self> {
        Some(Self { place: Place::behind(plan, came)?, phase: Phase::Wanted, shown: Instant::now() })
    }

    /// Holds a plan against what is read on.
    fn meet(self, plan: &FetchPlan) -> Use {
        if !self.place.is_of(plan) {
            return Use::Fetch;
        }
        match self.phase {
            Phase::Held(came) => {
                let place = Place::behind(plan, &came).filter(|_| self.shown.elapsed() < SHOWN_EVERY);
                let ahead = place.map(|place| Self { place, phase: Phase::Wanted, shown: self.shown });
                Use::Answered(came, ahead)
            }
            phase => Use::Later(Self { phase, ..self }),
        }
    }
}

/// A partition with the plan whose answer has come.
struct Delivery {
    hosted: Arc<Hosted>,
    reply: LeaderReply,
}

/// A place that is to be asked for, or was.
struct Question {
    hosted: Arc<Hosted>,
    place: Place,
}

/// What is to be done now.
struct Turn {
    deliveries: Vec<Delivery>,
    questions: Vec<Question>,
    wake: Arc<Notify>,
}

impl Fetchers {
    /// What can be delivered and what is to be asked for, if anything may be. `None` if nothing is read ahead any more: the
    /// task ends.
    fn turn_ahead(&self, from: BrokerId, may_ask: bool) -> Option<Turn> {
        let mut state = self.lock();
        let super::State { leaders, paused, all_paused, .. } = &mut *state;
        let leader = leaders.get_mut(&from)?;
        let deliveries = leader.deliveries();
        let is_paused = |of: &TopicPartition| *all_paused || paused.contains(of);
        let questions = if may_ask { leader.questions(is_paused) } else { Vec::new() };
        let goes_on = leader.partitions.values().any(|following| following.ahead.is_some());
        leader.reads_ahead = goes_on || !deliveries.is_empty();
        leader.reads_ahead.then(|| Turn { deliveries, questions, wake: Arc::clone(&leader.wake_ahead) })
    }

    /// Takes what came for a place.
    fn came_ahead(&self, from: BrokerId, Question { hosted, place }: Question, came: Came) {
        let mut state = self.lock();
        let Some(leader) = state.leaders.get_mut(&from) else { return };
        let Some(following) = leader.partitions.get_mut(hosted.topic_partition()) else { return };
        let is_out = |ahead: &&mut Ahead| ahead.place == place && matches!(ahead.phase, Phase::Out);
        let Some(ahead) = following.ahead.as_mut().filter(is_out) else { return };
        match came {
            Came::Records(came) => ahead.phase = Phase::Held(came),
            Came::NotYet => ahead.phase = Phase::Wanted,
            Came::Nothing => {
                following.ahead = None;
                leader.wake.notify_one();
            }
        }
    }
}

impl Leader {
    /// Takes the answers out whose plans are there. Plans that are not as expected are left to be fetched.
    fn deliveries(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for following in self.partitions.values_mut() {
            let Some(ahead) = following.ahead.take() else { continue };
            let Some(plan) = following.plan.take() else {
                following.ahead = Some(ahead);
                continue;
            };
            match (ahead.meet(&plan), following.hosted.upgrade()) {
                (Use::Answered(came, ahead), Some(hosted)) => {
                    following.ahead = ahead;
                    following.prompt = true;
                    deliveries.push(Delivery { hosted, reply: LeaderReply { plan, result: Ok(came) } });
                }
                (Use::Later(ahead), Some(_)) => {
                    following.ahead = Some(ahead);
                    following.plan = Some(plan);
                }
                (Use::Fetch, Some(_)) => {
                    following.plan = Some(plan);
                    self.wake.notify_one();
                }
                (_, None) => {}
            }
        }
        deliveries
    }

    /// Chooses what is asked for next, in turns: who comes first has all of the answer if it needs it.
    fn questions(&mut self, is_paused: impl Fn(&TopicPartition) -> bool) -> Vec<Question> {
        let in_hand = |following: &Following| match &following.ahead {
            None => 0,
            Some(ahead) => usize::from(following.plan.is_none()) + usize::from(matches!(ahead.phase, Phase::Held(_))),
        };
        if self.partitions.values().map(in_hand).sum::<usize>() >= IN_HAND_MAX {
            return Vec::new();
        }
        let is_wanted = |(of, following): &(&TopicPartition, &Following)| {
            let wanted = following.ahead.as_ref().is_some_and(|ahead| matches!(ahead.phase, Phase::Wanted));
            wanted && !is_paused(of)
        };
        let mut wanted: Vec<TopicPartition> =
            self.partitions.iter().filter(is_wanted).map(|(of, _)| of.clone()).collect();
        let next = wanted.partition_point(|of| Some(of) <= self.last_ahead.as_ref());
        let next = if next < wanted.len() { next } else { 0 };
        wanted.rotate_left(next);
        wanted.truncate(QUESTIONS_MAX);
        self.last_ahead = wanted.first().cloned();
        let mut questions = Vec::new();
        for of in wanted {
            let Some(following) = self.partitions.get_mut(&of) else { continue };
            if let (Some(ahead), Some(hosted)) = (&mut following.ahead, following.hosted.upgrade()) {
                ahead.phase = Phase::Out;
                questions.push(Question { hosted, place: ahead.place });
            }
        }
        questions
    }
}

type Answer = Pin<Box<dyn Future<Output = (Vec<Question>, Result<FetchResponse, String>)> + Send>>;

/// Reads ahead at one leader until no partition needs it any more.
pub(super) async fn run(services: Arc<Services>, leader: BrokerId) {
    let mut connection = None;
    let mut asked: Option<Answer> = None;
    loop {
        let turn = services.fetchers.turn_ahead(leader, asked.is_none());
        let Some(Turn { deliveries, questions, wake }) = turn else { return };
        // Asked before the others append: so both go on at the same time.
        if !questions.is_empty() {
            asked = Some(ask(&services, leader, &mut connection, questions).await);
        }
        if !deliveries.is_empty() {
            for Delivery { hosted, reply } in deliveries {
                hosted.submit(Command::Fetched(reply));
            }
            continue;
        }
        let Some(answer) = &mut asked else {
            wake.notified().await;
            continue;
        };
        tokio::select! {
            () = wake.notified() => {}
            (questions, response) = answer => {
                asked = None;
                if let Err(problem) = &response {
                    tracing::debug!(%leader, problem, "cannot read ahead");
                    connection = None;
                }
                let mut parts = response.map_or_else(|_| Default::default(), parts_of);
                for question in questions {
                    let part = parts.remove(&key(&question.hosted)).map(outcome);
                    let came = Came::of(question.place, part.and_then(Result::ok));
                    services.fetchers.came_ahead(leader, question, came);
                }
            }
        }
    }
}

/// Sends a request and returns what waits for its answer.
async fn ask(
    services: &Services,
    leader: BrokerId,
    connection: &mut Option<Connection>,
    questions: Vec<Question>,
) -> Answer {
    let request = request(services, &questions);
    match connected(services, leader, "follower", connection).await {
        Ok(open) => {
            let answer = open.call(&request, super::FETCH_VERSION);
            Box::pin(async move { (questions, answer.await.map_err(|error| error.to_string())) })
        }
        Err(problem) => Box::pin(std::future::ready((questions, Err(problem)))),
    }
}

/// Without a session, without waiting, and in nobody's name.
fn request(services: &Services, questions: &[Question]) -> FetchRequest {
    let config = &services.config;
    let asked = |Question { hosted, place }: &Question| -> (Key, Asked) {
        let asked = Asked {
            current_leader_epoch: place.leader_epoch.0,
            from: place.from.0,
            last_fetched_epoch: place.last_epoch.0,
            log_start: -1,
            max_bytes: config.replica_fetch_bytes_max,
        };
        (key(hosted), asked)
    };
    let nobody = ReplicaState::default().with_replica_id(messages::BrokerId(-1)).with_replica_epoch(-1);
    FetchRequest::default()
        .with_replica_state(nobody)
        .with_max_bytes(config.replica_fetch_response_bytes_max.min(ANSWER_BYTES_MAX))
        .with_session_epoch(EPOCH_FINAL)
        .with_topics(by_topic(questions.iter().map(asked).collect()))
}

#[cfg(test)]
mod tests;
