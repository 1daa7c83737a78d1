//! The brokers' disks, where they can be full: each a file system in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use highwater_testbed::Disk;

use super::cluster::BROKERS;

/// What a broker needs beside the records: checkpoints, indexes.
const DISK_BYTES_LEAST: u64 = 64 << 20;

/// More than a record takes on the disk.
const RECORD_BYTES: f64 = 400.0;

/// What the disk of one broker may take of the memory.
const DISK_BYTES_MAX: f64 = 2_147_483_648.0;

/// One for each broker. Dropped, what is on them goes to where the data would be without.
#[derive(Debug)]
pub(super) struct Disks {
    directory: PathBuf,
    of: BTreeMap<i32, Disk>,
}

impl Disks {
    /// None: the data are below `directory`.
    pub(super) fn none(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), of: BTreeMap::new() }
    }

    /// Disks below `directory` that have room for so many records.
    pub(super) fn start(directory: &Path, records: f64) -> anyhow::Result<Self> {
        let bytes = records * RECORD_BYTES;
        ensure!(
            bytes <= DISK_BYTES_MAX,
            "the fault `disk` keeps the logs in memory, and {records:.0} records are too many: take fewer --minutes or a \
             lower --rate"
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        let bytes = DISK_BYTES_LEAST + bytes as u64;
        let mut disks = Self::none(directory);
        for id in BROKERS {
            disks.of.insert(id, Disk::start(&directory.join(format!("disk-{id}")), bytes)?);
        }
        Ok(disks)
    }

    /// The data directory of a broker.
    pub(super) fn data_dir(&self, id: i32) -> PathBuf {
        self.of.get(&id).map_or_else(|| self.without(id), Disk::data)
    }

    fn without(&self, id: i32) -> PathBuf {
        self.directory.join(format!("broker-{id}"))
    }

    /// Leaves no room on the disk of a broker.
    pub(super) fn fill(&self, id: i32) -> anyhow::Result<()> {
        self.of.get(&id).with_context(|| format!("broker {id} has no disk of its own"))?.fill().map(|_| ())
    }

    /// Gives the room back.
    pub(super) fn free(&self, id: i32) -> anyhow::Result<()> {
        self.of.get(&id).map_or(Ok(()), Disk::free)
    }

    /// Takes all disks away. What is on them is copied to where it outlives them.
    fn keep(&mut self) -> anyhow::Result<()> {
        while let Some((id, disk)) = self.of.pop_first() {
            disk.keep(&self.without(id))?;
        }
        Ok(())
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        if let Err(error) = self.keep() {
            eprintln!("the brokers' data cannot be kept: {error:#}");
        }
    }
}
