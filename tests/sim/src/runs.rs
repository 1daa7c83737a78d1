//! One run, and many on all cores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Instant;

use crate::cell::{Cell, Kind};
use crate::counts::{Counts, Distribution};
use crate::fault::Fault;
use crate::plan::Mutant;
use crate::world::World;

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What happened, up to the failure if there was one.
    pub counts: Counts,
    /// Differs where anything that matters went another way.
    pub fingerprint: u64,
    /// The faults that were to strike.
    pub faults: Vec<Fault>,
    /// What was wrong.
    pub failure: Option<String>,
    /// In a run of a cell: how many records were lost, by why that may be.
    pub lost: BTreeMap<Kind, u64>,
}

thread_local! {
    /// Panics of runs are caught and reported as a seed; their own messages would only fill the screen.
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Where the last of them was.
    static WHERE: RefCell<String> = const { RefCell::new(String::new()) };
}

fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                return loud(info);
            }
            let place = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
            WHERE.set(place.unwrap_or_default());
        }));
    });
}

/// Lets a run go on until it ends, or until something is wrong: what that is comes back.
pub(crate) fn failure_of(run: impl FnOnce()) -> Option<String> {
    quieten();
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(before);
    result.err().map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        format!("{text}\n  at {}", WHERE.take())
    })
}

fn run_world(mut world: World) -> (Outcome, String) {
    let failure = failure_of(|| world.run());
    let World { counts, fingerprint, faults, trace, ledger, .. } = world;
    let story = trace.map(|trace| trace.chart()).unwrap_or_default();
    let lost = ledger.map(|ledger| ledger.lost).unwrap_or_default();
    (Outcome { counts, fingerprint, faults, failure, lost }, story)
}

/// Runs one seed, with the faults that it draws or with these.
pub fn run(seed: u64, mutant: Option<Mutant>, faults: Option<Vec<Fault>>) -> Outcome {
    run_world(World::new(seed, mutant, faults, false)).0
}

/// As [`run`], with the story as a message-sequence chart.
pub fn tell(seed: u64, mutant: Option<Mutant>, faults: Option<Vec<Fault>>) -> (Outcome, String) {
    run_world(World::new(seed, mutant, faults, true))
}

/// Runs a seed of a cell of the table "what may be lost when".
pub fn run_cell(seed: u64, cell: Cell) -> Outcome {
    run_world(World::of_cell(seed, cell, false)).0
}

/// As [`run_cell`], with the story as a message-sequence chart.
pub fn tell_cell(seed: u64, cell: Cell) -> (Outcome, String) {
    run_world(World::of_cell(seed, cell, true))
}

/// What became of many runs.
#[derive(Clone, Debug, Default)]
pub struct Many {
    /// Seeds that were run.
    pub seeds: u64,
    /// Sums over them.
    pub counts: Counts,
    /// How the counts are spread.
    pub distribution: Distribution,
    /// The smallest seed that failed, and what was wrong.
    pub failure: Option<(u64, String)>,
}

impl Many {
    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.counts.add(&other.counts);
        self.distribution.add(&other.distribution);
        if let Some(failure) = &other.failure
            && self.failure.as_ref().is_none_or(|(seed, _)| failure.0 < *seed)
        {
            self.failure = Some(failure.clone());
        }
    }
}

/// Runs `seeds` seeds from `first` on, on all cores, until all are done, one fails, or it is `until`. After each seed
/// `progress` hears how many events it took.
pub fn run_many(
    first: u64,
    seeds: u64,
    until: Option<Instant>,
    mutant: Option<Mutant>,
    progress: impl Fn(u64) + Sync,
) -> Many {
    let one = |many: &mut Many, seed| {
        let outcome = run(seed, mutant, None);
        many.seeds += 1;
        progress(outcome.counts.events);
        if let Some(what) = outcome.failure {
            many.failure = Some((seed, what));
            return false;
        }
        many.counts.add(&outcome.counts);
        many.distribution.count(&outcome.counts);
        true
    };
    each_seed(first, seeds, until, one, Many::add)
}

/// Does `one` seed after the other from `first` on, on all cores, until all are done, one says that it is enough, or it is
/// `until`; what each core has noted comes together by `add`.
pub(crate) fn each_seed<S: Default + Send>(
    first: u64,
    seeds: u64,
    until: Option<Instant>,
    one: impl Fn(&mut S, u64) -> bool + Sync,
    add: impl Fn(&mut S, &S) + Sync,
) -> S {
    let end = first.saturating_add(seeds);
    let (next, sum) = (AtomicU64::new(first), Mutex::new(S::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut noted = S::default();
                while until.is_none_or(|until| Instant::now() < until) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    if !one(&mut noted, seed) {
                        next.fetch_max(end, Ordering::Relaxed);
                        break;
                    }
                }
                add(&mut sum.lock().unwrap_or_else(PoisonError::into_inner), &noted);
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}
