//! One broker: its disk, and while it runs its partition and what is outstanding there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_replication::{
    BrokerEpoch, BrokerId, FetchGrant, FetchPlan, FetchRequest, Partition, ReplicaConfig, WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{Log, Offset, OpenHints, ReadLimit, TopicPartition};

use crate::plan::{Mutant, Plan};
use crate::random::Random;
use crate::truth::{Mirror, Truth};

const DIR: &str = "/books-0";

pub(crate) struct Node {
    pub(crate) id: BrokerId,
    pub(crate) fs: SimFs,
    /// Counts starts: what belongs to an earlier life is dropped.
    pub(crate) life: u32,
    pub(crate) running: Option<Running>,
    /// What its root's checkpoint would say: some high watermark it had.
    pub(crate) checkpointed: Option<Offset>,
    pub(crate) stopped_clean: bool,
    /// Power was cut and its log is not known to be whole yet.
    pub(crate) damaged: bool,
    /// Nothing happens here before this.
    pub(crate) paused_until: i64,
    /// It does not reach the store before this.
    pub(crate) cut_off_until: i64,
}

pub(crate) struct Running {
    pub(crate) partition: Partition,
    pub(crate) session: BrokerEpoch,
    pub(crate) mirror: Mirror,
    /// The fetch that is out.
    pub(crate) fetching: Option<(u64, FetchPlan)>,
    pub(crate) parked: BTreeMap<WaitToken, Parked>,
    pub(crate) produces: BTreeMap<WaitToken, ProduceId>,
    pub(crate) next_token: u64,
    /// The deadline a tick is scheduled for.
    pub(crate) ticking: Option<i64>,
}

/// A follower's fetch that waits for records.
pub(crate) struct Parked {
    pub(crate) request: FetchRequest,
    pub(crate) from: FetchId,
}

/// Whose fetch: node, life, number, and what was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchId {
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) number: u64,
    pub(crate) plan: FetchPlan,
}

/// Whose produce: the numbers of the batch and whether the producer is the idempotent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProduceId {
    pub(crate) idempotent: bool,
    pub(crate) number: u64,
    pub(crate) count: u64,
    pub(crate) acknowledges: bool,
}

impl Node {
    pub(crate) fn new(id: i32, random: &mut Random) -> Self {
        let fs = SimFs::new(random.next());
        fs.create_dir(Path::new(DIR)).expect("an empty disk");
        fs.sync_dir(Path::new("/")).expect("an empty disk");
        Self {
            id: BrokerId(id),
            fs,
            life: 0,
            running: None,
            checkpointed: None,
            stopped_clean: true,
            damaged: false,
            paused_until: 0,
            cut_off_until: 0,
        }
    }

    /// What recovery would find, with the disk left as it is.
    pub(crate) fn on_disk(&self, plan: &Plan, truth: &mut Truth) -> Mirror {
        let copy = self.fs.process_crash_image();
        let (log, _) = Log::open_with(Arc::new(copy), Path::new(DIR), plan.log(), OpenHints::default())
            .expect("a log that recovers");
        let mut mirror = Mirror::default();
        mirror.forget(log.start().0);
        mirror.read_on(log.start().0, log.end().0, &log.reader(), truth);
        mirror
    }

    /// Opens the log and starts. The store's state comes later.
    pub(crate) fn start(&mut self, plan: &Plan, session: BrokerEpoch) {
        let fs: Arc<dyn Fs> = Arc::new(self.fs.clone());
        let (mut log, _) =
            Log::open_with(fs, Path::new(DIR), plan.log(), OpenHints::default()).expect("a log that recovers");
        if plan.mutant == Some(Mutant::CutsAtHighWatermark) {
            let to = self.checkpointed.unwrap_or_else(|| log.start()).min(log.end());
            log.truncate_to(to).expect("a cut");
        }
        // One above the end is of a tail that was lost: it is lowered before the log grows past it with other records.
        self.checkpointed = self.checkpointed.map(|checkpointed| checkpointed.min(log.end()));
        let config = plan.replica(ReplicaConfig::new(self.id, session));
        let partition = Partition::new(config, TopicPartition::new("books", 0), log, self.checkpointed);
        self.running = Some(Running {
            partition,
            session,
            mirror: Mirror::default(),
            fetching: None,
            parked: BTreeMap::new(),
            produces: BTreeMap::new(),
            next_token: 0,
            ticking: None,
        });
    }
}

impl Running {
    pub(crate) fn token(&mut self) -> WaitToken {
        self.next_token += 1;
        WaitToken(self.next_token)
    }

    /// Reads what a grant allows, a batch or a few.
    pub(crate) fn read(&self, grant: &FetchGrant, from: Offset, max_bytes: usize) -> Vec<u8> {
        if grant.diverging.is_some() || grant.upper <= from {
            return Vec::new();
        }
        let limit = ReadLimit::bytes(max_bytes).below(grant.upper);
        self.partition.reader().read(from, limit).expect("a granted read").bytes
    }
}
