//! What happened in runs, and how it is spread over them.

use std::collections::BTreeMap;

macro_rules! counts {
    ($counts:ident: $($(#[doc = $doc:literal])+ $field:ident = $name:literal,)+) => {
        /// What happened in a run, or in several: the proof that runs are not empty.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $counts {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl $counts {
            /// Each count with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field)),+]
            }

            /// Adds what happened in another run.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

counts! { Counts:
    /// Events in all.
    events = "events",
    /// Records that were acknowledged to acks=all.
    acknowledged = "acknowledged",
    /// Records that the consumer read.
    consumed = "consumed",
    /// Processes killed, whether a call was under way or not.
    kills = "kills",
    /// Processes that died within a call of their file system, with the power or without.
    crashes_in_calls = "crashes within a call",
    /// Power cuts of a broker.
    power_cuts = "power cuts",
    /// Power cuts of all brokers at once.
    power_cuts_of_all = "power cuts of all",
    /// Brokers that came back with an empty disk.
    disks_lost = "disks lost",
    /// Logs that closed themselves because their disk failed.
    logs_failed = "logs that failed",
    /// Starts that failed because the disk did.
    starts_failed = "starts that failed",
    /// Times that the store was down.
    store_down = "store down",
    /// Leaders that stood still, or were cut off, for longer than their session.
    leaders_asleep = "leaders asleep past their session",
    /// Elections of a whole in-sync replica.
    elections = "elections",
    /// Elections of a replica outside of the in-sync set.
    unclean = "unclean elections",
    /// Elections of the doubtful member that kept most.
    recovered = "elections by what is left",
    /// Leaders moved while all was well with them.
    moved = "leaders moved",
    /// Records that no in-sync replica's disk held after a power cut of all.
    struck = "records that no disk held",
    /// Growths of the in-sync set.
    joins = "joins",
    /// Shrinks of the in-sync set.
    shrinks = "shrinks",
    /// Truncations where histories parted.
    cuts = "cuts",
    /// Logs that started over at their leader's start.
    resets = "resets",
    /// Proposals that met another version.
    conflicts = "conflicts",
    /// Proposals in a higher epoch.
    higher_epochs = "higher epochs",
    /// Batches that a leader knew already.
    duplicates = "duplicates",
    /// Fetches that came when their broker had returned without some of what they said that it has.
    former_fetches = "fetches of former lives",
    /// Sessions whose end a broker noticed.
    sessions_lost = "sessions lost",
    /// Settings that changed.
    configured = "settings changed",
    /// Leaderships that went back to the preferred replica, by themselves or because somebody asked.
    preferred = "preferred elections",
    /// Moves of replicas that began.
    moves = "moves of replicas",
    /// Those that were done.
    moves_done = "moves done",
    /// Those that were taken back.
    moves_cancelled = "moves taken back",
    /// Replicas removed from a broker that runs.
    removed = "replicas removed",
    /// Brokers that handed over before they stopped.
    handed_over = "brokers that handed over",
    /// Topics deleted and made again.
    made_again = "topics made again",
    /// Batches that rotted.
    rotted = "batches that rotted",
    /// Batches that were healed from another replica.
    healed = "batches healed",
}

counts! { CoordinatorCounts:
    /// Events in all.
    events = "events",
    /// Batches of the writers that were acknowledged.
    acknowledged = "acknowledged",
    /// Copied records that readers saw.
    consumed = "consumed",
    /// Processes killed, by a stop that is none or at a boundary.
    kills = "kills",
    /// Processes that died within a call of their file system.
    crashes_in_calls = "crashes within a call",
    /// Power cuts of a broker.
    power_cuts = "power cuts",
    /// Times that the store was down.
    store_down = "store down",
    /// Elections in the place of a leader that is gone.
    elections = "elections",
    /// Leaders moved while all was well with them.
    moved = "leaders moved",
    /// Leaderships that went back to the preferred replica.
    preferred = "preferred elections",
    /// Sessions whose end a broker noticed.
    sessions_lost = "sessions lost",
    /// Truncations where histories parted.
    cuts = "cuts",
    /// Batches that a leader knew already.
    duplicates = "duplicates",
    /// Coordinators that loaded their partition and served.
    loaded = "coordinators that served",
    /// Coordinators that did not know what of their log would stay.
    unsure = "coordinators unsure of their log",
    /// Batches of coordinators that several appends went into.
    gathered = "appends together",
    /// Appends of which those that waited were told to try again.
    late = "late appends",
    /// Markers that came when nobody waited for them.
    late_markers = "late markers",
    /// Assignments that members were given.
    assigned = "assignments",
    /// Offsets that were committed outside of transactions.
    commits = "commits",
    /// Offsets that were not told for a transaction was undecided.
    unstable = "unstable offsets",
    /// Transactions that were committed.
    copied = "transactions committed",
    /// Transactions that were aborted.
    copies_aborted = "transactions aborted",
    /// Producers that found themselves replaced, or their transactions aborted.
    fenced = "producers fenced",
    /// Clients whose process ended.
    clients_died = "clients that died",
}

impl Counts {
    /// Elections of any kind.
    pub fn leader_changes(&self) -> u64 {
        self.elections + self.unclean + self.recovered + self.moved + self.preferred
    }

    /// Processes that died, in any way.
    pub fn crashes(&self) -> u64 {
        self.kills + self.power_cuts + self.crashes_in_calls
    }

    /// Truncations of any kind.
    pub fn truncations(&self) -> u64 {
        self.cuts + self.resets
    }
}

/// A measure of a run.
type Measure = (&'static str, fn(&Counts) -> u64);

const MEASURES: [Measure; 11] = [
    ("leader changes", Counts::leader_changes),
    ("  of them elections", |counts| counts.elections + counts.unclean + counts.recovered),
    ("crashes", Counts::crashes),
    ("truncations", Counts::truncations),
    ("changes of the ISR", |counts| counts.joins + counts.shrinks),
    ("moves of replicas", |counts| counts.moves),
    ("  of them done", |counts| counts.moves_done),
    ("topics made again", |counts| counts.made_again),
    ("rot", |counts| counts.rotted),
    ("acknowledged records", |counts| counts.acknowledged),
    ("events", |counts| counts.events),
];

/// How often which count came up, for each measure.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    seen: [BTreeMap<u64, u64>; MEASURES.len()],
}

impl Distribution {
    /// Takes a run in.
    pub fn count(&mut self, counts: &Counts) {
        for (seen, (_, measure)) in self.seen.iter_mut().zip(MEASURES) {
            *seen.entry(measure(counts)).or_default() += 1;
        }
    }

    /// Takes all runs of another one in.
    pub fn add(&mut self, other: &Self) {
        for (seen, others) in self.seen.iter_mut().zip(&other.seen) {
            for (value, times) in others {
                *seen.entry(*value).or_default() += times;
            }
        }
    }

    /// A table of percentiles.
    pub fn table(&self) -> String {
        let mut table = format!("{:<22}", "in a seed");
        for title in ["least", "1%", "10%", "median", "90%", "99%", "most", "none in"] {
            table.push_str(&format!("{title:>8}"));
        }
        for (seen, (name, _)) in self.seen.iter().zip(MEASURES) {
            table.push_str(&format!("\n{name:<22}"));
            for per_mille in [0, 10, 100, 500, 900, 990, 1_000] {
                table.push_str(&format!("{:>8}", percentile(seen, per_mille)));
            }
            let runs: u64 = seen.values().sum();
            let none = seen.get(&0).copied().unwrap_or(0);
            table.push_str(&format!("{:>7.1}%", 100.0 * none as f64 / runs.max(1) as f64));
        }
        table
    }
}

/// The value below or at which so many of a thousand lie.
fn percentile(seen: &BTreeMap<u64, u64>, per_mille: u64) -> u64 {
    let runs: u64 = seen.values().sum();
    let rank = (runs * per_mille).div_ceil(1_000).max(1);
    let mut below = 0;
    for (value, times) in seen {
        below += times;
        if below >= rank {
            return *value;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_came_up() {
        let seen = BTreeMap::from([(0, 1), (2, 8), (7, 1)]);
        let expected = [(0, 0), (100, 0), (110, 2), (500, 2), (900, 2), (910, 7), (1_000, 7)];
        for (per_mille, value) in expected {
            assert_eq!(percentile(&seen, per_mille), value, "{per_mille}");
        }
    }

    #[test]
    fn distributions_of_two_threads_are_that_of_one() {
        let runs = [3, 5, 3, 9].map(|elections| Counts { elections, events: 1_000, ..Counts::default() });
        let (mut all, mut one, mut other) = <(Distribution, Distribution, Distribution)>::default();
        for (number, run) in runs.iter().enumerate() {
            all.count(run);
            if number % 2 == 0 { one.count(run) } else { other.count(run) }
        }
        one.add(&other);
        assert_eq!(one.table(), all.table());
        assert!(
            all.table().contains("\nleader changes               3       3       3       3       9       9       9")
        );
    }
}
