//! What goes into a coordinator of transactions and what comes out of it.

use crate::records::TransactionStatus;
use crate::vocabulary::{AppendId, Appended, Producer, Record, Ticket};

/// A topic and a partition of it.
pub type Partition = (String, i32);

/// Why a coordinator of transactions refuses a request: an error code of Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[repr(i16)]
pub enum TransactionRefused {
    /// UNKNOWN_SERVER_ERROR: what was asked for cannot be written, however often it is tried, as of a transaction of so many
    /// partitions that its record is too large. It goes on as it was.
    #[error("what was asked for cannot be written")]
    UnknownServerError = -1,
    /// COORDINATOR_LOAD_IN_PROGRESS.
    #[error("the coordinator is loading")]
    CoordinatorLoadInProgress = 14,
    /// COORDINATOR_NOT_AVAILABLE: what was asked for could not be written; to be tried again.
    #[error("the coordinator is not available")]
    CoordinatorNotAvailable = 15,
    /// NOT_COORDINATOR.
    #[error("this is not the coordinator")]
    NotCoordinator = 16,
    /// INVALID_REQUEST.
    #[error("an empty transactional id")]
    InvalidRequest = 42,
    /// INVALID_TXN_STATE.
    #[error("the transaction is not in a state for that")]
    InvalidTransactionState = 48,
    /// INVALID_PRODUCER_ID_MAPPING.
    #[error("the producer id is not that of the transactional id")]
    InvalidProducerIdMapping = 49,
    /// INVALID_TRANSACTION_TIMEOUT.
    #[error("a transaction time-out out of range")]
    InvalidTransactionTimeout = 50,
    /// CONCURRENT_TRANSACTIONS: one is being ended; to be tried again.
    #[error("a transaction of this id is being ended")]
    ConcurrentTransactions = 51,
    /// PRODUCER_FENCED.
    #[error("a newer producer of this id has taken over")]
    ProducerFenced = 90,
    /// TRANSACTIONAL_ID_NOT_FOUND.
    #[error("no such transactional id")]
    TransactionalIdNotFound = 105,
    /// TRANSACTION_ABORTABLE.
    #[error("the partition takes no part in the transaction, which is to be aborted")]
    TransactionAbortable = 120,
}

impl TransactionRefused {
    /// Kafka's number of it.
    pub fn code(self) -> i16 {
        self as i16
    }
}

/// What clients and brokers ask of a coordinator of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionRequest {
    /// InitProducerId with a transactional id.
    Begin {
        /// The transactional id.
        id: String,
        /// How long a transaction of this producer may take.
        timeout_ms: i32,
        /// What the producer has, if it asks for the next epoch (KIP-360).
        expected: Option<Producer>,
    },
    /// AddPartitionsToTxn, and AddOffsetsToTxn with the partition of the group's offsets.
    Add {
        /// The transactional id.
        id: String,
        /// Who asks.
        producer: Producer,
        /// What is to take part.
        partitions: Vec<Partition>,
    },
    /// AddPartitionsToTxn of a broker that only wants to know whether the partition takes part (KIP-890).
    Verify {
        /// The transactional id.
        id: String,
        /// Whose batch it is.
        producer: Producer,
        /// Where it is to be appended.
        partitions: Vec<Partition>,
    },
    /// EndTxn.
    End {
        /// The transactional id.
        id: String,
        /// Who asks.
        producer: Producer,
        /// Or it aborts.
        commits: bool,
        /// The producer goes on with the next epoch, which the answer tells (version 5, transaction version 2).
        bumps: bool,
    },
    /// DescribeTransactions, of one id.
    Describe(String),
    /// ListTransactions.
    List,
}

/// How a transactional id stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The transactional id.
    pub id: String,
    /// Its producer.
    pub producer: Producer,
    /// How far its transaction is.
    pub status: TransactionStatus,
    /// How long it may take.
    pub timeout_ms: i32,
    /// When it began, or -1.
    pub start_timestamp_ms: i64,
    /// What takes part.
    pub partitions: Vec<Partition>,
}

/// What a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionAnswer {
    /// To [`TransactionRequest::Begin`] and [`TransactionRequest::End`]: what the producer's next batches carry.
    Producer(Result<Producer, TransactionRefused>),
    /// To [`TransactionRequest::Add`] and [`TransactionRequest::Verify`].
    Done(Result<(), TransactionRefused>),
    /// To [`TransactionRequest::Describe`].
    Described(Result<TransactionDescription, TransactionRefused>),
    /// To [`TransactionRequest::List`].
    Listed(Result<Vec<TransactionDescription>, TransactionRefused>),
}

impl TransactionRequest {
    /// The answer to a request that is refused.
    pub fn refused(&self, why: TransactionRefused) -> TransactionAnswer {
        match self {
            Self::Begin { .. } | Self::End { .. } => TransactionAnswer::Producer(Err(why)),
            Self::Add { .. } | Self::Verify { .. } => TransactionAnswer::Done(Err(why)),
            Self::Describe(_) => TransactionAnswer::Described(Err(why)),
            Self::List => TransactionAnswer::Listed(Err(why)),
        }
    }
}

/// What happens to a coordinator of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionInput {
    /// A record of its partition, while it loads, from the start of the log on.
    Load(Record),
    /// The whole partition has been read.
    Loaded,
    /// A client or a broker asks.
    Request(Ticket, TransactionRequest),
    /// The producer id that was asked for; `None` if there is none to be had.
    ProducerId(Ticket, Option<i64>),
    /// An append goes on.
    Appended(AppendId, Appended),
    /// The markers of a transaction are in the logs of these partitions, or the partitions are gone.
    Marked {
        /// The transactional id.
        id: String,
        /// As [`TransactionEffect::Mark`] had it.
        producer: Producer,
        /// Where.
        partitions: Vec<Partition>,
    },
    /// Some time has passed.
    Tick,
    /// The partition has another leader.
    Resigned,
}

/// What a coordinator of transactions wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionEffect {
    /// Someone is answered.
    Answer(Ticket, TransactionAnswer),
    /// Nobody's producer id is needed; [`TransactionInput::ProducerId`] brings it.
    NeedProducerId(Ticket),
    /// A record is to be appended with acks=all, if one is taken that has `spare_bytes` more.
    Append {
        /// Comes back with the end.
        id: AppendId,
        /// The record.
        record: Record,
        /// What the records may need beside it that end the transaction: one that fits and cannot be ended would stay for ever.
        spare_bytes: usize,
    },
    /// Markers are to be written into these partitions, again and again until each has its one or is gone.
    Mark {
        /// The transactional id.
        id: String,
        /// What the markers carry.
        producer: Producer,
        /// Or they abort.
        commits: bool,
        /// Where.
        partitions: Vec<Partition>,
    },
    /// Something of the log makes no sense and was passed over.
    Odd(String),
}
