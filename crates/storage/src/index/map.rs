//! The bytes of a sealed index file: mapped where the file system can, read piece by piece where not.

use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;

use crate::fs::{File, Mapped};
use crate::io::FileExt;

/// The first bytes of an index file that no longer changes.
///
/// The length is fixed when the bytes are taken, and the file is never cut afterwards: a rebuilt index is written under
/// another name and renamed. Once mapped, the file's descriptor is not needed any more and is let go.
pub struct IndexBytes {
    source: Source,
    len: u64,
}

enum Source {
    /// There is nothing to read, and nothing to hold a descriptor for.
    Empty,
    Map(Mapped),
    File(Arc<dyn File>),
}

impl fmt::Debug for IndexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Empty => "nothing",
            Source::Map(_) => "map",
            Source::File(_) => "file",
        };
        f.debug_struct("IndexBytes").field("source", &source).field("len", &self.len).finish()
    }
}

impl IndexBytes {
    /// Takes the first `len` bytes of `file`, which must have that many.
    ///
    /// # Errors
    /// If the file cannot be mapped although its file system has maps, or if it is shorter.
    pub fn new(file: Arc<dyn File>, len: u64) -> io::Result<Self> {
        if file.metadata()?.len < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let source = match usize::try_from(len) {
            // An empty map is an error on most systems. The file is let go here as well.
            Ok(0) => Source::Empty,
            Ok(bytes) => file.map(bytes)?.map_or(Source::File(file), Source::Map),
            Err(_) => Source::File(file),
        };
        Ok(Self { source, len })
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `N` bytes at `position`.
    ///
    /// # Errors
    /// What the file answers; `UnexpectedEof` past the length.
    pub fn read<const N: usize>(&self, position: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_into(&mut bytes, position)?;
        Ok(bytes)
    }

    /// Fills the buffer from `position`.
    ///
    /// # Errors
    /// As [`IndexBytes::read`].
    pub fn read_into(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let end = position.checked_add(buffer.len() as u64).filter(|&end| end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        match &self.source {
            // Nothing is all that lies within it.
            Source::Empty => Ok(()),
            Source::Map(map) => {
                let range = usize::try_from(position).ok().zip(usize::try_from(end).ok());
                let bytes = range.and_then(|(start, end)| map.get(start..end)).ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            Source::File(file) => file.read_exact_at(buffer, position),
        }
    }
}

/// Maps the first `len` bytes of a file of the operating system for reading.
///
/// # Errors
/// `UnexpectedEof` if the file is shorter; what the operating system answers.
#[expect(unsafe_code, reason = "a memory map is unsafe to make; this is the one place that makes one")]
pub(crate) fn map_file(file: &fs::File, len: usize) -> io::Result<Mapped> {
    if len == 0 {
        return Ok(Box::new(&[][..]));
    }
    if file.metadata()?.len() < len as u64 {
        // Touching pages past the end of the file would be SIGBUS.
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the map is read-only, and `File::map` asks that nobody cuts the file below `len` while the map lives; the
    // log maps sealed index files only, and replaces those by rename. Another process that writes to the file (which the
    // directory lock keeps away) could change bytes under the slice; readers copy integers out of it and check them, so
    // that would be a wrong number that is caught, never a broken reference.
    let map = unsafe { memmap2::MmapOptions::new().len(len).map(file)? };
    Ok(Box::new(map))
}
