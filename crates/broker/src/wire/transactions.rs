//! The schemas of the APIs of transactions.

use super::schema::Field;
use super::tables::*;

pub(super) const ADD_PARTITIONS_TO_TXN: &[Field] = &[
    structs(&[
        STRING, // transactional id
        I64,    // producer
        I16,    // epoch
        BOOL,   // verify only
        structs(&[STRING, I32S]),
    ])
    .since(4),
    STRING.until(3), // transactional id
    I64.until(3),    // producer
    I16.until(3),    // epoch
    structs(&[STRING, I32S]).until(3),
];

pub(super) const ADD_PARTITIONS_TO_TXN_RESPONSE: &[Field] = &[
    I32,          // throttle
    I16.since(4), // error
    structs(&[
        STRING, // transactional id
        structs(&[STRING, structs(&[I32, I16])]),
    ])
    .since(4),
    structs(&[STRING, structs(&[I32, I16])]).until(3),
];

pub(super) const ADD_OFFSETS_TO_TXN: &[Field] = &[
    STRING, // transactional id
    I64,    // producer
    I16,    // epoch
    STRING, // group
];

pub(super) const ADD_OFFSETS_TO_TXN_RESPONSE: &[Field] = &[I32, I16];

pub(super) const END_TXN: &[Field] = &[
    STRING, // transactional id
    I64,    // producer
    I16,    // epoch
    BOOL,   // commits
];

pub(super) const END_TXN_RESPONSE: &[Field] = &[I32, I16, I64.since(5), I16.since(5)];

pub(super) const WRITE_TXN_MARKERS: &[Field] = &[structs(&[
    I64,  // producer
    I16,  // epoch
    BOOL, // commits
    structs(&[STRING, I32S]),
    I32, // epoch of the coordinator
])];

pub(super) const WRITE_TXN_MARKERS_RESPONSE: &[Field] = &[structs(&[I64, structs(&[STRING, structs(&[I32, I16])])])];

pub(super) const TXN_OFFSET_COMMIT: &[Field] = &[
    STRING,                      // transactional id
    STRING,                      // group
    I64,                         // producer
    I16,                         // epoch
    I32.since(3),                // generation
    STRING.since(3),             // member
    STRING.since(3).nullable(3), // instance
    structs(&[
        STRING, // topic
        structs(&[
            I32,                // partition
            I64,                // offset
            I32.since(2),       // leader epoch
            STRING.nullable(0), // metadata
        ]),
    ]),
];

pub(super) const TXN_OFFSET_COMMIT_RESPONSE: &[Field] = &[I32, structs(&[STRING, structs(&[I32, I16])])];

pub(super) const DESCRIBE_PRODUCERS: &[Field] = &[structs(&[STRING, I32S])];

pub(super) const DESCRIBE_PRODUCERS_RESPONSE: &[Field] = &[
    I32, // throttle
    structs(&[
        STRING, // topic
        structs(&[
            I32,                // partition
            I16,                // error
            STRING.nullable(0), // message
            structs(&[
                I64, // producer
                I32, // epoch
                I32, // last sequence
                I64, // last timestamp
                I32, // epoch of the coordinator
                I64, // start of the transaction
            ]),
        ]),
    ]),
];

pub(super) const DESCRIBE_TRANSACTIONS: &[Field] = &[STRINGS];

pub(super) const DESCRIBE_TRANSACTIONS_RESPONSE: &[Field] = &[
    I32, // throttle
    structs(&[
        I16,    // error
        STRING, // transactional id
        STRING, // state
        I32,    // time-out
        I64,    // start
        I64,    // producer
        I16,    // epoch
        structs(&[STRING, I32S]),
    ]),
];

pub(super) const LIST_TRANSACTIONS: &[Field] = &[
    STRINGS,                     // states
    I64S,                        // producers
    I64.since(1),                // duration
    STRING.since(2).nullable(2), // pattern
];

pub(super) const LIST_TRANSACTIONS_RESPONSE: &[Field] = &[
    I32,     // throttle
    I16,     // error
    STRINGS, // unknown states
    structs(&[STRING, I64, STRING]),
];
