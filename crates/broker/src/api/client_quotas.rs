//! DescribeClientQuotas (48) and AlterClientQuotas (49). Quotas are kept and told; nothing is slowed down by them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kafka_protocol::messages::alter_client_quotas_request::{EntryData as AlterEntry, OpData};
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest, DescribeClientQuotasResponse,
    alter_client_quotas_response, describe_client_quotas_response,
};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};
use crate::cluster::{AdminError, ClusterHandle, ConfigKind, Intent, StoreFailure};

const USER: &str = "user";
const CLIENT: &str = "client-id";
const IP: &str = "ip";

/// Quotas of users and clients, and whether they may have a fraction.
const RATES: [(&str, bool); 4] = [
    ("consumer_byte_rate", false),
    ("controller_mutation_rate", true),
    ("producer_byte_rate", false),
    ("request_percentage", true),
];

/// Quotas of addresses.
const IP_RATES: [(&str, bool); 1] = [("connection_creation_rate", false)];

/// Whom quotas are for: the value of each type it has, `None` for all that have none of their own.
type Entity = BTreeMap<String, Option<String>>;

/// Why an entity or a filter is refused.
type Refused = (ErrorCode, String);

fn invalid(message: impl Into<String>) -> Refused {
    (ErrorCode::InvalidRequest, message.into())
}

/// Where the quotas of an entity are kept.
fn place(entity: &Entity) -> Option<(ConfigKind, Option<String>)> {
    let of = |kind: &str| entity.get(kind).cloned();
    match (of(USER), of(CLIENT), of(IP)) {
        (Some(user), None, None) => Some((ConfigKind::User, user)),
        (None, Some(client), None) => Some((ConfigKind::Client, client)),
        (None, None, Some(address)) => Some((ConfigKind::Ip, address)),
        // Both as one name.
        (Some(user), Some(client), None) => {
            Some((ConfigKind::UserClient, Some(serde_json::json!([user, client]).to_string())))
        }
        _ => None,
    }
}

/// Whom what is kept there is for.
fn entity_at(kind: ConfigKind, name: Option<String>) -> Option<Entity> {
    let one = |of: &str, value| Some(Entity::from([(of.to_owned(), value)]));
    match kind {
        ConfigKind::User => one(USER, name),
        ConfigKind::Client => one(CLIENT, name),
        ConfigKind::Ip => one(IP, name),
        ConfigKind::UserClient => {
            let (user, client) = serde_json::from_str(&name?).ok()?;
            Some(Entity::from([(USER.to_owned(), user), (CLIENT.to_owned(), client)]))
        }
        _ => None,
    }
}

/// Tells of the quotas of whom the filter lets through.
pub(crate) async fn describe(
    context: &RequestContext,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let response = DescribeClientQuotasResponse::default().with_error_message(None).with_entries(None);
    let found = match check_filter(&request.components) {
        Ok(()) => {
            all(&context.broker.cluster).await.map_err(|error| (ErrorCode::UnknownServerError, error.to_string()))
        }
        Err(refused) => Err(refused),
    };
    let found = match found {
        Ok(found) => found,
        Err((code, message)) => {
            return response.with_error_code(code.number()).with_error_message(Some(super::told(message)));
        }
    };
    let passes = |entity: &Entity| {
        let has = |component: &ComponentData| match (component.match_type, entity.get(&*component.entity_type)) {
            (0, Some(value)) => value.as_deref() == component._match.as_deref(),
            (1, Some(value)) => value.is_none(),
            (_, value) => value.is_some(),
        };
        request.components.iter().all(has) && (!request.strict || entity.len() == request.components.len())
    };
    let entries = found.into_iter().filter(|(entity, _)| passes(entity)).map(|(entity, rates)| {
        use describe_client_quotas_response::{EntityData, EntryData, ValueData};
        let part = |(kind, value): (String, Option<String>)| {
            EntityData::default()
                .with_entity_type(StrBytes::from_string(kind))
                .with_entity_name(value.map(StrBytes::from_string))
        };
        let rate = |(key, value)| ValueData::default().with_key(StrBytes::from_string(key)).with_value(value);
        EntryData::default()
            .with_entity(entity.into_iter().map(part).collect())
            .with_values(rates.into_iter().map(rate).collect())
    });
    response.with_entries(Some(entries.collect()))
}

fn check_filter(components: &[ComponentData]) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    for ComponentData { entity_type, match_type, _match: name, .. } in components {
        if entity_type.is_empty() {
            return Err(invalid("Unexpected empty filter component entity type"));
        }
        if ![USER, CLIENT, IP].contains(&&**entity_type) {
            return Err((ErrorCode::UnsupportedVersion, format!("Unsupported entity type {entity_type}")));
        }
        if !seen.insert(&**entity_type) {
            return Err(invalid(format!("Entity type {entity_type} cannot appear more than once in the filter.")));
        }
        match (match_type, name) {
            (0, None) => return Err(invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")),
            (1 | 2, Some(_)) => return Err(invalid("A match string was given where none is matched.")),
            (0..=2, _) => {}
            (other, _) => return Err(invalid(format!("Unknown match type {other}"))),
        }
    }
    if seen.contains(IP) && seen.len() > 1 {
        return Err(invalid(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId filter component.",
        ));
    }
    Ok(())
}

/// Every quota there is.
async fn all(cluster: &ClusterHandle) -> Result<BTreeMap<Entity, BTreeMap<String, f64>>, StoreFailure> {
    let mut all = BTreeMap::new();
    for kind in [ConfigKind::User, ConfigKind::Client, ConfigKind::UserClient, ConfigKind::Ip] {
        for (name, config) in cluster.configs(kind).await? {
            let rates: BTreeMap<String, f64> = config
                .into_iter()
                .filter(|(key, _)| RATES.iter().chain(&IP_RATES).any(|(rate, _)| rate == key))
                .filter_map(|(key, value)| Some((key, value.parse().ok()?)))
                .collect();
            if let (Some(entity), false) = (entity_at(kind, name), rates.is_empty()) {
                all.insert(entity, rates);
            }
        }
    }
    Ok(all)
}

/// Sets and takes back quotas.
pub(crate) async fn alter(context: &RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse {
    use alter_client_quotas_response::{EntityData, EntryData};
    let intent = if request.validate_only { Intent::Validate } else { Intent::Apply };
    let mut entries = Vec::with_capacity(request.entries.len());
    for entry in request.entries {
        let altered = alter_one(&context.broker.cluster, &entry, intent).await;
        let part = |part: kafka_protocol::messages::alter_client_quotas_request::EntityData| {
            EntityData::default().with_entity_type(part.entity_type).with_entity_name(part.entity_name)
        };
        let told = EntryData::default().with_entity(entry.entity.into_iter().map(part).collect());
        entries.push(match altered {
            Ok(()) => told.with_error_message(None),
            Err((code, message)) => told.with_error_code(code.number()).with_error_message(Some(super::told(message))),
        });
    }
    AlterClientQuotasResponse::default().with_entries(entries)
}

async fn alter_one(cluster: &ClusterHandle, entry: &AlterEntry, intent: Intent) -> Result<(), Refused> {
    let mut entity = Entity::new();
    for part in &entry.entity {
        let (kind, name) = (part.entity_type.to_string(), part.entity_name.as_ref().map(|name| name.to_string()));
        if ![USER, CLIENT, IP].contains(&&*kind) {
            return Err(invalid(format!("Unhandled client quota entity type: {kind}")));
        }
        if name.as_ref().is_some_and(String::is_empty) {
            return Err(invalid(format!("Empty {kind} not supported")));
        }
        if entity.insert(kind.clone(), name).is_some() {
            return Err(invalid(format!("Invalid client quota entity, contains duplicate entity entry: {kind}")));
        }
    }
    if entity.is_empty() {
        return Err(invalid("Invalid empty client quota entity"));
    }
    let Some((kind, name)) = place(&entity) else {
        return Err(invalid(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
        ));
    };
    if let (ConfigKind::Ip, Some(address)) = (kind, &name)
        && !is_address(address).await
    {
        return Err(invalid(format!("{address} is not a valid IP or resolvable host.")));
    }
    let rates: &[(&str, bool)] = if kind == ConfigKind::Ip { &IP_RATES } else { &RATES };
    for OpData { key, value, remove, .. } in &entry.ops {
        // Of what is not there, whatever it is, nothing is to be taken back.
        if *remove {
            continue;
        }
        let Some((_, may_have_fraction)) = rates.iter().find(|(rate, _)| *rate == &**key) else {
            return Err(invalid(format!("Invalid configuration key {key}")));
        };
        // Neither is what is no number.
        if value.is_nan() || *value <= 0.0 {
            return Err(invalid(format!("Quota {key} must be greater than 0")));
        }
        if !may_have_fraction && value.fract() != 0.0 {
            return Err(invalid(format!("{key} cannot be a fractional value.")));
        }
    }
    let change = |before: &BTreeMap<String, String>| -> Result<_, AdminError> {
        let mut after = before.clone();
        for OpData { key, value, remove, .. } in &entry.ops {
            match remove {
                true => after.remove(&**key),
                false => after.insert(key.to_string(), value.to_string()),
            };
        }
        Ok(after)
    };
    let changed = cluster.change_config(kind, name.as_deref(), intent, &change).await;
    changed.map_err(|error| (error.code(), error.to_string()))
}

async fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
        || tokio::net::lookup_host((text, 0)).await.is_ok_and(|mut found| found.next().is_some())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_client_quotas_request::EntityData;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::{broker, context, name};
    use crate::api::tests::encodes;
    use crate::broker::Broker;

    type Parts<'a> = &'a [(&'a str, Option<&'a str>)];

    async fn set(broker: &Broker, version: i16, entity: Parts<'_>, key: &str, value: Option<f64>) -> (i16, String) {
        let part = |&(kind, value): &(&str, Option<&str>)| {
            EntityData::default().with_entity_type(name(kind)).with_entity_name(value.map(name))
        };
        let op =
            OpData::default().with_key(name(key)).with_value(value.unwrap_or_default()).with_remove(value.is_none());
        let entry = AlterEntry::default().with_entity(entity.iter().map(part).collect()).with_ops(vec![op]);
        let response =
            alter(&context(broker, version), AlterClientQuotasRequest::default().with_entries(vec![entry])).await;
        encodes(ApiKey::AlterClientQuotas, &response, version);
        let told = &response.entries[0];
        (told.error_code, told.error_message.as_ref().map(|text| text.to_string()).unwrap_or_default())
    }

    async fn told(
        broker: &Broker,
        version: i16,
        filter: &[(&str, i8, Option<&str>)],
        strict: bool,
    ) -> (i16, Vec<String>) {
        let component = |&(kind, how, value): &(&str, i8, Option<&str>)| {
            ComponentData::default().with_entity_type(name(kind)).with_match_type(how).with_match(value.map(name))
        };
        let request = DescribeClientQuotasRequest::default()
            .with_components(filter.iter().map(component).collect())
            .with_strict(strict);
        let response = describe(&context(broker, version), request).await;
        encodes(ApiKey::DescribeClientQuotas, &response, version);
        let entry = |entry: &describe_client_quotas_response::EntryData| {
            let part = |part: &describe_client_quotas_response::EntityData| {
                format!("{}={}", part.entity_type, part.entity_name.as_deref().unwrap_or("*"))
            };
            let rate = |rate: &describe_client_quotas_response::ValueData| format!(" {}={}", rate.key, rate.value);
            let entity: Vec<_> = entry.entity.iter().map(part).collect();
            entity.join(",") + &entry.values.iter().map(rate).collect::<String>()
        };
        (response.error_code, response.entries.unwrap_or_default().iter().map(entry).collect())
    }

    #[tokio::test]
    async fn quotas_are_kept_and_told_by_filter() {
        let (broker, _dir) = broker().await;
        let client: Parts<'_> = &[(CLIENT, Some("q/1"))];
        assert_eq!(set(&broker, 0, client, "producer_byte_rate", Some(1e6)).await.0, 0);
        assert_eq!(set(&broker, 1, &[(IP, Some("1.2.3.4"))], "connection_creation_rate", Some(7.0)).await.0, 0);
        let both: Parts<'_> = &[(USER, None), (CLIENT, Some("c"))];
        assert_eq!(set(&broker, 1, both, "request_percentage", Some(7.5)).await.0, 0);
        let one = "client-id=q/1 producer_byte_rate=1000000".to_owned();
        let two = "client-id=c,user=* request_percentage=7.5".to_owned();
        let address = "ip=1.2.3.4 connection_creation_rate=7".to_owned();
        for version in 0..=1 {
            let ask = async |filter: &[(&str, i8, Option<&str>)], strict| told(&broker, version, filter, strict).await;
            assert_eq!(ask(&[], false).await, (0, vec![two.clone(), one.clone(), address.clone()]));
            assert_eq!(ask(&[(CLIENT, 2, None)], false).await, (0, vec![two.clone(), one.clone()]));
            assert_eq!(ask(&[(CLIENT, 2, None)], true).await, (0, vec![one.clone()]));
            assert_eq!(ask(&[(CLIENT, 0, Some("q/1"))], true).await, (0, vec![one.clone()]));
            assert_eq!(ask(&[(USER, 1, None)], false).await, (0, vec![two.clone()]));
            assert_eq!(ask(&[("planet", 2, None)], false).await.0, 35);
            for wrong in [("", 2, None), (USER, 0, None), (USER, 1, Some("u")), (USER, 9, None)] {
                let code = ask(&[wrong], false).await.0;
                assert_eq!(code, 42, "{wrong:?}");
            }
            assert_eq!(ask(&[(USER, 2, None), (USER, 1, None)], false).await.0, 42);
            assert_eq!(ask(&[(USER, 2, None), (IP, 1, None)], false).await.0, 42);
        }
        assert_eq!(set(&broker, 1, client, "producer_byte_rate", None).await.0, 0);
        assert_eq!(told(&broker, 1, &[], false).await.1, [two, address]);
        broker.shutdown().await.unwrap();
    }

    /// The texts are what Apache Kafka 4.1 gives.
    #[tokio::test]
    async fn mistakes_have_kafkas_words() {
        let (broker, _dir) = broker().await;
        let client: Parts<'_> = &[(CLIENT, Some("q"))];
        let cases: &[(Parts<'_>, &str, f64, &str)] = &[
            (client, "nope", 1.0, "Invalid configuration key nope"),
            (client, "producer_byte_rate", -1.0, "Quota producer_byte_rate must be greater than 0"),
            (client, "producer_byte_rate", f64::NAN, "Quota producer_byte_rate must be greater than 0"),
            (client, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
            (&[(IP, Some("1.2.3.4"))], "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
            (&[("planet", Some("x"))], "producer_byte_rate", 1.0, "Unhandled client quota entity type: planet"),
            (&[(IP, Some("1.2.3.4")), (USER, None)], "request_percentage", 1.0, "Invalid quota entity combination"),
            (&[], "request_percentage", 1.0, "Invalid empty client quota entity"),
            (&[(USER, Some(""))], "request_percentage", 1.0, "Empty user not supported"),
            (
                &[(USER, None), (USER, None)],
                "request_percentage",
                1.0,
                "Invalid client quota entity, contains duplicate",
            ),
        ];
        for (entity, key, value, words) in cases {
            let (code, message) = set(&broker, 1, entity, key, Some(*value)).await;
            assert!(code == 42 && message.starts_with(words), "{entity:?} {key}: {code} {message}");
        }
        assert_eq!(told(&broker, 1, &[], false).await, (0, vec![]));
        broker.shutdown().await.unwrap();
    }
}
