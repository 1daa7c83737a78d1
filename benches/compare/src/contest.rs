//! Contenders in one row of the table, turn by turn, so that a slow moment of the machine hits all of them.

use std::time::Duration;

use highwater_benches::{Subject, measure};

/// Turns of each contender; odd, so that the median is one of them. Many short ones: on a busy machine the pairs are to be
/// measured close to each other.
const TURNS: usize = 21;

/// About how long one turn takes.
const TURN: Duration = Duration::from_millis(50);

/// What a row's figures are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    /// Megabytes a second.
    Bytes,
    /// Rounds a second, of so many operations each.
    Operations(f64),
}

/// One row: a baseline and those that are held against it.
pub(crate) struct Row {
    name: &'static str,
    unit: Unit,
    contenders: Vec<(&'static str, Box<dyn Subject>)>,
}

impl Row {
    /// A row with its baseline.
    pub(crate) fn new(name: &'static str, unit: Unit, baseline: (&'static str, Box<dyn Subject>)) -> Self {
        Self { name, unit, contenders: vec![baseline] }
    }

    /// One more contender.
    pub(crate) fn with(mut self, name: &'static str, subject: impl Subject + 'static) -> Self {
        self.contenders.push((name, Box::new(subject)));
        self
    }

    /// Runs and prints it.
    pub(crate) fn run(mut self, quick: bool) {
        let turns = if quick { 1 } else { TURNS };
        let rounds: Vec<u64> = self.contenders.iter_mut().map(|(_, subject)| warm_up(&mut **subject, quick)).collect();
        let mut rates = vec![Vec::new(); self.contenders.len()];
        let mut shares = rates.clone();
        for _ in 0..turns {
            let mut baseline = None;
            for (at, (_, subject)) in self.contenders.iter_mut().enumerate() {
                let (took, bytes) = measure(&mut **subject, rounds[at]);
                let amount = match self.unit {
                    Unit::Bytes => bytes as f64 / 1e6,
                    Unit::Operations(each) => rounds[at] as f64 * each,
                };
                let rate = amount / took.as_secs_f64();
                rates[at].push(rate);
                shares[at].push(rate / *baseline.get_or_insert(rate));
            }
        }
        for (at, (name, _)) in self.contenders.iter().enumerate() {
            let row = if at == 0 { self.name } else { "" };
            let unit = match self.unit {
                Unit::Bytes => "MB/s",
                Unit::Operations(_) => "/s",
            };
            println!(
                "{row:<26} {name:<30} {:>10.0} {unit:<5} {:>7.3}",
                median(&mut rates[at]),
                median(&mut shares[at])
            );
        }
    }
}

/// How many rounds fill a turn.
fn warm_up(subject: &mut dyn Subject, quick: bool) -> u64 {
    measure(subject, 1);
    if quick {
        return 1;
    }
    let mut rounds = 1;
    loop {
        let (took, _) = measure(subject, rounds);
        if took > TURN / 4 {
            let wanted = TURN.as_secs_f64() / (took.as_secs_f64() / rounds as f64);
            return (wanted as u64).max(1);
        }
        rounds *= 4;
    }
}

/// The middle one.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
