//! The schemas of every API this broker speaks, from the message definitions of Kafka 4.1, in all versions the protocol
//! crate encodes. Names stand in comments only: the walk needs types and order.

use kafka_protocol::messages::ApiKey;

use super::admin::*;
use super::groups::*;
use super::schema::{Field, Kind, Message};
use super::security::*;
use super::transactions::*;

/// Of messages that have no flexible version.
const NEVER: i16 = i16::MAX;

pub(super) const BOOL: Field = Field::of(Kind::Fixed(1));
pub(super) const I8: Field = Field::of(Kind::Fixed(1));
pub(super) const I16: Field = Field::of(Kind::Fixed(2));
pub(super) const I32: Field = Field::of(Kind::Fixed(4));
pub(super) const I64: Field = Field::of(Kind::Fixed(8));
pub(super) const UUID: Field = Field::of(Kind::Fixed(16));
pub(super) const STRING: Field = Field::of(Kind::String);
pub(super) const RECORDS: Field = Field::of(Kind::Bytes);
pub(super) const STRINGS: Field = Field::of(Kind::Strings);
pub(super) const I32S: Field = Field::of(Kind::Fixeds(4));
pub(super) const I64S: Field = Field::of(Kind::Fixeds(8));

pub(super) const fn structs(fields: &'static [Field]) -> Field {
    Field::of(Kind::Structs(fields))
}

pub(super) const fn structure(fields: &'static [Field]) -> Field {
    Field::of(Kind::Struct(fields))
}

/// The schema of an API's requests.
pub(super) fn request(api: ApiKey) -> Option<&'static Message> {
    Some(match api {
        ApiKey::Produce => &Message { fields: PRODUCE, flexible_since: 9 },
        ApiKey::Fetch => &Message { fields: FETCH, flexible_since: 12 },
        ApiKey::ListOffsets => &Message { fields: LIST_OFFSETS, flexible_since: 6 },
        ApiKey::Metadata => &Message { fields: METADATA, flexible_since: 9 },
        ApiKey::OffsetCommit => &Message { fields: OFFSET_COMMIT, flexible_since: 8 },
        ApiKey::OffsetFetch => &Message { fields: OFFSET_FETCH, flexible_since: 6 },
        ApiKey::FindCoordinator => &Message { fields: FIND_COORDINATOR, flexible_since: 3 },
        ApiKey::JoinGroup => &Message { fields: JOIN_GROUP, flexible_since: 6 },
        ApiKey::Heartbeat => &Message { fields: HEARTBEAT, flexible_since: 4 },
        ApiKey::LeaveGroup => &Message { fields: LEAVE_GROUP, flexible_since: 4 },
        ApiKey::SyncGroup => &Message { fields: SYNC_GROUP, flexible_since: 4 },
        ApiKey::DescribeGroups => &Message { fields: DESCRIBE_GROUPS, flexible_since: 5 },
        ApiKey::ListGroups => &Message { fields: LIST_GROUPS, flexible_since: 3 },
        ApiKey::DeleteGroups => &Message { fields: DELETE_GROUPS, flexible_since: 2 },
        ApiKey::OffsetDelete => &Message { fields: OFFSET_DELETE, flexible_since: NEVER },
        ApiKey::ApiVersions => &Message { fields: API_VERSIONS, flexible_since: 3 },
        ApiKey::CreateTopics => &Message { fields: CREATE_TOPICS, flexible_since: 5 },
        ApiKey::DeleteTopics => &Message { fields: DELETE_TOPICS, flexible_since: 4 },
        ApiKey::InitProducerId => &Message { fields: INIT_PRODUCER_ID, flexible_since: 2 },
        ApiKey::OffsetForLeaderEpoch => &Message { fields: OFFSET_FOR_LEADER_EPOCH, flexible_since: 4 },
        ApiKey::DescribeConfigs => &Message { fields: DESCRIBE_CONFIGS, flexible_since: 4 },
        ApiKey::AlterConfigs => &Message { fields: ALTER_CONFIGS, flexible_since: 2 },
        ApiKey::IncrementalAlterConfigs => &Message { fields: INCREMENTAL_ALTER_CONFIGS, flexible_since: 1 },
        ApiKey::ListConfigResources => &Message { fields: LIST_CONFIG_RESOURCES, flexible_since: 0 },
        ApiKey::DeleteRecords => &Message { fields: DELETE_RECORDS, flexible_since: 2 },
        ApiKey::DescribeLogDirs => &Message { fields: DESCRIBE_LOG_DIRS, flexible_since: 2 },
        ApiKey::DescribeTopicPartitions => &Message { fields: DESCRIBE_TOPIC_PARTITIONS, flexible_since: 0 },
        ApiKey::CreatePartitions => &Message { fields: CREATE_PARTITIONS, flexible_since: 2 },
        ApiKey::ElectLeaders => &Message { fields: ELECT_LEADERS, flexible_since: 2 },
        ApiKey::AlterPartitionReassignments => &Message { fields: ALTER_REASSIGNMENTS, flexible_since: 0 },
        ApiKey::ListPartitionReassignments => &Message { fields: LIST_REASSIGNMENTS, flexible_since: 0 },
        ApiKey::SaslHandshake => &Message { fields: SASL_HANDSHAKE, flexible_since: NEVER },
        ApiKey::DescribeAcls => &Message { fields: DESCRIBE_ACLS, flexible_since: 2 },
        ApiKey::CreateAcls => &Message { fields: CREATE_ACLS, flexible_since: 2 },
        ApiKey::DeleteAcls => &Message { fields: DELETE_ACLS, flexible_since: 2 },
        ApiKey::AlterReplicaLogDirs => &Message { fields: ALTER_LOG_DIRS, flexible_since: 2 },
        ApiKey::SaslAuthenticate => &Message { fields: SASL_AUTHENTICATE, flexible_since: 2 },
        ApiKey::CreateDelegationToken => &Message { fields: CREATE_TOKEN, flexible_since: 2 },
        ApiKey::RenewDelegationToken => &Message { fields: RENEW_TOKEN, flexible_since: 2 },
        ApiKey::ExpireDelegationToken => &Message { fields: RENEW_TOKEN, flexible_since: 2 },
        ApiKey::DescribeDelegationToken => &Message { fields: DESCRIBE_TOKEN, flexible_since: 2 },
        ApiKey::DescribeClientQuotas => &Message { fields: DESCRIBE_QUOTAS, flexible_since: 1 },
        ApiKey::AlterClientQuotas => &Message { fields: ALTER_QUOTAS, flexible_since: 1 },
        ApiKey::DescribeUserScramCredentials => &Message { fields: DESCRIBE_SCRAM, flexible_since: 0 },
        ApiKey::AlterUserScramCredentials => &Message { fields: ALTER_SCRAM, flexible_since: 0 },
        ApiKey::DescribeQuorum => &Message { fields: DESCRIBE_QUORUM, flexible_since: 0 },
        ApiKey::UpdateFeatures => &Message { fields: UPDATE_FEATURES, flexible_since: 0 },
        ApiKey::UnregisterBroker => &Message { fields: UNREGISTER_BROKER, flexible_since: 0 },
        ApiKey::DescribeCluster => &Message { fields: DESCRIBE_CLUSTER, flexible_since: 0 },
        ApiKey::AddPartitionsToTxn => &Message { fields: ADD_PARTITIONS_TO_TXN, flexible_since: 3 },
        ApiKey::AddOffsetsToTxn => &Message { fields: ADD_OFFSETS_TO_TXN, flexible_since: 3 },
        ApiKey::EndTxn => &Message { fields: END_TXN, flexible_since: 3 },
        ApiKey::WriteTxnMarkers => &Message { fields: WRITE_TXN_MARKERS, flexible_since: 1 },
        ApiKey::TxnOffsetCommit => &Message { fields: TXN_OFFSET_COMMIT, flexible_since: 3 },
        ApiKey::DescribeProducers => &Message { fields: DESCRIBE_PRODUCERS, flexible_since: 0 },
        ApiKey::DescribeTransactions => &Message { fields: DESCRIBE_TRANSACTIONS, flexible_since: 0 },
        ApiKey::ListTransactions => &Message { fields: LIST_TRANSACTIONS, flexible_since: 0 },
        _ => return None,
    })
}

/// The schema of an API's responses.
pub(super) fn response(api: ApiKey) -> Option<&'static Message> {
    Some(match api {
        ApiKey::Produce => &Message { fields: PRODUCE_RESPONSE, flexible_since: 9 },
        ApiKey::Fetch => &Message { fields: FETCH_RESPONSE, flexible_since: 12 },
        ApiKey::ListOffsets => &Message { fields: LIST_OFFSETS_RESPONSE, flexible_since: 6 },
        ApiKey::Metadata => &Message { fields: METADATA_RESPONSE, flexible_since: 9 },
        ApiKey::OffsetCommit => &Message { fields: OFFSET_COMMIT_RESPONSE, flexible_since: 8 },
        ApiKey::OffsetFetch => &Message { fields: OFFSET_FETCH_RESPONSE, flexible_since: 6 },
        ApiKey::FindCoordinator => &Message { fields: FIND_COORDINATOR_RESPONSE, flexible_since: 3 },
        ApiKey::JoinGroup => &Message { fields: JOIN_GROUP_RESPONSE, flexible_since: 6 },
        ApiKey::Heartbeat => &Message { fields: HEARTBEAT_RESPONSE, flexible_since: 4 },
        ApiKey::LeaveGroup => &Message { fields: LEAVE_GROUP_RESPONSE, flexible_since: 4 },
        ApiKey::SyncGroup => &Message { fields: SYNC_GROUP_RESPONSE, flexible_since: 4 },
        ApiKey::DescribeGroups => &Message { fields: DESCRIBE_GROUPS_RESPONSE, flexible_since: 5 },
        ApiKey::ListGroups => &Message { fields: LIST_GROUPS_RESPONSE, flexible_since: 3 },
        ApiKey::DeleteGroups => &Message { fields: DELETE_GROUPS_RESPONSE, flexible_since: 2 },
        ApiKey::OffsetDelete => &Message { fields: OFFSET_DELETE_RESPONSE, flexible_since: NEVER },
        ApiKey::ApiVersions => &Message { fields: API_VERSIONS_RESPONSE, flexible_since: 3 },
        ApiKey::CreateTopics => &Message { fields: CREATE_TOPICS_RESPONSE, flexible_since: 5 },
        ApiKey::DeleteTopics => &Message { fields: DELETE_TOPICS_RESPONSE, flexible_since: 4 },
        ApiKey::InitProducerId => &Message { fields: INIT_PRODUCER_ID_RESPONSE, flexible_since: 2 },
        ApiKey::OffsetForLeaderEpoch => &Message { fields: OFFSET_FOR_LEADER_EPOCH_RESPONSE, flexible_since: 4 },
        ApiKey::DescribeConfigs => &Message { fields: DESCRIBE_CONFIGS_RESPONSE, flexible_since: 4 },
        ApiKey::AlterConfigs => &Message { fields: ALTER_CONFIGS_RESPONSE, flexible_since: 2 },
        ApiKey::IncrementalAlterConfigs => &Message { fields: ALTER_CONFIGS_RESPONSE, flexible_since: 1 },
        ApiKey::ListConfigResources => &Message { fields: LIST_CONFIG_RESOURCES_RESPONSE, flexible_since: 0 },
        ApiKey::DeleteRecords => &Message { fields: DELETE_RECORDS_RESPONSE, flexible_since: 2 },
        ApiKey::DescribeLogDirs => &Message { fields: DESCRIBE_LOG_DIRS_RESPONSE, flexible_since: 2 },
        ApiKey::DescribeTopicPartitions => &Message { fields: DESCRIBE_TOPIC_PARTITIONS_RESPONSE, flexible_since: 0 },
        ApiKey::CreatePartitions => &Message { fields: CREATE_PARTITIONS_RESPONSE, flexible_since: 2 },
        ApiKey::ElectLeaders => &Message { fields: ELECT_LEADERS_RESPONSE, flexible_since: 2 },
        ApiKey::AlterPartitionReassignments => &Message { fields: ALTER_REASSIGNMENTS_RESPONSE, flexible_since: 0 },
        ApiKey::ListPartitionReassignments => &Message { fields: LIST_REASSIGNMENTS_RESPONSE, flexible_since: 0 },
        ApiKey::SaslHandshake => &Message { fields: SASL_HANDSHAKE_RESPONSE, flexible_since: NEVER },
        ApiKey::DescribeAcls => &Message { fields: DESCRIBE_ACLS_RESPONSE, flexible_since: 2 },
        ApiKey::CreateAcls => &Message { fields: CREATE_ACLS_RESPONSE, flexible_since: 2 },
        ApiKey::DeleteAcls => &Message { fields: DELETE_ACLS_RESPONSE, flexible_since: 2 },
        ApiKey::AlterReplicaLogDirs => &Message { fields: ALTER_LOG_DIRS_RESPONSE, flexible_since: 2 },
        ApiKey::SaslAuthenticate => &Message { fields: SASL_AUTHENTICATE_RESPONSE, flexible_since: 2 },
        ApiKey::CreateDelegationToken => &Message { fields: CREATE_TOKEN_RESPONSE, flexible_since: 2 },
        ApiKey::RenewDelegationToken => &Message { fields: RENEW_TOKEN_RESPONSE, flexible_since: 2 },
        ApiKey::ExpireDelegationToken => &Message { fields: RENEW_TOKEN_RESPONSE, flexible_since: 2 },
        ApiKey::DescribeDelegationToken => &Message { fields: DESCRIBE_TOKEN_RESPONSE, flexible_since: 2 },
        ApiKey::DescribeClientQuotas => &Message { fields: DESCRIBE_QUOTAS_RESPONSE, flexible_since: 1 },
        ApiKey::AlterClientQuotas => &Message { fields: ALTER_QUOTAS_RESPONSE, flexible_since: 1 },
        ApiKey::DescribeUserScramCredentials => &Message { fields: DESCRIBE_SCRAM_RESPONSE, flexible_since: 0 },
        ApiKey::AlterUserScramCredentials => &Message { fields: ALTER_SCRAM_RESPONSE, flexible_since: 0 },
        ApiKey::DescribeQuorum => &Message { fields: DESCRIBE_QUORUM_RESPONSE, flexible_since: 0 },
        ApiKey::UpdateFeatures => &Message { fields: UPDATE_FEATURES_RESPONSE, flexible_since: 0 },
        ApiKey::UnregisterBroker => &Message { fields: UNREGISTER_BROKER_RESPONSE, flexible_since: 0 },
        ApiKey::DescribeCluster => &Message { fields: DESCRIBE_CLUSTER_RESPONSE, flexible_since: 0 },
        ApiKey::AddPartitionsToTxn => &Message { fields: ADD_PARTITIONS_TO_TXN_RESPONSE, flexible_since: 3 },
        ApiKey::AddOffsetsToTxn => &Message { fields: ADD_OFFSETS_TO_TXN_RESPONSE, flexible_since: 3 },
        ApiKey::EndTxn => &Message { fields: END_TXN_RESPONSE, flexible_since: 3 },
        ApiKey::WriteTxnMarkers => &Message { fields: WRITE_TXN_MARKERS_RESPONSE, flexible_since: 1 },
        ApiKey::TxnOffsetCommit => &Message { fields: TXN_OFFSET_COMMIT_RESPONSE, flexible_since: 3 },
        ApiKey::DescribeProducers => &Message { fields: DESCRIBE_PRODUCERS_RESPONSE, flexible_since: 0 },
        ApiKey::DescribeTransactions => &Message { fields: DESCRIBE_TRANSACTIONS_RESPONSE, flexible_since: 0 },
        ApiKey::ListTransactions => &Message { fields: LIST_TRANSACTIONS_RESPONSE, flexible_since: 0 },
        _ => return None,
    })
}

/// Versions 0 to 2 too: they are refused partition by partition, so their names and numbers must be read.
const PRODUCE: &[Field] = &[
    STRING.since(3).nullable(3), // transactional id
    I16,                         // acks
    I32,                         // timeout
    structs(&[
        STRING.until(12),                     // name
        UUID.since(13),                       // topic id
        structs(&[I32, RECORDS.nullable(0)]), // partition, records
    ]),
];

const CURRENT_LEADER: &[Field] = &[I32, I32];
const NODE_ENDPOINTS: &[Field] = &[I32, STRING, I32, STRING.nullable(0)];

const PRODUCE_RESPONSE: &[Field] = &[
    structs(&[
        STRING.until(12),
        UUID.since(13),
        structs(&[
            I32,                                          // partition
            I16,                                          // error
            I64,                                          // base offset
            I64.since(2),                                 // log append time
            I64.since(5),                                 // log start
            structs(&[I32, STRING.nullable(0)]).since(8), // record errors
            STRING.since(8).nullable(8),                  // message
            structure(CURRENT_LEADER).since(10).tag(0),
        ]),
    ]),
    I32.since(1), // throttle
    structs(NODE_ENDPOINTS).since(10).tag(0),
];

const FETCH: &[Field] = &[
    I32.until(14), // replica
    I32,           // max wait
    I32,           // min bytes
    I32.since(3),  // max bytes
    I8.since(4),   // isolation
    I32.since(7),  // session
    I32.since(7),  // session epoch
    structs(&[
        STRING.until(12),
        UUID.since(13),
        structs(&[
            I32,                   // partition
            I32.since(9),          // current leader epoch
            I64,                   // offset
            I32.since(12),         // last fetched epoch
            I64.since(5),          // log start
            I32,                   // max bytes
            UUID.since(17).tag(0), // replica directory
            I64.since(18).tag(1),  // high watermark
        ]),
    ]),
    structs(&[STRING.until(12), UUID.since(13), I32S]).since(7), // forgotten
    STRING.since(11),                                            // rack
    STRING.nullable(12).since(12).tag(0),                        // cluster
    structure(&[I32, I64]).since(15).tag(1),                     // replica state
];

const FETCH_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    I16.since(7), // error
    I32.since(7), // session
    structs(&[
        STRING.until(12),
        UUID.since(13),
        structs(&[
            I32,                                       // partition
            I16,                                       // error
            I64,                                       // high watermark
            I64.since(4),                              // last stable offset
            I64.since(5),                              // log start
            structs(&[I64, I64]).since(4).nullable(4), // aborted transactions
            I32.since(11),                             // preferred read replica
            RECORDS.nullable(0),
            structure(&[I32, I64]).since(12).tag(0), // diverging epoch
            structure(CURRENT_LEADER).since(12).tag(1),
            structure(&[I64, I32]).since(12).tag(2), // snapshot id
        ]),
    ]),
    structs(NODE_ENDPOINTS).since(16).tag(0),
];

const LIST_OFFSETS: &[Field] = &[
    I32,         // replica
    I8.since(2), // isolation
    structs(&[STRING, structs(&[I32, I32.since(4), I64])]),
    I32.since(10), // timeout
];

const LIST_OFFSETS_RESPONSE: &[Field] = &[
    I32.since(2), // throttle
    structs(&[STRING, structs(&[I32, I16, I64.since(1), I64.since(1), I32.since(4)])]),
];

const METADATA: &[Field] = &[
    structs(&[UUID.since(10), STRING.nullable(10)]).nullable(1),
    BOOL.since(4),           // allow creation
    BOOL.since(8).until(10), // cluster operations
    BOOL.since(8),           // topic operations
];

const METADATA_RESPONSE: &[Field] = &[
    I32.since(3), // throttle
    structs(&[I32, STRING, I32, STRING.since(1).nullable(1)]),
    STRING.since(2).nullable(2), // cluster
    I32.since(1),                // controller
    structs(&[
        I16, // error
        STRING.nullable(12),
        UUID.since(10),
        BOOL.since(1), // internal
        structs(&[
            I16,          // error
            I32,          // partition
            I32,          // leader
            I32.since(7), // leader epoch
            I32S,         // replicas
            I32S,         // in-sync
            I32S.since(5),
        ]),
        I32.since(8), // topic operations
    ]),
    I32.since(8).until(10), // cluster operations
    I16.since(13),          // error
];

const FIND_COORDINATOR: &[Field] = &[STRING.until(3), I8.since(1), STRINGS.since(4)];

const FIND_COORDINATOR_RESPONSE: &[Field] = &[
    I32.since(1),                         // throttle
    I16.until(3),                         // error
    STRING.since(1).until(3).nullable(1), // message
    I32.until(3),                         // node
    STRING.until(3),                      // host
    I32.until(3),                         // port
    structs(&[STRING, I32, STRING, I32, I16, STRING.nullable(4)]).since(4),
];

const API_VERSIONS: &[Field] = &[STRING.since(3), STRING.since(3)];

const API_VERSIONS_RESPONSE: &[Field] = &[
    I16, // error
    structs(&[I16, I16, I16]),
    I32.since(1),                                 // throttle
    structs(&[STRING, I16, I16]).since(3).tag(0), // supported features
    I64.since(3).tag(1),                          // finalized features' epoch
    structs(&[STRING, I16, I16]).since(3).tag(2), // finalized features
    BOOL.since(3).tag(3),                         // ZooKeeper migration ready
];

const CREATE_TOPICS: &[Field] = &[
    structs(&[
        STRING,
        I32,                                    // partitions
        I16,                                    // replication factor
        structs(&[I32, I32S]),                  // assignments
        structs(&[STRING, STRING.nullable(0)]), // configs
    ]),
    I32, // timeout
    BOOL.since(1),
];

const CREATE_TOPICS_RESPONSE: &[Field] = &[
    I32.since(2), // throttle
    structs(&[
        STRING,
        UUID.since(7),
        I16,                         // error
        STRING.since(1).nullable(1), // message
        I32.since(5),                // partitions
        I16.since(5),                // replication factor
        structs(&[STRING, STRING.nullable(5), BOOL, I8, BOOL]).since(5).nullable(5),
        I16.since(5).tag(0), // config error
    ]),
];

const DELETE_TOPICS: &[Field] = &[structs(&[STRING.nullable(6), UUID]).since(6), STRINGS.until(5), I32];

const DELETE_TOPICS_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    structs(&[STRING.nullable(6), UUID.since(6), I16, STRING.since(5).nullable(5)]),
];

const INIT_PRODUCER_ID: &[Field] = &[STRING.nullable(0), I32, I64.since(3), I16.since(3)];

const INIT_PRODUCER_ID_RESPONSE: &[Field] = &[I32, I16, I64, I16];

const OFFSET_FOR_LEADER_EPOCH: &[Field] = &[I32.since(3), structs(&[STRING, structs(&[I32, I32.since(2), I32])])];

const OFFSET_FOR_LEADER_EPOCH_RESPONSE: &[Field] =
    &[I32.since(2), structs(&[STRING, structs(&[I16, I32, I32.since(1), I64])])];

const DESCRIBE_CONFIGS: &[Field] = &[structs(&[I8, STRING, STRINGS.nullable(0)]), BOOL.since(1), BOOL.since(3)];

const DESCRIBE_CONFIGS_RESPONSE: &[Field] = &[
    I32, // throttle
    structs(&[
        I16,                // error
        STRING.nullable(0), // message
        I8,                 // type
        STRING,             // name
        structs(&[
            STRING,
            STRING.nullable(0), // value
            BOOL,               // read-only
            BOOL.until(0),      // is default
            I8.since(1),        // source
            BOOL,               // sensitive
            structs(&[STRING, STRING.nullable(0), I8]).since(1),
            I8.since(3),                 // type
            STRING.since(3).nullable(3), // documentation
        ]),
    ]),
];

const CREATE_PARTITIONS: &[Field] = &[structs(&[STRING, I32, structs(&[I32S]).nullable(0)]), I32, BOOL];

const CREATE_PARTITIONS_RESPONSE: &[Field] = &[I32, structs(&[STRING, I16, STRING.nullable(0)])];

const ELECT_LEADERS: &[Field] = &[I8.since(1), structs(&[STRING, I32S]).nullable(0), I32];

const ELECT_LEADERS_RESPONSE: &[Field] =
    &[I32, I16.since(1), structs(&[STRING, structs(&[I32, I16, STRING.nullable(0)])])];

const ALTER_REASSIGNMENTS: &[Field] = &[
    I32,           // timeout
    BOOL.since(1), // may the factor change
    structs(&[STRING, structs(&[I32, I32S.nullable(0)])]),
];

const ALTER_REASSIGNMENTS_RESPONSE: &[Field] = &[
    I32, // throttle
    BOOL.since(1),
    I16,                // error
    STRING.nullable(0), // message
    structs(&[STRING, structs(&[I32, I16, STRING.nullable(0)])]),
];

const LIST_REASSIGNMENTS: &[Field] = &[I32, structs(&[STRING, I32S]).nullable(0)];

const LIST_REASSIGNMENTS_RESPONSE: &[Field] =
    &[I32, I16, STRING.nullable(0), structs(&[STRING, structs(&[I32, I32S, I32S, I32S])])];

const DESCRIBE_CLUSTER: &[Field] = &[BOOL, I8.since(1), BOOL.since(2)];

const DESCRIBE_CLUSTER_RESPONSE: &[Field] = &[
    I32,                // throttle
    I16,                // error
    STRING.nullable(0), // message
    I8.since(1),        // endpoint type
    STRING,             // cluster
    I32,                // controller
    structs(&[I32, STRING, I32, STRING.nullable(0), BOOL.since(2)]),
    I32, // operations
];
