//! The cases of the data set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::{File, Fs, OpenMode, OsFs};
use serde_json::Value;

/// All there are; a new one is added here.
pub(crate) const CASES: [&str; 21] = [
    "clean-damaged-files",
    "clean-flip-active",
    "codecs",
    "compacted",
    "deleted-prefix",
    "deleted-prefix-pending",
    "idempotent",
    "idempotent-reopened",
    "leader-epochs",
    "log-append-time",
    "old-formats",
    "plain-multi",
    "three-replicas",
    "transactional",
    "transactional-v1",
    "unclean",
    "unclean-flip-active",
    "unclean-flip-epoch",
    "unclean-flip-sealed",
    "unclean-flip-unflushed",
    "unclean-torn",
];

/// One directory of a partition, as a broker left it.
pub(crate) struct Partition {
    /// Case, folder and name, for messages.
    pub(crate) id: String,
    pub(crate) case: &'static str,
    pub(crate) folder: String,
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) expected: Value,
}

/// One of its segments.
pub(crate) struct Segment {
    pub(crate) base: i64,
    pub(crate) log: Vec<u8>,
    pub(crate) expected: Value,
}

/// One log root, as a broker left it.
pub(crate) struct Root {
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
    pub(crate) expected: Value,
    pub(crate) partitions: Vec<Partition>,
}

impl Partition {
    pub(crate) fn path(&self, base: i64, extension: &str) -> PathBuf {
        self.dir.join(format!("{base:020}.{extension}"))
    }

    pub(crate) fn open(&self, base: i64, extension: &str) -> Arc<dyn File> {
        OsFs.open(&self.path(base, extension), OpenMode::Read).expect("the file")
    }

    pub(crate) fn read(&self, base: i64, extension: &str) -> Vec<u8> {
        let path = self.path(base, extension);
        fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
    }

    pub(crate) fn segments(&self) -> Vec<Segment> {
        let rows = self.expected["segments"].as_array().expect("segments");
        let segment = |row: &Value| {
            let base = row["base_offset"].as_i64().expect("a base offset");
            Segment { base, log: self.read(base, "log"), expected: row.clone() }
        };
        rows.iter().map(segment).collect()
    }

    pub(crate) fn log(&self) -> Vec<u8> {
        self.segments().into_iter().flat_map(|segment| segment.log).collect()
    }

    pub(crate) fn number(&self, field: &str) -> i64 {
        self.expected[field].as_i64().unwrap_or_else(|| panic!("{}: no {field}", self.id))
    }

    /// A broker stopped it cleanly, and nobody damaged it.
    pub(crate) fn is_sound(&self) -> bool {
        !(self.case.contains("flip") || self.case.contains("damaged") || self.folder == "before")
    }
}

/// The roots of a case, in the order of their names.
pub(crate) fn roots(case: &'static str) -> Vec<Root> {
    let case_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(case);
    let text = fs::read_to_string(case_dir.join("expected.json")).expect("expected.json");
    let mut expected: Value = serde_json::from_str(&text).expect("JSON");
    let Value::Object(folders) = expected["dirs"].take() else { panic!("{case}: no folders") };
    let root = |(folder, mut expected): (String, Value)| {
        let dir = case_dir.join(&folder);
        let Value::Object(partitions) = expected["partitions"].take() else { panic!("{case}/{folder}: no partitions") };
        let partition = |(name, expected): (String, Value)| Partition {
            id: format!("{case}/{folder}/{name}"),
            case,
            folder: folder.clone(),
            dir: dir.join(&name),
            name,
            expected,
        };
        let partitions = partitions.into_iter().map(partition).collect();
        Root { id: format!("{case}/{folder}"), dir: dir.clone(), expected: expected["root"].take(), partitions }
    };
    folders.into_iter().map(root).collect()
}

/// The partitions of some cases, in all states.
pub(crate) fn partitions(cases: &[&'static str]) -> Vec<Partition> {
    let found: Vec<_> = cases.iter().flat_map(|case| roots(case)).flat_map(|root| root.partitions).collect();
    assert!(!found.is_empty());
    found
}

/// Copies the files of a directory into another, which is made if need be; folders in it are left out.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("the directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}

#[test]
fn every_case_there_is_is_tested() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found: Vec<String> = fs::read_dir(data)
        .expect("the data")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("UTF-8"))
        .collect();
    found.sort();
    assert_eq!(found, CASES);
    for root in CASES.iter().flat_map(|case| roots(case)) {
        let mut folders: Vec<String> = fs::read_dir(&root.dir)
            .expect("the root")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().into_string().expect("UTF-8"))
            .collect();
        folders.sort();
        let names: Vec<_> = root.partitions.iter().map(|partition| partition.name.clone()).collect();
        assert_eq!(folders, names, "{}", root.id);
        assert!(root.expected.is_object(), "{}", root.id);
    }
}
