//! A replica that leads, follows, is cut back to its high watermark and goes on with another leader's records, with
//! kills and power cuts, also in the middle of a cut.
//!
//! What must hold: nothing below the high watermark goes; after a cut the log ends at the watermark, or at the start of
//! the batch that holds it; after a crash in the middle of a cut it ends anywhere from the new end to the old one, never
//! with a hole; a replica that was cut and has caught up holds what its leader holds; a reader that was there before the
//! cut never gets what was cut off.

use std::iter;

use highwater_storage::fs::SimFs;
use highwater_storage::{LeaderEpoch, Log, LogOptions, Offset, ReadLimit};

use crate::directory::{beginning, found};
use crate::input::Input;
use crate::model::{Model, NOW, assert_sound, batch, disk, open, options};

struct Replica {
    fs: SimFs,
    options: LogOptions,
    log: Log,
    model: Model,
    epoch: LeaderEpoch,
    high_watermark: Offset,
}

/// The target's body.
pub fn run(data: &[u8]) {
    let (program, fs) = beginning(data);
    let mut input = Input::new(program);
    let options = options(&mut input);
    let log = open(&fs, &options).0;
    let Some(model) = beginning_model(&log) else { return };
    let (epoch, high_watermark) = (LeaderEpoch(log.latest_epoch().0.max(0)), model.start);
    let mut replica = Replica { fs, options, log, model, epoch, high_watermark };
    for _ in 0..1 + input.below(32) {
        match input.below(10) {
            0..=3 => replica.model.append(&mut replica.log, replica.epoch, &mut input),
            4 => replica.advance_high_watermark(&mut input),
            5 => {
                replica.log.flush().expect("the simulated disk works");
            }
            6 => replica.restart(&mut input),
            7 => replica.crash_in_a_cut(&mut input),
            _ => replica.follow_another(&mut input),
        }
        if input.is_empty() {
            break;
        }
    }
    replica.model.check(&replica.log);
    replica.restart(&mut input);
}

/// What the log holds already, if that is a history without gaps, which a leader can have in the same way.
pub(crate) fn beginning_model(log: &Log) -> Option<Model> {
    let model = Model { start: log.start(), batches: found(log)? };
    let ends = iter::once(model.start).chain(model.batches.iter().map(|batch| batch.next));
    let has_no_gaps = model.batches.iter().zip(ends).all(|(batch, end)| batch.base == end);
    (has_no_gaps && model.end() == log.end() && model.epochs() == log.epochs()).then_some(model)
}

impl Replica {
    /// Anywhere up to the end, inside of batches too: followers' ends are what they are.
    fn advance_high_watermark(&mut self, input: &mut Input<'_>) {
        let more = self.model.end() - self.high_watermark;
        let more = i64::try_from(input.below(256)).expect("small") * more / 255;
        self.high_watermark = self.high_watermark + more;
    }

    fn restart(&mut self, input: &mut Input<'_>) {
        let log = std::mem::replace(&mut self.log, open(&disk(), &self.options).0);
        if input.flag() {
            log.close().expect("the simulated disk works");
        } else {
            drop(log);
            self.fs = self.fs.kill();
        }
        self.log = open(&self.fs, &self.options).0;
        self.model.check(&self.log);
    }

    /// Cuts back to the high watermark and takes another leader's records: that one has everything below it.
    fn follow_another(&mut self, input: &mut Input<'_>) {
        let mut leader = self.model.clone();
        leader.cut(self.model.boundary(self.high_watermark));
        // The leader may have more of the old records than are committed, and has new ones of its own epoch.
        let kept = leader.batches.len() + input.below(self.model.batches.len() - leader.batches.len() + 1);
        leader.batches.clone_from(&self.model.batches[..kept].to_vec());
        let epoch = LeaderEpoch(self.epoch.0 + 1);
        for _ in 0..input.below(4) {
            let (bytes, timestamps) = batch(input);
            leader.push(leader.end(), epoch, &bytes, timestamps);
        }

        self.cut();
        let from = self.log.end();
        let new: Vec<u8> =
            leader.batches.iter().filter(|batch| batch.base >= from).flat_map(|batch| batch.bytes.clone()).collect();
        // Replicas fetch in pieces of any size, so a piece may end inside of a batch.
        let piece = input.below(new.len() + 1);
        let whole: usize = leader
            .batches
            .iter()
            .filter(|batch| batch.base >= from)
            .scan(0, |end, batch| {
                *end += batch.bytes.len();
                Some(*end)
            })
            .take_while(|end| *end <= piece)
            .last()
            .unwrap_or(0);
        if whole > 0 {
            self.log.append_replicated(NOW, &new[..piece]).expect("a leader's records are taken");
        }
        if whole < new.len() {
            self.log.append_replicated(NOW, &new[whole..]).expect("a leader's records are taken");
        }
        self.model = leader;
        self.epoch = LeaderEpoch(epoch.0 + 1);
        self.model.check(&self.log);
    }

    fn cut(&mut self) {
        let reader = self.log.reader();
        let expected = self.model.boundary(self.high_watermark);
        let from = self.model.end();
        let truncated = self.log.truncate_to(self.high_watermark).expect("the simulated disk works");
        assert_eq!((truncated.from, truncated.end), (from, expected), "what the cut says it did");
        self.model.cut(expected);
        self.model.check(&self.log);
        assert_eq!(reader.end(), expected, "the end that an older reader sees");
        if let Ok(fetched) = reader.read(expected, ReadLimit::bytes(1 << 20)) {
            assert!(fetched.bytes.is_empty(), "an older reader reads what was cut off");
        }
    }

    /// A power cut at any call of a cut, then the cut again.
    fn crash_in_a_cut(&mut self, input: &mut Input<'_>) {
        let target = self.model.boundary(self.high_watermark);
        let (flushed, old) = (self.log.flushed(), self.model.end());
        self.fs.crash_after(u64::try_from(input.below(24)).expect("small"));
        let outcome = self.log.truncate_to(self.high_watermark);
        let images = self.fs.images(10, u64::from(input.byte()));
        let chosen = input.below(images.len());
        for image in &images {
            let log = open(image, &self.options).0;
            let end = log.end();
            let mut left = self.model.clone();
            left.cut(end);
            assert!(end <= old && end == left.end(), "the log ends at {end}, where no batch ends");
            assert!(end >= flushed.min(target), "the log ends at {end}: {flushed} was flushed, {target} is the cut");
            if outcome.is_ok() {
                assert!(end <= target, "the log ends at {end} after a finished cut at {target}");
            }
            let fetched = log.read(self.model.start, ReadLimit::bytes(1 << 20)).expect("what is there can be read");
            assert_sound(&fetched.bytes, self.model.start);
            left.check(&log);
        }
        self.fs = images[chosen].clone();
        self.log = open(&self.fs, &self.options).0;
        let end = self.log.end();
        self.model.cut(end);
        // What was not flushed may be gone with the power, committed or not: with one replica, nobody else has it.
        self.high_watermark = self.high_watermark.min(end);
        self.cut();
        self.epoch.0 += 1;
    }
}
