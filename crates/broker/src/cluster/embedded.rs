//! A coordination store inside the process: one thread that owns the nodes, the sessions and the journal.
//!
//! ```text
//!  session ─┐                        ┌─ carry out in order ─ one write + one sync ─ answer all, fire watches ─┐
//!  session ─┼─► bounded queue ─► thread ◄─────────────────────── then end the sessions that fell silent ◄─────┘
//!  session ─┘
//! ```
//!
//! Every request passes through the one queue, so there is one order of events, nobody waits on a lock while the disk
//! syncs, and all commits that are waiting share a sync. Nothing that is not yet durable is ever answered.
//!
//! Sessions live in memory only: a store that is opened again has none, and with them went the ephemeral nodes.
//! Creation numbers go on where they were, since every commit is journalled, also one that left nothing to keep.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use highwater_storage::fs::Fs;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::journal::{Journal, WriteFailed};
use super::tree::{Changes, Effect, Tree, Undo};
use super::{
    BoxFuture, CommitCause, CommitError, Coordination, CoordinationError, Node, Op, OpDone, SessionState, StoreError,
    StoreReport, Watch,
};

/// Requests that may wait for the store's thread; more are answered "unavailable".
const QUEUE_LENGTH: usize = 4096;
/// Requests that share a sync at most.
const BATCH_LENGTH: usize = 1024;
/// Fewer watched places than this are not worth looking through.
const WATCHES_SWEPT_MIN: usize = 4096;
/// How long the thread sleeps at most while sessions are open.
const LOOK_AT_SESSIONS: Duration = Duration::from_millis(100);

/// The store. Cloning gives another handle to the same one; it stops when the last handle and session are gone.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    requests: Option<SyncSender<Request>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    sessions: AtomicI64,
}

impl Drop for Inner {
    /// The thread ends when the queue closes. Waiting for it means that whoever opens the same files next finds them
    /// at rest.
    fn drop(&mut self) {
        self.requests = None;
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic in there has been printed, and there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl EmbeddedStore {
    /// A store that keeps nothing: for tests, and for clusters that live as long as their process.
    pub fn in_memory() -> Self {
        Self::start(Tree::new(), None)
    }

    /// The store in `dir`, created if there is none. The caller holds the lock of the directory.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<(Self, StoreReport), StoreError> {
        let (journal, tree, report) = Journal::open(fs, dir)?;
        Ok((Self::start(tree, Some(journal)), report))
    }

    fn start(tree: Tree, journal: Option<Journal>) -> Self {
        let (requests, inbox) = sync_channel(QUEUE_LENGTH);
        let thread = std::thread::Builder::new()
            .name("highwater-coordination".to_owned())
            .spawn(move || Store::new(tree, journal).run(&inbox))
            .expect("the system can start a thread");
        let thread = Mutex::new(Some(thread));
        Self { inner: Arc::new(Inner { requests: Some(requests), thread, sessions: AtomicI64::new(1) }) }
    }

    /// Opens a session that expires once nothing was heard of it for `timeout_ms`. Must be called within a tokio runtime,
    /// on which a task of its own keeps it alive: a runtime that stops, or a handle that is dropped, lets it expire.
    pub fn session(&self, timeout_ms: u64) -> EmbeddedSession {
        self.session_beating(timeout_ms, timeout_ms / 4)
    }

    /// The same with a heartbeat every `heartbeat_ms`; at least two come within the timeout.
    pub fn session_beating(&self, timeout_ms: u64, heartbeat_ms: u64) -> EmbeddedSession {
        let timeout = Duration::from_millis(timeout_ms.max(1));
        let shared = Arc::new(SessionShared {
            store: self.inner.clone(),
            timeout,
            heartbeat: Duration::from_millis(heartbeat_ms.max(1)).min(timeout / 2),
            id: AtomicI64::new(0),
            state: watch::Sender::new(SessionState::Disconnected),
            closed: AtomicBool::new(false),
            paused: AtomicBool::new(false),
        });
        shared.open();
        let heart = tokio::spawn(beat(Arc::downgrade(&shared))).abort_handle();
        EmbeddedSession { shared, heart }
    }
}

/// One broker's session with an [`EmbeddedStore`].
#[derive(Debug)]
pub struct EmbeddedSession {
    shared: Arc<SessionShared>,
    heart: AbortHandle,
}

#[derive(Debug)]
struct SessionShared {
    store: Arc<Inner>,
    timeout: Duration,
    heartbeat: Duration,
    id: AtomicI64,
    state: watch::Sender<SessionState>,
    closed: AtomicBool,
    paused: AtomicBool,
}

impl Drop for EmbeddedSession {
    fn drop(&mut self) {
        self.heart.abort();
    }
}

/// Keeps a session alive, and opens the next one when it expired.
async fn beat(shared: std::sync::Weak<SessionShared>) {
    loop {
        let (pause, mut state) = match shared.upgrade() {
            Some(shared) if !shared.closed.load(Ordering::Acquire) => {
                let current = *shared.state.borrow();
                match current {
                    _ if shared.paused.load(Ordering::Acquire) => {}
                    SessionState::Live(id) => _ = shared.send(Request::Heartbeat { session: id }),
                    SessionState::Closed => return,
                    SessionState::Disconnected | SessionState::Expired => shared.open(),
                }
                (shared.heartbeat, shared.state.subscribe())
            }
            _ => return,
        };
        state.mark_unchanged();
        let expired = async {
            while state.changed().await.is_ok() {
                if *state.borrow_and_update() == SessionState::Expired {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        _ = tokio::time::timeout(pause, expired).await;
    }
}

impl SessionShared {
    fn open(&self) {
        let id = self.store.sessions.fetch_add(1, Ordering::Relaxed);
        self.id.store(id, Ordering::Release);
        let request = Request::Open { session: id, timeout: self.timeout, state: self.state.clone() };
        match self.send(request) {
            Ok(()) => _ = self.state.send_replace(SessionState::Live(id)),
            Err(Gone::Full) => _ = self.state.send_replace(SessionState::Disconnected),
            Err(Gone::Stopped) => _ = self.state.send_replace(SessionState::Closed),
        }
    }

    fn send(&self, request: Request) -> Result<(), Gone> {
        match self.store.requests.as_ref().map(|requests| requests.try_send(request)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => Err(Gone::Full),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(Gone::Stopped),
        }
    }

    fn session_id(&self) -> i64 {
        self.id.load(Ordering::Acquire)
    }
}

enum Gone {
    Full,
    Stopped,
}

impl EmbeddedSession {
    /// Stops the heart, or lets it beat again: what a broker goes through that loses touch with the store while it lives.
    pub fn pause_heart(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::Release);
    }

    fn ask<T: Send + 'static, E: Send + 'static>(
        &self,
        unavailable: E,
        request: impl FnOnce(i64, oneshot::Sender<Result<T, E>>) -> Request,
    ) -> BoxFuture<'static, Result<T, E>> {
        // Who has fallen silent says nothing more, also what was on its way to be said: the store must not learn of a
        // crash by the dying broker's own report.
        let silent = self.shared.closed.load(Ordering::Acquire);
        self.send(silent, unavailable, request)
    }

    fn send<T: Send + 'static, E: Send + 'static>(
        &self,
        silent: bool,
        unavailable: E,
        request: impl FnOnce(i64, oneshot::Sender<Result<T, E>>) -> Request,
    ) -> BoxFuture<'static, Result<T, E>> {
        let (answer, answered) = oneshot::channel();
        // Sent here and not when the future is polled: calls take effect in the order in which they are made.
        let request = request(self.shared.session_id(), answer);
        let sent = if silent { Err(Gone::Stopped) } else { self.shared.send(request) };
        Box::pin(async move {
            match sent {
                Ok(()) => answered.await.unwrap_or(Err(unavailable)),
                Err(_) => Err(unavailable),
            }
        })
    }
}

impl Coordination for EmbeddedSession {
    fn read(&self, path: &str) -> BoxFuture<'_, Result<Option<Node>, CoordinationError>> {
        let path = path.to_owned();
        self.ask(CoordinationError::Unavailable, |session, answer| Request::Read { session, path, answer })
    }

    fn children(&self, path: &str) -> BoxFuture<'_, Result<Vec<String>, CoordinationError>> {
        let path = path.to_owned();
        self.ask(CoordinationError::Unavailable, |session, answer| Request::Children { session, path, answer })
    }

    fn watch(&self, path: &str, kind: Watch) -> BoxFuture<'static, Result<(), CoordinationError>> {
        let path = path.to_owned();
        self.ask(CoordinationError::Unavailable, |session, answer| Request::Watch { session, path, kind, answer })
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<OpDone>, CommitError>> {
        self.ask(CommitError { at: 0, cause: CommitCause::Unavailable }, |session, answer| Request::Commit {
            session,
            ops,
            answer,
        })
    }

    fn fits(&self, _: &[Op]) -> bool {
        // A commit that takes a long time to journal takes a long time: there is no limit but that of each value.
        true
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.shared.state.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let silent = self.shared.closed.swap(true, Ordering::AcqRel);
        self.heart.abort();
        let closed = self.send(silent, (), |session, answer| Request::Close { session, answer });
        Box::pin(async move {
            // If the store did not take it, the session expires: nobody keeps it alive any more.
            _ = closed.await;
            self.shared.state.send_replace(SessionState::Closed);
        })
    }

    fn abandon(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.heart.abort();
        self.shared.state.send_replace(SessionState::Closed);
    }
}

type Answer<T, E = CoordinationError> = oneshot::Sender<Result<T, E>>;

enum Request {
    Open { session: i64, timeout: Duration, state: watch::Sender<SessionState> },
    Heartbeat { session: i64 },
    Close { session: i64, answer: Answer<(), ()> },
    Read { session: i64, path: String, answer: Answer<Option<Node>> },
    Children { session: i64, path: String, answer: Answer<Vec<String>> },
    Watch { session: i64, path: String, kind: Watch, answer: Answer<()> },
    Commit { session: i64, ops: Vec<Op>, answer: Answer<Vec<OpDone>, CommitError> },
}

/// An answer that goes out once everything it may tell of is durable.
enum Reply {
    Node(Answer<Option<Node>>, Result<Option<Node>, CoordinationError>),
    Names(Answer<Vec<String>>, Result<Vec<String>, CoordinationError>),
    Commit(Answer<Vec<OpDone>, CommitError>, Result<Vec<OpDone>, CommitError>),
}

impl Reply {
    /// A receiver that is gone has lost interest.
    fn send(self) {
        match self {
            Self::Node(answer, result) => _ = answer.send(result),
            Self::Names(answer, result) => _ = answer.send(result),
            Self::Commit(answer, result) => _ = answer.send(result),
        }
    }

    /// Says instead that the store could not write.
    fn fail(self) {
        match self {
            Self::Node(answer, _) => _ = answer.send(Err(CoordinationError::Unavailable)),
            Self::Names(answer, _) => _ = answer.send(Err(CoordinationError::Unavailable)),
            Self::Commit(answer, _) => {
                _ = answer.send(Err(CommitError { at: 0, cause: CommitCause::Unavailable }));
            }
        }
    }
}

struct Session {
    timeout: Duration,
    last_heard: Instant,
    state: watch::Sender<SessionState>,
}

/// The session that watches, and how to tell it.
type Waiting = (i64, Answer<()>);

/// What the thread owns.
struct Store {
    tree: Tree,
    journal: Option<Journal>,
    /// A sync failed: what is on disk is not known, so nothing is answered any more.
    fenced: bool,
    sessions: BTreeMap<i64, Session>,
    watches: BTreeMap<(String, Watch), Vec<Waiting>>,
    /// How many watched places there may be before those are looked for whose watchers have gone.
    sweep_at: usize,
    pending: Pending,
    last_look: Instant,
}

/// What has been carried out and is not durable yet.
#[derive(Default)]
struct Pending {
    commits: Vec<(i64, Vec<Effect>)>,
    undo: Vec<Undo>,
    fired: Vec<(String, Watch)>,
    replies: Vec<Reply>,
}

impl Store {
    fn new(tree: Tree, journal: Option<Journal>) -> Self {
        Self {
            tree,
            journal,
            fenced: false,
            sessions: BTreeMap::new(),
            watches: BTreeMap::new(),
            sweep_at: WATCHES_SWEPT_MIN,
            pending: Pending::default(),
            last_look: Instant::now(),
        }
    }

    fn run(mut self, inbox: &Receiver<Request>) {
        loop {
            let first = if self.sessions.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_timeout(LOOK_AT_SESSIONS)
            };
            match first {
                Ok(request) => {
                    self.handle(request, Instant::now());
                    for request in inbox.try_iter().take(BATCH_LENGTH) {
                        self.handle(request, Instant::now());
                    }
                    self.settle();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.expire(Instant::now());
        }
        for session in self.sessions.into_values() {
            session.state.send_replace(SessionState::Closed);
        }
    }

    fn handle(&mut self, request: Request, now: Instant) {
        match request {
            Request::Open { session, timeout, state } => {
                if self.sessions.is_empty() {
                    // Nobody looked while there were no sessions, which is no sign of a stopped process.
                    self.last_look = now;
                }
                self.sessions.insert(session, Session { timeout, last_heard: now, state });
            }
            Request::Heartbeat { session } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.last_heard = now;
                }
            }
            Request::Close { session, answer } => {
                // Taking commits back later must not bring back what this removes.
                self.settle();
                self.end_session(session);
                _ = answer.send(Ok(()));
            }
            Request::Read { session, path, answer } => {
                let result = self.admit(session).map(|()| self.tree.read(&path));
                self.pending.replies.push(Reply::Node(answer, result));
            }
            Request::Children { session, path, answer } => {
                let result = self.admit(session).map(|()| self.tree.children(&path));
                self.pending.replies.push(Reply::Names(answer, result));
            }
            Request::Watch { session, path, kind, answer } => match self.admit(session) {
                Ok(()) => {
                    let waiting = self.watches.entry((path, kind)).or_default();
                    waiting.retain(|(_, answer)| !answer.is_closed());
                    waiting.push((session, answer));
                    if self.watches.len() > self.sweep_at {
                        self.watches.retain(|_, waiting| waiting.iter().any(|(_, answer)| !answer.is_closed()));
                        self.sweep_at = (self.watches.len() * 2).max(WATCHES_SWEPT_MIN);
                    }
                }
                Err(error) => _ = answer.send(Err(error)),
            },
            Request::Commit { session, ops, answer } => {
                let result = self.commit(session, &ops);
                self.pending.replies.push(Reply::Commit(answer, result));
            }
        }
    }

    fn admit(&self, session: i64) -> Result<(), CoordinationError> {
        if self.fenced {
            Err(CoordinationError::Unavailable)
        } else if self.sessions.contains_key(&session) {
            Ok(())
        } else {
            Err(CoordinationError::SessionLost)
        }
    }

    fn commit(&mut self, session: i64, ops: &[Op]) -> Result<Vec<OpDone>, CommitError> {
        self.admit(session).map_err(|error| CommitError {
            at: 0,
            cause: match error {
                CoordinationError::SessionLost => CommitCause::SessionLost,
                CoordinationError::Unavailable => CommitCause::Unavailable,
            },
        })?;
        let mut changes = self.tree.commit(session, ops)?;
        self.pending.undo.push(changes.take_undo());
        note_fired(&changes, &mut self.pending.fired);
        self.pending.commits.push((changes.number, changes.effects));
        Ok(changes.done)
    }

    /// Makes everything carried out so far durable, then answers and fires; or takes it back.
    fn settle(&mut self) {
        let Pending { commits, undo, fired, replies } = std::mem::take(&mut self.pending);
        if let Some(journal) = self.journal.as_mut().filter(|_| !commits.is_empty()) {
            if let Err(failed) = journal.write(&commits) {
                let (WriteFailed::Refused(error) | WriteFailed::Fenced(error)) = &failed;
                self.fenced = matches!(failed, WriteFailed::Fenced(_));
                tracing::error!(%error, fenced = self.fenced, "cannot write the coordination journal");
                for undo in undo.into_iter().rev() {
                    self.tree.undo(undo);
                }
                replies.into_iter().for_each(Reply::fail);
                return;
            }
            if let Err(error) = journal.compact(&self.tree) {
                tracing::error!(%error, "cannot write the coordination snapshot");
                self.fenced = true;
            }
        }
        replies.into_iter().for_each(Reply::send);
        self.fire(fired);
    }

    fn fire(&mut self, fired: Vec<(String, Watch)>) {
        for key in fired {
            for (_, answer) in self.watches.remove(&key).unwrap_or_default() {
                _ = answer.send(Ok(()));
            }
        }
    }

    /// Ends the sessions that nothing was heard of for their timeout.
    fn expire(&mut self, now: Instant) {
        let unwatched = now.duration_since(self.last_look);
        self.last_look = now;
        if unwatched > LOOK_AT_SESSIONS * 5 {
            // This thread did not run (the process was stopped, the disk hung), so neither may have the owners of the
            // sessions: they are not to blame for the silence.
            for session in self.sessions.values_mut() {
                session.last_heard = (session.last_heard + unwatched).min(now);
            }
            return;
        }
        let silent: Vec<i64> = self
            .sessions
            .iter()
            .filter(|(_, session)| now.duration_since(session.last_heard) > session.timeout)
            .map(|(&id, _)| id)
            .collect();
        for id in silent {
            if let Some(session) = self.end_session(id) {
                session.state.send_if_modified(|state| {
                    let current = *state == SessionState::Live(id);
                    if current {
                        *state = SessionState::Expired;
                    }
                    current
                });
            }
        }
    }

    fn end_session(&mut self, id: i64) -> Option<Session> {
        let session = self.sessions.remove(&id);
        for waiting in self.watches.values_mut() {
            for (_, answer) in waiting.extract_if(.., |(owner, _)| *owner == id) {
                _ = answer.send(Err(CoordinationError::SessionLost));
            }
        }
        self.watches.retain(|_, waiting| !waiting.is_empty());
        let changes = self.tree.end_session(id);
        let mut fired = Vec::new();
        note_fired(&changes, &mut fired);
        self.fire(fired);
        session
    }
}

fn note_fired(changes: &Changes, fired: &mut Vec<(String, Watch)>) {
    for path in &changes.touched {
        fired.push((path.clone(), Watch::Data));
    }
    for path in &changes.families {
        fired.push((path.clone(), Watch::Children));
    }
}

#[cfg(test)]
mod tests;
