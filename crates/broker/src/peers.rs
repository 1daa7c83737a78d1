//! Connections to the other brokers of the cluster, for what coordinators ask of them: one to each for each API. Requests are
//! pipelined, and answered in order: a marker that waits until its partition has replicated it must not hold the answers up
//! that batches in other partitions wait for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use highwater_replication::BrokerId;
use kafka_protocol::protocol::Request;

use crate::client::Connection;
use crate::fetcher::connected;
use crate::services::Services;

/// A connection, while it holds.
type Peer = Arc<tokio::sync::Mutex<Option<Connection>>>;

/// The connections. There are as many as brokers were asked, of each API that they were asked by.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    peers: Mutex<HashMap<(BrokerId, i16), Peer>>,
}

impl Peers {
    /// Asks a broker. Whoever finds no connection makes one; after a failure the next one does.
    ///
    /// # Errors
    /// If it is not reached or does not answer in time. The request may have been carried out all the same.
    pub(crate) async fn ask<R: Request>(
        &self,
        services: &Services,
        whom: BrokerId,
        request: &R,
        version: i16,
    ) -> Result<R::Response, String> {
        let peer = self.peer(whom, R::KEY);
        // Who waits behind others for a connection that cannot be made does not wait as long as all of them together.
        let patience = Duration::from_millis(services.config.replica_socket_timeout_ms);
        let mut held = tokio::time::timeout(patience, peer.lock()).await.map_err(|_| "no connection came about")?;
        let connection = connected(services, whom, "coordinator", &mut held).await?.clone();
        drop(held);
        let answer = connection.send_version(request, version).await;
        if answer.is_err()
            && let Ok(mut held) = peer.try_lock()
            && held.as_ref().is_some_and(|held| held.is(&connection))
        {
            // Others may have another already, or be at it.
            *held = None;
        }
        answer.map_err(|error| error.to_string())
    }

    fn peer(&self, whom: BrokerId, api: i16) -> Peer {
        Arc::clone(self.peers.lock().unwrap_or_else(PoisonError::into_inner).entry((whom, api)).or_default())
    }
}
