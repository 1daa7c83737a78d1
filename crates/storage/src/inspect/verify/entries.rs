//! Entries of an index file, read piece by piece and compared with the batches as those go by.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::fs::{File, Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};

use super::super::fault::{Fault, FaultKind};
use super::super::files::FileFacts;

const CHUNK_BYTES: usize = 12 << 10;

/// The entries of `N` bytes of a file, in order.
pub(super) struct Entries<const N: usize> {
    file: Arc<dyn File>,
    facts: FileFacts,
    chunk: Vec<u8>,
    /// Where in the file the chunk begins.
    chunk_start: u64,
    /// Where in the file the next entry begins.
    position: u64,
    /// Up to here there is a byte that is not zero ahead: each stretch of zeros is looked through once.
    not_zero: u64,
    wrong: Wrong,
}

/// The first wrong entry of a file, and how many there are: one report, however many there are.
#[derive(Default)]
struct Wrong {
    first: Option<(u64, String)>,
    count: u64,
}

impl<const N: usize> Entries<N> {
    /// `None` if the file has gone meanwhile.
    pub(super) fn open(fs: &dyn Fs, facts: &FileFacts) -> Result<Option<Self>, IoError> {
        let file = match fs.open(&facts.path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context("open", &facts.path)?,
        };
        let (chunk, wrong) = (Vec::new(), Wrong::default());
        Ok(Some(Self { file, facts: facts.clone(), chunk, chunk_start: 0, position: 0, not_zero: 0, wrong }))
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.facts.path
    }

    /// The next entry and where it stands. `None` at the end, or where only zeros follow.
    pub(super) fn next(&mut self) -> Result<Option<(u64, [u8; N])>, IoError> {
        let position = self.position;
        if position + N as u64 > self.facts.bytes {
            return Ok(None);
        }
        let at = usize::try_from(position - self.chunk_start).unwrap_or(usize::MAX);
        let mut entry = self.chunk.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied();
        if entry.is_none() {
            self.chunk.resize(CHUNK_BYTES, 0);
            let read = self.file.read_full_at(&mut self.chunk, position).context("read", &self.facts.path)?;
            self.chunk.truncate(read);
            self.chunk_start = position;
            entry = self.chunk.first_chunk().copied();
        }
        let Some(entry) = entry else { return Ok(None) };
        if entry == [0; N] && position >= self.not_zero && self.only_zeros_from(position)? {
            return Ok(None);
        }
        self.position += N as u64;
        Ok(Some((position, entry)))
    }

    /// The next entry that `judge` takes for one that may be right in itself; what it says of the others is noted.
    pub(super) fn next_right<E>(
        &mut self,
        mut judge: impl FnMut(u64, &[u8; N]) -> Result<E, String>,
    ) -> Result<Option<E>, IoError> {
        while let Some((at, bytes)) = self.next()? {
            match judge(at, &bytes) {
                Ok(entry) => return Ok(Some(entry)),
                Err(what) => self.wrong(at, what),
            }
        }
        Ok(None)
    }

    /// Notes that the entry at `position` is wrong.
    pub(super) fn wrong(&mut self, position: u64, what: String) {
        self.wrong.count += 1;
        self.wrong.first.get_or_insert((position, what));
    }

    /// Whether there was nothing in the file, or zeros only.
    pub(super) fn is_empty(&self) -> bool {
        self.position == 0 && self.wrong.count == 0
    }

    /// What is wrong with the file, if anything is, once all entries were taken. Zeros behind the last are all right in
    /// the file of a segment that grows: Kafka makes it in its full size.
    pub(super) fn finish(mut self, kind: FaultKind, may_have_room: bool) -> Option<Fault> {
        let left = self.facts.bytes - self.position;
        let is_cut = !left.is_multiple_of(N as u64);
        if left > 0 && (is_cut || !may_have_room) {
            let what =
                if is_cut { format!("a length that is no multiple of {N}") } else { format!("{left} zero bytes") };
            self.wrong(self.position, what);
        }
        let (position, mut what) = self.wrong.first?;
        if self.wrong.count > 1 {
            what = format!("{what}; {} more entries are wrong", self.wrong.count - 1);
        }
        Some(Fault::new(kind, self.facts.path, what).at(position))
    }

    fn only_zeros_from(&mut self, mut position: u64) -> Result<bool, IoError> {
        let mut buffer = vec![0; CHUNK_BYTES];
        while position < self.facts.bytes {
            let read = self.file.read_full_at(&mut buffer, position).context("read", &self.facts.path)?;
            if read == 0 {
                break;
            }
            if let Some(at) = buffer.iter().take(read).position(|&byte| byte != 0) {
                self.not_zero = position + at as u64;
                return Ok(false);
            }
            position += read as u64;
        }
        Ok(true)
    }
}
