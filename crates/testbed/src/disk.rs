//! A small disk of one's own that can be full.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::inside::is_inside;
use crate::run;

/// A file system in memory, of a size. Dropped, it is taken away with all that is on it.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
}

impl Disk {
    /// Puts a disk of `size_bytes` at `root`, which is made.
    ///
    /// # Errors
    /// This process is not inside (see [`crate::enter`]), or the system refuses.
    pub fn start(root: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        ensure!(is_inside(), "this process is not in namespaces of its own");
        fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
        let path = root.to_str().context("a path that is no text")?;
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size_bytes}"), "tmpfs", path])?;
        let disk = Self { root: root.to_path_buf() };
        fs::create_dir(disk.data()).with_context(|| format!("cannot create {}", disk.data().display()))?;
        Ok(disk)
    }

    /// A directory on it, for whoever uses the disk.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Takes all room that is left, beside the data. Gives how many bytes that were.
    ///
    /// # Errors
    /// Anything else than that there is no more room.
    pub fn fill(&self) -> anyhow::Result<u64> {
        let path = self.filler();
        let mut filler = File::options().create(true).append(true).open(&path)?;
        let mut taken = 0;
        // The last bytes too: smaller and smaller pieces.
        for size in [1 << 20, 1 << 12, 1] {
            let piece = vec![0; size];
            loop {
                match filler.write(&piece) {
                    Ok(written) => taken += written as u64,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).with_context(|| format!("cannot write {}", path.display())),
                }
            }
        }
        Ok(taken)
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// The system refuses.
    pub fn free(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot give room back"),
            _ => Ok(()),
        }
    }

    /// Copies the data to a place that outlives the disk.
    ///
    /// # Errors
    /// The system refuses.
    pub fn keep(&self, to: &Path) -> anyhow::Result<()> {
        let (from, to) = (self.data(), to.to_str().context("a path that is no text")?);
        run("cp", &["--archive", from.to_str().context("a path that is no text")?, to])
    }

    fn filler(&self) -> PathBuf {
        self.root.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It goes with the last process in here otherwise.
        let _ = run("umount", &["--lazy", self.root.to_str().unwrap_or_default()]);
    }
}
