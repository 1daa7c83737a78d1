//! Rules that no lint can say: which crate may know what, what lies where, how long a file may be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that open sockets or bring an executor. None of them may be under the log or the state machine.
const NETWORK_CRATES: &[&str] =
    &["tokio", "mio", "socket2", "hyper", "rustls", "async-std", "smol", "kafka-protocol", "futures-util", "quinn"];

/// What a file may have at most; about 500 lines are comfortable.
const LINES_MAX: usize = 900;

/// The one file that may hold `unsafe`: it maps index files.
const UNSAFE_FILE: &str = "crates/storage/src/index/map.rs";

/// What the log is built from on Linux without features, beside itself: few enough to be read by those who embed it.
const STORAGE_CRATES: &[&str] = &[
    "bitflags",
    "byteorder",
    "cfg-if",
    "crc32c",
    "crc32fast",
    "fs2",
    "libc",
    "linux-raw-sys",
    "memmap2",
    "proc-macro2",
    "quote",
    "rustc_version",
    "rustix",
    "semver",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
];

/// What the feature `compression` adds.
const COMPRESSION_CRATES: &[&str] = &[
    "adler2",
    "cc",
    "find-msvc-tools",
    "flate2",
    "jobserver",
    "lz4_flex",
    "miniz_oxide",
    "pkg-config",
    "shlex",
    "simd-adler32",
    "snap",
    "twox-hash",
    "zstd",
    "zstd-safe",
    "zstd-sys",
];

/// Words that only one operating system understands, or one family of them.
const SYSTEM_WORDS: &[&str] = &["std::os::", "rustix", "libc", "/proc/", "target_os", "target_vendor", "cfg(unix"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).current_dir(root()).args(arguments).output().expect("it can be run");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints UTF-8")
}

/// The files that are or would be committed.
fn files() -> Vec<String> {
    let listed = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"]);
    let mut files: Vec<String> = listed.lines().map(str::to_owned).filter(|file| root().join(file).is_file()).collect();
    files.sort();
    files
}

/// The names of all crates that a package is built from.
fn dependencies(package: &str) -> Vec<String> {
    let tree = output(
        env!("CARGO"),
        &["tree", "--locked", "--package", package, "--edges", "normal,build", "--target", "all", "--prefix", "none"],
    );
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_log_and_the_state_machine_know_no_network() {
    for package in ["highwater-storage", "highwater-replication", "highwater-groups"] {
        let dependencies = dependencies(package);
        assert!(dependencies.len() > 5, "cargo tree says little: {dependencies:?}");
        for forbidden in NETWORK_CRATES {
            assert!(!dependencies.iter().any(|name| name == forbidden), "{package} is built from {forbidden}");
        }
    }
    // The check itself: the broker is built from what is forbidden to the others.
    assert!(dependencies("highwater-broker").iter().any(|name| name == "tokio"));
}

#[test]
fn the_log_is_built_from_these_crates_and_no_others() {
    let built_from = |features: &[&str]| {
        let package = ["tree", "--locked", "--package", "highwater-storage", "--edges", "normal,build"];
        let form = ["--prefix", "none", "--target", "x86_64-unknown-linux-gnu"];
        let tree = output(env!("CARGO"), &[&package[..], &form[..], features].concat());
        let mut names: Vec<String> = tree.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect();
        names.sort();
        names.dedup();
        names.retain(|name| name != "highwater-storage");
        names
    };
    assert_eq!(built_from(&[]), STORAGE_CRATES, "a new dependency needs a reason, and a line in the crate's README");
    let mut with_compression = [STORAGE_CRATES, COMPRESSION_CRATES].concat();
    with_compression.sort();
    assert_eq!(built_from(&["--features", "compression"]), with_compression);
    let readme = fs::read_to_string(root().join("crates/storage/README.md")).expect("it can be read");
    for count in [STORAGE_CRATES.len(), with_compression.len()] {
        assert!(readme.contains(&format!("{count} crates")), "the README does not count {count} crates");
    }
    for name in STORAGE_CRATES.iter().chain(COMPRESSION_CRATES) {
        assert!(readme.contains(name), "the README does not name {name}");
    }
}

#[test]
fn what_is_particular_to_an_operating_system_lies_in_one_place() {
    let mut found = 0;
    for file in files().iter().filter(|file| file.starts_with("crates/storage/src/") && file.ends_with(".rs")) {
        let text = fs::read_to_string(root().join(file)).expect("it can be read");
        // Tests run where they are developed; documentation may talk of systems.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let particular = code.filter(|line| SYSTEM_WORDS.iter().any(|word| line.contains(word))).count();
        if file.starts_with("crates/storage/src/fs/os") {
            found += particular;
        } else if !file.ends_with("/tests.rs") {
            assert_eq!(particular, 0, "{file}");
        }
    }
    assert!(found > 10, "the words are in the place they are meant for");
}

/// Whoever embeds the log is not to depend on the versions of what it is made of.
#[test]
fn the_logs_interface_names_types_of_its_own_and_std_only() {
    let foreign: Vec<String> =
        STORAGE_CRATES.iter().chain(COMPRESSION_CRATES).map(|name| format!("{}::", name.replace('-', "_"))).collect();
    let mut items = 0;
    for file in files().iter().filter(|file| file.starts_with("crates/storage/src/") && file.ends_with(".rs")) {
        let text = fs::read_to_string(root().join(file)).expect("it can be read");
        // Names that stand for a type of another crate in this file.
        let imports = text.lines().filter_map(|line| line.strip_prefix("use ")?.strip_suffix(';'));
        let imported: Vec<&str> = imports
            .filter(|import| foreign.iter().any(|name| import.starts_with(name)))
            .flat_map(|import| import.rsplit("::").next().unwrap_or_default().split([',', '{', '}', ' ']))
            .filter(|name| !name.is_empty() && *name != "_")
            .collect();
        for (at, _) in text.match_indices("pub ").filter(|(at, _)| text[..*at].trim_end_matches(' ').ends_with('\n')) {
            let rest = &text[at..];
            let item = rest[..rest.find(['{', ';', '=']).unwrap_or(rest.len())].split("\n}").next().unwrap_or_default();
            let is_code = |line: &&str| !line.trim_start().starts_with("#[") && !line.trim_start().starts_with("//");
            let item: String = item.lines().filter(is_code).flat_map(|line| [line, "\n"]).collect();
            items += 1;
            let mut words = item.split(|character: char| !character.is_alphanumeric() && character != '_');
            assert!(!foreign.iter().any(|name| item.contains(name)), "{file}: {item}");
            assert!(!words.any(|word| imported.contains(&word)), "{file}: {item}");
        }
    }
    assert!(items > 300, "{items} public items were looked at");
}

#[test]
fn arrows_only_go_down() {
    let ours = |package| {
        let mut names = dependencies(package);
        names.retain(|name| name.starts_with("highwater-") && name != package);
        names.sort();
        names.dedup();
        names
    };
    assert_eq!(ours("highwater-storage"), [""; 0]);
    assert_eq!(ours("highwater-replication"), ["highwater-storage"]);
    assert_eq!(ours("highwater-groups"), [""; 0]);
    assert_eq!(ours("highwater-checker"), [""; 0]);
    assert_eq!(ours("highwater-testbed"), [""; 0]);
    assert_eq!(
        ours("highwater-broker"),
        ["highwater-checker", "highwater-groups", "highwater-replication", "highwater-storage", "highwater-testbed"]
    );
}

#[test]
fn the_top_level_is_what_the_readme_shows() {
    let mut found: Vec<String> =
        files().iter().map(|file| file.split('/').next().unwrap_or_default().to_owned()).collect();
    found.dedup();
    let expected = [
        ".cargo",
        ".ci",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "benches",
        "crates",
        "docs",
        "fuzz",
        "rust-toolchain.toml",
        "rustfmt.toml",
        "tests",
        "xtask",
    ];
    assert_eq!(found, expected);
    let mut crates: Vec<String> = files()
        .iter()
        .filter_map(|file| file.strip_prefix("crates/"))
        .map(|file| file.split('/').next().unwrap_or_default().to_owned())
        .collect();
    crates.dedup();
    assert_eq!(crates, ["broker", "checker", "groups", "replication", "storage", "testbed"]);
}

#[test]
fn the_documents_that_the_readme_names_are_there() {
    for file in files().iter().filter(|file| file.ends_with(".md")) {
        let directory = root().join(file);
        let directory = directory.parent().expect("a file lies in a directory");
        let text = fs::read_to_string(root().join(file)).expect("it can be read");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") {
                assert!(directory.join(path).exists(), "{file} links to {link}, which is not there");
            }
        }
    }
}

#[test]
fn sources_are_short_and_finished() {
    // Spelled apart, so that this file does not find itself.
    let unfinished = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    for file in files().iter().filter(|file| file.ends_with(".rs") || file.ends_with(".py")) {
        let text = fs::read_to_string(root().join(file)).expect("it can be read");
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{file} has {lines} lines, more than {LINES_MAX}");
        for (number, line) in text.lines().enumerate() {
            for word in &unfinished {
                let words = || line.split(|character: char| !character.is_alphanumeric());
                assert!(!words().any(|found| found == word), "{file}:{}: {word}", number + 1);
            }
        }
    }
}

#[test]
fn unsafe_code_stays_where_it_is_expected() {
    // Spelled apart, so that this file does not find itself.
    let words = ["{", "fn", "impl", "trait", "extern"].map(|what| ["unsafe", what].join(" "));
    let mut found = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".rs")) {
        let text = fs::read_to_string(root().join(file)).expect("it can be read");
        let holds = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            words.iter().any(|word| code.contains(word) && !code.contains('"'))
        });
        if holds {
            found.push(file.clone());
        }
    }
    assert_eq!(found, [UNSAFE_FILE]);
}

#[test]
fn versions_are_written_once_in_the_root() {
    for manifest in files().iter().filter(|file| file.ends_with("/Cargo.toml")) {
        let text = fs::read_to_string(root().join(manifest)).expect("it can be read");
        if text.lines().any(|line| line == "[workspace]") {
            continue; // A root of its own: the fuzz targets, the comparison with other crates.
        }
        let mut table = "";
        for line in text.lines() {
            if line.starts_with('[') {
                table = line;
            } else if table.contains("dependencies") && line.contains('=') {
                let inherits = line.contains("workspace = true") || line.contains(".workspace=true");
                assert!(inherits, "{manifest}: {line}: the version belongs in the root's [workspace.dependencies]");
            }
        }
        assert!(text.contains("[lints]\nworkspace = true"), "{manifest} does not take the workspace's lints");
    }
}
