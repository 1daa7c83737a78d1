//! Fetch sessions (KIP-227): what a client fetches is kept here, so that its requests name only what has changed, and the
//! answers only what is new.
//!
//! ```text
//!  full request, epoch 0      ──► all partitions answered, session kept ──► id 7
//!  7, epoch 1: nothing listed ──► taken out, asked as kept ──► only what is new is told, put back
//!  7, epoch 2: p3 from 90, p4 forgotten …
//! ```
//!
//! Pure: the time and a random number for an id come in with the calls. While a request of a session is answered the
//! session is out with whoever answers it, so that no lock is held over the partitions; a second request in that time
//! is one too many. A session that never comes back, for its client went away, is closed by that client's next full request
//! or by its age.
//!
//! A session costs memory that nobody but its client asked for. So their number and their bytes are bounded, and a client
//! for which there is no room is answered in full, with the session id 0, as Kafka does.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use highwater_storage::{TimestampMs, TopicId};

/// The id that stands for no session.
pub(crate) const NO_SESSION: i32 = 0;

/// The epoch of a full request that opens a session.
pub(crate) const EPOCH_OPENING: i32 = 0;

/// The epoch of a full request without a session.
pub(crate) const EPOCH_FINAL: i32 = -1;

/// How long a session is left alone for the sake of clients that want a new one: as long idle it goes to anybody, as long
/// kept to those who fetch more than it (Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const PROTECTED_MS: i64 = 120_000;

/// What a partition takes in a session, with its places in both maps; its topic's name comes on top.
const PARTITION_BYTES: usize = 256;

/// How a request names a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Topic {
    Name(Arc<str>),
    Id(TopicId),
}

/// A partition as a request names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) topic: Topic,
    pub(crate) partition: i32,
}

/// What a request says of one partition, in the protocol's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) current_leader_epoch: i32,
    pub(crate) from: i64,
    pub(crate) last_fetched_epoch: i32,
    pub(crate) log_start: i64,
    pub(crate) max_bytes: i32,
}

/// What an answer says of one partition beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) high_watermark: i64,
    pub(crate) last_stable_offset: i64,
    pub(crate) log_start: i64,
}

/// What there is to say of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) has_records: bool,
    /// `None` for an error or a divergence: it is told, and whatever comes next is told too.
    pub(crate) told: Option<Told>,
}

/// The partitions of one client, in the order in which they share the bytes of an answer.
#[derive(Debug, Default)]
pub(crate) struct Session {
    parts: BTreeMap<u64, Part>,
    turns: HashMap<Key, u64>,
    next_turn: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Part {
    key: Key,
    asked: Asked,
    told: Option<Told>,
}

impl Session {
    /// Takes what a request says of a partition, which is new here or has changed.
    pub(crate) fn ask(&mut self, key: Key, asked: Asked) {
        if let Some(part) = self.turns.get(&key).and_then(|turn| self.parts.get_mut(turn)) {
            part.asked = asked;
            return;
        }
        self.bytes += bytes(&key);
        let turn = self.turn();
        self.turns.insert(key.clone(), turn);
        self.parts.insert(turn, Part { key, asked, told: None });
    }

    /// The client does not want this partition any more.
    pub(crate) fn forget(&mut self, key: &Key) {
        if let Some(turn) = self.turns.remove(key) {
            self.parts.remove(&turn);
            self.bytes -= bytes(key);
        }
    }

    /// The partitions that a request of this session asks for, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&Key, Asked)> {
        self.parts.values().map(|part| (&part.key, part.asked))
    }

    /// Whether the client is to be told of a partition, and notes that it is. Who gets records goes behind those who did
    /// not, so that each has its turn at an answer's bytes.
    pub(crate) fn has_news(&mut self, key: &Key, answered: Answered) -> bool {
        let Some(turn) = self.turns.get(key).copied() else { return false };
        let Some(part) = self.parts.get_mut(&turn) else { return false };
        let news = answered.has_records || answered.told.is_none() || answered.told != part.told;
        part.told = answered.told;
        if answered.has_records
            && let Some(part) = self.parts.remove(&turn)
        {
            let last = self.turn();
            self.parts.insert(last, part);
            self.turns.insert(key.clone(), last);
        }
        news
    }

    /// Whether there is nothing to fetch.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }
}

fn bytes(key: &Key) -> usize {
    let name_bytes = match &key.topic {
        Topic::Name(name) => name.len(),
        Topic::Id(_) => 0,
    };
    PARTITION_BYTES + name_bytes
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Sessions.
    pub(crate) slots: usize,
    /// Bytes of all of them.
    pub(crate) bytes: usize,
}

/// Whose session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// A follower: its session goes before those of clients.
    pub(crate) is_follower: bool,
    /// Its requests name topics by id.
    pub(crate) uses_topic_ids: bool,
}

/// Why a request cannot go on with a session. The client sends a full request then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is none of this id: 70.
    NotFound,
    /// Another request was expected, or is being answered: 71.
    WrongEpoch,
    /// The session's requests name topics by id and this one by name, or the other way about: 106.
    TopicIds,
}

/// A session that is out while a request of it is answered.
#[derive(Debug)]
pub(crate) struct Taken {
    id: i32,
    /// Tells it from a later session of the same id.
    serial: u64,
    pub(crate) session: Box<Session>,
}

impl Taken {
    /// The id that the answer names.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }
}

/// The sessions of all clients of one broker.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    limits: Limits,
    kept: HashMap<i32, Kept>,
    bytes: usize,
    next_serial: u64,
}

#[derive(Debug)]
struct Kept {
    /// `None` while it is out.
    session: Option<Box<Session>>,
    serial: u64,
    owner: Owner,
    /// What the next request must say.
    epoch: i32,
    created: TimestampMs,
    last_used: TimestampMs,
    partitions: usize,
    bytes: usize,
}

impl FetchSessions {
    /// None yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, kept: HashMap::new(), bytes: 0, next_serial: 0 }
    }

    /// Takes a session out for its next request. To be put back with [`FetchSessions::put_back`].
    ///
    /// # Errors
    /// What the client is answered.
    pub(crate) fn take(
        &mut self,
        now: TimestampMs,
        id: i32,
        epoch: i32,
        uses_topic_ids: bool,
    ) -> Result<Taken, Refusal> {
        let kept = self.kept.get_mut(&id).ok_or(Refusal::NotFound)?;
        if kept.epoch != epoch {
            return Err(Refusal::WrongEpoch);
        }
        if kept.owner.uses_topic_ids != uses_topic_ids {
            return Err(Refusal::TopicIds);
        }
        let session = kept.session.take().ok_or(Refusal::WrongEpoch)?;
        kept.epoch = epoch_after(epoch);
        kept.last_used = now;
        Ok(Taken { id, serial: kept.serial, session })
    }

    /// Takes a session back whose request is answered. One that was closed meanwhile, or for whose growth there is no
    /// room, is let go: its next request will not find it.
    pub(crate) fn put_back(&mut self, taken: Taken) {
        let Taken { id, serial, session } = taken;
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| kept.serial == serial) else { return };
        self.bytes = self.bytes - kept.bytes + session.bytes;
        (kept.bytes, kept.partitions) = (session.bytes, session.parts.len());
        kept.session = Some(session);
        if self.bytes > self.limits.bytes {
            self.close(id);
        }
    }

    /// Closes a session. Nothing happens if there is none.
    pub(crate) fn close(&mut self, id: i32) {
        if let Some(kept) = self.kept.remove(&id) {
            self.bytes -= kept.bytes;
        }
    }

    /// Keeps a new session, if there is room or others make it, and returns its id. `random` says which id it gets: a
    /// client that goes on with an id of the broker's former life should not meet somebody else's session.
    pub(crate) fn keep(&mut self, now: TimestampMs, owner: Owner, session: Session, random: u32) -> Option<i32> {
        let fits = self.limits.slots > 0 && session.bytes <= self.limits.bytes;
        if session.is_empty() || !fits {
            return None;
        }
        while self.kept.len() >= self.limits.slots || self.bytes + session.bytes > self.limits.bytes {
            let leaves = self.evictable(now, owner, session.parts.len())?;
            self.close(leaves);
        }
        let id = self.free_id(random);
        self.next_serial += 1;
        self.bytes += session.bytes;
        let kept = Kept {
            serial: self.next_serial,
            owner,
            epoch: epoch_after(EPOCH_OPENING),
            created: now,
            last_used: now,
            partitions: session.parts.len(),
            bytes: session.bytes,
            session: Some(Box::new(session)),
        };
        self.kept.insert(id, kept);
        Some(id)
    }

    /// The session that makes room for a new one, if any must: the one that was idle longest, if that is long; else the
    /// least valuable of those that are not protected, if the new one is worth more. Followers are worth more than clients,
    /// then more partitions more than fewer; against a follower a client's session is never protected.
    fn evictable(&self, now: TimestampMs, newcomer: Owner, partitions: usize) -> Option<i32> {
        let (&idlest, kept) = self.kept.iter().min_by_key(|(id, kept)| (kept.last_used, **id))?;
        if now.since(kept.last_used) > PROTECTED_MS {
            return Some(idlest);
        }
        let unprotected = self.kept.iter().filter(|(_, kept)| {
            now.since(kept.created) > PROTECTED_MS || (newcomer.is_follower && !kept.owner.is_follower)
        });
        let value = |kept: &Kept| (kept.owner.is_follower, kept.partitions);
        let (&least, kept) = unprotected.min_by_key(|(id, kept)| (value(kept), **id))?;
        // Not of equal worth: equal clients in a full cache would take it from each other in turns.
        ((newcomer.is_follower, partitions) > value(kept)).then_some(least)
    }

    fn free_id(&self, random: u32) -> i32 {
        let mut id = i32::try_from(random >> 1).unwrap_or(0);
        // There are fewer sessions than ids by far.
        while id == NO_SESSION || self.kept.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(1);
        }
        id
    }
}

/// The epoch of the request after one of this epoch.
pub(crate) fn epoch_after(epoch: i32) -> i32 {
    epoch.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests;
