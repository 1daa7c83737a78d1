//! What a run of the coordinators is about.

use super::PARTITIONS;
use crate::fault::{BROKERS, CLIENTS, Fault, What, Whom};
use crate::plan::{Plan, Promise};
use crate::random::Random;

use highwater_storage::{CompactionOptions, LogOptions};

/// What clients do in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// All of them, while things go wrong as the seed draws them.
    Drawn,
    /// One copier, one transaction, nothing drawn goes wrong.
    OneTransaction,
    /// Members of a group, of which one leaves; nothing drawn goes wrong.
    OneRebalance,
}

/// Whose broker is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Struck {
    /// That of the coordinator of groups.
    Groups,
    /// That of the coordinator of transactions.
    Transactions,
}

/// A coordinator ends with its broker, between one step of what that does and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Whose broker it is.
    pub whom: Struck,
    /// The how-manieth boundary between two steps, from 0 on: before and after each message, each append and each effect.
    pub boundary: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Scheme {
    pub(super) scenario: Scenario,
    plan: Plan,
    /// The coordinators' logs are small segments, and compacted.
    compacts: bool,
    /// Which of the copiers speak as of transaction version 2.
    pub(super) of_version_2: [bool; 2],
}

impl Scheme {
    pub(super) fn draw(scenario: Scenario, random: &mut Random) -> Self {
        let drawn = scenario == Scenario::Drawn;
        let synced = drawn && random.one_in(2);
        let plan = Plan {
            promise: if synced { Promise::SyncedPowerCuts } else { Promise::Kills },
            min_insync_replicas: 1 + random.index(2),
            synced,
            retention: false,
            segment_bytes: random.pick(&[1_000, 4_000, 1 << 20]),
            unclean_elections: false,
            rots: false,
            operators: false,
            mutant: None,
            heals_ms: if drawn { random.between(1_500, 4_000) } else { 400 },
            lag_ms: 200,
            flush_ms: 300,
            latency_ms: if drawn { random.pick(&[2, 5, 15]) } else { 2 },
        };
        let of_version_2 = [!random.one_in(4), random.one_in(2)];
        Self { scenario, plan, compacts: random.one_in(2), of_version_2 }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn heals_ms(&self) -> i64 {
        self.plan.heals_ms
    }

    pub(super) fn latency_ms(&self) -> i64 {
        self.plan.latency_ms
    }

    /// Whether power may be cut: nothing acknowledged is lost then.
    pub(super) fn is_synced(&self) -> bool {
        self.plan.synced
    }

    pub(super) fn log(&self, at: usize) -> LogOptions {
        let mut options = self.plan.log();
        if self.compacts && at < 2 {
            options.segment_bytes = self.plan.segment_bytes.min(2_000);
            options.compaction = Some(CompactionOptions {
                min_cleanable_dirty_ratio: 0.1,
                delete_retention_ms: 100,
                backoff_ms: 50,
                ..CompactionOptions::default()
            });
            options.file_delete_delay_ms = 50;
        }
        options
    }

    /// What goes wrong, and when.
    pub(super) fn faults(&self, random: &mut Random) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.scenario != Scenario::Drawn {
            return faults;
        }
        let ends_ms = self.heals_ms();
        let one_in = random.pick(&[15, 60, 0]);
        if one_in > 0 {
            faults.push(Fault { at_ms: 0, what: What::Loss { one_in, ms: ends_ms } });
        }
        let mut at_ms = 150;
        while at_ms < ends_ms {
            faults.push(Fault { at_ms, what: self.draw_one(random) });
            at_ms += random.between(20, 400);
        }
        faults
    }

    fn draw_one(&self, random: &mut Random) -> What {
        let broker = random.index(BROKERS);
        let whom = if random.one_in(2) { Whom::Leader } else { Whom::Broker(broker) };
        let other = (broker + 1 + random.index(BROKERS - 1)) % BROKERS;
        let ms = random.between(20, 400);
        match random.below(32) {
            0..=3 => What::Stop { whom, clean: random.one_in(3) },
            4 | 5 if self.is_synced() => What::PowerCut { whom, image: random.draw() },
            4..=6 => {
                let power = self.is_synced().then(|| random.draw());
                What::CrashInCall { whom, calls: random.below(30), power }
            }
            7 | 8 => What::Pause { whom, ms },
            9 => What::Split { one: broker, other, ms },
            10 => What::Cut { from: broker, to: other, ms },
            11 if random.one_in(2) => What::Cut { from: CLIENTS, to: broker, ms },
            11 => What::Cut { from: broker, to: CLIENTS, ms },
            12 => What::Isolate { whom, ms },
            13 | 14 => What::CutOff { whom, ms },
            15 => What::StoreDown { ms },
            16 => What::SessionEnds { whom },
            17 => What::LateWatches { whom, ms },
            18 => What::Slowness { ms },
            19 if random.one_in(2) => What::ClockJump { whom, by_ms: random.between(10, 1_500) },
            19 => What::ClockStep { broker, by_ms: random.between(-1_000, 1_000) },
            20 => What::ClockDrift { broker, per_mille: random.between(-200, 200), ms },
            21 => What::SlowDisk { whom, ms },
            22 => What::NewController,
            23..=26 => What::MoveLeader { to: broker },
            _ => What::ClientDies { which: random.index(8) },
        }
    }
}

/// Of which partition a fault strikes the leader: each in its turn, more often those of the coordinators.
pub(super) fn struck(fault: Fault) -> usize {
    match usize::try_from(fault.at_ms).unwrap_or(0) % (PARTITIONS + 4) {
        at if at < PARTITIONS => at,
        at => at % 2,
    }
}
