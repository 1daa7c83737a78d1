//! Fetch responses, written without copying their records.
//!
//! kafka-protocol's encoder copies every byte of records into its buffer. Here the fields are written between the
//! records and the records themselves become pieces of their own. A test holds this to that encoder, byte for byte, in
//! every version.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::FetchResponse;
use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, NodeEndpoint, PartitionData};

/// Records shorter than this are copied: a piece of its own costs about as much.
const SPLICED_BYTES_MIN: usize = 1024;

/// A buffer that is cut wherever records go in by reference.
struct Splicer {
    pieces: Vec<Bytes>,
    head: BytesMut,
    flexible: bool,
}

/// Appends the body of `response` in `version` (4 to 18) to `head` and returns the pieces that make up both.
/// Fields that the version lacks are left out; unknown tagged fields, which this broker never sets, are not written.
pub(crate) fn encode_fetch_response(head: BytesMut, response: &FetchResponse, version: i16) -> Vec<Bytes> {
    let mut to = Splicer { pieces: Vec::new(), head, flexible: version >= 12 };
    to.head.put_i32(response.throttle_time_ms);
    if version >= 7 {
        to.head.put_i16(response.error_code);
        to.head.put_i32(response.session_id);
    }
    to.count(response.responses.len());
    for topic in &response.responses {
        to.topic(topic, version);
    }
    if version >= 16 && !response.node_endpoints.is_empty() {
        to.varint(1);
        let mut inner = Splicer { pieces: Vec::new(), head: BytesMut::new(), flexible: true };
        inner.count(response.node_endpoints.len());
        for endpoint in &response.node_endpoints {
            inner.endpoint(endpoint);
        }
        to.tagged(0, &inner.head);
    } else {
        to.no_tags();
    }
    to.finish()
}

impl Splicer {
    fn topic(&mut self, topic: &FetchableTopicResponse, version: i16) {
        if version >= 13 {
            self.head.put_slice(topic.topic_id.as_bytes());
        } else {
            self.string(&topic.topic);
        }
        self.count(topic.partitions.len());
        for partition in &topic.partitions {
            self.partition(partition, version);
        }
        self.no_tags();
    }

    fn partition(&mut self, partition: &PartitionData, version: i16) {
        self.head.put_i32(partition.partition_index);
        self.head.put_i16(partition.error_code);
        self.head.put_i64(partition.high_watermark);
        self.head.put_i64(partition.last_stable_offset);
        if version >= 5 {
            self.head.put_i64(partition.log_start_offset);
        }
        match &partition.aborted_transactions {
            None if self.flexible => self.varint(0),
            None => self.head.put_i32(-1),
            Some(aborted) => {
                self.count(aborted.len());
                for transaction in aborted {
                    self.head.put_i64(transaction.producer_id.0);
                    self.head.put_i64(transaction.first_offset);
                    self.no_tags();
                }
            }
        }
        if version >= 11 {
            self.head.put_i32(partition.preferred_read_replica.0);
        }
        self.records(partition.records.as_ref());
        if self.flexible {
            self.partition_tags(partition);
        }
    }

    fn partition_tags(&mut self, partition: &PartitionData) {
        let default = PartitionData::default();
        let mut inner = BytesMut::new();
        let has = [
            partition.diverging_epoch != default.diverging_epoch,
            partition.current_leader != default.current_leader,
            partition.snapshot_id != default.snapshot_id,
        ];
        self.varint(has.iter().filter(|&&has| has).count());
        if has[0] {
            inner.put_i32(partition.diverging_epoch.epoch);
            inner.put_i64(partition.diverging_epoch.end_offset);
            inner.put_u8(0);
            self.tagged(0, &inner.split());
        }
        if has[1] {
            inner.put_i32(partition.current_leader.leader_id.0);
            inner.put_i32(partition.current_leader.leader_epoch);
            inner.put_u8(0);
            self.tagged(1, &inner.split());
        }
        if has[2] {
            inner.put_i64(partition.snapshot_id.end_offset);
            inner.put_i32(partition.snapshot_id.epoch);
            inner.put_u8(0);
            self.tagged(2, &inner.split());
        }
    }

    fn endpoint(&mut self, endpoint: &NodeEndpoint) {
        self.head.put_i32(endpoint.node_id.0);
        self.string(&endpoint.host);
        self.head.put_i32(endpoint.port);
        match &endpoint.rack {
            Some(rack) => self.string(rack),
            None => self.varint(0),
        }
        self.no_tags();
    }

    fn records(&mut self, records: Option<&Bytes>) {
        let Some(records) = records else {
            return if self.flexible { self.varint(0) } else { self.head.put_i32(-1) };
        };
        self.count(records.len());
        if records.len() < SPLICED_BYTES_MIN {
            self.head.put_slice(records);
        } else {
            self.pieces.push(self.head.split().freeze());
            self.pieces.push(records.clone());
        }
    }

    fn string(&mut self, text: &str) {
        if self.flexible {
            self.varint(text.len() + 1);
        } else {
            // A name came in through this protocol or was checked to be at most 249 characters.
            self.head.put_i16(i16::try_from(text.len()).unwrap_or(i16::MAX));
        }
        self.head.put_slice(text.as_bytes());
    }

    fn count(&mut self, count: usize) {
        if self.flexible {
            self.varint(count + 1);
        } else {
            // Counts and record sizes are bounded by `fetch.max.bytes`, an i32.
            self.head.put_i32(i32::try_from(count).unwrap_or(i32::MAX));
        }
    }

    fn tagged(&mut self, tag: usize, value: &[u8]) {
        self.varint(tag);
        self.varint(value.len());
        self.head.put_slice(value);
    }

    fn no_tags(&mut self) {
        if self.flexible {
            self.varint(0);
        }
    }

    fn varint(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.head.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.head.put_u8(value as u8);
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.head.is_empty() {
            self.pieces.push(self.head.freeze());
        }
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::fetch_response::{AbortedTransaction, EpochEndOffset, LeaderIdAndEpoch, SnapshotId};
    use kafka_protocol::messages::{BrokerId, ProducerId, TopicName};
    use kafka_protocol::protocol::{Encodable, StrBytes};
    use uuid::Uuid;

    fn response(version: i16) -> FetchResponse {
        let records = [0usize, 5, 1023, 1024, 70_000];
        let mut partitions: Vec<_> = records
            .iter()
            .enumerate()
            .map(|(at, &bytes)| {
                PartitionData::default()
                    .with_partition_index(at as i32)
                    .with_error_code(3)
                    .with_high_watermark(11)
                    .with_last_stable_offset(10)
                    .with_log_start_offset(2)
                    .with_records(Some(Bytes::from(vec![at as u8; bytes])))
            })
            .collect();
        partitions[0].records = None;
        partitions[0].aborted_transactions = Some(Vec::new());
        partitions[1].aborted_transactions = None;
        partitions[2].aborted_transactions = Some(vec![
            AbortedTransaction::default().with_producer_id(ProducerId(5)).with_first_offset(6),
            AbortedTransaction::default(),
        ]);
        if version >= 11 {
            partitions[1].preferred_read_replica = BrokerId(3);
        }
        if version >= 12 {
            partitions[2].diverging_epoch = EpochEndOffset::default().with_epoch(4).with_end_offset(400);
            partitions[3].current_leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(2)).with_leader_epoch(7);
            partitions[4].diverging_epoch = EpochEndOffset::default().with_epoch(1);
            partitions[4].current_leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(9));
            partitions[4].snapshot_id = SnapshotId::default().with_epoch(1).with_end_offset(2);
        }
        let mut topic = FetchableTopicResponse::default().with_partitions(partitions);
        if version >= 13 {
            topic.topic_id = Uuid::from_bytes([7; 16]);
        } else {
            topic.topic = TopicName(StrBytes::from_static_str("books"));
        }
        let mut response = FetchResponse::default().with_throttle_time_ms(9);
        response.responses = vec![topic, FetchableTopicResponse::default()];
        if version >= 7 {
            response.error_code = 70;
            response.session_id = 1234;
        }
        if version >= 16 {
            response.node_endpoints = vec![
                NodeEndpoint::default()
                    .with_node_id(BrokerId(1))
                    .with_host(StrBytes::from_static_str("h"))
                    .with_port(9),
                NodeEndpoint::default().with_rack(Some(StrBytes::from_static_str("r"))),
            ];
        }
        response
    }

    #[test]
    fn bytes_are_those_of_the_protocol_crate_in_every_version() {
        for version in 4..=18 {
            for response in [response(version), FetchResponse::default()] {
                let mut theirs = BytesMut::from(&b"head"[..]);
                response.encode(&mut theirs, version).unwrap();
                let ours = encode_fetch_response(BytesMut::from(&b"head"[..]), &response, version);
                assert!(ours.iter().all(|piece| !piece.is_empty()));
                assert_eq!(ours.concat(), theirs, "version {version}");
            }
        }
    }

    #[test]
    fn long_records_are_passed_on_by_reference() {
        let response = response(12);
        let pieces = encode_fetch_response(BytesMut::new(), &response, 12);
        for partition in &response.responses[0].partitions[3..] {
            let records = partition.records.as_ref().unwrap();
            assert!(pieces.iter().any(|piece| piece.as_ptr() == records.as_ptr() && piece.len() == records.len()));
        }
        assert_eq!(pieces.len(), 5);
    }
}
