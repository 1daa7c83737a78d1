//! The promises, in terms of the trait alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_broker::cluster::{
    BoxFuture, CommitCause, CommitError, Coordination, CoordinationError, Op, SessionState, Watch,
};

use crate::Store;

pub(crate) async fn run(store: &Store) {
    nodes_and_versions(&*store.session(5000).await).await;
    commits_are_atomic_and_say_what_was_wrong(&*store.session(5000).await).await;
    watches_fire_for_the_next_change_of_their_kind(store).await;
    no_change_between_watch_and_read_is_missed(store).await;
    racing_compare_and_sets_have_one_winner(store).await;
    a_closed_session_takes_its_nodes_along_at_once(store).await;
    an_abandoned_session_expires(store).await;
}

pub(crate) fn create(path: &str, data: &str) -> Op {
    Op::Create { path: path.into(), data: Bytes::copy_from_slice(data.as_bytes()) }
}
pub(crate) fn ephemeral(path: &str) -> Op {
    Op::CreateEphemeral { path: path.into(), data: Bytes::from_static(b"e") }
}
pub(crate) fn set(path: &str, data: &str, version: Option<i64>) -> Op {
    Op::Set { path: path.into(), data: Bytes::copy_from_slice(data.as_bytes()), version }
}
fn delete(path: &str, version: Option<i64>) -> Op {
    Op::Delete { path: path.into(), version }
}
fn check(path: &str, version: i64) -> Op {
    Op::Check { path: path.into(), version }
}

fn exists(path: &str) -> Op {
    Op::Exists { path: path.into() }
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it takes far less")
}

/// A watch that must not have fired.
async fn still_waiting(watch: &mut BoxFuture<'static, Result<(), CoordinationError>>) -> bool {
    tokio::time::timeout(Duration::from_millis(100), watch).await.is_err()
}

async fn refused(session: &dyn Coordination, ops: Vec<Op>, at: usize, cause: CommitCause) {
    let wanted = format!("{ops:?}");
    assert_eq!(session.commit(ops).await, Err(CommitError { at, cause }), "{wanted}");
}

async fn nodes_and_versions(session: &dyn Coordination) {
    assert_eq!(session.read("/n").await.unwrap(), None);
    assert_eq!(session.children("/n").await.unwrap(), Vec::<String>::new());
    let made = session.commit(vec![create("/n", ""), create("/n/b", "2"), ephemeral("/n/a")]).await.unwrap();
    let node = session.read("/n").await.unwrap().unwrap();
    assert!(node.data.is_empty() && !node.ephemeral && node.version == made[0].version && node.version >= 0);
    let node = session.read("/n/a").await.unwrap().unwrap();
    assert_eq!((&node.data[..], node.ephemeral), (&b"e"[..], true));
    assert_eq!((node.version, node.created), (made[2].version, made[2].created), "an ephemeral node's are told");
    assert_eq!(session.children("/n").await.unwrap(), ["a", "b"]);

    let before = session.read("/n/b").await.unwrap().unwrap();
    let done = session.commit(vec![set("/n/b", "3", Some(before.version))]).await.unwrap();
    let after = session.read("/n/b").await.unwrap().unwrap();
    assert!(after.version > before.version && after.version == done[0].version && after.created == before.created);
    session.commit(vec![check("/n/b", after.version), exists("/n/b"), set("/n/b", "4", None)]).await.unwrap();
    session.commit(vec![delete("/n/b", None)]).await.unwrap();
    session.commit(vec![create("/n/b", "5")]).await.unwrap();
    assert!(session.read("/n/b").await.unwrap().unwrap().created > after.created, "creation numbers do not return");
    assert_eq!(session.commit(Vec::new()).await.unwrap(), []);
}

async fn commits_are_atomic_and_say_what_was_wrong(session: &dyn Coordination) {
    session.commit(vec![create("/c", "1"), create("/c/d", "2"), ephemeral("/c/e")]).await.unwrap();
    let version = session.read("/c").await.unwrap().unwrap().version;
    refused(session, vec![create("/x", ""), create("/c", "")], 1, CommitCause::Exists).await;
    refused(session, vec![delete("/c/d", None), set("/c", "", Some(version + 9))], 1, CommitCause::Version).await;
    refused(session, vec![set("/c", "9", None), delete("/c", None)], 1, CommitCause::NotEmpty).await;
    refused(session, vec![create("/no/parent", "")], 0, CommitCause::Missing).await;
    refused(session, vec![check("/gone", version)], 0, CommitCause::Missing).await;
    refused(session, vec![set("/c", "9", None), exists("/gone")], 1, CommitCause::Missing).await;
    refused(session, vec![set("/c", "9", None), set("/gone", "", None)], 1, CommitCause::Missing).await;
    refused(session, vec![create("/c/e/child", "")], 0, CommitCause::Invalid).await;
    // No node has a negative version: such a check is not one for "any".
    for version in [-1, i64::MAX] {
        refused(session, vec![check("/c", version)], 0, CommitCause::Version).await;
        refused(session, vec![set("/c/d", "9", None), set("/c", "9", Some(version))], 1, CommitCause::Version).await;
        refused(session, vec![delete("/c/d", Some(version))], 0, CommitCause::Version).await;
    }
    for path in ["", "a", "/", "//", "/a/", "/a//b", "/c/../b", "/c/."] {
        refused(session, vec![create(path, "")], 0, CommitCause::Invalid).await;
    }
    let huge = Op::Create { path: "/h".into(), data: Bytes::from(vec![0; 1024 * 1024 + 1]) };
    refused(session, vec![create("/h", ""), huge], 1, CommitCause::TooLarge).await;

    assert_eq!(session.read("/x").await.unwrap(), None);
    assert_eq!(session.read("/c").await.unwrap().unwrap().data, "1", "a refused commit left something behind");
    assert_eq!(session.children("/c").await.unwrap(), ["d", "e"]);
    // A step sees what those before it did.
    let steps =
        vec![create("/y", "1"), create("/y/z", ""), delete("/y/z", None), set("/y", "2", None), delete("/y", None)];
    session.commit(steps).await.unwrap();
    assert_eq!(session.read("/y").await.unwrap(), None);
}

async fn watches_fire_for_the_next_change_of_their_kind(store: &Store) {
    let (watcher, writer) = (store.session(5000).await, store.session(5000).await);
    writer.commit(vec![create("/w", "")]).await.unwrap();
    let mut data = watcher.watch("/w", Watch::Data);
    let children = watcher.watch("/w", Watch::Children);
    let absent = watcher.watch("/w/b", Watch::Data);
    let below_absent = watcher.watch("/w/b", Watch::Children);
    // Answered after the watches are in place, which were sent before.
    assert!(watcher.read("/w").await.unwrap().is_some());
    writer.commit(vec![create("/w/b", ""), create("/w/b/c", "")]).await.unwrap();
    for watch in [children, absent, below_absent] {
        within(watch).await.unwrap();
    }
    assert!(still_waiting(&mut data).await, "a new child is no change of the node itself");

    let mut children = watcher.watch("/w", Watch::Children);
    assert_eq!(watcher.children("/w").await.unwrap(), ["b"]);
    writer.commit(vec![set("/w", "1", None)]).await.unwrap();
    within(data).await.unwrap();
    assert!(still_waiting(&mut children).await, "a new value is no change of the children");

    // One shot: two changes fire it once, and a new watch waits for a third.
    data = watcher.watch("/w/b", Watch::Data);
    assert!(watcher.read("/w/b").await.unwrap().is_some());
    writer.commit(vec![set("/w/b", "1", None), set("/w/b", "2", None)]).await.unwrap();
    within(data).await.unwrap();
    while watcher.read("/w/b").await.unwrap().unwrap().data != "2" {}
    data = watcher.watch("/w/b", Watch::Data);
    assert!(still_waiting(&mut data).await);
    writer.commit(vec![set("/w/b", "3", None), create("/w", "")]).await.unwrap_err();
    assert!(still_waiting(&mut data).await, "a refused commit fires nothing");
    writer.commit(vec![delete("/w/b/c", None), delete("/w/b", None)]).await.unwrap();
    within(data).await.unwrap();
    within(children).await.unwrap();
}

async fn no_change_between_watch_and_read_is_missed(store: &Store) {
    let (watcher, writer) = (store.session(5000).await, store.session(5000).await);
    writer.commit(vec![create("/r", ""), create("/f", "")]).await.unwrap();
    let writing = tokio::spawn(async move {
        for round in 1..=300 {
            let name = format!("/f/{round}");
            writer.commit(vec![set("/r", &round.to_string(), None), create(&name, "")]).await.unwrap();
        }
        writer
    });
    loop {
        let changed = watcher.watch("/r", Watch::Data);
        if watcher.read("/r").await.unwrap().unwrap().data == "300" {
            break;
        }
        within(changed).await.unwrap();
    }
    loop {
        let changed = watcher.watch("/f", Watch::Children);
        if watcher.children("/f").await.unwrap().len() == 300 {
            break;
        }
        within(changed).await.unwrap();
    }
    writing.await.unwrap();
}

async fn racing_compare_and_sets_have_one_winner(store: &Store) {
    let first = store.session(5000).await;
    first.commit(vec![create("/counter", "0")]).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let session = store.session(5000).await;
        tasks.push(tokio::spawn(async move {
            let mut won = 0;
            while won < 20 {
                let node = session.read("/counter").await.unwrap().unwrap();
                let value: u64 = std::str::from_utf8(&node.data).unwrap().parse().unwrap();
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
    assert_eq!(first.read("/counter").await.unwrap().unwrap().data, "80");
}

async fn a_closed_session_takes_its_nodes_along_at_once(store: &Store) {
    let (watcher, leaving) = (store.session(5000).await, store.session(10_000).await);
    watcher.commit(vec![create("/ids", "")]).await.unwrap();
    leaving.commit(vec![ephemeral("/ids/1")]).await.unwrap();
    let (gone, fewer) = (watcher.watch("/ids/1", Watch::Data), watcher.watch("/ids", Watch::Children));
    assert_eq!(watcher.children("/ids").await.unwrap(), ["1"]);
    leaving.close().await;
    // Long before its timeout, which nobody here waits for.
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("at once").unwrap();
    within(fewer).await.unwrap();
    assert_eq!(watcher.children("/ids").await.unwrap(), Vec::<String>::new());
    assert_eq!(*leaving.session().borrow(), SessionState::Closed);
    assert_eq!(leaving.read("/ids").await, Err(CoordinationError::Unavailable));
    refused(&*leaving, vec![ephemeral("/ids/1")], 0, CommitCause::Unavailable).await;
}

async fn an_abandoned_session_expires(store: &Store) {
    let (watcher, silent) = (store.session(5000).await, store.session(1000).await);
    silent.commit(vec![ephemeral("/ids/2")]).await.unwrap();
    let mut gone = watcher.watch("/ids/2", Watch::Data);
    assert!(watcher.read("/ids/2").await.unwrap().is_some());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(still_waiting(&mut gone).await, "a session lives as long as it is kept alive");
    silent.abandon();
    within(gone).await.unwrap();
    assert_eq!(watcher.read("/ids/2").await.unwrap(), None);
    let again: Arc<dyn Coordination> = store.session(1000).await;
    again.commit(vec![ephemeral("/ids/2")]).await.unwrap();
}
