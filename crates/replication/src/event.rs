//! What goes into a replica and what comes out of it, as plain values.

use std::fmt;

use highwater_storage::{EpochEnd, LeaderEpoch, Offset, TimestampMs};

use crate::{BrokerEpoch, BrokerId, Isolation, PartitionState, PublishedEnd, WaitToken};

/// Who fetches, lists offsets or asks for the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetcher {
    /// A client: sees records below the high watermark, or below the last stable offset.
    Consumer {
        /// What of transactions it sees.
        isolation: Isolation,
    },
    /// A replica on another broker: sees the whole log, and its fetch offset is its acknowledgement.
    Follower {
        /// Its broker.
        id: BrokerId,
        /// Which life of that broker sent this (Fetch v15 and later). A request of an earlier life than the one known
        /// is refused.
        broker_epoch: Option<BrokerEpoch>,
        /// The start of its log.
        log_start: Offset,
    },
}

/// A fetch of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Who asks.
    pub by: Fetcher,
    /// The leadership that the asker believes in; checked if given.
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// The epoch of the last record before `from` in the asker's log; divergence is looked for if given.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The next offset the asker wants.
    pub from: Offset,
}

/// What a fetch may read, and what its answer says beside the records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchGrant {
    /// Records below this offset may be read. It may be at or below `from`: then the answer is empty.
    pub upper: Offset,
    /// The high watermark to tell. To consumers -1, which is "not known" in Kafka's protocol, as long as a new leader's
    /// one has not reached the start of its leadership: its predecessor may have told a higher one. `upper` is what they
    /// may read all the same.
    pub high_watermark: Offset,
    /// The end of what a read_committed consumer may see. Equals the high watermark while there are no transactions.
    pub last_stable_offset: Offset,
    /// The start of this log.
    pub log_start: Offset,
    /// The asker's log differs from ours from here on: it must cut, and gets no records.
    pub diverging: Option<EpochEnd>,
    /// The leadership that answers.
    pub leader_epoch: LeaderEpoch,
    /// The log's truncation generation: a read that finds another one must be granted anew.
    pub generation: u64,
}

impl FetchGrant {
    /// A grant without divergence, of a log without transactions that was never cut.
    pub fn new(upper: Offset, high_watermark: Offset, log_start: Offset, leader_epoch: LeaderEpoch) -> Self {
        Self {
            upper,
            high_watermark,
            last_stable_offset: high_watermark,
            log_start,
            diverging: None,
            leader_epoch,
            generation: 0,
        }
    }
}

/// Why a fetch, a list-offsets or an end-of-epoch request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// This replica does not lead (Kafka code 6).
    #[error("not the leader; {leader:?} leads in epoch {leader_epoch}")]
    NotLeader {
        /// Who does, as far as is known here.
        leader: Option<BrokerId>,
        /// In which epoch.
        leader_epoch: LeaderEpoch,
    },
    /// The asker believes in an older leadership (74).
    #[error("leader epoch {asked} is older than {current}")]
    FencedLeaderEpoch {
        /// The epoch in the request.
        asked: LeaderEpoch,
        /// The epoch here.
        current: LeaderEpoch,
    },
    /// The asker knows of a newer leadership than we do, or is no replica that we know of (75).
    #[error("leader epoch {asked} is not known here yet; current is {current}")]
    UnknownLeaderEpoch {
        /// The epoch in the request.
        asked: LeaderEpoch,
        /// The epoch here.
        current: LeaderEpoch,
    },
    /// The log does not hold this offset (1).
    #[error("offset {from} is outside of {log_start}..{log_end}")]
    OutOfRange {
        /// The offset in the request.
        from: Offset,
        /// The start of this log.
        log_start: Offset,
        /// The end of this log.
        log_end: Offset,
        /// The high watermark to tell, as in [`FetchGrant`].
        high_watermark: Offset,
    },
    /// A new leader does not know yet how far its predecessor's high watermark was (78).
    #[error("the high watermark {high_watermark} has not reached the start {epoch_start} of this leadership yet")]
    OffsetNotAvailable {
        /// The high watermark here.
        high_watermark: Offset,
        /// Where this leadership began.
        epoch_start: Offset,
    },
    /// The log is closed after a failure (56).
    #[error("the log is closed after a failure")]
    Storage,
}

/// Which offset a list-offsets request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The first offset of the log.
    Earliest,
    /// The end: the high watermark for consumers, the log end for replicas.
    Latest,
    /// The record with the highest timestamp.
    MaxTimestamp,
    /// The first record with at least this timestamp.
    Timestamp(TimestampMs),
}

/// The answer to a list-offsets request, or what is left to do for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedOffset {
    /// The answer.
    At {
        /// The offset.
        offset: Offset,
        /// The epoch of the record there (of the leadership, for the end); `NONE` if not known.
        leader_epoch: LeaderEpoch,
    },
    /// The log has to be read, which is not for the partition's owner: look through
    /// [`LogReader`](highwater_storage::LogReader) below `upper`.
    Search {
        /// Look below this offset only.
        upper: Offset,
        /// What to answer when nothing is found: `None` for "no such record", else this error (78: what is asked for
        /// may exist above a high watermark that is not known yet).
        missing: Option<OffsetNotAvailable>,
    },
}

/// The parts of [`FetchError::OffsetNotAvailable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetNotAvailable {
    /// The high watermark here.
    pub high_watermark: Offset,
    /// Where this leadership began.
    pub epoch_start: Offset,
}

/// A produce that is in the log as far as its `acks` asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Offset of the batch's first record.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// The time of the append for topics with `LogAppendTime`, else [`TimestampMs::NONE`].
    pub append_time: TimestampMs,
    /// The start of the log at that time.
    pub log_start: Offset,
    /// It had been appended before: the producer sent it again.
    pub duplicate: bool,
}

/// What `produce` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// Answer now.
    Done(Acknowledged),
    /// [`Effect::ProduceDone`](crate::Effect) follows with the token given.
    Waiting,
}

/// Why a produce failed, apart from the append itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProduceRefused {
    /// This replica does not lead, or no longer does (6). If it did when the batch came, the batch may survive.
    #[error("not the leader; {leader:?} leads in epoch {leader_epoch}")]
    NotLeader {
        /// Who does, as far as is known here.
        leader: Option<BrokerId>,
        /// In which epoch.
        leader_epoch: LeaderEpoch,
    },
    /// `acks=all` and the ISR is smaller than `min.insync.replicas`; nothing was written (19).
    #[error("{in_sync} replicas are in sync, {needed} are needed")]
    NotEnoughReplicas {
        /// Members of the ISR.
        in_sync: usize,
        /// `min.insync.replicas`.
        needed: usize,
    },
    /// As above, but found out after the batch was written: it is in the log (20).
    #[error("{in_sync} replicas are in sync after the append, {needed} are needed")]
    NotEnoughReplicasAfterAppend {
        /// Members of the ISR.
        in_sync: usize,
        /// `min.insync.replicas`.
        needed: usize,
    },
    /// Not acknowledged by its deadline; the batch is in the log (7).
    #[error("not acknowledged in time")]
    TimedOut,
    /// Too many produces wait here already; nothing was written.
    #[error("{waiting} requests wait already")]
    TooManyWaiting {
        /// How many wait.
        waiting: usize,
    },
    /// The log is closed after a failure (56).
    #[error("the log is closed after a failure")]
    Storage,
}

/// The answer to a produce that waited.
pub type ProduceResult = Result<Acknowledged, ProduceRefused>;

/// A fetch that this replica, a follower, wants from its leader. One is outstanding at a time; a later one replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPlan {
    /// Whom to ask.
    pub leader: BrokerId,
    /// The leadership to name in the request.
    pub leader_epoch: LeaderEpoch,
    /// From which offset: our log end.
    pub from: Offset,
    /// The epoch of our last record; none if our log has no records.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// The start of our log.
    pub log_start: Offset,
    /// The life of this broker, for the request's replica state.
    pub broker_epoch: BrokerEpoch,
}

/// What a leader answered to our fetch, without errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedRecords<'a> {
    /// Whole batches; a partial one at the end is ignored. Empty if `diverging`.
    pub records: &'a [u8],
    /// The leader's high watermark.
    pub high_watermark: Offset,
    /// The leader's log start.
    pub log_start: Offset,
    /// Our log differs from the leader's.
    pub diverging: Option<EpochEnd>,
}

/// Why a fetch from the leader failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchFailure {
    /// 6, 3, 100, 103 or 56 from the leader, no connection, no answer in time, or an answer that cannot be read: later again.
    Unreachable,
    /// 74: there is a newer leadership; the store's watch will tell.
    FencedLeaderEpoch,
    /// 75: the leader does not know its leadership yet.
    UnknownLeaderEpoch,
    /// 1: our offset is outside of the leader's log.
    OutOfRange {
        /// The leader's log start: in the answer, or asked for by ListOffsets (earliest) as a replica.
        log_start: Option<Offset>,
    },
}

/// The reply to a [`FetchPlan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchReply<'a> {
    /// What was asked. A reply counts only if it answers the fetch that is out, in all its parts: the same offset in the
    /// same epoch may have been asked for before a cut, and by the same words about another history.
    pub plan: FetchPlan,
    /// What came.
    pub result: Result<FetchedRecords<'a>, FetchFailure>,
}

/// Something that happened to the history of this log other than being appended to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// When.
    pub when: TimestampMs,
    /// Why.
    pub why: CutReason,
    /// The leadership in which it happened.
    pub leader_epoch: LeaderEpoch,
    /// Log end and last epoch before. Of an unclean election: up to where the last leader had said that records are committed,
    /// and its epoch, if that is above our end.
    pub from: (Offset, LeaderEpoch),
    /// Log end and last epoch after.
    pub to: (Offset, LeaderEpoch),
    /// The high watermark before: what lies below it was shown to consumers.
    pub high_watermark: Offset,
    /// Offsets that are gone; of an unclean election those of which it is known.
    pub records: i64,
}

/// Why a log was cut, or its leader chosen unclean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutReason {
    /// The leader's history differs from ours above this epoch and offset.
    Diverged(EpochEnd),
    /// Our last records have epochs above our leader's: they never were in its history.
    EpochAboveLeader,
    /// The leader's log starts above our end, or above all that it has in common with ours.
    LeaderStartsAbove(Offset),
    /// Our log is empty at an offset the leader does not have.
    OutsideLeader(Offset),
    /// Our records have no epochs, so the high watermark is the only safe bound.
    NoEpochs,
    /// This replica was elected although it may lack committed records. Nothing is cut here.
    UncleanElection,
}

impl fmt::Display for CutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Diverged(EpochEnd { epoch, end }) => {
                write!(f, "the leader's log has epoch {epoch} up to offset {end}, and differs from ours after it")
            }
            Self::EpochAboveLeader => f.write_str("the last epochs here are above the leader's"),
            Self::LeaderStartsAbove(start) => {
                write!(f, "the leader's log starts at {start}, above what ours has of it")
            }
            Self::OutsideLeader(start) => {
                write!(f, "the log is empty outside of the leader's, which starts at {start}")
            }
            Self::NoEpochs => f.write_str("the records have no leader epochs"),
            Self::UncleanElection => f.write_str("elected without being in sync"),
        }
    }
}

/// What a replica does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes produces, serves fetches.
    Leader,
    /// Copies the leader.
    Follower,
    /// Neither: no leader, no session, not assigned, or waiting for a higher epoch.
    Offline,
    /// Closed after a failure until it is opened again.
    Fenced,
}

/// A follower as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerStatus {
    /// Its broker.
    pub id: BrokerId,
    /// Its log end, once it has fetched in this leadership.
    pub log_end: Option<Offset>,
    /// Its log start, likewise.
    pub log_start: Option<Offset>,
    /// Records it is behind, if known.
    pub lag: Option<i64>,
    /// When it last had everything.
    pub last_caught_up: Option<TimestampMs>,
    /// Whether it is in the committed ISR.
    pub in_sync: bool,
}

/// Why no records are deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteRefused {
    /// Only a leader does it: the others follow.
    #[error("this replica does not lead")]
    NotLeader,
    /// What is not committed cannot be deleted.
    #[error("offset {before} is above the high watermark {high_watermark}")]
    OutOfRange {
        /// Where the log was to begin.
        before: Offset,
        /// Where it can begin at the latest.
        high_watermark: Offset,
    },
    /// The log could not move its start.
    #[error("the log cannot move its start: {0}")]
    Storage(String),
}

/// A replica at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it does.
    pub role: Role,
    /// Who leads, as far as is known.
    pub leader: Option<BrokerId>,
    /// In which epoch.
    pub leader_epoch: LeaderEpoch,
    /// The store's version of that state; -1 before any is known.
    pub version: i64,
    /// First offset.
    pub log_start: Offset,
    /// Next offset.
    pub log_end: Offset,
    /// Everything below is on disk.
    pub flushed: Offset,
    /// Everything below is committed.
    pub high_watermark: Offset,
    /// The committed in-sync replicas.
    pub isr: Vec<BrokerId>,
    /// Whether this replica is one of them.
    pub in_isr: bool,
    /// The other replicas, if this one leads; in the order of their numbers.
    pub followers: Vec<FollowerStatus>,
    /// Produces that wait.
    pub produces_waiting: usize,
    /// Fetches that wait.
    pub fetches_waiting: usize,
}

/// Why a replica closed itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceReason {
    /// The log failed.
    #[error("the log failed to {verb}: {cause}")]
    Log {
        /// What was tried.
        verb: &'static str,
        /// What came back.
        cause: String,
    },
    /// An invariant does not hold: a mistake in this program, or somebody else wrote to the directory.
    #[error("an invariant does not hold: {0}")]
    Invariant(&'static str),
    /// The store's state went back to an older leadership.
    #[error("the store gave leader epoch {given} after {known}")]
    StoreWentBack {
        /// What it gave.
        given: LeaderEpoch,
        /// What was known.
        known: LeaderEpoch,
    },
}

/// What a [`Replica`](crate::Replica) wants done. Those marked *log* are for [`Partition`](crate::Partition), which
/// carries them out in order before it goes on; the others become an [`Effect`](crate::Effect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A produce that waited is answered.
    ProduceDone {
        /// The token it came with.
        token: WaitToken,
        /// The answer.
        result: ProduceResult,
    },
    /// A fetch that waited should be tried again.
    WakeFetch {
        /// The token it came with.
        token: WaitToken,
    },
    /// Commit this state to the store if its version is still this one; the answer is `IsrDecided`.
    ProposeIsr {
        /// Names this proposal in the answer.
        proposal: u64,
        /// The leadership that proposes: a proposal of an older one need not be sent any more.
        leader_epoch: LeaderEpoch,
        /// The version the store must have.
        expected_version: i64,
        /// The state to write.
        state: PartitionState,
        /// The broker that comes into the ISR by this, in the life whose fetches say that it may: the write must fail
        /// ([`IsrDecision::Refused`](crate::IsrDecision)) unless it is registered in that very life. The version alone
        /// does not see to that: a fetch of its former life may arrive after everything its return has written.
        joining: Option<(BrokerId, BrokerEpoch)>,
    },
    /// Fetch from the leader.
    Fetch(FetchPlan),
    /// Do not fetch any more.
    StopFetching,
    /// The high watermark moved.
    HighWatermark(Offset),
    /// The replica closed itself.
    Fenced(FenceReason),
    /// Tell the controller how far this log goes: nobody leads, and this member of the ISR stopped uncleanly. All of it is
    /// flushed.
    PublishEnd(PublishedEnd),
    /// *Log*: a leadership begins at this log end.
    AssignEpoch {
        /// Its epoch.
        epoch: LeaderEpoch,
        /// The log end.
        start: Offset,
    },
    /// *Log*: remove everything at and above `to`, then report `Cut`.
    Truncate {
        /// The new end.
        to: Offset,
        /// Why.
        why: CutReason,
    },
    /// *Log*: remove everything and begin at `start`, then report `Cut`.
    Reset {
        /// The new start and end.
        start: Offset,
        /// Why.
        why: CutReason,
    },
    /// *Log*: flush, then report `Flushed`.
    Flush,
    /// *Log*: as `Flush`, with everything that lets recovery begin after it. Nobody waits for it.
    Checkpoint,
    /// *Log*: note an unclean election in the history.
    UncleanElection,
}
