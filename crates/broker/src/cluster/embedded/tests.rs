use bytes::Bytes;

use super::*;

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), data: Bytes::new() }
}
fn ephemeral(path: &str) -> Op {
    Op::CreateEphemeral { path: path.into(), data: Bytes::new() }
}
fn set(path: &str, data: &str, version: Option<i64>) -> Op {
    Op::Set { path: path.into(), data: Bytes::copy_from_slice(data.as_bytes()), version }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it takes far less")
}

/// A watch that must not have fired yet.
async fn still_waiting(watch: &mut BoxFuture<'static, Result<(), CoordinationError>>) -> bool {
    tokio::time::timeout(Duration::from_millis(50), watch).await.is_err()
}

#[tokio::test]
async fn one_of_many_racing_compare_and_sets_wins_each_round() {
    let store = EmbeddedStore::in_memory();
    let first = store.session(10_000);
    first.commit(vec![create("/counter")]).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let session = store.session(10_000);
        tasks.push(tokio::spawn(async move {
            let mut won = 0u64;
            while won < 25 {
                let node = session.read("/counter").await.unwrap().unwrap();
                let value: u64 = std::str::from_utf8(&node.data).unwrap().parse().unwrap_or(0);
                match session.commit(vec![set("/counter", &(value + 1).to_string(), Some(node.version))]).await {
                    Ok(_) => won += 1,
                    Err(error) => assert_eq!(error.cause, CommitCause::Version),
                }
            }
        }));
    }
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(first.read("/counter").await.unwrap().unwrap().data, "200");
}

#[tokio::test]
async fn a_watch_fires_once_for_the_next_change_of_its_kind() {
    let store = EmbeddedStore::in_memory();
    let (watcher, writer) = (store.session(10_000), store.session(10_000));
    writer.commit(vec![create("/a")]).await.unwrap();

    let mut data = watcher.watch("/a", Watch::Data);
    let mut children = watcher.watch("/a", Watch::Children);
    let absent = watcher.watch("/a/b", Watch::Data);
    writer.commit(vec![create("/a/b")]).await.unwrap();
    within(children).await.unwrap();
    within(absent).await.unwrap();
    assert!(still_waiting(&mut data).await, "a new child is no change of the node itself");

    children = watcher.watch("/a", Watch::Children);
    writer.commit(vec![set("/a", "1", None)]).await.unwrap();
    within(data).await.unwrap();
    assert!(still_waiting(&mut children).await);

    // One shot: a second change finds nobody waiting and a new watch waits for a third.
    data = watcher.watch("/a/b", Watch::Data);
    writer.commit(vec![set("/a/b", "1", None), set("/a/b", "2", None)]).await.unwrap();
    within(data).await.unwrap();
    data = watcher.watch("/a/b", Watch::Data);
    assert!(still_waiting(&mut data).await);

    // A refused commit fires nothing.
    writer.commit(vec![set("/a/b", "3", None), create("/a")]).await.unwrap_err();
    assert!(still_waiting(&mut data).await);
    writer.commit(vec![Op::Delete { path: "/a/b".into(), version: None }]).await.unwrap();
    within(data).await.unwrap();
    within(children).await.unwrap();
}

/// Watch, then read: whatever the read did not show, the watch tells.
#[tokio::test]
async fn no_change_between_watch_and_read_is_missed() {
    let store = EmbeddedStore::in_memory();
    let (watcher, writer) = (store.session(10_000), store.session(10_000));
    writer.commit(vec![create("/a")]).await.unwrap();
    let writing = tokio::spawn(async move {
        for round in 1..=500 {
            writer.commit(vec![set("/a", &round.to_string(), None)]).await.unwrap();
        }
        writer
    });
    loop {
        let changed = watcher.watch("/a", Watch::Data);
        if watcher.read("/a").await.unwrap().unwrap().data == "500" {
            break;
        }
        within(changed).await.unwrap();
    }
    writing.await.unwrap();
}

#[tokio::test]
async fn a_silent_session_expires_with_its_nodes_and_a_new_one_is_opened() {
    let store = EmbeddedStore::in_memory();
    let (watcher, other) = (store.session(10_000), store.session(1500));
    watcher.commit(vec![create("/ids")]).await.unwrap();
    let first = other.commit(vec![ephemeral("/ids/1")]).await.unwrap()[0];
    let SessionState::Live(first_session) = *other.session().borrow() else { panic!("not live") };
    let gone = watcher.watch("/ids/1", Watch::Data);
    let fewer = watcher.watch("/ids", Watch::Children);
    let own = other.watch("/ids", Watch::Data);

    other.heart.abort();
    within(gone).await.unwrap();
    within(fewer).await.unwrap();
    assert_eq!(within(own).await, Err(CoordinationError::SessionLost));
    assert_eq!(watcher.children("/ids").await.unwrap(), Vec::<String>::new());
    within(other.session().wait_for(|state| *state == SessionState::Expired)).await.unwrap();
    let late = other.commit(vec![ephemeral("/ids/1")]).await.unwrap_err();
    assert_eq!(late.cause, CommitCause::SessionLost);
    assert_eq!(other.read("/ids").await, Err(CoordinationError::SessionLost));

    // Its heart beats again: a new session, a new life.
    tokio::spawn(beat(Arc::downgrade(&other.shared)));
    within(other.session().wait_for(|state| matches!(state, SessionState::Live(id) if *id != first_session)))
        .await
        .unwrap();
    let second = other.commit(vec![ephemeral("/ids/1")]).await.unwrap()[0];
    assert!(second.created > first.created);
}

#[tokio::test]
async fn a_session_lives_as_long_as_its_heart_beats() {
    let store = EmbeddedStore::in_memory();
    let session = store.session(1500);
    session.commit(vec![ephemeral("/e")]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert!(session.read("/e").await.unwrap().is_some());
}

#[tokio::test]
async fn goodbye_ends_a_session_at_once_and_abandoning_one_does_not() {
    let store = EmbeddedStore::in_memory();
    let (watcher, polite, killed) = (store.session(10_000), store.session(60_000), store.session(1500));
    polite.commit(vec![ephemeral("/polite")]).await.unwrap();
    killed.commit(vec![ephemeral("/killed")]).await.unwrap();
    polite.close().await;
    assert_eq!(watcher.read("/polite").await, Ok(None));
    assert_eq!(*polite.session().borrow(), SessionState::Closed);

    let gone = watcher.watch("/killed", Watch::Data);
    killed.abandon();
    for session in [&polite, &killed] {
        assert!(session.commit(vec![ephemeral("/late")]).await.is_err(), "nothing is said after the end");
        assert!(session.read("/").await.is_err());
    }
    killed.close().await;
    assert!(watcher.read("/killed").await.unwrap().is_some());
    within(gone).await.unwrap();
    assert_eq!(watcher.read("/killed").await, Ok(None));
}

/// A process that was stopped for longer than the timeout (a suspended laptop, a debugger) comes back with its
/// sessions: it was the judge that slept, too.
#[test]
fn sessions_are_not_blamed_for_a_stop_of_the_whole_process() {
    let start = Instant::now();
    let mut store = Store::new(Tree::new(), None);
    let (state, _) = watch::channel(SessionState::Live(1));
    store.handle(Request::Open { session: 1, timeout: Duration::from_millis(500), state: state.clone() }, start);
    store.expire(start + Duration::from_millis(100));
    store.expire(start + Duration::from_secs(3600));
    assert!(store.sessions.contains_key(&1));

    // From then on silence counts again.
    let mut now = start + Duration::from_secs(3600);
    for _ in 0..5 {
        now += Duration::from_millis(100);
        store.expire(now);
    }
    assert!(!store.sessions.contains_key(&1));
    assert_eq!(*state.borrow(), SessionState::Expired);
}

#[tokio::test]
async fn the_thread_stops_when_nobody_is_left_and_says_so_before() {
    let store = EmbeddedStore::in_memory();
    let session = store.session(10_000);
    let inner = Arc::downgrade(&store.inner);
    drop(store);
    assert_eq!(session.read("/").await.unwrap().unwrap().created, 0);
    drop(session);
    // The heart's task may hold it for a moment.
    within(async {
        while inner.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn disk() -> highwater_storage::fs::SimFs {
    highwater_storage::fs::SimFs::new(7)
}

fn open(fs: &highwater_storage::fs::SimFs) -> EmbeddedStore {
    EmbeddedStore::open(Arc::new(fs.clone()), Path::new("/")).unwrap().0
}

#[tokio::test]
async fn a_store_opened_again_has_its_nodes_but_no_sessions_and_later_numbers() {
    let fs = disk();
    let (kept, killed, last) = {
        let session = open(&fs).session(10_000);
        session.commit(vec![create("/a"), set("/a", "kept", None)]).await.unwrap();
        let last = session.commit(vec![ephemeral("/e")]).await.unwrap()[0].created;
        // A goodbye as the process stops, and a kill.
        let killed = fs.process_crash_image();
        (session.read("/a").await.unwrap().unwrap(), killed, last)
    };
    for fs in [fs.process_crash_image(), killed] {
        let session = open(&fs).session(10_000);
        assert_eq!(session.read("/a").await.unwrap().unwrap(), kept);
        assert_eq!(session.read("/e").await, Ok(None));
        let again = session.commit(vec![ephemeral("/e")]).await.unwrap()[0].created;
        assert!(again > last, "an epoch of a broker must never come twice: {again} after {last}");
    }
}

/// A disk without room: the commit did not happen, nobody is told of it, and the store goes on when there is room again.
#[tokio::test]
async fn a_commit_that_cannot_be_written_did_not_happen() {
    use highwater_storage::fs::{Call, Fault};
    let fs = disk();
    let store = open(&fs);
    let (watcher, writer) = (store.session(10_000), store.session(10_000));
    writer.commit(vec![create("/a")]).await.unwrap();
    let mut changed = watcher.watch("/a", Watch::Data);

    fs.inject(Fault::Enospc, Call::Write, 1);
    let error = writer.commit(vec![set("/a", "1", None)]).await.unwrap_err();
    assert_eq!(error.cause, CommitCause::Unavailable);
    assert_eq!(watcher.read("/a").await.unwrap().unwrap().data, "");
    assert!(still_waiting(&mut changed).await);
    writer.commit(vec![set("/a", "2", None)]).await.unwrap();
    within(changed).await.unwrap();

    // A failed sync: nobody knows what is on disk, so nothing is told any more; not even what was read before.
    fs.inject(Fault::SyncFails, Call::SyncData, 1);
    let error = writer.commit(vec![set("/a", "3", None)]).await.unwrap_err();
    assert_eq!(error.cause, CommitCause::Unavailable);
    assert_eq!(watcher.read("/a").await, Err(CoordinationError::Unavailable));
    assert_eq!(writer.commit(vec![set("/a", "4", None)]).await.unwrap_err().cause, CommitCause::Unavailable);
    // Sessions live on: being cut off from the store is no reason to step down.
    assert!(matches!(*watcher.session().borrow(), SessionState::Live(_)));
    drop((store, watcher, writer));
    let again = open(&fs.process_crash_image()).session(10_000).read("/a").await.unwrap().unwrap();
    assert!(again.data == "2" || again.data == "3", "{again:?}");
}

#[tokio::test]
async fn commits_that_wait_together_share_a_sync() {
    let fs = disk();
    let session = open(&fs).session(10_000);
    session.commit(vec![create("/a")]).await.unwrap();
    let before = fs.calls();
    let commits: Vec<_> = (0..200).map(|turn| session.commit(vec![create(&format!("/a/{turn}"))])).collect();
    for commit in commits {
        commit.await.unwrap();
    }
    // A write and a sync for each batch; the first may hold only a few.
    assert!(fs.calls() - before < 100, "{} calls for 200 commits", fs.calls() - before);
}

/// Watches on nodes that never come, given up by those who watched: they must not pile up.
#[test]
fn watches_that_were_given_up_are_swept() {
    let now = Instant::now();
    let mut store = Store::new(Tree::new(), None);
    let state = watch::Sender::new(SessionState::Live(1));
    store.handle(Request::Open { session: 1, timeout: Duration::from_secs(1), state }, now);
    let mut kept = Vec::new();
    for turn in 0..100_000 {
        let (answer, answered) = oneshot::channel();
        let path = format!("/never/{turn}");
        store.handle(Request::Watch { session: 1, path, kind: Watch::Data, answer }, now);
        if turn % 1000 == 0 {
            kept.push(answered);
        }
    }
    assert!(store.watches.len() <= WATCHES_SWEPT_MIN + 1, "{}", store.watches.len());
    assert!(kept.iter_mut().all(|answered| answered.try_recv() == Err(oneshot::error::TryRecvError::Empty)));
}

/// A session that says goodbye right behind a commit that cannot be written: taking the commit back must not bring its
/// node back, for nobody would be left to remove it.
#[test]
fn taking_a_commit_back_does_not_bring_a_closed_session_back() {
    use highwater_storage::fs::{Call, Fault};
    let (now, fs) = (Instant::now(), disk());
    let (journal, tree, _) = Journal::open(Arc::new(fs.clone()), Path::new("/")).unwrap();
    let mut store = Store::new(tree, Some(journal));
    let state = watch::Sender::new(SessionState::Live(1));
    store.handle(Request::Open { session: 1, timeout: Duration::from_secs(1), state }, now);
    let (answer, _created) = oneshot::channel();
    store.handle(Request::Commit { session: 1, ops: vec![ephemeral("/e")], answer }, now);
    store.settle();
    assert!(store.tree.read("/e").is_some());

    fs.inject(Fault::Enospc, Call::Write, 1);
    let (answer, mut written) = oneshot::channel();
    store.handle(Request::Commit { session: 1, ops: vec![set("/e", "1", None)], answer }, now);
    let (answer, mut closed) = oneshot::channel();
    store.handle(Request::Close { session: 1, answer }, now);
    store.settle();
    assert_eq!(written.try_recv().unwrap().unwrap_err().cause, CommitCause::Unavailable);
    assert_eq!(closed.try_recv(), Ok(Ok(())));
    assert_eq!(store.tree.read("/e"), None);
}

#[tokio::test]
async fn hearts_beat_as_often_as_asked_and_at_least_twice_in_the_timeout() {
    let store = EmbeddedStore::in_memory();
    for (timeout_ms, heartbeat_ms, expected) in [(9_000, 2_000, 2_000), (1_000, 2_000, 500), (1_000, 0, 1)] {
        let session = store.session_beating(timeout_ms, heartbeat_ms);
        assert_eq!(session.shared.heartbeat, Duration::from_millis(expected));
    }
}
