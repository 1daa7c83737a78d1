//! The bare limits of a disk and a processor: what a log could do at best.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_storage::BatchView;

/// Bytes written at most, so that the disk is not filled.
const BYTES_MAX: u64 = 1 << 30;

/// The file that is overwritten.
const OVERWRITTEN_BYTES: u64 = 64 << 20;

/// Bytes a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) buffered_write: f64,
    pub(super) synced_growing: f64,
    pub(super) synced_overwriting: f64,
    pub(super) checksum: f64,
}

/// Measures each for so long, with chunks like this batch.
pub(super) fn measure(dir: &Path, batch: &[u8], each: Duration, stop: &dyn Fn() -> bool) -> anyhow::Result<Limits> {
    let create = |name: &str| OpenOptions::new().read(true).write(true).create_new(true).open(dir.join(name));
    let buffered = create("buffered")?;
    let buffered_write = rate(each, stop, batch.len(), |position| write(&buffered, batch, position))?;
    let growing = create("growing")?;
    let synced_growing = rate(each, stop, batch.len(), |position| {
        write(&growing, batch, position)?;
        growing.sync_data()
    })?;
    let overwritten = create("overwritten")?;
    let room = OVERWRITTEN_BYTES.max(batch.len() as u64);
    let zeros = vec![0; 1 << 20];
    for position in (0..room).step_by(zeros.len()) {
        write(&overwritten, &zeros, position)?;
    }
    overwritten.sync_all()?;
    let last = room - batch.len() as u64 + 1;
    let synced_overwriting = rate(each, stop, batch.len(), |position| {
        write(&overwritten, batch, position % last)?;
        overwritten.sync_data()
    })?;
    let (view, _) = BatchView::parse(batch)?;
    let checksum = rate(each.min(Duration::from_millis(300)), stop, batch.len(), |_| {
        black_box(black_box(&view).crc_matches());
        Ok(())
    })?;
    Ok(Limits { buffered_write, synced_growing, synced_overwriting, checksum })
}

fn write(file: &File, bytes: &[u8], position: u64) -> std::io::Result<()> {
    file.write_all_at(bytes, position)
}

/// Repeats a call with the position of the next chunk. Bytes a second.
fn rate(
    time: Duration,
    stop: &dyn Fn() -> bool,
    chunk: usize,
    mut call: impl FnMut(u64) -> std::io::Result<()>,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut position = 0;
    while began.elapsed() < time && !stop() {
        call(position % BYTES_MAX)?;
        position += chunk as u64;
    }
    Ok(position as f64 / began.elapsed().as_secs_f64().max(1e-9))
}
