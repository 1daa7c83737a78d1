//! What a run is allowed to do to the cluster, and what it promises in return.

use highwater_replication::ReplicaConfig;
use highwater_storage::{LogOptions, TimestampMs};

use crate::random::Random;

/// A row of the table "what may be lost when".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Processes are killed, any number at any time; what was written survives. Nothing acknowledged is lost.
    Kills,
    /// Power cuts, any number at any time, under a synced policy. Nothing acknowledged is lost.
    SyncedPowerCuts,
    /// Power cuts without syncs, and two replicas in sync for an acknowledgement; one failure at a time, of a replica
    /// beside which another in-sync one is whole. Nothing acknowledged is lost. (An ISR that has shrunk to one replica is
    /// a failure that is not over: were its power cut, only a record of former members, as in KIP-966, would help.)
    PowerCuts,
    /// Power cuts of all three at once, any number at any time, without syncs, and kills besides. Nothing is lost that
    /// the disk of any in-sync replica still holds after the cut.
    PowerCutsOfAll,
    /// Kills and power cuts at any time, unclean elections allowed. Only that replicas end up equal is promised.
    Nothing,
}

/// A mistake made on purpose, outside of the crates under test: the driver has to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Before anything else a broker that starts cuts its log at its checkpointed high watermark: Kafka before KIP-101.
    CutsAtHighWatermark,
    /// Leaders are told an ISR of themselves alone, so that the high watermark is a minimum over the wrong set.
    MinimumOverTheLeader,
    /// A broker that stopped uncleanly registers as if it held all it acknowledged.
    ReturnsAsIfClean,
    /// Of doubtful members the controller elects the first, and not the one that has most.
    ElectsTheFirst,
    /// The controller takes what a broker published in an earlier life for what it has.
    TrustsFormerLives,
    /// The controller takes members out of the ISR whose sessions are over, whether a leader lives or not.
    DropsTheDead,
    /// Replicas count what they wrote although the promise is about what they flushed.
    CountsUnflushed,
    /// Followers say that they have one record more than they do.
    AcknowledgesAhead,
    /// Leaders take fetches of any epoch for ones of theirs, and do not compare histories.
    TrustsAnyEpoch,
    /// Leaders count followers as in sync whatever they hold below the leader's log start, as Kafka does; and followers that
    /// differ do not look at that start.
    VouchesForAll,
    /// A move of replicas ends without a new leader epoch.
    KeepsEpochOfMoves,
    /// What was meant for the former topic of a name is taken for the present one.
    IgnoresTopicIds,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::CutsAtHighWatermark,
        Self::MinimumOverTheLeader,
        Self::ReturnsAsIfClean,
        Self::ElectsTheFirst,
        Self::TrustsFormerLives,
        Self::DropsTheDead,
        Self::CountsUnflushed,
        Self::AcknowledgesAhead,
        Self::TrustsAnyEpoch,
        Self::VouchesForAll,
        Self::KeepsEpochOfMoves,
        Self::IgnoresTopicIds,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) promise: Promise,
    pub(crate) min_insync_replicas: usize,
    /// Replicas count with what they have flushed.
    pub(crate) synced: bool,
    /// Small segments and a bound on their bytes, so that log starts move.
    pub(crate) retention: bool,
    pub(crate) segment_bytes: u32,
    /// Replicas outside of the ISR may lead.
    pub(crate) unclean_elections: bool,
    /// What is on disks rots, in one log at a time. Then no replica goes, by reassignment or by age: it may be the one that
    /// has what has rotted elsewhere.
    pub(crate) rots: bool,
    /// Somebody moves replicas, asks for leaders, stops brokers in order and makes the topic again; and the controller gives
    /// leaderships back to preferred replicas.
    pub(crate) operators: bool,
    pub(crate) mutant: Option<Mutant>,
    /// So long things go wrong, in milliseconds; then everything heals.
    pub(crate) heals_ms: i64,
    /// How long the leader waits for a follower, and how long records may stay unflushed.
    pub(crate) lag_ms: i64,
    pub(crate) flush_ms: i64,
    /// The longest a message takes when all is well.
    pub(crate) latency_ms: i64,
}

/// The start of the simulated clock.
pub(crate) const EPOCH_MS: i64 = 1_700_000_000_000;
/// After healing the replicas must be equal within this time.
pub(crate) const SETTLE_MS: i64 = 30_000;

impl Plan {
    pub(crate) fn draw(random: &mut Random, mutant: Option<Mutant>) -> Self {
        let promise = match mutant {
            Some(Mutant::ReturnsAsIfClean | Mutant::VouchesForAll) => Promise::PowerCuts,
            Some(Mutant::CountsUnflushed) => Promise::SyncedPowerCuts,
            Some(Mutant::ElectsTheFirst | Mutant::TrustsFormerLives | Mutant::DropsTheDead) => Promise::PowerCutsOfAll,
            Some(_) => Promise::Kills,
            None => random.pick(&[
                Promise::Kills,
                Promise::Kills,
                Promise::SyncedPowerCuts,
                Promise::SyncedPowerCuts,
                Promise::PowerCuts,
                Promise::PowerCuts,
                Promise::PowerCutsOfAll,
                Promise::PowerCutsOfAll,
                Promise::Nothing,
            ]),
        };
        let two = promise == Promise::PowerCuts || random.one_in(2);
        let rots = matches!(promise, Promise::Kills | Promise::SyncedPowerCuts) && mutant.is_none() && random.one_in(3);
        let retention = (random.one_in(4) || mutant == Some(Mutant::VouchesForAll)) && !rots;
        Self {
            promise,
            min_insync_replicas: if two { 2 } else { 1 },
            synced: promise == Promise::SyncedPowerCuts && mutant != Some(Mutant::CountsUnflushed),
            retention,
            segment_bytes: if rots || retention { 400 } else { random.pick(&[400, 1_000, 1 << 20]) },
            unclean_elections: promise == Promise::Nothing,
            rots,
            // What that one takes is seldom enough as it is.
            operators: !random.one_in(4) && mutant != Some(Mutant::VouchesForAll),
            mutant,
            heals_ms: random.between(1_000, 2_500),
            lag_ms: 200,
            flush_ms: 300,
            latency_ms: random.pick(&[3, 10, 40]),
        }
    }

    /// Whether this run promises that nothing acknowledged is lost.
    pub(crate) fn loses_nothing(&self) -> bool {
        self.promise != Promise::Nothing
    }

    /// Somebody changes the topic's settings, within what the promise rests on.
    pub(crate) fn change(&mut self, random: &mut Random) {
        match random.below(6) {
            0 if self.promise != Promise::PowerCuts => self.min_insync_replicas = 1 + random.index(2),
            1 => self.retention = !self.retention && !self.rots,
            4 => self.segment_bytes = random.pick(&[400, 1_000, 1 << 20]),
            5 if self.promise == Promise::Nothing => self.unclean_elections = !self.unclean_elections,
            2 => self.lag_ms = random.pick(&[100, 200, 400]),
            _ => self.flush_ms = random.pick(&[50, 300, 1_000]),
        }
    }

    pub(crate) fn replica(&self, config: ReplicaConfig) -> ReplicaConfig {
        ReplicaConfig {
            lag_time_max_ms: self.lag_ms,
            min_insync_replicas: self.min_insync_replicas,
            count_flushed: self.synced,
            flush_ms: self.flush_ms,
            fetch_backoff_ms: 20,
            propose_backoff_ms: 20,
            waiting_max: 100,
            ..config
        }
    }

    pub(crate) fn log(&self) -> LogOptions {
        let mut options = LogOptions { segment_bytes: self.segment_bytes, ..LogOptions::default() };
        if self.rots {
            options.scrub_interval_ms = 100;
        }
        if self.retention {
            options.retention_bytes = 800;
            options.file_delete_delay_ms = 50;
        }
        options
    }
}

pub(crate) fn at(ms: i64) -> TimestampMs {
    TimestampMs(ms)
}
