//! One broker: its disk, its clock, and while it runs its partition and what is outstanding there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_replication::{
    BrokerEpoch, BrokerId, FetchGrant, FetchPlan, FetchRequest, Partition, ReplicaConfig, WaitToken,
};
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::sim::Clock;
use highwater_storage::{Log, Offset, OpenHints, ReadError, ReadLimit, TimestampMs, TopicPartition};

use crate::plan::{Mutant, Plan, at};
use crate::random::{Purpose, Random};
use crate::store::Image;
use crate::truth::{Mirror, Rotten, Truth};

/// The log of a topic: its id is written in the directory, so to speak.
fn directory(topic: u32) -> PathBuf {
    PathBuf::from(format!("/books-0.{topic}"))
}

/// Room enough for any run.
const DISK_BYTES: u64 = 1 << 40;

pub(crate) struct Node {
    pub(crate) id: BrokerId,
    pub(crate) fs: SimFs,
    pub(crate) random: Random,
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
    /// It hears late of changes in the store.
    pub(crate) late_until: i64,
    /// Its disk is slow.
    pub(crate) slow_until: i64,
    /// Its disk fails, or may any moment: the process dies in a call, or a call fails, or there is no room.
    pub(crate) disk_fails: bool,
    /// Calls have been made to fail since it was mounted: what that does may show later, and in the next process too.
    pub(crate) disk_failed: bool,
    /// Its last life ended while it was at work on its disk: retention may have deleted up to here and not told.
    pub(crate) may_have_deleted_below: i64,
    /// What has rotted on its disk, and is not healed.
    pub(crate) rotten: Option<Rotten>,
    /// Logs that were set aside.
    set_aside: u32,
    /// The last fetch of its former life, until that has come once more.
    pub(crate) former_fetch: Option<FetchId>,
    /// What is left on the disk when it dies in a call, if the power goes with it.
    pub(crate) dies_with_power: Option<u64>,
    pub(crate) clock: Clock,
    /// The time of day was set while the process ran on its own: it shows at the next start.
    pub(crate) clock_step: i64,
}

pub(crate) struct Running {
    pub(crate) partition: Partition,
    /// Of which topic it is a replica, and whether it is one: else it is what there will be when it becomes one.
    pub(crate) topic: u32,
    pub(crate) hosts: bool,
    /// The latest image that it has seen.
    pub(crate) seen: u64,
    /// When it may ask anew for what has rotted here, and whom it asks next.
    pub(crate) heals_at: i64,
    pub(crate) heals_from: usize,
    pub(crate) session: BrokerEpoch,
    pub(crate) mirror: Mirror,
    /// The fetch that is out.
    pub(crate) fetching: Option<(u64, FetchPlan)>,
    /// The last one that was sent.
    pub(crate) last_fetch: Option<FetchId>,
    pub(crate) parked: BTreeMap<WaitToken, Parked>,
    pub(crate) produces: BTreeMap<WaitToken, ProduceId>,
    pub(crate) next_token: u64,
    /// The setting that it has heard of.
    pub(crate) min_insync_replicas: usize,
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
    pub(crate) topic: u32,
    pub(crate) node: usize,
    pub(crate) life: u32,
    pub(crate) number: u64,
    pub(crate) plan: FetchPlan,
}

/// Whose produce: the numbers of the batch and whether the producer is the idempotent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProduceId {
    pub(crate) topic: u32,
    pub(crate) idempotent: bool,
    pub(crate) number: u64,
    pub(crate) count: u64,
    pub(crate) acknowledges: bool,
}

impl Node {
    pub(crate) fn new(seed: u64, node: usize) -> Self {
        Self {
            id: BrokerId(i32::try_from(node + 1).expect("few")),
            fs: SimFs::new(Purpose::Disk(node).of(seed).draw()),
            random: Purpose::Broker(node).of(seed),
            life: 0,
            running: None,
            checkpointed: None,
            stopped_clean: true,
            damaged: false,
            paused_until: 0,
            cut_off_until: 0,
            late_until: 0,
            slow_until: 0,
            disk_fails: false,
            disk_failed: false,
            may_have_deleted_below: 0,
            rotten: None,
            set_aside: 0,
            former_fetch: None,
            dies_with_power: None,
            clock: Clock::default(),
            clock_step: 0,
        }
    }

    /// The time as this broker has it.
    pub(crate) fn time(&self, now: i64) -> TimestampMs {
        at(self.clock.read(now))
    }

    /// Whether its disk may be the reason for what does not work.
    pub(crate) fn has_bad_disk(&self) -> bool {
        self.disk_fails || self.disk_failed || self.fs.crashed()
    }

    /// What recovery would find, with the disk left as it is.
    pub(crate) fn on_disk(&self, plan: &Plan, topic: u32, truth: &mut Truth) -> Mirror {
        let mut mirror = Mirror::default();
        let directory = directory(topic);
        if self.fs.metadata(&directory).is_err() {
            return mirror; // It has not heard of the topic.
        }
        let copy = self.fs.process_crash_image();
        copy.set_capacity(DISK_BYTES);
        let (log, _) =
            Log::open_with(Arc::new(copy), &directory, plan.log(), OpenHints::default()).expect("a log that recovers");
        mirror.forget(log.start().0);
        mirror.read_on(log.start().0, log.end().0, &log.reader(), self.rotten.as_ref(), truth);
        mirror
    }

    /// Leaves room for so many bytes more.
    pub(crate) fn fill_disk(&mut self, room: u64) {
        let capacity = |bytes| self.fs.set_capacity(bytes);
        capacity(DISK_BYTES);
        let free = self.fs.free_space(Path::new("/")).unwrap_or(DISK_BYTES);
        capacity(DISK_BYTES - free + room);
        self.disk_fails = true;
    }

    /// The disk does what it should from now on.
    pub(crate) fn heal_disk(&mut self) {
        self.fs.clear_faults();
        self.fs.crash_after(u64::MAX);
        self.fs.set_capacity(DISK_BYTES);
        self.disk_fails = false;
        self.dies_with_power = None;
    }

    /// Sets aside the logs of topics that are gone, and the one that is not to be here any more, and makes a directory.
    fn tidy(&mut self, image: &Image) -> io::Result<()> {
        let (fs, root) = (self.fs.clone(), Path::new("/"));
        for topic in 0..=image.topic {
            let is_wanted = topic == image.topic && image.assignment.contains(&self.id);
            if is_wanted || fs.metadata(&directory(topic)).is_err() {
                continue;
            }
            // In this order: a later log of this name begins without the marks of this one.
            (self.checkpointed, self.rotten) = (None, None);
            self.set_aside += 1;
            fs.rename(&directory(topic), &root.join(format!("gone-{}", self.set_aside)))?;
            fs.sync_dir(root)?;
        }
        if fs.metadata(&directory(image.topic)).is_err() {
            self.checkpointed = None;
            fs.create_dir(&directory(image.topic))?;
            fs.sync_dir(root)?;
        }
        Ok(())
    }

    /// The file of a segment that begins there.
    pub(crate) fn segment(topic: u32, base: Offset) -> PathBuf {
        directory(topic).join(format!("{:020}.log", base.0))
    }

    /// Opens the log and starts. The store's state comes later.
    ///
    /// # Errors
    /// If the log does not open.
    pub(crate) fn start(&mut self, plan: &Plan, session: BrokerEpoch, image: &Image) -> Result<(), String> {
        self.tidy(image).map_err(|error| error.to_string())?;
        let (fs, directory): (Arc<dyn Fs>, _) = (Arc::new(self.fs.clone()), directory(image.topic));
        let opened = Log::open_with(fs, &directory, plan.log(), OpenHints::default());
        let (mut log, _) = opened.map_err(|error| error.to_string())?;
        if plan.mutant == Some(Mutant::CutsAtHighWatermark) {
            let to = self.checkpointed.unwrap_or_else(|| log.start()).min(log.end());
            let _cut_if_the_disk_allows = log.truncate_to(to);
        }
        // One above the end is of a tail that was lost: it is lowered before the log grows past it with other records.
        self.checkpointed = self.checkpointed.map(|checkpointed| checkpointed.min(log.end()));
        let config = plan.replica(ReplicaConfig::new(self.id, session));
        let partition = Partition::new(config, TopicPartition::new("books", 0), log, self.checkpointed);
        self.running = Some(Running {
            partition,
            topic: image.topic,
            hosts: image.assignment.contains(&self.id),
            seen: image.number,
            heals_at: 0,
            heals_from: 0,
            session,
            mirror: Mirror::default(),
            fetching: None,
            last_fetch: None,
            parked: BTreeMap::new(),
            produces: BTreeMap::new(),
            next_token: 0,
            min_insync_replicas: plan.min_insync_replicas,
            ticking: None,
        });
        Ok(())
    }
}

impl Running {
    pub(crate) fn token(&mut self) -> WaitToken {
        self.next_token += 1;
        WaitToken(self.next_token)
    }

    /// Reads what a grant allows, a batch or a few.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn read(&self, grant: &FetchGrant, from: Offset, max_bytes: usize) -> Result<Vec<u8>, ReadError> {
        if grant.diverging.is_some() || grant.upper <= from {
            return Ok(Vec::new());
        }
        let limit = ReadLimit::bytes(max_bytes).below(grant.upper);
        Ok(self.partition.reader().read(from, limit)?.bytes)
    }
}
