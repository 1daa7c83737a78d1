//! One broker: its disk, its clock, and while it runs its replica and what waits there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_replication::{
    BrokerEpoch, BrokerId, FetchFailure, FetchGrant, FetchPlan, FetchRequest, Fetcher, Partition, ReplicaConfig,
    WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{
    EpochEnd, Log, LogOptions, Offset, OpenHints, ReadError, ReadLimit, TimestampMs, TopicPartition,
};

use super::truth::Mirror;
use crate::model::{DIR, NOW, disk};

pub(super) struct Node {
    pub(super) id: BrokerId,
    pub(super) fs: SimFs,
    /// Counts starts: what was on its way to an earlier life does not arrive.
    pub(super) life: u32,
    pub(super) running: Option<Running>,
    /// A high watermark that it had, as a root's checkpoint would have it.
    pub(super) checkpointed: Option<Offset>,
    pub(super) stopped_clean: bool,
    /// Its power was cut, and it has not marked itself since: what it acknowledged may be gone.
    pub(super) damaged: bool,
    /// It is going to die within a call of the file system; with the power, if a number says what is left.
    pub(super) dies: Option<Option<u8>>,
    pub(super) ahead_ms: i64,
    /// Its last life may have deleted up to here without having told.
    pub(super) may_have_deleted_below: i64,
}

pub(super) struct Running {
    pub(super) partition: Partition,
    pub(super) session: BrokerEpoch,
    pub(super) knows_session_lost: bool,
    pub(super) mirror: Mirror,
    /// The fetch that is out, and since when.
    pub(super) fetching: Option<(i64, FetchPlan)>,
    pub(super) parked: BTreeMap<WaitToken, Parked>,
    pub(super) produces: BTreeMap<WaitToken, Produce>,
    tokens: u64,
}

/// A follower's fetch that waits for records, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) asked: Asked,
    pub(super) since: i64,
}

/// Whose fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) by: usize,
    pub(super) life: u32,
    pub(super) plan: FetchPlan,
}

/// A batch on its way into the log: its records have the numbers from `number` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Produce {
    pub(super) number: u64,
    pub(super) count: u64,
    /// An answer means that it is kept.
    pub(super) acknowledges: bool,
}

/// An answer to a fetch.
#[derive(Clone, Debug)]
pub(super) struct Records {
    pub(super) bytes: Vec<u8>,
    pub(super) high_watermark: Offset,
    pub(super) log_start: Offset,
    pub(super) diverging: Option<EpochEnd>,
}

pub(super) type Answer = Result<Records, FetchFailure>;

impl Node {
    pub(super) fn new(number: i32) -> Self {
        let fs = disk();
        // Where a clock has gone back, records lie in its future, and their age counts from the time of the last write.
        fs.set_now(NOW);
        Self {
            id: BrokerId(number),
            fs,
            life: 0,
            running: None,
            checkpointed: None,
            stopped_clean: true,
            damaged: false,
            dies: None,
            ahead_ms: 0,
            may_have_deleted_below: 0,
        }
    }

    /// The time as this broker has it.
    pub(super) fn time(&self, now_ms: i64) -> TimestampMs {
        NOW.after(now_ms + self.ahead_ms)
    }

    pub(super) fn start(&mut self, config: ReplicaConfig, options: LogOptions) {
        let fs: Arc<dyn Fs> = Arc::new(self.fs.clone());
        let (log, _) = Log::open_with(fs, Path::new(DIR), options, OpenHints::default()).expect("a log can be opened");
        // One above the end is of a tail that was lost: it is lowered before the log grows past it with other records.
        self.checkpointed = self.checkpointed.map(|checkpointed| checkpointed.min(log.end()));
        let session = config.broker_epoch;
        let mut mirror = Mirror::default();
        mirror.forget(log.start());
        self.running = Some(Running {
            partition: Partition::new(config, TopicPartition::new("books", 0), log, self.checkpointed),
            session,
            knows_session_lost: false,
            mirror,
            fetching: None,
            parked: BTreeMap::new(),
            produces: BTreeMap::new(),
            tokens: 0,
        });
    }

    /// The process is gone. What it was about to delete may be gone too.
    pub(super) fn ends(&mut self, clean: bool) -> Option<Running> {
        let running = self.running.take()?;
        self.may_have_deleted_below = running.partition.status().high_watermark.0;
        self.life += 1;
        self.stopped_clean = clean;
        self.dies = None;
        Some(running)
    }

    /// What a power cut leaves.
    pub(super) fn left_after(&self, choice: u8) -> SimFs {
        let images = self.fs.images(6, u64::from(choice));
        let chosen = usize::from(choice) % images.len();
        images.into_iter().nth(chosen).expect("there is one")
    }
}

impl Running {
    pub(super) fn token(&mut self) -> WaitToken {
        self.tokens += 1;
        WaitToken(self.tokens)
    }

    /// Reads what a grant allows, a batch or a few.
    pub(super) fn read(&self, grant: &FetchGrant, from: Offset, bytes: usize) -> Result<Vec<u8>, ReadError> {
        if grant.diverging.is_some() || grant.upper <= from {
            return Ok(Vec::new());
        }
        let limit = ReadLimit::bytes(bytes).below(grant.upper);
        Ok(self.partition.reader().read(from, limit)?.bytes)
    }
}

impl Asked {
    pub(super) fn request(&self, by: BrokerId) -> FetchRequest {
        let plan = self.plan;
        let by = Fetcher::Follower { id: by, broker_epoch: Some(plan.broker_epoch), log_start: plan.log_start };
        FetchRequest {
            by,
            current_leader_epoch: Some(plan.leader_epoch),
            last_fetched_epoch: plan.last_fetched_epoch,
            from: plan.from,
        }
    }
}
