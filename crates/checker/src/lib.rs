//! What the clients of one partition saw, and whether a log that keeps its promises could have shown it to them.
//!
//! A test records [`Event`]s, of a simulated cluster or a real one, and [`check`] names every [`Anomaly`] among them. It
//! knows nothing of brokers: only what was sent, what was acknowledged and what was read counts.
//!
//! # What to record
//!
//! * One history for each partition. Events in the order in which the clients saw them; `Sent` before the request goes out.
//! * A payload is a number that no other record of the history has: each record is sent once, however often the client's
//!   library repeats it.
//! * `Acked` only where the acknowledgement is a promise under the failures of the run (`acks=all` as a rule), else `Unknown`.
//! * A client that seeks, or loses its position, goes on as a new client.
//! * At the end somebody reads all that is left, from the log's start to its end: an acknowledged record that nobody read
//!   is a lost one.
//! * For a log that is not compacted: there offsets vanish by right.

mod check;

use std::fmt;

pub use check::{Anomaly, Kind, check};

/// Who saw it: a producer, a consumer, or an observer of the high watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(pub u32);

/// The identity of a record: a number in it, or a digest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload(pub u64);

/// Something that a client did or saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A producer is about to send a record.
    Sent {
        /// The producer.
        client: Client,
        /// The record.
        payload: Payload,
        /// Whether it was promised that its records are stored once and in order.
        idempotent: bool,
    },
    /// A record was acknowledged.
    Acked {
        /// The record.
        payload: Payload,
        /// Where it is.
        offset: i64,
    },
    /// A record was refused, in a way that says that it is not in the log.
    Failed {
        /// The record.
        payload: Payload,
    },
    /// Nobody knows whether a record is in the log: no answer came, or one that leaves it open. A record of which nothing
    /// is said after `Sent` counts the same.
    Unknown {
        /// The record.
        payload: Payload,
    },
    /// A consumer read a record.
    Read {
        /// The consumer.
        client: Client,
        /// Where.
        offset: i64,
        /// What.
        payload: Payload,
    },
    /// A client was told a high watermark. Answers that say "not known" are none.
    Watermark {
        /// Who was told.
        client: Client,
        /// The offset.
        high_watermark: i64,
    },
    /// The log starts here by now: what was below may be gone. It counts for the whole history, since clients learn of
    /// it at no certain time.
    Start {
        /// The first offset left.
        offset: i64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sent { client, payload, idempotent } => {
                let how = if idempotent { " idempotently" } else { "" };
                write!(f, "client {} sends {}{how}", client.0, payload.0)
            }
            Self::Acked { payload, offset } => write!(f, "{} is acknowledged at {offset}", payload.0),
            Self::Failed { payload } => write!(f, "{} is refused", payload.0),
            Self::Unknown { payload } => write!(f, "what became of {} is not known", payload.0),
            Self::Read { client, offset, payload } => {
                write!(f, "client {} reads {} at {offset}", client.0, payload.0)
            }
            Self::Watermark { client, high_watermark } => {
                write!(f, "client {} is told the high watermark {high_watermark}", client.0)
            }
            Self::Start { offset } => write!(f, "the log starts at {offset}"),
        }
    }
}
