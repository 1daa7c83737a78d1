//! What a replica is told when it is made.

use crate::{BrokerEpoch, BrokerId};

/// Settings of one replica. Times are milliseconds of the clock that is passed in as `now`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// The broker this replica lives on.
    pub me: BrokerId,
    /// The life of that broker: what its registration in the coordination store was given.
    pub broker_epoch: BrokerEpoch,
    /// How long a follower may be behind before the leader takes it out of the ISR (`replica.lag.time.max.ms`).
    pub lag_time_max_ms: i64,
    /// Members the ISR needs for `acks=all` and for the high watermark to move (`min.insync.replicas`). Never asked
    /// for more than the partition has replicas.
    pub min_insync_replicas: usize,
    /// Count only what is flushed: the leader's part of the high watermark is its flushed end, a follower fetches on
    /// (which is its acknowledgement) only after a flush, and `acks=1` waits for the leader's flush. Every append asks
    /// for a flush; those that come while one runs share the next.
    pub count_flushed: bool,
    /// Ask for a flush once this many records are not flushed (`flush.messages`). 1 implies `count_flushed`.
    pub flush_messages: i64,
    /// Ask for a flush once the oldest record that is not flushed is this old (`flush.ms`). A flush in the background
    /// bounds what recovery has to scan; it acknowledges nothing.
    pub flush_ms: i64,
    /// How long a follower waits after a failed fetch (`replica.fetch.backoff.ms`).
    pub fetch_backoff_ms: i64,
    /// How long a leader waits before it repeats a proposal that the store did not answer.
    pub propose_backoff_ms: i64,
    /// Produces and fetches that may wait at this partition at one time; more are refused.
    pub waiting_max: usize,
}

impl ReplicaConfig {
    /// Kafka's defaults (departures: `lag_time_max_ms` is 10 s instead of 30 s, and a flush in the background
    /// every 5 s instead of never).
    pub fn new(me: BrokerId, broker_epoch: BrokerEpoch) -> Self {
        Self {
            me,
            broker_epoch,
            lag_time_max_ms: 10_000,
            min_insync_replicas: 1,
            count_flushed: false,
            flush_messages: i64::MAX,
            flush_ms: 5_000,
            fetch_backoff_ms: 1_000,
            propose_backoff_ms: 500,
            waiting_max: 100_000,
        }
    }

    /// Whether only flushed records count.
    pub fn counts_flushed(&self) -> bool {
        self.count_flushed || self.flush_messages <= 1
    }
}
