//! Values for the fields of a request, drawn by the input: often what makes sense there, sometimes anything.

use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use highwater_tests::requests::{Field, Values};

use super::TOPICS;
use crate::input::Input;

/// Texts for any field.
const TEXTS: &[&str] = &[
    "alpha",
    "beta",
    "fresh",
    "missing",
    "group",
    "",
    "1",
    "consumer",
    "range",
    "retention.ms",
    "cleanup.policy",
    "compact",
    "1000",
    "-1",
    "__consumer_offsets",
    "bad/name",
    "Stable",
    "classic",
    "transaction",
];

/// Numbers that have a meaning somewhere, or are at an end.
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    3,
    -2,
    -3,
    -4,
    -5,
    4,
    5,
    7,
    16,
    100,
    1000,
    6000,
    300_000,
    i64::MAX,
    i64::MIN,
    0x7fff_ffff,
    -0x8000_0000,
    0x7fff,
    0xff,
];

/// When the records were made: any time will do, so one that is always the same.
const TIME: TimestampMs = TimestampMs(1_790_000_000_000);

pub(super) struct Drawn<'a, 'b> {
    pub(super) input: &'a mut Input<'b>,
    pub(super) topic_ids: &'a [[u8; 16]],
}

impl Drawn<'_, '_> {
    fn batch(&mut self) -> Vec<u8> {
        let codec = self.input.choose(&[Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd]);
        let mut builder = BatchBuilder::new(codec);
        if self.input.flag() {
            let (id, sequence) = (self.input.below(4), self.input.below(4));
            let number = |number| i64::try_from(number).expect("a small number");
            builder = builder.producer(number(id), 0, i32::try_from(sequence).expect("a small number"));
        }
        if self.input.below(8) == 7 {
            builder = builder.transactional();
        }
        for _ in 0..=self.input.below(3) {
            let length = self.input.below(20);
            let value = self.input.take(length);
            builder.push(if self.input.flag() { Record::keyed(TIME, b"key", value) } else { Record::new(TIME, value) });
        }
        builder.build()
    }
}

impl Values for Drawn<'_, '_> {
    fn number(&mut self, field: &Field) -> i64 {
        let known = field.value.as_deref().and_then(|value| value.parse().ok());
        match (self.input.below(8), known) {
            (0..=3, Some(value)) => value,
            (7, _) => (0..8).fold(0, |all, _| all << 8 | i64::from(self.input.byte())),
            (0..=4, _) => self.input.choose(&[0, 0, 1, -1]),
            _ => self.input.choose(NUMBERS),
        }
    }

    fn text(&mut self, field: &Field, nullable: bool) -> Option<String> {
        if nullable && (field.became_nullable() || self.input.below(4) == 0) {
            return None;
        }
        Some(match self.input.below(8) {
            0..=3 => match field.value.as_deref() {
                Some("null") if nullable => return None,
                Some(value) => value.to_owned(),
                None => TOPICS[self.input.below(TOPICS.len())].0.to_owned(),
            },
            7 => {
                let length = self.input.below(300);
                String::from_utf8_lossy(self.input.take(length)).into_owned()
            }
            _ => self.input.choose(TEXTS).to_owned(),
        })
    }

    fn bytes(&mut self, _: &Field, nullable: bool) -> Option<Vec<u8>> {
        match self.input.below(8) {
            0 if nullable => None,
            0..=4 => Some(self.batch()),
            5 => {
                let (mut first, second) = (self.batch(), self.batch());
                first.extend(second);
                Some(first)
            }
            _ => {
                let length = self.input.below(100);
                Some(self.input.take(length).to_vec())
            }
        }
    }

    fn uuid(&mut self, _: &Field) -> [u8; 16] {
        match self.input.below(4) {
            0 => [self.input.byte(); 16],
            _ => self.input.choose(self.topic_ids),
        }
    }

    fn count(&mut self, _: &Field, nullable: bool) -> Option<usize> {
        match self.input.below(8) {
            0 if nullable => None,
            1 => Some(0),
            7 => Some(2 + self.input.below(3)),
            _ => Some(1),
        }
    }

    fn tagged(&mut self, _: &Field) -> bool {
        self.input.flag()
    }
}
