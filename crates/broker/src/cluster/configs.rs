//! Settings of topics, brokers, groups and clients, which any broker may change: each is a node, written by compare-and-set.

use std::collections::BTreeMap;

use super::store::{read, read_topic};
use super::znodes;
use super::{AdminError, ClusterHandle, CommitCause, Intent, MetadataImage, Op, StoreFailure};

/// A change of settings: what there is to what there is to be.
pub(crate) type Change<'a> =
    dyn Fn(&BTreeMap<String, String>) -> Result<BTreeMap<String, String>, AdminError> + Send + Sync + 'a;

/// How long a change that was made is waited for in this broker's own image.
const SEEN_WITHIN_MS: u64 = 5_000;

/// What beside topics can be configured while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// Brokers, by number.
    Broker,
    /// Consumer groups.
    Group,
    /// Subscriptions of clients' metrics.
    ClientMetrics,
    /// Clients by their id: quotas.
    Client,
    /// Users: quotas, and credentials.
    User,
    /// Users with one client id each: quotas.
    UserClient,
    /// Addresses: quotas.
    Ip,
}

impl ConfigKind {
    pub(super) fn directory(self) -> &'static str {
        match self {
            Self::Broker => "brokers",
            Self::Group => "groups",
            Self::ClientMetrics => "client-metrics",
            Self::Client => "clients",
            Self::User => "users",
            Self::UserClient => "user-clients",
            Self::Ip => "ips",
        }
    }
}

impl ClusterHandle {
    /// The settings of one, or of all that have none of their own; empty if there are none.
    ///
    /// # Errors
    /// The store does not answer, or holds what cannot be understood.
    pub async fn config(&self, kind: ConfigKind, name: Option<&str>) -> Result<BTreeMap<String, String>, StoreFailure> {
        let path = znodes::config_path(kind, name);
        match read(&*self.shared.store, &path).await? {
            Some(node) => Ok(znodes::parse_config_at(&path, &node.data)?),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Whoever of a kind has settings, with them; without a name those of all others.
    ///
    /// # Errors
    /// As [`Self::config`].
    pub async fn configs(
        &self,
        kind: ConfigKind,
    ) -> Result<BTreeMap<Option<String>, BTreeMap<String, String>>, StoreFailure> {
        let mut all = BTreeMap::new();
        for node in self.shared.store.children(&format!("/config/{}", kind.directory())).await? {
            let name = znodes::parse_config_name(&node)?;
            let config = self.config(kind, name.as_deref()).await?;
            // A node stays when its last setting goes.
            if !config.is_empty() {
                all.insert(name, config);
            }
        }
        Ok(all)
    }

    /// Changes the settings of one, or of all that have none of their own. A change that contradicts what somebody else has
    /// just written is made again, on that.
    ///
    /// # Errors
    /// The change itself is refused, or the store fails.
    pub(crate) async fn change_config(
        &self,
        kind: ConfigKind,
        name: Option<&str>,
        intent: Intent,
        change: &Change<'_>,
    ) -> Result<(), AdminError> {
        let path = znodes::config_path(kind, name);
        let after = loop {
            let Some((after, write)) = self.changed(&path, intent, change).await? else { return Ok(()) };
            if self.write(vec![write]).await? {
                break after;
            }
        };
        if kind == ConfigKind::Broker {
            let is_own = name == Some(self.id().to_string().as_str());
            self.see(|image| match name {
                None => image.broker_defaults == after,
                Some(_) => !is_own || image.broker_config == after,
            })
            .await;
        }
        Ok(())
    }

    /// Changes the settings of a topic, which each broker that holds a replica acts on when it sees them.
    ///
    /// # Errors
    /// There is no such topic, the change itself is refused, or the store fails.
    pub(crate) async fn change_topic_config(
        &self,
        topic: &str,
        intent: Intent,
        change: &Change<'_>,
    ) -> Result<(), AdminError> {
        let path = znodes::topic_config_path(topic);
        let after = loop {
            let (_, version) = read_topic(&*self.shared.store, topic).await?.ok_or(AdminError::UnknownTopic)?;
            let Some((after, write)) = self.changed(&path, intent, change).await? else { return Ok(()) };
            // Of a topic that is deleted meanwhile no settings are left behind.
            let there = Op::Check { path: znodes::topic_path(topic), version };
            if self.write(vec![there, write]).await? {
                break after;
            }
        };
        self.see(|image| image.topic(topic).is_none_or(|topic| topic.config == after)).await;
        Ok(())
    }

    /// What a node holds after a change, and the write of that; nothing where nothing is to be written.
    async fn changed(
        &self,
        path: &str,
        intent: Intent,
        change: &Change<'_>,
    ) -> Result<Option<(BTreeMap<String, String>, Op)>, AdminError> {
        let node = read(&*self.shared.store, path).await?;
        let before = match &node {
            Some(node) => znodes::parse_config_at(path, &node.data).map_err(StoreFailure::from)?,
            None => BTreeMap::new(),
        };
        let after = change(&before)?;
        if intent == Intent::Validate || after == before {
            return Ok(None);
        }
        let (path, data) = (path.to_owned(), znodes::encode_config(&after));
        // Nodes of settings are not removed while whose they are is there: one that is made anew could have the version of
        // the one that was read.
        let write = match node {
            Some(node) => Op::Set { path, data, version: Some(node.version) },
            None => Op::Create { path, data },
        };
        Ok(Some((after, write)))
    }

    /// Whether it was written; otherwise somebody else was first.
    async fn write(&self, ops: Vec<Op>) -> Result<bool, StoreFailure> {
        match self.shared.store.commit(ops).await {
            Ok(_) => Ok(true),
            Err(error) => match error.cause {
                CommitCause::Version | CommitCause::Exists | CommitCause::Missing => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    /// Waits until this broker sees a change that was made, so that who asks it next is told of it. It may have been
    /// overtaken by another, and is made in any case.
    async fn see(&self, seen: impl Fn(&MetadataImage) -> bool) {
        _ = self.wait_for_image(|image| seen(image), SEEN_WITHIN_MS).await;
    }
}
