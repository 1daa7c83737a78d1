use kafka_protocol::messages::{alter_configs_request, incremental_alter_configs_request};

use super::*;
use crate::api::ApiKey;
use crate::api::admin_tests::{broker, context, make, name};
use crate::api::tests::encodes;
use crate::broker::Broker;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

type Op<'a> = (&'a str, i8, Option<&'a str>);

async fn change(broker: &Broker, version: i16, kind: i8, of: &str, ops: &[Op<'_>], validate: bool) -> (i16, String) {
    use incremental_alter_configs_request::*;
    let config = |&(key, operation, value): &Op<'_>| {
        AlterableConfig::default().with_name(name(key)).with_config_operation(operation).with_value(value.map(name))
    };
    let resource = AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(name(of))
        .with_configs(ops.iter().map(config).collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(validate);
    let response = incremental(&context(broker, version), request).await;
    encodes(ApiKey::IncrementalAlterConfigs, &response, version);
    let answer = &response.responses[0];
    assert_eq!((answer.resource_type, &*answer.resource_name), (kind, of));
    (answer.error_code, answer.error_message.as_ref().map(|message| message.to_string()).unwrap_or_default())
}

async fn altered(broker: &Broker, of: &str, ops: &[Op<'_>]) -> BTreeMap<String, String> {
    assert_eq!(change(broker, 1, TOPIC, of, ops, false).await, (0, String::new()), "{ops:?}");
    broker.image().topic(of).unwrap().config.clone()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[tokio::test]
async fn settings_are_set_deleted_and_lists_changed_word_by_word() {
    let (broker, _dir) = broker().await;
    make(broker.cluster(), "t", 1, 1).await;
    assert_eq!(altered(&broker, "t", &[("retention.ms", SET, Some("5"))]).await, pairs(&[("retention.ms", "5")]));
    let two =
        altered(&broker, "t", &[("retention.ms", DELETE, None), ("cleanup.policy", APPEND, Some("compact"))]).await;
    assert_eq!(two, pairs(&[("cleanup.policy", "delete,compact")]), "on what holds without it");
    let again = altered(&broker, "t", &[("cleanup.policy", APPEND, Some("compact, delete"))]).await;
    assert_eq!(again, two);
    let policy = async |ops: &[Op<'_>]| altered(&broker, "t", ops).await.remove("cleanup.policy");
    assert_eq!(policy(&[("cleanup.policy", SUBTRACT, Some("delete"))]).await.as_deref(), Some("compact"));
    assert_eq!(policy(&[("cleanup.policy", SUBTRACT, Some("compact"))]).await.as_deref(), Some(""));
    assert_eq!(policy(&[("no.such", DELETE, None), ("cleanup.policy", DELETE, None)]).await, None);
    broker.shutdown().await.unwrap();
}

/// The codes and texts are what Apache Kafka 4.1 gives.
#[tokio::test]
async fn every_mistake_gets_kafkas_code_and_changes_nothing() {
    let (broker, _dir) = broker().await;
    make(broker.cluster(), "t", 1, 1).await;
    let cases: &[(i8, &str, &[Op<'_>], i16, &str)] = &[
        (TOPIC, "nope", &[("retention.ms", SET, Some("5"))], 3, "The topic 'nope' does not exist."),
        (TOPIC, "a b", &[("retention.ms", SET, Some("5"))], 17, "Topic name is invalid: "),
        (TOPIC, "", &[("retention.ms", SET, Some("5"))], 42, "Default topic resources are not allowed."),
        (TOPIC, "t", &[("no.such", SET, Some("5"))], 40, "Unknown topic config name: no.such"),
        (TOPIC, "t", &[("message.format.version", SET, Some("2.0"))], 40, "Unknown topic config name: message.format"),
        (TOPIC, "t", &[("retention.ms", SET, Some("soon"))], 40, "Invalid value soon for configuration retention.ms: "),
        (
            TOPIC,
            "t",
            &[("cleanup.policy", SET, Some("shred"))],
            40,
            "Invalid value shred for configuration cleanup.policy",
        ),
        (TOPIC, "t", &[("retention.ms", SET, None)], 42, "Null value not supported for : retention.ms"),
        (TOPIC, "t", &[("retention.ms", 9, Some("5"))], 42, "Unknown config operation 9"),
        (
            TOPIC,
            "t",
            &[("retention.ms", APPEND, Some("5"))],
            40,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC,
            "t",
            &[("retention.ms", SET, Some("5")), ("retention.ms", SET, Some("6"))],
            42,
            "Error due to duplicate config keys",
        ),
        (
            TOPIC,
            "t",
            &[("min.compaction.lag.ms", SET, Some("5")), ("max.compaction.lag.ms", SET, Some("4"))],
            40,
            "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)",
        ),
        (TOPIC, "t", &[("remote.storage.enable", SET, Some("true"))], 40, "Tiered Storage functionality is disabled"),
        (
            BROKER,
            "",
            &[("process.roles", SET, Some("x"))],
            42,
            "Cannot update these configs dynamically: Set(process.roles)",
        ),
        (BROKER, "1", &[("num.partitions", SET, Some("9"))], 42, "Cannot update these configs dynamically"),
        (BROKER, "1", &[("listeners", SET, Some("SSL://:9093"))], 42, "Cannot update these configs dynamically"),
        (BROKER, "", &[("num.io.threads", SET, Some("x"))], 42, "Invalid value x for configuration num.io.threads: "),
        (
            BROKER,
            "1",
            &[("log.cleaner.threads", SET, Some("some"))],
            42,
            "Invalid value some for configuration log.cleaner.threads: ",
        ),
        (
            BROKER,
            "",
            &[("sasl.kerberos.min.time.before.relogin", SET, Some("58000"))],
            42,
            "Cannot update these configs at default cluster level, broker id must be specified: \
             Set(sasl.kerberos.min.time.before.relogin)",
        ),
        (BROKER, "1", &[("log.retention.hours", SET, Some("9"))], 42, "Cannot update these configs dynamically"),
        (
            BROKER,
            "1",
            &[("log.retention.ms", SET, Some("x"))],
            42,
            "Invalid value x for configuration log.retention.ms: ",
        ),
        (
            BROKER,
            "2",
            &[("log.retention.ms", SET, Some("5"))],
            42,
            "Unexpected broker id, expected 1 or empty string, but",
        ),
        (BROKER, "x", &[("log.retention.ms", SET, Some("5"))], 42, "Broker id must be an integer, but it is: x"),
        (BROKER_LOGGER, "1", &[("kafka.server", SET, Some("DEBUG"))], 40, "Logger kafka.server does not exist!"),
        (BROKER_LOGGER, "1", &[("root", DELETE, None)], 42, "Removing the log level of the root logger is not allowed"),
        (
            BROKER_LOGGER,
            "1",
            &[("root", APPEND, Some("x"))],
            42,
            "APPEND operation is not allowed for the BROKER_LOGGER",
        ),
        (
            GROUP,
            "",
            &[("consumer.session.timeout.ms", SET, Some("50000"))],
            42,
            "Default group resources are not allowed.",
        ),
        (GROUP, "g", &[("no.such", SET, Some("5"))], 40, "Unknown group config name: no.such"),
        (
            GROUP,
            "g",
            &[("consumer.session.timeout.ms", SET, Some("5"))],
            40,
            "consumer.session.timeout.ms must be greater",
        ),
        (CLIENT_METRICS, "", &[("metrics", SET, Some("a"))], 42, "Subscription name can't be empty"),
        (CLIENT_METRICS, "m", &[("x", SET, Some("a"))], 42, "Unknown client metrics configuration: x"),
        (CLIENT_METRICS, "m", &[("match", SET, Some("foo"))], 40, "Illegal client matching pattern: foo"),
        (7, "t", &[("retention.ms", SET, Some("5"))], 42, "Unexpected resource type 7."),
    ];
    for (kind, of, ops, code, message) in cases {
        for version in 0..=1 {
            let (told, words) = change(&broker, version, *kind, of, ops, false).await;
            assert_eq!(told, *code, "{kind} {of:?} {ops:?}: {words}");
            assert!(words.starts_with(message), "{kind} {of:?} {ops:?}: {words}");
        }
    }
    assert_eq!(broker.image().topic("t").unwrap().config, BTreeMap::new());
    assert_eq!(change(&broker, 1, TOPIC, "t", &[("retention.ms", SET, Some("5"))], true).await.0, 0);
    assert_eq!(broker.image().topic("t").unwrap().config, BTreeMap::new(), "it was only checked");
    assert_eq!(broker.image().broker_config, BTreeMap::new());
    broker.shutdown().await.unwrap();
}

#[tokio::test]
async fn all_settings_of_a_topic_are_replaced_in_every_version() {
    use alter_configs_request::*;
    let (broker, _dir) = broker().await;
    make(broker.cluster(), "t", 1, 1).await;
    let ask = async |version, configs: &[(&str, Option<&str>)], names: &[&str]| {
        let config = |&(key, value): &(&str, Option<&str>)| {
            AlterableConfig::default().with_name(name(key)).with_value(value.map(name))
        };
        let resource = |of: &&str| {
            AlterConfigsResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(name(of))
                .with_configs(configs.iter().map(config).collect())
        };
        let request = AlterConfigsRequest::default().with_resources(names.iter().map(resource).collect());
        let response = replace(&context(&broker, version), request).await;
        encodes(ApiKey::AlterConfigs, &response, version);
        response.responses.iter().map(|one| one.error_code).collect::<Vec<_>>()
    };
    for version in 0..=2 {
        let value = version.to_string();
        assert_eq!(ask(version, &[("retention.ms", Some(&value)), ("segment.ms", Some("9"))], &["t"]).await, [0]);
        assert_eq!(ask(version, &[("retention.bytes", Some(&value))], &["t", "nope"]).await, [0, 3]);
        assert_eq!(broker.image().topic("t").unwrap().config, pairs(&[("retention.bytes", &value)]));
        assert_eq!(ask(version, &[("retention.ms", None)], &["t"]).await, [42]);
        assert_eq!(ask(version, &[("retention.ms", Some("x"))], &["t"]).await, [40]);
        assert_eq!(ask(version, &[("retention.ms", Some("1"))], &["t", "t"]).await, [42]);
    }
    broker.shutdown().await.unwrap();
}

/// What holds for a topic's producers is another thing as soon as the partition has heard of the change.
#[tokio::test]
async fn a_setting_acts_without_a_restart_and_after_one() {
    let (broker, dir) = broker().await;
    make(broker.cluster(), "t", 1, 1).await;
    let of = highwater_storage::TopicPartition::new("t", 0);
    let largest = async |broker: &Broker, bytes: usize| loop {
        let hosted = broker.shared().partitions.get(&of);
        if hosted.is_some_and(|hosted| hosted.rules().max_message_bytes == bytes) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    largest(&broker, 1_048_588).await;
    let set = async |broker: &Broker, kind, of, key, value| {
        assert_eq!(change(broker, 1, kind, of, &[(key, SET, Some(value))], false).await.0, 0);
    };
    set(&broker, BROKER, "", "message.max.bytes", "5000").await;
    largest(&broker, 5_000).await;
    set(&broker, BROKER, "1", "message.max.bytes", "6000").await;
    largest(&broker, 6_000).await;
    set(&broker, TOPIC, "t", "max.message.bytes", "7000").await;
    largest(&broker, 7_000).await;
    broker.shutdown().await.unwrap();
    let broker = Broker::start_embedded(crate::api::admin_tests::config(&dir)).await.unwrap();
    largest(&broker, 7_000).await;
    assert_eq!(change(&broker, 1, TOPIC, "t", &[("max.message.bytes", DELETE, None)], false).await.0, 0);
    largest(&broker, 6_000).await;
    broker.shutdown().await.unwrap();
}

/// Tools set these and go on when they are told what they set; what Kafka's own threads are for has no effect here.
#[tokio::test]
async fn what_kafka_takes_of_brokers_is_taken_kept_and_acts_where_it_can() {
    let (broker, _dir) = broker().await;
    let set = async |of, key, value| change(&broker, 1, BROKER, of, &[(key, SET, Some(value))], false).await;
    for (of, key, value) in [
        ("", "log.cleaner.backoff.ms", "7"),
        ("", "num.replica.fetchers", "3"),
        ("", "num.network.threads", "5"),
        ("1", "num.io.threads", "9"),
        ("1", "sasl.kerberos.min.time.before.relogin", "58000"),
        ("1", "transaction.partition.verification.enable", "false"),
    ] {
        assert_eq!(set(of, key, value).await, (0, String::new()), "{key}");
        let kept =
            if of.is_empty() { broker.image().broker_defaults.clone() } else { broker.image().broker_config.clone() };
        assert_eq!(kept.get(key).map(String::as_str), Some(value));
    }
    let running = || broker.shared().partitions.running();
    while (running().cleaner_backoff_ms, running().verifies_transactions) != (7, false) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(running().io_threads, broker.shared().config.io_threads);
    let kinds = [("metric.reporters", APPEND, Some("a.B"))];
    assert_eq!(change(&broker, 1, BROKER, "", &kinds, false).await.0, 0);
    let told = broker.image().broker_defaults.get("metric.reporters").cloned();
    assert_eq!(told.as_deref(), Some("org.apache.kafka.common.metrics.JmxReporter,a.B"));
    broker.shutdown().await.unwrap();
}
