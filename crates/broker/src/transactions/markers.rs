//! Markers: what a coordinator has written into each partition of a transaction that is decided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_groups::transactions::{Partition, TransactionCoordinator, TransactionInput};
use highwater_replication::{Acks, BrokerId, ProduceError};
use highwater_storage::{AppendError, CheckedBatch, Origin, ProduceRules, TimestampMs, TransactionMarker};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{ProducerId, TopicName, WriteTxnMarkersRequest};
use kafka_protocol::protocol::StrBytes;
use tokio::task::JoinSet;

use super::Ending;
use crate::api::ErrorCode;
use crate::broker::BrokerShared;
use crate::coordinators::{NotMarked, Place, marked};
use crate::gather::Gather;
use crate::groups::OFFSETS_TOPIC;
use crate::hosted::NotProduced;
use crate::partitions::TopicName as Named;

/// How long a coordinator waits until it tries again what was not written.
const RETRY: Duration = Duration::from_millis(50);

/// In so many rounds in a row a partition must be missing until it counts as deleted: what this broker knows of the cluster may
/// be a little old.
const MISSING_ROUNDS: u32 = 20;

/// The version of WriteTxnMarkers that brokers speak among themselves.
const VERSION: i16 = 1;

/// Has the markers of a transaction written, again and again until each partition has its one or is gone.
pub(super) async fn write(at: Place<TransactionCoordinator>, ending: Ending) {
    let Ending { id, producer, commits, partitions } = ending;
    let marker = TransactionMarker {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        coordinator_epoch: at.leader_epoch.0,
        is_abort: !commits,
    };
    let mut left: BTreeSet<Partition> = partitions.into_iter().collect();
    let mut missing_so_far = Missing::default();
    while !left.is_empty() {
        let (by_leader, missing) = leaders(&at.broker, &left);
        let mut done = missing_so_far.deleted(missing);
        let mut rounds_of_leaders = JoinSet::new();
        for (leader, partitions) in by_leader {
            let broker = Arc::clone(&at.broker);
            rounds_of_leaders.spawn(async move { write_at(&broker, leader, marker, partitions).await });
        }
        let mut refused = None;
        while let Some(written) = rounds_of_leaders.join_next().await {
            for (partition, how) in written.unwrap_or_default() {
                match how {
                    Ok(()) => done.push(partition),
                    Err(ErrorCode::InvalidProducerEpoch | ErrorCode::TransactionCoordinatorFenced) => {
                        refused = Some((partition, how));
                    }
                    Err(_) => {}
                }
            }
        }
        if !done.is_empty() {
            for partition in &done {
                left.remove(partition);
            }
            let news = TransactionInput::Marked { id: id.clone(), producer, partitions: done };
            if !at.tell(news).await {
                return;
            }
        }
        if let Some(((topic, partition), why)) = refused {
            // A later coordinator has decided; this one will hear that it is none any more.
            tracing::warn!(id, topic, partition, ?why, "a marker is refused, and left to whoever coordinates by now");
            return;
        }
        if !left.is_empty() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// In how many rounds up to the last one each partition was missing. Rounds in which it was there, and was not reached, say
/// nothing of it: a marker that is long on its way is not to be left out for a moment in which its topic is not seen.
#[derive(Debug, Default)]
struct Missing {
    rounds: BTreeMap<Partition, u32>,
}

impl Missing {
    /// Goes on by a round in which these are missing; those of them that count as deleted.
    fn deleted(&mut self, missing: Vec<Partition>) -> Vec<Partition> {
        let before = std::mem::take(&mut self.rounds);
        let mut deleted = Vec::new();
        for of in missing {
            let rounds = before.get(&of).map_or(1, |rounds| rounds + 1);
            if rounds > MISSING_ROUNDS {
                deleted.push(of);
            } else {
                self.rounds.insert(of, rounds);
            }
        }
        deleted
    }
}

type ByLeader = BTreeMap<BrokerId, Vec<Partition>>;

/// Who is to write them, and those that are not known. Those without a leader are left for later.
fn leaders(broker: &BrokerShared, left: &BTreeSet<Partition>) -> (ByLeader, Vec<Partition>) {
    let image = broker.cluster.image();
    let (mut by_leader, mut missing) = (ByLeader::new(), Vec::new());
    for of in left {
        match image.topic(&of.0).and_then(|topic| topic.partition(of.1)) {
            None => missing.push(of.clone()),
            Some(partition) => {
                let leader = partition.state.value.leader.filter(|leader| image.brokers.contains_key(leader));
                if let Some(leader) = leader {
                    by_leader.entry(leader).or_default().push(of.clone());
                }
            }
        }
    }
    (by_leader, missing)
}

type Written = Vec<(Partition, Result<(), ErrorCode>)>;

async fn write_at(
    broker: &BrokerShared,
    leader: BrokerId,
    marker: TransactionMarker,
    partitions: Vec<Partition>,
) -> Written {
    if leader == broker.config.broker_id {
        return write_here(broker, marker, partitions).await;
    }
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions {
        topics.entry(topic).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        let name = TopicName(StrBytes::from_string(topic));
        WritableTxnMarkerTopic::default().with_name(name).with_partition_indexes(partitions)
    });
    let one = WritableTxnMarker::default()
        .with_producer_id(ProducerId(marker.producer_id))
        .with_producer_epoch(marker.producer_epoch)
        .with_transaction_result(!marker.is_abort)
        .with_coordinator_epoch(marker.coordinator_epoch)
        .with_topics(topics.collect());
    let request = WriteTxnMarkersRequest::default().with_markers(vec![one]);
    let response = match broker.peers.ask(&broker.services, leader, &request, VERSION).await {
        Ok(response) => response,
        Err(problem) => {
            tracing::debug!(broker = leader.0, problem, "markers could not be sent");
            return Vec::new();
        }
    };
    let topics = response.markers.into_iter().flat_map(|marker| marker.topics);
    let each = topics.flat_map(|topic| {
        let name = topic.name.to_string();
        topic.partitions.into_iter().map(move |of| ((name.clone(), of.partition_index), of.error_code))
    });
    each.map(|(of, code)| {
        let code = ErrorCode::from_number(code).unwrap_or(ErrorCode::UnknownServerError);
        (of, if code.is_none() { Ok(()) } else { Err(code) })
    })
    .collect()
}

/// Writes a marker into partitions that this broker leads, and waits until it is committed there.
pub(crate) async fn write_here(
    broker: &BrokerShared,
    marker: TransactionMarker,
    partitions: Vec<Partition>,
) -> Written {
    let now = broker.services.clock.now();
    let batch = Bytes::from(marker.to_batch(now));
    let mut written = Vec::with_capacity(partitions.len());
    let (mut of_groups, mut led) = (Vec::new(), Vec::new());
    for of in partitions {
        match broker.find(Named::Name(&of.0), of.1) {
            Err(code) => written.push((of, Err(code))),
            // What a group has committed in the transaction counts from the marker on.
            Ok(_) if of.0 == OFFSETS_TOPIC => of_groups.push(of),
            Ok(hosted) => led.push((of, hosted)),
        }
    }
    let (gather, slots) = Gather::new(led.len());
    for ((_, hosted), slot) in led.iter().zip(slots) {
        // The topic's limits are for producers, but for whose clock it goes by.
        let timestamp_type = hosted.rules().timestamp_type;
        let rules = ProduceRules { origin: Origin::Coordinator, timestamp_type, ..ProduceRules::default() };
        match CheckedBatch::check(batch.clone(), &rules, now) {
            Ok(batch) => hosted.produce(batch, Acks::All, TimestampMs(i64::MAX), None, slot),
            Err(refused) => {
                slot.fill(Err(NotProduced::Partition(ProduceError::Append(AppendError::Refused(refused)))));
            }
        }
    }
    for of in of_groups {
        let how = broker.groups.mark(of.1, marker).await;
        written.push((of, how.map_err(code)));
    }
    for ((of, _), outcome) in led.into_iter().zip(gather.all().await) {
        written.push((of, marked(outcome).map_err(code)));
    }
    written
}

fn code(why: NotMarked) -> ErrorCode {
    match why {
        NotMarked::NotLeader => ErrorCode::NotLeaderOrFollower,
        NotMarked::InvalidProducerEpoch => ErrorCode::InvalidProducerEpoch,
        NotMarked::CoordinatorFenced => ErrorCode::TransactionCoordinatorFenced,
        NotMarked::NotEnoughReplicas => ErrorCode::NotEnoughReplicas,
        NotMarked::Storage => ErrorCode::KafkaStorageError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_counts_as_deleted_if_it_is_missing_in_many_rounds_in_a_row() {
        let of = |topic: &str| (topic.to_owned(), 0);
        let mut missing = Missing::default();
        // Those before were rounds of a leader that was not reached.
        for _ in 0..10 * MISSING_ROUNDS {
            assert_eq!(missing.deleted(Vec::new()), []);
        }
        for _ in 0..MISSING_ROUNDS {
            assert_eq!(missing.deleted(vec![of("books"), of("maps")]), []);
        }
        // It has been seen again, and begins from nothing.
        assert_eq!(missing.deleted(vec![of("maps")]), [of("maps")]);
        for _ in 0..MISSING_ROUNDS {
            assert_eq!(missing.deleted(vec![of("books")]), []);
        }
        assert_eq!(missing.deleted(vec![of("books")]), [of("books")]);
    }
}
