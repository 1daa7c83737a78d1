//! `docs/storage-faults.md` names a test for each fault: they are there, and each fault has one.

use std::fs;
use std::path::Path;

#[test]
fn every_fault_names_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("../../docs/storage-faults.md")).expect("the table");
    let (mut faults, mut tests) = (0, 0);
    for row in table.lines().filter(|line| line.starts_with("| S")) {
        let last = row.trim_end_matches('|').rsplit('|').next().expect("cells");
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("{name} is no file::test"));
            let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let has_it = source.split("#[test]").skip(1).any(|behind| behind.contains(&format!("fn {test}(")));
            assert!(has_it, "{file} has no test {test}");
            tests += 1;
        }
        faults += 1;
    }
    assert!(faults > 40 && tests > faults, "{faults} faults, {tests} tests");
}
