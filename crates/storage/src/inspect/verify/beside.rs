//! What lies beside the segments: other files by their names, small files, snapshots, and what the data root says.

use std::io;
use std::path::Path;

use crate::Offset;
use crate::io::IoError;
use crate::metadata_files::{MetadataFileError, read_topic_id};
use crate::producers::MAX_PRODUCERS;
use crate::state_file::{FlushMark, STATE_FILE, StateFile};

use super::super::fault::{Fault, FaultKind};
use super::super::target::InspectError;
use super::snapshots;
use super::verifier::Verifier;

impl Verifier<'_> {
    /// Files beside the segments, by their names.
    pub(super) fn names(&mut self) {
        let files = &self.summary.files;
        let kinds = [
            (FaultKind::Leftover, &files.leftovers, "left by work that was interrupted or postponed"),
            (FaultKind::Orphan, &files.orphans, "there is no segment of this name"),
            (FaultKind::SetAside, &files.set_aside, "bytes that were put aside"),
        ];
        for (kind, listed, what) in kinds {
            for facts in listed {
                self.found(Fault::new(kind, &facts.path, what).bytes(facts.bytes));
            }
        }
        for name in &files.unknown {
            self.found(Fault::new(FaultKind::Unknown, files.dir.join(name), "no log has a file of this name"));
        }
    }

    pub(super) fn metadata(&mut self, dir: &Path) -> Result<(), InspectError> {
        match read_topic_id(self.fs, dir) {
            Ok(_) => {}
            Err(MetadataFileError::Io(error)) if error.kind() != io::ErrorKind::FileTooLarge => {
                return Err(error.into());
            }
            Err(MetadataFileError::Io(error)) => {
                self.found(Fault::new(FaultKind::Metadata, &error.path, error.source.to_string()));
            }
            Err(MetadataFileError::Malformed { path, what }) => self.found(Fault::new(FaultKind::Metadata, path, what)),
        }
        let state = StateFile::read(self.fs, dir)?;
        let path = dir.join(STATE_FILE);
        match state.last() {
            None if self.summary.files.state.is_some() && !state.had_sync_failed() => {
                self.found_in_motion(Fault::new(FaultKind::State, path, "no part of it can be read"));
            }
            Some(known) if !state.is_whole() => {
                // A mark is written without a sync. Before a log is marked as closed, a part that was torn is written anew.
                let kind = if known.clean { FaultKind::State } else { FaultKind::StateTorn };
                self.found_in_motion(Fault::new(kind, path, "a part of it cannot be read"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares the snapshots that cover the batches up to `offset`.
    pub(super) fn snapshots_up_to(&mut self, offset: Offset) -> Result<(), InspectError> {
        let files = &self.summary.files;
        let known_from = files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        while let Some((at, facts)) = files.snapshots.get(self.next_snapshot).filter(|(at, _)| *at <= offset) {
            self.next_snapshot += 1;
            match snapshots::read(self.fs, facts, MAX_PRODUCERS)? {
                None => {}
                Some(Err(fault)) => self.found(fault),
                // The batches below it are gone, and those behind it say nothing of it.
                Some(Ok(_)) if *at < known_from => {}
                Some(Ok(table)) => {
                    let known = snapshots::Known { table: &self.producers, from: known_from, all: self.knows_all };
                    if let Some(fault) = snapshots::compare(facts, *at, &table, known) {
                        self.found(fault);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the log ends where the state file says that it was closed, or reaches what it says was synced.
    pub(super) fn state(&mut self, dir: &Path, end: Offset) -> Result<(), IoError> {
        let Some(state) = StateFile::read(self.fs, dir)?.last() else { return Ok(()) };
        let (verb, said) = if state.clean { ("closed", state.end) } else { ("synced", state.synced()) };
        let path = dir.join(STATE_FILE);
        // Bytes at the end that are no batch any more are told as what they are, and keep their offsets.
        let is_there = self.ends_damaged && state.mark.is_some_and(|mark| self.reaches(&mark));
        let foreign = if said > end && !is_there {
            let what = format!("the log was {verb} up to {said}, and ends at {end}");
            if !(self.summary.root.clean && self.summary.root.recovery_point.is_some_and(|point| point <= end)) {
                self.found_in_motion(Fault::new(FaultKind::RecordsMissing, path, what).offsets(end..said));
                return Ok(());
            }
            format!("{what}, as another program closed it")
        } else if state.clean && said < end {
            format!("the log was closed at {said}, and ends at {end}: another program wrote to it since")
        } else {
            return Ok(());
        };
        self.found_in_motion(Fault::new(FaultKind::StateForeign, path, foreign));
        Ok(())
    }

    /// Whether the file with a flush mark is as long as the mark says.
    fn reaches(&self, mark: &FlushMark) -> bool {
        let segments = &self.summary.files.segments;
        segments.iter().any(|segment| segment.base == mark.segment_base && segment.log.bytes >= mark.position)
    }

    /// What the checkpoints of the root say of this log.
    pub(super) fn root_offsets(&mut self, end: Offset) {
        let Some(root) = self.summary.root.dir.clone() else { return };
        for (name, said) in self.summary.root.offsets() {
            if let Some(said) = said.filter(|said| *said > end) {
                let what = format!("it says {said}, the log ends at {end}");
                let fault = Fault::new(FaultKind::CheckpointOffset, root.join(name), what).offsets(end..said);
                self.found_in_motion(fault);
            }
        }
    }
}
