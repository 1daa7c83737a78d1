//! Connections to the other brokers of the cluster, one to each, for what coordinators ask of them. Requests are pipelined.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use highwater_replication::BrokerId;
use kafka_protocol::protocol::Request;

use crate::client::Connection;
use crate::fetcher::connected;
use crate::services::Services;

/// A connection, while it holds.
type Peer = Arc<tokio::sync::Mutex<Option<Connection>>>;

/// The connections. There are as many as brokers were asked.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    peers: Mutex<HashMap<BrokerId, Peer>>,
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
        let peer = Arc::clone(self.peers.lock().unwrap_or_else(PoisonError::into_inner).entry(whom).or_default());
        let connection = connected(services, whom, "coordinator", &mut *peer.lock().await).await?.clone();
        let answer = connection.send_version(request, version).await;
        if answer.is_err() {
            *peer.lock().await = None;
        }
        answer.map_err(|error| error.to_string())
    }
}
