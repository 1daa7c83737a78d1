//! The schemas of APIs about who may do what and how much, and about controllers.

use super::schema::Field;
use super::tables::*;

const TEXT: Field = STRING.nullable(0);

pub(super) const SASL_HANDSHAKE: &[Field] = &[STRING];
pub(super) const SASL_HANDSHAKE_RESPONSE: &[Field] = &[I16, STRINGS];

pub(super) const SASL_AUTHENTICATE: &[Field] = &[RECORDS];
pub(super) const SASL_AUTHENTICATE_RESPONSE: &[Field] = &[I16, TEXT, RECORDS, I64.since(1)];

/// Type, name, kind of pattern, principal, host, operation, permission.
const ACL_FILTER: &[Field] = &[I8, TEXT, I8, TEXT, TEXT, I8, I8];

pub(super) const DESCRIBE_ACLS: &[Field] = ACL_FILTER;
pub(super) const DESCRIBE_ACLS_RESPONSE: &[Field] =
    &[I32, I16, TEXT, structs(&[I8, STRING, I8, structs(&[STRING, STRING, I8, I8])])];

pub(super) const CREATE_ACLS: &[Field] = &[structs(&[I8, STRING, I8, STRING, STRING, I8, I8])];
pub(super) const CREATE_ACLS_RESPONSE: &[Field] = &[I32, structs(&[I16, TEXT])];

pub(super) const DELETE_ACLS: &[Field] = &[structs(ACL_FILTER)];
pub(super) const DELETE_ACLS_RESPONSE: &[Field] =
    &[I32, structs(&[I16, TEXT, structs(&[I16, TEXT, I8, STRING, I8, STRING, STRING, I8, I8])])];

pub(super) const ALTER_LOG_DIRS: &[Field] = &[structs(&[STRING, structs(&[STRING, I32S])])];
pub(super) const ALTER_LOG_DIRS_RESPONSE: &[Field] = &[I32, structs(&[STRING, structs(&[I32, I16])])];

/// Type and name.
const PRINCIPAL: &[Field] = &[STRING, STRING];

pub(super) const CREATE_TOKEN: &[Field] =
    &[STRING.since(3).nullable(3), STRING.since(3).nullable(3), structs(PRINCIPAL), I64];
pub(super) const CREATE_TOKEN_RESPONSE: &[Field] = &[
    I16, // error
    STRING,
    STRING,          // owner
    STRING.since(3), // requester
    STRING.since(3),
    I64, // issued
    I64, // expires
    I64, // at the latest
    STRING,
    RECORDS,
    I32, // throttle
];

pub(super) const RENEW_TOKEN: &[Field] = &[RECORDS, I64];
pub(super) const RENEW_TOKEN_RESPONSE: &[Field] = &[I16, I64, I32];

pub(super) const DESCRIBE_TOKEN: &[Field] = &[structs(PRINCIPAL).nullable(0)];
pub(super) const DESCRIBE_TOKEN_RESPONSE: &[Field] = &[
    I16, // error
    structs(&[
        STRING,
        STRING,          // owner
        STRING.since(3), // requester
        STRING.since(3),
        I64, // issued
        I64, // expires
        I64, // at the latest
        STRING,
        RECORDS,
        structs(PRINCIPAL), // renewers
    ]),
    I32, // throttle
];

/// Type and name of a part.
const ENTITY: &[Field] = &[STRING, TEXT];

pub(super) const DESCRIBE_QUOTAS: &[Field] = &[structs(&[STRING, I8, TEXT]), BOOL];
pub(super) const DESCRIBE_QUOTAS_RESPONSE: &[Field] =
    &[I32, I16, TEXT, structs(&[structs(ENTITY), structs(&[STRING, I64])]).nullable(0)];

pub(super) const ALTER_QUOTAS: &[Field] = &[structs(&[structs(ENTITY), structs(&[STRING, I64, BOOL])]), BOOL];
pub(super) const ALTER_QUOTAS_RESPONSE: &[Field] = &[I32, structs(&[I16, TEXT, structs(ENTITY)])];

pub(super) const DESCRIBE_SCRAM: &[Field] = &[structs(&[STRING]).nullable(0)];
pub(super) const DESCRIBE_SCRAM_RESPONSE: &[Field] =
    &[I32, I16, TEXT, structs(&[STRING, I16, TEXT, structs(&[I8, I32])])];

pub(super) const ALTER_SCRAM: &[Field] = &[structs(&[STRING, I8]), structs(&[STRING, I8, I32, RECORDS, RECORDS])];
pub(super) const ALTER_SCRAM_RESPONSE: &[Field] = &[I32, structs(&[STRING, I16, TEXT])];

/// Replica, directory, end, last fetch, last caught up.
const REPLICA_STATE: &[Field] = &[I32, UUID.since(2), I64, I64.since(1), I64.since(1)];

pub(super) const DESCRIBE_QUORUM: &[Field] = &[structs(&[STRING, structs(&[I32])])];
pub(super) const DESCRIBE_QUORUM_RESPONSE: &[Field] = &[
    I16,                         // error
    STRING.since(2).nullable(2), // message
    structs(&[
        STRING,
        structs(&[
            I32, // partition
            I16, // error
            STRING.since(2).nullable(2),
            I32, // leader
            I32, // epoch
            I64, // high watermark
            structs(REPLICA_STATE),
            structs(REPLICA_STATE),
        ]),
    ]),
    structs(&[I32, structs(&[STRING, STRING, I16])]).since(2),
];

pub(super) const UPDATE_FEATURES: &[Field] = &[I32, structs(&[STRING, I16, BOOL.until(0), I8.since(1)]), BOOL.since(1)];
pub(super) const UPDATE_FEATURES_RESPONSE: &[Field] = &[I32, I16, TEXT, structs(&[STRING, I16, TEXT]).until(1)];

pub(super) const UNREGISTER_BROKER: &[Field] = &[I32];
pub(super) const UNREGISTER_BROKER_RESPONSE: &[Field] = &[I32, I16, TEXT];
