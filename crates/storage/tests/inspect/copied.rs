//! Copies and cuts of stopped logs.

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::repair::{CopyDirError, RepairLock, TruncatePlan};
use highwater_storage::{Log, LogOptions, Offset, inspect, repair};

use crate::*;

#[test]
fn a_stopped_log_is_cut_and_copied() {
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
    copied(&data("transactional/log"), &root);
    let dir = root.join("txn-0");
    let fs = OsFs::shared();
    let copied = repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!(copied.files, std::fs::read_dir(&dir).unwrap().count() as u64);
    assert!(matches!(repair::copy_dir(&fs, &dir, &copy, &mut |_| {}), Err(CopyDirError::Exists(_))));

    let plan = TruncatePlan::of(&*fs, &dir, Offset(200)).unwrap();
    assert_eq!((plan.from, plan.to), (Offset(327), Offset(200)));
    // A batch goes as a whole.
    let inside = TruncatePlan::of(&*fs, &data("plain-multi/log/plain-0"), Offset(30)).unwrap();
    assert_eq!((inside.from, inside.to), (Offset(441), Offset(26)));
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    let (truncated, _) = repair::truncate(&fs, &dir, Offset(200)).unwrap();
    assert_eq!((truncated.from, truncated.end, truncated.bytes), (Offset(327), Offset(200), plan.bytes));
    drop(lock);
    assert_eq!(faults(&root), []);
    let summary = inspect::PartitionSummary::of(&*fs, &dir).unwrap();
    assert_eq!((summary.end, summary.high_watermark), (Offset(200), Some(Offset(200))));
    let between = inspect::Comparison::of(&*fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!((between.parting, between.same_until), (None, Offset(200)));
}

/// A copy stands on its own as a log that was closed well, with what only the original's root knew, whatever the original
/// is like; the original stays as it is.
#[test]
fn a_copy_of_a_log_opens_as_one_that_was_closed_well() {
    let fs = OsFs::shared();
    for (original, start, end, cut) in [
        // Where it begins only the root's checkpoint says.
        ("deleted-prefix/log/delrec-0", 137, 250, None),
        ("unclean/before/unclean-0", 0, 270, Some(0)),
        ("unclean-torn/before/unclean-0", 0, 269, Some(179)),
        ("transactional/log/txn-0", 0, 327, None),
    ] {
        let temporary = tempfile::tempdir().unwrap();
        let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
        let (folder, partition) = original.rsplit_once('/').unwrap();
        copied(&data(folder), &root);
        let dir = root.join(partition);
        let before = contents(&root);
        let made = repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
        assert!(contents(&root) == before, "{original}: the original was written to");
        let recovered: Vec<_> =
            made.recovered.iter().map(|(_, report)| report.cut.as_ref().map_or(0, |cut| cut.bytes)).collect();
        assert_eq!(recovered, cut.into_iter().collect::<Vec<u64>>(), "{original}");
        assert!(verify_partition(&OsFs, &copy, &mut |_| {}).unwrap().is_good(), "{original}");
        let summary = inspect::PartitionSummary::of(&OsFs, &copy).unwrap();
        assert_eq!(summary.stop, inspect::Stop::Clean, "{original}");
        let (log, report) = Log::open(&copy, LogOptions::default()).unwrap();
        assert!(report.clean && report.cut.is_none(), "{original}: {report:?}");
        assert_eq!((log.start(), log.end()), (Offset(start), Offset(end)), "{original}");
        let between = inspect::Comparison::of(&OsFs, &copy, &dir, &mut |_| {}).unwrap();
        assert_eq!((&between.parting, between.same_until), (&None, Offset(end)), "{original}: {between:?}");
    }
}

/// A start behind the end leaves a log nothing once a broker believes it: a copy and a cut do not.
#[test]
fn a_log_start_behind_the_end_costs_nothing_in_copies_and_cuts() {
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
    copied(&data("deleted-prefix/log"), &root);
    std::fs::write(root.join("log-start-offset-checkpoint"), "0\n1\ndelrec 0 500\n").unwrap();
    let dir = root.join("delrec-0");
    repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!(Log::open(&copy, LogOptions::default()).unwrap().0.end(), Offset(250));
    let segment = |dir: &Path| std::fs::read(dir.join("00000000000000000147.log")).unwrap();
    assert!(segment(&copy) == segment(&dir));
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    let (truncated, _) = repair::truncate(&fs, &dir, Offset(179)).unwrap();
    drop(lock);
    assert_eq!((truncated.from, truncated.end), (Offset(250), Offset(179)));
    assert!(!segment(&dir).is_empty() && segment(&copy).starts_with(&segment(&dir)));
}

/// Of a data root all is copied that a broker needs, of either kind, and it was stopped well.
#[test]
fn a_copy_of_a_root_is_one_that_was_stopped_well() {
    let fs = OsFs::shared();
    for folder in ["deleted-prefix-pending/log", "unclean-torn/before", "plain-multi/log", "clean-flip-active/after"] {
        let temporary = tempfile::tempdir().unwrap();
        let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy"));
        copied(&data(folder), &root);
        let doomed = format!("gone-0.{:032x}-delete", 7);
        std::fs::create_dir(root.join(&doomed)).unwrap();
        std::fs::write(root.join("not a log's"), b"x").unwrap();
        let (before, (verified, _)) = (contents(&root), verify(&root));
        repair::copy_root(&fs, &root, &copy, &mut |_| {}).unwrap();
        assert!(contents(&root) == before, "{folder}: the original was written to");
        assert!(!copy.join(doomed).exists() && !copy.join("not a log's").exists(), "{folder}");
        let name = |path: &Path| path.file_name().unwrap().to_owned();
        let partitions = |root: &Path| match Target::of(&OsFs, root).unwrap() {
            Target::Root { partitions, .. } => partitions,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            partitions(&copy).iter().map(|dir| name(dir)).collect::<Vec<_>>(),
            partitions(&root).iter().map(|dir| name(dir)).collect::<Vec<_>>(),
        );
        let (after, found) = verify(&copy);
        assert_eq!(after.records, verified.records, "{folder}");
        // Rot is copied as it is: what is below the end of a stop that was clean is no torn write.
        let rotten = found.iter().filter(|fault| fault.severity() > Severity::Note).count();
        assert_eq!(rotten, usize::from(folder == "clean-flip-active/after"), "{folder}: {found:?}");
        let (data_dir, report) = DataDir::open(fs.clone(), &copy, DataDirOptions::of_node(1)).unwrap();
        assert!(report.clean && report.warnings.is_empty(), "{folder}: {report:?}");
        for found in data_dir.partitions() {
            let hints = data_dir.hints(&found.topic_partition);
            let (log, report) = Log::open_with(fs.clone(), &found.dir, LogOptions::default(), hints).unwrap();
            assert!(report.clean && report.cut.is_none(), "{folder}: {report:?}");
            assert_eq!(hints.recovery_point, Some(log.end()), "{folder}");
            let original = inspect::PartitionSummary::of(&OsFs, &root.join(name(&found.dir))).unwrap();
            assert_eq!(log.start(), original.log_start, "{folder}");
        }
    }
}

/// A broker that believes that a root was closed well believes that of all logs in it, also of those that are set aside.
#[test]
fn what_is_set_aside_in_a_copied_root_was_closed_well_too() {
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy"));
    copied(&data("unclean-torn/before"), &root);
    let aside = ["stray", "future"].map(|role| format!("moved-0.{:032x}-{role}", 7));
    for name in &aside {
        copied(&root.join("unclean-0"), &root.join(name));
    }
    let made = repair::copy_root(&fs, &root, &copy, &mut |_| {}).unwrap();
    let cut: Vec<_> = made.recovered.iter().map(|(_, report)| report.cut.as_ref().map(|cut| cut.bytes)).collect();
    assert_eq!(cut, [Some(179); 3]);
    for name in aside.iter().map(String::as_str).chain(["unclean-0"]) {
        let dir = copy.join(name);
        assert_eq!(inspect::PartitionSummary::of(&*fs, &dir).unwrap().stop, inspect::Stop::Clean, "{name}");
        assert!(verify_partition(&*fs, &dir, &mut |_| {}).unwrap().is_good(), "{name}");
    }
}

/// A copy goes where there is room for it, and nowhere else; nothing is left of one that does not.
#[test]
fn a_copy_goes_nowhere_where_it_would_be_in_the_way() {
    use CopyDirError as Error;
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let (root, other) = (temporary.path().join("root"), temporary.path().join("other"));
    copied(&data("plain-multi/log"), &root);
    copied(&data("plain-multi/log"), &other);
    let dir = root.join("plain-0");
    let copy = |to: &Path| repair::copy_dir(&fs, &dir, to, &mut |_| {}).unwrap_err();
    let before = contents(temporary.path());
    assert!(matches!(copy(&dir), Error::Exists(_)));
    assert!(matches!(copy(&dir.join("copy-0")), Error::Inside(_)));
    for to in ["missing/copy-0", "missing/copy-0/", "root/meta.properties/copy-0"] {
        let error = copy(&temporary.path().join(to));
        assert!(matches!(error, Error::NoParent(_)), "{to}: {error}");
    }
    let error = repair::copy_root(&fs, &root, &root.join("copy"), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Inside(_)), "{error}");
    // In a data directory, or a log's within one, that somebody has open.
    let lock = RepairLock::take(&*fs, &other).unwrap();
    for to in ["copy-0", "plain-1/copy-0"] {
        let error = copy(&other.join(to));
        assert!(matches!(&error, Error::InUse { dir, .. } if *dir == other), "{to}: {error}");
    }
    drop(lock);
    std::fs::remove_file(other.join(".lock")).unwrap();
    assert!(contents(temporary.path()) == before);
    let leftover = temporary.path().join("copy-0.tmp");
    std::fs::create_dir(&leftover).unwrap();
    let error = copy(&temporary.path().join("copy-0"));
    assert!(matches!(&error, Error::Leftover(path) if *path == leftover), "{error}");
    std::fs::remove_dir(&leftover).unwrap();
    repair::copy_dir(&fs, &dir, &temporary.path().join("copy-0/"), &mut |_| {}).unwrap();
    assert!(temporary.path().join("copy-0").join("00000000000000000083.log").exists());
}
