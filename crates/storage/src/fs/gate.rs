//! A file system with a switch: once it is off, nothing reaches the files any more.
//!
//! A process that is killed stops touching its files at one moment. A program that wants the same of one part of itself
//! (a broker among several in one process) gives that part its files through a [`Gate`], and trips it.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::{DirEntry, DirLock, File, Fs, Mapped, Metadata, OpenMode, RawDescriptor};
use crate::lock::Holder;

/// Passes every call on until it is tripped, and fails every call from then on. Clones share the switch.
#[derive(Clone, Debug)]
pub struct Gate {
    inner: Arc<dyn Fs>,
    switch: Arc<Switch>,
}

/// Whether it was tripped. Calls hold it for reading while they run.
#[derive(Debug, Default)]
struct Switch(RwLock<bool>);

impl Gate {
    /// A gate in front of `inner`.
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        Self { inner, switch: Arc::default() }
    }

    /// Fails every call from now on. When this returns, calls that were under way have ended and none will change
    /// anything: whoever opens the same files next has them alone.
    pub fn trip(&self) {
        *self.switch.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Whether it was tripped.
    pub fn is_tripped(&self) -> bool {
        *self.switch.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self, file: io::Result<Arc<dyn File>>) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(GatedFile { inner: file?, switch: Arc::clone(&self.switch) }))
    }
}

impl Switch {
    fn pass(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        // A panic inside a call leaves the switch as it was.
        let tripped = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if *tripped { Err(io::Error::other("the files' owner was stopped")) } else { Ok(tripped) }
    }
}

impl Fs for Gate {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let _pass = self.switch.pass()?;
        self.guard(self.inner.open(path, mode))
    }

    fn open_with_metadata(&self, path: &Path, mode: OpenMode) -> io::Result<(Arc<dyn File>, Metadata)> {
        let _pass = self.switch.pass()?;
        let (file, metadata) = self.inner.open_with_metadata(path, mode)?;
        Ok((self.guard(Ok(file))?, metadata))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.remove_file(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.hard_link(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let _pass = self.switch.pass()?;
        self.inner.read_dir(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let _pass = self.switch.pass()?;
        self.inner.metadata(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.sync_dir(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let _pass = self.switch.pass()?;
        self.inner.free_space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let _pass = self.switch.pass()?;
        self.inner.lock(path)
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<Holder>> {
        self.inner.lock_holder(path)
    }
}

#[derive(Debug)]
struct GatedFile {
    inner: Arc<dyn File>,
    switch: Arc<Switch>,
}

impl File for GatedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let _pass = self.switch.pass()?;
        self.inner.read_at(buffer, position)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let _pass = self.switch.pass()?;
        self.inner.write_vectored_at(slices, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _pass = self.switch.pass()?;
        self.inner.sync_data()
    }

    fn metadata(&self) -> io::Result<Metadata> {
        let _pass = self.switch.pass()?;
        self.inner.metadata()
    }

    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        let _pass = self.switch.pass()?;
        self.inner.map(len)
    }

    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        self.switch.pass().ok().and_then(|_pass| self.inner.raw_descriptor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::OsFs;

    #[test]
    fn nothing_passes_once_it_was_tripped() {
        let dir = tempfile::tempdir().unwrap();
        let gate = Gate::new(Arc::new(OsFs));
        let other = gate.clone();
        let path = dir.path().join("file");
        let file = gate.open(&path, OpenMode::CreateNew).unwrap();
        assert_eq!(file.write_vectored_at(&[IoSlice::new(b"before")], 0).unwrap(), 6);
        gate.trip();
        assert!(other.is_tripped());
        assert!(file.write_vectored_at(&[IoSlice::new(b"after!")], 0).is_err());
        assert!(file.set_len(0).is_err() && file.sync_data().is_err() && file.read_at(&mut [0; 6], 0).is_err());
        assert!(other.open(&path, OpenMode::Read).is_err() && other.remove_file(&path).is_err());
        assert!(other.rename(&path, &dir.path().join("elsewhere")).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
    }

    /// Writers that race with the switch: what they managed to write is there when `trip` returns, and nothing comes
    /// after it.
    #[test]
    fn calls_under_way_have_ended_when_tripping_returns() {
        let dir = tempfile::tempdir().unwrap();
        let gate = Gate::new(Arc::new(OsFs));
        let path = dir.path().join("file");
        let file = gate.open(&path, OpenMode::CreateNew).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let file = Arc::clone(&file);
                scope.spawn(move || {
                    let mut round = 0u64;
                    while file.write_vectored_at(&[IoSlice::new(&round.to_be_bytes())], writer * 8).is_ok() {
                        round += 1;
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            gate.trip();
            let then = std::fs::read(&path).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(std::fs::read(&path).unwrap(), then);
        });
    }
}
