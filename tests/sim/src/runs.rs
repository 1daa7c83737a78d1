//! One run, and many on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::Mutant;
use crate::world::{Counts, World};

thread_local! {
    /// Panics of runs are caught and reported as a seed; their own messages would only fill the screen.
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn quieten() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
}

fn run_world(world: &mut World) -> Result<(), String> {
    quieten();
    let before = QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    QUIET.set(before);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Runs one seed.
///
/// # Errors
/// What was wrong with it.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Counts, String> {
    let mut world = World::new(seed, mutant, false);
    run_world(&mut world)?;
    Ok(world.counts)
}

/// Runs one seed and tells all that happened, and what was wrong if anything was.
pub fn trace(seed: u64, mutant: Option<Mutant>) -> (String, Option<String>) {
    let mut world = World::new(seed, mutant, true);
    let what = run_world(&mut world).err();
    (world.trace.take().unwrap_or_default(), what)
}

/// Runs seeds from `first` on, on all cores, until all are done or one fails; gives the sums and the first failure.
pub fn run_many(first: u64, seeds: u64, mutant: Option<Mutant>) -> (Counts, Option<(u64, String)>) {
    let (next, sums, failure) = (AtomicU64::new(first), Mutex::new(Counts::default()), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut counts = Counts::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        break;
                    }
                    match run(seed, mutant) {
                        Ok(of_seed) => counts.add(&of_seed),
                        Err(what) => {
                            let mut failure = failure.lock().expect("no thread panics while it holds this");
                            // The smallest seed, so that the report does not depend on the threads.
                            if failure.as_ref().is_none_or(|(known, _)| seed < *known) {
                                *failure = Some((seed, what));
                            }
                            next.fetch_max(first + seeds, Ordering::Relaxed);
                            break;
                        }
                    }
                }
                sums.lock().expect("no thread panics while it holds this").add(&counts);
            });
        }
    });
    (sums.into_inner().expect("all threads are done"), failure.into_inner().expect("all threads are done"))
}
