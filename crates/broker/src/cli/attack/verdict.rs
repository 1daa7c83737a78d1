//! Whether the cluster kept its promises, in figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use highwater_checker::{Event, Kind as Broken, check};
use serde_json::json;

use super::faults::Kind;
use super::load::Board;
use super::pipeline::Copied;

/// How many broken promises are told of each partition.
const TOLD_MAX: usize = 5;

/// What an attack showed.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) seed: u64,
    pub(super) lasted: Duration,
    pub(super) faults: BTreeMap<Kind, u64>,
    pub(super) acknowledged: u64,
    pub(super) read_back: u64,
    pub(super) unknown: u64,
    pub(super) refused: u64,
    /// How many promises of each kind were broken.
    pub(super) broken: BTreeMap<Broken, u64>,
    pub(super) longest_gap: Duration,
    /// Of each kill of a leader, how long it took until all it had led was acknowledged again.
    pub(super) kills: Vec<Duration>,
    /// Why producers went on under another number, and how often.
    pub(super) new_producers: BTreeMap<String, u64>,
    /// What the program did that copies exactly once.
    pub(super) copied: Copied,
    /// The broken promises, and all else that must not be, for people.
    pub(super) problems: Vec<String>,
}

impl Verdict {
    /// Checks what the clients of a partition saw. `end` is where it ends, if it could be read back.
    pub(super) fn take(&mut self, board: &Board, end: Option<i64>) {
        let seen = &mut *board.seen();
        self.acknowledged += seen.acknowledged;
        self.read_back += end.map_or(0, i64::unsigned_abs);
        self.unknown += seen.unknown;
        self.refused += seen.refused;
        self.longest_gap = self.longest_gap.max(seen.longest_gap);
        for why in seen.new_producers.drain(..) {
            *self.new_producers.entry(why).or_default() += 1;
        }
        self.problems.append(&mut seen.oddities);
        let mut anomalies = check(&seen.history);
        if end.is_none() {
            // Who has read nothing back does not know what is lost.
            anomalies.retain(|anomaly| anomaly.kind != Broken::Lost);
        }
        for (number, anomaly) in anomalies.iter().enumerate() {
            *self.broken.entry(anomaly.kind).or_default() += 1;
            if number < TOLD_MAX {
                self.problems.push(format!("partition {}: {}", board.partition, anomaly.explain(&seen.history)));
            }
        }
        if let Some(more @ 1..) = anomalies.len().checked_sub(TOLD_MAX) {
            self.problems.push(format!("partition {}: and {more} more", board.partition));
        }
    }

    /// How many promises of this kind were broken.
    fn broken(&self, kind: Broken) -> u64 {
        self.broken.get(&kind).copied().unwrap_or(0)
    }

    /// Whether all promises were kept, and something was promised.
    pub(super) fn is_good(&self) -> bool {
        self.problems.is_empty() && self.broken.is_empty() && self.acknowledged > 0 && self.copied.records > 0
    }

    fn median_kill(&self) -> Option<Duration> {
        let mut kills = self.kills.clone();
        kills.sort_unstable();
        kills.get(kills.len() / 2).copied()
    }

    /// The table.
    pub(super) fn table(&self) -> String {
        let counted = |counts: Vec<(&str, u64)>| {
            let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
        };
        let millis = |time: Option<Duration>| time.map_or_else(|| "?".to_owned(), |time| time.as_millis().to_string());
        let rows = [
            ("seed", format!("{}, {} s", self.seed, self.lasted.as_secs())),
            ("faults", counted(self.faults.iter().map(|(kind, count)| (kind.name(), *count)).collect())),
            ("acknowledged", format!("{} records", self.acknowledged)),
            ("read back", format!("{} records", self.read_back)),
            ("not known", format!("{} records without an answer, {} refused", self.unknown, self.refused)),
            ("lost", self.broken(Broken::Lost).to_string()),
            ("duplicated", self.broken(Broken::Duplicate).to_string()),
            ("reordered", self.broken(Broken::Reordered).to_string()),
            ("changed", self.broken(Broken::Changed).to_string()),
            (
                "also wrong",
                counted(vec![
                    ("skipped", self.broken(Broken::Gap)),
                    ("unexpected", self.broken(Broken::Unexpected)),
                    ("read twice", self.broken(Broken::NonMonotonic)),
                    ("high watermark back", self.broken(Broken::HighWatermarkBack)),
                ]),
            ),
            ("longest pause", format!("{} ms without an acknowledgement in a partition", self.longest_gap.as_millis())),
            (
                "killed leaders",
                format!(
                    "{}; first acknowledgement of others after {} ms (median), {} ms (worst)",
                    self.kills.len(),
                    millis(self.median_kill()),
                    millis(self.kills.iter().max().copied())
                ),
            ),
            (
                "copied",
                format!(
                    "{} records exactly once in {} transactions; {} aborted, {} lives",
                    self.copied.records, self.copied.committed, self.copied.aborted, self.copied.lives
                ),
            ),
            ("new producers", counted(self.new_producers.iter().map(|(why, count)| (why.as_str(), *count)).collect())),
        ];
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<15} {value}");
        }
        for problem in &self.problems {
            let _ = writeln!(text, "  broken          {problem}");
        }
        let verdict = if self.is_good() { "every promise was kept" } else { "PROMISES WERE BROKEN" };
        let _ = writeln!(text, "  verdict         {verdict}");
        text
    }

    /// The same for machines.
    pub(super) fn json(&self) -> serde_json::Value {
        let faults: BTreeMap<&str, u64> = self.faults.iter().map(|(kind, count)| (kind.name(), *count)).collect();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        json!({
            "good": self.is_good(),
            "seed": self.seed,
            "seconds": self.lasted.as_secs(),
            "faults": faults,
            "acknowledged": self.acknowledged,
            "read_back": self.read_back,
            "unknown": self.unknown,
            "refused": self.refused,
            "lost": self.broken(Broken::Lost),
            "duplicated": self.broken(Broken::Duplicate),
            "reordered": self.broken(Broken::Reordered),
            "changed": self.broken(Broken::Changed),
            "skipped": self.broken(Broken::Gap),
            "unexpected": self.broken(Broken::Unexpected),
            "read_twice": self.broken(Broken::NonMonotonic),
            "high_watermark_back": self.broken(Broken::HighWatermarkBack),
            "longest_pause_ms": millis(self.longest_gap),
            "first_acknowledgements_after_kill_ms": self.kills.iter().copied().map(millis).collect::<Vec<u64>>(),
            "median_after_kill_ms": self.median_kill().map(millis),
            "worst_after_kill_ms": self.kills.iter().max().copied().map(millis),
            "copied": self.copied.records,
            "transactions_committed": self.copied.committed,
            "transactions_aborted": self.copied.aborted,
            "copier_lives": self.copied.lives,
            "new_producers": self.new_producers,
            "problems": self.problems,
        })
    }
}

/// Writes a partition's history as lines, the way the checker numbers them.
pub(super) fn write_history(history: &[Event], file: &Path) -> anyhow::Result<()> {
    let mut text = String::new();
    for (number, event) in history.iter().enumerate() {
        let _ = writeln!(text, "{number} {event}");
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Verdict {
        Verdict { acknowledged: 1, copied: Copied { records: 1, ..Copied::default() }, ..Verdict::default() }
    }

    #[test]
    fn a_verdict_needs_acknowledgements_a_copy_and_no_problem() {
        let mut verdict = good();
        assert!(verdict.is_good() && verdict.table().contains("every promise was kept"));
        verdict.broken.insert(Broken::Lost, 1);
        assert!(!verdict.is_good() && verdict.table().contains("PROMISES WERE BROKEN"));
        assert_eq!(verdict.json()["lost"], 1);
        assert!(!Verdict::default().is_good());
        assert!(!Verdict { copied: Copied::default(), ..good() }.is_good());
        let problem = Verdict { problems: vec!["a broker fell".to_owned()], ..good() };
        assert!(!problem.is_good() && problem.table().contains("a broker fell"));
    }

    #[test]
    fn kills_are_told_by_median_and_worst() {
        let kills = [30, 10, 20].map(Duration::from_millis).to_vec();
        let verdict = Verdict { kills, ..Verdict::default() };
        assert!(verdict.table().contains("3; first acknowledgement of others after 20 ms (median), 30 ms (worst)"));
        assert_eq!(verdict.json()["worst_after_kill_ms"], 30);
    }
}
