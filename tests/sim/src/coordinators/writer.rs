//! An idempotent producer that numbers its records.

use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};

use super::plan::Scenario;
use super::*;

/// So many records are there at least.
const RECORDS_MIN: i64 = 12;

#[derive(Debug)]
pub(super) struct Writer {
    input: usize,
    /// What is acknowledged ends here.
    pub(super) written: i64,
    /// The batch that is not acknowledged yet ends here.
    sent: i64,
    waits_for: Option<u64>,
    rests_until: i64,
}

impl Writer {
    pub(super) fn new(input: usize) -> Self {
        Self { input, written: 0, sent: 0, waits_for: None, rests_until: 0 }
    }

    pub(super) fn waits_for(&self, number: u64) -> bool {
        self.waits_for == Some(number)
    }

    pub(super) fn gives_up(&mut self) {
        self.waits_for = None;
    }

    pub(super) fn is_done(&self, scenario: Scenario) -> bool {
        self.written == self.sent && self.written >= if scenario == Scenario::Drawn { RECORDS_MIN } else { 1 }
    }
}

impl World {
    pub(super) fn writer_acts(&mut self, number: usize) {
        let count = 1 + self.chance.below(3).cast_signed();
        let rest_ms = self.chance.between(0, 60);
        let (now, healed, scenario) = (self.now, self.healed, self.scheme.scenario);
        let writer = &mut self.writers[number];
        if writer.waits_for.is_some() {
            return;
        }
        if writer.sent == writer.written {
            let is_enough = healed || scenario != Scenario::Drawn;
            if now < writer.rests_until || (is_enough && writer.is_done(scenario)) {
                return;
            }
            writer.sent += count;
            writer.rests_until = now + rest_ms;
        }
        let sequence = i32::try_from(writer.written).expect("few");
        let mut builder = BatchBuilder::new(Codec::None).producer(7 + number as i64, 0, sequence);
        for record in writer.written..writer.sent {
            builder.push(Record::new(TimestampMs(now), &record.to_be_bytes()));
        }
        let (at, batch) = (INPUTS[writer.input], builder.build());
        let to = self.whom_to_ask(at);
        let asked = self.send(Client::Writer(number), to, Ask::Produce { at, batch, of: None });
        self.writers[number].waits_for = Some(asked);
    }

    pub(super) fn writer_hears(&mut self, number: usize, told: &Told) {
        let writer = &mut self.writers[number];
        writer.waits_for = None;
        if let Told::Produced(Ok(offset)) = told {
            assert_eq!(offset.0, writer.written, "record {} of input {number} is somewhere else", writer.written);
            writer.written = writer.sent;
            self.counts.acknowledged += 1;
        }
    }
}
