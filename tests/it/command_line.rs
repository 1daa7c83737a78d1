//! What the program says and how it exits when it is asked for something that cannot be.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use highwater_tests::{Allocator, Server, run};

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

/// The full disk is a small file system, mounted where only this one process sees it. Needs root, or user namespaces.
#[test]
fn a_full_data_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let as_root: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    // What is there fills it to the last byte.
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" && ! head -c 1M /dev/zero 2>/dev/null >\"$1/fill\" && \
                  exec \"$2\" serve --listen 127.0.0.1:0 --data-dir \"$1/data\"";
    let binary = highwater_tests::binary(Allocator::Jemalloc).unwrap();
    let outcome = Command::new("unshare")
        .args(as_root)
        .args(["--mount", "sh", "-c", script, "full-disk", text(directory.path()), text(&binary)])
        .output()
        .expect("unshare (util-linux) runs");
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1), "{stderr}");
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
fn a_cluster_that_cannot_be_joined_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let arguments =
        ["serve", "--listen", "127.0.0.1:0", "--data-dir", text(&data), "--set", "zookeeper.connect=127.0.0.1:1/x"];
    refused(&arguments, 1, &["zookeeper.connect", "set broker.id"]);
    let as_broker: Vec<&str> = arguments.into_iter().chain(["--broker-id", "7"]).collect();
    let in_haste: Vec<&str> =
        as_broker.iter().copied().chain(["--set", "zookeeper.connection.timeout.ms=300"]).collect();
    refused(&in_haste, 1, &["cannot reach ZooKeeper at 127.0.0.1:1:", "check zookeeper.connect"]);
    // A broker that was a cluster of its own takes its topics nowhere.
    let own = directory.path().join("own");
    let mut server = Server::start(&own).unwrap();
    server.stop().unwrap();
    let elsewhere: Vec<&str> =
        in_haste.iter().map(|word| if *word == text(&data) { text(&own) } else { *word }).collect();
    let elsewhere: Vec<&str> = elsewhere.into_iter().map(|word| if word == "7" { "1" } else { word }).collect();
    refused(&elsewhere, 1, &[text(&own), "a coordination store of its own"]);
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

#[test]
fn settings_of_a_topic_are_changed_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data")).unwrap();
    let mut client = highwater_tests::Client::connect(server.address()).unwrap();
    crate::wire::create_topic(&mut client, "shown", 1).unwrap();
    let address = server.address().to_string();
    let shown = |changes: &[&str]| -> Vec<Vec<String>> {
        let (code, stdout, stderr) = run(&[&["topics", "--bootstrap", &address, "shown"], changes].concat()).unwrap();
        assert_eq!(code, 0, "{stderr}");
        let settings = stdout.lines().skip_while(|line| !line.contains("SETTING")).skip(1);
        settings.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    assert_eq!(shown(&[]), [[""; 0]; 0], "it has none of its own");
    let changed = shown(&["--alter", "--add-config", "retention.ms=-1,cleanup.policy=[compact,delete]"]);
    assert_eq!(changed, [["shown", "cleanup.policy", "compact,delete"], ["shown", "retention.ms", "-1"]]);
    let changed = shown(&["--alter", "--add-config", "retention.ms=5000", "--delete-config", "cleanup.policy"]);
    assert_eq!(changed, [["shown", "retention.ms", "5000"]]);
    assert_eq!(shown(&[]), changed);
    let topics = ["topics", "--bootstrap", &address];
    let refused_of = |arguments: &[&str], code: i32, says: &[&str]| refused(&[&topics, arguments].concat(), code, says);
    refused_of(&["shown", "--alter", "--add-config", "retention.ms=long"], 1, &["topic shown", "INVALID_CONFIG"]);
    refused_of(&["shown", "--alter", "--add-config", "retention.ms"], 1, &["KEY=VALUE"]);
    refused_of(&["none", "--alter", "--add-config", "retention.ms=1"], 1, &["none", "UNKNOWN_TOPIC_OR_PARTITION"]);
    refused_of(&["shown", "--alter"], 1, &["nothing is to be changed", "--add-config"]);
    refused_of(&["--alter", "--add-config", "retention.ms=1"], 2, &["TOPIC"]);
    refused_of(&["shown", "--add-config", "retention.ms=1"], 2, &["--alter"]);
    assert_eq!(shown(&[]), changed, "what was refused changed nothing");
}
