//! A partition that this broker holds a replica of: its owner, the commands it takes and where its effects go.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use bytes::Bytes;
pub(crate) use highwater_groups::Guard;
use highwater_groups::{Guards, Producer, may_be_appended};
use highwater_replication::{
    Acknowledged, Acks, BrokerEpoch, BrokerId, Cut, CutReason, Effect, FenceReason, FetchFailure, FetchGrant,
    FetchPlan, IsrDecision, Partition, PartitionState, ProduceError, ProduceRefused, Produced, PublishedEnd,
    ReplicaConfig, Status, Versioned, WaitToken,
};
use highwater_storage::{
    AppendError, CheckedBatch, Damaged, FlushDone, FlushError, FlushJob, LeaderEpoch, LogOptions, LogReader, Offset,
    ProduceRules, ReadError, ReadLimit, SequenceError, Step, TimestampMs, TopicId, TopicPartition, WorkDone, WorkJob,
};

use crate::api::ErrorCode;
use crate::damage::{self, Told};
use crate::deadlines::{Entry, Wake};
use crate::fetches::{Alarm, Answer, Chunk, Granted, Question, ReadFailure, Source, Watching};
use crate::gather::Slot;
use crate::history::HistoryEntry;
use crate::owner::{Outlet, Owned, Owner, Refused};
use crate::seldom::Seldom;
use crate::services::Services;

mod house;
mod producers;
use house::House;
use producers::{begins_with, known_producer};

/// How many cuts of a log are remembered for views.
const CUTS_MAX: usize = 64;

/// Records of a leader from so many bytes on are appended on an owner thread: handing them over takes far less time.
const MANY_BYTES: usize = 256 << 10;

/// One hosted partition.
pub(crate) struct Hosted {
    topic_partition: TopicPartition,
    topic_id: TopicId,
    owner: Arc<Owner<Core>>,
    reader: LogReader,
    rules: RwLock<Arc<ProduceRules>>,
    segment_bytes: AtomicU32,
    guards: Arc<Guards>,
    services: Arc<Services>,
    /// What every request of a client meets while the disk is full or broken.
    troubles: Seldom,
}

/// The answer to a produce.
pub(crate) type ProduceAnswer = Result<Acknowledged, NotProduced>;

/// Why a batch was not appended.
#[derive(Debug)]
pub(crate) enum NotProduced {
    /// The partition refused it.
    Partition(ProduceError),
    /// The coordinator of its transaction did, or was not reached.
    Transaction(ErrorCode),
}

impl From<ProduceError> for NotProduced {
    fn from(error: ProduceError) -> Self {
        Self::Partition(error)
    }
}

/// Something short to do with the partition itself.
pub(crate) type Asked = Box<dyn FnOnce(&mut Partition, TimestampMs) + Send>;

/// What a partition is told.
pub(crate) enum Command {
    /// A batch of a client or a coordinator.
    Produce(Box<Given>),
    /// A client's or follower's fetch.
    Fetch { question: Question, slot: Slot<Answer<Hosted>>, hosted: Arc<Hosted> },
    /// A fetch does not wait any more.
    Unwatch(WaitToken),
    /// The leader answered our fetch.
    Fetched(LeaderReply),
    /// A sync ended.
    Flushed(Box<FlushDone>),
    /// A piece of housekeeping was done.
    Worked(Box<WorkDone>),
    /// The store decided about a proposal.
    IsrDecided { proposal: u64, decision: IsrDecision },
    /// The store's state.
    State { state: Versioned<PartitionState>, assignment: Vec<BrokerId> },
    /// Who is alive.
    LiveBrokers(Arc<std::collections::BTreeMap<BrokerId, BrokerEpoch>>),
    /// The session with the store expired.
    SessionLost,
    /// This broker is registered (again).
    Registered(BrokerEpoch),
    /// New settings.
    Configure(Box<(ReplicaConfig, Arc<LogOptions>)>),
    /// A moment has come that the partition asked for.
    Tick,
    /// Look for work, segments that retention takes among it or not.
    Housekeeping { retention: bool },
    /// Something short that needs the partition itself.
    Ask(Asked),
    /// Something that waits for the disk.
    AskSlowly(Asked),
}

/// A batch to be appended.
pub(crate) struct Given {
    batch: CheckedBatch<Bytes>,
    acks: Acks,
    deadline: TimestampMs,
    /// What lets it begin a transaction here.
    guard: Option<Arc<Guard>>,
    /// Its producer counts from 0 again in each transaction (transaction version 2).
    counts_anew: bool,
    /// The only leadership in which it may be appended.
    leader_epoch: Option<LeaderEpoch>,
    slot: Slot<ProduceAnswer>,
}

/// The offsets of a partition that are checkpointed in the data directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) recovery_point: Offset,
    pub(crate) log_start: Offset,
    pub(crate) high_watermark: Offset,
    /// How far the log is compacted, if it is to be.
    pub(crate) cleaner_offset: Option<Offset>,
}

/// A leader's answer with what it belongs to.
#[derive(Debug)]
pub(crate) struct LeaderReply {
    pub(crate) plan: FetchPlan,
    pub(crate) result: Result<LeaderRecords, FetchFailure>,
}

/// What came, kept in the response frame it came in.
#[derive(Debug)]
pub(crate) struct LeaderRecords {
    pub(crate) records: Bytes,
    pub(crate) high_watermark: Offset,
    pub(crate) log_start: Offset,
    pub(crate) diverging: Option<highwater_replication::EpochEnd>,
}

/// The owned state: the partition and who waits at it.
pub(crate) struct Core {
    /// `None` once it was closed or taken away.
    partition: Option<Box<Partition>>,
    produces: HashMap<WaitToken, Slot<ProduceAnswer>>,
    fetches: HashMap<WaitToken, (Arc<Alarm>, usize)>,
    next_token: u64,
    /// The moment the timer knows of. It is only moved forward: a timer that rings early is harmless.
    armed: Option<TimestampMs>,
    cuts: Vec<Cut>,
    guards: Arc<Guards>,
    house: House,
    /// It closed itself in this leadership.
    fenced: Option<LeaderEpoch>,
    /// The leadership it was last told of.
    leader_epoch: LeaderEpoch,
    /// The damage in its files that was told.
    told: Told,
    clock: crate::clock::Clock,
}

/// What a command causes outside.
pub(crate) enum Deed {
    Answer(Slot<ProduceAnswer>, ProduceAnswer),
    Grant(Slot<Answer<Hosted>>, Answer<Hosted>),
    Ring(Arc<Alarm>, usize),
    Propose {
        proposal: u64,
        expected_version: i64,
        state: PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    },
    Fetch(FetchPlan),
    StopFetching,
    Flush(Box<FlushJob>),
    Work(Box<WorkJob>),
    WorkFailed(FlushError),
    TellDamaged(Damaged),
    TellWrongIndexes(Offset),
    /// A segment holds a timestamp later than now.
    TellTimestampAhead(Offset, TimestampMs),
    Arm(TimestampMs),
    Cut(Cut),
    PublishEnd(PublishedEnd),
    Fenced(FenceReason, LeaderEpoch),
}

/// Carries a partition's effects out.
pub(crate) struct PartitionOutlet {
    hosted: Weak<Hosted>,
    topic_partition: TopicPartition,
    services: Arc<Services>,
    outside: Mutex<Outside>,
}

/// What a partition has left with others that would outlive it there.
#[derive(Default)]
struct Outside {
    entry: Option<Entry>,
    /// It was taken away: whatever a command in progress still wants left is too late.
    closed: bool,
}

impl Hosted {
    /// Takes a partition in.
    pub(crate) fn new(
        topic_partition: TopicPartition,
        topic_id: TopicId,
        partition: Partition,
        rules: ProduceRules,
        services: &Arc<Services>,
    ) -> Arc<Self> {
        let reader = partition.reader();
        let segment_bytes = AtomicU32::new(partition.log().options().segment_bytes);
        if !partition.log().damage().is_empty() {
            services.rot.note(&topic_partition);
        }
        let guards = Arc::new(Guards::default());
        let core = Core::new(partition, services.clock, Arc::clone(&guards));
        Arc::new_cyclic(|hosted| {
            let outlet = PartitionOutlet {
                hosted: hosted.clone(),
                topic_partition: topic_partition.clone(),
                services: Arc::clone(services),
                outside: Mutex::default(),
            };
            let owner = Owner::new(core, services.commands_max, Arc::clone(&services.owners), outlet);
            Self {
                topic_partition,
                topic_id,
                owner: Arc::new(owner),
                reader,
                rules: RwLock::new(Arc::new(rules)),
                segment_bytes,
                guards,
                services: Arc::clone(services),
                troubles: Seldom::default(),
            }
        })
    }

    /// Tells whoever runs the broker what a client's request met, if that was not told a moment ago.
    pub(crate) fn tell_trouble(&self, trouble: &str, error: &dyn fmt::Display) {
        if let Some(held_back) = self.troubles.admits(std::time::Instant::now()) {
            tracing::error!(partition = %self.topic_partition, %error, held_back, "{trouble}");
        }
    }

    /// Which partition it is.
    pub(crate) fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// Which topic of that name.
    pub(crate) fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    /// Reads the log beside the owner.
    pub(crate) fn reader(&self) -> &LogReader {
        &self.reader
    }

    /// What its producers' batches must keep to.
    pub(crate) fn rules(&self) -> Arc<ProduceRules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The largest batch that it takes.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        let segment_bytes = usize::try_from(self.segment_bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        self.rules().max_message_bytes.min(segment_bytes)
    }

    /// Hands in a command of the broker's own. False if the partition is gone.
    pub(crate) fn submit(&self, command: Command) -> bool {
        self.owner.submit(command)
    }

    /// Hands in a batch, unless too many commands wait already.
    pub(crate) fn produce(
        &self,
        batch: CheckedBatch<Bytes>,
        acks: Acks,
        deadline: TimestampMs,
        guard: Option<Arc<Guard>>,
        slot: Slot<ProduceAnswer>,
    ) {
        self.hand_in(Given { batch, acks, deadline, guard, counts_anew: false, leader_epoch: None, slot });
    }

    /// Hands in a batch of a transaction, of a producer that counts from 0 again in each: it begins with no other number where
    /// nothing is known of the producer. What comes first may be the second batch, whose first could not be verified yet.
    pub(crate) fn produce_counting_anew(
        &self,
        batch: CheckedBatch<Bytes>,
        acks: Acks,
        deadline: TimestampMs,
        guard: Option<Arc<Guard>>,
        slot: Slot<ProduceAnswer>,
    ) {
        self.hand_in(Given { batch, acks, deadline, guard, counts_anew: true, leader_epoch: None, slot });
    }

    /// Hands in a batch of a coordinator that is one in this leadership only: in a later one, of this broker as well, another
    /// goes by what the log says, and would not know of it. Who waits for it waits for as long as this broker leads: what was
    /// appended may be committed at any time.
    pub(crate) fn produce_in(
        &self,
        leader_epoch: LeaderEpoch,
        batch: CheckedBatch<Bytes>,
        guard: Option<Arc<Guard>>,
        slot: Slot<ProduceAnswer>,
    ) {
        let (acks, deadline) = (Acks::All, TimestampMs(i64::MAX));
        let leader_epoch = Some(leader_epoch);
        self.hand_in(Given { batch, acks, deadline, guard, counts_anew: false, leader_epoch, slot });
    }

    fn hand_in(&self, given: Given) {
        let given = Box::new(given);
        match self.owner.try_submit(Command::Produce(given)) {
            Ok(()) => {}
            Err(Refused::Full(Command::Produce(given))) => {
                let waiting = self.services.commands_max;
                given.slot.fill(Err(ProduceError::Refused(ProduceRefused::TooManyWaiting { waiting }).into()));
            }
            // Dropping the command drops its slot, which answers that the partition is gone.
            Err(refused) => drop(refused),
        }
    }

    /// What the producer's next batch needs to be appended, if it does not go on with a transaction that is open here: to be
    /// drawn before the coordinator is asked about the transaction.
    pub(crate) fn guard(&self, producer: Producer) -> Option<Arc<Guard>> {
        let guard = self.guards.draw(producer);
        let known = self
            .owner
            .look(|core| core.partition.as_ref().and_then(|partition| known_producer(partition, producer.id)));
        let goes_on = known.is_some_and(|known| known.goes_on(producer));
        (!goes_on).then_some(guard)
    }

    /// A batch with that number waits for the word of its transaction's coordinator. Until one is in the log, no batch of a higher
    /// number is taken where nothing is known of the producer: what comes first may be the second batch, whose first could not be
    /// verified yet.
    pub(crate) fn waits_with(&self, producer: Producer, sequence: i32) {
        self.guards.note(producer, sequence);
    }

    /// Asks the partition something short on its owner's thread. `None` if it is gone.
    pub(crate) async fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Partition, TimestampMs) -> R + Send + 'static,
    ) -> Option<R> {
        self.asked(question, Command::Ask).await
    }

    /// The same for something that waits for the disk: on an owner thread in any case.
    pub(crate) async fn ask_slowly<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Partition, TimestampMs) -> R + Send + 'static,
    ) -> Option<R> {
        self.asked(question, Command::AskSlowly).await
    }

    async fn asked<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Partition, TimestampMs) -> R + Send + 'static,
        command: fn(Asked) -> Command,
    ) -> Option<R> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // Nobody may be there to hear it.
        let ask = move |partition: &mut Partition, now: TimestampMs| drop(sender.send(question(partition, now)));
        self.submit(command(Box::new(ask)));
        receiver.await.ok()
    }

    /// Takes new settings: what the topic or the broker was configured to.
    pub(crate) fn configure(&self, replica: ReplicaConfig, options: Arc<LogOptions>) {
        self.segment_bytes.store(options.segment_bytes, Ordering::Relaxed);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(options.rules.clone());
        self.submit(Command::Configure(Box::new((replica, options))));
    }

    /// The partition at a glance; `None` once it is closed.
    pub(crate) fn status(&self) -> Option<Status> {
        self.owner.look(|core| core.partition.as_ref().map(|partition| partition.status()))
    }

    /// Bytes of its log, and by how many records that ends below what it knows to be committed; `None` once it is closed.
    pub(crate) fn extent(&self) -> Option<(u64, i64)> {
        self.owner.look(|core| {
            let partition = core.partition.as_ref()?;
            let lag = partition.status().high_watermark - partition.log().end();
            Some((partition.log().size_bytes(), lag.max(0)))
        })
    }

    /// What the root's checkpoints say about it; `None` once it is closed.
    pub(crate) fn marks(&self) -> Option<Marks> {
        self.owner.look(|core| {
            core.partition.as_ref().map(|partition| {
                let log = partition.log();
                Marks {
                    recovery_point: log.recovery_point(),
                    log_start: log.start(),
                    high_watermark: partition.status().high_watermark,
                    cleaner_offset: log.options().compaction.is_some().then(|| log.cleaner_offset()),
                }
            })
        })
    }

    /// What was cut from this log since it was opened, the latest at the end.
    pub(crate) fn cuts(&self) -> Vec<Cut> {
        self.owner.look(|core| core.cuts.clone())
    }

    /// The leadership in which it closed itself after a failure, if it did.
    pub(crate) fn fenced(&self) -> Option<LeaderEpoch> {
        self.owner.look(|core| core.fenced)
    }

    /// Takes the partition out, to be closed or dropped. Whoever waits at it is answered that it is gone.
    pub(crate) fn take(&self) -> Option<Box<Partition>> {
        let (partition, produces, fetches) = self.owner.close(|core| {
            (core.partition.take(), std::mem::take(&mut core.produces), std::mem::take(&mut core.fetches))
        });
        drop(produces);
        for (alarm, place) in fetches.into_values() {
            alarm.ring(place);
        }
        self.owner.outlet().close();
        partition
    }
}

impl Wake for Hosted {
    fn wake(self: Arc<Self>) {
        self.submit(Command::Tick);
    }
}

impl Owned for Core {
    type Command = Command;
    type Effect = Deed;
    type Outlet = PartitionOutlet;

    fn handle(&mut self, command: Command, deeds: &mut Vec<Deed>) {
        let now = self.clock.now();
        let Some(partition) = self.partition.as_mut() else {
            return;
        };
        match command {
            Command::Produce(given) => {
                let Given { batch, acks, deadline, guard, counts_anew, leader_epoch, slot } = *given;
                if leader_epoch.is_some_and(|epoch| epoch != self.leader_epoch) {
                    let refused = ProduceRefused::NotLeader { leader: None, leader_epoch: self.leader_epoch };
                    return deeds.push(Deed::Answer(slot, Err(ProduceError::Refused(refused).into())));
                }
                let producer = Producer { id: batch.producer_id(), epoch: batch.producer_epoch() };
                let known = || known_producer(partition, producer.id);
                if batch.header().is_control() {
                    self.guards.break_of(producer);
                } else if batch.is_transactional() && !may_be_appended(producer, known(), guard.as_deref()) {
                    if counts_anew && guard.is_some() {
                        // What broke it may have been the marker of the transaction before, which bears the epoch of this one.
                        let again = NotProduced::Transaction(ErrorCode::ConcurrentTransactions);
                        return deeds.push(Deed::Answer(slot, Err(again)));
                    }
                    let error = SequenceError::InvalidTransactionState { producer_id: batch.producer_id() };
                    let error = ProduceError::Append(AppendError::Sequence(error));
                    return deeds.push(Deed::Answer(slot, Err(error.into())));
                } else if batch.is_transactional() && known().is_none() {
                    let first_number = if counts_anew { Some(0) } else { self.guards.first_number(producer) };
                    if let Err(error) = begins_with(first_number, &batch) {
                        let error = ProduceError::Append(AppendError::Sequence(error));
                        return deeds.push(Deed::Answer(slot, Err(error.into())));
                    }
                }
                let token = token(&mut self.next_token);
                let produced = partition.produce(now, &batch, acks, deadline, token);
                if produced.is_ok() && guard.is_some() {
                    self.guards.forget_first_number(producer);
                }
                match produced {
                    Ok(Produced::Done(done)) => deeds.push(Deed::Answer(slot, Ok(done))),
                    Ok(Produced::Waiting) => {
                        self.produces.insert(token, slot);
                    }
                    Err(error) => deeds.push(Deed::Answer(slot, Err(error.into()))),
                }
            }
            Command::Fetch { question, slot, hosted } => {
                let Question { request, initial, watch } = question;
                let grant = if initial { partition.fetch(now, &request) } else { partition.regrant(now, &request) };
                let answer = grant.map(|grant| {
                    let nothing = grant.upper <= request.from && grant.diverging.is_none();
                    let watching = watch.filter(|_| nothing).map(|watch| {
                        let token = token(&mut self.next_token);
                        self.fetches.insert(token, watch);
                        partition.watch_fetch(token, request.by, request.from);
                        Watching::new(hosted, token)
                    });
                    Granted { grant, watching }
                });
                deeds.push(Deed::Grant(slot, answer));
            }
            Command::Unwatch(token) => {
                self.fetches.remove(&token);
                partition.unwatch_fetch(token);
            }
            Command::Fetched(LeaderReply { plan, result }) => {
                use highwater_replication::{FetchReply, FetchedRecords};
                let result = result.as_ref().map_err(|failure| *failure).map(|came| FetchedRecords {
                    records: &came.records,
                    high_watermark: came.high_watermark,
                    log_start: came.log_start,
                    diverging: came.diverging,
                });
                partition.fetched(now, FetchReply { plan, result });
            }
            Command::Flushed(done) => {
                partition.flushed(now, *done);
                // Before the timer asks for housekeeping the zeros ahead of a log that syncs each message would be used up.
                deeds.extend(partition.begin_pressing_work(now).map(|job| Deed::Work(Box::new(job))));
            }
            Command::IsrDecided { proposal, decision } => partition.isr_decided(now, proposal, decision),
            Command::State { state, assignment } => {
                if self.leader_epoch != state.value.leader_epoch {
                    self.guards.break_all();
                }
                self.leader_epoch = state.value.leader_epoch;
                partition.apply_state(now, &state, &assignment);
            }
            Command::LiveBrokers(live) => partition.apply_live_brokers(now, &live),
            Command::SessionLost => partition.session_lost(now),
            Command::Registered(epoch) => partition.registered(now, epoch),
            Command::Configure(settings) => {
                let (replica, options) = *settings;
                partition.configure(now, replica, options);
            }
            Command::Tick => {
                self.armed = None;
                partition.tick(now);
            }
            Command::Housekeeping { retention } => deeds.extend(self.house.begin(partition, now, retention)),
            Command::Worked(done) => match partition.finish_work(now, *done) {
                Ok(step) => {
                    if let Some(Step::TimestampAhead { base, timestamp }) = step
                        && self.told.is_first_ahead()
                    {
                        deeds.push(Deed::TellTimestampAhead(base, timestamp));
                    }
                    if let Some(Step::Scrubbed { base, damaged, indexes_rebuilt, .. }) = step {
                        if damaged > 0 {
                            let news = self.told.news(partition.log().damage());
                            deeds.extend(news.into_iter().map(Deed::TellDamaged));
                        }
                        if indexes_rebuilt {
                            deeds.push(Deed::TellWrongIndexes(base));
                        }
                    }
                    deeds.extend(self.house.next(partition, now));
                }
                Err(error) => {
                    deeds.push(Deed::WorkFailed(error));
                    // Of another kind: what failed comes again when the timer does.
                    deeds.extend(self.house.next(partition, now));
                }
            },
            Command::Ask(ask) | Command::AskSlowly(ask) => ask(partition, now),
        }
        self.settle(now, deeds);
    }

    fn is_heavy(command: &Command) -> bool {
        // A truncation rewrites and syncs; a change of role may cause one, and so may a leader's answer.
        match command {
            // What housekeeping begins and finishes may roll a segment, and mark a log that was closed well as written to.
            Command::State { .. } | Command::Configure(_) | Command::Housekeeping { .. } | Command::Worked(_) => true,
            Command::AskSlowly(_) => true,
            Command::Fetched(LeaderReply { plan, result }) => match result {
                // A later start is recorded durably before anything is appended. And while much is appended, whoever
                // fetched it is to fetch on.
                Ok(came) => {
                    came.diverging.is_some() || came.log_start > plan.log_start || came.records.len() >= MANY_BYTES
                }
                Err(failure) => matches!(failure, FetchFailure::OutOfRange { .. }),
            },
            _ => false,
        }
    }

    fn abandon(&mut self, deeds: &mut Vec<Deed>) {
        // The log is dropped as a crash would leave it; opening it again recovers.
        self.partition = None;
        self.produces.clear();
        deeds.extend(self.fetches.drain().map(|(_, (alarm, place))| Deed::Ring(alarm, place)));
        deeds.push(Deed::StopFetching);
        // Nobody asks the partition itself any more, so this says what it would have said of a failure.
        self.fenced = Some(self.leader_epoch);
        deeds.push(Deed::Fenced(FenceReason::Invariant("it panicked"), self.leader_epoch));
    }
}

fn token(next: &mut u64) -> WaitToken {
    *next += 1;
    WaitToken(*next)
}

impl Core {
    fn new(partition: Partition, clock: crate::clock::Clock, guards: Arc<Guards>) -> Self {
        Self {
            told: Told::at_open(partition.log().damage()),
            partition: Some(Box::new(partition)),
            produces: HashMap::new(),
            fetches: HashMap::new(),
            next_token: 0,
            armed: None,
            cuts: Vec::new(),
            guards,
            house: House::default(),
            fenced: None,
            leader_epoch: LeaderEpoch::NONE,
            clock,
        }
    }

    /// Collects what the partition wants done.
    fn settle(&mut self, now: TimestampMs, deeds: &mut Vec<Deed>) {
        let Some(partition) = self.partition.as_mut() else { return };
        while let Some(effect) = partition.poll_effect() {
            match effect {
                Effect::ProduceDone { token, result } => {
                    if let Some(slot) = self.produces.remove(&token) {
                        deeds.push(Deed::Answer(slot, result.map_err(|refused| ProduceError::Refused(refused).into())));
                    }
                }
                Effect::WakeFetch { token } => {
                    if let Some((alarm, place)) = self.fetches.remove(&token) {
                        deeds.push(Deed::Ring(alarm, place));
                    }
                }
                Effect::ProposeIsr { proposal, expected_version, state, joining, .. } => {
                    deeds.push(Deed::Propose { proposal, expected_version, state, joining });
                }
                Effect::Fetch(plan) => deeds.push(Deed::Fetch(plan)),
                Effect::StopFetching => deeds.push(Deed::StopFetching),
                Effect::FlushWanted(job) => deeds.push(Deed::Flush(job)),
                Effect::Cut(cut) => {
                    if self.cuts.len() == CUTS_MAX {
                        self.cuts.remove(0);
                    }
                    self.cuts.push(cut.clone());
                    deeds.push(Deed::Cut(cut));
                }
                Effect::PublishEnd(end) => deeds.push(Deed::PublishEnd(end)),
                Effect::Fenced { reason, leader_epoch } => {
                    self.fenced = Some(leader_epoch);
                    deeds.push(Deed::Fenced(reason, leader_epoch));
                }
                _ => {}
            }
        }
        if let Some(deadline) = partition.next_deadline()
            && self.armed.is_none_or(|armed| deadline < armed)
        {
            // Not in the past, or a partition that asks for the present again and again would keep the timer spinning.
            let deadline = deadline.max(now.after(1));
            self.armed = Some(deadline);
            deeds.push(Deed::Arm(deadline));
        }
    }
}

impl Outlet<Deed> for PartitionOutlet {
    fn carry_out(&self, deed: Deed) {
        match deed {
            Deed::Answer(slot, answer) => slot.fill(answer),
            Deed::Grant(slot, answer) => slot.fill(answer),
            Deed::Ring(alarm, place) => alarm.ring(place),
            Deed::Propose { proposal, expected_version, state, joining } => {
                self.propose(proposal, expected_version, state, joining);
            }
            Deed::Fetch(plan) => self.fetch(plan),
            Deed::StopFetching => self.services.fetchers.stop(&self.topic_partition),
            Deed::Flush(job) => self.services.syncs.sync(self.hosted.clone(), *job),
            Deed::Work(job) => self.services.syncs.work(self.hosted.clone(), *job),
            Deed::WorkFailed(error) => {
                tracing::warn!(partition = %self.topic_partition, %error, "housekeeping failed and is tried again");
            }
            Deed::TellDamaged(damaged) => {
                damage::tell_damaged(&self.topic_partition, &damaged);
                self.services.rot.note(&self.topic_partition);
            }
            Deed::TellTimestampAhead(base, timestamp) => {
                damage::tell_timestamp_ahead(&self.topic_partition, base, timestamp);
            }
            Deed::TellWrongIndexes(base) => damage::tell_wrong_indexes(&self.topic_partition, base),
            Deed::Arm(deadline) => self.arm(deadline),
            Deed::Cut(cut) => {
                tracing::warn!(
                    partition = %self.topic_partition, why = ?cut.why, from = %cut.from.0, to = %cut.to.0,
                    records = cut.records, "cut the log"
                );
                if cut.to.0 < cut.high_watermark {
                    self.services.lower_high_watermark(&self.topic_partition, cut.to.0);
                }
                self.note(&cut);
                self.services.checkpoints_wanted.notify_one();
            }
            Deed::PublishEnd(end) => {
                tracing::info!(
                    partition = %self.topic_partition, last_epoch = %end.last_epoch, end = %end.log_end,
                    "stopped uncleanly before, and nobody leads: telling the controller how far the log goes"
                );
                if let Some(hosted) = self.hosted.upgrade() {
                    self.services.publish_end(&self.topic_partition, hosted.topic_id, end);
                }
            }
            Deed::Fenced(reason, leader_epoch) => {
                tracing::error!(partition = %self.topic_partition, %reason, "the partition closed itself");
                if let Some(hosted) = self.hosted.upgrade() {
                    self.services.report_offline(self.topic_partition.clone(), hosted.topic_id, leader_epoch);
                }
            }
        }
    }
}

impl PartitionOutlet {
    /// Writes a cut down, or that this replica leads without having been in sync.
    fn note(&self, cut: &Cut) {
        let image = self.services.cluster().map(|cluster| cluster.image());
        let state = image.as_ref().and_then(|image| image.partition(&self.topic_partition)).map(|of| &of.state.value);
        let state = state.filter(|state| state.leader_epoch == cut.leader_epoch);
        let is_election = cut.why == CutReason::UncleanElection;
        if is_election {
            self.services.histories.count_unclean();
        } else {
            self.services.histories.count_cut(cut.records);
        }
        let mut entry = HistoryEntry {
            when: cut.when,
            leader: state.and_then(|state| state.leader),
            leader_epoch: cut.leader_epoch,
            why: cut.why.to_string(),
            from: cut.from,
            to: cut.to,
            high_watermark: cut.high_watermark,
            records: Some(cut.records),
        };
        if is_election {
            let hosted = self.hosted.upgrade();
            let topic = hosted.and_then(|hosted| image.as_ref()?.topic_by_id(hosted.topic_id()).cloned());
            let ends =
                topic.zip(image.as_ref()).map(|(topic, image)| image.ends_of(topic.id, self.topic_partition.partition));
            entry.lacks(ends.into_iter().flatten().map(|(_, end)| (end.log_end, end.last_epoch)));
        }
        self.services.note_history(&self.topic_partition, &entry);
    }

    fn propose(
        &self,
        proposal: u64,
        expected_version: i64,
        state: PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) {
        let (hosted, services) = (self.hosted.clone(), Arc::clone(&self.services));
        let topic_partition = self.topic_partition.clone();
        self.services.spawn(async move {
            let Some(topic_id) = hosted.upgrade().map(|hosted| hosted.topic_id()) else { return };
            let decision = match services.cluster() {
                Some(cluster) => {
                    cluster.propose_state(&topic_partition, topic_id, expected_version, &state, joining).await
                }
                None => IsrDecision::Retry,
            };
            if let Some(hosted) = hosted.upgrade() {
                hosted.submit(Command::IsrDecided { proposal, decision });
            }
        });
    }

    fn arm(&self, deadline: TimestampMs) {
        let Some(hosted) = self.hosted.upgrade() else { return };
        let mut outside = self.outside();
        if !outside.closed {
            outside.entry = Some(self.services.deadlines.arm(deadline, hosted, outside.entry.take()));
        }
    }

    fn fetch(&self, plan: FetchPlan) {
        let outside = self.outside();
        if !outside.closed {
            self.services.fetchers.want(&self.services, &self.hosted, &self.topic_partition, plan);
        }
    }

    /// Takes back what was left with the timer and the fetchers. A command whose effects are being carried out leaves
    /// nothing there after this.
    fn close(&self) {
        let mut outside = self.outside();
        outside.closed = true;
        if let Some(entry) = outside.entry.take() {
            self.services.deadlines.disarm(entry);
        }
        self.services.fetchers.stop(&self.topic_partition);
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Hosted {
    fn ask(self: &Arc<Self>, question: Question, slot: Slot<Answer<Self>>) {
        // Not refused when the inbox is full: the bytes of requests in flight are bounded, and each of these costs some.
        self.submit(Command::Fetch { question, slot, hosted: Arc::clone(self) });
    }

    fn unwatch(self: &Arc<Self>, token: WaitToken) {
        self.submit(Command::Unwatch(token));
    }

    fn read(
        &self,
        grant: &FetchGrant,
        from: Offset,
        max_bytes: usize,
        at_least_one: bool,
        committed: bool,
    ) -> Result<Chunk, ReadFailure> {
        let limit = ReadLimit::bytes(max_bytes);
        let limit = if at_least_one { limit } else { limit.or_nothing() };
        let limit = limit.below(grant.upper).in_generation(grant.generation);
        match self.reader.read(from, limit) {
            Ok(fetched) => {
                let aborted = match committed && !fetched.bytes.is_empty() {
                    true => self.reader.aborted_transactions(from, fetched.next).map_err(|error| {
                        tracing::error!(partition = %self.topic_partition, %error, "a fetch could not read");
                        ReadFailure::Storage
                    })?,
                    false => Vec::new(),
                };
                Ok(Chunk { next: Some(fetched.next), bytes: fetched.bytes, aborted })
            }
            Err(ReadError::Superseded) => Err(ReadFailure::Superseded),
            Err(ReadError::OutOfRange { .. }) => Err(ReadFailure::OutOfRange),
            Err(damage @ ReadError::Corrupt { .. }) => {
                self.tell_trouble("a fetch met damage", &damage);
                self.services.rot.note(&self.topic_partition);
                Err(ReadFailure::Corrupt)
            }
            Err(error) => {
                self.tell_trouble("a fetch could not read", &error);
                Err(ReadFailure::Storage)
            }
        }
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted")
            .field("topic_partition", &self.topic_partition)
            .field("topic_id", &self.topic_id)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
