//! Message sets of magic 0 and 1, as a follower gets them from its leader or as they lie in a segment.
//!
//! What must hold: taking them apart never panics and takes bounded memory; what a follower takes is read back byte for
//! byte, also after the log is opened again; and a segment of the same bytes opens to the same log.

use std::path::Path;

use highwater_storage::fs::{Fs, OpenMode};
use highwater_storage::io::FileExt;
use highwater_storage::{BatchView, LogOptions};

use crate::directory::{Readable, any_directory, search};
use crate::input::Input;
use crate::model::{DIR, NOW, disk, open};
use crate::record_batch::take_apart;

/// Offset and size: what stands before the bytes that the size counts.
const PREFIX_BYTES: usize = 12;

/// Where the checksum of a message is.
const CRC: std::ops::Range<usize> = 12..16;

/// The target's body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let segment_bytes = input.choose(&[1_500, 6_000, 1 << 20]);
    let options = LogOptions { segment_bytes, index_interval_bytes: 100, ..LogOptions::default() };
    let seals = input.flag();
    let mut bytes = input.rest().to_vec();
    if seals {
        seal(&mut bytes);
    }
    take_apart(&bytes);

    let follower = disk();
    let (mut log, _) = open(&follower, &options);
    if log.append_replicated(NOW, &bytes).is_ok() && log.end() > log.start() {
        let found = Readable::of(&log);
        let taken = &bytes[..found.bytes.len()];
        assert!(found.bytes == taken, "what a follower took is not what it was given");
        search(&log);
        let end = log.end();
        drop(log);
        let (log, report) = open(&follower.kill(), &options);
        assert_eq!((log.end(), report.cut), (end, None), "what a follower took is gone");
        assert!(Readable::of(&log) == found, "what a follower took is another after a kill");

        // A follower begins a segment where offsets go too far from the base for an index; one segment cannot hold them.
        if end.0 > i64::from(i32::MAX) {
            return;
        }
        let segment = disk();
        write_segment(&segment, taken);
        let (log, report) = open(&segment, &options);
        assert_eq!((log.end(), &report.cut), (end, &None), "the same bytes as a segment");
        assert!(Readable::of(&log).bytes == taken, "the same bytes as a segment");
    }
    let segment = disk();
    write_segment(&segment, &bytes);
    any_directory(&segment, &options);
}

fn write_segment(fs: &dyn Fs, bytes: &[u8]) {
    let path = Path::new(DIR).join("00000000000000000000.log");
    let file = fs.open(&path, OpenMode::CreateNew).expect("the directory is empty");
    file.write_all_at(bytes, 0).expect("the simulated disk works");
    file.sync_data().expect("the simulated disk works");
    fs.sync_dir(Path::new(DIR)).expect("the simulated disk works");
}

/// Writes the checksum that each message should have, for what lies behind that check.
fn seal(bytes: &mut [u8]) {
    let mut at = 0;
    while let Ok((batch, length)) = BatchView::parse(&bytes[at..]) {
        if batch.header().magic() < 2 && length > PREFIX_BYTES + CRC.len() {
            let crc = batch.computed_crc().to_be_bytes();
            bytes[at..][CRC].copy_from_slice(&crc);
        }
        at += length;
    }
}
