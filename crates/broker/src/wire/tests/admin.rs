//! Samples of messages for administration.

use kafka_protocol::messages::*;

use super::{text, unknown};

pub(super) fn alter_configs(version: i16, null: bool) -> AlterConfigsRequest {
    use alter_configs_request::*;
    let config = AlterableConfig::default().with_name(text("retention.ms")).with_value((!null).then(|| text("5")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("books"))
        .with_configs(vec![config.clone(), config])
        .with_unknown_tagged_fields(unknown(version >= 2));
    AlterConfigsRequest::default().with_resources(vec![resource.clone(), resource]).with_validate_only(null)
}

pub(super) fn alter_configs_answer(_: i16, null: bool) -> AlterConfigsResponse {
    use alter_configs_response::*;
    let one = AlterConfigsResourceResponse::default()
        .with_error_message((!null).then(|| text("bad")))
        .with_resource_name(text("books"));
    AlterConfigsResponse::default().with_responses(vec![one.clone(), one])
}

pub(super) fn incremental_alter_configs(version: i16, null: bool) -> IncrementalAlterConfigsRequest {
    use incremental_alter_configs_request::*;
    let config = AlterableConfig::default()
        .with_name(text("cleanup.policy"))
        .with_config_operation(2)
        .with_value((!null).then(|| text("compact")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("books"))
        .with_configs(vec![config.clone(), config])
        .with_unknown_tagged_fields(unknown(version >= 1));
    IncrementalAlterConfigsRequest::default().with_resources(vec![resource.clone(), resource])
}

pub(super) fn incremental_alter_configs_answer(_: i16, null: bool) -> IncrementalAlterConfigsResponse {
    use incremental_alter_configs_response::*;
    let one = AlterConfigsResourceResponse::default()
        .with_error_message((!null).then(|| text("bad")))
        .with_resource_name(text("books"));
    IncrementalAlterConfigsResponse::default().with_responses(vec![one.clone(), one])
}

pub(super) fn list_config_resources(version: i16, null: bool) -> ListConfigResourcesRequest {
    let types = if version == 0 || null { Vec::new() } else { vec![2, 16, 32] };
    ListConfigResourcesRequest::default().with_resource_types(types)
}

pub(super) fn list_config_resources_answer(version: i16, _: bool) -> ListConfigResourcesResponse {
    use list_config_resources_response::*;
    let mut one = ConfigResource::default().with_resource_name(text("m"));
    if version >= 1 {
        one.resource_type = 32;
    }
    ListConfigResourcesResponse::default().with_config_resources(vec![one.clone(), one])
}
