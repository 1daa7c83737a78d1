//! What the hosted partitions of one broker use in common.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use highwater_replication::PublishedEnd;
use highwater_storage::data_dir::DataDir;
use highwater_storage::{LeaderEpoch, Offset, TopicId, TopicPartition};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::cluster::ClusterHandle;
use crate::config::BrokerConfig;
use crate::deadlines::Deadlines;
use crate::fetch_sessions::{FetchSessions, Limits};
use crate::fetcher::Fetchers;
use crate::healer::Rot;
use crate::history::{self, Histories, HistoryEntry};
use crate::readers::Readers;
use crate::sync::Syncs;
use crate::threads::Threads;

/// Threads, timers, the way to other brokers and to the store.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) config: Arc<BrokerConfig>,
    pub(crate) clock: Clock,
    /// Commands of clients that may wait at one partition.
    pub(crate) commands_max: usize,
    pub(crate) owners: Arc<Threads>,
    pub(crate) syncs: Syncs,
    pub(crate) readers: Readers,
    pub(crate) deadlines: Deadlines,
    pub(crate) fetchers: Fetchers,
    pub(crate) histories: Histories,
    fetch_sessions: Mutex<FetchSessions>,
    /// Whose logs are damaged.
    pub(crate) rot: Rot,
    /// A cut lowered what the root's checkpoints say: they are to be written soon, for Kafka reads only them.
    pub(crate) checkpoints_wanted: Notify,
    /// The data directory, from its opening until the broker stops.
    pub(crate) data: RwLock<Option<DataDir>>,
    /// Held from looking at high watermarks until they are recorded: what is recorded last is what was looked at last. No
    /// partition's state is locked when it is taken.
    pub(crate) recording: Mutex<()>,
    cluster: OnceLock<ClusterHandle>,
    runtime: Handle,
    /// `None` once they have ended: nothing is begun after that.
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Services {
    /// Nothing is running yet. To be called on a tokio runtime, which carries the tasks.
    pub(crate) fn new(config: BrokerConfig) -> Arc<Self> {
        let clock = Clock::start();
        let limits = Limits { slots: config.fetch_sessions_max, bytes: config.fetch_session_bytes_max };
        Arc::new(Self {
            clock,
            commands_max: config.queued_requests_max,
            owners: Arc::new(Threads::new("hw-owner", config.io_threads)),
            syncs: Syncs::new(),
            readers: Readers::new(config.background_threads, config.queued_response_bytes_max),
            deadlines: Deadlines::new(clock),
            fetchers: Fetchers::new(BTreeSet::new()),
            rot: Rot::default(),
            fetch_sessions: Mutex::new(FetchSessions::new(limits)),
            histories: Histories::default(),
            checkpoints_wanted: Notify::new(),
            data: RwLock::new(None),
            recording: Mutex::new(()),
            cluster: OnceLock::new(),
            runtime: Handle::current(),
            tasks: Mutex::new(Some(JoinSet::new())),
            config: Arc::new(config),
        })
    }

    /// The sessions of those who fetch here. To be held for a look-up, not over the partitions.
    pub(crate) fn fetch_sessions(&self) -> MutexGuard<'_, FetchSessions> {
        self.fetch_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster, once this broker has joined it.
    pub(crate) fn cluster(&self) -> Option<&ClusterHandle> {
        self.cluster.get()
    }

    /// This broker has joined the cluster.
    pub(crate) fn joined(&self, cluster: ClusterHandle) {
        // Joined once in its life; a second handle would be of the same cluster.
        let _ = self.cluster.set(cluster);
    }

    /// Runs a task that ends with the broker. From any thread. Dropped if the broker has ended already: the last
    /// commands of its partitions would leave tasks behind that nobody ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tasks) = tasks.as_mut() else { return };
        // Those that ended are let go here, so that the set stays as small as what runs.
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Tells the controller that this broker's replica has failed, so that another one leads.
    pub(crate) fn report_offline(self: &Arc<Self>, of: TopicPartition, topic_id: TopicId, leader_epoch: LeaderEpoch) {
        let Some(cluster) = self.cluster().cloned() else { return };
        // In the order in which it is found out; only the writing may wait.
        if cluster.note_offline(&of, topic_id, leader_epoch) {
            self.spawn(async move { cluster.announce_replicas().await });
        }
    }

    /// Tells the controller that this broker has a log again where it had told of a failed one.
    pub(crate) fn report_online(self: &Arc<Self>, of: &TopicPartition) {
        let Some(cluster) = self.cluster().cloned() else { return };
        if cluster.note_online(of) {
            self.spawn(async move { cluster.announce_replicas().await });
        }
    }

    /// Tells the controller how far the log of this broker's doubtful replica goes.
    pub(crate) fn publish_end(self: &Arc<Self>, of: &TopicPartition, topic_id: TopicId, end: PublishedEnd) {
        let Some(cluster) = self.cluster().cloned() else { return };
        // In the order in which the partition says it; only the writing may wait.
        cluster.note_end(of, topic_id, end);
        self.spawn(async move { cluster.publish_ends().await });
    }

    /// Writes down what happened to a partition, some time soon.
    pub(crate) fn note_history(self: &Arc<Self>, of: &TopicPartition, entry: &HistoryEntry) {
        self.histories.note(history::directory(&self.config.data_dir, of), self.config.broker_id, entry);
        let services = Arc::clone(self);
        self.syncs.detached(move || services.histories.write_next());
    }

    /// Records that a log was cut at `end`, unless the high watermark that is recorded for it lies no higher: records that
    /// come to lie between the two would count as committed after the next start. Waits for the disk.
    pub(crate) fn lower_high_watermark(&self, of: &TopicPartition, end: Offset) {
        let _recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let data = self.data.read().unwrap_or_else(PoisonError::into_inner);
        let Some(data) = data.as_ref().filter(|data| data.high_watermark(of).is_some_and(|known| known > end)) else {
            return;
        };
        if let Err(error) = data.write_high_watermarks(&BTreeMap::from([(of.clone(), end)])) {
            tracing::error!(partition = %of, %end, %error, "cannot record a lower high watermark");
        }
    }

    /// Ends all tasks, at their next `await`, and waits until they have.
    pub(crate) async fn end_tasks(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }

    /// Ends all tasks without waiting.
    pub(crate) fn abort_tasks(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tasks);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn tasks_end_with_the_broker_and_none_begins_after_it() {
        for waits in [true, false] {
            let services = Services::new(BrokerConfig::default());
            let begin = || {
                let (sender, receiver) = oneshot::channel::<()>();
                services.spawn(async move {
                    std::future::pending::<()>().await;
                    drop(sender);
                });
                receiver
            };
            let before = begin();
            if waits {
                services.end_tasks().await;
            } else {
                services.abort_tasks();
            }
            let after = begin();
            for receiver in [before, after] {
                let ended = tokio::time::timeout(std::time::Duration::from_secs(10), receiver);
                assert!(ended.await.expect("it ends").is_err());
            }
            // Nothing holds the services any more, least of all a task of theirs.
            services.end_tasks().await;
            assert_eq!(Arc::strong_count(&services), 1);
        }
    }
}
