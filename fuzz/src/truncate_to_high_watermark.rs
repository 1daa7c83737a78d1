//! A replica that leads in several epochs, follows, is cut back to its high watermark, or to where its epochs part from
//! another leader's, and goes on with that one's records, with kills and power cuts, also in the middle of a cut.
//!
//! What must hold: nothing below the high watermark goes; after a cut the log ends where it was to, or at the start of
//! the batch that holds that offset; after a crash in the middle of a cut it ends anywhere from the new end to the old one,
//! never with a hole; a replica that was cut and has caught up holds what its leader holds; a reader that was there before
//! the cut never gets what was cut off. The ends of all epochs are those of the list, whatever was cut and however it was
//! opened again, and by them a follower finds in a few rounds all that it has in common with its leader, and no more.

use std::iter;

use highwater_replication::{Fit, cut_for, fit};
use highwater_storage::fs::SimFs;
use highwater_storage::{EpochEnd, LeaderEpoch, Log, LogOptions, Offset, ReadLimit};

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
        match input.below(14) {
            0..=3 => replica.model.append(&mut replica.log, replica.epoch, &mut input),
            4 => replica.advance_high_watermark(&mut input),
            5 => {
                replica.log.flush().expect("the simulated disk works");
            }
            6 => replica.restart(&mut input),
            7 => {
                let to = replica.high_watermark;
                replica.crash_in_a_cut(to, &mut input);
            }
            8..=9 => replica.follow_another(&mut input),
            // Led by others, and again by this one: what follows has a later epoch.
            10..=11 => replica.epoch.0 += 1 + i32::try_from(input.below(3)).expect("small"),
            _ => replica.follow_by_epochs(&mut input),
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

        self.cut(self.high_watermark);
        self.catch_up(leader, input);
        self.epoch = LeaderEpoch(epoch.0 + 1);
    }

    /// Follows a leader whose history parts from this one anywhere above the high watermark. Both know of each other what
    /// a fetch tells: where an epoch ends.
    fn follow_by_epochs(&mut self, input: &mut Input<'_>) {
        // All that begin below the watermark: it may lie inside of a batch.
        let committed = self.model.batches.iter().filter(|batch| batch.base < self.high_watermark).count();
        let kept = committed + input.below(self.model.batches.len() - committed + 1);
        let mut leader = self.model.clone();
        let ours: Vec<LeaderEpoch> = leader.batches.drain(kept..).map(|batch| batch.epoch).collect();
        // No two leaders have one epoch: from where they part, none is in both.
        let mut epoch = leader.batches.last().map_or(LeaderEpoch(0), |batch| batch.epoch.max(LeaderEpoch(0)));
        for _ in 0..input.below(5) {
            epoch.0 += i32::try_from(input.below(3)).expect("small");
            while ours.contains(&epoch) {
                epoch.0 += 1;
            }
            let (bytes, timestamps) = batch(input);
            leader.push(leader.end(), epoch, &bytes, timestamps);
        }
        // Its leadership begins above all that there was.
        epoch.0 = epoch.0.max(self.epoch.0) + 1;
        let mut of_leader = log_of(&leader, &self.options);
        of_leader.assign_epoch(epoch, leader.end()).expect("the simulated disk works");
        let common =
            self.model.batches.iter().zip(&leader.batches).take_while(|(here, there)| here.bytes == there.bytes);
        let common = common.last().map_or(self.model.start, |(here, _)| here.next);

        let rounds_max = self.model.epochs().len() + leader.epochs().len() + 1;
        for round in 0.. {
            check_ends(&self.model, &self.log);
            let last = Some(self.log.latest_epoch()).filter(|epoch| epoch.is_some());
            let Fit::Diverges(end) = fit(&of_leader, last, self.log.end()) else { break };
            assert!(round < rounds_max, "leader and follower do not come to an end: {end:?}");
            let to = cut_for(&self.log, end);
            assert!(to >= common, "a cut to {to}: the logs are equal up to {common}");
            match input.below(8) {
                0 => self.crash_in_a_cut(to, input),
                1 => {
                    self.cut(to);
                    self.restart(input);
                }
                _ => self.cut(to),
            }
            if self.log.end() < common {
                break; // The power went, and with it what was not flushed.
            }
        }
        assert!(self.log.end() <= common, "the logs are equal up to {common}, and {} is left", self.log.end());
        self.catch_up(leader, input);
        self.epoch = LeaderEpoch(epoch.0 + 1);
        check_ends(&self.model, &self.log);
    }

    /// Takes what the leader has behind the log's end, in two pieces.
    fn catch_up(&mut self, leader: Model, input: &mut Input<'_>) {
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
        self.model.check(&self.log);
    }

    fn cut(&mut self, to: Offset) {
        let reader = self.log.reader();
        let expected = self.model.boundary(to);
        let from = self.model.end();
        let truncated = self.log.truncate_to(to).expect("the simulated disk works");
        assert_eq!((truncated.from, truncated.end), (from, expected), "what the cut says it did");
        self.model.cut(expected);
        self.model.check(&self.log);
        assert_eq!(reader.end(), expected, "the end that an older reader sees");
        if let Ok(fetched) = reader.read(expected, ReadLimit::bytes(1 << 20)) {
            assert!(fetched.bytes.is_empty(), "an older reader reads what was cut off");
        }
    }

    /// A power cut at any call of a cut, then the cut again.
    fn crash_in_a_cut(&mut self, to: Offset, input: &mut Input<'_>) {
        let target = self.model.boundary(to);
        let (flushed, old) = (self.log.flushed(), self.model.end());
        self.fs.crash_after(u64::try_from(input.below(24)).expect("small"));
        let outcome = self.log.truncate_to(to);
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
            check_ends(&left, &log);
        }
        self.fs = images[chosen].clone();
        self.log = open(&self.fs, &self.options).0;
        let end = self.log.end();
        self.model.cut(end);
        // What was not flushed may be gone with the power, committed or not: with one replica, nobody else has it.
        self.high_watermark = self.high_watermark.min(end);
        self.cut(to.min(end));
        self.epoch.0 += 1;
    }
}

/// A log that holds what the list has.
fn log_of(model: &Model, options: &LogOptions) -> Log {
    let mut log = open(&disk(), options).0;
    if model.start > Offset(0) {
        log.reset_to(model.start).expect("the simulated disk works");
    }
    let bytes: Vec<u8> = model.batches.iter().flat_map(|batch| batch.bytes.iter().copied()).collect();
    log.append_replicated(NOW, &bytes).expect("a leader's records are taken");
    model.check(&log);
    check_ends(model, &log);
    log
}

/// Where each epoch ends, and each that is not there, by going through the list.
fn check_ends(model: &Model, log: &Log) {
    let epochs = model.epochs();
    let latest = epochs.last().map_or(LeaderEpoch::NONE, |(epoch, _)| *epoch);
    let near = epochs.iter().flat_map(|(epoch, _)| [epoch.0 - 1, epoch.0, epoch.0 + 1]);
    for asked in near.chain([0]).map(LeaderEpoch).filter(|asked| asked.is_some()) {
        let known = epochs.iter().map(|(epoch, _)| *epoch).rfind(|epoch| *epoch <= asked);
        let next = epochs.iter().find(|(epoch, _)| *epoch > asked).map(|(_, start)| *start);
        let expected = match next {
            _ if asked == latest => EpochEnd { epoch: asked, end: model.end() },
            Some(end) => EpochEnd { epoch: known.unwrap_or(asked), end },
            None => EpochEnd::NONE,
        };
        assert_eq!(log.end_of_epoch(asked), expected, "the end of epoch {asked} of {epochs:?}");
    }
}
