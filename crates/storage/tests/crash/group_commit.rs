//! Threads that share a log and its syncs, and a power cut at each call: whatever was answered as synced is there.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use highwater_storage::fs::{DirEntry, DirLock, File, Fs, Mapped, Metadata, OpenMode, RawDescriptor, SimFs};
use highwater_storage::*;

use crate::check::{images_per_crash, placed};
use crate::support::*;

const THREADS: usize = 4;
const APPENDS: usize = 5;

/// What the threads and the file system know of each other.
#[derive(Debug, Default)]
struct Meeting {
    reader: OnceLock<LogReader>,
    /// Threads that have something to append yet, or wait for an answer.
    at_work: AtomicUsize,
    answered: AtomicU64,
    syncs: AtomicU64,
}

impl Meeting {
    /// Waits until each thread at work has appended what it is not answered for. The sync that comes then is one for all.
    fn wait(&self, fs: &SimFs) {
        let Some(reader) = self.reader.get() else { return };
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let is_met = || {
            let waiting = u64::try_from(reader.end().0).unwrap() - self.answered.load(Ordering::SeqCst);
            waiting >= self.at_work.load(Ordering::SeqCst) as u64
        };
        while !fs.crashed() && !is_met() {
            std::thread::yield_now();
        }
    }
}

/// The simulated disk, where the sync of batches waits for all threads to have written theirs.
#[derive(Clone, Debug)]
struct MeetingFs {
    fs: SimFs,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct MeetingFile {
    file: Arc<dyn File>,
    of: Option<MeetingFs>,
}

impl Fs for MeetingFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let of = path.extension().is_some_and(|kind| kind == "log").then(|| self.clone());
        Ok(Arc::new(MeetingFile { file: self.fs.open(path, mode)?, of }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.hard_link(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.fs.read_dir(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.fs.metadata(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.sync_dir(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.fs.free_space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.fs.lock(path)
    }
}

impl File for MeetingFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn write_vectored_at(&self, slices: &[io::IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.file.write_vectored_at(slices, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if let Some(MeetingFs { fs, meeting }) = &self.of {
            meeting.wait(fs);
        }
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

fn options(rolls: bool) -> LogOptions {
    // A roll comes in between where segments are short: they are synced one after the other then.
    let segment_bytes = if rolls { 500 } else { 1 << 20 };
    LogOptions { flush: FlushPolicy::EachAppend, segment_bytes, index_interval_bytes: 0, ..LogOptions::default() }
}

/// What threads were answered: each record with its offset.
#[derive(Default)]
struct Answers(Mutex<BTreeMap<i64, (u8, u8)>>);

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().unwrap().fmt(f)
    }
}

/// Runs all threads until they are done or the machine crashes. Returns what was answered, and the number of syncs.
fn run(fs: &SimFs, options: &LogOptions) -> (Answers, u64) {
    let answers = Answers::default();
    let meeting = Arc::new(Meeting { at_work: AtomicUsize::new(THREADS), ..Meeting::default() });
    let met = Arc::new(MeetingFs { fs: fs.clone(), meeting: meeting.clone() });
    let Ok((log, _)) = Log::open_with(met, Path::new(DIR), options.clone(), OpenHints::default()) else {
        return (answers, 0);
    };
    let log = SharedLog::new(log);
    meeting.reader.set(log.reader()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..u8::try_from(THREADS).unwrap() {
            let (log, answers, meeting) = (&log, &answers, &meeting);
            scope.spawn(move || {
                for number in 0..u8::try_from(APPENDS).unwrap() {
                    let mut value = vec![thread, number];
                    value.resize(60, b'.');
                    let Ok(appended) = log.append(NOW, LeaderEpoch(0), &batch(T0, &[value])) else {
                        assert!(fs.crashed(), "an append failed without a crash");
                        break;
                    };
                    assert_eq!(appended.durability, Durability::Synced);
                    answers.0.lock().unwrap().insert(appended.first.0, (thread, number));
                    if number + 1 == u8::try_from(APPENDS).unwrap() {
                        meeting.at_work.fetch_sub(1, Ordering::SeqCst);
                    }
                    meeting.answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    (answers, meeting.syncs.load(Ordering::SeqCst))
}

/// Holds an image against what was answered.
fn check_image(image: &SimFs, answers: &Answers, options: &LogOptions) {
    let (log, report) = open(image, options);
    assert_eq!((&report.missing, &report.rotten), (&vec![], &vec![]));
    let found: BTreeMap<i64, (u8, u8)> =
        contents(&log.reader()).into_iter().map(|(offset, value)| (offset, (value[0], value[1]))).collect();
    let answered = answers.0.lock().unwrap();
    for (offset, record) in &*answered {
        assert_eq!(found.get(offset), Some(record), "it was answered as synced at {offset}");
    }
    assert!(found.keys().copied().eq(0..log.end().0), "no hole");
    for thread in 0..u8::try_from(THREADS).unwrap() {
        let of_thread = found.values().filter(|(of, _)| *of == thread).map(|(_, number)| usize::from(*number));
        let of_thread: Vec<_> = of_thread.collect();
        assert_eq!(of_thread, (0..of_thread.len()).collect::<Vec<_>>(), "in the order of thread {thread}, each once");
    }
}

fn crash_everywhere(rolls: bool) {
    let options = options(rolls);
    let (mut images, mut losses, mut crashes) = (0, 0, 0);
    // Which thread comes first is not the same in each run, and so is not the number of calls.
    for calls in 0.. {
        let fs = disk(calls);
        fs.crash_after(calls);
        let (answers, syncs) = run(&fs, &options);
        for (number, image) in fs.images(images_per_crash(), calls).into_iter().enumerate() {
            placed(|| format!("call {calls}, image {number}, {answers:?}"), || check_image(&image, &answers, &options));
            let end = open(&image, &options).0.end().0;
            losses += u64::from(u64::try_from(end).unwrap() == answers.0.lock().unwrap().len() as u64);
            images += 1;
        }
        if !fs.crashed() {
            let appends = u64::try_from(THREADS * APPENDS).unwrap();
            assert_eq!(answers.0.lock().unwrap().len() as u64, appends);
            assert!(rolls || syncs <= appends / 2, "{syncs} syncs of {appends} appends: one is for several");
            break;
        }
        crashes += 1;
    }
    assert!(losses > 0, "of what was not answered nothing was ever lost");
    println!("{images} images of {crashes} crashes");
}

#[test]
fn what_threads_were_answered_together_survives() {
    crash_everywhere(false);
}

#[test]
fn what_threads_were_answered_together_survives_over_rolls() {
    crash_everywhere(true);
}
