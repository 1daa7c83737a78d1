//! OffsetDelete (47).

use highwater_groups::{Answer, Refused, Request};
use kafka_protocol::messages::offset_delete_response::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use super::super::{ErrorCode, RequestContext};
use super::{code, text, topic_name};

pub(crate) async fn handle(context: &RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse {
    let image = context.broker.cluster.image();
    let mut partitions = Vec::new();
    let mut response = OffsetDeleteResponse::default();
    for topic in request.topics {
        let known = image.topic(&topic.name);
        let mut places = Vec::new();
        for partition in topic.partitions {
            let index = partition.partition_index;
            let mut place = OffsetDeleteResponsePartition::default().with_partition_index(index);
            if known.is_some_and(|known| known.partition(index).is_some()) {
                partitions.push((topic.name.to_string(), index));
            } else {
                place.error_code = ErrorCode::UnknownTopicOrPartition.number();
            }
            places.push(place);
        }
        let topic = OffsetDeleteResponseTopic::default().with_name(topic_name(&topic.name));
        response.topics.push(topic.with_partitions(places));
    }
    let asked = Request::DeleteOffsets { group: text(request.group_id.0), partitions };
    let deleted = match super::ask(context, asked).await {
        Answer::DeletedOffsets(deleted) => deleted,
        _ => Err(Refused::CoordinatorNotAvailable),
    };
    match deleted {
        Err(why) => OffsetDeleteResponse::default().with_error_code(why.code()),
        Ok(results) => {
            let open = response.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            for (place, done) in open.filter(|place| place.error_code == 0).zip(results) {
                place.error_code = code(done);
            }
            response
        }
    }
}
