//! What the program says and how it exits when it is asked for something that cannot be.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use highwater_tests::{Server, run};

/// Runs the program; it must end with this code and say each of these words on standard error.
#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let (found, stdout, stderr) = run(arguments).unwrap();
    assert_eq!(found, code, "{arguments:?}\n{stdout}\n{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{arguments:?} does not say {word:?} but\n{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{arguments:?}\n{stderr}");
    assert!(stderr.matches("os error").count() <= 1, "{arguments:?} says its cause twice:\n{stderr}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

#[test]
fn nonsense_on_the_command_line_is_a_usage_error() {
    refused(&["serve", "--no-such-option"], 2, &["--no-such-option", "Usage"]);
    refused(&["no-such-command"], 2, &["no-such-command"]);
    refused(&["serve", "--broker-id", "many"], 2, &["many"]);
    refused(&["demo", "--records", "-1"], 2, &["-1"]);
}

#[test]
fn help_and_version_are_no_errors() {
    let (code, stdout, _) = run(&["--help"]).unwrap();
    assert_eq!(code, 0);
    for command in ["serve", "demo", "topics"] {
        assert!(stdout.contains(command), "{stdout}");
    }
    let (code, stdout, _) = run(&["--version"]).unwrap();
    assert_eq!((code, stdout.trim()), (0, concat!("highwater ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_port_in_use_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["serve", "--listen", &address, "--data-dir", text(directory.path())], 1, &[&address, "in use"]);
}

#[test]
fn a_directory_in_use_by_another_broker_names_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data).unwrap();
    let pid = server.pid().to_string();
    refused(&["serve", "--listen", "127.0.0.1:0", "--data-dir", text(&data)], 1, &[text(&data), &pid]);
}

#[test]
fn a_directory_locked_as_java_locks_it_names_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let lock = fs::File::create(directory.path().join(".lock")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let pid = std::process::id().to_string();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", text(directory.path())];
    refused(&arguments, 1, &[text(directory.path()), &pid]);
}

#[test]
fn a_data_directory_that_is_a_file_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    refused(&["serve", "--listen", "127.0.0.1:0", "--data-dir", text(file.path())], 1, &[text(file.path())]);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    // Not even root can make a directory there.
    refused(&["serve", "--listen", "127.0.0.1:0", "--data-dir", "/proc/no-such"], 1, &["/proc/no-such"]);
}

/// Needs to mount a file system; where that is not allowed it says so and holds nothing.
#[test]
fn a_full_data_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = |command: &str, arguments: &[&str]| {
        let sudo = if rustix::process::geteuid().is_root() { &[][..] } else { &["sudo", "-n"] };
        let words = [sudo, &[command], arguments, &[text(&small)]].concat();
        Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success())
    };
    if !mount("mount", &["-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs"]) {
        println!("not run: this user may not mount a file system");
        return;
    }
    // What is there fills it to the last byte.
    let filled = fs::write(small.join("fill"), vec![1; 1 << 20]);
    let data = small.join("data");
    let outcome = run(&["serve", "--listen", "127.0.0.1:0", "--data-dir", text(&data)]);
    assert!(mount("umount", &[]), "{} stays mounted", small.display());
    assert!(filled.is_err(), "a file of 1 MiB fits into 64 KiB");
    let (code, _, stderr) = outcome.unwrap();
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains(text(&data)) && stderr.contains("No space left"), "{stderr}");
}

#[test]
fn a_key_that_kafka_does_not_have_is_named_with_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let properties = directory.path().join("server.properties");
    fs::write(&properties, "# a comment\nnum.partitions=1\n\nlog.segment.byte=1048576\n").unwrap();
    let file = text(&properties);
    let data = directory.path().join("data");
    // The nearest name that there is comes with it.
    refused(
        &["serve", file, "--listen", "127.0.0.1:0", "--data-dir", text(&data)],
        1,
        &[file, "line 4", "\"log.segment.byte\"", "log.segment.bytes"],
    );
    assert!(!data.exists(), "a broker that was not started has made its data directory");

    fs::write(&properties, "num.partitions=some\n").unwrap();
    let arguments = ["serve", file, "--listen", "127.0.0.1:0", "--data-dir", text(&data)];
    refused(&arguments, 1, &[file, "line 1", "num.partitions"]);
    let arguments = ["serve", "--set", "no.such.key=1", "--listen", "127.0.0.1:0", "--data-dir", text(&data)];
    refused(&arguments, 1, &["no.such.key"]);
}

#[test]
fn a_configuration_file_that_is_not_there_is_named() {
    refused(&["serve", "/no/such/server.properties"], 1, &["/no/such/server.properties"]);
}

#[test]
fn a_demo_without_input_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    refused(&["demo", "--input", text(&missing)], 1, &[text(&missing)]);
    let empty = directory.path().join("empty");
    fs::write(&empty, "").unwrap();
    refused(&["demo", "--input", text(&empty)], 1, &[text(&empty), "empty"]);
}

#[test]
fn topics_of_a_broker_that_is_not_there_says_so() {
    // The port was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    refused(&["topics", "--bootstrap", &address], 1, &[&address]);
}

#[test]
fn topics_shows_where_each_partition_stands() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data")).unwrap();
    let mut client = highwater_tests::Client::connect(server.address()).unwrap();
    crate::wire::create_topic(&mut client, "shown", 2).unwrap();
    for _ in 0..3 {
        crate::wire::produce(&mut client, "shown", &[b"one", b"two"]).unwrap();
    }
    let (code, stdout, stderr) = run(&["topics", "--bootstrap", &server.address().to_string()]).unwrap();
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = rows.iter().find(|row| row.contains(&"shown") && row.contains(&"6"));
    assert!(
        row.is_some_and(|row| row.iter().filter(|cell| **cell == "6").count() >= 2),
        "no HW and LEO of 6:\n{stdout}"
    );
    assert!(rows.iter().filter(|row| row.contains(&"shown")).count() >= 2, "no row for each partition:\n{stdout}");
}
