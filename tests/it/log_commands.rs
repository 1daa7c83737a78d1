//! `highwater log`: the real binary on directories that Kafka wrote, and on those of a running broker.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use highwater_storage::inspect::FaultKind;
use highwater_tests::{Client, Server, highwater, run};
use serde_json::Value;

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/storage/tests/data").join(folder)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the paths of these tests are text")
}

/// Runs `highwater log` and returns its exit code and both outputs.
fn log(arguments: &[&str]) -> (i32, String, String) {
    let arguments: Vec<&str> = ["log"].iter().chain(arguments).copied().collect();
    let (code, stdout, stderr) = run(&arguments).unwrap();
    assert!(!stderr.contains("panicked"), "{arguments:?}\n{stderr}");
    (code, stdout, stderr)
}

/// The objects of a result for machines.
fn objects(arguments: &[&str]) -> (i32, Vec<Value>) {
    let (code, stdout, stderr) = log(&[arguments, &["--format", "json"]].concat());
    let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\n{stderr}"));
    (code, stdout.lines().map(object).collect())
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() { copied(&entry.path(), &to) } else { drop(fs::copy(entry.path(), to)) }
    }
}

#[test]
fn verify_says_what_is_wrong_where_and_what_a_broker_makes_of_it() {
    let good = data("transactional/log");
    let (code, stdout, _) = log(&["verify", text(&good)]);
    assert_eq!((code, stdout.starts_with("all good: 621 records")), (0, true), "{stdout}");
    assert!(!stdout.contains('\u{1b}'), "no colours in a pipe");

    let bad = data("clean-damaged-files/before/d-badindex-0");
    let (code, stdout, _) = log(&["verify", text(&bad)]);
    assert_eq!(code, 1, "{stdout}");
    for words in ["00000000000000000014.index, byte 0:", "77777", "Kafka does not notice", "1 fault: 30 records"] {
        assert!(stdout.contains(words), "no {words:?} in\n{stdout}");
    }
    let (code, found) = objects(&["verify", text(&bad)]);
    assert_eq!((code, found.len()), (1, 2));
    assert_eq!(
        (&found[0]["type"], &found[0]["code"], &found[0]["position"]),
        (&"fault".into(), &"index".into(), &0.into())
    );
    assert_eq!(
        (&found[1]["type"], &found[1]["good"], &found[1]["faults"]),
        (&"verified".into(), &false.into(), &1.into())
    );

    let file = data("unclean-flip-sealed/after/unclean-0/00000000000000000067.log");
    let (code, found) = objects(&["verify", text(&file)]);
    assert_eq!((code, &found[0]["code"], &found[0]["position"]), (1, &"checksum".into(), &2250.into()));

    // Below and above the recovery point other things become of the same damage.
    for (folder, synced, highwater, kafka) in [
        ("unclean-flip-sealed/before", true, "an error for these offsets", "does not notice"),
        ("unclean-flip-unflushed/before", false, "cuts the log off here", "drops everything from here on"),
    ] {
        let (_, stdout, _) = log(&["verify", text(&data(folder))]);
        let says = |who: &str, what: &str| stdout.lines().any(|line| line.contains(who) && line.contains(what));
        assert!(says("Highwater", highwater) && says("Kafka", kafka), "{folder}: {stdout}");
        let (_, found) = objects(&["verify", text(&data(folder))]);
        let checksum = found.iter().find(|object| object["code"] == "checksum").unwrap();
        assert_eq!(checksum["synced"], Value::from(synced), "{folder}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_not_called_faulty() {
    for arguments in
        [&["verify"][..], &["verify", "/no/such/directory"], &["verify", "/etc/hostname"], &["dump", "--from"]]
    {
        assert_eq!(log(arguments).0, 2, "{arguments:?}");
    }
}

/// Each command does something with each kind of path, or says by its exit code that it does not take it.
#[test]
fn each_command_takes_each_kind_of_path_or_refuses_it() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    fs::create_dir(temporary.path().join("empty")).unwrap();
    fs::create_dir(temporary.path().join("alone-0")).unwrap();
    fs::write(temporary.path().join("alone-0/00000000000000000009.index"), b"").unwrap();
    let paths = [
        "root",
        "root/plain-0",
        "root/plain-0/00000000000000000083.log",
        "root/plain-0/00000000000000000083.timeindex",
        "root/plain-0/00000000000000000083.snapshot",
        "alone-0/00000000000000000009.index", // There is no segment of this name.
        "root/meta.properties",
        "empty",
        "missing",
    ];
    let copy = temporary.path().join("copy-0");
    for (command, codes) in [
        ("info", [0, 0, 0, 0, 0, 2, 2, 2, 2]),
        ("dump", [0, 0, 0, 2, 2, 2, 2, 2, 2]),
        ("verify", [0, 0, 0, 0, 0, 2, 2, 2, 2]),
        ("repair", [0, 0, 0, 0, 2, 2, 2, 2, 2]),
        ("repair --write", [0, 0, 0, 0, 2, 2, 2, 2, 2]),
        ("rebuild-index", [0, 0, 0, 0, 2, 2, 2, 2, 2]),
        ("diff", [0, 0, 2, 2, 2, 2, 2, 2, 2]),
        ("truncate --to 441", [2, 0, 2, 2, 2, 2, 2, 2, 2]),
        ("copy", [0, 0, 2, 2, 2, 2, 2, 2, 2]),
    ] {
        for (path, expected) in paths.iter().zip(codes) {
            let path = temporary.path().join(path);
            let mut arguments: Vec<&str> = command.split(' ').chain([text(&path)]).collect();
            match command {
                "diff" => arguments.push(text(&path)),
                "copy" => arguments.push(text(&copy)),
                _ => {}
            }
            let (code, stdout, stderr) = log(&arguments);
            assert_eq!(code, expected, "{arguments:?}\n{stdout}{stderr}");
            if code == 2 {
                let names_it = stderr.lines().count() == 1 && stderr.contains(text(&path));
                assert!(stdout.is_empty() && names_it, "{arguments:?}\n{stdout}{stderr}");
            }
            drop(fs::remove_dir_all(&copy));
        }
    }
}

/// One segment, by any of its files: its neighbours stay as they are, damaged or not.
#[test]
fn one_segment_is_repaired_by_the_name_of_its_file() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let index = |base: u64| root.join(format!("plain-0/{base:020}.index"));
    let nonsense = [7; 16];
    fs::write(index(83), nonsense).unwrap();
    fs::write(index(168), nonsense).unwrap();
    let segment = index(83).with_extension("log");
    let (code, found) = objects(&["repair", text(&segment)]);
    assert_eq!((code, found.len(), &found[0]["file"]), (1, 1, &text(&index(83)).into()), "{found:?}");
    assert_eq!(fs::read(index(83)).unwrap(), nonsense, "a dry run");
    let (code, stdout, stderr) = log(&["repair", "--write", text(&index(83))]);
    assert_eq!((code, stdout.contains("verified: ")), (0, true), "{stdout}{stderr}");
    assert_eq!(log(&["verify", text(&segment)]).0, 0);
    assert_eq!(fs::read(index(168)).unwrap(), nonsense, "of the one segment only");
    let (code, stdout, _) = log(&["repair", "--write", text(&segment)]);
    assert_eq!((code, stdout.contains("nothing to do")), (0, true), "{stdout}");
}

#[test]
fn each_code_of_a_fault_is_documented() {
    let documented = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/log-commands.md")).unwrap();
    let (_, codes) = documented.split_once("## Codes").unwrap();
    for kind in FaultKind::ALL {
        let row = codes.lines().find(|line| line.contains(&format!("`{}`", kind.code())));
        let row = row.unwrap_or_else(|| panic!("{} is not documented", kind.code()));
        assert!(row.contains(&format!("| {} |", kind.severity())), "{row}");
    }
}

#[test]
fn info_and_dump_say_what_kafkas_tools_say() {
    let dir = data("transactional/log/txn-0");
    let (code, found) = objects(&["info", text(&dir)]);
    assert_eq!((code, found.len()), (0, 1));
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(data("transactional/expected.json")).unwrap()).unwrap();
    let expected = &expected["dirs"]["log"]["partitions"]["txn-0"];
    for field in ["log_start_offset", "log_end_offset", "leader_epochs", "topic_id"] {
        assert_eq!(found[0][field], expected[field], "{field}");
    }
    assert_eq!(found[0]["segments"].as_array().unwrap().len(), expected["segments"].as_array().unwrap().len());

    let (code, found) = objects(&["dump", "--records", text(&dir)]);
    assert_eq!(code, 0);
    let of = |kind: &str| found.iter().filter(|object| object["type"] == kind).count() as u64;
    assert_eq!(Some(of("batch")), expected["batch_count"].as_u64());
    let counted = ["record_count", "control_record_count"].map(|count| expected[count].as_u64().unwrap());
    assert_eq!(of("record"), counted.iter().sum::<u64>());

    let (code, found) = objects(&["dump", "--records", "--from", "10", "--to", "14", text(&dir)]);
    let offsets: Vec<_> =
        found.iter().filter(|object| object["type"] == "record").map(|record| &record["offset"]).collect();
    assert_eq!((code, offsets), (0, [10, 11, 12, 13].map(Value::from).iter().collect::<Vec<_>>()));

    let old = data("old-formats/log/mixed-0");
    let (code, stdout, _) = log(&["dump", "--records", text(&old)]);
    assert_eq!(code, 0);
    for magic in ["magic: 0", "magic: 1", "magic: 2"] {
        assert!(stdout.contains(magic), "no {magic:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_dump() {
    let mut command = highwater().unwrap();
    let dirs = data("transactional/log");
    command.args(["log", "dump", "--records", text(&dirs), text(&dirs), text(&dirs), text(&dirs)]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.len()),
        (Some(0), 0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn repair_says_what_it_would_do_and_does_it_when_told() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("clean-flip-active/after"), &root);
    let segment = root.join("unclean-0/00000000000000000249.log");
    let before = fs::read(&segment).unwrap();

    let (code, stdout, _) = log(&["repair", text(&root)]);
    assert_eq!((code, stdout.contains("--write does it")), (1, true), "{stdout}");
    assert!(
        fs::read(&segment).unwrap() == before
            && fs::read_dir(segment.parent().unwrap())
                .unwrap()
                .all(|entry| { !entry.unwrap().file_name().to_string_lossy().contains("damaged") })
    );

    let (code, stdout, stderr) = log(&["repair", "--write", text(&root)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_eq!(fs::read(&segment).unwrap().len(), before.len() - 216);
    assert_eq!(log(&["verify", text(&root)]).0, 0);
    assert_eq!(log(&["rebuild-index", text(&root)]).0, 0);
    assert_eq!(log(&["verify", text(&root)]).0, 0);
}

/// A damaged checkpoint of the root is part of its repair, and what was in a file that is made anew is kept.
#[test]
fn a_root_is_repaired_with_its_own_files() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let checkpoint = root.join("recovery-point-offset-checkpoint");
    let index = root.join("plain-0/00000000000000000083.index");
    fs::write(&checkpoint, "0\n2\nplain 0 441\npl").unwrap();
    fs::write(&index, [7; 16]).unwrap();
    let (code, found) = objects(&["repair", text(&root)]);
    let files = found.iter().map(|object| object["file"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!((code, files), (1, vec![text(&checkpoint), text(&index)]));
    assert_eq!(fs::read(&index).unwrap(), [7; 16], "a dry run");
    let (code, stdout, stderr) = log(&["repair", "--write", text(&root)]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_eq!(fs::read_to_string(&checkpoint).unwrap(), "0\n2\nplain 0 441\nplain 1 0\n");
    assert_eq!(fs::read(index.with_extension("index.damaged-0")).unwrap(), [7; 16]);
    assert_eq!(log(&["verify", text(&root)]).0, 0);
}

/// Where a command takes one file, it is about the segment that the file belongs to.
#[test]
fn single_files_are_shown_and_have_their_indexes_made_anew() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let file = |name: &str| root.join(format!("plain-0/{name}"));
    let (code, whole) = objects(&["info", text(&root.join("plain-0"))]);
    let segment = &whole[0]["segments"][1];
    assert_eq!((code, &segment["base_offset"]), (0, &83.into()), "{whole:?}");
    for kind in ["log", "index", "timeindex"] {
        let (code, found) = objects(&["info", text(&file(&format!("00000000000000000083.{kind}")))]);
        let mut expected = segment.clone();
        expected["type"] = "segment".into();
        expected["path"] = text(&file("00000000000000000083.log")).into();
        assert_eq!((code, found), (0, vec![expected]), "{kind}");
    }
    let (code, found) = objects(&["info", text(&file("00000000000000000083.snapshot"))]);
    assert_eq!((code, &found[0]["type"], &found[0]["offset"]), (0, &"snapshot".into(), &83.into()));

    let (mine, other) = (file("00000000000000000083.index"), file("00000000000000000168.index"));
    let good = fs::read(&mine).unwrap();
    fs::write(&mine, [7; 16]).unwrap();
    fs::write(&other, [7; 16]).unwrap();
    let (code, stdout, stderr) = log(&["rebuild-index", text(&file("00000000000000000083.log"))]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_ne!(fs::read(&mine).unwrap(), [7; 16]);
    assert!(!good.is_empty() && log(&["verify", text(&mine)]).0 == 0);
    assert_eq!(fs::read(&other).unwrap(), [7; 16], "of the one segment only");
    let (code, _, stderr) = log(&["rebuild-index", text(&file("00000000000000000083.snapshot"))]);
    assert_eq!((code, stderr.contains("no file of a segment in use")), (2, true), "{stderr}");
    for (path, words) in [(&root, "one partition's"), (&mine, "one file")] {
        let (code, _, stderr) = log(&["truncate", "--to", "3", text(path)]);
        assert_eq!((code, stderr.contains(words)), (2, true), "{stderr}");
    }
}

#[test]
fn two_replicas_are_compared() {
    let replica = |name: &str| data("three-replicas").join(name).join("rep-0");
    let (one, two, killed) = (replica("broker-1"), replica("broker-2"), replica("killed-broker-2"));
    let (code, stdout, _) = log(&["diff", text(&one), text(&two)]);
    assert_eq!((code, stdout.contains("both end at offset 170")), (0, true), "{stdout}");
    let (code, stdout, _) = log(&["diff", text(&killed), text(&one)]);
    assert_eq!((code, stdout.contains("part at offset 90")), (1, true), "{stdout}");

    // All partitions of two brokers.
    let root = |name: &str| data("three-replicas").join(name);
    let (code, found) = objects(&["diff", text(&root("broker-1")), text(&root("broker-2"))]);
    let last = found.last().unwrap();
    assert_eq!((code, &last["type"], &last["parted"]), (0, &"diff-root".into(), &0.into()), "{found:?}");
    assert_eq!(last["same"].as_u64().unwrap(), found.len() as u64 - 1);
    let (code, stdout, _) = log(&["diff", text(&root("killed-broker-2")), text(&root("broker-1"))]);
    assert_eq!((code, stdout.contains("part at offset 90")), (1, true), "{stdout}");
    let other = data("plain-multi/log");
    let (code, found) = objects(&["diff", text(&other), text(&root("broker-1"))]);
    assert_eq!(
        (code, &found[0]["only_in_b"]),
        (0, &serde_json::json!(["rep-0"])),
        "not each broker has each partition"
    );
    let (code, _, stderr) = log(&["diff", text(&other), text(&one)]);
    assert_eq!((code, stderr.contains("two of a kind")), (2, true), "{stderr}");
}

/// A copy is one that was closed well, also of a log that was not, and is verified; so is a copy of a data directory.
#[test]
fn what_is_copied_is_recovered_and_verified() {
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy, log_copy) =
        (temporary.path().join("root"), temporary.path().join("copy"), temporary.path().join("copy-0"));
    copied(&data("unclean-torn/before"), &root);
    let (code, found) = objects(&["copy", text(&root), text(&copy)]);
    assert_eq!((code, found.len()), (0, 1), "{found:?}");
    assert_eq!((&found[0]["recovered"][0]["cut_bytes"], &found[0]["faults"]), (&179.into(), &0.into()), "{found:?}");
    let (code, stdout, stderr) = log(&["copy", text(&root.join("unclean-0")), text(&log_copy)]);
    assert_eq!((code, stdout.contains("was recovered, 179 bytes cut off")), (0, true), "{stdout}{stderr}");
    for path in [&copy, &log_copy] {
        let (code, stdout, _) = log(&["verify", text(path)]);
        assert_eq!(code, 0, "{stdout}");
    }
    let (_, stdout, _) = log(&["info", text(&copy)]);
    assert!(stdout.lines().any(|line| line.contains("last stop") && line.contains("clean")), "{stdout}");
    let (code, _, stderr) = log(&["copy", text(&root), text(&copy)]);
    assert_eq!((code, stderr.contains("is there already")), (2, true), "{stderr}");
    for (destination, words) in [
        ("root/copy/", "lies in what is to be copied"),
        ("missing/copy/", "missing for the copy to lie in"),
        ("root/unclean-0/..", "is there already"),
    ] {
        let destination = temporary.path().join(destination);
        let (code, _, stderr) = log(&["copy", text(&root), text(&destination)]);
        assert_eq!((code, stderr.contains(words)), (2, true), "{destination:?}: {stderr}");
    }
    let leftover = temporary.path().join("again.tmp");
    fs::create_dir(&leftover).unwrap();
    let (code, _, stderr) = log(&["copy", text(&root), text(&temporary.path().join("again"))]);
    assert_eq!((code, stderr.contains(text(&leftover))), (2, true), "{stderr}");
    // What is damaged is copied as it is, and told.
    let bad = temporary.path().join("bad-0");
    let (code, stdout, _) = log(&["copy", text(&data("clean-flip-active/after/unclean-0")), text(&bad)]);
    assert_eq!((code, stdout.contains("wrong in the copy: loss checksum")), (1, true), "{stdout}");
}

/// On a terminal there is a bar with the speed, of the length of what is read; also where that is one file.
#[test]
fn a_terminal_shows_how_far_it_is_and_how_fast() {
    let program = highwater().unwrap();
    let program = program.get_program().to_str().unwrap().to_owned();
    let on_a_terminal = |command: String| {
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm").env("COLUMNS", "120");
        let output =
            script.output().unwrap_or_else(|error| panic!("`script`, of util-linux, gives a terminal: {error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        text
    };
    let dir = data("plain-multi/log/plain-0");
    let file = dir.join("00000000000000000083.log");
    let whole = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let whole = whole.filter(|path| path.extension() == Some("log".as_ref()));
    let whole: u64 = whole.map(|path| fs::metadata(path).unwrap().len()).sum();
    for (path, bytes) in [(&dir, whole), (&file, fs::metadata(&file).unwrap().len())] {
        let shown = on_a_terminal(format!("{program} log verify {}", text(path)));
        let total = format!("/{:.2} KiB", bytes as f64 / 1024.0);
        for words in [&total, "/s", "GB/s", "all good"] {
            assert!(shown.contains(words), "no {words:?} in {shown:?}");
        }
    }
    // The line of a measurement changes within a round, not only after it.
    let temporary = tempfile::tempdir().unwrap();
    let shown = on_a_terminal(format!("{program} bench log --seconds 4 --dir {}", text(temporary.path())));
    let of_round = |round: u32| shown.matches(&format!("round {round} of 5: ")).count();
    assert!(shown.contains("warming up: ") && of_round(1) > 1 && of_round(5) > 1, "{shown:?}");
}

/// A running broker's directory is read and not judged where it is being written; what would write to it is refused.
#[test]
fn beside_a_running_broker_only_reading_is_allowed() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("data");
    let mut server = Server::start(&root).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    crate::wire::create_topic(&mut client, "shown", 1).unwrap();
    for _ in 0..3 {
        crate::wire::produce(&mut client, "shown", &[b"one", b"two"]).unwrap();
    }
    let dir = root.join("shown-0");
    let pid = server.pid().to_string();
    let (code, stdout, _) = log(&["verify", text(&root)]);
    assert_eq!((code, stdout.contains(&pid)), (0, true), "{stdout}");
    for command in [&["info"][..], &["dump", "--records"]] {
        let (code, stdout, stderr) = log(&[command, &[text(&dir)]].concat());
        assert_eq!(code, 0, "{command:?}\n{stdout}{stderr}");
    }
    let copy = temporary.path().join("copy-0");
    for command in [
        &["repair", text(&root)][..],
        &["repair", "--write", text(&dir)],
        &["rebuild-index", text(&dir)],
        &["truncate", "--to", "2", text(&dir)],
        &["truncate", "--to", "2", "--write", text(&dir)],
        &["copy", text(&dir), text(&copy)],
    ] {
        let (code, _, stderr) = log(command);
        assert_eq!((code, stderr.contains(&pid)), (1, true), "{command:?}: {stderr}");
    }
    let elsewhere = data("plain-multi/log/plain-0");
    let (code, _, stderr) = log(&["copy", text(&elsewhere), text(&root.join("plain-0"))]);
    assert_eq!((code, stderr.contains(&pid)), (1, true), "a copy into its data directory: {stderr}");
    server.stop().unwrap();

    assert_eq!(log(&["copy", text(&dir), text(&copy)]).0, 0);
    let (code, stdout, _) = log(&["truncate", "--to", "5", text(&dir)]);
    let whole = "offsets 4 to 5; the batch that 5 lies in goes as a whole";
    assert_eq!((code, stdout.contains("1 batch ") && stdout.contains(whole)), (0, true), "{stdout}");
    assert_eq!(log(&["truncate", "--to", "4", "--write", text(&dir)]).0, 0);
    let (code, stdout, _) = log(&["verify", text(&root)]);
    assert_eq!((code, stdout.contains("in use")), (0, false), "{stdout}");
    let (code, stdout, _) = log(&["diff", text(&copy), text(&dir)]);
    assert_eq!((code, stdout.contains("B ends at offset 4, A goes on to 6")), (0, true), "{stdout}");
    server.start_again().unwrap();
    let (_, stdout, _) = log(&["info", text(&dir)]);
    assert!(stdout.contains("0 to 4"), "{stdout}");
}
