//! `docs/{storage,replication,client}-faults.md` name a test for each fault, and `docs/proof.md` one for each claim: they
//! are there, and each fault has one.

use std::fs;
use std::path::Path;

#[test]
fn every_fault_names_tests_that_are_there() {
    for (name, package, least) in [
        ("storage-faults.md", ".", 40),
        ("replication-faults.md", "../replication", 20),
        ("client-faults.md", "../broker", 70),
    ] {
        let (faults, tests) = faults_and_tests(&document(name), package);
        assert!(faults > least && tests > faults, "{name}: {faults} faults, {tests} tests");
    }
}

fn faults_and_tests(table: &str, package: &str) -> (usize, usize) {
    let (mut faults, mut tests) = (0, 0);
    let is_fault = |line: &&str| ["| S", "| R", "| C", "| Q"].iter().any(|kind| line.starts_with(kind));
    for row in table.lines().filter(is_fault) {
        let last = row.trim_end_matches('|').rsplit('|').next().expect("cells");
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            is_a_test(package, name);
            tests += 1;
        }
        faults += 1;
    }
    (faults, tests)
}

#[test]
fn what_is_claimed_names_tests_that_are_there() {
    let proof = document("proof.md");
    let named = proof.split('`').skip(1).step_by(2).filter(|word| word.contains(".rs::"));
    assert!(named.inspect(|name| is_a_test(".", name)).count() > 20);
}

fn document(name: &str) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(document).expect("the document")
}

/// `file::test`, from the directory of a package, which is given from this crate's.
fn is_a_test(package: &str, name: &str) {
    let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("{name} is no file::test"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join(file);
    let source = fs::read_to_string(source).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert!(has_test(&source, test), "{file} has no test {test}");
}

/// Whether the source has a function of this name that is a test, of an asynchronous runtime too, and is not left out.
fn has_test(source: &str, name: &str) -> bool {
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else { return false };
    let above = before.rsplit_once('\n').map_or("", |(above, _)| above);
    let attributes: Vec<&str> =
        above.lines().rev().map(str::trim_start).take_while(|line| line.starts_with("#[")).collect();
    let is = |what: &str| attributes.iter().any(|attribute| attribute.starts_with(what));
    (is("#[test]") || is("#[tokio::test")) && !is("#[ignore")
}
