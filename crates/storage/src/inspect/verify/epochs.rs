//! The leader epochs of the batches: among themselves, and beside the checkpoint.

use std::path::{Path, PathBuf};

use crate::batch::BatchHeader;
use crate::checkpoint::{self, CheckpointError};
use crate::epochs::EpochHistory;
use crate::fs::Fs;
use crate::io::IoError;
use crate::log::EPOCHS_FILE;
use crate::{LeaderEpoch, Offset, RepairedField};

use super::super::fault::{Correction, Fault, FaultKind};

/// A log has some hundred epochs. Past this many changes from batch to batch it is noise, and the rest is not kept.
const RUNS_MAX: usize = 100_000;

/// Batches of one epoch that follow one another.
#[derive(Clone, Debug)]
struct Run {
    epoch: LeaderEpoch,
    /// What the checkpoint says.
    expected: LeaderEpoch,
    batches: u64,
    first: BatchPlace,
    end: Offset,
}

#[derive(Clone, Debug)]
struct BatchPlace {
    segment: usize,
    position: u64,
    bytes: u64,
    offset: Offset,
}

/// See the module.
pub(super) struct EpochCheck {
    path: PathBuf,
    history: History,
    log_start: Offset,
    runs: Vec<Run>,
    segments: Vec<PathBuf>,
}

enum History {
    Missing,
    Damaged(String),
    Known(EpochHistory),
}

impl EpochCheck {
    pub(super) fn load(fs: &dyn Fs, dir: &Path, is_there: bool, log_start: Offset) -> Result<Self, IoError> {
        let path = dir.join(EPOCHS_FILE);
        let history = match checkpoint::read_epochs(fs, &path) {
            Ok(_) if !is_there => History::Missing,
            Ok(entries) => match EpochHistory::from_entries(entries) {
                Ok(history) => History::Known(history),
                Err(error) => History::Damaged(error.to_string()),
            },
            Err(CheckpointError::Malformed { what, .. }) => History::Damaged(what),
            Err(CheckpointError::Io(error)) => return Err(error),
        };
        Ok(Self { path, history, log_start, runs: Vec::new(), segments: Vec::new() })
    }

    pub(super) fn segment(&mut self, path: &Path) {
        self.segments.push(path.to_owned());
    }

    pub(super) fn batch(&mut self, position: u64, header: &BatchHeader) {
        let epoch = header.leader_epoch();
        // What Kafka wrote before 0.11 has none, and neither has what an old broker replicated.
        if !epoch.is_some() {
            return;
        }
        let expected = match &self.history {
            // The history begins at the log start, and says nothing of what is left below.
            History::Known(_) if header.base_offset() < self.log_start => epoch,
            History::Known(history) => history.epoch_of(header.base_offset()),
            History::Missing | History::Damaged(_) => LeaderEpoch::NONE,
        };
        if let Some(run) = self.runs.last_mut().filter(|run| (run.epoch, run.expected) == (epoch, expected)) {
            run.batches += 1;
            run.end = header.next_offset();
        } else if self.runs.len() < RUNS_MAX {
            let segment = self.segments.len().saturating_sub(1);
            let (bytes, offset) = (header.total_bytes() as u64, header.base_offset());
            let first = BatchPlace { segment, position, bytes, offset };
            self.runs.push(Run { epoch, expected, batches: 1, first, end: header.next_offset() });
        }
    }

    /// A check of nothing.
    pub(super) fn none(dir: &Path) -> Self {
        let (path, history, log_start) = (dir.join(EPOCHS_FILE), History::Missing, Offset::ZERO);
        Self { path, history, log_start, runs: Vec::new(), segments: Vec::new() }
    }

    /// What is wrong, in a log that ends at `end`, and whose checkpoint knows what lies below `settled`.
    pub(super) fn finish(self, end: Offset, settled: Offset) -> Vec<Fault> {
        let (fitting, outliers) = split_outliers(self.runs);
        let mut faults: Vec<_> = outliers
            .into_iter()
            .map(|run| {
                let file = self.segments.get(run.first.segment).cloned().unwrap_or_default();
                let due = fitting.iter().rev().find(|other| other.first.offset < run.first.offset);
                let due = due.or_else(|| fitting.first()).map_or(LeaderEpoch::NONE, |other| other.epoch);
                let what = format!("leader epoch {} among batches of epoch {due}", run.epoch);
                let fault = Fault::new(FaultKind::LeaderEpoch, file, what).at(run.first.position);
                let is_one = run.batches == 1 && due != LeaderEpoch::NONE;
                let (was, is) = (i64::from(run.epoch.0), i64::from(due.0));
                let correction = is_one.then_some(Correction { field: RepairedField::LeaderEpoch, was, is });
                fault.bytes(run.first.bytes).offsets(run.first.offset..run.end).correction(correction)
            })
            .collect();
        match self.history {
            History::Missing if fitting.first().is_some_and(|run| run.first.offset < settled) => {
                faults.push(Fault::new(FaultKind::EpochsMissing, self.path, "there is none"));
            }
            History::Missing => {}
            History::Damaged(what) => faults.push(Fault::new(FaultKind::Epochs, self.path, what)),
            History::Known(history) => {
                let mut wrong = fitting.iter().filter(|run| run.epoch != run.expected && run.first.offset < settled);
                if let Some(first) = wrong.next() {
                    let says = if first.expected.is_some() {
                        format!("it says epoch {}", first.expected)
                    } else {
                        "it knows no epoch".to_owned()
                    };
                    let what = format!("{says} at offset {}, the batch {}", first.first.offset, first.epoch);
                    let last = wrong.next_back().unwrap_or(first);
                    let fault = Fault::new(FaultKind::Epochs, self.path.clone(), what);
                    faults.push(fault.offsets(first.first.offset..last.end));
                }
                if let Some((epoch, start)) = history.entries().last().filter(|(_, start)| *start > end) {
                    let what = format!("epoch {epoch} begins at {start}, past the end of the log, {end}");
                    faults.push(Fault::new(FaultKind::Epochs, self.path, what));
                }
            }
        }
        faults
    }
}

/// Epochs never fall. Where they do, the fewer batches are wrong; of as many, those that the checkpoint does not know.
fn split_outliers(runs: Vec<Run>) -> (Vec<Run>, Vec<Run>) {
    let mut fitting: Vec<Run> = Vec::new();
    let mut outliers = Vec::new();
    let weight = |run: &Run| run.batches * 2 + u64::from(run.epoch == run.expected);
    for run in runs {
        let above = fitting.partition_point(|known| known.epoch <= run.epoch);
        let above_weight: u64 = fitting.iter().skip(above).map(weight).sum();
        // What an outlier had parted is one again.
        let same = fitting.get(..above).into_iter().flatten().filter(|known| known.epoch == run.epoch);
        let run_weight = weight(&run) + same.map(weight).sum::<u64>();
        if above < fitting.len() && above_weight >= run_weight {
            outliers.push(run);
        } else {
            outliers.extend(fitting.split_off(above));
            fitting.push(run);
        }
    }
    outliers.sort_by_key(|run| run.first.offset);
    (fitting, outliers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of (epoch, batches), without a checkpoint.
    fn outliers(runs: &[(i32, u64)]) -> Vec<i32> {
        let runs = runs.iter().zip(0..).map(|(&(epoch, batches), at)| Run {
            epoch: LeaderEpoch(epoch),
            expected: LeaderEpoch::NONE,
            batches,
            first: BatchPlace { segment: 0, position: 0, bytes: 0, offset: Offset(at) },
            end: Offset(at + 1),
        });
        split_outliers(runs.collect()).1.iter().map(|run| run.epoch.0).collect()
    }

    #[test]
    fn the_batch_that_stands_out_is_the_wrong_one() {
        assert_eq!(outliers(&[(0, 5), (1, 5), (4, 5)]), [0; 0]);
        assert_eq!(outliers(&[(0, 5), (1, 1), (0, 9)]), [1], "too high in the middle");
        assert_eq!(outliers(&[(1, 1), (0, 9)]), [1], "too high at the beginning");
        assert_eq!(outliers(&[(5, 9), (1, 1), (5, 3), (6, 1)]), [1], "too low");
        assert_eq!(outliers(&[(5, 2), (70, 1), (5, 2), (6, 2), (90, 1), (7, 2)]), [70, 90]);
    }
}
