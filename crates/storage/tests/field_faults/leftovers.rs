//! What an interrupted swap of segments leaves, one kind at a time, and the opening that tidies it up interrupted too.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::inspect::PartitionFiles;
use highwater_storage::{Log, LogReader, Offset, OpenHints};

use crate::support::{
    DIR, NOW, bases, contents, disk, file_bytes, filled, keep_house, names, open, path, small, stored, write_file,
};
use crate::{files, stop};

type Contents = Vec<(i64, Vec<u8>)>;

/// Four segments of twenty batches, closed well or not, and what is in them.
fn twenty(closes: bool) -> (SimFs, Contents, Vec<String>) {
    let fs = disk(1);
    let log = filled(&fs, &small(), 20);
    let all = contents(&log.reader());
    stop(log, closes);
    fs.sync_everything();
    let segments = files(&fs, ".log");
    assert!(segments.len() >= 4, "{segments:?}");
    (fs, all, segments)
}

/// A batch that replaces everything below `end`.
fn merged(end: i64) -> Vec<u8> {
    stored(0, 0, &vec![b"merged".as_slice(); usize::try_from(end).unwrap()])
}

fn base_of(segment: &str) -> i64 {
    segment[..20].parse().unwrap()
}

/// A directory with leftovers, what is to be read from it, its log start, and the segments there are when it is tidy.
struct Case {
    name: &'static str,
    fs: SimFs,
    contents: Contents,
    start: i64,
    segments: Vec<String>,
    /// Files that are gone, or there, once it is tidy.
    gone: Vec<String>,
    there: Vec<String>,
}

fn cases(closes: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    {
        let (fs, contents, segments) = twenty(closes);
        let gone = vec![format!("{}.cleaned", segments[0]), format!("{}.swap", segments[1])];
        write_file(&fs, &gone[0], &merged(3));
        write_file(&fs, &gone[1], b"what comes behind one that is not complete");
        let name = "(i) a replacement that was being written, and one with a higher base";
        cases.push(Case { name, fs, contents, start: 0, segments, gone, there: vec![] });
    }
    {
        let (fs, mut contents, mut segments) = twenty(closes);
        let end = base_of(&segments[2]);
        let swap = format!("{}.swap", segments[0]);
        write_file(&fs, &swap, &merged(end));
        for (offset, value) in &mut contents {
            if *offset < end {
                *value = b"merged".to_vec();
            }
        }
        let gone = vec![swap, segments.remove(1)];
        let name = "(ii) a complete replacement beside what it replaces";
        cases.push(Case { name, fs, contents, start: 0, segments, gone, there: vec![] });
    }
    {
        let (fs, contents, segments) = twenty(true);
        let index = format!("{}.index", &segments[1][..20]);
        fs.rename(&path(&index), &path(&format!("{index}.swap"))).unwrap();
        fs.sync_everything();
        let gone = vec![format!("{index}.swap")];
        let name = "(iii) an index that waits for its name";
        cases.push(Case { name, fs, contents, start: 0, segments, gone, there: vec![index] });
    }
    {
        let (fs, contents, segments) = twenty(closes);
        let gone = vec![format!("{}.deleted", segments[1]), "00000000000000000900.log.deleted".to_owned()];
        write_file(&fs, &gone[0], &merged(3));
        write_file(&fs, &gone[1], b"of long ago");
        let name = "(iv) segments that were given up";
        cases.push(Case { name, fs, contents, start: 0, segments, gone, there: vec![] });
    }
    {
        let (fs, contents, segments) = twenty(closes);
        let gone = ["index", "timeindex", "txnindex"].map(|suffix| format!("{:020}.{suffix}", 2)).to_vec();
        gone.iter().for_each(|name| write_file(&fs, name, &[0; 24]));
        let name = "(v) indexes without a log";
        cases.push(Case { name, fs, contents, start: 0, segments, gone, there: vec![] });
    }
    // Before and after the segments below the log start went.
    for (retires, name) in [
        (false, "(vi) a replacement that begins below the log start, with all segments there"),
        (true, "(vi) a replacement of segments that lay below the log start and are gone"),
    ] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 20);
        let start = log.segments()[2].base + 1;
        let replacement = file_bytes(&fs, "00000000000000000000.log");
        log.advance_start(start).unwrap();
        if retires {
            keep_house(&mut log, NOW, Offset(20));
        }
        let contents = contents(&log.reader());
        let mut segments: Vec<String> = bases(&log).iter().map(|base| format!("{base:020}.log")).collect();
        stop(log, closes);
        fs.sync_everything();
        let swap = "00000000000000000000.log.swap".to_owned();
        write_file(&fs, &swap, &replacement);
        // It gets its name, whether or not the next housekeeping takes it.
        if retires {
            segments.insert(0, "00000000000000000000.log".to_owned());
        }
        cases.push(Case { name, fs, contents, start: start.0, segments, gone: vec![swap], there: vec![] });
    }
    cases
}

fn check(case: &Case, fs: &SimFs, reader: &LogReader, what: &str) {
    assert_eq!((reader.start(), reader.end()), (Offset(case.start), Offset(20)), "{what}");
    assert_eq!(contents(reader), case.contents, "{what}");
    assert_eq!(files(fs, ".log"), case.segments, "{what}");
    let names = names(fs);
    assert!(!case.gone.iter().any(|name| names.contains(name)), "{what}: {names:?}");
    assert!(case.there.iter().all(|name| names.contains(name)), "{what}: {names:?}");
    let listed = PartitionFiles::list(fs, Path::new(DIR)).unwrap();
    assert!(listed.leftovers.is_empty(), "{what}: {:?}", listed.leftovers);
}

#[test]
fn s22_each_kind_of_leftover_alone_and_the_opening_killed_at_each_call() {
    let mut images = 0;
    for closes in [true, false] {
        for case in cases(closes) {
            let calls = {
                let fs = case.fs.process_crash_image();
                let before = fs.calls();
                let (log, report) = open(&fs, &small());
                assert!(report.cut.is_none() && report.rotten.is_empty(), "{}: {report:?}", case.name);
                assert!(!report.leftovers.is_empty(), "{}: {report:?}", case.name);
                check(&case, &fs, &log.reader(), case.name);
                fs.calls() - before
            };
            assert!(calls > 0, "{}: it changes something", case.name);
            for crash in 0..calls {
                let fs = case.fs.process_crash_image();
                fs.crash_after(crash);
                drop(Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), OpenHints::default()));
                assert!(fs.crashed());
                for (number, image) in fs.images(8, crash).into_iter().enumerate() {
                    let what = format!("{}, closed: {closes}, call {crash}, image {number}", case.name);
                    let (log, report) = open(&image, &small());
                    assert!(report.cut.is_none() && report.rotten.is_empty(), "{what}: {report:?}");
                    check(&case, &image, &log.reader(), &what);
                    images += 1;
                }
            }
        }
    }
    assert!(images > 100, "{images} images");
}
