//! Requests that the broker has no reason to refuse.

use highwater_tests::Random;
use highwater_tests::requests::{Field, Values};

/// The name that requests ask for: a topic that is there.
pub(super) const TOPIC: &str = "hostile";

/// The values of `requests.txt`; arrays have one to three elements.
pub(super) struct Valid<'a> {
    topic_id: [u8; 16],
    records: &'a [u8],
    random: &'a mut Random,
}

impl<'a> Valid<'a> {
    /// With the id of [`TOPIC`] and a batch to produce.
    pub(super) fn new(topic_id: [u8; 16], records: &'a [u8], random: &'a mut Random) -> Self {
        Self { topic_id, records, random }
    }
}

impl Values for Valid<'_> {
    fn number(&mut self, field: &Field) -> i64 {
        let value = field.value.as_deref().unwrap_or("0");
        value.parse().unwrap_or_else(|_| panic!("{}: {value:?} is no number", field.name))
    }

    fn text(&mut self, field: &Field, nullable: bool) -> Option<String> {
        match field.value.as_deref() {
            Some("null") => None,
            // Versions that have the id want the name null beside it.
            None if nullable && field.became_nullable() => None,
            text => Some(text.unwrap_or(TOPIC).to_owned()),
        }
    }

    fn bytes(&mut self, _: &Field, _: bool) -> Option<Vec<u8>> {
        Some(self.records.to_vec())
    }

    fn uuid(&mut self, _: &Field) -> [u8; 16] {
        self.topic_id
    }

    fn count(&mut self, field: &Field, nullable: bool) -> Option<usize> {
        (!nullable || field.value.as_deref() != Some("null")).then(|| 1 + self.random.below(3))
    }

    fn tagged(&mut self, _: &Field) -> bool {
        true
    }
}
