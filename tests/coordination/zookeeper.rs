//! What only a server that can be killed shows.

use std::net::SocketAddr;
use std::time::Duration;

use highwater_broker::cluster::{CommitCause, Coordination, CoordinationError, SessionState, Watch, ZooKeeperStore};
use highwater_tests::ZooKeeper;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::suite::{create, ephemeral, set, within};

fn live(session: &dyn Coordination) -> i64 {
    let SessionState::Live(id) = *session.session().borrow() else { panic!("{:?}", session.session()) };
    id
}

/// By its own clock the client would have given the session up long before the servers return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_away_for_longer_than_the_timeout_end_no_session() {
    let mut server = ZooKeeper::start().unwrap();
    let session = ZooKeeperStore::connect(&server.connect(), 2000).await.unwrap();
    let id = live(&session);
    session.commit(vec![create("/a", ""), ephemeral("/e")]).await.unwrap();
    let created = session.read("/e").await.unwrap().unwrap().created;
    let changed = session.watch("/a", Watch::Data);
    let mut states = session.session();

    server.kill().unwrap();
    within(states.wait_for(|state| *state == SessionState::Disconnected)).await.unwrap();
    assert_eq!(session.read("/a").await, Err(CoordinationError::Unavailable));
    assert_eq!(session.commit(vec![create("/b", "")]).await.unwrap_err().cause, CommitCause::Unavailable);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*states.borrow_and_update(), SessionState::Disconnected, "nobody said that it expired");

    server.start_again().unwrap();
    let state = *within(states.wait_for(|state| *state != SessionState::Disconnected)).await.unwrap();
    assert_eq!(state, SessionState::Live(id), "a server that starts counts sessions afresh");
    // The old watch tells of a change, or that there may have been one; it is not lost.
    session.commit(vec![set("/a", "1", None)]).await.unwrap();
    within(changed).await.unwrap();
    assert_eq!(session.read("/e").await.unwrap().unwrap().created, created);
}

/// A way to the server that can be cut.
struct Line {
    address: SocketAddr,
    whole: watch::Sender<bool>,
}

impl Line {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let whole = watch::Sender::new(true);
        let state = whole.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut state) = (server.clone(), state.clone());
                tokio::spawn(async move {
                    let carry = async {
                        let mut far = TcpStream::connect(server).await?;
                        tokio::io::copy_bidirectional(&mut near, &mut far).await
                    };
                    tokio::select! {
                        // Either end may hang up, and so does a test that is over.
                        _ = carry => {}
                        _ = state.wait_for(|whole| !whole) => {}
                    }
                });
            }
        });
        Self { address, whole }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_servers_ended_is_followed_by_another() {
    let server = ZooKeeper::start().unwrap();
    let line = Line::to(server.connect()).await;
    let session = ZooKeeperStore::connect(&line.address.to_string(), 1000).await.unwrap();
    let witness = ZooKeeperStore::connect(&server.connect(), 5000).await.unwrap();
    let id = live(&session);
    let first = session.commit(vec![ephemeral("/e")]).await.unwrap()[0];
    let watch = session.watch("/e", Watch::Data);
    let gone = witness.watch("/e", Watch::Data);
    assert!(witness.read("/e").await.unwrap().is_some());

    // Cut for a moment, the session lives on.
    let mut states = session.session();
    line.whole.send_replace(false);
    within(states.wait_for(|state| *state == SessionState::Disconnected)).await.unwrap();
    line.whole.send_replace(true);
    let state = *within(states.wait_for(|state| *state != SessionState::Disconnected)).await.unwrap();
    assert_eq!(state, SessionState::Live(id));

    // Cut until the server has ended it, it does not.
    line.whole.send_replace(false);
    within(gone).await.unwrap();
    let before = *states.borrow_and_update();
    assert!(matches!(before, SessionState::Live(_) | SessionState::Disconnected), "{before:?}: nobody has told it yet");
    line.whole.send_replace(true);
    within(states.wait_for(|state| matches!(state, SessionState::Live(other) if *other != id))).await.unwrap();
    assert_eq!(within(watch).await, Err(CoordinationError::SessionLost));
    assert_eq!(session.read("/e").await.unwrap(), None);
    let second = session.commit(vec![ephemeral("/e")]).await.unwrap()[0];
    assert!(second.created > first.created);
}
