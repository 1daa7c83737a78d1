//! No length, count or offset in a file is trusted: a directory of up to 1 MiB of whatever bytes is opened with less than
//! 10 MiB of memory, read to its end, searched, appended to, closed and opened again, and nothing panics.
//!
//! The log lies on the real file system here: the simulated one keeps its files in the memory that is measured.

mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::OsFs;
use highwater_storage::*;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use peak_alloc::PeakAlloc;
use support::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What the files of one directory may have together.
const DIRECTORY_BYTES: usize = 1 << 20;

/// What opening may take.
const OPENING_BYTES_MAX: usize = 10 << 20;

/// What everything else may take: a search by time decompresses, and one snappy block may grow to 22 times its size.
const USING_BYTES_MAX: usize = 24 << 20;

/// Directories tried of each kind. `HIGHWATER_BOUNDED_DIRECTORIES` says otherwise.
const DIRECTORIES: u64 = 40;

/// The most that an opening, and that everything else took so far.
static MOST: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// The tests of this file measure the memory of one process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn directories() -> u64 {
    std::env::var("HIGHWATER_BOUNDED_DIRECTORIES").map_or(DIRECTORIES, |text| text.parse().unwrap())
}

/// Runs something and returns the most memory that was in use on the way, beyond what was in use before.
fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let value = run();
    (value, MEMORY.peak_usage().saturating_sub(before))
}

type Files = Vec<(String, Vec<u8>)>;

/// Opens a directory of these files and does with the log whatever can be done.
fn try_out(files: &Files, what: &str) {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(total <= DIRECTORY_BYTES, "{what}: {total} bytes");
    let (_, peak) = peak_of(|| repair::RepairPlan::of(&OsFs, directory.path(), &mut |_| {}));
    assert!(peak < USING_BYTES_MAX, "{what}: verifying {total} bytes and planning their repair took {peak}");
    let open = || Log::open_with(Arc::new(OsFs), directory.path(), LogOptions::default(), OpenHints::default());
    let (opened, peak) = peak_of(open);
    assert!(peak < OPENING_BYTES_MAX, "{what}: opening {total} bytes took {peak}");
    let Ok((mut log, _)) = opened else { return };
    MOST[0].fetch_max(peak, Ordering::Relaxed);
    let ((), peak) = peak_of(|| use_up(&mut log));
    MOST[1].fetch_max(peak, Ordering::Relaxed);
    assert!(peak < USING_BYTES_MAX, "{what}: using {total} bytes took {peak}");
    let end = log.end();
    drop(log);
    let (opened, peak) = peak_of(open);
    assert!(peak < OPENING_BYTES_MAX, "{what}: opening {total} bytes again took {peak}");
    let (log, _) = opened.unwrap_or_else(|error| panic!("{what}: what was opened once is not again: {error}"));
    assert_eq!(log.end(), end, "{what}: opened again");
    log.close().unwrap();
}

fn use_up(log: &mut Log) {
    let reader = log.reader();
    read_to_the_end(&reader);
    for time in [i64::MIN, -1, 0, T0, T0 + 50_000, i64::MAX] {
        let _ = reader.offset_for_timestamp(TimestampMs(time), Offset::MAX);
    }
    let _ = reader.max_timestamp(Offset::MAX);
    let _ = reader.max_timestamp(Offset((reader.start().0 / 2).saturating_add(reader.end().0 / 2)));
    let end = log.end();
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    match log.append(NOW, epoch, &batch(T0, &[b"goes on"])) {
        Ok(appended) => assert_eq!(appended.first, end),
        // Offsets or epochs in the files may leave no room for another.
        Err(AppendError::OffsetsExhausted | AppendError::StaleEpoch { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let limits = WorkLimits::new(log.end());
    for _ in 0..20 {
        if !matches!(log.housekeeping().step(NOW, &limits), Ok(Some(_))) {
            break;
        }
    }
}

/// Reads all there is, around what is damaged.
fn read_to_the_end(reader: &LogReader) {
    let mut from = reader.start();
    while from < reader.end() {
        let next = match reader.read(from, ReadLimit::bytes(64 << 10)) {
            Ok(fetched) => {
                for batch in batches(&fetched.bytes) {
                    let Ok(batch) = batch else { break };
                    batch.records().into_iter().flatten().take_while(Result::is_ok).for_each(drop);
                }
                fetched.next
            }
            Err(ReadError::Corrupt { offsets, .. }) => offsets.end,
            Err(error) => panic!("reading at {from}: {error}"),
        };
        if next <= from {
            // At the end of what can be made out.
            assert!(next == from, "reading goes back from {from} to {next}");
            return;
        }
        from = next;
    }
}

/// All kinds of files that a log looks at, and some that it does not.
const NAMES: &[&str] = &[
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000000.snapshot",
    "00000000000000000007.log",
    "00000000000000000007.index",
    "00000000000000000007.timeindex",
    "00000000000000000007.txnindex",
    "00000000000000000007.snapshot",
    "09223372036854775807.log",
    "09223372036854775806.log",
    "00000000000000000003.log.swap",
    "00000000000000000003.index.swap",
    "00000000000000000003.log.cleaned",
    "00000000000000000003.log.deleted",
    "00000000000000000003.log.damaged-77",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "highwater-state",
    "notanumber.log",
];

/// Bytes in which all that could be a length, a count or an offset is the same wild number.
fn bytes_of(random: &mut Random, count: usize) -> Vec<u8> {
    let wild: &[u8] = match random.below(8) {
        0 => &[0],
        1 => &[0xff],
        2 => &[0x7f, 0xff, 0xff, 0xff],
        3 => &[0, 0, 0, 1],
        4 => &[0, 0, 0, 0, 0, 1, 0, 0],
        5 => b"0\n2147483647\n",
        _ => return (0..count).map(|_| random.next().to_le_bytes()[0]).collect(),
    };
    wild.iter().copied().cycle().take(count).collect()
}

#[test]
fn directories_of_random_bytes() {
    let _alone = alone();
    for seed in 0..directories() {
        let mut random = Random::new(seed);
        let mut files = Files::new();
        let mut left = DIRECTORY_BYTES;
        for _ in 0..1 + random.below(8) {
            let name = NAMES[random.below(NAMES.len())];
            let most = if random.below(2) == 0 { 200 } else { left };
            let count = random.below(most + 1).min(left);
            if files.iter().all(|(other, _)| other != name) {
                let mut bytes = bytes_of(&mut random, count);
                if name.ends_with(".log") && random.below(2) == 0 {
                    // Something that begins as a batch does.
                    let start = stored(0, 1, &[[7; 20]; 3]);
                    let count = start.len().min(bytes.len());
                    bytes[..count].copy_from_slice(&start[..count]);
                }
                left -= bytes.len();
                files.push((name.to_owned(), bytes));
            }
        }
        try_out(&files, &format!("seed {seed}"));
    }
}

/// The partition directories among the test data, with their files.
fn real_directories() -> Vec<(PathBuf, Files)> {
    let mut found = Vec::new();
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")];
    while let Some(directory) = open.pop() {
        let mut files = Files::new();
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                files.push((name, std::fs::read(&path).unwrap()));
            }
        }
        let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        if files.iter().any(|(name, _)| name.ends_with(".log")) && total < DIRECTORY_BYTES - 4096 {
            files.sort();
            found.push((directory, files));
        }
    }
    found.sort();
    assert!(found.len() >= 8, "there is little to damage");
    found
}

/// Numbers that are written over lengths, counts and offsets.
const WILD: [u32; 9] = [0, 1, 61, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 20, 1 << 30, 0x00ff_ffff];

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        bytes.extend(bytes_of(random, 40));
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => {
            let tail = bytes_of(random, 300);
            bytes.extend(tail);
        }
        2 => {
            let again = bytes[at..].iter().copied().take(2000).collect::<Vec<_>>();
            bytes.extend(again);
        }
        3 => {
            // In a batch header: most batches in the data begin near the start of their file.
            let field = [0, 8, 12, 16, 17, 21, 23, 43, 51, 53, 57][random.below(11)];
            let wild = WILD[random.below(WILD.len())].to_be_bytes();
            for (at, byte) in (field..).zip(wild) {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
        }
        4 => {
            let wild = WILD[random.below(WILD.len())].to_be_bytes();
            for (place, byte) in bytes[at..].iter_mut().zip(wild) {
                *place = byte;
            }
        }
        _ => bytes[at] ^= 1 << random.below(8),
    }
}

#[test]
fn directories_that_kafka_wrote_damaged_at_random() {
    let _alone = alone();
    let real = real_directories();
    for seed in 0..directories() * 2 {
        let mut random = Random::new(seed);
        let (path, files) = &real[random.below(real.len())];
        let mut files = files.clone();
        for _ in 0..1 + random.below(6) {
            let which = random.below(files.len());
            if random.below(12) == 0 && files.len() > 1 {
                files.remove(which);
            } else {
                damage(&mut random, &mut files[which].1);
            }
        }
        while files.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > DIRECTORY_BYTES {
            files.pop();
        }
        try_out(&files, &format!("seed {seed}, {}", path.display()));
    }
}

#[test]
fn batches_that_claim_more_than_they_have() {
    let _alone = alone();
    let good = stored(0, 1, &[[7; 20]; 3]);
    let put = |at: usize, field: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        seal(&mut bytes);
        bytes
    };
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    for wild in WILD {
        cases.push(("batch length", put(8, &wild.to_be_bytes())));
        cases.push(("last offset delta", put(23, &wild.to_be_bytes())));
        cases.push(("record count", put(57, &wild.to_be_bytes())));
        cases.push(("first varints", put(61, &wild.to_le_bytes())));
        cases.push(("key or value length", put(65, &wild.to_le_bytes())));
    }
    for (what, bytes) in cases {
        let name = "00000000000000000000.log".to_owned();
        try_out(&vec![(name.clone(), bytes.clone())], what);
        // With a good one behind it.
        let mut followed = bytes;
        followed.extend(stored(3, 1, &[[7; 20]; 3]));
        try_out(&vec![(name, followed)], what);
    }
}

/// Writes the checksum that the bytes of a batch should have.
fn seal(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[CRC_START..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

#[test]
fn batches_that_decompress_to_very_much() {
    let _alone = alone();
    let zeros = vec![0; 200 << 20];
    // As Kafka's producers compress, and with the largest blocks that each codec has.
    let framed = |codec, most: usize| (codec, compression::compress(codec, &zeros[..most]).unwrap());
    let one_block = snap::raw::Encoder::new().compress_vec(&zeros[..18 << 20]).unwrap();
    let info = FrameInfo::new().block_size(BlockSize::Max4MB).block_mode(BlockMode::Linked);
    let mut large_blocks = FrameEncoder::with_frame_info(info, Vec::new());
    large_blocks.write_all(&zeros[..150 << 20]).unwrap();
    let bombs = [
        framed(Codec::Gzip, zeros.len()),
        framed(Codec::Snappy, 18 << 20),
        (Codec::Snappy, one_block),
        framed(Codec::Lz4, 150 << 20),
        (Codec::Lz4, large_blocks.finish().unwrap()),
        framed(Codec::Zstd, zeros.len()),
    ];
    for (codec, records) in bombs {
        let mut batch = stored(0, 1, &[[7; 20]; 3]);
        batch.truncate(HEADER_BYTES);
        batch.extend(&records);
        let length = u32::try_from(batch.len() - LENGTH_PREFIX_BYTES).unwrap();
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[22] = codec.id();
        batch[57..61].copy_from_slice(&i32::MAX.to_be_bytes());
        seal(&mut batch);
        assert!(batch.len() < DIRECTORY_BYTES - 1000, "{codec}: {} bytes", batch.len());
        batch.extend(stored(3, 1, &[[7; 20]; 3]));
        try_out(&vec![("00000000000000000000.log".to_owned(), batch)], &format!("{codec}"));
    }
    println!("opening took {:?} bytes at most, everything else {:?}", MOST[0], MOST[1]);
}

/// As many lines as fit into `bytes`, by what `line` makes of a number, with the head that Kafka writes.
fn full_of_lines(bytes: usize, line: impl Fn(usize) -> String) -> (usize, Vec<u8>) {
    let mut lines = String::new();
    let mut count = 0;
    while lines.len() < bytes - 40 {
        lines.push_str(&line(count));
        lines.push('\n');
        count += 1;
    }
    (count, format!("0\n{count}\n{lines}").into_bytes())
}

/// A valid checkpoint of offsets has as many lines as fit: of one topic, and each of a topic of its own.
#[test]
fn checkpoints_of_offsets_that_are_full() {
    let _alone = alone();
    for (what, (count, bytes)) in [
        ("one topic", full_of_lines(DIRECTORY_BYTES, |number| format!("a {number} 0"))),
        ("many topics", full_of_lines(DIRECTORY_BYTES, |number| format!("{number} 0 0"))),
        ("one partition", full_of_lines(DIRECTORY_BYTES, |_| "a 0 0".to_owned())),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let partition = directory.path().join("books-0");
        std::fs::create_dir(&partition).unwrap();
        let path = directory.path().join("recovery-point-offset-checkpoint");
        std::fs::write(&path, &bytes).unwrap();
        let (read, peak) = peak_of(|| checkpoint::read_offsets(&OsFs, &path).unwrap());
        assert_eq!(read.len(), if what == "one partition" { 1 } else { count });
        drop(read);
        // What a caller asks for it gets: with names of their own, the lines take more than the file.
        let most = if what == "many topics" { 16 << 20 } else { OPENING_BYTES_MAX };
        assert!(peak < most, "{what}: reading {} bytes of {count} lines took {peak}", bytes.len());
        let options = DataDirOptions::of_node(1);
        let (opened, peak) = peak_of(|| DataDir::open(Arc::new(OsFs), directory.path(), options));
        let (root, report) = opened.unwrap();
        assert_eq!((root.partitions().len(), report.warnings.len()), (1, 0), "{:?}", report.warnings);
        assert!(peak < 4 << 20, "{what}: opening the root took {peak}");
    }
}

#[test]
fn epochs_and_snapshots_that_are_full() {
    let _alone = alone();
    let log = ("00000000000000000000.log".to_owned(), stored(0, 0, &[[7; 20]; 3]));
    let (_, epochs) = full_of_lines(DIRECTORY_BYTES - log.1.len(), |number| format!("{number} {number}"));
    try_out(&vec![log.clone(), ("leader-epoch-checkpoint".to_owned(), epochs)], "epochs");

    // Entries of 46 bytes, one for each producer.
    let producers = (DIRECTORY_BYTES - 1000) / 46;
    let mut snapshot = vec![0, 1, 0, 0, 0, 0];
    snapshot.extend(i32::try_from(producers).unwrap().to_be_bytes());
    for id in 0..producers as i64 {
        snapshot.extend(id.to_be_bytes());
        snapshot.extend([0; 38]);
    }
    let crc = crc32c::crc32c(&snapshot[6..]);
    snapshot[2..6].copy_from_slice(&crc.to_be_bytes());
    for base in [0, 3] {
        try_out(&vec![log.clone(), (format!("{base:020}.snapshot"), snapshot.clone())], "producers");
    }
}
