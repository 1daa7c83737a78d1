//! The story of a run: who said what to whom, and what each replica had after it.

use std::fmt::Write as _;

use crate::fault::{BROKERS, CLIENTS, PLACES, Place, STORE};

/// Columns of the chart, from the left.
const ORDER: [Place; PLACES] = [CLIENTS, 0, 1, 2, STORE];
const COLUMN_CHARS: usize = 18;

/// One thing that happened.
#[derive(Debug)]
enum Step {
    Message { from: Place, to: Place, arrives: bool },
    At(Place),
    Everywhere,
}

#[derive(Debug)]
struct Line {
    ms: i64,
    step: Step,
    what: String,
    /// What replicas had after it, where that has changed.
    after: Vec<String>,
    /// Who was running.
    running: [bool; BROKERS],
}

/// What happened, in order.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Vec<Line>,
    glances: [String; BROKERS],
    running: [bool; BROKERS],
}

impl Trace {
    pub(crate) fn message(&mut self, ms: i64, from: Place, to: Place, what: String, arrives: bool) {
        self.add(ms, Step::Message { from, to, arrives }, what);
    }

    pub(crate) fn at(&mut self, ms: i64, place: Place, what: String) {
        self.add(ms, Step::At(place), what);
    }

    pub(crate) fn everywhere(&mut self, ms: i64, what: String) {
        self.add(ms, Step::Everywhere, what);
    }

    fn add(&mut self, ms: i64, step: Step, what: String) {
        self.lines.push(Line { ms, step, what, after: Vec::new(), running: self.running });
    }

    /// A broker has this now.
    pub(crate) fn state(&mut self, broker: usize, glance: String) {
        if self.glances[broker] != glance {
            if let Some(line) = self.lines.last_mut() {
                line.after.push(glance.clone());
            }
            self.glances[broker] = glance;
        }
    }

    pub(crate) fn runs(&mut self, broker: usize, runs: bool) {
        self.running[broker] = runs;
        if !runs {
            self.glances[broker].clear();
        }
    }

    /// The message-sequence chart, as text.
    pub(crate) fn chart(&self) -> String {
        let mut chart = String::new();
        let titles = ORDER.map(|place| match place {
            CLIENTS => "clients".to_owned(),
            STORE => "store".to_owned(),
            broker => format!("broker {}", broker + 1),
        });
        let titles: String = titles.iter().map(|title| format!("{title:^COLUMN_CHARS$}")).collect();
        writeln!(chart, "{:>6} {}", "ms", titles.trim_end()).expect("a string");
        for line in &self.lines {
            let (picture, aside) = line.picture();
            let said = [Some(aside), Some(line.after.join("; "))].into_iter().flatten().filter(|part| !part.is_empty());
            let said = said.collect::<Vec<_>>().join("  ⇒ ");
            writeln!(chart, "{:>6} {picture} {said}", line.ms).expect("a string");
        }
        chart
    }
}

fn column(place: Place) -> usize {
    let at = ORDER.iter().position(|of| *of == place).unwrap_or_default();
    at * COLUMN_CHARS + COLUMN_CHARS / 2
}

impl Line {
    /// The lifelines with what happened on them, and what did not fit in.
    fn picture(&self) -> (String, String) {
        let mut cells = vec![' '; PLACES * COLUMN_CHARS];
        for place in ORDER {
            let runs = self.running.get(place).copied().unwrap_or(true);
            cells[column(place)] = if runs { '│' } else { '·' };
        }
        let mut aside = String::new();
        match self.step {
            Step::Message { from, to, arrives } if from != to => {
                let (start, end) = (column(from), column(to));
                let (left, right) = (start.min(end), start.max(end));
                cells[left + 1..right].fill('─');
                let head = if start < end { end - 1 } else { end + 1 };
                cells[head] = match (arrives, start < end) {
                    (false, _) => '✗',
                    (true, true) => '▶',
                    (true, false) => '◀',
                };
                let label: Vec<char> = format!(" {} ", self.what).chars().collect();
                let room = right - left - 1;
                if label.len() + 4 <= room {
                    let begin = left + 1 + (room - label.len()) / 2;
                    cells[begin..begin + label.len()].copy_from_slice(&label);
                } else {
                    aside.clone_from(&self.what);
                }
            }
            Step::Message { to: place, .. } | Step::At(place) => {
                cells[column(place)] = '●';
                aside.clone_from(&self.what);
            }
            Step::Everywhere => {
                for place in ORDER {
                    cells[column(place)] = '═';
                }
                aside.clone_from(&self.what);
            }
        }
        (cells.into_iter().collect(), aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_who_said_what_to_whom() {
        let mut trace = Trace::default();
        trace.runs(0, true);
        trace.runs(1, true);
        trace.message(3, 1, 0, "fetch".to_owned(), true);
        trace.state(0, "1 leads".to_owned());
        trace.message(4, 0, 1, "too long a label for so short an arrow".to_owned(), false);
        trace.state(0, "1 leads".to_owned());
        trace.at(5, 2, "boots".to_owned());
        let chart = trace.chart();
        let lines: Vec<&str> = chart.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "    ms      clients           broker 1          broker 2          broker 3           store",
                "     3          │                 │◀──── fetch ─────│                 ·                 │         1 leads",
                "     4          │                 │────────────────✗│                 ·                 │         too long a label for so short an arrow",
                "     5          │                 │                 │                 ●                 │         boots",
            ]
        );
    }
}
