//! The command that attacks a cluster of its own, with every kind of fault.

use std::fs;

use highwater_tests::highwater;
use serde_json::Value;

const FAULTS: [&str; 7] = ["kill", "pause", "store", "directory", "rolling", "cut", "disk"];

#[test]
fn an_attack_with_every_kind_of_fault_breaks_no_promise() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("figures.json");
    let mut command = highwater().unwrap();
    command.args(["attack", "--seed", "5", "--minutes", "1.5", "--faults", &FAULTS.join(","), "--json"]).arg(&file);
    let output = command.output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let figures = fs::read(&file).expect("there is a verdict; without one the command says above what it lacks");
    let figures: Value = serde_json::from_slice(&figures).unwrap();
    let count = |figure: &Value| figure.as_u64().unwrap_or_default();
    for broken in ["lost", "duplicated", "reordered", "changed", "skipped"] {
        assert_eq!(figures[broken], 0, "{broken}");
    }
    assert!(output.status.success() && figures["good"] == true, "{}", figures["problems"]);
    // Far less than what was asked for: nobody can acknowledge while the store and a leader are away.
    let acknowledged = count(&figures["acknowledged"]);
    assert!(acknowledged > 5_000, "{acknowledged} records acknowledged");
    for fault in FAULTS {
        assert!(count(&figures["faults"][fault]) > 0, "{fault} did not happen: {}", figures["faults"]);
    }
}
