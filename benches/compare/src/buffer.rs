//! Single records through the engine's own buffer.

use std::fs;
use std::path::PathBuf;

use highwater_benches::{EPOCH, NOW, Subject};
use highwater_storage::{BufferPolicy, Log, LogOptions, Record, RecordBuffer};
use tempfile::TempDir;

use crate::rivals::Load;
use crate::scratch;

/// Pushes of one record.
pub(crate) struct Buffered {
    directory: TempDir,
    buffer: Option<RecordBuffer>,
    bytes: usize,
    load: Load,
    round: u32,
}

impl Buffered {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut subject = Self { directory: scratch(), buffer: None, bytes, load: Load::new(1, false), round: 0 };
        subject.prepare();
        subject
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(self.round.to_string())
    }
}

impl Subject for Buffered {
    fn once(&mut self) -> Option<u64> {
        let buffer = self.buffer.as_mut()?;
        if buffer.log().size_bytes() >= 256 << 20 {
            return None;
        }
        buffer.push(NOW, Record::new(NOW, &self.load.values[0])).expect("the disk has room");
        Some(self.load.bytes())
    }

    fn prepare(&mut self) {
        if self.buffer.take().is_some() {
            fs::remove_dir_all(self.path()).expect("it is ours");
        }
        self.round += 1;
        let log = Log::open(self.path(), LogOptions::default()).expect("an empty directory can be opened").0;
        self.buffer = Some(RecordBuffer::new(log, EPOCH, BufferPolicy::up_to(self.bytes)));
    }
}
