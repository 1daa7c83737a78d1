//! The table "what may be lost when" (`docs/replication.md`), cell by cell.
//!
//! A row is what producers and the topic ask for, a column a kind of failure. In a run of a cell nothing goes wrong with
//! brokers but that failure, as often as it comes up; messages, links and disks misbehave besides. What the row's producers
//! were answered, and is in no log at the end, must be of a [`Kind`] that the cell names.

use std::fmt;

use crate::fault::{BROKERS, Fault, What, Whom};
use crate::plan::{Plan, Promise};
use crate::random::Random;

/// What producers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// acks=all.
    All,
    /// acks=1.
    Leader,
    /// acks=0.
    Nothing,
}

/// A row of the table; what it leaves open each run draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    name: &'static str,
    pub(crate) asked: Asked,
    min_insync_replicas: Option<usize>,
    synced: Option<bool>,
}

const fn row(name: &'static str, asked: Asked, min_insync_replicas: Option<usize>, synced: Option<bool>) -> Row {
    Row { name, asked, min_insync_replicas, synced }
}

/// All rows.
pub const ROWS: [Row; 7] = [
    row("all, 2, none", Asked::All, Some(2), Some(false)),
    row("all, 2, synced", Asked::All, Some(2), Some(true)),
    row("all, 1, none", Asked::All, Some(1), Some(false)),
    row("all, 1, synced", Asked::All, Some(1), Some(true)),
    row("1, any, none", Asked::Leader, None, Some(false)),
    row("1, any, synced", Asked::Leader, None, Some(true)),
    row("0, any, any", Asked::Nothing, None, None),
];

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A process is killed that does not lead, or leads alone in the ISR.
    Killed,
    /// The leader's process is killed.
    LeaderKilled,
    /// A broker loses power, one at a time.
    PowerCut,
    /// All brokers lose power at the same moment.
    PowerCutOfAll,
    /// A broker comes back with an empty directory, one at a time.
    DiskLost,
    /// The coordination store is away for many session time-outs.
    StoreAway,
    /// The leader stands still, or is cut off from the store, for longer than its session.
    LeaderPaused,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Killed,
        Self::LeaderKilled,
        Self::PowerCut,
        Self::PowerCutOfAll,
        Self::DiskLost,
        Self::StoreAway,
        Self::LeaderPaused,
    ];
}

/// Why a record may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It had not reached a leader.
    InFlight,
    /// When its leader failed an in-sync follower, which may lead next, did not have it.
    Unfetched,
    /// Its leader took it after its session was over.
    Late,
    /// The failure hit all in-sync replicas, and no disk of theirs has it any more.
    OnNoDisk,
}

/// A row and a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The row.
    pub row: Row,
    /// The column.
    pub failure: Failure,
}

impl Cell {
    /// All cells, row by row.
    pub fn all() -> Vec<Self> {
        ROWS.iter().flat_map(|row| Failure::ALL.map(|failure| Self { row: *row, failure })).collect()
    }

    /// What may be lost. In order, and each is indeed lost in some run.
    pub fn kinds(self) -> Vec<Kind> {
        let Row { asked, min_insync_replicas, synced, .. } = self.row;
        let unsynced = synced != Some(true);
        // Where the ISR that takes records may be a single replica.
        let alone = min_insync_replicas != Some(2);
        let mut kinds = Vec::new();
        if asked == Asked::Nothing {
            kinds.push(Kind::InFlight);
        }
        let leader_goes = matches!(
            self.failure,
            Failure::LeaderKilled | Failure::PowerCut | Failure::DiskLost | Failure::LeaderPaused
        );
        if asked != Asked::All && leader_goes {
            kinds.push(Kind::Unfetched);
        }
        if asked != Asked::All && self.failure == Failure::LeaderPaused {
            kinds.push(Kind::Late);
        }
        let on_no_disk = match self.failure {
            Failure::PowerCut => alone && unsynced,
            Failure::PowerCutOfAll => unsynced,
            Failure::DiskLost => alone,
            _ => false,
        };
        if on_no_disk {
            kinds.push(Kind::OnNoDisk);
        }
        kinds
    }

    /// The cell's text in the table.
    pub fn text(self) -> String {
        let text = |kind: &Kind| match (kind, self.failure) {
            (Kind::InFlight, _) => "what was on its way",
            (Kind::Unfetched, _) => "what an in-sync follower lacked",
            (Kind::Late, _) => "what it takes until it is told",
            (Kind::OnNoDisk, Failure::PowerCut) => "of a leader alone in the ISR: what it had not synced",
            (Kind::OnNoDisk, Failure::DiskLost) => "of a leader alone in the ISR: everything",
            (Kind::OnNoDisk, _) => "what no in-sync replica's disk holds",
        };
        let texts: Vec<&str> = self.kinds().iter().map(text).collect();
        if texts.is_empty() { "—".to_owned() } else { texts.join("; ") }
    }

    /// Whether a failure may hit the only member of the ISR.
    pub(crate) fn hits_who_is_alone(self) -> bool {
        self.row.min_insync_replicas != Some(2)
    }

    /// What a run of this cell may do, and promises beside the cell's own.
    pub(crate) fn plan(self, random: &mut Random) -> Plan {
        let drawn = Plan::draw(random, None);
        let synced = self.row.synced.unwrap_or_else(|| random.one_in(2));
        let min_insync_replicas = self.row.min_insync_replicas.unwrap_or_else(|| 1 + random.index(2));
        let promise = match self.failure {
            Failure::Killed | Failure::LeaderKilled | Failure::StoreAway | Failure::LeaderPaused => Promise::Kills,
            Failure::PowerCut if synced && self.row.asked == Asked::All => Promise::SyncedPowerCuts,
            Failure::PowerCut | Failure::DiskLost => Promise::PowerCuts,
            Failure::PowerCutOfAll => Promise::PowerCutsOfAll,
        };
        let asked = Plan { promise, min_insync_replicas, synced, ..drawn };
        Plan { retention: false, rots: false, unclean_elections: false, operators: false, ..asked }
    }

    /// What goes wrong: the failure of the column, and between brokers what makes followers lag and leave.
    pub(crate) fn faults(self, plan: &Plan, random: &mut Random) -> Vec<Fault> {
        let mut faults = Vec::new();
        let one_in = random.pick(&[8, 20, 0]);
        if one_in > 0 {
            faults.push(Fault { at_ms: 0, what: What::Loss { one_in, ms: plan.heals_ms } });
        }
        let mut at_ms = 100;
        while at_ms < plan.heals_ms {
            let broker = random.index(BROKERS);
            let other = (broker + 1 + random.index(BROKERS - 1)) % BROKERS;
            let ms = random.between(50, 600);
            let what = match random.below(8) {
                0..=2 => self.failure(random),
                3 | 4 => What::Split { one: broker, other, ms },
                5 => What::Cut { from: broker, to: other, ms },
                6 => What::Slowness { ms },
                _ => What::SlowDisk { whom: Whom::Broker(broker), ms },
            };
            faults.push(Fault { at_ms, what });
            at_ms += random.between(20, 200);
        }
        faults
    }

    fn failure(self, random: &mut Random) -> What {
        let broker = random.index(BROKERS);
        let whom = if random.one_in(2) { Whom::Leader } else { Whom::Broker(broker) };
        match self.failure {
            Failure::Killed => What::Stop { whom, clean: false },
            Failure::LeaderKilled => What::Stop { whom: Whom::Leader, clean: false },
            Failure::PowerCut => What::PowerCut { whom, image: random.draw() },
            Failure::PowerCutOfAll => What::PowerCutOfAll { image: random.draw() },
            Failure::DiskLost => What::DiskLost { whom },
            Failure::StoreAway => What::StoreDown { ms: random.between(300, 1_500) },
            Failure::LeaderPaused if random.one_in(2) => {
                What::Pause { whom: Whom::Leader, ms: random.between(160, 500) }
            }
            Failure::LeaderPaused => What::CutOff { whom: Whom::Leader, ms: random.between(160, 500) },
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "a follower killed, or a leader alone in the ISR",
            Self::LeaderKilled => "leader killed",
            Self::PowerCut => "power cut of one",
            Self::PowerCutOfAll => "power cut of all at once",
            Self::DiskLost => "disk of one lost",
            Self::StoreAway => "store away for minutes",
            Self::LeaderPaused => "leader paused, or cut off from the store, past its session",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}", self.row, self.failure)
    }
}
