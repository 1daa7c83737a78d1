//! Settings of topics: what `highwater topics` shows of them and changes.

use anyhow::{Context, bail};
use clap::Args;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse, IncrementalAlterConfigsRequest};
use kafka_protocol::protocol::StrBytes;

use super::{aligned, describe_code};
use crate::api::ErrorCode;
use crate::client::Connection;

/// Kafka's numbers: of topics among the resources that have settings, of where a setting comes from, and of changes.
const TOPIC: i8 = 2;
const OF_TOPIC: i8 = 1;
const SET: i8 = 0;
const DELETE: i8 = 1;

/// A change of topics' settings, as Kafka's `kafka-configs.sh` writes it.
#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// Change settings of the topics named, by what is added and deleted.
    #[arg(long, requires = "topics")]
    pub(super) alter: bool,
    /// Settings to make: KEY=VALUE, several with commas between them. A value with commas stands in brackets:
    /// `cleanup.policy=[compact,delete]`.
    #[arg(long, value_name = "KEY=VALUE,..", requires = "alter", allow_hyphen_values = true)]
    add_config: Vec<String>,
    /// Settings to take back: KEY, several with commas between them. The default of the brokers counts from then on.
    #[arg(long, value_name = "KEY,..", requires = "alter")]
    delete_config: Vec<String>,
}

/// Changes the settings of these topics.
pub(super) async fn alter(connection: &Connection, topics: &[String], changes: &Changes) -> anyhow::Result<()> {
    let entries = changes.entries()?;
    if entries.is_empty() {
        bail!("nothing is to be changed: name settings with --add-config or --delete-config");
    }
    let resource = |name: &String| {
        AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_string(name.clone()))
            .with_configs(entries.clone())
    };
    let request = IncrementalAlterConfigsRequest::default().with_resources(topics.iter().map(resource).collect());
    let response = connection.send(&request).await?;
    let refused = response.responses.iter().filter(|answer| answer.error_code != ErrorCode::None.number());
    let told = |answer: &kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse| {
        let why = answer.error_message.as_deref().unwrap_or_default();
        format!("topic {}: {} {why}", answer.resource_name, describe_code(answer.error_code)).trim_end().to_owned()
    };
    let refused: Vec<_> = refused.map(told).collect();
    if refused.is_empty() { Ok(()) } else { bail!("{}", refused.join("\n")) }
}

/// The settings that topics have of their own, as a table under another one; nothing if none of them has any.
pub(super) async fn table(connection: &Connection, topics: &[&str]) -> anyhow::Result<String> {
    if topics.is_empty() {
        return Ok(String::new());
    }
    let resource = |name: &&str| {
        DescribeConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_string((*name).to_owned()))
            .with_configuration_keys(None)
    };
    let request = DescribeConfigsRequest::default().with_resources(topics.iter().map(resource).collect());
    table_of(&connection.send(&request).await?)
}

fn table_of(response: &DescribeConfigsResponse) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for topic in &response.results {
        if topic.error_code != ErrorCode::None.number() {
            bail!("settings of topic {}: {}", topic.resource_name, describe_code(topic.error_code));
        }
        let own = topic.configs.iter().filter(|one| one.config_source == OF_TOPIC);
        rows.extend(own.map(|one| {
            [topic.resource_name.to_string(), one.name.to_string(), one.value.as_deref().unwrap_or("").to_owned()]
        }));
    }
    if rows.is_empty() {
        return Ok(String::new());
    }
    rows.sort();
    rows.insert(0, ["TOPIC", "SETTING", "VALUE"].map(str::to_owned));
    Ok(format!("\n{}", aligned(&rows)))
}

impl Changes {
    fn entries(&self) -> anyhow::Result<Vec<AlterableConfig>> {
        let mut entries = Vec::new();
        for text in self.add_config.iter().flat_map(|texts| parts(texts)) {
            let (key, value) = text.split_once('=').with_context(|| format!("{text:?} is no KEY=VALUE"))?;
            let value = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
            entries.push(change(key, SET).with_value(Some(StrBytes::from_string(value.to_owned()))));
        }
        for key in self.delete_config.iter().flat_map(|texts| parts(texts)) {
            entries.push(change(key, DELETE).with_value(None));
        }
        Ok(entries)
    }
}

fn change(key: &str, operation: i8) -> AlterableConfig {
    AlterableConfig::default().with_name(StrBytes::from_string(key.trim().to_owned())).with_config_operation(operation)
}

/// What stands between commas that are not in brackets.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let at_comma = |sign: char| {
        match sign {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        sign == ',' && depth == 0
    };
    text.split(at_comma).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult};

    use super::*;

    fn changes(add: &[&str], delete: &[&str]) -> Changes {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Changes { alter: true, add_config: owned(add), delete_config: owned(delete) }
    }

    #[test]
    fn changes_are_written_as_kafkas_tool_takes_them() {
        let read = |add: &[&str], delete: &[&str]| {
            let entries = changes(add, delete).entries().unwrap();
            let told = |one: AlterableConfig| {
                (one.config_operation, one.name.to_string(), one.value.map(|value| value.to_string()))
            };
            entries.into_iter().map(told).collect::<Vec<_>>()
        };
        let set = |key: &str, value: &str| (SET, key.to_owned(), Some(value.to_owned()));
        let delete = |key: &str| (DELETE, key.to_owned(), None);
        assert_eq!(
            read(&["retention.ms=-1,cleanup.policy=[compact,delete]", "a="], &["b,c", "d"]),
            [
                set("retention.ms", "-1"),
                set("cleanup.policy", "compact,delete"),
                set("a", ""),
                delete("b"),
                delete("c"),
                delete("d"),
            ]
        );
        assert!(changes(&["retention.ms"], &[]).entries().unwrap_err().to_string().contains("KEY=VALUE"));
    }

    #[test]
    fn what_topics_have_of_their_own_is_shown() {
        let setting = |name: &'static str, value: &'static str, source: i8| {
            DescribeConfigsResourceResult::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(Some(StrBytes::from_static_str(value)))
                .with_config_source(source)
        };
        let topic = |name: &'static str, settings| {
            DescribeConfigsResult::default().with_resource_name(StrBytes::from_static_str(name)).with_configs(settings)
        };
        let response = |results| DescribeConfigsResponse::default().with_results(results);
        let two = response(vec![
            topic("films", vec![setting("retention.ms", "5", OF_TOPIC), setting("segment.bytes", "9", 5)]),
            topic("books", vec![setting("cleanup.policy", "compact", OF_TOPIC)]),
        ]);
        let expected = "\nTOPIC  SETTING         VALUE\nbooks  cleanup.policy  compact\nfilms  retention.ms    5\n";
        assert_eq!(table_of(&two).unwrap(), expected);
        assert_eq!(table_of(&response(vec![topic("books", vec![setting("segment.bytes", "9", 5)])])).unwrap(), "");
        let unknown = response(vec![topic("books", vec![]).with_error_code(3)]);
        assert!(table_of(&unknown).unwrap_err().to_string().contains("UNKNOWN_TOPIC_OR_PARTITION"));
    }
}
