//! The cluster as one broker knows it: who is alive, who leads what, and the store in which all of them agree.
//!
//! The coordination store is the single source of truth and there is no second channel: brokers register in it,
//! the controller commits elections to it, leaders commit their in-sync replicas to it by compare-and-set, and
//! everybody watches. [`Coordination`] is what a broker needs of such a store; [`EmbeddedStore`] is the one that lives
//! inside the process, [`ZooKeeperStore`] an ensemble for brokers in processes of their own. Paths and values are Kafka's
//! znodes, kept in one place ([`znodes`]). A broker uses all of it through one [`ClusterHandle`].

pub mod znodes;

mod admin;
mod agent;
mod configs;
mod controller;
mod departure;
mod embedded;
mod handle;
mod image;
mod journal;
mod leadership;
mod membership;
mod producer_ids;
mod store;
mod tools;
mod tree;
mod zookeeper;

pub(crate) use admin::random_id;
pub use admin::{AdminError, CreatedTopic, Intent, NewTopic, TopicRef, check_name};
pub use configs::ConfigKind;
pub use embedded::{EmbeddedSession, EmbeddedStore};
pub use handle::{ClusterConfig, ClusterHandle, Endpoint, JoinError, LastStop, Registration};
pub use image::{BrokerInfo, MetadataImage, PartitionImage, TopicImage};
pub use journal::{JOURNAL_FILE, SNAPSHOT_FILE, StoreError, StoreReport};
pub use leadership::{FactorChange, Move};
pub use membership::FoundPartition;
pub use store::StoreFailure;
pub use zookeeper::{ConnectError, ZooKeeperStore, check_connect};

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tokio::sync::watch;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a broker needs of a coordination store: a small tree of nodes, atomic conditional commits, one-shot watches and
/// a session that the store ends when its owner falls silent.
///
/// A node's path is absolute, its parts separated by `/`; a node can be created only below an existing one. Each value of
/// this trait is *one* session at a time. When the store reports it expired, its ephemeral nodes are gone and its
/// watches have fired; the implementation then opens a new session by itself and shows that in [`Self::session`].
/// All operations of one session take effect in the order in which they were called.
pub trait Coordination: Send + Sync + fmt::Debug {
    /// The node at `path`, or `None` if there is none.
    fn read(&self, path: &str) -> BoxFuture<'_, Result<Option<Node>, CoordinationError>>;

    /// The names of the nodes right below `path`, sorted; empty if there is no such node.
    fn children(&self, path: &str) -> BoxFuture<'_, Result<Vec<String>, CoordinationError>>;

    /// Waits for the next change at `path`. The watch is in place when this returns, before the future is first polled:
    /// watch first, then read, and no change is missed. Resolves once, with an error if the session ends first.
    ///
    /// A change may be seen by the watch of a read that already returned it: after it fired, read again.
    fn watch(&self, path: &str, kind: Watch) -> BoxFuture<'static, Result<(), CoordinationError>>;

    /// Carries out all of `ops` in order, or none of them. A check or a version is compared with what the operations
    /// before it in the same commit have left. On success the answer has one entry for each operation.
    ///
    /// [`CommitCause::Unavailable`] leaves open whether it happened: read to find out.
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<OpDone>, CommitError>>;

    /// Whether a commit of this size can be carried out in one piece.
    fn fits(&self, ops: &[Op]) -> bool;

    /// How the session fares. A receiver sees only the latest state: another id than before means that the earlier
    /// session expired, even if [`SessionState::Expired`] itself went by unseen.
    fn session(&self) -> watch::Receiver<SessionState>;

    /// Ends the session now: its ephemeral nodes are removed. For a clean stop.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Stops keeping the session alive without saying so, as a killed process does: it expires after its timeout.
    fn abandon(&self);
}

/// A node and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its value.
    pub data: Bytes,
    /// Its compare-and-set version: grows with each write. Never negative. A node that was deleted and made again may
    /// have the same one as before.
    pub version: i64,
    /// The store's global creation number: a node created later, anywhere, has a higher one.
    pub created: i64,
    /// Whether it disappears with the session that made it.
    pub ephemeral: bool,
}

/// What to watch of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// The node itself: created, written, deleted.
    Data,
    /// The set of nodes right below it.
    Children,
}

/// One step of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Goes on only if the node has this version.
    Check {
        /// The node.
        path: String,
        /// The version it must have.
        version: i64,
    },
    /// Goes on only if there is such a node, whatever its version.
    Exists {
        /// The node.
        path: String,
    },
    /// Makes a node that outlives sessions.
    Create {
        /// Where; its parent must exist.
        path: String,
        /// Its value.
        data: Bytes,
    },
    /// Makes a node that disappears with this session. It can have no children.
    CreateEphemeral {
        /// Where; its parent must exist.
        path: String,
        /// Its value.
        data: Bytes,
    },
    /// Writes an existing node.
    Set {
        /// The node.
        path: String,
        /// Its new value.
        data: Bytes,
        /// The version it must have; `None` for any.
        version: Option<i64>,
    },
    /// Removes a node without children.
    Delete {
        /// The node.
        path: String,
        /// The version it must have; `None` for any.
        version: Option<i64>,
    },
}

/// What one step of a commit did. Of a check or a deletion a store need not say anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpDone {
    /// The node's version after the step.
    pub version: i64,
    /// The node's creation number; 0 if the store does not say, which it does for ephemeral nodes.
    pub created: i64,
}

/// Why nothing of a commit was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {at} of the commit: {cause}")]
pub struct CommitError {
    /// Which operation failed, from 0; 0 if none was looked at.
    pub at: usize,
    /// What was wrong with it.
    pub cause: CommitCause,
}

/// What was wrong with a step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitCause {
    /// The node to create exists.
    #[error("the node exists")]
    Exists,
    /// The node, or the parent of the one to create, does not exist.
    #[error("the node or its parent does not exist")]
    Missing,
    /// The node has another version.
    #[error("the node has another version")]
    Version,
    /// The node to delete has children.
    #[error("the node has children")]
    NotEmpty,
    /// No path, or a child of an ephemeral node.
    #[error("there can be no such node")]
    Invalid,
    /// The commit, or one of its values, is larger than the store takes in one piece.
    #[error("it is larger than the store takes in one piece")]
    TooLarge,
    /// The session has ended.
    #[error("the session has ended")]
    SessionLost,
    /// The store did not answer, or could not write: the commit may or may not have happened.
    #[error("the store is not available")]
    Unavailable,
}

/// Why a read or a watch gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// The session has ended.
    #[error("the session with the coordination store has ended")]
    SessionLost,
    /// The store does not answer.
    #[error("the coordination store is not available")]
    Unavailable,
}

/// How a session fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The store has it. The id is another one after each expiry.
    Live(i64),
    /// The store cannot be reached; whether the session lives is not known. Nobody need step down yet.
    Disconnected,
    /// The store said that it is over: ephemeral nodes are gone. A new one is being opened.
    Expired,
    /// [`Coordination::close`] or [`Coordination::abandon`] was called, or the store is gone for good.
    Closed,
}

/// Milliseconds since 1970, for the timestamps in nodes: for people to read, nothing is decided by them.
fn unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
