//! What a producer makes of leaders that contradict each other.

use bytes::{Buf, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, BrokerId, InitProducerIdResponse, MetadataResponse, ProducerId,
};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Versions whose header says nothing behind the correlation id.
const PRODUCE: i16 = 8;
const METADATA: i16 = 8;
const PRODUCER_ID: i16 = 1;

/// A broker that takes itself for the leader, and answers so many requests to store a batch on each connection.
#[derive(Clone, Copy)]
struct Believer {
    id: i32,
    leader_epoch: i32,
    stores: ErrorCode,
    answers: usize,
}

impl Believer {
    /// Serves until the test ends. Gives its address.
    async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.serve(stream, address.port()));
            }
        });
        address.to_string()
    }

    async fn serve(self, mut stream: TcpStream, port: u16) {
        let mut answers = self.answers;
        while let Ok(length) = stream.read_u32().await {
            let mut frame = vec![0; usize::try_from(length).expect("a length")];
            stream.read_exact(&mut frame).await.expect("a whole request");
            let mut head = &frame[..];
            let (api, version, correlation) = (head.get_i16(), head.get_i16(), head.get_i32());
            let body = match ApiKey::try_from(api).expect("a known API") {
                ApiKey::ApiVersions => encoded(&offered(), version),
                ApiKey::Metadata => encoded(&self.metadata(port), version),
                ApiKey::InitProducerId => {
                    let id = InitProducerIdResponse::default().with_producer_id(ProducerId(7)).with_producer_epoch(0);
                    encoded(&id, version)
                }
                ApiKey::Produce if answers == 0 => return,
                ApiKey::Produce => {
                    answers -= 1;
                    encoded(&self.stored(), version)
                }
                other => panic!("{other:?} was not expected"),
            };
            stream.write_u32(u32::try_from(body.len() + 4).expect("small")).await.expect("written");
            stream.write_i32(correlation).await.expect("written");
            stream.write_all(&body).await.expect("written");
        }
    }

    fn metadata(self, port: u16) -> MetadataResponse {
        let me = MetadataResponseBroker::default()
            .with_node_id(BrokerId(self.id))
            .with_host(StrBytes::from_static_str("127.0.0.1"))
            .with_port(i32::from(port));
        let partition =
            MetadataResponsePartition::default().with_leader_id(BrokerId(self.id)).with_leader_epoch(self.leader_epoch);
        let topic = MetadataResponseTopic::default().with_name(Some(name("t"))).with_partitions(vec![partition]);
        MetadataResponse::default().with_brokers(vec![me]).with_topics(vec![topic])
    }

    fn stored(self) -> ProduceResponse {
        let partition = PartitionProduceResponse::default().with_error_code(self.stores.number());
        let topic = TopicProduceResponse::default().with_name(name("t")).with_partition_responses(vec![partition]);
        ProduceResponse::default().with_responses(vec![topic])
    }
}

fn offered() -> ApiVersionsResponse {
    let offer = |(api, version): (ApiKey, i16)| {
        ApiVersion::default().with_api_key(api as i16).with_min_version(version).with_max_version(version)
    };
    let all = [(ApiKey::Produce, PRODUCE), (ApiKey::Metadata, METADATA), (ApiKey::InitProducerId, PRODUCER_ID)];
    ApiVersionsResponse::default().with_api_keys(all.into_iter().map(offer).collect())
}

fn encoded(message: &impl Encodable, version: i16) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    message.encode(&mut bytes, version).expect("a version that has these fields");
    bytes.to_vec()
}

/// The next outcome that says something of the first batch.
async fn settled(producer: &mut Producer<u32>) -> Result<u32, ErrorCode> {
    loop {
        match producer.outcome().await {
            Outcome::Stored { tag, .. } => return Ok(tag),
            Outcome::Again => {}
            Outcome::Refused(code) => return Err(code),
        }
    }
}

/// One broker slept while another was elected: for as long as the store has not told it, it names itself, and refuses what comes
/// after records that it does not have. Whichever is asked first, each batch is stored by the one in the later epoch.
#[tokio::test]
async fn a_leader_of_an_older_epoch_is_not_believed_again() {
    let stale = Believer { id: 1, leader_epoch: 5, stores: ErrorCode::OutOfOrderSequenceNumber, answers: 9 };
    // It closes each connection after a batch, so that the leader is looked for anew.
    let present = Believer { id: 2, leader_epoch: 6, stores: ErrorCode::None, answers: 1 };
    let brokers = vec![present.start().await, stale.start().await];
    let contact = Contact { brokers, client_id: "test", patience: Duration::from_secs(5) };
    // It asks the other one first, and this one the next time.
    let mut producer = Producer::new(contact, "t", 0, 1).await.expect("a producer id");
    for batch in 0..6 {
        producer.push([b"value"].into_iter(), batch).expect("made");
        assert_eq!(settled(&mut producer).await, Ok(batch));
    }
}

/// In the latest epoch that anybody knows of a gap before the first batch means that acknowledged records are gone.
#[tokio::test]
async fn a_gap_in_the_latest_epoch_is_final() {
    let forgetful = Believer { id: 1, leader_epoch: 6, stores: ErrorCode::OutOfOrderSequenceNumber, answers: 9 };
    let contact =
        Contact { brokers: vec![forgetful.start().await], client_id: "test", patience: Duration::from_secs(5) };
    let mut producer = Producer::new(contact, "t", 0, 0).await.expect("a producer id");
    producer.push([b"value"].into_iter(), 0).expect("made");
    assert_eq!(settled(&mut producer).await, Err(ErrorCode::OutOfOrderSequenceNumber));
}
