//! DeleteTopics (20).

use std::collections::BTreeSet;

use highwater_storage::TopicId;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use kafka_protocol::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{Close, ErrorCode, RequestContext};
use crate::cluster::{AdminError, ClusterHandle, TopicRef};

pub(crate) async fn handle(
    context: &RequestContext,
    request: DeleteTopicsRequest,
) -> Result<DeleteTopicsResponse, Close> {
    Ok(answer(&context.broker.cluster, context.broker.config.delete_topics, context.version, request).await)
}

async fn answer(
    cluster: &ClusterHandle,
    enabled: bool,
    version: i16,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let deadline = super::deadline(request.timeout_ms);
    // Versions before 6 carry names only.
    let named = request.topic_names.into_iter().map(|name| DeleteTopicState::default().with_name(Some(name)));
    let asked: Vec<DeleteTopicState> = request.topics.into_iter().chain(named).collect();
    let mut seen = BTreeSet::new();
    let mut responses = Vec::with_capacity(asked.len());
    for topic in asked {
        let result = match which(&topic) {
            _ if !enabled => Err(AdminError::DeletionDisabled),
            Err(error) => Err(error),
            Ok(_) if !seen.insert((topic.name.clone().map(|name| name.0), topic.topic_id)) => {
                Err(AdminError::InvalidRequest("Duplicate topic name or topic id.".to_owned()))
            }
            Ok(which) => delete(cluster, &which, deadline).await,
        };
        responses.push(to_result(version, topic, result));
    }
    DeleteTopicsResponse::default().with_responses(responses)
}

fn which(topic: &DeleteTopicState) -> Result<TopicRef, AdminError> {
    match &topic.name {
        Some(name) if topic.topic_id.is_nil() => Ok(TopicRef::Name(name.to_string())),
        None if !topic.topic_id.is_nil() => Ok(TopicRef::Id(TopicId(topic.topic_id.into_bytes()))),
        Some(_) => Err(AdminError::InvalidRequest("Topic name and topic ID can not both be specified.".to_owned())),
        None => Err(AdminError::InvalidRequest("Neither topic name nor id were specified.".to_owned())),
    }
}

async fn delete(
    cluster: &ClusterHandle,
    which: &TopicRef,
    deadline: tokio::time::Instant,
) -> Result<(String, TopicId), AdminError> {
    let (name, id) = cluster.delete_topic(which).await?;
    cluster.wait_for_deletion(id, super::remaining_ms(deadline)).await?;
    Ok((name, id))
}

fn to_result(
    version: i16,
    asked: DeleteTopicState,
    result: Result<(String, TopicId), AdminError>,
) -> DeletableTopicResult {
    let answer = DeletableTopicResult::default();
    match result {
        Ok((name, id)) => answer
            .with_name(Some(TopicName(StrBytes::from_string(name))))
            .with_topic_id(Uuid::from_bytes(id.0))
            .with_error_message(None),
        Err(error) => {
            let code = match error.code() {
                // Clients of these versions do not know 73.
                ErrorCode::TopicDeletionDisabled if version < 3 => ErrorCode::InvalidRequest,
                code => code,
            };
            answer
                .with_name(asked.name)
                .with_topic_id(asked.topic_id)
                .with_error_code(code.number())
                .with_error_message(Some(super::told(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::admin_tests::{cluster_of, make, name};

    fn by_name(text: &str) -> DeleteTopicState {
        DeleteTopicState::default().with_name(Some(TopicName(name(text))))
    }
    fn by_id(id: TopicId) -> DeleteTopicState {
        DeleteTopicState::default().with_name(None).with_topic_id(Uuid::from_bytes(id.0))
    }

    async fn ask(cluster: &ClusterHandle, topics: Vec<DeleteTopicState>) -> Vec<DeletableTopicResult> {
        let request = DeleteTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000);
        answer(cluster, true, 6, request).await.responses
    }

    #[tokio::test]
    async fn topics_are_deleted_by_name_and_by_id_and_can_be_made_again() {
        let members = cluster_of(2).await;
        let cluster = &members[0];
        let (t, u) = (make(cluster, "t", 3, 2).await, make(cluster, "u", 1, 1).await);
        let results = ask(cluster, vec![by_name("t"), by_id(u), by_name("x"), by_id(TopicId([7; 16]))]).await;
        let told: Vec<_> = results
            .iter()
            .map(|result| (result.name.as_ref().map(|name| name.to_string()), result.topic_id, result.error_code))
            .collect();
        let uuid = |id: TopicId| Uuid::from_bytes(id.0);
        assert_eq!(
            told,
            [
                (Some("t".to_owned()), uuid(t), 0),
                (Some("u".to_owned()), uuid(u), 0),
                (Some("x".to_owned()), Uuid::nil(), 3),
                (None, uuid(TopicId([7; 16])), 100),
            ]
        );
        assert!(cluster.image().topics.is_empty());
        assert_ne!(make(cluster, "t", 1, 1).await, t);
        assert_eq!(ask(cluster, vec![by_id(t)]).await[0].error_code, 100, "the id of the earlier topic is gone");
    }

    #[tokio::test]
    async fn requests_that_contradict_themselves_delete_nothing() {
        let members = cluster_of(1).await;
        let cluster = &members[0];
        let id = make(cluster, "t", 1, 1).await;
        let both = by_name("t").with_topic_id(Uuid::from_bytes(id.0));
        let neither = DeleteTopicState::default().with_name(None);
        for topic in [both, neither] {
            assert_eq!(ask(cluster, vec![topic]).await[0].error_code, 42);
        }
        let request = || DeleteTopicsRequest::default().with_topic_names(vec![TopicName(name("t"))]);
        for (version, code) in [(1, 42), (3, 73)] {
            assert_eq!(answer(cluster, false, version, request()).await.responses[0].error_code, code);
        }
        for bad in ["../t", "", "t/partitions"] {
            assert_eq!(ask(cluster, vec![by_name(bad)]).await[0].error_code, 3, "{bad:?}");
        }
        assert_eq!(cluster.image().topics.len(), 1);
        // Twice in one request: the first counts.
        let twice = ask(cluster, vec![by_name("t"), by_name("t")]).await;
        assert_eq!((twice[0].error_code, twice[1].error_code), (0, 42));
        assert_eq!(answer(cluster, true, 1, request()).await.responses[0].error_code, 3);
    }
}
