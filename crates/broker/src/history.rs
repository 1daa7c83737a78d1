//! What happened to a partition other than being appended to: each cut of its log here, and each election by which records
//! may be lost. One line of JSON each, in a small file beside the log, so that it is known after the broker is gone.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use highwater_replication::BrokerId;
use highwater_storage::checkpoint::replace_file;
use highwater_storage::fs::{Fs, OpenMode};
use highwater_storage::io::FileExt;
use highwater_storage::names::HISTORY_FILE;
use highwater_storage::{LeaderEpoch, Offset, TimestampMs, TopicPartition};
use serde_json::json;

/// A history that would be larger loses its oldest lines, down to half of this.
const FILE_BYTES_MAX: usize = 64 << 10;

/// Lines that may wait to be written. More are told in the log only: the disk does not keep up.
const QUEUE_MAX: usize = 10_000;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryEntry {
    pub(crate) when: TimestampMs,
    /// Who leads.
    pub(crate) leader: Option<BrokerId>,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) why: String,
    /// Log end and last epoch before, and after.
    pub(crate) from: (Offset, LeaderEpoch),
    pub(crate) to: (Offset, LeaderEpoch),
    /// What lies below was shown to consumers.
    pub(crate) high_watermark: Offset,
    /// Offsets that are gone. Of an election: those of which it is known, at least so many; `None` if of none it is, as of
    /// what those had that are not there.
    pub(crate) records: Option<i64>,
}

impl HistoryEntry {
    /// Counts what is known to be lost by an election: what was committed or what others have, above the end of who leads.
    pub(crate) fn lacks(&mut self, others: impl Iterator<Item = (Offset, LeaderEpoch)>) {
        self.from = others.fold(self.from, |from, other| if other.0 > from.0 { other } else { from });
        self.records = Some(self.from.0 - self.to.0).filter(|lost| *lost > 0);
    }

    fn line(&self, broker: BrokerId) -> String {
        json!({
            "when": self.when.0,
            "broker": broker.0,
            "leader": self.leader.map_or(-1, |leader| leader.0),
            "leader_epoch": self.leader_epoch.0,
            "why": self.why,
            "from_offset": self.from.0.0,
            "from_epoch": self.from.1.0,
            "to_offset": self.to.0.0,
            "to_epoch": self.to.1.0,
            "high_watermark": self.high_watermark.0,
            "records": self.records,
        })
        .to_string()
    }
}

/// How much of it there was since the broker started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryCounts {
    /// Logs that were cut.
    pub cuts: u64,
    /// Offsets that are gone by it.
    pub records_cut: u64,
    /// Elections of replicas of this broker that were not in sync.
    pub unclean_elections: u64,
    /// Elections of the one that kept most after all stopped uncleanly.
    pub recovered_elections: u64,
}

/// The histories of one broker's partitions.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    fs: OnceLock<Arc<dyn Fs>>,
    /// Lines to be written, in the order in which things happened.
    queue: Mutex<VecDeque<(PathBuf, String)>>,
    /// Who writes does so alone.
    writing: Mutex<()>,
    cuts: AtomicU64,
    records_cut: AtomicU64,
    unclean: AtomicU64,
    recovered: AtomicU64,
}

impl Histories {
    /// The file system of the data directory.
    pub(crate) fn open(&self, fs: Arc<dyn Fs>) {
        // Once in a broker's life.
        let _ = self.fs.set(fs);
    }

    pub(crate) fn counts(&self) -> HistoryCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HistoryCounts {
            cuts: of(&self.cuts),
            records_cut: of(&self.records_cut),
            unclean_elections: of(&self.unclean),
            recovered_elections: of(&self.recovered),
        }
    }

    pub(crate) fn count_cut(&self, records: i64) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        self.records_cut.fetch_add(u64::try_from(records).unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn count_unclean(&self) {
        self.unclean.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an entry for the partition in `dir`. It is written by [`Self::write_next`], to be called once for each entry where
    /// waiting for a disk is fine.
    pub(crate) fn note(&self, dir: PathBuf, broker: BrokerId, entry: &HistoryEntry) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() < QUEUE_MAX {
            queue.push_back((dir.join(HISTORY_FILE), entry.line(broker)));
        }
    }

    /// Writes the oldest entry that was noted. Blocks.
    pub(crate) fn write_next(&self) {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let (Some((path, line)), Some(fs)) = (next, self.fs.get()) else { return };
        let written = read(&**fs, &path).and_then(|before| {
            let bytes = with_line(&before, &line);
            replace_file(&**fs, &path, &bytes).map_err(|error| error.source)
        });
        if let Err(error) = written {
            // The partition may be deleted by now; and the log has told of it in any case.
            tracing::warn!(path = %path.display(), %error, line, "cannot write to the history");
        }
    }

    /// The history of the partition in `dir`, the latest line at the end; nothing if it has none. Blocks.
    pub(crate) fn read(&self, dir: &Path) -> Vec<u8> {
        let Some(fs) = self.fs.get() else { return Vec::new() };
        read(&**fs, &dir.join(HISTORY_FILE)).unwrap_or_default()
    }
}

/// Where a partition's history lies.
pub(crate) fn directory(data_dir: &Path, of: &TopicPartition) -> PathBuf {
    data_dir.join(of.to_string())
}

/// The end of the file, as much as we would write.
fn read(fs: &dyn Fs, path: &Path) -> std::io::Result<Vec<u8>> {
    let (file, metadata) = match fs.open_with_metadata(path, OpenMode::Read) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let kept = metadata.len.min(FILE_BYTES_MAX as u64);
    let mut bytes = vec![0; usize::try_from(kept).unwrap_or(0)];
    let filled = file.read_full_at(&mut bytes, metadata.len - kept)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// The file with one more line, and without its oldest ones if it would be too large.
fn with_line(before: &[u8], line: &str) -> Vec<u8> {
    let mut bytes = before.to_vec();
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    if bytes.len() + line.len() >= FILE_BYTES_MAX {
        let from = bytes.len().saturating_sub(FILE_BYTES_MAX / 2);
        let next_line = bytes[from..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| from + at + 1);
        bytes.drain(..next_line);
    }
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use highwater_storage::fs::OsFs;

    use super::*;

    fn entry(number: i64) -> HistoryEntry {
        HistoryEntry {
            when: TimestampMs(number),
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(5),
            why: "the leader's log \"differs\"\n".to_owned(),
            from: (Offset(30), LeaderEpoch(4)),
            to: (Offset(20), LeaderEpoch(3)),
            high_watermark: Offset(20),
            records: Some(10),
        }
    }

    #[test]
    fn lines_are_added_in_order_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let histories = Histories::default();
        histories.open(Arc::new(OsFs));
        assert_eq!(histories.read(dir.path()), b"");
        let times = |histories: &Histories| -> Vec<i64> {
            let bytes = histories.read(dir.path());
            let lines = std::str::from_utf8(&bytes).unwrap().lines();
            let when = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["when"].as_i64().unwrap();
            lines.map(when).collect()
        };
        for number in 0..2 {
            histories.note(dir.path().to_owned(), BrokerId(1), &entry(number));
        }
        histories.write_next();
        assert_eq!(times(&histories), [0]);
        histories.write_next();
        histories.write_next();
        assert_eq!(times(&histories), [0, 1]);
        for number in 2..1_000 {
            histories.note(dir.path().to_owned(), BrokerId(1), &entry(number));
            histories.write_next();
        }
        let kept = times(&histories);
        assert!(kept.len() > 100 && kept.len() < 999, "{}", kept.len());
        assert!(kept.is_sorted() && kept.last() == Some(&999));
        assert!(histories.read(dir.path()).len() <= FILE_BYTES_MAX);
    }

    #[test]
    fn a_torn_line_costs_itself_only() {
        assert_eq!(with_line(b"{\"when\"", "{}"), b"{\"when\"\n{}\n");
        assert_eq!(with_line(b"", "{}"), b"{}\n");
        // No line of its own is ever so long; somebody else's may be.
        assert_eq!(with_line(&vec![b'x'; FILE_BYTES_MAX], "{}"), b"{}\n");
    }
}
