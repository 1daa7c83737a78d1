use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::*;
use crate::io::FileExt;
use crate::lock::{Holder, LockError, lock_directory};

#[test]
fn reads_writes_and_cuts_like_the_simulator() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let file = OsFs.open(&path, OpenMode::CreateNew).unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    file.write_all_at(b"W", 8).unwrap();
    let slices: Vec<IoSlice<'_>> = (0..1500).map(|_| IoSlice::new(b"xyz")).collect();
    file.write_all_vectored_at(&mut slices.clone(), 9).unwrap();
    assert_eq!(file.metadata().unwrap().len, 9 + 4500);
    file.set_len(12).unwrap();
    file.sync_data().unwrap();
    OsFs.sync_dir(directory.path()).unwrap();

    let mut bytes = [0; 12];
    let reader = OsFs.open(&path, OpenMode::Read).unwrap();
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"hello\0\0\0Wxyz");
    assert_eq!(reader.read_at(&mut bytes, 12).unwrap(), 0);
    assert!(reader.write_all_at(b"x", 0).is_err(), "opened for reading only");
    assert!(reader.raw_descriptor().is_some());

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    let metadata = OsFs.metadata(&path).unwrap();
    assert_eq!((metadata.kind, metadata.len, metadata.links), (FileKind::File, 12, 1));
    assert!((now - 60_000..=now + 60_000).contains(&metadata.modified.0));
    assert!(OsFs.free_space(directory.path()).unwrap() > 0);
}

#[test]
fn modes_and_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let kind = |name: &str, mode| OsFs.open(&path(name), mode).map(drop).map_err(|error| error.kind());
    assert_eq!(kind("a", OpenMode::ReadWrite), Err(io::ErrorKind::NotFound));
    assert_eq!(kind("a", OpenMode::CreateNew), Ok(()));
    assert_eq!(kind("a", OpenMode::CreateNew), Err(io::ErrorKind::AlreadyExists));
    OsFs.open(&path("a"), OpenMode::ReadWrite).unwrap().write_all_at(b"x", 0).unwrap();
    OsFs.hard_link(&path("a"), &path("b")).unwrap();
    let (a, b) = (OsFs.metadata(&path("a")).unwrap(), OsFs.metadata(&path("b")).unwrap());
    assert_eq!((a.inode, a.links), (b.inode, 2));
    assert_eq!(kind("b", OpenMode::Truncate), Ok(()));
    assert_eq!(OsFs.metadata(&path("a")).unwrap().len, 0);
    OsFs.rename(&path("a"), &path("c")).unwrap();
    OsFs.remove_file(&path("b")).unwrap();
    OsFs.create_dir(&path("d")).unwrap();
    let listed: BTreeMap<String, FileKind> =
        OsFs.read_dir(directory.path()).unwrap().into_iter().map(|entry| (entry.name, entry.kind)).collect();
    assert_eq!(listed, BTreeMap::from([("c".into(), FileKind::File), ("d".into(), FileKind::Directory)]));
    OsFs.remove_dir(&path("d")).unwrap();
    assert_eq!(OsFs.sync_dir(&path("d")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn links_pipes_and_directories_are_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("target"), b"keep").unwrap();
    std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
    std::os::unix::fs::symlink(path("loop"), path("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    OsFs.create_dir(&path("directory")).unwrap();
    for name in ["link", "loop", "pipe", "directory"] {
        for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::CreateNew, OpenMode::Truncate] {
            assert!(OsFs.open(&path(name), mode).is_err(), "{name} {mode:?}");
        }
    }
    assert_eq!(fs::read(path("target")).unwrap(), b"keep");
    assert_eq!(OsFs.metadata(&path("link")).unwrap().kind, FileKind::Other);
    let others = OsFs.read_dir(directory.path()).unwrap();
    assert_eq!(others.iter().filter(|entry| entry.kind == FileKind::Other).count(), 3);
}

#[test]
fn maps_show_the_file_and_never_more_than_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let file = OsFs.open(&directory.path().join("a"), OpenMode::CreateNew).unwrap();
    assert_eq!(&file.map(0).unwrap().unwrap()[..], b"");
    assert_eq!(file.map(1).err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
    file.write_all_at(&[7; 5000], 0).unwrap();
    let map = file.map(4999).unwrap().unwrap();
    drop(file);
    assert_eq!(&map[..], &[7; 4999]);
}

#[test]
fn a_directory_is_locked_once_in_a_process_and_free_again_after_the_guard() {
    let directory = tempfile::tempdir().unwrap();
    let guard = lock_directory(&OsFs, directory.path()).unwrap();
    for _ in 0..3 {
        // More than once: an attempt must not, by closing a descriptor, drop the record lock of the first.
        let error = lock_directory(&OsFs, directory.path()).unwrap_err();
        let LockError::Held { holder, .. } = &error else { panic!("{error}") };
        assert_eq!(*holder, Holder::this_process());
        assert!(error.to_string().contains("is in use by this process (pid "), "{error}");
    }
    assert_eq!(try_from_another_process(directory.path(), "fcntl"), "held");
    assert_eq!(try_from_another_process(directory.path(), "flock"), "held");
    let elsewhere = tempfile::tempdir().unwrap();
    drop(lock_directory(&OsFs, elsewhere.path()).unwrap());
    drop(guard);
    assert_eq!(try_from_another_process(directory.path(), "fcntl"), "free");
    assert_eq!(try_from_another_process(directory.path(), "flock"), "free");
    drop(lock_directory(&OsFs, directory.path()).unwrap());
}

#[test]
fn a_second_name_of_the_lock_file_is_the_same_lock() {
    let directory = tempfile::tempdir().unwrap();
    let guard = OsFs.lock(&directory.path().join("a")).unwrap();
    OsFs.hard_link(&directory.path().join("a"), &directory.path().join("b")).unwrap();
    assert_eq!(OsFs.lock(&directory.path().join("b")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(try_from_another_process_on(&directory.path().join("a"), "fcntl"), "held");
    drop(guard);
    drop(OsFs.lock(&directory.path().join("b")).unwrap());
}

#[test]
fn a_record_lock_as_javas_keeps_us_out_and_its_process_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = hold_in_another_process(directory.path(), "fcntl");
    let error = lock_directory(&OsFs, directory.path()).unwrap_err();
    let LockError::Held { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(holder.pid, Some(other.id()));
    assert!(holder.program.as_ref().is_some_and(|program| program.contains("python")), "{holder}");
    other.kill().unwrap();
    other.wait().unwrap();
    drop(lock_directory(&OsFs, directory.path()).unwrap());
}

#[test]
fn a_flock_alone_keeps_us_out_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = hold_in_another_process(directory.path(), "flock");
    let error = lock_directory(&OsFs, directory.path()).unwrap_err();
    assert!(matches!(&error, LockError::Held { holder, .. } if *holder == Holder::unknown()), "{error}");
    // The record lock, taken first, was given back.
    assert_eq!(try_from_another_process(directory.path(), "fcntl"), "free");
    other.kill().unwrap();
    other.wait().unwrap();
    drop(lock_directory(&OsFs, directory.path()).unwrap());
}

#[test]
fn a_lock_file_that_is_none_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join(".lock")).unwrap();
    assert!(matches!(lock_directory(&OsFs, directory.path()), Err(LockError::Io(_))));
    assert!(matches!(lock_directory(&OsFs, &directory.path().join("nowhere")), Err(LockError::Io(_))));
}

/// A lock by way of Python: `lockf` is the record lock that Java takes, `flock` the other.
const TRY: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+')
try:
    (fcntl.lockf if sys.argv[2] == 'fcntl' else fcntl.flock)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print('free', flush=True)
except BlockingIOError:
    print('held', flush=True)
if len(sys.argv) > 3:
    sys.stdin.read()
";

fn try_from_another_process(directory: &Path, kind: &str) -> String {
    try_from_another_process_on(&directory.join(".lock"), kind)
}

fn try_from_another_process_on(file: &Path, kind: &str) -> String {
    let output = Command::new("python3").arg("-c").arg(TRY).arg(file).arg(kind).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A process that holds one of the locks until it is killed.
fn hold_in_another_process(directory: &Path, kind: &str) -> std::process::Child {
    fs::File::create(directory.join(".lock")).unwrap().flush().unwrap();
    let mut child = Command::new("python3")
        .args(["-c", TRY])
        .arg(directory.join(".lock"))
        .args([kind, "hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answer = [0; 5];
    child.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"free\n");
    child
}
