//! The partitions this broker holds, kept in step with what the cluster's image says it should hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

use highwater_replication::{BrokerEpoch, BrokerId, Partition, ReplicaConfig, Role};
use highwater_storage::data_dir::{DataDir, DataDirError, FoundPartition, PartitionDirError};
use highwater_storage::fs::Fs;
use highwater_storage::io::IoError;
use highwater_storage::lock::{LOCK_FILE, LockError};
use highwater_storage::{
    LeaderEpoch, Log, LogOptions, Offset, OpenError, OpenHints, RecoveryReport, TopicId, TopicPartition,
};

use crate::api::ErrorCode;
use crate::cluster::{MetadataImage, PartitionImage, Registration, TopicImage};
use crate::config::{BrokerConfig, TopicConfig};
use crate::damage;
use crate::history::HistoryEntry;
use crate::hosted::{Command, Hosted, Marks};
use crate::services::Services;
use crate::topic_options;

/// Logs that are closed at a time: each waits for the disk.
const CLOSE_THREADS: usize = 4;

/// How a request names a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TopicName<'a> {
    Name(&'a str),
    Id(TopicId),
}

type ByTopic = HashMap<Arc<str>, BTreeMap<i32, Arc<Hosted>>>;

/// The partitions and the directory they lie in.
#[derive(Debug)]
pub(crate) struct Partitions {
    services: Arc<Services>,
    fs: Arc<dyn Fs>,
    hosted: RwLock<ByTopic>,
    /// Partitions that could not be opened or created.
    offline: RwLock<BTreeSet<TopicPartition>>,
    known: Mutex<Known>,
    /// What the logs of one broker share: the bound on open files.
    shared_options: LogOptions,
    /// The options made last, and of which configuration: most topics have the same.
    last_options: Mutex<Option<(TopicConfig, Arc<LogOptions>)>>,
    /// What holds for topics that do not say, by the last image.
    running: RwLock<Arc<BrokerConfig>>,
}

/// What the partitions were last told.
#[derive(Debug, Default)]
struct Known {
    image: Arc<MetadataImage>,
    live: Arc<BTreeMap<BrokerId, BrokerEpoch>>,
    registration: Option<Registration>,
    /// Replicas that could not be opened, as far as the controller was told in this session.
    reported: BTreeSet<TopicPartition>,
}

/// What is told besides what has changed in a topic.
#[derive(Clone, Copy)]
struct Extent {
    /// Everything.
    all: bool,
    /// The settings, whose defaults have changed.
    redefined: bool,
}

/// A log that was found in the directory and opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) topic_partition: TopicPartition,
    pub(crate) topic_id: Option<TopicId>,
    dir: PathBuf,
    pub(crate) log: Log,
    pub(crate) report: RecoveryReport,
    high_watermark: Option<Offset>,
}

impl Opened {
    /// Records that were read through because the last stop was not clean.
    pub(crate) fn records_scanned(&self) -> u64 {
        let RecoveryReport { clean, recovery_point, start, end, .. } = &self.report;
        if *clean { 0 } else { u64::try_from(*end - (*recovery_point).max(*start)).unwrap_or(0) }
    }
}

impl Partitions {
    /// No partitions yet.
    pub(crate) fn new(services: Arc<Services>, fs: Arc<dyn Fs>, data: DataDir) -> Self {
        let shared_options = topic_options::shared(&services.config);
        services.histories.open(Arc::clone(&fs));
        *services.data.write().unwrap_or_else(PoisonError::into_inner) = Some(data);
        let running = RwLock::new(Arc::clone(&services.config));
        Self {
            services,
            fs,
            hosted: RwLock::default(),
            offline: RwLock::default(),
            known: Mutex::default(),
            shared_options,
            last_options: Mutex::default(),
            running,
        }
    }

    /// The partition a request means, or the code that tells why it cannot be had here.
    pub(crate) fn find(
        &self,
        image: &MetadataImage,
        topic: TopicName<'_>,
        partition: i32,
    ) -> Result<Arc<Hosted>, ErrorCode> {
        let topic = match topic {
            TopicName::Name(name) => image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition)?,
            TopicName::Id(id) => image.topic_by_id(id).ok_or(ErrorCode::UnknownTopicId)?,
        };
        if topic.partition(partition).is_none() {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let hosted = self.hosted.read().unwrap_or_else(PoisonError::into_inner);
        match hosted.get(&topic.name).and_then(|partitions| partitions.get(&partition)) {
            Some(hosted) if hosted.topic_id() == topic.id => Ok(Arc::clone(hosted)),
            // Held by others, or on its way: the client looks at the metadata and tries again.
            _ => {
                drop(hosted);
                let offline = self.offline.read().unwrap_or_else(PoisonError::into_inner);
                let failed =
                    !offline.is_empty() && offline.contains(&TopicPartition::new(topic.name.clone(), partition));
                Err(if failed { ErrorCode::KafkaStorageError } else { ErrorCode::NotLeaderOrFollower })
            }
        }
    }

    /// Whether the replica here has not come as far as the image: its log is being made, or it has not heard of the
    /// epoch. One that failed is not behind, it waits for nothing.
    pub(crate) fn is_behind(&self, topic: &TopicImage, number: i32) -> bool {
        let of = TopicPartition::new(topic.name.clone(), number);
        let Some(state) = topic.partition(number).map(|partition| &partition.state.value) else { return false };
        let Some(hosted) = self.get(&of).filter(|hosted| hosted.topic_id() == topic.id) else {
            let offline = self.offline.read().unwrap_or_else(PoisonError::into_inner);
            return !offline.contains(&of);
        };
        let status = hosted.status();
        status.is_some_and(|status| status.role != Role::Fenced && status.leader_epoch < state.leader_epoch)
    }

    /// The partition of this name, whatever its topic's id.
    pub(crate) fn get(&self, of: &TopicPartition) -> Option<Arc<Hosted>> {
        let hosted = self.hosted.read().unwrap_or_else(PoisonError::into_inner);
        hosted.get(&of.topic)?.get(&of.partition).cloned()
    }

    /// All partitions, by name and number.
    pub(crate) fn all(&self) -> Vec<Arc<Hosted>> {
        let hosted = self.hosted.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = hosted.values().flat_map(BTreeMap::values).cloned().collect();
        drop(hosted);
        all.sort_by(|one, other| one.topic_partition().cmp(other.topic_partition()));
        all
    }

    /// Opens every log in the directory, several at a time. One that cannot be opened does not keep the others from
    /// being served. Blocks.
    pub(crate) fn open_found(&self) -> Vec<Opened> {
        let found: Vec<(FoundPartition, OpenHints, Option<Offset>)> = match &*self.data() {
            Some(data) => {
                let known = |found: &FoundPartition| {
                    (found.clone(), data.hints(&found.topic_partition), data.high_watermark(&found.topic_partition))
                };
                data.partitions().iter().map(known).collect()
            }
            None => return Vec::new(),
        };
        let (next, opened) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(found.len())));
        let work = || {
            while let Some((found, hints, high_watermark)) = found.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(found) = self.open(found, *hints, *high_watermark) {
                    opened.lock().unwrap_or_else(PoisonError::into_inner).push(found);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.services.config.recovery_threads.min(found.len()) {
                scope.spawn(work);
            }
            work();
        });
        opened.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, found: &FoundPartition, hints: OpenHints, high_watermark: Option<Offset>) -> Option<Opened> {
        let FoundPartition { topic_partition, dir, topic_id, .. } = found;
        let options = self.options(&self.services.config.topic);
        match self.open_log(dir, options, hints) {
            Ok((log, report)) => {
                if !report.clean {
                    tracing::info!(partition = %topic_partition, ?report, "recovered");
                }
                damage::tell_recovery(topic_partition, &report);
                let (topic_partition, topic_id) = (topic_partition.clone(), *topic_id);
                Some(Opened { topic_partition, topic_id, dir: dir.clone(), log, report, high_watermark })
            }
            Err(error) => {
                tracing::error!(partition = %topic_partition, %error, "cannot open the log; the partition is offline");
                self.set_offline(topic_partition, true);
                None
            }
        }
    }

    /// Opens a log of the root, unless somebody has it who opened it alone, before there was a root around it.
    fn open_log(
        &self,
        dir: &Path,
        options: Arc<LogOptions>,
        hints: OpenHints,
    ) -> Result<(Log, RecoveryReport), OpenError> {
        let lock = dir.join(LOCK_FILE);
        match self.fs.lock_holder(&lock) {
            Ok(None) => Log::open_with(Arc::clone(&self.fs), dir, options, hints),
            Ok(Some(holder)) => Err(LockError::Held { directory: dir.to_owned(), holder }.into()),
            Err(source) => Err(IoError { verb: "look for who locked", path: lock, source }.into()),
        }
    }

    /// Takes in the logs that were opened, as far as the cluster knows of them; the others are set aside. Blocks.
    pub(crate) fn attach(&self, image: &Arc<MetadataImage>, opened: Vec<Opened>) {
        // What is gone from the next image is compared with this one.
        self.known.lock().unwrap_or_else(PoisonError::into_inner).image = Arc::clone(image);
        self.take_settings(image);
        let is_above = |opened: &Opened| opened.high_watermark.is_some_and(|mark| mark > opened.log.end());
        let has_lost_tails = opened.iter().any(is_above);
        for opened in opened {
            self.note_lost_tail(&opened);
            let of = &opened.topic_partition;
            let topic = image.topic(&of.topic).filter(|topic| {
                opened.topic_id.is_none_or(|id| id == topic.id)
                    && topic.partition(of.partition).is_some_and(|known| known.assignment.contains(&self.me()))
            });
            match topic {
                Some(topic) => self.host(topic, of.clone(), opened.log, opened.high_watermark),
                None => {
                    tracing::warn!(partition = %of, "the cluster does not assign this partition here: setting it aside");
                    drop(opened.log);
                    if let Some(data) = &*self.data()
                        && let Err(error) = data.set_aside_stray(&opened.dir)
                    {
                        tracing::error!(partition = %of, %error, "cannot set the directory aside");
                    }
                }
            }
        }
        // A mark above the end is of a tail that is lost. Before other records come to be below it, which nobody may have
        // committed, it is lowered where the next start would read it.
        if has_lost_tails {
            self.checkpoint(Checkpoint::HighWatermarks);
        }
    }

    /// Writes down that a log ends below what had been committed when its high watermark was written down last: so many records
    /// at least this replica has lost.
    fn note_lost_tail(&self, opened: &Opened) {
        let Opened { topic_partition, log, high_watermark: Some(mark), .. } = opened else { return };
        if *mark <= log.end() {
            return;
        }
        let (here, lost) = ((log.end(), log.latest_epoch()), *mark - log.end());
        tracing::warn!(partition = %topic_partition, end = %here.0, committed = %mark, "the log has lost its tail");
        let entry = HistoryEntry {
            when: self.services.clock.now(),
            leader: None,
            leader_epoch: here.1,
            why: "the log ends below the high watermark that was written down before the last stop".to_owned(),
            from: (*mark, LeaderEpoch::NONE),
            to: here,
            high_watermark: *mark,
            records: Some(lost),
        };
        self.services.note_history(topic_partition, &entry);
    }

    /// Does what the image asks for: creates and removes partitions, tells the others what is new to them. Returns
    /// whether something failed that is worth another attempt. Blocks.
    pub(crate) fn reconcile(self: &Arc<Self>, image: &Arc<MetadataImage>, registration: Registration) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let again = self.retry_wanted();
        let news = known.registration != Some(registration);
        if news {
            for hosted in self.all() {
                tell_registration(&hosted, known.registration, registration);
                // What was reported of failed replicas went with the session it was reported in.
                if let (Some(epoch), Registration::Registered(_)) = (hosted.fenced(), registration) {
                    let of = hosted.topic_partition().clone();
                    self.services.report_offline(of, hosted.topic_id(), epoch);
                }
            }
            known.reported.clear();
        }
        // Who is about to stop counts as gone: leaders take it out while it still fetches, and nothing waits for it later.
        let live = Arc::new(image.staying_brokers());
        if live != known.live || image.offline != known.image.offline {
            for hosted in self.all() {
                let of = hosted.topic_partition().partition;
                hosted.submit(Command::LiveBrokers(live_for(image, &live, hosted.topic_id(), of)));
            }
        }
        // A topic that is gone has nothing left to be tried again.
        let is_here = |of: &TopicPartition| {
            image.partition(of).is_some_and(|partition| partition.assignment.contains(&self.me()))
        };
        self.offline.write().unwrap_or_else(PoisonError::into_inner).retain(is_here);
        for (name, topic) in &known.image.topics {
            if image.topics.get(name).is_none_or(|now| now.id != topic.id || !Arc::ptr_eq(now, topic)) {
                self.remove_unwanted(name, image.topics.get(name));
            }
        }
        known.registration = Some(registration);
        known.live = live;
        let redefined = self.take_settings(image);
        for (name, topic) in &image.topics {
            let before = known.image.topics.get(name);
            let unchanged = before.is_some_and(|before| Arc::ptr_eq(before, topic));
            if unchanged && !news && !again && !redefined {
                continue;
            }
            self.bring_up_to_date(image, topic, &mut known, Extent { all: news || again, redefined });
        }
        known.image = Arc::clone(image);
        self.retry_wanted()
    }

    /// Takes over what was set of the brokers. Returns whether that changes anything.
    fn take_settings(&self, image: &MetadataImage) -> bool {
        let now = self.services.config.running([&image.broker_defaults, &image.broker_config]);
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        let differs = **running != now;
        if differs {
            *running = Arc::new(now);
            *self.last_options.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        differs
    }

    /// The broker's configuration with what was set of it since it started.
    pub(crate) fn running(&self) -> Arc<BrokerConfig> {
        Arc::clone(&self.running.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How a topic is to be kept here.
    pub(crate) fn config_of(&self, topic: &TopicImage) -> TopicConfig {
        topic_options::of_topic(&self.running().topic, &topic.name, &topic.config)
    }

    fn retry_wanted(&self) -> bool {
        !self.offline.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Creates what a topic lacks here and tells its partitions their states: those that have another one than in the last
    /// image, unless all are to be told.
    fn bring_up_to_date(&self, image: &MetadataImage, topic: &Arc<TopicImage>, known: &mut Known, extent: Extent) {
        let known_topic = known.image.topics.get(&topic.name).cloned();
        let reconfigured = extent.redefined || known_topic.as_ref().is_none_or(|before| before.config != topic.config);
        let same_topic = known_topic.filter(|before| before.id == topic.id);
        for (number, partition) in (0..).zip(&topic.partitions) {
            if !partition.assignment.contains(&self.me()) {
                continue;
            }
            let before = same_topic.as_ref().and_then(|before| before.partition(number));
            // A thousand leaderships change one after the other: what changes with each must not cost a thousand commands.
            if !extent.all && !reconfigured && before == Some(partition) {
                continue;
            }
            let of = TopicPartition::new(topic.name.clone(), number);
            let hosted = match self.get(&of) {
                Some(hosted) => {
                    if reconfigured {
                        let config = self.config_of(topic);
                        hosted.configure(self.replica_config(&config, known.registration), self.options(&config));
                    }
                    hosted
                }
                None => match self.create(topic, &of) {
                    Some(hosted) => {
                        known.reported.remove(&of);
                        self.services.report_online(&of);
                        tell_registration(&hosted, None, known.registration.unwrap_or(Registration::Unregistered));
                        hosted.submit(Command::LiveBrokers(live_for(image, &known.live, topic.id, number)));
                        hosted
                    }
                    None => {
                        let registered = matches!(known.registration, Some(Registration::Registered(_)));
                        if registered && partition.state.version >= 0 && known.reported.insert(of.clone()) {
                            self.services.report_offline(of, topic.id, partition.state.value.leader_epoch);
                        }
                        continue;
                    }
                },
            };
            // Who of a reassignment is to go follows from the state too.
            if partition.reassignment.is_under_way() || before.is_some_and(|before| before.reassignment.is_under_way())
            {
                hosted.submit(Command::LiveBrokers(live_for(image, &known.live, topic.id, number)));
            }
            if let Some(before) = before {
                self.note_recovery(image, topic, number, before, &hosted);
            }
            // A state that the controller has not written yet has version -1.
            if partition.state.version >= 0 {
                let (state, assignment) = (partition.state.clone(), partition.assignment.clone());
                hosted.submit(Command::State { state, assignment });
            }
        }
    }

    /// Writes down that this replica leads because it kept most, after all in-sync ones had stopped uncleanly: what none of
    /// them kept is lost, and nobody can say how much that is.
    fn note_recovery(
        &self,
        image: &MetadataImage,
        topic: &TopicImage,
        number: i32,
        before: &PartitionImage,
        hosted: &Hosted,
    ) {
        let (me, was) = (self.me(), &before.state.value);
        let Some(now) = topic.partition(number).map(|partition| &partition.state.value) else { return };
        let nobody_led = was.leader.is_none() && was.doubtful.contains(&me) && was.isr.len() > 1;
        let leads_alone = now.leader == Some(me) && now.isr == [me] && !now.recovering;
        if !nobody_led || !leads_alone || now.leader_epoch <= was.leader_epoch {
            return;
        }
        let mut ends = image.ends_of(topic.id, number);
        ends.retain(|id, _| was.isr.contains(id));
        let status = hosted.status();
        let here = match (ends.remove(&me), &status) {
            (Some(end), _) => (end.log_end, end.last_epoch),
            (None, Some(status)) => (status.log_end, LeaderEpoch::NONE),
            (None, None) => (Offset(0), LeaderEpoch::NONE),
        };
        let kept = ends.iter().map(|(id, end)| format!(", {id} up to {} in epoch {}", end.log_end, end.last_epoch));
        let mut entry = HistoryEntry {
            when: self.services.clock.now(),
            leader: Some(me),
            leader_epoch: now.leader_epoch,
            why: format!("all in-sync replicas stopped uncleanly, and this one kept most{}", kept.collect::<String>()),
            from: here,
            to: here,
            high_watermark: status.map_or(Offset(0), |status| status.high_watermark),
            records: None,
        };
        entry.lacks(ends.values().map(|end| (end.log_end, end.last_epoch)));
        let of = hosted.topic_partition();
        tracing::warn!(partition = %of, epoch = %entry.leader_epoch, why = entry.why, "records may be lost");
        self.services.histories.count_recovered();
        self.services.note_history(of, &entry);
    }

    fn create(&self, topic: &Arc<TopicImage>, of: &TopicPartition) -> Option<Arc<Hosted>> {
        let created = match &*self.data() {
            Some(data) => self.make_directory(data, topic.id, of),
            None => return None,
        };
        let (dir, hints, high_watermark) = match created {
            Ok(created) => created,
            Err(error) => {
                tracing::error!(partition = %of, %error, "cannot create the partition's directory");
                self.set_offline(of, true);
                return None;
            }
        };
        let config = self.config_of(topic);
        let options = self.options(&config);
        match self.open_log(&dir, options, hints) {
            Ok((log, report)) => {
                damage::tell_recovery(of, &report);
                self.host(topic, of.clone(), log, high_watermark);
                self.get(of)
            }
            Err(error) => {
                tracing::error!(partition = %of, %error, "cannot open the partition's log");
                self.set_offline(of, true);
                None
            }
        }
    }

    /// The directory for a partition that is not hosted yet, and what is known of it.
    fn make_directory(
        &self,
        data: &DataDir,
        topic_id: TopicId,
        of: &TopicPartition,
    ) -> Result<(PathBuf, OpenHints, Option<Offset>), PartitionDirError> {
        let dir = data.partition_dir(of);
        if self.fs.metadata(&dir).is_ok() {
            // It was there when the root was opened, but its log could not be opened; or the directory could be made
            // and the log could not. What belongs to the topic is tried again as it is, anything else is set aside.
            let stored = highwater_storage::metadata_files::read_topic_id(&*self.fs, &dir).ok().flatten();
            if stored.is_none_or(|stored| stored == topic_id) {
                return Ok((dir, data.hints(of), data.high_watermark(of)));
            }
            data.set_aside_stray(&dir)?;
        }
        Ok((data.create_partition(of, topic_id)?, OpenHints::default(), None))
    }

    fn host(&self, topic: &Arc<TopicImage>, of: TopicPartition, log: Log, high_watermark: Option<Offset>) {
        let config = self.config_of(topic);
        let options = self.options(&config);
        let rules = options.rules.clone();
        let replica = self.replica_config(&config, None);
        let mut partition = Partition::new(replica.clone(), of.clone(), log, high_watermark);
        // A log that was found was opened before its topic's settings were known.
        partition.configure(self.services.clock.now(), replica, options);
        self.set_offline(&of, false);
        let hosted = Hosted::new(of.clone(), topic.id, partition, rules, &self.services);
        let mut all = self.hosted.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(of.topic).or_default().insert(of.partition, hosted);
    }

    /// Removes partitions of a topic that is gone, is another one now, or is not assigned here any more.
    fn remove_unwanted(self: &Arc<Self>, name: &Arc<str>, now: Option<&Arc<TopicImage>>) {
        let wanted = |hosted: &Hosted| {
            now.is_some_and(|topic| {
                topic.id == hosted.topic_id()
                    && topic
                        .partition(hosted.topic_partition().partition)
                        .is_some_and(|partition| partition.assignment.contains(&self.me()))
            })
        };
        let removed: Vec<Arc<Hosted>> = {
            let mut all = self.hosted.write().unwrap_or_else(PoisonError::into_inner);
            let Some(partitions) = all.get_mut(name) else { return };
            let removed: Vec<_> = partitions.values().filter(|hosted| !wanted(hosted)).cloned().collect();
            for hosted in &removed {
                partitions.remove(&hosted.topic_partition().partition);
            }
            if partitions.is_empty() {
                all.remove(name);
            }
            removed
        };
        for hosted in removed {
            self.delete(&hosted);
        }
    }

    fn delete(self: &Arc<Self>, hosted: &Hosted) {
        let of = hosted.topic_partition();
        tracing::info!(partition = %of, topic_id = %hosted.topic_id(), "removing the partition");
        // Dropped without being closed in order: nothing of it is to be kept.
        drop(hosted.take());
        let marked = match &*self.data() {
            Some(data) => data.mark_for_deletion(&data.partition_dir(of)),
            None => return,
        };
        match marked {
            Ok(dir) => self.remove_files(vec![dir]),
            Err(error) => tracing::error!(partition = %of, %error, "cannot delete the partition's directory"),
        }
    }

    /// Removes directories whose deletion was begun, some time soon.
    pub(crate) fn remove_files(self: &Arc<Self>, dirs: Vec<PathBuf>) {
        for dir in dirs {
            let partitions = Arc::clone(self);
            self.services.syncs.detached(move || {
                if let Some(data) = &*partitions.data()
                    && let Err(error) = data.remove_dir_tree(&dir)
                {
                    tracing::warn!(dir = %dir.display(), %error, "a deleted partition's files are still there");
                }
            });
        }
    }

    /// Writes the cluster's id down in a directory that has none.
    pub(crate) fn adopt_cluster_id(&self, id: &str) -> Result<(), DataDirError> {
        self.data_mut().as_mut().map_or(Ok(()), |data| data.adopt_cluster_id(id))
    }

    /// Asks each partition to look for work: delayed deletes, rolls by time, compaction, and retention where it is time.
    pub(crate) fn housekeeping(&self, retention: bool) {
        for hosted in self.all() {
            hosted.submit(Command::Housekeeping { retention });
        }
    }

    /// Writes one of the root's checkpoints. Blocks.
    pub(crate) fn checkpoint(&self, which: Checkpoint) {
        let recording = &self.services.recording;
        let _recording = matches!(which, Checkpoint::HighWatermarks)
            .then(|| recording.lock().unwrap_or_else(PoisonError::into_inner));
        let mut offsets = BTreeMap::new();
        for hosted in self.all() {
            if let Some(marks) = hosted.marks() {
                let offset = match which {
                    Checkpoint::RecoveryPoints => Some(marks.recovery_point),
                    Checkpoint::LogStarts => Some(marks.log_start),
                    Checkpoint::HighWatermarks => Some(marks.high_watermark),
                    Checkpoint::CleanerOffsets => marks.cleaner_offset,
                };
                offsets.extend(offset.map(|offset| (hosted.topic_partition().clone(), offset)));
            }
        }
        let Some(data) = &*self.data() else { return };
        if let Err(error) = write_checkpoint(data, which, &offsets) {
            tracing::error!(?which, %error, "cannot write a checkpoint");
        }
    }

    /// Closes every log in order and the directory with the clean-shutdown marker. Blocks.
    pub(crate) fn close(&self, epoch: Option<BrokerEpoch>) -> Result<(), ShutdownError> {
        let all = self.all();
        let mut marks = BTreeMap::new();
        for hosted in &all {
            if let Some(of) = hosted.marks() {
                marks.insert(hosted.topic_partition().clone(), of);
            }
        }
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let closed = Mutex::new(BTreeMap::new());
        let fail = |error| *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        let work = || {
            while let Some(hosted) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                let of = hosted.topic_partition();
                let Some(partition) = hosted.take() else {
                    let cause = "it was given up after a failure".to_owned();
                    fail(ShutdownError::Log { partition: of.clone(), cause });
                    continue;
                };
                match partition.close() {
                    Ok(report) => {
                        closed.lock().unwrap_or_else(PoisonError::into_inner).insert(of.clone(), report.end);
                    }
                    Err(error) => {
                        tracing::error!(partition = %of, %error, "cannot close the log in order");
                        fail(ShutdownError::Log { partition: of.clone(), cause: error.to_string() });
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..CLOSE_THREADS.min(all.len()) {
                scope.spawn(work);
            }
            work();
        });
        let Some(data) = self.data_mut().take() else { return Ok(()) };
        // A log that is there and could not be opened may still need what the marker says is not needed.
        for of in &*self.offline.read().unwrap_or_else(PoisonError::into_inner) {
            if self.fs.metadata(&data.partition_dir(of)).is_ok() {
                fail(ShutdownError::Log { partition: of.clone(), cause: "it could not be opened".to_owned() });
            }
        }
        let recovery_points = closed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of = |mark: fn(&Marks) -> Offset| marks.iter().map(|(of, marks)| (of.clone(), mark(marks))).collect();
        write_checkpoint(&data, Checkpoint::HighWatermarks, &of(|marks| marks.high_watermark))?;
        write_checkpoint(&data, Checkpoint::RecoveryPoints, &recovery_points)?;
        write_checkpoint(&data, Checkpoint::LogStarts, &of(|marks| marks.log_start))?;
        let compacted = marks.iter().filter_map(|(of, marks)| Some((of.clone(), marks.cleaner_offset?))).collect();
        write_checkpoint(&data, Checkpoint::CleanerOffsets, &compacted)?;
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        data.close_clean(epoch.map_or(-1, |epoch| epoch.0)).map_err(|error| ShutdownError::Directory(error.to_string()))
    }

    /// Lets go of everything as it is, as the end of the process would. Waits for commands in progress.
    pub(crate) fn abandon(&self) {
        for hosted in self.all() {
            drop(hosted.take());
        }
        self.hosted.write().unwrap_or_else(PoisonError::into_inner).clear();
        drop(self.data_mut().take());
    }

    /// What the logs of a topic that is configured like this share.
    fn options(&self, topic: &TopicConfig) -> Arc<LogOptions> {
        let mut last = self.last_options.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, options)) = last.as_ref().filter(|(of, _)| of == topic) {
            return Arc::clone(options);
        }
        let options = Arc::new(topic_options::log_options(&self.running(), topic, &self.shared_options));
        *last = Some((topic.clone(), Arc::clone(&options)));
        options
    }

    fn replica_config(&self, topic: &TopicConfig, registration: Option<Registration>) -> ReplicaConfig {
        let epoch = match registration {
            Some(Registration::Registered(epoch)) => epoch,
            _ => BrokerEpoch(-1),
        };
        topic_options::replica_config(&self.services.config, topic, epoch)
    }

    fn set_offline(&self, of: &TopicPartition, is: bool) {
        let mut offline = self.offline.write().unwrap_or_else(PoisonError::into_inner);
        if is {
            offline.insert(of.clone());
        } else {
            offline.remove(of);
        }
    }

    fn me(&self) -> BrokerId {
        self.services.config.broker_id
    }

    fn data(&self) -> RwLockReadGuard<'_, Option<DataDir>> {
        self.services.data.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for whoever is working in the directory.
    fn data_mut(&self) -> RwLockWriteGuard<'_, Option<DataDir>> {
        self.services.data.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who lives, for one partition: a broker whose log of it has failed does not, nor one whose replica is to go by now.
fn live_for(
    image: &MetadataImage,
    live: &Arc<BTreeMap<BrokerId, BrokerEpoch>>,
    topic: TopicId,
    partition: i32,
) -> Arc<BTreeMap<BrokerId, BrokerEpoch>> {
    let failed = live.keys().any(|id| image.offline.contains(&(topic, partition, *id)));
    let known = image.topic_by_id(topic).and_then(|topic| topic.partition(partition));
    if failed || known.is_some_and(|partition| partition.reassignment.is_under_way()) {
        Arc::new(image.staying_with_logs(topic, partition))
    } else {
        Arc::clone(live)
    }
}

/// Tells a partition whether this broker is registered. A new life means that the one before has ended, even if nobody
/// saw it end.
fn tell_registration(hosted: &Hosted, before: Option<Registration>, now: Registration) {
    match now {
        Registration::Registered(epoch) => {
            if matches!(before, Some(Registration::Registered(_))) {
                hosted.submit(Command::SessionLost);
            }
            hosted.submit(Command::Registered(epoch));
        }
        Registration::Unregistered => {
            hosted.submit(Command::SessionLost);
        }
    }
}

/// The root's checkpoints, which Kafka reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checkpoint {
    RecoveryPoints,
    LogStarts,
    HighWatermarks,
    CleanerOffsets,
}

fn write_checkpoint(
    data: &DataDir,
    which: Checkpoint,
    offsets: &BTreeMap<TopicPartition, Offset>,
) -> Result<(), ShutdownError> {
    let written = match which {
        Checkpoint::RecoveryPoints => data.write_recovery_points(offsets),
        Checkpoint::LogStarts => data.write_log_starts(offsets),
        Checkpoint::HighWatermarks => data.write_high_watermarks(offsets),
        Checkpoint::CleanerOffsets => data.write_cleaner_offsets(offsets),
    };
    written.map_err(|error| ShutdownError::Directory(error.to_string()))
}

/// Why a stop was not clean. The next start recovers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// A log could not be flushed or closed.
    #[error("cannot close the log of {partition} in order: {cause}; the next start recovers it")]
    Log {
        /// The partition.
        partition: TopicPartition,
        /// What happened.
        cause: String,
    },
    /// The system did not let it finish.
    #[error("the stop was interrupted; the next start recovers the logs")]
    Interrupted,
    /// A checkpoint or the marker could not be written.
    #[error("cannot write to the data directory: {0}; the next start recovers its logs")]
    Directory(String),
}
