//! The schemas of the APIs of groups.

use super::schema::Field;
use super::tables::*;

pub(super) const OFFSET_COMMIT: &[Field] = &[
    STRING,                      // group
    I32.since(1),                // generation
    STRING.since(1),             // member
    STRING.since(7).nullable(7), // instance
    I64.since(2).until(4),       // retention
    structs(&[
        STRING, // topic
        structs(&[
            I32,                   // partition
            I64,                   // offset
            I32.since(6),          // leader epoch
            I64.since(1).until(1), // time
            STRING.nullable(0),    // metadata
        ]),
    ]),
];

pub(super) const OFFSET_COMMIT_RESPONSE: &[Field] = &[
    I32.since(3), // throttle
    structs(&[STRING, structs(&[I32, I16])]),
];

pub(super) const OFFSET_FETCH: &[Field] = &[
    STRING.until(7), // group
    structs(&[STRING, I32S]).until(7).nullable(2),
    structs(&[
        STRING,                      // group
        STRING.since(9).nullable(9), // member
        I32.since(9),                // member epoch
        structs(&[STRING, I32S]).nullable(8),
    ])
    .since(8),
    BOOL.since(7), // require stable
];

pub(super) const OFFSET_FETCH_RESPONSE: &[Field] = &[
    I32.since(3), // throttle
    structs(&[
        STRING,
        structs(&[
            I32,                // partition
            I64,                // offset
            I32.since(5),       // leader epoch
            STRING.nullable(0), // metadata
            I16,                // error
        ]),
    ])
    .until(7),
    I16.since(2).until(7), // error
    structs(&[
        STRING, // group
        structs(&[STRING, structs(&[I32, I64, I32, STRING.nullable(0), I16])]),
        I16, // error
    ])
    .since(8),
];

pub(super) const JOIN_GROUP: &[Field] = &[
    STRING,                      // group
    I32,                         // session time-out
    I32.since(1),                // rebalance time-out
    STRING,                      // member
    STRING.since(5).nullable(5), // instance
    STRING,                      // protocol type
    structs(&[STRING, RECORDS]), // protocols: name, metadata
    STRING.since(8).nullable(8), // reason
];

pub(super) const JOIN_GROUP_RESPONSE: &[Field] = &[
    I32.since(2),                // throttle
    I16,                         // error
    I32,                         // generation
    STRING.since(7).nullable(7), // protocol type
    STRING.nullable(7),          // protocol
    STRING,                      // leader
    BOOL.since(9),               // skip assignment
    STRING,                      // member
    structs(&[STRING, STRING.since(5).nullable(5), RECORDS]),
];

pub(super) const HEARTBEAT: &[Field] = &[
    STRING,                      // group
    I32,                         // generation
    STRING,                      // member
    STRING.since(3).nullable(3), // instance
];

pub(super) const HEARTBEAT_RESPONSE: &[Field] = &[I32.since(1), I16];

pub(super) const LEAVE_GROUP: &[Field] = &[
    STRING,          // group
    STRING.until(2), // member
    structs(&[STRING, STRING.nullable(3), STRING.since(5).nullable(5)]).since(3),
];

pub(super) const LEAVE_GROUP_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    I16,          // error
    structs(&[STRING, STRING.nullable(3), I16]).since(3),
];

pub(super) const SYNC_GROUP: &[Field] = &[
    STRING,                      // group
    I32,                         // generation
    STRING,                      // member
    STRING.since(3).nullable(3), // instance
    STRING.since(5).nullable(5), // protocol type
    STRING.since(5).nullable(5), // protocol
    structs(&[STRING, RECORDS]), // assignments
];

pub(super) const SYNC_GROUP_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    I16,          // error
    STRING.since(5).nullable(5),
    STRING.since(5).nullable(5),
    RECORDS, // assignment
];

pub(super) const DESCRIBE_GROUPS: &[Field] = &[STRINGS, BOOL.since(3)];

pub(super) const DESCRIBE_GROUPS_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    structs(&[
        I16,                         // error
        STRING.since(6).nullable(6), // message
        STRING,                      // group
        STRING,                      // state
        STRING,                      // protocol type
        STRING,                      // protocol
        structs(&[
            STRING,                      // member
            STRING.since(4).nullable(4), // instance
            STRING,                      // client id
            STRING,                      // host
            RECORDS,                     // metadata
            RECORDS,                     // assignment
        ]),
        I32.since(3), // operations
    ]),
];

pub(super) const LIST_GROUPS: &[Field] = &[STRINGS.since(4), STRINGS.since(5)];

pub(super) const LIST_GROUPS_RESPONSE: &[Field] = &[
    I32.since(1), // throttle
    I16,          // error
    structs(&[STRING, STRING, STRING.since(4), STRING.since(5)]),
];

pub(super) const DELETE_GROUPS: &[Field] = &[STRINGS];

pub(super) const DELETE_GROUPS_RESPONSE: &[Field] = &[I32, structs(&[STRING, I16])];

pub(super) const OFFSET_DELETE: &[Field] = &[STRING, structs(&[STRING, structs(&[I32])])];

pub(super) const OFFSET_DELETE_RESPONSE: &[Field] = &[I16, I32, structs(&[STRING, structs(&[I32, I16])])];
