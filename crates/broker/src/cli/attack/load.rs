//! Producers and consumers of the attacked topic, who write down what they see.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use highwater_checker::{Client, Event, Payload};
use highwater_storage::batches;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::ErrorCode;
use crate::client::Connection;
use crate::driver::producer::{BATCHES_IN_FLIGHT, Outcome, Producer};
use crate::driver::random::Random;
use crate::driver::{Contact, FetchError, Topic, fetch};

/// Producers of each partition: one gives batches up that an outage holds, the other waits for ever.
const GIVES_UP_AFTER: [Duration; 2] = [Duration::from_secs(4), Duration::MAX];

/// How many records go together at most.
const BATCH_RECORDS_MAX: u32 = 20;

/// How long a client that was refused waits before it asks again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What a reader that starts late reads at most, so that histories do not grow without bound.
const LATE_READER_RECORDS: i64 = 5_000;

/// The final reader gives up when it gets nothing for so long.
const READ_BACK_LIMIT: Duration = Duration::from_secs(60);

/// How long producers may take for what is on its way when the load ends.
const LAST_ACKNOWLEDGEMENTS: Duration = Duration::from_secs(60);

/// What is known of one partition: its history, and how acknowledgements flow.
pub(super) struct Board {
    pub(super) partition: i32,
    seen: Mutex<Seen>,
    payloads: AtomicU64,
    clients: AtomicU32,
    /// The highest leader epoch that a consumer has heard of. As in Kafka's clients none believes an older one again.
    epoch: AtomicI32,
}

/// What the clients have seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) history: Vec<Event>,
    pub(super) acknowledged: u64,
    /// Records of which nobody knows whether they are stored.
    pub(super) unknown: u64,
    /// Records that were refused.
    pub(super) refused: u64,
    pub(super) longest_gap: Duration,
    /// What no history has a word for.
    pub(super) oddities: Vec<String>,
    /// Why producers went on under another number.
    pub(super) new_producers: Vec<String>,
    last_acknowledgement: Option<Instant>,
    waits: Vec<Wait>,
    /// The end, as far as somebody read.
    end: i64,
}

/// Somebody wants to know when acknowledgements come again.
struct Wait {
    since: Instant,
    first: Option<Duration>,
}

/// A batch of consecutive payloads.
#[derive(Clone, Copy)]
struct Batch {
    first: u64,
    records: u32,
}

impl Batch {
    fn numbers(self) -> impl Iterator<Item = u64> {
        self.first..self.first + u64::from(self.records)
    }
}

impl Board {
    fn new(partition: i32) -> Self {
        Self {
            partition,
            seen: Mutex::default(),
            payloads: AtomicU64::new(0),
            clients: AtomicU32::new(0),
            epoch: AtomicI32::new(-1),
        }
    }

    /// What is known now.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, from now on, for an acknowledgement over a connection that was opened later. The answer is for
    /// [`Board::waited`].
    pub(super) fn wait_for_acknowledgement(&self) -> usize {
        let mut seen = self.seen();
        seen.waits.push(Wait { since: Instant::now(), first: None });
        seen.waits.len() - 1
    }

    /// How long it took, if it came.
    pub(super) fn waited(&self, wait: usize) -> Option<Duration> {
        self.seen().waits.get(wait)?.first
    }

    fn client(&self) -> Client {
        Client(self.clients.fetch_add(1, Ordering::Relaxed))
    }

    fn batch(&self, client: Client, records: u32) -> Batch {
        let batch = Batch { first: self.payloads.fetch_add(u64::from(records), Ordering::Relaxed), records };
        let sent = |number| Event::Sent { client, payload: Payload(number), idempotent: true };
        self.seen().history.extend(batch.numbers().map(sent));
        batch
    }

    fn acked(&self, batch: Batch, base_offset: i64, opened: Instant) {
        let now = Instant::now();
        let seen = &mut *self.seen();
        let acked = |(number, offset)| Event::Acked { payload: Payload(number), offset };
        seen.history.extend(batch.numbers().zip(base_offset..).map(acked));
        seen.acknowledged += u64::from(batch.records);
        let gap = seen.last_acknowledgement.replace(now).map_or(Duration::ZERO, |last| now - last);
        seen.longest_gap = seen.longest_gap.max(gap);
        for wait in seen.waits.iter_mut().filter(|wait| wait.first.is_none() && opened >= wait.since) {
            wait.first = Some(now - wait.since);
        }
    }

    fn given_up(&self, producer: Producer<Batch>, why: String) {
        let seen = &mut *self.seen();
        for batch in producer.abandon() {
            for payload in batch.tag.numbers().map(Payload) {
                seen.history.push(if batch.maybe_stored {
                    Event::Unknown { payload }
                } else {
                    Event::Failed { payload }
                });
            }
            let count = if batch.maybe_stored { &mut seen.unknown } else { &mut seen.refused };
            *count += u64::from(batch.tag.records);
        }
        seen.new_producers.push(why);
    }

    /// Takes the records of a fetch in that are not below `next`; gives the offset to go on from.
    fn read(&self, client: Client, next: i64, records: &Bytes) -> anyhow::Result<i64> {
        let mut at = next;
        let mut reads = Vec::new();
        for batch in batches(records) {
            let batch = batch.with_context(|| format!("offset {at}"))?;
            ensure!(batch.crc_matches(), "offset {}: the batch fails its CRC", batch.base_offset());
            let records = batch.records().context("a compressed batch, which nobody sent")?;
            for record in records {
                let record = record.with_context(|| format!("offset {at}"))?;
                let offset = (batch.base_offset() + i64::from(record.offset_delta)).0;
                if offset >= next {
                    let payload = payload(record.value.unwrap_or_default());
                    reads.push(Event::Read { client, offset, payload });
                }
            }
            at = at.max(batch.header().next_offset().0);
        }
        let mut seen = self.seen();
        seen.history.extend(reads);
        seen.end = seen.end.max(at);
        Ok(at)
    }
}

/// Everything that runs against the cluster.
pub(super) struct Load {
    pub(super) boards: Vec<Arc<Board>>,
    contact: Contact,
    topic: &'static str,
    stop: watch::Sender<bool>,
    producers: JoinSet<()>,
    consumers: JoinSet<()>,
}

impl Load {
    /// Starts producers and consumers, so many records a second in all.
    pub(super) fn start(contact: &Contact, topic: Topic, rate: u32, random: &mut Random) -> Self {
        let boards: Vec<Arc<Board>> = (0..topic.partitions).map(|partition| Arc::new(Board::new(partition))).collect();
        let (stop, stopped) = watch::channel(false);
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        let each = f64::from(rate) / f64::from(topic.partitions) / GIVES_UP_AFTER.map(|_| 1.0).iter().sum::<f64>();
        for board in &boards {
            for gives_up_after in GIVES_UP_AFTER {
                let (board, contact, random) = (Arc::clone(board), contact.clone(), random.fork());
                let pace = Pace::new(each);
                producers.spawn(produce(board, contact, topic.name, gives_up_after, pace, random, stopped.clone()));
            }
            consumers.spawn(follow(Arc::clone(board), contact.clone(), topic.name));
            consumers.spawn(read_again_and_again(Arc::clone(board), contact.clone(), topic.name, random.fork()));
        }
        Self { boards, contact: contact.clone(), topic: topic.name, stop, producers, consumers }
    }

    /// How many records were acknowledged by now.
    pub(super) fn acknowledged(&self) -> u64 {
        self.boards.iter().map(|board| board.seen().acknowledged).sum()
    }

    /// Ends the load: what is on its way is waited for, then everything is read back. Gives how many records there are, by
    /// partition.
    pub(super) async fn end(&mut self) -> anyhow::Result<Vec<i64>> {
        self.stop.send_replace(true);
        let flushed = async { while self.producers.join_next().await.is_some() {} };
        ensure!(
            tokio::time::timeout(LAST_ACKNOWLEDGEMENTS, flushed).await.is_ok(),
            "records are not acknowledged within {} s after the last fault",
            LAST_ACKNOWLEDGEMENTS.as_secs()
        );
        self.consumers.shutdown().await;
        let mut ends = Vec::new();
        for board in &self.boards {
            let mut reader = Reader::new(board, &self.contact, self.topic, 0, 0);
            let mut progress = Instant::now();
            loop {
                match reader.read_on().await? {
                    Some(high_watermark) if reader.next >= high_watermark => break,
                    Some(_) => progress = Instant::now(),
                    None if progress.elapsed() > READ_BACK_LIMIT => {
                        bail!("partition {}: nobody serves offset {}", board.partition, reader.next)
                    }
                    None => {}
                }
            }
            ends.push(reader.next);
        }
        Ok(ends)
    }
}

/// Lets so many records a second go, and only a few more after a pause.
struct Pace {
    a_second: f64,
    credit: f64,
    last: Instant,
}

impl Pace {
    fn new(a_second: f64) -> Self {
        Self { a_second, credit: 0.0, last: Instant::now() }
    }

    fn lets(&mut self, records: u32) -> bool {
        let most = self.a_second.max(2.0 * f64::from(BATCH_RECORDS_MAX));
        self.credit = (self.credit + self.last.elapsed().as_secs_f64() * self.a_second).min(most);
        self.last = Instant::now();
        let enough = self.credit >= f64::from(records);
        if enough {
            self.credit -= f64::from(records);
        }
        enough
    }
}

async fn produce(
    board: Arc<Board>,
    contact: Contact,
    topic: &'static str,
    gives_up_after: Duration,
    mut pace: Pace,
    mut random: Random,
    stopped: watch::Receiver<bool>,
) {
    while !*stopped.borrow() {
        let asks = random.index();
        let Ok(mut producer) = Producer::new(contact.clone(), topic, board.partition, asks).await else {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        };
        let client = board.client();
        let mut draw = || u32::try_from(random.between(1, BATCH_RECORDS_MAX.into())).unwrap_or(1);
        let mut records = draw();
        let why = 'lives: loop {
            let stopping = *stopped.borrow();
            if stopping && producer.in_flight() == 0 {
                return;
            }
            if producer.waits_for() > gives_up_after {
                break "it gave up waiting".to_owned();
            }
            while !stopping && producer.in_flight() < BATCHES_IN_FLIGHT && pace.lets(records) {
                let batch = board.batch(client, records);
                if let Err(error) = producer.push(batch.numbers().map(value), batch) {
                    break 'lives format!("{error:#}");
                }
                records = draw();
            }
            if producer.in_flight() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            match producer.outcome().await {
                Outcome::Stored { tag, base_offset, opened } => board.acked(tag, base_offset, opened),
                Outcome::Again => {}
                Outcome::Refused(code) => break code.name().to_owned(),
            }
        };
        board.given_up(producer, why);
    }
}

/// Reads what comes, from the start of the log on.
async fn follow(board: Arc<Board>, contact: Contact, topic: &'static str) {
    let mut reader = Reader::new(&board, &contact, topic, 0, 0);
    loop {
        if let Err(error) = reader.read_on().await {
            board.seen().oddities.push(format!("{error:#}"));
            // Where it could not read it does not wait: the final reader will.
            reader = Reader::new(&board, &contact, topic, reader.next + 1, reader.asks);
        }
    }
}

/// New readers, who start somewhere and read on for a while.
async fn read_again_and_again(board: Arc<Board>, contact: Contact, topic: &'static str, mut random: Random) {
    loop {
        tokio::time::sleep(Duration::from_millis(random.between(1_000, 8_000))).await;
        let end = board.seen().end;
        let anywhere = i64::try_from(random.below(end.unsigned_abs() + 1)).unwrap_or(0);
        let from = if random.below(3) == 0 { 0 } else { anywhere };
        let mut reader = Reader::new(&board, &contact, topic, from, random.index());
        while reader.next < end.min(from + LATE_READER_RECORDS) {
            if let Err(error) = reader.read_on().await {
                board.seen().oddities.push(format!("{error:#}"));
                break;
            }
        }
    }
}

/// A consumer that goes from leader to leader.
struct Reader<'a> {
    board: &'a Board,
    contact: &'a Contact,
    topic: &'static str,
    client: Client,
    next: i64,
    /// The last high watermark it was told.
    told: i64,
    /// Which broker it asks first for the leader.
    asks: usize,
    leader: Option<(Connection, i32)>,
}

impl<'a> Reader<'a> {
    fn new(board: &'a Board, contact: &'a Contact, topic: &'static str, from: i64, asks: usize) -> Self {
        Self { board, contact, topic, client: board.client(), next: from, told: -1, asks, leader: None }
    }

    /// Fetches once and gives the high watermark, or nothing if nobody serves at present. An error is a broken promise.
    async fn read_on(&mut self) -> anyhow::Result<Option<i64>> {
        if self.leader.is_none() {
            self.leader = self.find_leader().await;
        }
        let Some((connection, epoch)) = &self.leader else {
            tokio::time::sleep(RETRY_PAUSE).await;
            return Ok(None);
        };
        match fetch(connection, self.topic, self.board.partition, self.next, *epoch).await {
            Ok(fetched) => {
                self.next = self.board.read(self.client, self.next, &fetched.records)?;
                if fetched.high_watermark >= 0 && fetched.high_watermark != self.told {
                    self.told = fetched.high_watermark;
                    let told = Event::Watermark { client: self.client, high_watermark: self.told };
                    self.board.seen().history.push(told);
                }
                Ok(Some(fetched.high_watermark))
            }
            // The leader of the latest epoch was asked for an offset that somebody has read, or for the one behind it.
            Err(FetchError::Refused { code: ErrorCode::OffsetOutOfRange, offset }) => {
                let (address, epoch) = (connection.address().to_owned(), *epoch);
                self.leader = None;
                tokio::time::sleep(RETRY_PAUSE).await;
                bail!(
                    "partition {}: {address}, leader in epoch {epoch}, says that offset {offset} is out of range",
                    self.board.partition
                )
            }
            Err(_) => {
                self.leader = None;
                tokio::time::sleep(RETRY_PAUSE).await;
                Ok(None)
            }
        }
    }

    async fn find_leader(&mut self) -> Option<(Connection, i32)> {
        self.asks = self.asks.wrapping_add(1);
        let known = self.board.epoch.load(Ordering::Acquire);
        let found = self.contact.leader_since(self.topic, self.board.partition, self.asks, known).await;
        let leader = found.ok()?;
        // Others may have heard of another meanwhile.
        if self.board.epoch.fetch_max(leader.epoch, Ordering::AcqRel) > leader.epoch {
            return None;
        }
        Some((self.contact.connect(&leader.address).await.ok()?, leader.epoch))
    }
}

/// The value of a record: its number, and letters that follow from it.
fn value(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let letters = (0..random.below(300)).map(|_| b'a' + u8::try_from(random.below(26)).unwrap_or(0));
    number.to_string().into_bytes().into_iter().chain([b' ']).chain(letters.collect::<Vec<u8>>()).collect()
}

/// What a value is known by: its number, or one that nobody sent where it is not the value of its number.
fn payload(found: &[u8]) -> Payload {
    let digits = found.split(|byte| *byte == b' ').next().and_then(|digits| std::str::from_utf8(digits).ok());
    match digits.and_then(|digits| digits.parse().ok()).filter(|number| value(*number) == found) {
        Some(number) => Payload(number),
        None => Payload((1 << 63) | u64::from(crc32fast::hash(found))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_by_its_number_unless_a_byte_differs() {
        for number in [0, 7, 1 << 40] {
            let mut changed = value(number);
            assert_eq!(payload(&changed), Payload(number));
            *changed.last_mut().expect("it has its number") ^= 1;
            assert_ne!(payload(&changed), Payload(number));
        }
        assert_ne!(payload(b""), Payload(0));
    }

    #[test]
    fn a_wait_ends_with_an_acknowledgement_over_a_later_connection() {
        let board = Board::new(0);
        let before = Instant::now();
        let wait = board.wait_for_acknowledgement();
        let batch = board.batch(Client(0), 2);
        board.acked(batch, 0, before);
        assert_eq!(board.waited(wait), None, "the dead leader may have said so");
        board.acked(batch, 2, Instant::now());
        assert!(board.waited(wait).is_some());
        assert_eq!(board.seen().acknowledged, 4);
    }
}
