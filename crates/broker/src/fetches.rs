//! One Fetch request over all its partitions: who may read what, one byte budget, one deadline.
//!
//! ```text
//!  ask every partition ──► read what is granted ──► enough, an error, a divergence? ── yes ──► answer
//!          ▲                                                   │ no
//!          └──── those that rang, or all at the deadline ◄── watch and wait
//! ```
//!
//! The first question to a partition counts as the follower's progress, the later ones do not. Bytes that were read are
//! kept while waiting for more, so a large `min_bytes` does not read the same records again and again. A watch that is
//! dropped deregisters itself: at the answer, and when the client goes away.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use highwater_replication::{FetchError, FetchGrant, FetchRequest, Fetcher, Isolation, WaitToken};
use highwater_storage::{AbortedTransaction, Offset};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::gather::{Gather, Slot};
use crate::readers::{Readers, Share};

/// How often a read that was overtaken by a truncation is granted anew before the partition is answered empty.
const SUPERSEDED_MAX: u32 = 3;

/// A partition as a Fetch request sees it.
pub(crate) trait Source: Send + Sync + 'static {
    /// Grants the fetch, on the thread that owns the partition.
    fn ask(self: &Arc<Self>, question: Question, slot: Slot<Answer<Self>>)
    where
        Self: Sized;

    /// Forgets a watch.
    fn unwatch(self: &Arc<Self>, token: WaitToken);

    /// Reads whole batches from `from` on, at most `max_bytes` unless `at_least_one`; with the aborted transactions in them
    /// for who sees `committed` records only. May wait for the disk.
    fn read(
        &self,
        grant: &FetchGrant,
        from: Offset,
        max_bytes: usize,
        at_least_one: bool,
        committed: bool,
    ) -> Result<Chunk, ReadFailure>;
}

/// What is asked of a partition.
#[derive(Debug)]
pub(crate) struct Question {
    /// The fetch.
    pub(crate) request: FetchRequest,
    /// The first time: a follower's offset counts as its acknowledgement.
    pub(crate) initial: bool,
    /// If there is nothing to read, ring this when there is.
    pub(crate) watch: Option<(Arc<Alarm>, usize)>,
}

/// A partition's answer.
pub(crate) type Answer<S> = Result<Granted<S>, FetchError>;

/// What may be read, and the watch if there was nothing.
pub(crate) struct Granted<S: Source> {
    pub(crate) grant: FetchGrant,
    pub(crate) watching: Option<Watching<S>>,
}

/// A registration that ends when it is dropped.
pub(crate) struct Watching<S: Source> {
    registered: Option<(Arc<S>, WaitToken)>,
}

/// Records that were read.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    /// Where to read on.
    pub(crate) next: Option<Offset>,
    /// Transactions that were aborted and reach into it.
    pub(crate) aborted: Vec<AbortedTransaction>,
}

/// Why nothing could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The log was cut since the grant: ask again.
    Superseded,
    /// The offset is gone (retention was faster): 1.
    OutOfRange,
    /// What is stored there is damaged: 2.
    Corrupt,
    /// The disk failed or the log is closed: 56.
    Storage,
}

/// Rung by partitions when there is something to read, or a change of role to tell of.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    rung: Mutex<Vec<usize>>,
    bell: Notify,
}

impl Alarm {
    /// Says that the partition in this place of the request should be asked again.
    pub(crate) fn ring(&self, place: usize) {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner).push(place);
        self.bell.notify_one();
    }

    async fn rung(&self) -> Vec<usize> {
        loop {
            let rung = std::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner));
            if !rung.is_empty() {
                return rung;
            }
            self.bell.notified().await;
        }
    }
}

impl<S: Source> Watching<S> {
    /// The partition has registered this token.
    pub(crate) fn new(source: Arc<S>, token: WaitToken) -> Self {
        Self { registered: Some((source, token)) }
    }

    /// It rang, which ended it.
    fn rang(mut self) {
        self.registered = None;
    }
}

impl<S: Source> Drop for Watching<S> {
    fn drop(&mut self) {
        if let Some((source, token)) = self.registered.take() {
            source.unwatch(token);
        }
    }
}

/// One partition of the request.
pub(crate) struct Wanted<S> {
    pub(crate) source: Arc<S>,
    pub(crate) request: FetchRequest,
    /// `partition_max_bytes`.
    pub(crate) max_bytes: usize,
}

/// The limits of the whole request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_bytes: usize,
    /// Answer as soon as there are this many bytes; 0 does not wait.
    pub(crate) min_bytes: usize,
    /// Answer by then in any case.
    pub(crate) until: Instant,
}

/// What is sent to one partition's asker, with its shares of the memory for answers.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    held: Vec<Share>,
    aborted: BTreeSet<(Offset, i64)>,
}

impl Records {
    /// The first offset and the producer of each aborted transaction that reaches into the records, by rising offset.
    pub(crate) fn aborted(&self) -> impl Iterator<Item = (Offset, i64)> {
        self.aborted.iter().copied()
    }
}

impl AsRef<[u8]> for Records {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What came of one partition.
#[derive(Debug)]
pub(crate) enum Served {
    /// Its grant, and the records (none if the asker diverges).
    Granted(FetchGrant, Records),
    /// It refused.
    Refused(FetchError),
    /// It granted, but could not be read.
    Unreadable(FetchGrant, ReadFailure),
    /// It went away while it was asked.
    Gone,
}

/// Carries a request out. The result has an entry for each partition, in order.
pub(crate) async fn serve<S: Source>(wanted: Vec<Wanted<S>>, limits: Limits, readers: &Readers) -> Vec<Served> {
    let mut fetch = Fetch {
        parts: wanted.into_iter().map(Part::new).collect(),
        limits,
        bytes: 0,
        settled: false,
        alarm: Arc::new(Alarm::default()),
    };
    let may_wait = limits.min_bytes > 0 && limits.until > Instant::now() && !fetch.parts.is_empty();
    fetch.ask(true, false).await;
    fetch.read(readers).await;
    if may_wait {
        fetch.wait(readers).await;
    }
    fetch.parts.into_iter().map(Part::served).collect()
}

struct Fetch<S: Source> {
    parts: Vec<Part<S>>,
    limits: Limits,
    bytes: usize,
    /// Something must be told at once: an error or a divergence.
    settled: bool,
    alarm: Arc<Alarm>,
}

struct Part<S: Source> {
    source: Arc<S>,
    request: FetchRequest,
    max_bytes: usize,
    records: Records,
    grant: Option<FetchGrant>,
    superseded: u32,
    phase: Phase<S>,
}

enum Phase<S: Source> {
    /// To be asked.
    Ask,
    /// To be read.
    Read,
    /// Nothing to read at present; rings when there is.
    Watched(Watching<S>),
    /// Has given what it may.
    Full,
    Refused(FetchError),
    Unreadable(ReadFailure),
    Gone,
}

impl<S: Source> Fetch<S> {
    /// Asks every partition whose turn it is.
    async fn ask(&mut self, initial: bool, watch: bool) {
        let asked: Vec<usize> =
            (0..self.parts.len()).filter(|&place| matches!(self.parts[place].phase, Phase::Ask)).collect();
        let (gather, slots) = Gather::new(asked.len());
        for (&place, slot) in asked.iter().zip(slots) {
            let part = &self.parts[place];
            let watch = watch.then(|| (Arc::clone(&self.alarm), place));
            let question = Question { request: part.request.clone(), initial, watch };
            part.source.ask(question, slot);
        }
        for (place, answer) in asked.into_iter().zip(gather.all().await) {
            let part = &mut self.parts[place];
            part.phase = match answer {
                None => {
                    self.settled = true;
                    Phase::Gone
                }
                Some(Err(refusal)) => {
                    self.settled = true;
                    Phase::Refused(refusal)
                }
                Some(Ok(Granted { grant, watching })) => {
                    let diverges = grant.diverging.is_some();
                    let readable = grant.upper > part.request.from;
                    part.grant = Some(grant);
                    self.settled |= diverges;
                    match watching {
                        _ if diverges => Phase::Full,
                        Some(watching) => Phase::Watched(watching),
                        None if readable => Phase::Read,
                        // Asked without a watch, for the first time or the last: nothing there.
                        None => Phase::Ask,
                    }
                }
            };
        }
    }

    /// Reads what was granted, all partitions in one job: the budget shrinks from one to the next.
    async fn read(&mut self, readers: &Readers) {
        let mut jobs = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            if let (Phase::Read, Some(grant)) = (&part.phase, &part.grant) {
                let left = part.max_bytes.saturating_sub(part.records.bytes.len());
                jobs.push((place, Arc::clone(&part.source), grant.clone(), part.request.from, left, part.request.by));
            }
        }
        if jobs.is_empty() {
            return;
        }
        let (mut left, mut nothing_yet) = (self.limits.max_bytes.saturating_sub(self.bytes), self.bytes == 0);
        let memory = Arc::clone(readers.memory());
        let chunks = readers.read(move || {
            type Job<S> = (usize, Arc<S>, FetchGrant, Offset, usize, Fetcher);
            let read = |(place, source, grant, from, part_left, by): Job<S>| {
                let follows = matches!(by, Fetcher::Follower { .. });
                let committed = by == Fetcher::Consumer { isolation: Isolation::ReadCommitted };
                let wanted = left.min(part_left);
                let mut share = memory.take(wanted);
                // Slow clients must not hold followers up, whose answers are few and of a configured size.
                let max_bytes = if follows { wanted } else { share.bytes() };
                if max_bytes == 0 && !nothing_yet {
                    return (place, Ok((Chunk::default(), share)));
                }
                let chunk = source.read(&grant, from, max_bytes, nothing_yet, committed);
                let chunk = chunk.map(|chunk| {
                    left = left.saturating_sub(chunk.bytes.len());
                    nothing_yet &= chunk.bytes.is_empty();
                    share.settle(chunk.bytes.len());
                    (chunk, share)
                });
                (place, chunk)
            };
            jobs.into_iter().map(read).collect::<Vec<_>>()
        });
        let Some(chunks) = chunks.await else {
            // The broker stops.
            self.settled = true;
            return;
        };
        for (place, chunk) in chunks {
            let part = &mut self.parts[place];
            part.phase = match chunk {
                Ok((Chunk { bytes, next: Some(next), aborted }, share)) if !bytes.is_empty() => {
                    self.bytes += bytes.len();
                    part.records.aborted.extend(aborted.iter().map(|one| (one.first_offset, one.producer_id)));
                    part.take(bytes, share, next);
                    Phase::Ask
                }
                // The next batch does not fit in what is left.
                Ok(_) => Phase::Full,
                Err(ReadFailure::Superseded) if part.superseded < SUPERSEDED_MAX => {
                    part.superseded += 1;
                    Phase::Ask
                }
                Err(failure) if part.records.bytes.is_empty() => {
                    self.settled = true;
                    Phase::Unreadable(failure)
                }
                // What was read before it is good; the next fetch will meet the failure.
                Err(_) => Phase::Full,
            };
        }
    }

    /// Waits for more until there is enough, or the time is over.
    async fn wait(&mut self, readers: &Readers) {
        while !self.enough() {
            self.ask(false, true).await;
            self.read(readers).await;
            if self.enough() {
                return;
            }
            if self.parts.iter().any(|part| matches!(part.phase, Phase::Ask)) {
                continue;
            }
            if self.parts.iter().all(|part| matches!(part.phase, Phase::Full)) {
                return;
            }
            let Ok(rung) = tokio::time::timeout_at(self.limits.until, self.alarm.rung()).await else {
                return self.last_look(readers).await;
            };
            for place in rung {
                let Some(part) = self.parts.get_mut(place) else { continue };
                match std::mem::replace(&mut part.phase, Phase::Ask) {
                    Phase::Watched(watching) => watching.rang(),
                    // It rang before its answer was looked at, and has been asked again since.
                    other => part.phase = other,
                }
            }
        }
    }

    /// The time is over: what each partition says now, above all its high watermark, is what gets told.
    async fn last_look(&mut self, readers: &Readers) {
        for part in &mut self.parts {
            if matches!(part.phase, Phase::Watched(_)) {
                part.phase = Phase::Ask;
            }
        }
        self.ask(false, false).await;
        self.read(readers).await;
    }

    fn enough(&self) -> bool {
        self.settled || self.bytes >= self.limits.min_bytes.min(self.limits.max_bytes)
    }
}

impl<S: Source> Part<S> {
    fn new(wanted: Wanted<S>) -> Self {
        let Wanted { source, request, max_bytes } = wanted;
        Self { source, request, max_bytes, records: Records::default(), grant: None, superseded: 0, phase: Phase::Ask }
    }

    fn take(&mut self, bytes: Vec<u8>, share: Share, next: Offset) {
        if self.records.bytes.is_empty() {
            self.records.bytes = bytes;
        } else {
            self.records.bytes.extend_from_slice(&bytes);
        }
        self.records.held.push(share);
        self.request.from = next;
        // The epoch belonged to the offset first asked for, and divergence was looked for there.
        self.request.last_fetched_epoch = None;
    }

    fn served(self) -> Served {
        match (self.phase, self.grant) {
            // An error after records were read is for the next fetch to meet.
            (Phase::Refused(refusal), _) if self.records.bytes.is_empty() => Served::Refused(refusal),
            (Phase::Unreadable(failure), Some(grant)) => Served::Unreadable(grant, failure),
            (_, Some(grant)) => Served::Granted(grant, self.records),
            _ => Served::Gone,
        }
    }
}

#[cfg(test)]
mod tests;
