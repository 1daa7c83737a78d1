//! The settings of coordinators.

/// How a coordinator treats its groups. Defaults are Kafka's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long a group without members waits for more before it gives out partitions.
    pub initial_rebalance_delay_ms: u64,
    /// `group.max.size`.
    pub members_max: usize,
    /// How many member ids that were given out and not joined with yet a coordinator remembers, of all its groups; Kafka has no
    /// bound. With more the eldest are forgotten: whoever joins with one of these is told to ask for another.
    pub pending_members_max: usize,
    /// How many bytes they may have, of which the clients choose most.
    pub pending_members_bytes_max: usize,
    /// How long a member that waits to be let in may be silent; Kafka has five minutes.
    pub new_member_timeout_ms: u64,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds: how long offsets outlive the use of them.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: u64,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            session_timeout_min_ms: 6_000,
            session_timeout_max_ms: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            members_max: 2_147_483_647,
            pending_members_max: 10_000,
            pending_members_bytes_max: 4 << 20,
            new_member_timeout_ms: 300_000,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1000,
            offsets_retention_check_interval_ms: 600_000,
        }
    }
}
