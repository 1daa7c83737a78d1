//! Sockets: frames in, answers out in the order of their requests, everything bounded. Knows nothing of what is asked.

mod connection;
pub(crate) mod frame;
pub(crate) mod server;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

/// Why a connection is closed without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    /// For the log: what the peer did, or what happened to us.
    pub(crate) reason: String,
}

impl Close {
    /// Closes because of `reason`.
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// Counts connections from 1, for logs.
    pub(crate) id: u64,
    /// The client's address.
    pub(crate) peer: SocketAddr,
}

/// A whole response frame, length prefix included, as pieces that are written one after the other without being joined:
/// record bytes go from the buffer they were read into straight to the socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    /// The pieces, none of them empty.
    pub(crate) pieces: Vec<Bytes>,
}

impl Response {
    /// The bytes of all pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// An answer in the making. `Ok(None)` sends nothing (Produce with acks=0).
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Option<Response>, Close>> + Send>>;

/// A request that was taken from its connection.
pub(crate) struct Call {
    /// Its answer.
    pub(crate) answer: Answer,
    /// Start it at once, before the requests ahead of it are answered. What it does before its first `await` then
    /// happens in the order of the requests; answers keep that order in any case. Other calls start when they are
    /// the first in line, so that one connection holds at most one large response.
    pub(crate) eager: bool,
}

/// What a server serves.
pub(crate) trait Service: Send + Sync + 'static {
    /// Takes one request frame (without its length). Returns at once; the work is the answer's.
    fn call(self: &Arc<Self>, connection: &Arc<ConnectionInfo>, frame: Bytes) -> Call;
}
