//! Whole reads and writes over [`File`], and I/O errors that say what was tried on which path.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use crate::fs::File;

/// Loops over short counts, so that callers see all of it or an error.
///
/// # Errors
/// What the calls to [`File`] answer, but for `Interrupted`, after which they are made again.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of it")]
pub trait FileExt: File {
    /// Fills `buffer` from `position`; `UnexpectedEof` if the file ends before it is full.
    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let read = self.read_full_at(buffer, position)?;
        if read == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Fills `buffer` from `position` as far as the file goes, and returns how many bytes that is.
    ///
    /// Less than the buffer means the end of the file and nothing else: a read error is never taken for the end.
    fn read_full_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, position.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes all of `bytes` at `position`. After an error an unknown part of it may have been written.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_all_vectored_at(&mut [IoSlice::new(bytes)], position)
    }

    /// Writes all slices, one after the other, at `position`. After an error an unknown part may have been written.
    /// What the slices point at afterwards is unspecified.
    fn write_all_vectored_at(&self, mut slices: &mut [IoSlice<'_>], mut position: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0); // Drops empty slices in front, so that 0 written means "no progress".
        while !slices.is_empty() {
            match self.write_vectored_at(slices, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    position = position.checked_add(count as u64).ok_or(io::ErrorKind::FileTooLarge)?;
                    IoSlice::advance_slices(&mut slices, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<F: File + ?Sized> FileExt for F {}

/// Bytes read and written at a time by [`copy_bytes`].
const COPY_BYTES: u64 = 256 << 10;

/// Copies the first `len` bytes of one file to the start of another. `UnexpectedEof` if there are fewer.
pub(crate) fn copy_bytes(from: &dyn File, to: &dyn File, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(len.min(COPY_BYTES)).unwrap_or(0)];
    let mut position = 0;
    while position < len {
        let count = usize::try_from(len - position).unwrap_or(usize::MAX).min(buffer.len());
        let Some(chunk) = buffer.get_mut(..count) else { break };
        from.read_exact_at(chunk, position)?;
        to.write_all_at(chunk, position)?;
        position += count as u64;
    }
    Ok(())
}

/// An I/O error together with what was tried, and on which path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {source}", path.display())]
pub struct IoError {
    /// What was tried, as a verb: "open", "rename".
    pub verb: &'static str,
    /// The file or directory it was tried on.
    pub path: PathBuf,
    /// What the file system said.
    pub source: io::Error,
}

impl IoError {
    /// The kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Whether what was tried was to make something durable.
    pub(crate) fn is_failed_sync(&self) -> bool {
        self.verb.starts_with("sync")
    }
}

/// Puts verb and path on an [`io::Error`].
///
/// # Errors
/// The one that is there, with verb and path.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of it")]
pub trait IoContext<T> {
    /// Says what was tried, as a verb, and on which path.
    fn context(self, verb: &'static str, path: &Path) -> Result<T, IoError>;

    /// The same where nobody has the path at hand: it is put together only for an error.
    fn context_at(self, verb: &'static str, path: impl FnOnce() -> PathBuf) -> Result<T, IoError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, verb: &'static str, path: &Path) -> Result<T, IoError> {
        self.context_at(verb, || path.to_owned())
    }

    fn context_at(self, verb: &'static str, path: impl FnOnce() -> PathBuf) -> Result<T, IoError> {
        self.map_err(|source| IoError { verb, path: path(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::fs::{Mapped, Metadata, RawDescriptor};

    /// Moves at most three bytes per call, is interrupted before each, and ends at 10 bytes.
    #[derive(Debug, Default)]
    struct Stubborn {
        bytes: Mutex<Vec<u8>>,
        calls: Mutex<u32>,
        full: bool,
    }

    impl Stubborn {
        fn interrupted(&self) -> io::Result<()> {
            let mut calls = self.calls.lock().unwrap();
            *calls += 1;
            if *calls % 2 == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        }
    }

    impl File for Stubborn {
        fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
            self.interrupted()?;
            let bytes = self.bytes.lock().unwrap();
            let from = (position as usize).min(bytes.len());
            let count = buffer.len().min(3).min(bytes.len() - from);
            buffer[..count].copy_from_slice(&bytes[from..from + count]);
            Ok(count)
        }
        fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
            self.interrupted()?;
            if self.full {
                return Ok(0);
            }
            let first: &[u8] = slices.iter().find(|slice| !slice.is_empty()).map_or(&[], |slice| slice);
            let count = first.len().min(3);
            let mut bytes = self.bytes.lock().unwrap();
            assert_eq!(bytes.len() as u64, position, "each piece goes right after the last");
            bytes.extend_from_slice(&first[..count]);
            Ok(count)
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            unreachable!()
        }
        fn sync_data(&self) -> io::Result<()> {
            unreachable!()
        }
        fn metadata(&self) -> io::Result<Metadata> {
            unreachable!()
        }
        fn map(&self, _: usize) -> io::Result<Option<Mapped>> {
            unreachable!()
        }
        fn raw_descriptor(&self) -> Option<RawDescriptor> {
            None
        }
    }

    #[test]
    fn short_and_interrupted_calls_are_repeated() {
        let file = Stubborn::default();
        let mut slices = [IoSlice::new(b""), IoSlice::new(b"abcd"), IoSlice::new(b""), IoSlice::new(b"efghij")];
        file.write_all_vectored_at(&mut slices, 0).unwrap();
        assert_eq!(*file.bytes.lock().unwrap(), b"abcdefghij");

        let mut buffer = [0; 7];
        file.read_exact_at(&mut buffer, 2).unwrap();
        assert_eq!(&buffer, b"cdefghi");
        assert_eq!(file.read_full_at(&mut buffer, 8).unwrap(), 2);
        assert_eq!(file.read_exact_at(&mut buffer, 8).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.read_exact_at(&mut [], 99).unwrap();
    }

    #[test]
    fn a_device_that_takes_nothing_is_an_error_and_an_empty_write_is_none() {
        let file = Stubborn { full: true, ..Stubborn::default() };
        file.write_all_at(b"", 0).unwrap();
        assert_eq!(*file.calls.lock().unwrap(), 0);
        assert_eq!(file.write_all_at(b"x", 0).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!(file.write_all_at(b"x", u64::MAX).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn errors_say_what_was_tried_where() {
        let failed: io::Result<()> = Err(io::ErrorKind::NotFound.into());
        let error = failed.context("open", Path::new("/data/x-0")).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /data/x-0: entity not found");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
