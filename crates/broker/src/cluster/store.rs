//! Reading what is in the store as what it means.

use highwater_replication::{PartitionState, Versioned};
use highwater_storage::TopicPartition;

use super::znodes::{self, BadNode, TopicNode};
use super::{CommitCause, CommitError, Coordination, Node};

/// The store did not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The session has ended.
    #[error("the session with the coordination store has ended")]
    SessionLost,
    /// It does not answer, or cannot write.
    #[error("the coordination store is not available")]
    Unavailable,
    /// A node in it cannot be understood.
    #[error(transparent)]
    BadNode(#[from] BadNode),
    /// A commit that should have worked was refused.
    #[error("the coordination store refused a commit: {0}")]
    Refused(CommitError),
}

impl From<CommitError> for StoreFailure {
    fn from(error: CommitError) -> Self {
        match error.cause {
            CommitCause::SessionLost => Self::SessionLost,
            CommitCause::Unavailable => Self::Unavailable,
            _ => Self::Refused(error),
        }
    }
}

pub(super) async fn read(store: &dyn Coordination, path: &str) -> Result<Option<Node>, StoreFailure> {
    Ok(store.read(path).await?)
}

/// A topic and the version of its node.
pub(super) async fn read_topic(store: &dyn Coordination, name: &str) -> Result<Option<(TopicNode, i64)>, StoreFailure> {
    match read(store, &znodes::topic_path(name)).await? {
        Some(node) => Ok(Some((znodes::parse_topic(name, &node.data)?, node.version))),
        None => Ok(None),
    }
}

/// A partition's state.
pub(super) async fn read_versioned_state(
    store: &dyn Coordination,
    of: &TopicPartition,
) -> Result<Option<Versioned<PartitionState>>, StoreFailure> {
    match read(store, &znodes::state_path(&of.topic, of.partition)).await? {
        Some(node) => {
            let value = znodes::parse_state(&of.topic, of.partition, &node.data)?;
            Ok(Some(Versioned { value, version: node.version }))
        }
        None => Ok(None),
    }
}
