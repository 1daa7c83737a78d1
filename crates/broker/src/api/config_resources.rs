//! What has settings, as requests name it, and ListConfigResources (74), which lists that.

use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};
use crate::cluster::{ClusterHandle, ConfigKind, StoreFailure};

/// `ConfigResource.Type`.
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;
pub(super) const CLIENT_METRICS: i8 = 16;
pub(super) const GROUP: i8 = 32;

/// The one logger that there is.
pub(super) const ROOT_LOGGER: &str = "root";

/// Lists the resources of the types that are asked for; without any, of all.
pub(crate) async fn handle(
    context: &RequestContext,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    answer(&context.broker.cluster, context.version, request).await
}

async fn answer(
    cluster: &ClusterHandle,
    version: i16,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let all = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];
    let mut types = match (version, request.resource_types.is_empty()) {
        // Its name was ListClientMetricsResources then.
        (0, _) => vec![CLIENT_METRICS],
        (_, true) => all.to_vec(),
        (_, false) => request.resource_types,
    };
    types.sort_unstable();
    types.dedup();
    let response = ListConfigResourcesResponse::default();
    if types.iter().any(|asked| !all.contains(asked)) {
        return response.with_error_code(ErrorCode::UnsupportedVersion.number());
    }
    let mut resources = Vec::new();
    for resource_type in types {
        match names(cluster, resource_type).await {
            Ok(names) => resources.extend(names.into_iter().map(|name| {
                let resource = ConfigResource::default().with_resource_name(StrBytes::from_string(name));
                if version == 0 { resource } else { resource.with_resource_type(resource_type) }
            })),
            Err(error) => {
                tracing::warn!(%error, "cannot list what is configured");
                return response.with_error_code(ErrorCode::UnknownServerError.number());
            }
        }
    }
    response.with_config_resources(resources)
}

async fn names(cluster: &ClusterHandle, resource_type: i8) -> Result<Vec<String>, StoreFailure> {
    let set = |kind| async move { Ok(cluster.configs(kind).await?.into_keys().flatten().collect()) };
    match resource_type {
        TOPIC => Ok(cluster.image().topics.keys().map(|name| name.to_string()).collect()),
        BROKER | BROKER_LOGGER => Ok(cluster.image().brokers.keys().map(|id| id.to_string()).collect()),
        CLIENT_METRICS => set(ConfigKind::ClientMetrics).await,
        _ => set(ConfigKind::Group).await,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::admin_tests::{cluster_of, make};
    use crate::api::tests::encodes;
    use crate::cluster::Intent;
    use kafka_protocol::messages::ApiKey;

    #[tokio::test]
    async fn what_is_configured_is_listed_by_type() {
        let members = cluster_of(2).await;
        make(&members[0], "t", 1, 1).await;
        let set = |_: &BTreeMap<String, String>| Ok(BTreeMap::from([("interval.ms".to_owned(), "100".to_owned())]));
        let gone = |_: &BTreeMap<String, String>| Ok(BTreeMap::new());
        for (kind, name) in [(ConfigKind::ClientMetrics, "m/1"), (ConfigKind::Group, "g"), (ConfigKind::Group, "h")] {
            members[0].change_config(kind, Some(name), Intent::Apply, &set).await.unwrap();
        }
        members[0].change_config(ConfigKind::Group, Some("h"), Intent::Apply, &gone).await.unwrap();
        let ask = async |version, types: &[i8]| {
            let request = ListConfigResourcesRequest::default().with_resource_types(types.to_vec());
            let response = answer(&members[1], version, request).await;
            encodes(ApiKey::ListConfigResources, &response, version);
            let listed = response.config_resources.into_iter();
            let named = listed.map(|one| (one.resource_type, one.resource_name.to_string())).collect::<Vec<_>>();
            (response.error_code, named)
        };
        let named = |of: &[(i8, &str)]| of.iter().map(|&(of, name)| (of, name.to_owned())).collect::<Vec<_>>();
        let all = [(2, "t"), (4, "1"), (4, "2"), (8, "1"), (8, "2"), (16, "m/1"), (32, "g")];
        assert_eq!(ask(1, &[]).await, (0, named(&all)));
        assert_eq!(ask(1, &[32, 16, 32]).await, (0, named(&all[5..])));
        assert_eq!(ask(1, &[16, 3]).await, (35, Vec::new()));
        assert_eq!(ask(0, &[]).await, (0, named(&[(16, "m/1")])));
    }
}
