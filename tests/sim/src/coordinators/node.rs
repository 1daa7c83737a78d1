//! One broker: its disk, its clock, and while it runs its replicas, its coordinators and what is asked there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_groups::Guards;
use highwater_replication::{
    BrokerEpoch, BrokerId, FetchPlan, FetchRequest, Partition, PartitionState, ReplicaConfig, Role, Versioned,
    WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::sim::Clock;
use highwater_storage::{LeaderEpoch, Log, Offset, OpenHints, TimestampMs};

use super::driver::Driver;
use super::plan::Scheme;
use super::produce::{Given, Then};
use super::taking_part::{Key, Question};
use super::{FetchId, NAMES, PARTITIONS, topic_partition};
use crate::random::{Purpose, Random};

/// Room enough for any run.
const DISK_BYTES: u64 = 1 << 40;

pub(super) struct Node {
    pub(super) id: BrokerId,
    pub(super) fs: SimFs,
    pub(super) random: Random,
    /// Counts starts: what belongs to an earlier life is dropped.
    pub(super) life: u32,
    pub(super) running: Option<Running>,
    /// What its root's checkpoint would say: some high watermark that each replica had.
    pub(super) checkpointed: [Option<Offset>; PARTITIONS],
    /// Nothing happens here before this.
    pub(super) paused_until: i64,
    /// It does not reach the store before this.
    pub(super) cut_off_until: i64,
    /// It hears late of changes in the store.
    pub(super) late_until: i64,
    pub(super) slow_until: i64,
    /// What is left on the disk when it dies in a call, if the power goes with it.
    pub(super) dies_with_power: Option<u64>,
    pub(super) clock: Clock,
    /// The time of day was set while the process ran on its own: it shows at the next start.
    pub(super) clock_step: i64,
}

pub(super) struct Running {
    pub(super) session: BrokerEpoch,
    pub(super) replicas: Vec<Replica>,
    pub(super) live: BTreeMap<BrokerId, BrokerEpoch>,
    /// The coordinators of groups and of transactions, while it takes itself for their leader.
    pub(super) drivers: [Option<Driver>; 2],
    /// What coordinators of transactions are asked about batches.
    pub(super) questions: BTreeMap<u64, Question>,
    /// Batches that wait for that, of each partition and producer.
    pub(super) verifying: BTreeMap<Key, Vec<Given>>,
}

pub(super) struct Replica {
    pub(super) partition: Partition,
    /// What the cluster's image says of it.
    pub(super) told: Option<Versioned<PartitionState>>,
    /// The fetch that is out.
    pub(super) fetching: Option<(u64, FetchPlan)>,
    pub(super) parked: BTreeMap<WaitToken, (FetchRequest, FetchId)>,
    pub(super) produces: BTreeMap<WaitToken, Then>,
    pub(super) guards: Guards,
    next_token: u64,
    /// The deadline a tick is scheduled for, and its number: one that was overtaken by an earlier one is none.
    pub(super) ticking: Option<(i64, u64)>,
}

impl Node {
    pub(super) fn new(seed: u64, node: usize) -> Self {
        Self {
            id: BrokerId(i32::try_from(node + 1).expect("few")),
            fs: SimFs::new(Purpose::Disk(node).of(seed).draw()),
            random: Purpose::Broker(node).of(seed),
            life: 0,
            running: None,
            checkpointed: [None; PARTITIONS],
            paused_until: 0,
            cut_off_until: 0,
            late_until: 0,
            slow_until: 0,
            dies_with_power: None,
            clock: Clock::default(),
            clock_step: 0,
        }
    }

    /// The time as this broker has it.
    pub(super) fn time(&self, now: i64) -> TimestampMs {
        TimestampMs(self.clock.read(now))
    }

    /// Opens the logs and starts. The store's state comes later.
    ///
    /// # Errors
    /// If a log does not open.
    pub(super) fn start(&mut self, scheme: &Scheme, session: BrokerEpoch) -> Result<(), String> {
        self.fs.set_capacity(DISK_BYTES);
        let mut replicas = Vec::new();
        for (at, (topic, partition)) in NAMES.into_iter().enumerate() {
            let directory = PathBuf::from(format!("/{topic}-{partition}"));
            let fs: Arc<dyn Fs> = Arc::new(self.fs.clone());
            if fs.metadata(&directory).is_err() {
                self.checkpointed[at] = None;
                fs.create_dir(&directory)
                    .and_then(|()| fs.sync_dir("/".as_ref()))
                    .map_err(|error| error.to_string())?;
            }
            let opened = Log::open_with(fs, &directory, scheme.log(at), OpenHints::default());
            let (log, _) = opened.map_err(|error| error.to_string())?;
            self.checkpointed[at] = self.checkpointed[at].map(|checkpointed| checkpointed.min(log.end()));
            let config = scheme.plan().replica(ReplicaConfig::new(self.id, session));
            replicas.push(Replica {
                partition: Partition::new(config, topic_partition(at), log, self.checkpointed[at]),
                told: None,
                fetching: None,
                parked: BTreeMap::new(),
                produces: BTreeMap::new(),
                guards: Guards::default(),
                next_token: 0,
                ticking: None,
            });
        }
        self.running = Some(Running {
            session,
            replicas,
            live: BTreeMap::new(),
            drivers: [None, None],
            questions: BTreeMap::new(),
            verifying: BTreeMap::new(),
        });
        Ok(())
    }

    pub(super) fn replica(&mut self, at: usize) -> Option<&mut Replica> {
        self.running.as_mut()?.replicas.get_mut(at)
    }

    /// Whom it takes for the leader of a partition.
    pub(super) fn leader_of(&self, at: usize) -> Option<usize> {
        let state = &self.running.as_ref()?.replicas[at].told.as_ref()?.value;
        let leader = state.leader?;
        usize::try_from(leader.0 - 1).ok()
    }
}

impl Replica {
    pub(super) fn token(&mut self) -> WaitToken {
        self.next_token += 1;
        WaitToken(self.next_token)
    }

    /// Whether it leads in that epoch.
    pub(super) fn leads_in(&self, epoch: LeaderEpoch) -> bool {
        let status = self.partition.status();
        status.role == Role::Leader && status.leader_epoch == epoch
    }
}
