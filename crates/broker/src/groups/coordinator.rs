//! One coordinator at work: its machine, the log it keeps its groups in, and who asks it.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_groups::{Answer, AppendId, Appended, Coordinator, Effect, Input, Now, Producer, Record, Ticket};
use highwater_replication::{Acks, ProduceError, ProduceRefused, Role};
use highwater_storage::{
    AppendError, BatchRefused, CheckedBatch, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Message, records};
use crate::broker::BrokerShared;
use crate::gather::Gather;
use crate::hosted::{Hosted, ProduceAnswer};

/// How often it looks whether its partition is led here and committed, until it may serve.
const POLL: Duration = Duration::from_millis(5);

/// How long it leaves a log alone that could not be read.
const RETRY: Duration = Duration::from_secs(1);

/// An append that waits to be committed.
struct Waiting {
    id: AppendId,
    gather: Arc<Gather<ProduceAnswer>>,
    /// When whoever waits for it is told to try again; `None` once that was done.
    late_at: Option<Instant>,
}

/// Why a machine ends.
enum End {
    /// Nobody will ask this coordinator any more.
    Dismissed,
    /// The partition is not led here any more, or it is not known what of the log will stay. If it goes on being led here,
    /// a new machine reads what the log says by then.
    Unsure,
}

struct Running {
    broker: Arc<BrokerShared>,
    hosted: Arc<Hosted>,
    machine: Coordinator,
    tickets: u64,
    asked: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    /// In the order of the log, in which they end too.
    appends: VecDeque<Waiting>,
}

/// Runs until the broker stops or the partition is led elsewhere, which the end of `messages` says.
pub(super) async fn run(
    broker: Arc<BrokerShared>,
    of: TopicPartition,
    topic_id: TopicId,
    leader_epoch: LeaderEpoch,
    mut messages: mpsc::Receiver<Message>,
) {
    loop {
        let Some(hosted) = led(&broker, &of, topic_id, leader_epoch, &mut messages).await else { return };
        let machine = Coordinator::new(broker.config.groups.clone());
        let (asked, appends) = (BTreeMap::new(), VecDeque::new());
        let mut running = Running { broker: Arc::clone(&broker), hosted, machine, tickets: 0, asked, appends };
        let end = running.serve(leader_epoch, &mut messages).await;
        running.handle(Input::Resigned);
        tracing::debug!(partition = %of, "the groups of this partition are not coordinated here any more");
        if let End::Dismissed = end {
            return;
        }
    }
}

/// Waits until the partition is led here in that epoch; `None` once that is over.
async fn led(
    broker: &BrokerShared,
    of: &TopicPartition,
    topic_id: TopicId,
    leader_epoch: LeaderEpoch,
    messages: &mut mpsc::Receiver<Message>,
) -> Option<Arc<Hosted>> {
    let mut loading = Coordinator::new(broker.config.groups.clone());
    loop {
        // Its log may still have to be made.
        let hosted = broker.partitions.get(of).filter(|hosted| hosted.topic_id() == topic_id);
        if let Some(hosted) = hosted.filter(|hosted| leads(hosted, leader_epoch)) {
            return Some(hosted);
        }
        tokio::select! {
            message = messages.recv() => refuse(&mut loading, message?),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// Answers as a coordinator does that is loading.
fn refuse(machine: &mut Coordinator, message: Message) {
    let Message::Request(request, sender) = message else { return };
    for effect in machine.handle(Now::default(), Input::Request(Ticket(0), request)) {
        if let Effect::Answer(_, answer) = effect {
            // Nobody may wait any more.
            let _ = sender.send(answer);
            return;
        }
    }
}

fn leads(hosted: &Hosted, epoch: LeaderEpoch) -> bool {
    hosted.status().is_some_and(|status| status.role == Role::Leader && status.leader_epoch == epoch)
}

impl Running {
    async fn serve(&mut self, leader_epoch: LeaderEpoch, messages: &mut mpsc::Receiver<Message>) -> End {
        if let Err(end) = self.load(leader_epoch, messages).await {
            return end;
        }
        loop {
            let tick = self.machine.next_deadline_ms().map(|at| self.instant(at));
            let late = self.appends.iter().find_map(|append| append.late_at);
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.take(message),
                    None => return End::Dismissed,
                },
                outcome = first(&self.appends) => {
                    let Some(append) = self.appends.pop_front() else { continue };
                    match end_of(outcome) {
                        Some(how) => self.handle(Input::Appended(append.id, how)),
                        None => return End::Unsure,
                    }
                }
                () = until(late) => self.tell_late(),
                () = until(tick) => self.handle(Input::Tick),
            }
        }
    }

    /// Reads the log, and waits until what it says cannot be lost any more.
    async fn load(&mut self, leader_epoch: LeaderEpoch, messages: &mut mpsc::Receiver<Message>) -> Result<(), End> {
        let end = self.hosted.status().map_or(Offset(0), |status| status.log_end);
        let mut next = self.hosted.reader().start();
        loop {
            let reader = self.hosted.reader().clone();
            let services = Arc::clone(&self.broker.services);
            let reading = async move { services.readers.read(move || records::read(&reader, next, end)).await };
            let chunk = match self.beside(messages, reading).await? {
                // The broker stops.
                None => return Err(End::Dismissed),
                Some(Ok(None)) => break,
                Some(Ok(Some(chunk))) => chunk,
                Some(Err(error)) => {
                    tracing::warn!(partition = %self.hosted.topic_partition(), %error, "groups cannot be loaded yet");
                    self.beside(messages, tokio::time::sleep(RETRY)).await?;
                    continue;
                }
            };
            for what in chunk.odd {
                tracing::error!(partition = %self.hosted.topic_partition(), what, "groups may be as they were before");
            }
            for batch in chunk.batches {
                self.handle(Input::Load(batch));
            }
            next = chunk.next;
        }
        loop {
            match self.hosted.status() {
                Some(status) if status.role == Role::Leader && status.leader_epoch == leader_epoch => {
                    if status.high_watermark >= end {
                        break;
                    }
                }
                _ => return Err(End::Unsure),
            }
            self.beside(messages, tokio::time::sleep(POLL)).await?;
        }
        self.handle(Input::Loaded);
        Ok(())
    }

    /// Waits for something while requests are answered.
    async fn beside<T>(
        &mut self,
        messages: &mut mpsc::Receiver<Message>,
        done: impl Future<Output = T>,
    ) -> Result<T, End> {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                done = &mut done => return Ok(done),
                message = messages.recv() => match message {
                    Some(message) => self.take(message),
                    None => return Err(End::Dismissed),
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Request(request, sender) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.asked.insert(ticket, sender);
                self.handle(Input::Request(ticket, request));
            }
            Message::Input(input) => self.handle(input),
        }
    }

    fn handle(&mut self, input: Input) {
        let now = self.broker.services.clock.now();
        for effect in self.machine.handle(at(now), input) {
            match effect {
                Effect::Answer(ticket, answer) => {
                    if let Some(sender) = self.asked.remove(&ticket) {
                        // The connection may be closed.
                        let _ = sender.send(answer);
                    }
                }
                Effect::Append { id, transaction, records } => self.append(id, transaction, &records, now),
                Effect::Odd(what) => {
                    tracing::warn!(partition = %self.hosted.topic_partition(), what, "a record was passed over");
                }
                _ => {}
            }
        }
    }

    fn append(&mut self, id: AppendId, _transaction: Option<Producer>, records: &[Record], now: TimestampMs) {
        let (gather, mut slots) = Gather::new(1);
        let Some(slot) = slots.next() else { return };
        let batch = Bytes::from(records::batch(records, now));
        match CheckedBatch::check(batch, &self.hosted.rules(), now) {
            // It waits for as long as this broker leads: what was appended may be committed at any time.
            Ok(batch) => self.hosted.produce(batch, Acks::All, TimestampMs(i64::MAX), slot),
            Err(refused) => slot.fill(Err(ProduceError::Append(AppendError::Refused(refused)))),
        }
        let patience = Duration::from_millis(self.broker.config.offsets_commit_timeout_ms);
        self.appends.push_back(Waiting { id, gather, late_at: Some(Instant::now() + patience) });
    }

    fn tell_late(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        for append in &mut self.appends {
            if append.late_at.is_some_and(|at| at <= now) {
                append.late_at = None;
                late.push(append.id);
            }
        }
        for id in late {
            self.handle(Input::Appended(id, Appended::Late));
        }
    }

    fn instant(&self, uptime_ms: u64) -> Instant {
        let at = TimestampMs(i64::try_from(uptime_ms).unwrap_or(i64::MAX));
        self.broker.services.clock.instant(at).into()
    }
}

/// The clock of the partitions: it never goes back, so time-outs may be counted by it.
fn at(now: TimestampMs) -> Now {
    Now { uptime_ms: u64::try_from(now.0).unwrap_or(0), timestamp_ms: now.0 }
}

/// The outcome of the append that was asked for first; for ever if there is none.
async fn first(appends: &VecDeque<Waiting>) -> Option<ProduceAnswer> {
    match appends.front() {
        Some(append) => append.gather.all().await.pop().flatten(),
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// How an append ended; `None` if that is not known, or this broker does not lead any more.
fn end_of(outcome: Option<ProduceAnswer>) -> Option<Appended> {
    match outcome {
        Some(Ok(_)) => Some(Appended::Committed),
        None => None,
        Some(Err(ProduceError::Append(AppendError::Refused(BatchRefused::TooLarge { .. })))) => {
            Some(Appended::TooLarge)
        }
        Some(Err(ProduceError::Append(AppendError::LargerThanSegment { .. }))) => Some(Appended::TooLarge),
        Some(Err(ProduceError::Refused(
            ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::TooManyWaiting { .. },
        ))) => Some(Appended::NotNow),
        // It may be in the log: what is told from here on must come from there.
        Some(Err(_)) => None,
    }
}
