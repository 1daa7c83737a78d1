//! One coordinator at work: its machine, the log it keeps its state in, and who asks it.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_groups::{AppendId, Appended, Now, Producer, Record, Ticket};
use highwater_replication::{ProduceError, ProduceRefused, Role};
use highwater_storage::{
    AppendError, BatchRefused, CheckedBatch, HEADER_BYTES, LeaderEpoch, Offset, Origin, ProduceRules, SequenceError,
    TimestampMs, TopicId, TopicPartition, TransactionMarker,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Away, Deed, Event, Machine, Marked, Message, NotMarked, Place, records};
use crate::gather::Gather;
use crate::hosted::{Guard, Hosted, NotProduced, ProduceAnswer};

/// How often it looks whether its partition is led here and committed, until it may serve.
const POLL: Duration = Duration::from_millis(5);

/// How long it leaves a log alone that could not be read.
const RETRY: Duration = Duration::from_secs(1);

/// Requests that are taken at a time if so many wait: what they have appended goes into the log together.
const TAKEN_AT_A_TIME: usize = 256;

/// About how many bytes of records go into a batch together, if the topic takes twice that. An append of more is a batch of its
/// own.
const TOGETHER_BYTES: usize = 16 << 10;

/// Appends that are under way at a time, until the log is so slow that those who wait are told to try again. A log syncs once for
/// all that it took meanwhile, so that more of them would be no sooner done, and each costs what many records do.
const APPENDS_MAX: usize = 2;

/// About what a record needs beside its key and value, and no less.
const RECORD_BYTES: usize = 32;

/// An append that waits to be committed.
struct Waiting {
    what: What,
    gather: Arc<Gather<ProduceAnswer>>,
    /// When whoever waits for it is told to try again; `None` once that was done.
    late_at: Option<Instant>,
}

/// What was appended.
enum What {
    /// Records of the machine, of one append or of several.
    Records(Vec<AppendId>),
    /// A marker, and whoever waits for it.
    Marker(TransactionMarker, oneshot::Sender<Marked>),
}

/// Appends that go into the log as one batch. What is asked for while the log writes comes together, so that a coordinator
/// which is asked by many costs the log no more than one that is asked by few.
#[derive(Debug, Default)]
struct Together {
    ids: Vec<AppendId>,
    records: Vec<Record>,
    bytes: usize,
    /// When whoever waits for the first of them is told to try again.
    late_at: Option<Instant>,
}

impl Together {
    fn has_room_for(&self, records: &[Record], bytes_max: usize) -> bool {
        self.ids.is_empty() || self.bytes + bytes_of(records) <= bytes_max
    }

    fn add(&mut self, id: AppendId, records: Vec<Record>, late_at: Instant) {
        self.late_at.get_or_insert(late_at);
        self.bytes += bytes_of(&records);
        self.ids.push(id);
        self.records.extend(records);
    }
}

fn bytes_of(records: &[Record]) -> usize {
    let one = |record: &Record| RECORD_BYTES + record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
    records.iter().map(one).sum()
}

/// Why a machine ends.
enum End {
    /// Nobody will ask this coordinator any more.
    Dismissed,
    /// The partition is not led here any more, or it is not known what of the log will stay. If it goes on being led here,
    /// a new machine reads what the log says by then.
    Unsure,
}

struct Running<M: Machine> {
    at: Place<M>,
    hosted: Arc<Hosted>,
    machine: M,
    serving: bool,
    /// Where the batch is in the log that it is given.
    loads: Option<Offset>,
    /// The last one given out. News of a machine before must not be taken for an answer to one of this.
    tickets: u64,
    asked: BTreeMap<Ticket, oneshot::Sender<M::Answer>>,
    /// What is to be appended, until it is.
    together: Together,
    /// In the order of the log, in which they end too.
    appends: VecDeque<Waiting>,
    /// What the machine wants done besides. Ends with it.
    tasks: JoinSet<()>,
}

/// Runs until the broker stops or the partition is led elsewhere, which the end of `messages` says.
pub(super) async fn run<M: Machine>(
    at: Place<M>,
    of: TopicPartition,
    topic_id: TopicId,
    mut messages: mpsc::Receiver<Message<M>>,
) {
    let mut tickets = 0;
    loop {
        let Some(hosted) = led(&at, &of, topic_id, &mut messages).await else { return };
        let mut running = Running {
            at: at.clone(),
            hosted,
            machine: M::new(&at.broker.config),
            serving: false,
            loads: None,
            tickets,
            asked: BTreeMap::new(),
            together: Together::default(),
            appends: VecDeque::new(),
            tasks: JoinSet::new(),
        };
        let end = running.serve(&mut messages).await;
        running.handle(Event::Resigned, None);
        tickets = running.tickets;
        tracing::debug!(partition = %of, "{} of this partition are not coordinated here any more", M::KEEPS);
        if let End::Dismissed = end {
            return;
        }
    }
}

/// Waits until the partition is led here in that epoch; `None` once that is over.
async fn led<M: Machine>(
    at: &Place<M>,
    of: &TopicPartition,
    topic_id: TopicId,
    messages: &mut mpsc::Receiver<Message<M>>,
) -> Option<Arc<Hosted>> {
    loop {
        // Its log may still have to be made.
        let hosted = at.broker.partitions.get(of).filter(|hosted| hosted.topic_id() == topic_id);
        if let Some(hosted) = hosted.filter(|hosted| leads(hosted, at.leader_epoch)) {
            return Some(hosted);
        }
        tokio::select! {
            message = messages.recv() => refuse(message?),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// Answers as a coordinator does that is loading.
fn refuse<M: Machine>(message: Message<M>) {
    // Nobody may wait any more.
    match message {
        Message::Request { request, answer, .. } => drop(answer.send(M::away(&request, Away::Loading))),
        Message::Marker(_, marked) => drop(marked.send(Err(NotMarked::NotLeader))),
        Message::News(_) => {}
    }
}

fn leads(hosted: &Hosted, epoch: LeaderEpoch) -> bool {
    hosted.status().is_some_and(|status| status.role == Role::Leader && status.leader_epoch == epoch)
}

impl<M: Machine> Running<M> {
    async fn serve(&mut self, messages: &mut mpsc::Receiver<Message<M>>) -> End {
        if let Err(end) = self.load(messages).await {
            return end;
        }
        loop {
            if !self.log_has_enough() {
                self.append_together();
            }
            let tick = self.machine.next_deadline_ms().map(|at| self.instant(at));
            let late = self.appends.iter().find_map(|append| append.late_at);
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => {
                        self.take(message);
                        if self.may_gather() {
                            // Those that are ready to ask come first. Else whoever asks wakes this task to be the next that runs,
                            // and each append has the records of one request.
                            tokio::task::yield_now().await;
                        }
                        self.take_waiting(messages);
                    }
                    None => return End::Dismissed,
                },
                outcome = first(&self.appends) => {
                    let Some(append) = self.appends.pop_front() else { continue };
                    let ended = match append.what {
                        What::Records(ids) => self.appended(&ids, outcome),
                        What::Marker(marker, waits) => self.marked(marker, waits, outcome),
                    };
                    if let Err(end) = ended {
                        return end;
                    }
                }
                () = until(late) => self.tell_late(),
                () = until(tick) => self.handle(Event::Tick, None),
            }
        }
    }

    /// What is to be appended waits for what is under way, and for more of its kind. Not behind what has been waited for too
    /// long: its own time would begin too late.
    fn log_has_enough(&self) -> bool {
        self.appends.len() >= APPENDS_MAX && self.appends.front().is_some_and(|append| append.late_at.is_some())
    }

    /// Something is to be appended, and more may come until the others that are ready have had their turn.
    fn may_gather(&self) -> bool {
        !self.together.ids.is_empty() && !self.log_has_enough()
    }

    fn appended(&mut self, ids: &[AppendId], outcome: Option<ProduceAnswer>) -> Result<(), End> {
        if let Some(Err(NotProduced::Partition(ProduceError::Append(error)))) = &outcome
            && !matches!(error, AppendError::Sequence(_))
        {
            // Whoever waits is told a code that says less.
            self.hosted.tell_trouble("what a coordinator keeps could not be written", error);
        }
        let how = end_of(outcome).ok_or(End::Unsure)?;
        for &id in ids {
            self.handle(Event::Appended(id, how), None);
        }
        Ok(())
    }

    /// Takes what waits behind a message. Who is served next waits no longer for that: it is the log that is waited for.
    fn take_waiting(&mut self, messages: &mut mpsc::Receiver<Message<M>>) {
        for _ in 1..TAKEN_AT_A_TIME {
            let Ok(message) = messages.try_recv() else { return };
            self.take(message);
        }
    }

    fn marked(
        &mut self,
        marker: TransactionMarker,
        waits: oneshot::Sender<Marked>,
        outcome: Option<ProduceAnswer>,
    ) -> Result<(), End> {
        let marked = marked(outcome);
        let unsure = marked == Err(NotMarked::NotLeader);
        if marked.is_ok() {
            self.handle(Event::Marker { producer_id: marker.producer_id, commits: !marker.is_abort }, None);
        }
        // Whoever waits for it may be gone.
        let _ = waits.send(marked);
        if unsure { Err(End::Unsure) } else { Ok(()) }
    }

    /// Reads the log, and waits until what it says cannot be lost any more.
    async fn load(&mut self, messages: &mut mpsc::Receiver<Message<M>>) -> Result<(), End> {
        // Behind all that a machine before handed in, some of which may be on its way to the log yet.
        let end = self.hosted.ask(|partition, _| partition.status().log_end).await.ok_or(End::Unsure)?;
        let mut next = self.hosted.reader().start();
        loop {
            let reader = self.hosted.reader().clone();
            let services = Arc::clone(&self.at.broker.services);
            let reading = async move { services.readers.read(move || records::read(&reader, next, end)).await };
            let chunk = match self.beside(messages, reading).await? {
                // The broker stops.
                None => return Err(End::Dismissed),
                Some(Ok(None)) => break,
                Some(Ok(Some(chunk))) => chunk,
                Some(Err(error)) => {
                    tracing::warn!(partition = %self.hosted.topic_partition(), %error, "{} cannot be loaded yet", M::KEEPS);
                    self.beside(messages, tokio::time::sleep(RETRY)).await?;
                    continue;
                }
            };
            for what in chunk.odd {
                tracing::error!(partition = %self.hosted.topic_partition(), what, "{} may be as they were before", M::KEEPS);
            }
            for (at, batch) in chunk.batches {
                self.loads = Some(at);
                self.handle(Event::Load(batch), None);
            }
            self.loads = None;
            next = chunk.next;
        }
        loop {
            match self.hosted.status() {
                Some(status) if status.role == Role::Leader && status.leader_epoch == self.at.leader_epoch => {
                    if status.high_watermark >= end {
                        break;
                    }
                }
                _ => return Err(End::Unsure),
            }
            self.beside(messages, tokio::time::sleep(POLL)).await?;
        }
        self.serving = true;
        self.handle(Event::Loaded, None);
        Ok(())
    }

    /// Waits for something while requests are answered.
    async fn beside<T>(
        &mut self,
        messages: &mut mpsc::Receiver<Message<M>>,
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

    fn take(&mut self, message: Message<M>) {
        match message {
            Message::Request { request, guard, answer } => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.asked.insert(ticket, answer);
                self.handle(Event::Request(ticket, request), guard);
            }
            // What is written below the end that it loads up to, it may have read already.
            message @ Message::Marker(..) if !self.serving => refuse(message),
            Message::Marker(marker, waits) => {
                let now = self.at.broker.services.clock.now();
                self.append_together();
                self.produce(marker.to_batch(now), What::Marker(marker, waits), None, now, self.late_at());
            }
            Message::News(news) => self.handle(Event::News(news), None),
        }
    }

    fn handle(&mut self, event: Event<M>, guard: Option<Arc<Guard>>) {
        let now = self.at.broker.services.clock.now();
        for deed in self.machine.handle(at(now), event) {
            match deed {
                Deed::Answer(ticket, answer) => {
                    if let Some(sender) = self.asked.remove(&ticket) {
                        // The connection may be closed.
                        let _ = sender.send(answer);
                    }
                }
                Deed::Append { id, records, spare_bytes, .. } if !self.has_room_for(&records, spare_bytes) => {
                    // Not handed in, so that nothing of it comes into the log.
                    self.handle(Event::Appended(id, Appended::TooLarge), None);
                }
                Deed::Append { id, transaction, records, .. } => self.append(id, transaction, records, &guard, now),
                Deed::Odd(what) => {
                    let batch = self.loads.map(|at| at.0);
                    tracing::warn!(partition = %self.hosted.topic_partition(), batch, what, "a record was passed over");
                }
                Deed::Wish(wish) => {
                    while self.tasks.try_join_next().is_some() {}
                    self.tasks.spawn(M::carry_out(self.at.clone(), wish));
                }
            }
        }
    }

    /// Whether the log takes these records and so many bytes more, if more are asked for.
    fn has_room_for(&self, records: &[Record], spare_bytes: usize) -> bool {
        let bytes = || HEADER_BYTES.saturating_add(bytes_of(records)).saturating_add(spare_bytes);
        spare_bytes == 0 || bytes() <= self.hosted.batch_bytes_max()
    }

    fn append(
        &mut self,
        id: AppendId,
        transaction: Option<Producer>,
        records: Vec<Record>,
        guard: &Option<Arc<Guard>>,
        now: TimestampMs,
    ) {
        if transaction.is_none() {
            let bytes_max = TOGETHER_BYTES.min(self.hosted.batch_bytes_max() / 2);
            if !self.together.has_room_for(&records, bytes_max) {
                self.append_together();
            }
            let late_at = self.late_at();
            return self.together.add(id, records, late_at);
        }
        self.append_together();
        self.produce(
            records::batch(&records, transaction, now),
            What::Records(vec![id]),
            guard.clone(),
            now,
            self.late_at(),
        );
    }

    /// Appends what has come together, if anything has.
    fn append_together(&mut self) {
        if self.together.ids.is_empty() {
            return;
        }
        let Together { ids, records, late_at, .. } = std::mem::take(&mut self.together);
        let late_at = late_at.unwrap_or_else(|| self.late_at());
        let now = self.at.broker.services.clock.now();
        self.produce(records::batch(&records, None, now), What::Records(ids), None, now, late_at);
    }

    /// When whoever waits for what is appended now is told to try again.
    fn late_at(&self) -> Instant {
        Instant::now() + M::patience(&self.at.broker.config)
    }

    fn produce(&mut self, batch: Vec<u8>, what: What, guard: Option<Arc<Guard>>, now: TimestampMs, late_at: Instant) {
        let (gather, mut slots) = Gather::new(1);
        let Some(slot) = slots.next() else { return };
        // Markers have no sequence numbers, nor have offsets of a transaction.
        let rules = ProduceRules { origin: Origin::Coordinator, ..ProduceRules::clone(&self.hosted.rules()) };
        match CheckedBatch::check(Bytes::from(batch), &rules, now) {
            Ok(batch) => self.hosted.produce_in(self.at.leader_epoch, batch, guard, slot),
            Err(refused) => slot.fill(Err(ProduceError::Append(AppendError::Refused(refused)).into())),
        }
        self.appends.push_back(Waiting { what, gather, late_at: Some(late_at) });
    }

    fn tell_late(&mut self) {
        let now = Instant::now();
        let mut late = Vec::new();
        for append in &mut self.appends {
            if append.late_at.is_some_and(|at| at <= now) {
                append.late_at = None;
                if let What::Records(ids) = &append.what {
                    late.extend(ids);
                }
            }
        }
        for id in late {
            self.handle(Event::Appended(id, Appended::Late), None);
        }
    }

    fn instant(&self, uptime_ms: u64) -> Instant {
        let at = TimestampMs(i64::try_from(uptime_ms).unwrap_or(i64::MAX));
        self.at.broker.services.clock.instant(at).into()
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

/// What a partition said; `None` where it is not known what became of it.
fn of_partition(outcome: Option<ProduceAnswer>) -> Option<Result<(), ProduceError>> {
    match outcome? {
        Ok(_) => Some(Ok(())),
        Err(NotProduced::Partition(error)) => Some(Err(error)),
        Err(NotProduced::Transaction(_)) => None,
    }
}

/// How an append ended; `None` if that is not known, or this broker does not lead any more.
fn end_of(outcome: Option<ProduceAnswer>) -> Option<Appended> {
    let error = match of_partition(outcome)? {
        Ok(()) => return Some(Appended::Committed),
        Err(error) => error,
    };
    match error {
        ProduceError::Append(
            AppendError::Refused(BatchRefused::TooLarge { .. }) | AppendError::LargerThanSegment { .. },
        ) => Some(Appended::TooLarge),
        ProduceError::Append(AppendError::Sequence(SequenceError::InvalidEpoch { .. })) => Some(Appended::Fenced),
        ProduceError::Append(AppendError::Sequence(_)) => Some(Appended::OutsideTransaction),
        ProduceError::Append(AppendError::Refused(_) | AppendError::OffsetsExhausted) => Some(Appended::Refused),
        // Nothing of it is in the log, which is as before: a full disk has room again some time.
        ProduceError::Append(AppendError::Io(_))
        | ProduceError::Refused(ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::TooManyWaiting { .. }) => {
            Some(Appended::NotNow)
        }
        // It may be in the log: what is told from here on must come from there.
        _ => None,
    }
}

/// What becomes of a marker; that it is not led here any more where it is not known.
pub(crate) fn marked(outcome: Option<ProduceAnswer>) -> Marked {
    let error = match of_partition(outcome).ok_or(NotMarked::NotLeader)? {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    Err(match error {
        ProduceError::Append(AppendError::Sequence(SequenceError::CoordinatorFenced { .. })) => {
            NotMarked::CoordinatorFenced
        }
        ProduceError::Append(AppendError::Sequence(_)) => NotMarked::InvalidProducerEpoch,
        ProduceError::Append(_) => NotMarked::Storage,
        ProduceError::Refused(ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::TooManyWaiting { .. }) => {
            NotMarked::NotEnoughReplicas
        }
        _ => NotMarked::NotLeader,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use highwater_storage::Fence;
    use highwater_storage::io::IoError;

    use super::*;

    /// Whether a coordinator goes on with what it knew, which it may where nothing of its append is in the log.
    #[test]
    fn an_append_that_the_log_refused_is_told_as_such_and_what_may_be_in_it_is_read_again() {
        let full = || IoError { verb: "write", path: "log".into(), source: io::ErrorKind::StorageFull.into() };
        let leader_epoch = LeaderEpoch(3);
        let outside = SequenceError::InvalidTransactionState { producer_id: 7 };
        let replaced = SequenceError::InvalidEpoch { producer_id: 7, epoch: 1, current: 2 };
        let append: [(AppendError, Option<Appended>); 11] = [
            (BatchRefused::TooLarge { bytes: 9, max: 8 }.into(), Some(Appended::TooLarge)),
            (AppendError::LargerThanSegment { bytes: 9, segment_bytes: 8 }, Some(Appended::TooLarge)),
            (BatchRefused::InvalidTimestamp { errors: Vec::new() }.into(), Some(Appended::Refused)),
            (BatchRefused::UnsupportedMagic { magic: 1 }.into(), Some(Appended::Refused)),
            (AppendError::OffsetsExhausted, Some(Appended::Refused)),
            (replaced.into(), Some(Appended::Fenced)),
            (outside.into(), Some(Appended::OutsideTransaction)),
            (full().into(), Some(Appended::NotNow)),
            (AppendError::Closed(Fence::SyncFailed("no more".to_owned())), None),
            (AppendError::StaleEpoch { given: leader_epoch, latest: LeaderEpoch(4) }, None),
            (AppendError::Truncated, None),
        ];
        for (error, how) in append {
            let said = error.to_string();
            assert_eq!(end_of(Some(Err(ProduceError::Append(error).into()))), how, "{said}");
        }
        let refused = [
            (ProduceRefused::NotEnoughReplicas { in_sync: 1, needed: 2 }, Some(Appended::NotNow)),
            (ProduceRefused::TooManyWaiting { waiting: 9 }, Some(Appended::NotNow)),
            (ProduceRefused::NotEnoughReplicasAfterAppend { in_sync: 1, needed: 2 }, None),
            (ProduceRefused::NotLeader { leader: None, leader_epoch }, None),
            (ProduceRefused::TimedOut, None),
            (ProduceRefused::Storage, None),
        ];
        for (why, how) in refused {
            assert_eq!(end_of(Some(Err(ProduceError::Refused(why).into()))), how, "{why}");
        }
        assert_eq!(end_of(None), None, "the partition is gone");
    }

    #[test]
    fn appends_come_together_up_to_a_bound_and_a_large_one_goes_alone() {
        let record = |bytes: usize| Record { key: Bytes::from(vec![0; bytes]), value: None };
        let mut together = Together::default();
        assert!(together.has_room_for(&[record(100_000)], 10_000), "as nothing is there");
        let mut added = 0;
        while together.has_room_for(&[record(1_000 - RECORD_BYTES)], 10_000) {
            together.add(AppendId(added), vec![record(1_000 - RECORD_BYTES)], Instant::now());
            added += 1;
        }
        assert_eq!((together.ids.len(), together.records.len()), (10, 10));
        assert!(!together.has_room_for(&[record(100_000)], 10_000));
    }
}
