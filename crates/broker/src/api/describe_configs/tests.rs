use super::*;
use crate::api::admin_tests::cluster_of;
use crate::api::tests::encodes;
use crate::cluster::{Intent, NewTopic};
use crate::config::Settings;
use crate::config::topic_keys::TOPIC_KEYS;
use kafka_protocol::messages::ApiKey;

fn config() -> BrokerConfig {
    let mut settings = Settings::new();
    settings.set("log.retention.hours=1").unwrap();
    settings.set("num.partitions=4").unwrap();
    settings.build().unwrap().0
}

/// A broker with a topic that has settings of its own, one of them of a Kafka of the past.
async fn cluster() -> ClusterHandle {
    let cluster = cluster_of(1).await.remove(0);
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let set = pairs(&[("cleanup.policy", "compact"), ("leader.replication.throttled.replicas", "*")]);
    let new = NewTopic { name: "books".to_owned(), config: set.clone(), ..NewTopic::default() };
    cluster.create_topic(&new, Intent::Apply).await.unwrap();
    cluster.wait_for_leaders("books", 1, 10_000).await.unwrap();
    let left = |_: &BTreeMap<String, String>| {
        Ok(set
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .chain(pairs(&[("message.format.version", "2.0")]))
            .collect())
    };
    cluster.change_topic_config("books", Intent::Apply, &left).await.unwrap();
    cluster
}

async fn set(cluster: &ClusterHandle, broker: Option<&str>, name: &str, value: &str) {
    let set = |_: &BTreeMap<String, String>| Ok(BTreeMap::from([(name.to_owned(), value.to_owned())]));
    cluster.change_config(ConfigKind::Broker, broker, Intent::Apply, &set).await.unwrap();
}

async fn ask(
    cluster: &ClusterHandle,
    kind: i8,
    name: &'static str,
    keys: Option<&[&'static str]>,
    version: i16,
) -> DescribeConfigsResult {
    let keys = keys.map(|keys| keys.iter().map(|key| StrBytes::from_static_str(key)).collect());
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(StrBytes::from_static_str(name))
        .with_configuration_keys(keys);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    let mut response = answer(cluster, &config(), request, version).await;
    encodes(ApiKey::DescribeConfigs, &response, version);
    response.results.remove(0)
}

fn value<'a>(result: &'a DescribeConfigsResult, name: &str) -> (&'a str, i8) {
    let one = result.configs.iter().find(|one| &*one.name == name).unwrap();
    (one.value.as_ref().unwrap().as_str(), one.config_source)
}

fn sources(result: &DescribeConfigsResult, name: &str) -> Vec<(String, String, i8)> {
    let one = result.configs.iter().find(|one| &*one.name == name).unwrap();
    let text = |text: &StrBytes| text.to_string();
    one.synonyms.iter().map(|one| (text(&one.name), text(one.value.as_ref().unwrap()), one.source)).collect()
}

fn layers(layers: &[(&str, &str, i8)]) -> Vec<(String, String, i8)> {
    layers.iter().map(|&(name, value, source)| (name.to_owned(), value.to_owned(), source)).collect()
}

#[tokio::test]
async fn a_topics_values_come_with_their_source() {
    let cluster = cluster().await;
    for version in 1..=4 {
        let books = ask(&cluster, TOPIC, "books", None, version).await;
        assert_eq!((books.error_code, &books.error_message), (0, &None));
        // Schema Registry refuses to start unless this is exactly "compact".
        assert_eq!(value(&books, "cleanup.policy"), ("compact", 1));
        assert_eq!(value(&books, "retention.ms"), ("3600000", 4));
        assert_eq!(value(&books, "segment.bytes"), ("1073741824", 5));
        assert_eq!(value(&books, "leader.replication.throttled.replicas"), ("*", 1));
        assert_eq!(value(&books, "message.format.version"), ("2.0", 1));
        // As many as Kafka tells, and what is left of the past.
        assert_eq!(books.configs.len(), 33 + 1);
        assert_eq!(sources(&books, "retention.ms"), layers(&[("log.retention.hours", "3600000", 4)]));
        let policy = layers(&[("cleanup.policy", "compact", 1), ("log.cleanup.policy", "delete", 5)]);
        assert_eq!(sources(&books, "cleanup.policy"), policy);
        assert_eq!(sources(&books, "flush.ms"), []);
        let retention = books.configs.iter().find(|one| &*one.name == "retention.ms").unwrap();
        assert!(version < 3 || retention.documentation.is_some());
    }
    assert!(TOPIC_KEYS.iter().all(|key| !key.doc.is_empty()));
}

#[tokio::test]
async fn what_is_set_of_brokers_while_they_run_counts_for_topics_too() {
    let cluster = cluster().await;
    set(&cluster, None, "log.retention.ms", " 7 ").await;
    let books = ask(&cluster, TOPIC, "books", None, 4).await;
    assert_eq!(value(&books, "retention.ms"), ("7", 3));
    let by = layers(&[
        ("log.retention.ms", "7", 3),
        ("log.retention.hours", "3600000", 4),
        ("log.retention.hours", "168", 5),
    ]);
    assert_eq!(sources(&books, "retention.ms"), by);
    set(&cluster, Some("1"), "log.retention.ms", "8").await;
    let books = ask(&cluster, TOPIC, "books", None, 4).await;
    assert_eq!(value(&books, "retention.ms"), ("8", 2));
    let own = ask(&cluster, BROKER, "1", None, 4).await;
    assert_eq!(value(&own, "log.retention.ms"), ("8", 2));
    assert_eq!(
        sources(&own, "log.retention.ms"),
        layers(&[("log.retention.ms", "8", 2), ("log.retention.ms", "7", 3), ("log.retention.hours", "168", 5)])
    );
    assert_eq!(value(&own, "log.retention.hours"), ("1", 4));
    let of_all = ask(&cluster, BROKER, "", None, 4).await;
    assert_eq!((of_all.configs.len(), value(&of_all, "log.retention.ms")), (1, ("7", 3)));
    // So do others, whether they act or not.
    set(&cluster, None, "num.replica.fetchers", "3").await;
    set(&cluster, Some("1"), "log.cleaner.backoff.ms", "9").await;
    let own = ask(&cluster, BROKER, "1", None, 4).await;
    for (name, own_layers) in [
        ("num.replica.fetchers", layers(&[("num.replica.fetchers", "3", 3), ("num.replica.fetchers", "1", 5)])),
        (
            "log.cleaner.backoff.ms",
            layers(&[("log.cleaner.backoff.ms", "9", 2), ("log.cleaner.backoff.ms", "15000", 5)]),
        ),
    ] {
        assert_eq!(value(&own, name), (own_layers[0].1.as_str(), own_layers[0].2));
        assert_eq!(sources(&own, name), own_layers);
    }
    let of_all = ask(&cluster, BROKER, "", None, 4).await;
    assert_eq!((of_all.configs.len(), value(&of_all, "num.replica.fetchers")), (1, ("3", 3)));
    // What nobody knows may be secret.
    set(&cluster, None, "plugin.password", "xyzzy").await;
    let of_all = ask(&cluster, BROKER, "", None, 4).await;
    assert_eq!((of_all.configs[0].is_sensitive, &of_all.configs[0].value), (true, &None));
    assert_eq!((of_all.configs[0].read_only, of_all.configs[0].config_type), (true, 0));
    assert_eq!(of_all.configs[0].synonyms[0].value, None);
}

#[tokio::test]
async fn keys_pick_what_is_told() {
    let cluster = cluster().await;
    let some = ask(&cluster, TOPIC, "books", Some(&["min.insync.replicas", "xyzzy"]), 4).await;
    assert_eq!(some.configs.len(), 1);
    assert_eq!(value(&some, "min.insync.replicas"), ("1", 5));
    assert!(ask(&cluster, TOPIC, "books", Some(&["xyzzy"]), 4).await.configs.is_empty());
    // To ask for none is to ask for all.
    for (kind, name) in [(TOPIC, "books"), (BROKER, "1"), (GROUP, "g")] {
        let all = ask(&cluster, kind, name, None, 4).await;
        assert!(all.configs.len() > 3);
        assert_eq!(ask(&cluster, kind, name, Some(&[]), 4).await, all);
    }
}

#[tokio::test]
async fn a_resource_named_many_times_is_told_once() {
    let cluster = cluster().await;
    let resource = |name| {
        DescribeConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_static_str(name))
            .with_configuration_keys(None)
    };
    let names = ["books", "nope", "books", "books", "nope"];
    let request = DescribeConfigsRequest::default().with_resources(names.map(resource).to_vec());
    let results = answer(&cluster, &config(), request, 4).await.results;
    let told: Vec<_> = results.iter().map(|result| (&*result.resource_name, result.error_code)).collect();
    assert_eq!(told, [("books", 0), ("nope", 3)]);
    // By a kind that there is not Kafka refuses all of them.
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource("books"), resource("books").with_resource_type(100)]);
    let results = answer(&cluster, &config(), request, 4).await.results;
    assert_eq!(results.iter().map(|result| result.error_code).collect::<Vec<_>>(), [42, 42]);
}

#[tokio::test]
async fn the_broker_describes_itself() {
    let cluster = cluster().await;
    let result = ask(&cluster, BROKER, "1", None, 4).await;
    assert_eq!(value(&result, "num.partitions"), ("4", 4));
    assert_eq!(sources(&result, "num.partitions"), layers(&[("num.partitions", "4", 4), ("num.partitions", "1", 5)]));
    assert_eq!(value(&result, "replica.lag.time.max.ms"), ("10000", 5));
    assert_eq!(value(&result, "message.max.bytes"), ("1048588", 5));
    // What Kafka tells of a broker and has no effect here is told with Kafka's default.
    assert_eq!(value(&result, "ssl.client.auth"), ("none", 5));
    for (name, _, _) in crate::config::kafka_defaults::KAFKA_BROKER_KEYS {
        assert!(result.configs.iter().any(|one| &*one.name == *name), "{name}");
    }
    for one in &result.configs {
        let can_be_set = crate::config::topic_keys::TopicKey::of_dynamic(&one.name).is_some()
            || crate::config::dynamic::DynamicKey::named(&one.name).is_some();
        assert_eq!(one.read_only, !can_be_set, "{}", &*one.name);
        assert!(!one.is_sensitive || one.value.is_none(), "{}", &*one.name);
    }
    assert!(ask(&cluster, BROKER, "", None, 4).await.configs.is_empty());
    assert_eq!(value(&ask(&cluster, BROKER_LOGGER, "1", None, 4).await, "root").1, 6);
}

#[tokio::test]
async fn groups_and_metrics_have_defaults_without_being_there() {
    let cluster = cluster().await;
    let group = ask(&cluster, GROUP, "g", None, 4).await;
    assert_eq!((group.configs.len(), value(&group, "consumer.session.timeout.ms")), (10, ("45000", 5)));
    let metrics = ask(&cluster, CLIENT_METRICS, "m", None, 4).await;
    assert_eq!((metrics.configs.len(), value(&metrics, "interval.ms")), (3, ("300000", 5)));
}

#[tokio::test]
async fn what_is_not_there_has_its_code() {
    let cluster = cluster().await;
    for (kind, name, code) in [
        (TOPIC, "nope", 3),
        (TOPIC, "a/b", 17),
        (BROKER, "2", 42),
        (BROKER, "x", 42),
        (BROKER_LOGGER, "", 42),
        (BROKER_LOGGER, "2", 42),
        (GROUP, "", 42),
        (CLIENT_METRICS, "", 42),
        (7, "1", 42),
    ] {
        let result = ask(&cluster, kind, name, None, 4).await;
        assert_eq!(result.error_code, code, "{kind} {name}");
        assert!(result.error_message.is_some() && result.configs.is_empty());
    }
}
