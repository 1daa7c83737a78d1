//! A file of which what was last read stays in memory, for as long as a log is opened: the end of its last segment is
//! looked at from several sides, by code that need not know of one another.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::{File, Mapped, Metadata, RawDescriptor};
use crate::io::FileExt;

/// Bytes read and kept at a time: the distance of two index entries and a few batches. Reads of more go to the file.
const BLOCK_BYTES: usize = 16 << 10;

/// See the module. A write or a cut through it forgets what was read; changes by other ways are not seen.
#[derive(Debug)]
pub(crate) struct ReadOnce {
    file: Arc<dyn File>,
    len: u64,
    /// One for the start of the file and one for its end, as it happens; the one used last is the first.
    blocks: Mutex<[Block; 2]>,
}

#[derive(Debug, Default)]
struct Block {
    start: u64,
    bytes: Vec<u8>,
}

impl ReadOnce {
    /// Over a file of `len` bytes.
    pub(crate) fn new(file: Arc<dyn File>, len: u64) -> Self {
        Self { file, len, blocks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, [Block; 2]> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self) {
        *self.lock() = Default::default();
    }
}

impl Block {
    /// The block that holds `position`, read from the file; the last bytes of a file are all in one.
    fn read(file: &dyn File, position: u64, len: u64) -> io::Result<Self> {
        let start = position.min(len.saturating_sub(BLOCK_BYTES as u64));
        let mut bytes = vec![0; usize::try_from(len - start).unwrap_or(usize::MAX).min(BLOCK_BYTES)];
        let read = file.read_full_at(&mut bytes, start)?;
        bytes.truncate(read);
        Ok(Self { start, bytes })
    }

    /// What it has from `position` on.
    fn from(&self, position: u64) -> Option<&[u8]> {
        let at = usize::try_from(position.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..).filter(|bytes| !bytes.is_empty())
    }
}

impl File for ReadOnce {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        if buffer.len() > BLOCK_BYTES || position >= self.len {
            return self.file.read_at(buffer, position);
        }
        let mut blocks = self.lock();
        let [latest, other] = &mut *blocks;
        if latest.from(position).is_none() {
            std::mem::swap(latest, other);
            if latest.from(position).is_none() {
                // A sector that cannot be read beside those that were asked for is nobody's error.
                let Ok(block) = Block::read(&*self.file, position, self.len) else {
                    return self.file.read_at(buffer, position);
                };
                *latest = block;
            }
        }
        // Nothing where the file is shorter by now.
        let bytes = latest.from(position).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let written = self.file.write_vectored_at(slices, position);
        self.forget();
        written
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = self.file.set_len(len);
        self.forget();
        set
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        self.file.map(len)
    }

    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        self.file.raw_descriptor()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fs::{Call, Fault, Fs, OpenMode, SimFs};

    fn file_of(fs: &SimFs, bytes: &[u8]) -> Arc<dyn File> {
        let file = fs.open(Path::new("/file"), OpenMode::Truncate).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn what_is_read_is_what_the_file_holds() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for len in [0, 1, 61, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, bytes.len()] {
            let bytes = &bytes[..len];
            let once = ReadOnce::new(file_of(&SimFs::new(1), bytes), len as u64);
            for back in [0, 1, 61, 5000, BLOCK_BYTES, len / 2, len] {
                for count in [1, 61, 8 << 10, BLOCK_BYTES, BLOCK_BYTES + 1, 200_000] {
                    let from = len.saturating_sub(back);
                    let mut found = vec![0; count];
                    let read = once.read_full_at(&mut found, from as u64).unwrap();
                    assert_eq!(found[..read], bytes[from..len.min(from + count)], "{count} from {from} of {len}");
                }
            }
        }
    }

    #[test]
    fn start_and_end_are_read_once_and_again_after_a_change() {
        let fs = SimFs::new(1);
        let once = ReadOnce::new(file_of(&fs, &[7; 100_000]), 100_000);
        let mut found = [0; 61];
        let mut look = || {
            for position in [99_000, 0, 99_939, 61, 90_000] {
                once.read_exact_at(&mut found, position).unwrap();
            }
            found
        };
        look();
        // No read reaches the file from here on.
        fs.inject_on(Fault::Eio, Call::Read, "file", 0);
        assert_eq!(look(), [7; 61]);
        assert_eq!(fs.faults_hit(), 0);
        fs.clear_faults();
        once.write_all_at(&[8; 100], 90_000).unwrap();
        assert_eq!(look(), [8; 61]);
    }

    #[test]
    fn a_file_that_became_shorter_ends_there() {
        let file = file_of(&SimFs::new(1), &[7; 1000]);
        let once = ReadOnce::new(file.clone(), 1000);
        file.set_len(500).unwrap();
        assert_eq!(once.read_full_at(&mut [0; 100], 450).unwrap(), 50);
        assert_eq!(once.read_full_at(&mut [0; 100], 900).unwrap(), 0);
    }
}
