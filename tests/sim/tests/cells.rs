//! The table "what may be lost when", a test a cell: what the cell names is lost in some run, and nothing else in any.
//!
//! A test that fails names its seed and tells its story; `HIGHWATER_FIRST_SEED` and `HIGHWATER_SEEDS` choose others.

use std::collections::BTreeMap;

use highwater_sim::{Cell, Counts, Failure, ROWS, Row, run_cell, tell_cell};

/// Runs of each cell.
const SEEDS: u64 = 150;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

fn check(cell: Cell) {
    let first = from_environment("HIGHWATER_FIRST_SEED").unwrap_or(0);
    let seeds = from_environment("HIGHWATER_SEEDS").unwrap_or(SEEDS);
    let (mut lost, mut counts) = (BTreeMap::new(), Counts::default());
    for seed in first..first + seeds {
        let outcome = run_cell(seed, cell);
        if let Some(failure) = outcome.failure {
            println!("{}", tell_cell(seed, cell).1);
            panic!("{cell}: seed {seed}: {failure}");
        }
        counts.add(&outcome.counts);
        for (kind, records) in outcome.lost {
            *lost.entry(kind).or_insert(0) += records;
        }
    }
    let failures = match cell.failure {
        Failure::Killed | Failure::LeaderKilled => counts.kills,
        Failure::PowerCut => counts.power_cuts,
        Failure::PowerCutOfAll => counts.power_cuts_of_all,
        Failure::DiskLost => counts.disks_lost,
        Failure::StoreAway => counts.store_down,
        Failure::LeaderPaused => counts.leaders_asleep,
    };
    println!("{cell}: in {seeds} runs {failures} failures, {lost:?} records lost");
    assert!(failures >= seeds, "{cell}: only {failures} failures in {seeds} runs");
    assert_eq!(lost.into_keys().collect::<Vec<_>>(), cell.kinds(), "{cell}: this is lost, and this may be");
}

macro_rules! cells {
    ($($row:ident is $number:literal)+) => {
        $(mod $row {
            use highwater_sim::{Cell, Failure, ROWS};

            cells! { @of $number:
                killed is Killed, leader_killed is LeaderKilled, power_cut_of_one is PowerCut,
                power_cut_of_all is PowerCutOfAll, disk_of_one_lost is DiskLost,
                store_away is StoreAway, leader_paused is LeaderPaused
            }
        })+

        /// The cells that have a test.
        fn tested() -> Vec<Cell> {
            [$($row::tested()),+].concat()
        }
    };
    (@of $number:literal: $($test:ident is $failure:ident),+) => {
        $(#[test]
        fn $test() {
            crate::check(Cell { row: ROWS[$number], failure: Failure::$failure });
        })+

        pub(crate) fn tested() -> Vec<Cell> {
            vec![$(Cell { row: ROWS[$number], failure: Failure::$failure }),+]
        }
    };
}

cells! {
    all_of_two_unsynced is 0
    all_of_two_synced is 1
    all_of_one_unsynced is 2
    all_of_one_synced is 3
    leader_unsynced is 4
    leader_synced is 5
    nothing_asked is 6
}

/// The document, the cells and the tests say the same.
#[test]
fn the_document_has_these_cells() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/replication.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let (_, section) = document.split_once("\n## What may be lost when\n").expect("the section");
    let (section, _) = section.split_once("\n**What of it is simulated.**").expect("the end of the tables");
    let (mut told, mut columns) = (Vec::new(), Vec::new());
    for line in section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")) {
        let (first, cells) = line.split_once(" | ").expect("a first cell");
        let cells = cells.split(" | ");
        match ROWS.iter().find(|row| row.to_string() == first) {
            Some(row) => {
                let cells: Vec<&str> = cells.collect();
                assert_eq!(cells.len(), columns.len(), "{first}");
                let texts = cells.into_iter().zip(&columns).map(|(text, failure)| (cell(*row, *failure), text));
                told.extend(texts);
            }
            None => columns = cells.map(column).collect(),
        }
    }
    for cell in Cell::all() {
        let texts: Vec<&str> = told.iter().filter(|(of, _)| *of == cell).map(|(_, text)| *text).collect();
        assert_eq!(texts, [cell.text()], "{cell}");
    }
    assert_eq!(told.len(), Cell::all().len());
    assert_eq!(tested(), Cell::all());
}

fn cell(row: Row, failure: Failure) -> Cell {
    Cell { row, failure }
}

fn column(title: &str) -> Failure {
    let found = Failure::ALL.into_iter().find(|failure| failure.to_string() == title);
    found.unwrap_or_else(|| panic!("there is no column {title:?}"))
}
