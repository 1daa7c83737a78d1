//! The schemas of APIs for administration, beside those in the tables.

use super::schema::{Field, Kind};
use super::tables::*;

const I8S: Field = Field::of(Kind::Fixeds(1));

pub(super) const ALTER_CONFIGS: &[Field] = &[structs(&[I8, STRING, structs(&[STRING, STRING.nullable(0)])]), BOOL];

pub(super) const INCREMENTAL_ALTER_CONFIGS: &[Field] =
    &[structs(&[I8, STRING, structs(&[STRING, I8, STRING.nullable(0)])]), BOOL];

/// Of both ways to alter configs.
pub(super) const ALTER_CONFIGS_RESPONSE: &[Field] = &[
    I32,                                             // throttle
    structs(&[I16, STRING.nullable(0), I8, STRING]), // error, message, type, name
];

pub(super) const LIST_CONFIG_RESOURCES: &[Field] = &[I8S.since(1)];

pub(super) const LIST_CONFIG_RESOURCES_RESPONSE: &[Field] = &[
    I32, // throttle
    I16, // error
    structs(&[STRING, I8.since(1)]),
];

pub(super) const DELETE_RECORDS: &[Field] = &[structs(&[STRING, structs(&[I32, I64])]), I32];

pub(super) const DELETE_RECORDS_RESPONSE: &[Field] = &[I32, structs(&[STRING, structs(&[I32, I64, I16])])];

pub(super) const DESCRIBE_LOG_DIRS: &[Field] = &[structs(&[STRING, I32S]).nullable(0)];

pub(super) const DESCRIBE_LOG_DIRS_RESPONSE: &[Field] = &[
    I32,          // throttle
    I16.since(3), // error
    structs(&[
        I16,    // error
        STRING, // directory
        structs(&[
            STRING,
            structs(&[I32, I64, I64, BOOL]), // partition, bytes, lag, is future
        ]),
        I64.since(4), // bytes of the disk
        I64.since(4), // bytes left
    ]),
];

const CURSOR: &[Field] = &[STRING, I32];

pub(super) const DESCRIBE_TOPIC_PARTITIONS: &[Field] = &[structs(&[STRING]), I32, structure(CURSOR).nullable(0)];

pub(super) const DESCRIBE_TOPIC_PARTITIONS_RESPONSE: &[Field] = &[
    I32, // throttle
    structs(&[
        I16, // error
        STRING.nullable(0),
        UUID,
        BOOL, // internal
        structs(&[
            I16,              // error
            I32,              // partition
            I32,              // leader
            I32,              // leader epoch
            I32S,             // replicas
            I32S,             // in-sync
            I32S.nullable(0), // eligible
            I32S.nullable(0), // eligible before
            I32S,             // offline
        ]),
        I32, // operations
    ]),
    structure(CURSOR).nullable(0),
];
