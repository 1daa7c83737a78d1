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
