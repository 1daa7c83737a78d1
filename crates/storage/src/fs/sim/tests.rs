use std::collections::BTreeSet;

use super::*;
use crate::io::FileExt;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn create(fs: &SimFs, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = fs.open(path(name), OpenMode::CreateNew).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A file's content, `None` if it is not there.
fn content(fs: &SimFs, name: &str) -> Option<Vec<u8>> {
    let file = match fs.open(path(name), OpenMode::Read) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            return None;
        }
    };
    let mut bytes = vec![0; file.metadata().unwrap().len as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

fn names(fs: &SimFs, directory: &str) -> Vec<String> {
    let mut names: Vec<String> = fs.read_dir(path(directory)).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

/// All contents of `name` that images show, `None` for "not there".
fn contents(fs: &SimFs, name: &str) -> BTreeSet<Option<Vec<u8>>> {
    fs.images(400, 7).iter().map(|image| content(image, name)).collect()
}

fn some(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(bytes.to_vec())
}

#[test]
fn it_behaves_like_a_file_system() {
    let fs = SimFs::new(1);
    fs.create_dir(path("/d")).unwrap();
    let file = create(&fs, "/d/a", b"hello");
    file.write_all_at(b"W", 8).unwrap();
    assert_eq!(content(&fs, "/d/a"), some(b"hello\0\0\0W"));
    file.write_all_at(b"JELLO", 0).unwrap();
    file.set_len(7).unwrap();
    file.set_len(8).unwrap();
    assert_eq!(content(&fs, "/d/a"), some(b"JELLO\0\0\0"));
    assert_eq!(file.read_at(&mut [0; 4], 8).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 4], u64::MAX).unwrap(), 0);

    fs.hard_link(path("/d/a"), path("/d/b")).unwrap();
    assert_eq!(file.metadata().unwrap().links, 2);
    fs.rename(path("/d/a"), path("/d/c")).unwrap();
    assert_eq!(names(&fs, "/d"), ["b", "c"]);
    assert_eq!(fs.metadata(path("/d/b")).unwrap().inode, fs.metadata(path("/d/c")).unwrap().inode);
    fs.rename(path("/d/b"), path("/d/c")).unwrap();
    assert_eq!(names(&fs, "/d"), ["b", "c"], "two names of one file: a rename does nothing");
    fs.remove_file(path("/d/b")).unwrap();
    fs.remove_file(path("/d/c")).unwrap();
    assert_eq!(file.metadata().unwrap().links, 0);
    file.write_all_at(b"still open", 0).unwrap();
    fs.remove_dir(path("/d")).unwrap();
    assert_eq!(names(&fs, "/"), Vec::<String>::new());
}

#[test]
fn wrong_calls_get_the_errors_of_a_real_file_system() {
    let fs = SimFs::new(1);
    fs.create_dir(path("/d")).unwrap();
    fs.create_dir(path("/e")).unwrap();
    create(&fs, "/d/a", b"x");
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    let open = |name, mode| fs.open(path(name), mode).map(drop);
    assert_eq!(kind(open("/d/b", OpenMode::Read)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/d/b", OpenMode::ReadWrite)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/d/a", OpenMode::CreateNew)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(open("/x/a", OpenMode::CreateNew)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/d/a/b", OpenMode::CreateNew)), io::ErrorKind::NotADirectory);
    assert_eq!(kind(open("/d", OpenMode::Truncate)), io::ErrorKind::IsADirectory);
    assert_eq!(kind(open("/d/../d/a", OpenMode::Read)), io::ErrorKind::InvalidFilename);
    assert_eq!(kind(open(&format!("/{}", "x".repeat(256)), OpenMode::CreateNew)), io::ErrorKind::InvalidFilename);
    assert_eq!(kind(fs.remove_dir(path("/d"))), io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs.remove_file(path("/d"))), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.rename(path("/d/a"), path("/e/a"))), io::ErrorKind::CrossesDevices);
    assert_eq!(kind(fs.rename(path("/e"), path("/d"))), io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs.hard_link(path("/d/a"), path("/e"))), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create_dir(path("/e"))), io::ErrorKind::AlreadyExists);
    let reader = fs.open(path("/d/a"), OpenMode::Read).unwrap();
    assert_eq!(kind(reader.write_all_at(b"x", 0)), io::ErrorKind::PermissionDenied);
    let file = fs.open(path("/d/a"), OpenMode::ReadWrite).unwrap();
    assert_eq!(kind(file.write_all_at(b"x", u64::MAX)), io::ErrorKind::FileTooLarge);
    assert_eq!(kind(file.set_len(u64::MAX)), io::ErrorKind::FileTooLarge);
    assert_eq!(content(&fs, "/d/a"), some(b"x"));
}

#[test]
fn nothing_is_durable_without_its_sync() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"hello");
    assert_eq!(contents(&fs, "/a"), BTreeSet::from([None, some(b""), some(b"\0\0\0\0\0"), some(b"hello")]));
    file.sync_data().unwrap();
    assert_eq!(contents(&fs, "/a"), BTreeSet::from([None, some(b"hello")]));
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(contents(&fs, "/a"), BTreeSet::from([some(b"hello")]));
    assert_eq!(fs.images(400, 7).len(), 1, "nothing pending, one image");
    assert_eq!(fs.images(0, 7).len(), 0);
}

#[test]
fn writes_survive_in_any_combination_and_tear_at_sectors() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"");
    fs.sync_everything();
    file.write_all_at(&[1; 1000], 0).unwrap();
    file.write_all_at(&[2; 500], 1000).unwrap();
    let mut second_only = vec![0; 1000];
    second_only.extend([2; 500]);
    let seen = contents(&fs, "/a");
    assert!(seen.contains(&some(b"")));
    assert!(seen.contains(&Some([vec![1; 1000], vec![2; 500]].concat())));
    assert!(seen.contains(&Some(vec![1; 1000])), "the first without the second");
    assert!(seen.contains(&Some(second_only)), "the second without the first");
    assert!(seen.contains(&Some(vec![1; 512])), "torn after the first sector");
    let torn_front = seen.contains(&Some([vec![0; 512], vec![1; 488]].concat()));
    assert!(torn_front, "the second sector without the first");
    assert!(seen.contains(&Some(vec![0; 1500])), "the length without the bytes");
    for content in seen.into_iter().flatten() {
        // Sectors are whole: bytes 0..512, 512..1000, 1000..1024 and 1024..1500 each come from one source.
        for piece in [0..512, 512..1000, 1000..1024, 1024..1500] {
            let piece = &content[piece.start.min(content.len())..piece.end.min(content.len())];
            assert!(piece.windows(2).all(|pair| pair[0] == pair[1]), "{piece:?}");
        }
    }
}

#[test]
fn overwriting_leaves_old_or_new_bytes_never_zeros() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", &[1; 600]);
    fs.sync_everything();
    file.write_all_at(&[2; 600], 0).unwrap();
    for content in contents(&fs, "/a").into_iter().flatten() {
        assert_eq!(content.len(), 600);
        assert!(content.iter().all(|&byte| byte == 1 || byte == 2));
    }
}

#[test]
fn a_cut_may_be_lost_while_what_follows_it_survives() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"aaaaaa");
    fs.sync_everything();
    file.set_len(2).unwrap();
    file.write_all_at(b"bb", 2).unwrap();
    let seen = contents(&fs, "/a");
    for expected in [&b"aaaaaa"[..], b"aa", b"aabb", b"aabbaa"] {
        assert!(seen.contains(&some(expected)), "{expected:?} not in {seen:?}");
    }
}

#[test]
fn a_rename_is_one_step_and_knows_nothing_of_content() {
    let fs = SimFs::new(1);
    create(&fs, "/a", b"old");
    fs.sync_everything();
    create(&fs, "/a.tmp", b"new");
    fs.rename(path("/a.tmp"), path("/a")).unwrap();
    let seen = contents(&fs, "/a");
    // The classic mistake: renamed before it was synced, so the name is there and the content is not.
    assert!(seen.is_superset(&BTreeSet::from([some(b"old"), some(b"new"), some(b"")])), "{seen:?}");
    assert!(!seen.contains(&None), "a rename never loses its target");
    for image in fs.images(100, 3) {
        if content(&image, "/a") != some(b"old") {
            assert_eq!(content(&image, "/a.tmp"), None, "the old name goes in the same step");
        }
    }
}

#[test]
fn entries_survive_in_any_combination() {
    let fs = SimFs::new(1);
    create(&fs, "/gone", b"");
    fs.sync_everything();
    create(&fs, "/one", b"");
    fs.remove_file(path("/gone")).unwrap();
    create(&fs, "/two", b"");
    let seen: BTreeSet<Vec<String>> = fs.images(200, 5).iter().map(|image| names(image, "/")).collect();
    assert_eq!(seen.len(), 8, "every subset of three changes: {seen:?}");
}

#[test]
fn a_directory_renamed_twice_is_never_in_two_places() {
    let fs = SimFs::new(1);
    fs.create_dir(path("/a")).unwrap();
    create(&fs, "/a/f", b"x");
    fs.sync_everything();
    fs.rename(path("/a"), path("/b")).unwrap();
    fs.rename(path("/b"), path("/c")).unwrap();
    let seen: BTreeSet<Vec<String>> = fs.images(200, 5).iter().map(|image| names(image, "/")).collect();
    let expected: [&[&str]; 3] = [&["a"], &["b"], &["c"]];
    assert_eq!(seen, expected.iter().map(|names| names.iter().map(|name| name.to_string()).collect()).collect());
    for image in fs.images(200, 5) {
        let only = names(&image, "/").pop().unwrap();
        assert_eq!(content(&image, &format!("/{only}/f")), some(b"x"), "what was durable below it moves along");
    }
}

#[test]
fn a_file_in_an_unsynced_directory_goes_with_it() {
    let fs = SimFs::new(1);
    fs.create_dir(path("/d")).unwrap();
    let file = create(&fs, "/d/f", b"x");
    file.sync_data().unwrap();
    fs.sync_dir(path("/d")).unwrap();
    let lost = fs.images(50, 1).iter().filter(|image| names(image, "/").is_empty()).count();
    assert_eq!(lost, 1);
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(contents(&fs, "/d/f"), BTreeSet::from([some(b"x")]));
}

#[test]
fn links_stay_one_file_in_images_and_copies() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"x");
    fs.hard_link(path("/a"), path("/b")).unwrap();
    file.sync_data().unwrap();
    fs.sync_dir(path("/")).unwrap();
    for image in fs.images(9, 1).into_iter().chain([fs.process_crash_image()]) {
        let a = image.open(path("/a"), OpenMode::ReadWrite).unwrap();
        assert_eq!(a.metadata().unwrap().links, 2);
        a.write_all_at(b"y", 0).unwrap();
        assert_eq!(content(&image, "/b"), some(b"y"));
    }
    assert_eq!(content(&fs, "/b"), some(b"x"), "the original is not touched");
}

#[test]
fn the_crash_stops_everything_and_changes_nothing() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"x");
    assert_eq!(fs.calls(), 2, "open, write");
    file.read_at(&mut [0], 0).unwrap();
    assert_eq!(fs.calls(), 2, "reads do not count");
    fs.crash_after(1);
    file.write_all_at(b"y", 1).unwrap();
    assert!(!fs.crashed());
    let error = file.write_all_at(b"z", 2).unwrap_err();
    assert!(SimFs::is_crash(&error) && fs.crashed());
    assert!(!SimFs::is_crash(&io::ErrorKind::Other.into()));
    assert!(SimFs::is_crash(&file.read_at(&mut [0], 0).unwrap_err()));
    assert!(SimFs::is_crash(&fs.read_dir(path("/")).unwrap_err()));
    let image = fs.process_crash_image();
    assert!(!image.crashed() && image.calls() == 0);
    assert_eq!(content(&image, "/a"), some(b"xy"));
}

#[test]
fn what_a_process_crash_keeps_is_still_not_synced() {
    for image in [|fs: &SimFs| fs.process_crash_image(), |fs: &SimFs| fs.kill()] {
        let fs = SimFs::new(1);
        create(&fs, "/a", b"x");
        let after = image(&fs);
        assert_eq!(content(&after, "/a"), some(b"x"));
        assert!(contents(&after, "/a").contains(&None));
        after.open(path("/a"), OpenMode::Read).unwrap().sync_data().unwrap();
        after.sync_dir(path("/")).unwrap();
        assert_eq!(contents(&after, "/a"), BTreeSet::from([some(b"x")]));
    }
}

#[test]
fn a_killed_process_keeps_no_lock_and_no_way_to_write() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"x");
    let lock = fs.lock(path("/.lock")).unwrap();
    assert_eq!(fs.lock(path("/.lock")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(fs.clone().lock(path("/.lock")).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let next = fs.kill();
    let held = next.lock(path("/.lock")).unwrap();
    assert!(SimFs::is_crash(&file.write_all_at(b"late", 0).unwrap_err()));
    drop(lock);
    assert_eq!(next.lock(path("/.lock")).unwrap_err().kind(), io::ErrorKind::WouldBlock, "not the new one's");
    drop(held);
    next.lock(path("/.lock")).unwrap();
    assert_eq!(content(&next, "/a"), some(b"x"));
}

#[test]
fn faults_strike_where_and_when_they_are_told() {
    let fs = SimFs::new(1);
    let log = create(&fs, "/x.log", b"");
    let index = create(&fs, "/x.index", b"");
    fs.inject_on(Fault::Eio, Call::Write, ".log", 2);
    index.write_all_at(b"1", 0).unwrap();
    log.write_all_at(b"1", 0).unwrap();
    let error = log.write_all_at(b"2", 1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    log.write_all_at(b"2", 1).unwrap();
    assert_eq!((content(&fs, "/x.log"), fs.faults_hit()), (some(b"12"), 1));

    fs.inject(Fault::Enospc, Call::AnyChange, 1);
    assert_eq!(content(&fs, "/x.log"), some(b"12"), "reading changes nothing");
    assert_eq!(log.set_len(0).unwrap_err().kind(), io::ErrorKind::StorageFull);
    fs.inject_lasting(Fault::Eio, Call::SyncData, "log", 1);
    for _ in 0..3 {
        assert!(log.sync_data().is_err());
    }
    fs.clear_faults();
    log.sync_data().unwrap();
}

#[test]
fn short_reads_and_writes_do_part_and_say_so() {
    let fs = SimFs::new(3);
    let file = create(&fs, "/a", b"");
    fs.inject(Fault::ShortWrite, Call::Write, 1);
    let count = file.write_vectored_at(&[IoSlice::new(b"abc"), IoSlice::new(b"defg")], 0).unwrap();
    assert!((1..7).contains(&count));
    assert_eq!(content(&fs, "/a"), some(&b"abcdefg"[..count]));
    fs.inject(Fault::ShortRead, Call::Read, 1);
    file.write_all_at(b"abcdefg", 0).unwrap();
    assert!((1..7).contains(&file.read_at(&mut [0; 7], 0).unwrap()));
    fs.shorten(2);
    let shorts = (0..100).filter(|_| file.read_at(&mut [0; 7], 0).unwrap() < 7).count();
    assert!((20..80).contains(&shorts), "{shorts}");
    file.write_all_at(&[9; 5000], 0).unwrap();
    assert_eq!(content(&fs, "/a"), Some(vec![9; 5000]));
}

#[test]
fn after_a_failed_sync_the_next_one_lies() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", b"");
    fs.sync_everything();
    file.write_all_at(&[1; 10], 0).unwrap();
    fs.inject(Fault::SyncFails, Call::SyncData, 1);
    assert!(file.sync_data().is_err());
    file.write_all_at(&[2; 10], 10).unwrap();
    file.sync_data().unwrap();
    let seen = contents(&fs, "/a");
    let lost = Some([[0; 10], [2; 10]].concat());
    let kept = Some([[1; 10], [2; 10]].concat());
    assert_eq!(seen, BTreeSet::from([lost, kept]), "the first write is not certain, the second is");
    assert_eq!(content(&fs, "/a"), Some([[1; 10], [2; 10]].concat()), "and a read does not show it");

    // Written again and synced, it is.
    file.write_all_at(&[3; 15], 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(contents(&fs, "/a"), BTreeSet::from([Some([vec![3; 15], vec![2; 5]].concat())]));
}

#[test]
fn a_later_certain_write_leaves_only_the_rest_of_an_uncertain_one_uncertain() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a", &[0; 30]);
    fs.sync_everything();
    file.write_all_at(&[1; 30], 0).unwrap();
    fs.inject(Fault::SyncFails, Call::SyncData, 1);
    assert!(file.sync_data().is_err());
    file.write_all_at(&[2; 10], 10).unwrap();
    file.set_len(25).unwrap();
    file.sync_data().unwrap();
    for content in contents(&fs, "/a").into_iter().flatten() {
        assert_eq!((content.len(), &content[10..20]), (25, &[2; 10][..]));
        assert!(content[..10].iter().chain(&content[20..]).all(|&byte| byte < 2));
    }
    assert!(contents(&fs, "/a").len() > 2);
}

#[test]
fn a_directory_whose_sync_failed_never_syncs_again() {
    let fs = SimFs::new(1);
    create(&fs, "/a", b"");
    fs.inject(Fault::SyncFails, Call::SyncDir, 1);
    assert!(fs.sync_dir(path("/")).is_err());
    assert!(fs.sync_dir(path("/")).is_err());
    assert!(contents(&fs, "/a").contains(&None));
    for image in fs.images(3, 1) {
        image.sync_dir(path("/")).unwrap();
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_gives_room_back() {
    let fs = SimFs::new(1);
    fs.set_capacity(10);
    let file = create(&fs, "/a", b"123456");
    assert_eq!(fs.free_space(path("/")).unwrap(), 4);
    let error = file.write_all_at(b"789abcdef", 6).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(content(&fs, "/a"), some(b"123456789a"), "the part that fits went in");
    file.write_all_at(b"X", 0).unwrap();
    assert_eq!(file.set_len(11).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.set_len(5).unwrap();
    assert_eq!(fs.free_space(path("/")).unwrap(), 5);
    create(&fs, "/b", b"12345");
    fs.rename(path("/b"), path("/a")).unwrap();
    assert_eq!(fs.free_space(path("/")).unwrap(), 5, "the replaced file gave its bytes back");
    assert_eq!(fs.process_crash_image().free_space(path("/")).unwrap(), 5);
    fs.sync_everything();
    assert_eq!(fs.images(1, 1)[0].free_space(path("/")).unwrap(), 5);
    fs.remove_file(path("/a")).unwrap();
    assert_eq!(fs.free_space(path("/")).unwrap(), 10);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let fs = SimFs::new(seed);
        fs.shorten(3);
        let mut trace = String::new();
        for number in 0..20u8 {
            let file = create(&fs, &format!("/{number}"), &[number; 700]);
            trace += &format!("{:?}", file.read_at(&mut [0; 700], 0).unwrap());
        }
        trace += &format!("{:?}", fs.read_dir(path("/")).unwrap());
        for image in fs.images(30, seed) {
            for name in names(&image, "/") {
                trace += &format!("{name}: {:?}", content(&image, &format!("/{name}")));
            }
        }
        trace
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn read_dir_has_no_order_to_rely_on() {
    let fs = SimFs::new(1);
    for name in ["/a", "/b", "/c", "/d", "/e"] {
        create(&fs, name, b"");
    }
    let order = || fs.read_dir(path("/")).unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    let first = order();
    assert!((0..20).any(|_| order() != first));
}

#[test]
fn rot_shows_live_and_after_a_crash() {
    let fs = SimFs::new(1);
    create(&fs, "/a", b"abc");
    fs.sync_everything();
    fs.corrupt(path("/a"), |bytes| bytes[1] ^= 1).unwrap();
    assert_eq!(content(&fs, "/a"), some(b"acc"));
    assert_eq!(contents(&fs, "/a"), BTreeSet::from([some(b"acc")]));
}

#[test]
fn files_carry_the_time_they_are_told() {
    let fs = SimFs::new(1);
    fs.set_now(TimestampMs(1_700_000_000_000));
    let file = create(&fs, "/a", b"");
    assert_eq!(file.metadata().unwrap().modified, TimestampMs(1_700_000_000_000));
    fs.set_now(TimestampMs(1_700_000_000_001));
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(fs.metadata(path("/a")).unwrap().modified, TimestampMs(1_700_000_000_001));
}

#[test]
fn it_is_shared_between_threads() {
    let fs = SimFs::new(1);
    fs.create_dir(path("/d")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let fs = fs.clone();
            scope.spawn(move || {
                for number in 0..50 {
                    let name = format!("/d/{thread}-{number}");
                    create(&fs, &name, &[thread; 100]).sync_data().unwrap();
                    fs.rename(path(&name), path(&format!("/d/done-{thread}-{number}"))).unwrap();
                    fs.images(3, number).into_iter().for_each(drop);
                }
            });
        }
    });
    assert_eq!(names(&fs, "/d").len(), 200);
    assert_eq!(fs.calls(), 1 + 200 * 4, "create, write, sync and rename of each");
}
