//! What goes into a coordinator and what comes out of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::records::OffsetValue;

/// The time at which something happens, given by whoever drives the machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since a start that does not matter; never back. Time-outs are counted by it.
    pub uptime_ms: u64,
    /// Milliseconds since 1970, as records carry them.
    pub timestamp_ms: i64,
}

/// Whoever waits for an answer. Given with a request, and back once, with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An append that the coordinator has asked for. Appends are done in the order in which they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// A record of an internal topic: a key, and a value unless it says that there is none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// See [`OffsetsKey`](crate::records::OffsetsKey).
    pub key: Bytes,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
}

/// Why a coordinator refuses a request: an error code of Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[repr(i16)]
pub enum Refused {
    /// UNKNOWN_SERVER_ERROR: what was asked for cannot be written, however often it is tried.
    #[error("what was asked for cannot be written")]
    UnknownServerError = -1,
    /// OFFSET_METADATA_TOO_LARGE.
    #[error("the metadata of an offset is too large")]
    OffsetMetadataTooLarge = 12,
    /// COORDINATOR_LOAD_IN_PROGRESS.
    #[error("the coordinator is loading")]
    CoordinatorLoadInProgress = 14,
    /// COORDINATOR_NOT_AVAILABLE: what was asked for could not be written; to be tried again.
    #[error("the coordinator is not available")]
    CoordinatorNotAvailable = 15,
    /// NOT_COORDINATOR.
    #[error("this is not the coordinator")]
    NotCoordinator = 16,
    /// ILLEGAL_GENERATION.
    #[error("the generation is not that of the group")]
    IllegalGeneration = 22,
    /// INCONSISTENT_GROUP_PROTOCOL.
    #[error("no protocol that all members of the group speak")]
    InconsistentGroupProtocol = 23,
    /// INVALID_GROUP_ID.
    #[error("an invalid group id")]
    InvalidGroupId = 24,
    /// UNKNOWN_MEMBER_ID.
    #[error("the group does not know the member")]
    UnknownMemberId = 25,
    /// INVALID_SESSION_TIMEOUT.
    #[error("a session time-out out of range")]
    InvalidSessionTimeout = 26,
    /// REBALANCE_IN_PROGRESS.
    #[error("the group is rebalancing")]
    RebalanceInProgress = 27,
    /// INVALID_COMMIT_OFFSET_SIZE.
    #[error("more offsets than a batch of the offsets topic holds")]
    InvalidCommitOffsetSize = 28,
    /// INVALID_PRODUCER_EPOCH: the transaction's producer has been replaced.
    #[error("the producer goes on in a later epoch")]
    InvalidProducerEpoch = 47,
    /// INVALID_TXN_STATE.
    #[error("the offsets are of no transaction that goes on")]
    InvalidTransactionState = 48,
    /// NON_EMPTY_GROUP.
    #[error("the group has members")]
    NonEmptyGroup = 68,
    /// GROUP_ID_NOT_FOUND.
    #[error("no such group")]
    GroupIdNotFound = 69,
    /// MEMBER_ID_REQUIRED: to be asked for again with the id that the answer gives.
    #[error("the member is to join with the id it is given")]
    MemberIdRequired = 79,
    /// GROUP_MAX_SIZE_REACHED.
    #[error("the group is full")]
    GroupMaxSizeReached = 81,
    /// FENCED_INSTANCE_ID.
    #[error("another member has taken over the instance id")]
    FencedInstanceId = 82,
    /// GROUP_SUBSCRIBED_TO_TOPIC.
    #[error("the group is subscribed to the topic")]
    GroupSubscribedToTopic = 86,
    /// UNSTABLE_OFFSET_COMMIT.
    #[error("a transaction on the offset is not decided")]
    UnstableOffsetCommit = 88,
}

impl Refused {
    /// Kafka's number of it.
    pub fn code(self) -> i16 {
        self as i16
    }
}

/// What a member says of itself when it joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Join {
    /// The group.
    pub group: String,
    /// Its id; empty if it has none yet.
    pub member_id: String,
    /// Its id across restarts, if it is static.
    pub group_instance_id: Option<String>,
    /// What it calls itself.
    pub client_id: String,
    /// Where it comes from.
    pub client_host: String,
    /// What is put behind its client id or instance id if it needs an id: never the same twice.
    pub fresh_id: String,
    /// How long it may be silent.
    pub session_timeout_ms: i32,
    /// How long it takes at most to join again.
    pub rebalance_timeout_ms: i32,
    /// What the group does.
    pub protocol_type: String,
    /// How it could be done, dearest first, and what the leader is to know of this member for each. Opaque.
    pub protocols: Vec<(String, Bytes)>,
    /// Whether a member without an id is to ask again with the one it is given (versions from 4 on, KIP-394).
    pub requires_known_member_id: bool,
    /// Whether a static leader that comes back can be told that the assignment stands (versions from 9 on, KIP-814).
    pub supports_skipping_assignment: bool,
}

/// The answer to a [`Join`] that was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Counts the group's rebalances.
    pub generation: i32,
    /// What the group does.
    pub protocol_type: String,
    /// What its members agreed on.
    pub protocol: String,
    /// The member that gives out the partitions.
    pub leader: String,
    /// The id of the member that asked.
    pub member_id: String,
    /// The assignment stands: the leader need not make one.
    pub skip_assignment: bool,
    /// All members, for the leader; none for the others.
    pub members: Vec<JoinedMember>,
}

/// One of the members that a leader is told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member_id: String,
    /// Its id across restarts.
    pub group_instance_id: Option<String>,
    /// What it said for the protocol that was agreed on.
    pub metadata: Bytes,
}

/// A member asks for its assignment; the leader brings everybody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sync {
    /// Who.
    pub member: MemberAt,
    /// What it takes the group to do, if it says so (versions from 5 on).
    pub protocol_type: Option<String>,
    /// What it takes to be agreed on, if it says so.
    pub protocol: Option<String>,
    /// By member id; of the leader only.
    pub assignments: Vec<(String, Bytes)>,
}

/// The answer to a [`Sync`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// What the group does.
    pub protocol_type: String,
    /// What was agreed on.
    pub protocol: String,
    /// What the leader gave to this member. Opaque.
    pub assignment: Bytes,
}

/// A member of a group, as of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberAt {
    /// The group.
    pub group: String,
    /// The member's id.
    pub member_id: String,
    /// Its id across restarts, if it is static.
    pub group_instance_id: Option<String>,
    /// The generation that it knows; -1 if it is in none.
    pub generation: i32,
}

/// A member that leaves: by id, or by instance id alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Its id; may be empty if it is static.
    pub member_id: String,
    /// Its id across restarts.
    pub group_instance_id: Option<String>,
}

/// Offsets of a group that are to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Who commits; generation -1 and no member id for whoever is no member.
    pub member: MemberAt,
    /// The transaction they belong to.
    pub transaction: Option<Producer>,
    /// What is kept.
    pub offsets: Vec<CommittedOffset>,
}

/// A transactional producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Producer {
    /// Its id.
    pub id: i64,
    /// Its epoch.
    pub epoch: i16,
}

/// An offset of one partition. Its times are given by the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next offset to be read.
    pub offset: i64,
    /// The leader epoch of the last one that was read, or -1.
    pub leader_epoch: i32,
    /// What the client writes beside it.
    pub metadata: String,
    /// How long it is to be kept, if the client says so (versions 2 to 4).
    pub retention_ms: Option<i64>,
}

/// Of which partitions offsets are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOffsets {
    /// The group.
    pub group: String,
    /// By topic and partition; `None` for all there are. A request may name a long topic once and a million partitions of
    /// it, so names are shared, here and in the answer.
    pub partitions: Option<Vec<(Arc<str>, i32)>>,
    /// Those that a transaction may still change are refused.
    pub require_stable: bool,
}

/// An offset that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// `None` if the group has committed none.
    pub offset: Result<Option<OffsetValue>, Refused>,
}

/// How a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GroupState {
    /// It has no members; it may have offsets.
    Empty,
    /// Its members are to join again.
    PreparingRebalance,
    /// Its members wait for what the leader gives them.
    CompletingRebalance,
    /// Each member has what it was given.
    Stable,
}

impl GroupState {
    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
        }
    }
}

/// A group, as ListGroups tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupListing {
    /// Its id.
    pub group: String,
    /// What it does; empty if nobody ever joined.
    pub protocol_type: String,
    /// How it is.
    pub state: GroupState,
}

/// A group, as DescribeGroups tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    /// As listed.
    pub listing: GroupListing,
    /// What its members agreed on, while it is stable.
    pub protocol: String,
    /// Its members.
    pub members: Vec<MemberDescription>,
}

/// A member, as DescribeGroups tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDescription {
    /// Its id.
    pub member_id: String,
    /// Its id across restarts.
    pub group_instance_id: Option<String>,
    /// What it calls itself.
    pub client_id: String,
    /// Where it comes from.
    pub client_host: String,
    /// What it said for the protocol that was agreed on; empty unless the group is stable.
    pub metadata: Bytes,
    /// What it was given last; empty if the group was to give out partitions since then and did not.
    pub assignment: Bytes,
}

/// What clients ask of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// JoinGroup.
    Join(Join),
    /// SyncGroup.
    Sync(Sync),
    /// Heartbeat.
    Heartbeat(MemberAt),
    /// LeaveGroup.
    Leave {
        /// The group.
        group: String,
        /// Who leaves.
        members: Vec<Leaving>,
    },
    /// OffsetCommit and TxnOffsetCommit.
    Commit(Commit),
    /// OffsetFetch, of one group.
    FetchOffsets(FetchOffsets),
    /// OffsetDelete.
    DeleteOffsets {
        /// The group.
        group: String,
        /// By topic and partition.
        partitions: Vec<(String, i32)>,
    },
    /// DeleteGroups, of one group.
    DeleteGroup(String),
    /// DescribeGroups, of one group.
    Describe(String),
    /// ListGroups.
    List,
}

/// What a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Join`]; whoever is refused may be told an id.
    Join(Result<Joined, (Refused, String)>),
    /// To [`Request::Sync`].
    Sync(Result<Synced, Refused>),
    /// To [`Request::Heartbeat`].
    Heartbeat(Result<(), Refused>),
    /// To [`Request::Leave`]: of each member, in the order of the request.
    Leave(Result<Vec<Result<(), Refused>>, Refused>),
    /// To [`Request::Commit`]: of each offset, in the order of the request.
    Commit(Result<Vec<Result<(), Refused>>, Refused>),
    /// To [`Request::FetchOffsets`].
    Offsets(Result<Vec<FetchedOffset>, Refused>),
    /// To [`Request::DeleteOffsets`]: of each partition, in the order of the request.
    DeletedOffsets(Result<Vec<Result<(), Refused>>, Refused>),
    /// To [`Request::DeleteGroup`].
    DeletedGroup(Result<(), Refused>),
    /// To [`Request::Describe`].
    Described(Result<GroupDescription, Refused>),
    /// To [`Request::List`].
    Listed(Result<Vec<GroupListing>, Refused>),
}

impl Request {
    /// The answer to a request that is refused as a whole.
    pub fn refused(&self, why: Refused) -> Answer {
        match self {
            Self::Join(join) => Answer::Join(Err((why, join.member_id.clone()))),
            Self::Sync(_) => Answer::Sync(Err(why)),
            Self::Heartbeat(_) => Answer::Heartbeat(Err(why)),
            Self::Leave { .. } => Answer::Leave(Err(why)),
            Self::Commit(_) => Answer::Commit(Err(why)),
            Self::FetchOffsets(_) => Answer::Offsets(Err(why)),
            Self::DeleteOffsets { .. } => Answer::DeletedOffsets(Err(why)),
            Self::DeleteGroup(_) => Answer::DeletedGroup(Err(why)),
            Self::Describe(_) => Answer::Described(Err(why)),
            Self::List => Answer::Listed(Err(why)),
        }
    }

    /// The group it is about; none for [`Request::List`].
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Join(join) => Some(&join.group),
            Self::Sync(sync) => Some(&sync.member.group),
            Self::Heartbeat(member) => Some(&member.group),
            Self::Commit(commit) => Some(&commit.member.group),
            Self::FetchOffsets(fetch) => Some(&fetch.group),
            Self::Leave { group, .. }
            | Self::DeleteOffsets { group, .. }
            | Self::DeleteGroup(group)
            | Self::Describe(group) => Some(group),
            Self::List => None,
        }
    }
}

/// How an append goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Appended {
    /// The high watermark has passed it. Nothing follows.
    Committed,
    /// It is in the log and takes long to be committed: whoever waits is told to try again. [`Appended::Committed`] may
    /// follow.
    Late,
    /// It was not appended, since too few replicas are in sync or the log cannot be written. Nothing follows.
    NotNow,
    /// It was not appended, as a batch larger than the topic takes. Nothing follows.
    TooLarge,
    /// It was not appended and never will be, for whatever else the log has against it. Nothing follows.
    Refused,
    /// It was not appended, since the transaction's producer goes on in a later epoch. Nothing follows.
    Fenced,
    /// It was not appended, since its transaction is not known to go on. Nothing follows.
    OutsideTransaction,
}

impl Appended {
    /// What whoever waits for it is told; nothing if it is committed. What can never be written has an answer that is final:
    /// told to try again, clients would do so for ever.
    pub(crate) fn refused(self) -> Option<Refused> {
        match self {
            Self::Committed => None,
            Self::Late | Self::NotNow => Some(Refused::CoordinatorNotAvailable),
            Self::TooLarge | Self::Refused => Some(Refused::UnknownServerError),
            Self::Fenced => Some(Refused::InvalidProducerEpoch),
            Self::OutsideTransaction => Some(Refused::InvalidTransactionState),
        }
    }
}

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// A batch of its partition, while it loads, from the start of the log on.
    Load(LoadedBatch),
    /// The whole partition has been read.
    Loaded,
    /// A client asks.
    Request(Ticket, Request),
    /// An append has ended.
    Appended(AppendId, Appended),
    /// A transaction is decided: its marker is committed in the partition.
    Marker {
        /// Whose.
        producer_id: i64,
        /// Whether it commits.
        commits: bool,
    },
    /// A topic has been deleted: its offsets go.
    TopicDeleted(String),
    /// Some time has passed: at [`Coordinator::next_deadline_ms`](crate::Coordinator::next_deadline_ms) at the latest.
    Tick,
    /// The partition has another leader: all that wait are told so.
    Resigned,
}

/// What a batch of `__consumer_offsets` holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedBatch {
    /// Records, of a transaction if a producer is named.
    Records {
        /// The producer whose transaction they belong to.
        transaction: Option<i64>,
        /// In their order.
        records: Vec<Record>,
    },
    /// The end of a transaction.
    Marker {
        /// Whose.
        producer_id: i64,
        /// Whether it commits.
        commits: bool,
    },
}

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Someone is answered.
    Answer(Ticket, Answer),
    /// Records are to be appended with acks=all; [`Input::Appended`] tells how it ended.
    Append {
        /// Comes back with the end.
        id: AppendId,
        /// The transaction they belong to.
        transaction: Option<Producer>,
        /// In this order, in one batch.
        records: Vec<Record>,
    },
    /// Which of these topics are not there any more is to be found out, and told with [`Input::TopicDeleted`]. What is asked
    /// must know of all topics that were there when the coordinator began to load.
    LookUpTopics(BTreeSet<String>),
    /// Something of the log makes no sense. It was passed over, and a line is to be written.
    Odd(String),
}
