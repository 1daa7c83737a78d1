//! Consumer groups on this broker: a coordinator for each partition of `__consumer_offsets` that it leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use highwater_groups::{Answer, Coordinator, Effect, GroupListing, Input, Now, Refused, Request};
use highwater_storage::TopicId;

use crate::broker::BrokerShared;
use crate::cluster::{AdminError, MetadataImage};
use crate::config::BrokerConfig;
use crate::coordinators::{Away, Coordinators, Deed, Event, InternalTopic, Machine, Place};

/// The topic in which groups and their offsets are kept.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// How long it leaves a store alone that could not be asked.
const RETRY: Duration = Duration::from_secs(1);

/// Topics of which a coordinator asks whether they are there.
#[derive(Debug)]
pub(crate) struct LookUp(BTreeSet<String>);

/// The coordinators that run here.
pub(crate) type Groups = Coordinators<Coordinator>;

impl Machine for Coordinator {
    type Request = Request;
    type Answer = Answer;
    /// A topic that has been deleted.
    type News = String;
    type Wish = LookUp;

    const TOPIC: &'static str = OFFSETS_TOPIC;
    const KEEPS: &'static str = "groups";

    fn new(config: &BrokerConfig) -> Self {
        Self::new(config.groups.clone())
    }

    fn handle(&mut self, now: Now, event: Event<Self>) -> Vec<Deed<Self>> {
        let input = match event {
            Event::Load(batch) => Input::Load(batch),
            Event::Loaded => Input::Loaded,
            Event::Request(ticket, request) => Input::Request(ticket, request),
            Event::Appended(id, how) => Input::Appended(id, how),
            Event::Marker { producer_id, commits } => Input::Marker { producer_id, commits },
            Event::News(topic) => Input::TopicDeleted(topic),
            Event::Tick => Input::Tick,
            Event::Resigned => Input::Resigned,
        };
        let deed = |effect| match effect {
            Effect::Answer(ticket, answer) => Some(Deed::Answer(ticket, answer)),
            Effect::Append { id, transaction, records } => {
                Some(Deed::Append { id, transaction, records, spare_bytes: 0 })
            }
            Effect::LookUpTopics(topics) => Some(Deed::Wish(LookUp(topics))),
            Effect::Odd(what) => Some(Deed::Odd(what)),
            _ => None,
        };
        self.handle(now, input).into_iter().filter_map(deed).collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        self.next_deadline_ms()
    }

    fn away(request: &Request, why: Away) -> Answer {
        request.refused(match why {
            Away::NotHere => Refused::NotCoordinator,
            Away::Nowhere => Refused::CoordinatorNotAvailable,
            Away::Loading => Refused::CoordinatorLoadInProgress,
        })
    }

    fn patience(config: &BrokerConfig) -> Duration {
        Duration::from_millis(config.offsets_commit_timeout_ms)
    }

    /// In the store, which is asked after this broker was told of its leadership: a topic that was there before is there. What the
    /// broker knows of the cluster may be older of one topic than of another.
    async fn carry_out(at: Place<Self>, LookUp(topics): LookUp) {
        let there = loop {
            match at.broker.cluster.topic_names().await {
                // A store that does not know of the coordinator's own topic is not asked about others.
                Ok(there) if there.contains(OFFSETS_TOPIC) => break there,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "it cannot be told yet whether the topics of offsets are there"),
            }
            tokio::time::sleep(RETRY).await;
        };
        for topic in topics.difference(&there) {
            tracing::info!(topic, "offsets of a topic that is not there any more are forgotten");
            if !at.tell(topic.clone()).await {
                return;
            }
        }
    }
}

/// The groups of all coordinators here.
///
/// # Errors
/// If one of them is loading.
pub(crate) async fn list(groups: &Groups) -> Result<Vec<GroupListing>, Refused> {
    let mut all = Vec::new();
    for answer in groups.ask_all(|| Request::List).await.into_iter().flatten() {
        match answer {
            Answer::Listed(Ok(listed)) => all.extend(listed),
            Answer::Listed(Err(Refused::NotCoordinator)) => {}
            Answer::Listed(Err(why)) => return Err(why),
            _ => {}
        }
    }
    Ok(all)
}

/// Makes the topic of groups if it is not there.
///
/// # Errors
/// If it cannot be made: too few brokers are there, or the store is away.
pub(crate) async fn make_topic(broker: &BrokerShared) -> Result<(), AdminError> {
    let config = &broker.config;
    let topic = InternalTopic {
        name: OFFSETS_TOPIC,
        partitions: config.offsets_topic_partitions,
        replication_factor: InternalTopic::replicas(
            config.offsets_topic_replication_factor,
            config,
            &broker.cluster.image(),
        ),
        config: [
            ("cleanup.policy", "compact".to_owned()),
            ("compression.type", "producer".to_owned()),
            ("segment.bytes", config.offsets_topic_segment_bytes.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    };
    topic.make(broker).await
}

/// With their ids: one that was deleted and made again between two images has gone too.
fn topics_of(image: &MetadataImage) -> BTreeSet<(Arc<str>, TopicId)> {
    image.topics.iter().map(|(name, topic)| (Arc::clone(name), topic.id)).collect()
}

/// Starts and ends coordinators as leaderships come and go. Ends with the broker.
pub(crate) async fn run(broker: Arc<BrokerShared>) {
    let mut images = broker.cluster.changes();
    let mut topics = BTreeSet::new();
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        broker.groups.follow(&broker, &image);
        let now = topics_of(&image);
        for (gone, _) in topics.difference(&now) {
            broker.groups.tell_all(|| gone.to_string()).await;
        }
        topics = now;
        if images.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::image;
    use crate::cluster::TopicImage;

    #[test]
    fn a_topic_that_was_made_again_between_two_images_has_gone() {
        let before = image();
        let mut after = before.clone();
        let again = TopicImage { id: TopicId([99; 16]), ..TopicImage::clone(&before.topics["books"]) };
        after.topics.insert("books".into(), Arc::new(again));
        let (before, after) = (topics_of(&before), topics_of(&after));
        let gone: Vec<&str> = before.difference(&after).map(|(name, _)| &**name).collect();
        assert_eq!(gone, ["books"]);
    }
}
