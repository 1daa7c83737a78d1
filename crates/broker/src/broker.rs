//! What all parts of one running broker share.

use crate::cluster::ClusterHandle;
use crate::config::BrokerConfig;

/// The broker's parts, shared by its connections.
#[derive(Debug)]
pub(crate) struct BrokerShared {
    /// How it was told to run.
    pub(crate) config: BrokerConfig,
    /// Its membership of the cluster.
    pub(crate) cluster: ClusterHandle,
}
