//! A ZooKeeper ensemble as coordination store.
//!
//! The client library keeps one session over its connections, but it calls a session expired when it was cut off for
//! longer than the timeout by its own clock. Nobody need step down for that (the servers may be down, and with them
//! whoever could end the session), so a keeper asks the servers whether the session is still there before it believes
//! it, and takes the same session up again if it is.
//!
//! Requests go out when they are called and not when their future is first awaited: a watch is on its way before the
//! read that follows it. While there is no connection they fail at once, so that nothing piles up.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use zookeeper_client::{
    Acls, Client, Connector, CreateMode, Error, EventType, MultiWriteError, MultiWriteResult, OneshotWatcher,
    SessionInfo, SessionState as ClientState, Stat,
};

use super::{
    BoxFuture, CommitCause, CommitError, Coordination, CoordinationError, Node, Op, OpDone, SessionState, Watch,
};

/// Between two attempts to reach the ensemble.
const BACKOFF: Duration = Duration::from_millis(100);
/// How long a session's owner waits for the ensemble to end it. Else it expires in its own time.
const GOODBYE: Duration = Duration::from_secs(2);
/// A commit that is larger is refused here: the server would close the connection (`jute.maxbuffer`, 1 MiB).
const COMMIT_BYTES_MAX: usize = 1024 * 1024 - 4096;
/// What the wire adds to a step besides its paths and value, and more.
const STEP_BYTES: usize = 64;
/// The server takes this for a check that the node is there.
const ANY_VERSION: i32 = -1;
/// No node has this version, and the server answers as for any other that does not fit.
const NO_VERSION: i32 = i32::MAX;

/// Why an ensemble could not be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It does not answer, or refuses.
    #[error("cannot reach ZooKeeper at {servers}: {problem}; check zookeeper.connect and that it runs")]
    Unreachable {
        /// `zookeeper.connect` without the directory at its end.
        servers: String,
        /// What went wrong.
        problem: String,
    },
    /// The setting is no connection string.
    #[error("zookeeper.connect={setting} is no list host:port,host:port with an optional /directory at its end")]
    Setting {
        /// The setting.
        setting: String,
    },
}

/// A session with an ensemble, kept alive and opened anew after an expiry by a task of its own.
#[derive(Debug)]
pub struct ZooKeeperStore {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

struct Shared {
    servers: String,
    chroot: String,
    timeout: Duration,
    /// `None` while there is no session, and for good once it was closed.
    client: Mutex<Option<Arc<Client>>>,
    state: watch::Sender<SessionState>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("servers", &self.servers).field("state", &*self.state.borrow()).finish()
    }
}

impl Drop for ZooKeeperStore {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl ZooKeeperStore {
    /// Opens a session that expires once the ensemble has heard nothing for `timeout_ms`, within the bounds that its
    /// servers set. `setting` is Kafka's `zookeeper.connect`; the directory at its end, if any, is made.
    ///
    /// # Errors
    /// The setting is malformed, or no server answered within `timeout_ms`.
    pub async fn connect(setting: &str, timeout_ms: u64) -> Result<Self, ConnectError> {
        Self::connect_within(setting, timeout_ms, timeout_ms).await
    }

    /// The same, with another time to wait for the first answer.
    ///
    /// # Errors
    /// The setting is malformed, or no server answered within `wait_ms`.
    pub async fn connect_within(setting: &str, timeout_ms: u64, wait_ms: u64) -> Result<Self, ConnectError> {
        let (servers, chroot) = split_setting(setting)?;
        let shared = Arc::new(Shared {
            servers,
            chroot,
            timeout: Duration::from_millis(timeout_ms.max(1)),
            client: Mutex::new(None),
            state: watch::Sender::new(SessionState::Disconnected),
        });
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        let mut problem = format!("no answer within {wait_ms} ms");
        let client = loop {
            match tokio::time::timeout_at(deadline, shared.open(None)).await {
                Ok(Ok(client)) => break client,
                Ok(Err(error)) => problem = error.to_string(),
                Err(_) => return Err(ConnectError::Unreachable { servers: shared.servers.clone(), problem }),
            }
            tokio::time::sleep(BACKOFF).await;
        };
        shared.adopt(client);
        let keeper = tokio::spawn(keep(Arc::clone(&shared))).abort_handle();
        Ok(Self { shared, keeper })
    }
}

/// Whether `setting` is a `zookeeper.connect` that servers could stand behind.
///
/// # Errors
/// It is not.
pub fn check_connect(setting: &str) -> Result<(), ConnectError> {
    split_setting(setting).map(|_| ())
}

fn split_setting(setting: &str) -> Result<(String, String), ConnectError> {
    let bad = || ConnectError::Setting { setting: setting.to_owned() };
    let (servers, chroot) = match setting.trim().split_once('/') {
        Some((servers, path)) => (servers, format!("/{}", path.trim_end_matches('/'))),
        None => (setting.trim(), String::new()),
    };
    let servers: Vec<&str> = servers.split(',').map(str::trim).collect();
    let is_server = |server: &&str| {
        server.rsplit_once(':').is_none_or(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            && !server.is_empty()
    };
    let chroot = if chroot == "/" { String::new() } else { chroot };
    let parts_fit = chroot.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
    if !servers.iter().all(is_server) || !parts_fit {
        return Err(bad());
    }
    Ok((servers.join(","), chroot))
}

/// Follows the session, takes it up again when only the client gave it up, and opens the next one when it expired.
async fn keep(shared: Arc<Shared>) {
    loop {
        let Some(client) = shared.client().clone() else { return };
        let (id, info) = (client.session_id().0, client.session().clone());
        let mut states = client.state_watcher();
        let mut state = client.state();
        drop(client);
        while !state.is_terminated() {
            shared.show(match state {
                ClientState::Disconnected => SessionState::Disconnected,
                _ => SessionState::Live(id),
            });
            state = states.changed().await;
        }
        shared.show(SessionState::Disconnected);
        let mut session = Some(info);
        let client = loop {
            match shared.open(session.clone()).await {
                Ok(client) => break client,
                Err(Error::SessionExpired) if session.is_some() => {
                    session = None;
                    shared.show(SessionState::Expired);
                    tracing::warn!(session = format!("{id:#x}"), "the session with ZooKeeper expired");
                }
                Err(error) => {
                    tracing::debug!(%error, "ZooKeeper does not answer");
                    tokio::time::sleep(BACKOFF).await;
                }
            }
        };
        if !shared.adopt(client) {
            return;
        }
    }
}

impl Shared {
    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client in a new session, or in `session` if that is still there.
    async fn open(&self, session: Option<SessionInfo>) -> Result<Client, Error> {
        let taken_up = session.is_some();
        // Detached: a client that is dropped says nothing, as a killed process does.
        let mut client = self.connector(session).with_detached().connect(&self.servers).await?;
        if taken_up {
            // The server may be another one, and behind what this session has seen.
            client.sync("/").await?;
        }
        if !self.chroot.is_empty() {
            client.mkdir(&self.chroot, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
            client = client.chroot(self.chroot.clone()).map_err(|_| Error::BadArguments(&"chroot"))?;
        }
        Ok(client)
    }

    fn connector(&self, session: Option<SessionInfo>) -> Connector {
        let connector = Client::connector().with_session_timeout(self.timeout);
        match session {
            Some(session) => connector.with_session(session),
            None => connector,
        }
    }

    /// Works with this client from now on, unless the session was closed meanwhile.
    fn adopt(&self, client: Client) -> bool {
        let mut current = self.client();
        if *self.state.borrow() == SessionState::Closed {
            return false;
        }
        let id = client.session_id().0;
        *current = Some(Arc::new(client));
        self.state.send_replace(SessionState::Live(id));
        true
    }

    fn show(&self, state: SessionState) {
        let shown = self.state.send_if_modified(|known| {
            let differs = *known != state && *known != SessionState::Closed;
            if differs {
                *known = state;
            }
            differs
        });
        match state {
            SessionState::Disconnected if shown => {
                tracing::warn!(
                    servers = self.servers,
                    "no connection to ZooKeeper: leaders stay who they are meanwhile"
                );
            }
            SessionState::Live(_) if shown => tracing::info!(servers = self.servers, "connected to ZooKeeper again"),
            _ => {}
        }
    }

    /// The client, if it has a connection.
    fn connected(&self) -> Result<Arc<Client>, CoordinationError> {
        if *self.state.borrow() == SessionState::Expired {
            return Err(CoordinationError::SessionLost);
        }
        let client = self.client().clone().ok_or(CoordinationError::Unavailable)?;
        match client.state() {
            ClientState::SyncConnected => Ok(client),
            _ => Err(CoordinationError::Unavailable),
        }
    }

    /// What a request without an answer means. Only the keeper says that a session is over.
    fn unanswered(&self, session: i64) -> CoordinationError {
        match *self.state.borrow() {
            SessionState::Expired => CoordinationError::SessionLost,
            SessionState::Live(id) if id != session => CoordinationError::SessionLost,
            _ => CoordinationError::Unavailable,
        }
    }

    /// Waits until it is known whether the session lives on. If so, something may have changed unseen.
    async fn until_known(state: &mut watch::Receiver<SessionState>, session: i64) -> Result<(), CoordinationError> {
        loop {
            match *state.borrow_and_update() {
                SessionState::Live(id) if id == session => return Ok(()),
                SessionState::Live(_) | SessionState::Expired => return Err(CoordinationError::SessionLost),
                SessionState::Closed => return Err(CoordinationError::Unavailable),
                SessionState::Disconnected => {}
            }
            if state.changed().await.is_err() {
                return Err(CoordinationError::Unavailable);
            }
        }
    }
}

/// Polls once, which sends the request. Whoever awaits it later brings the waker that counts.
fn begun<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    let mut future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Box::pin(std::future::ready(value)),
        Poll::Pending => future,
    }
}

impl ZooKeeperStore {
    /// Sends a request now. It fails when there is no answer for as long as a session lasts.
    fn ask<T, F>(&self, request: impl FnOnce(Arc<Client>) -> F) -> BoxFuture<'static, Result<T, CoordinationError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let client = match self.shared.connected() {
            Ok(client) => client,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let session = client.session_id().0;
        let answer = begun(request(client));
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            match tokio::time::timeout(shared.timeout, answer).await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(_)) | Err(_) => Err(shared.unanswered(session)),
            }
        })
    }
}

impl Coordination for ZooKeeperStore {
    fn read(&self, path: &str) -> BoxFuture<'_, Result<Option<Node>, CoordinationError>> {
        let path = path.to_owned();
        self.ask(|client| async move {
            match client.get_data(&path).await {
                Ok((data, stat)) => Ok(Some(Node {
                    data: Bytes::from(data),
                    version: i64::from(stat.version),
                    created: stat.czxid,
                    ephemeral: stat.ephemeral_owner != 0,
                })),
                Err(Error::NoNode | Error::BadArguments(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn children(&self, path: &str) -> BoxFuture<'_, Result<Vec<String>, CoordinationError>> {
        let path = path.to_owned();
        self.ask(|client| async move {
            match client.list_children(&path).await {
                Ok(mut names) => {
                    names.sort_unstable();
                    Ok(names)
                }
                Err(Error::NoNode | Error::BadArguments(_)) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        })
    }

    fn watch(&self, path: &str, kind: Watch) -> BoxFuture<'static, Result<(), CoordinationError>> {
        let client = match self.shared.connected() {
            Ok(client) => client,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let session = client.session_id().0;
        let stat = begun({
            let (client, path) = (Arc::clone(&client), path.to_owned());
            async move { client.check_and_watch_stat(&path).await }
        });
        let names = (kind == Watch::Children).then(|| {
            let path = path.to_owned();
            begun(async move { client.list_and_watch_children(&path).await })
        });
        let mut state = self.shared.state.subscribe();
        Box::pin(async move {
            let change = async {
                match placed(stat, names).await {
                    Ok(Some(watcher)) => watcher.changed().await.event_type != EventType::Session,
                    // It changed while the watch was put in place.
                    Ok(None) => true,
                    Err(_) => false,
                }
            };
            let over = async {
                let mut state = state.clone();
                while !is_over(*state.borrow_and_update(), session) && state.changed().await.is_ok() {}
            };
            tokio::select! {
                seen = change => if seen { return Ok(()) },
                () = over => {}
            }
            // A moment, or who is told of a change where nothing can be read would ask again and again.
            tokio::time::sleep(BACKOFF).await;
            // The watch was lost with the connection, or never came into place.
            Shared::until_known(&mut state, session).await
        })
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<OpDone>, CommitError>> {
        if let Err(refused) = check_size(&ops, self.shared.chroot.len()) {
            return Box::pin(std::future::ready(Err(refused)));
        }
        let refused = Arc::new(Mutex::new(None));
        let verdict = Arc::clone(&refused);
        let answer = self.ask(|client| async move {
            match carry_out(&client, &ops).await {
                Ok(done) => Ok(done),
                Err(MultiWriteError::OperationFailed { index, source }) => {
                    let cause = cause(&source);
                    *verdict.lock().unwrap_or_else(PoisonError::into_inner) = cause.map(|cause| (index, cause));
                    Err(source)
                }
                Err(MultiWriteError::RequestFailed { source }) => Err(source),
            }
        });
        Box::pin(async move {
            answer.await.map_err(|error| {
                let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                match (refused, error) {
                    (Some((at, cause)), _) => CommitError { at, cause },
                    (None, CoordinationError::SessionLost) => CommitError { at: 0, cause: CommitCause::SessionLost },
                    (None, CoordinationError::Unavailable) => CommitError { at: 0, cause: CommitCause::Unavailable },
                }
            })
        })
    }

    fn fits(&self, ops: &[Op]) -> bool {
        check_size(ops, self.shared.chroot.len()).is_ok()
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.shared.state.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let client = self.shared.client().take();
        self.keeper.abort();
        Box::pin(async move {
            if let Some(client) = client {
                let session = client.session().clone();
                drop(client);
                let goodbye = async {
                    // Only a client that is not detached ends its session when it is dropped.
                    let last = self.shared.connector(Some(session)).connect(&self.shared.servers).await?;
                    let mut states = last.state_watcher();
                    drop(last);
                    while !states.state().is_terminated() {
                        if states.changed().await.is_terminated() {
                            break;
                        }
                    }
                    Ok::<_, Error>(())
                };
                // If it did not take, the session expires: nobody keeps it alive any more.
                _ = tokio::time::timeout(self.shared.timeout.min(GOODBYE), goodbye).await;
            }
            self.shared.state.send_replace(SessionState::Closed);
        })
    }

    fn abandon(&self) {
        self.keeper.abort();
        self.shared.client().take();
        self.shared.state.send_replace(SessionState::Closed);
    }
}

fn is_over(state: SessionState, session: i64) -> bool {
    match state {
        SessionState::Live(id) => id != session,
        SessionState::Expired | SessionState::Closed => true,
        SessionState::Disconnected => false,
    }
}

type Placed<T> = BoxFuture<'static, Result<(T, OneshotWatcher), Error>>;

/// The watcher that tells of the next change, or none if there was one already.
async fn placed(
    stat: Placed<Option<Stat>>,
    names: Option<Placed<Vec<String>>>,
) -> Result<Option<OneshotWatcher>, Error> {
    let (stat, watcher) = stat.await?;
    let Some(names) = names else { return Ok(Some(watcher)) };
    match names.await {
        Ok((_, watcher)) => Ok(Some(watcher)),
        // A node that is not there has no children to watch: the first sign is that it is made.
        Err(Error::NoNode) => Ok(stat.is_none().then_some(watcher)),
        Err(error) => Err(error),
    }
}

fn check_size(ops: &[Op], chroot_bytes: usize) -> Result<(), CommitError> {
    let mut total = 0;
    for (at, op) in ops.iter().enumerate() {
        let (path, data) = match op {
            Op::Check { path, .. } | Op::Exists { path } | Op::Delete { path, .. } => (path, 0),
            Op::Create { path, data } | Op::CreateEphemeral { path, data } | Op::Set { path, data, .. } => {
                (path, data.len())
            }
        };
        total += chroot_bytes + path.len() + data + STEP_BYTES;
        let changes = !matches!(op, Op::Check { .. } | Op::Exists { .. });
        if path == "/" && changes {
            return Err(CommitError { at, cause: CommitCause::Invalid });
        }
        if total > COMMIT_BYTES_MAX {
            return Err(CommitError { at, cause: CommitCause::TooLarge });
        }
    }
    Ok(())
}

/// ZooKeeper takes a negative version for any.
fn wire_version(version: i64) -> i32 {
    i32::try_from(version).ok().filter(|version| *version >= 0).unwrap_or(NO_VERSION)
}

async fn carry_out(client: &Client, ops: &[Op]) -> Result<Vec<OpDone>, MultiWriteError> {
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let mut writer = client.new_multi_writer();
    for (index, op) in ops.iter().enumerate() {
        let added = match op {
            Op::Check { path, version } => writer.add_check_version(path, wire_version(*version)),
            Op::Exists { path } => writer.add_check_version(path, ANY_VERSION),
            Op::Create { path, data } => writer.add_create(path, data, &persistent),
            Op::CreateEphemeral { path, data } => writer.add_create(path, data, &ephemeral),
            Op::Set { path, data, version } => writer.add_set_data(path, data, version.map(wire_version)),
            Op::Delete { path, version } => writer.add_delete(path, version.map(wire_version)),
        };
        added.map_err(|source| MultiWriteError::OperationFailed { index, source })?;
    }
    let results = writer.commit().await?;
    let mut done = Vec::with_capacity(ops.len());
    for (op, result) in ops.iter().zip(results) {
        done.push(match (op, result) {
            (Op::CreateEphemeral { path, .. }, MultiWriteResult::Create { stat, .. }) if stat.is_invalid() => {
                // Servers before 3.9 leave the creation number out, and a registration's is the broker's epoch.
                let stat = client.check_stat(path).await?;
                let ours = stat.filter(|stat| stat.ephemeral_owner == client.session_id().0);
                let stat = ours.ok_or(Error::ConnectionLoss)?;
                OpDone { version: i64::from(stat.version), created: stat.czxid }
            }
            (_, MultiWriteResult::Create { stat, .. }) => OpDone { version: 0, created: stat.czxid.max(0) },
            (_, MultiWriteResult::SetData { stat }) => OpDone { version: i64::from(stat.version), created: stat.czxid },
            (Op::Check { version, .. } | Op::Delete { version: Some(version), .. }, _) => {
                OpDone { version: *version, created: 0 }
            }
            _ => OpDone { version: 0, created: 0 },
        });
    }
    Ok(done)
}

/// What was wrong with a step; `None` if that is nothing a caller can do anything about.
fn cause(error: &Error) -> Option<CommitCause> {
    match error {
        Error::NodeExists => Some(CommitCause::Exists),
        Error::NoNode => Some(CommitCause::Missing),
        Error::BadVersion => Some(CommitCause::Version),
        Error::NotEmpty => Some(CommitCause::NotEmpty),
        Error::NoChildrenForEphemerals | Error::BadArguments(_) => Some(CommitCause::Invalid),
        error => {
            tracing::warn!(%error, "ZooKeeper refused a commit");
            None
        }
    }
}
