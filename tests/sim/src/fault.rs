//! What goes wrong in a run, drawn up front: a schedule that can be told, repeated and made smaller.

use std::fmt;

use highwater_storage::fs::{Call, Fault as DiskFault};

use highwater_replication::BrokerId;

use crate::plan::{Plan, Promise};
use crate::random::Random;

/// A place that messages come from and go to.
pub(crate) type Place = usize;

/// How many brokers there are; their places are the numbers below.
pub(crate) const BROKERS: usize = 3;
/// Producers and consumers.
pub(crate) const CLIENTS: Place = 3;
/// The coordination store.
pub(crate) const STORE: Place = 4;
pub(crate) const PLACES: usize = 5;

/// Something that goes wrong at a time. What the run's promise does not allow at that moment does not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Milliseconds from the start.
    pub(crate) at_ms: i64,
    pub(crate) what: What,
}

/// Whom a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Broker(usize),
    /// Whoever leads at that time.
    Leader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The process ends, by kill -9 or as it should.
    Stop {
        whom: Whom,
        clean: bool,
    },
    /// The process dies within a call of the file system, after so many more that change something; with the power, if
    /// the number that chooses what is left on the disk is given.
    CrashInCall {
        whom: Whom,
        calls: u64,
        power: Option<u64>,
    },
    /// One of the disks that the model allows is left, chosen by a number.
    PowerCut {
        whom: Whom,
        image: u64,
    },
    PowerCutOfAll {
        image: u64,
    },
    /// A broker comes back with an empty disk.
    DiskLost {
        whom: Whom,
    },
    /// The process stands still; what came meanwhile it finds when it goes on.
    Pause {
        whom: Whom,
        ms: i64,
    },
    /// Nothing gets through from one place to the other; to hear is not to be heard.
    Cut {
        from: Place,
        to: Place,
        ms: i64,
    },
    /// Two brokers do not reach each other, and all else works.
    Split {
        one: usize,
        other: usize,
        ms: i64,
    },
    /// A broker reaches no other broker and no client, but the store.
    Isolate {
        whom: Whom,
        ms: i64,
    },
    /// A broker does not reach the store.
    CutOff {
        whom: Whom,
        ms: i64,
    },
    /// The store answers nobody. No session ends meanwhile.
    StoreDown {
        ms: i64,
    },
    SessionEnds {
        whom: Whom,
    },
    /// A broker hears late of changes in the store.
    LateWatches {
        whom: Whom,
        ms: i64,
    },
    /// One in so many messages is lost.
    Loss {
        one_in: u64,
        ms: i64,
    },
    /// One in so many messages comes twice.
    Doubling {
        one_in: u64,
        ms: i64,
    },
    /// One in so many replies with records has a byte changed.
    Garbling {
        one_in: u64,
        ms: i64,
    },
    /// One in three messages takes ten times as long, so that others overtake it.
    Slowness {
        ms: i64,
    },
    /// A broker's clock goes ahead at once, as after a stop of its machine.
    ClockJump {
        whom: Whom,
        by_ms: i64,
    },
    /// The time of day is another one when a broker starts next; it may have gone back.
    ClockStep {
        broker: usize,
        by_ms: i64,
    },
    /// A broker's clock is fast, or slow.
    ClockDrift {
        broker: usize,
        per_mille: i64,
        ms: i64,
    },
    /// One call on a broker's disk fails.
    DiskFails {
        whom: Whom,
        call: Call,
        nth: u64,
        fault: DiskFault,
    },
    /// A broker's disk has room for so many bytes more.
    DiskFull {
        whom: Whom,
        room: u64,
        ms: i64,
    },
    /// Flushes and housekeeping of a broker take fifty times as long.
    SlowDisk {
        whom: Whom,
        ms: i64,
    },
    /// Another broker is controller; the old one does not know yet.
    NewController,
    /// The controller moves the leadership, as for a preferred leader.
    MoveLeader {
        to: usize,
    },
    /// Somebody changes the topic's settings.
    Configure {
        draw: u64,
    },
    /// Somebody asks for a leader: the preferred one, or any.
    Elect {
        unclean: bool,
    },
    /// Somebody moves the replicas, by the number of the [`TARGETS`].
    Reassign {
        target: usize,
    },
    /// What is under way of that is taken back.
    CancelReassignment,
    /// A broker says that it is about to stop, and does when nobody depends on it any more.
    Leave {
        whom: Whom,
    },
    /// The topic is deleted, and another one made of its name.
    MakeAgain,
    /// The process of a client ends, and another takes its place: of the how-manieth, if there are so many.
    ClientDies {
        which: usize,
    },
    /// A byte of what is committed and synced changes on a disk.
    Rot {
        whom: Whom,
        draw: u64,
    },
}

/// Where the replicas may be asked to go.
const TARGETS: [&[i32]; 9] = [&[1, 2, 3], &[3, 2, 1], &[2, 3, 1], &[1, 2], &[2, 3], &[3, 1], &[2, 1], &[3, 2], &[1, 3]];

/// One of them.
pub(crate) fn target(number: usize) -> Vec<BrokerId> {
    TARGETS[number % TARGETS.len()].iter().copied().map(BrokerId).collect()
}

/// How long a run goes wrong, and what that may be.
pub(crate) fn draw(plan: &Plan, random: &mut Random) -> Vec<Fault> {
    let ends_ms = plan.heals_ms;
    let mut faults = Vec::new();
    // The weather of the whole run.
    for which in 0..3 {
        let one_in = random.pick(&[8, 20, 0]);
        let what = match which {
            0 => What::Loss { one_in, ms: ends_ms },
            1 => What::Doubling { one_in, ms: ends_ms },
            _ => What::Garbling { one_in: one_in * 4, ms: ends_ms },
        };
        if one_in > 0 {
            faults.push(Fault { at_ms: 0, what });
        }
    }
    let mut at_ms = 100;
    while at_ms < ends_ms {
        let what = draw_one(plan, random);
        faults.push(Fault { at_ms, what });
        if matches!(what, What::Reassign { .. }) && random.one_in(2) {
            // Before it is done, most likely: that takes a few messages if all is well.
            at_ms += random.between(1, 60);
            faults.push(Fault { at_ms, what: What::CancelReassignment });
        }
        at_ms += random.between(30, 250);
    }
    faults
}

fn draw_one(plan: &Plan, random: &mut Random) -> What {
    let broker = random.index(BROKERS);
    let whom = if random.one_in(3) { Whom::Leader } else { Whom::Broker(broker) };
    let other = (broker + 1 + random.index(BROKERS - 1)) % BROKERS;
    let ms = random.between(20, 500);
    let kinds = match (plan.operators, plan.rots) {
        (true, _) => 40,
        (false, true) => 36,
        (false, false) => 32,
    };
    match random.below(kinds) {
        0..=4 => What::Stop { whom, clean: random.one_in(3) },
        5..=8 if plan.promise == Promise::PowerCutsOfAll => What::PowerCutOfAll { image: random.draw() },
        5 | 6 if plan.promise == Promise::PowerCuts && random.one_in(3) => What::DiskLost { whom },
        5..=8 => What::PowerCut { whom, image: random.draw() },
        9 | 10 => {
            let power = random.one_in(2).then(|| random.draw());
            What::CrashInCall { whom, calls: random.below(30), power }
        }
        11 | 12 => What::Pause { whom, ms },
        13 | 14 => What::Split { one: broker, other, ms },
        15 => What::Cut { from: broker, to: other, ms },
        16 if random.one_in(2) => What::Cut { from: CLIENTS, to: broker, ms },
        16 => What::Cut { from: broker, to: CLIENTS, ms },
        17 => What::Isolate { whom, ms },
        18 | 19 => What::CutOff { whom, ms },
        20 => What::StoreDown { ms },
        21 | 22 => What::SessionEnds { whom },
        23 => What::LateWatches { whom, ms },
        24 => What::Slowness { ms },
        25 if random.one_in(2) => What::ClockJump { whom, by_ms: random.between(10, 2_000) },
        25 => What::ClockStep { broker, by_ms: random.between(-5_000, 5_000) },
        26 => What::ClockDrift { broker, per_mille: random.between(-200, 200), ms },
        27 => draw_disk_fault(random, whom),
        28 if random.one_in(2) => What::DiskFull { whom, room: random.below(300), ms },
        28 => What::SlowDisk { whom, ms },
        29 => What::NewController,
        30 => What::MoveLeader { to: broker },
        33..=35 if plan.rots => What::Rot { whom, draw: random.draw() },
        33 | 34 => What::Reassign { target: random.index(TARGETS.len()) },
        35 => What::Elect { unclean: false },
        36 | 37 => What::Leave { whom },
        38 => What::Elect { unclean: random.one_in(3) },
        39 if random.one_in(2) => What::MakeAgain,
        _ => What::Configure { draw: random.draw() },
    }
}

fn draw_disk_fault(random: &mut Random, whom: Whom) -> What {
    let (call, fault) = random.pick(&[
        (Call::Write, DiskFault::Eio),
        (Call::Write, DiskFault::ShortWrite),
        (Call::AnyChange, DiskFault::Eio),
        (Call::AnyChange, DiskFault::Enospc),
        (Call::SyncData, DiskFault::SyncFails),
        (Call::SyncDir, DiskFault::SyncFails),
    ]);
    What::DiskFails { whom, call, nth: 1 + random.below(10), fault }
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(broker) => write!(f, "broker {}", broker + 1),
            Self::Leader => f.write_str("the leader"),
        }
    }
}

/// The name of a place.
pub(crate) fn place_name(place: Place) -> String {
    match place {
        CLIENTS => "the clients".to_owned(),
        STORE => "the store".to_owned(),
        broker => format!("broker {}", broker + 1),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} ms  ", self.at_ms)?;
        let place = place_name;
        match self.what {
            What::Stop { whom, clean: true } => write!(f, "{whom} stops cleanly"),
            What::Stop { whom, clean: false } => write!(f, "{whom} is killed"),
            What::CrashInCall { whom, calls, power: None } => write!(f, "{whom} dies in call {calls} of its disk"),
            What::CrashInCall { whom, calls, power: Some(_) } => {
                write!(f, "{whom} loses power in call {calls} of its disk")
            }
            What::PowerCut { whom, .. } => write!(f, "{whom} loses power"),
            What::PowerCutOfAll { .. } => f.write_str("all lose power"),
            What::DiskLost { whom } => write!(f, "{whom} loses its disk"),
            What::Pause { whom, ms } => write!(f, "{whom} stands still for {ms} ms"),
            What::Cut { from, to, ms } => write!(f, "nothing gets from {} to {} for {ms} ms", place(from), place(to)),
            What::Split { one, other, ms } => write!(f, "{} and {} are parted for {ms} ms", place(one), place(other)),
            What::Isolate { whom, ms } => write!(f, "{whom} reaches nobody but the store for {ms} ms"),
            What::CutOff { whom, ms } => write!(f, "{whom} is cut off from the store for {ms} ms"),
            What::StoreDown { ms } => write!(f, "the store is down for {ms} ms"),
            What::SessionEnds { whom } => write!(f, "the session of {whom} ends"),
            What::LateWatches { whom, ms } => write!(f, "{whom} hears late of the store for {ms} ms"),
            What::Loss { one_in, ms } => write!(f, "one in {one_in} messages is lost, for {ms} ms"),
            What::Doubling { one_in, ms } => write!(f, "one in {one_in} messages comes twice, for {ms} ms"),
            What::Garbling { one_in, ms } => write!(f, "one in {one_in} replies is damaged, for {ms} ms"),
            What::Slowness { ms } => write!(f, "messages overtake each other for {ms} ms"),
            What::ClockJump { whom, by_ms } => write!(f, "the clock of {whom} jumps by {by_ms} ms"),
            What::ClockStep { broker, by_ms } => {
                write!(f, "the time of day at {} changes by {by_ms} ms with its next start", place(broker))
            }
            What::ClockDrift { broker, per_mille, ms } => {
                write!(f, "the clock of {} is {per_mille} per mille fast for {ms} ms", place(broker))
            }
            What::DiskFails { whom, call, nth, fault } => {
                write!(f, "{whom}: call {nth} of kind {call:?} from now on fails with {fault:?}")
            }
            What::DiskFull { whom, room, ms } => {
                write!(f, "the disk of {whom} has room for {room} bytes more, for {ms} ms")
            }
            What::SlowDisk { whom, ms } => write!(f, "the disk of {whom} is slow for {ms} ms"),
            What::NewController => f.write_str("another broker is controller"),
            What::MoveLeader { to } => write!(f, "the leadership goes to {}", place(to)),
            What::Configure { .. } => f.write_str("the topic's settings change"),
            What::Elect { unclean: false } => f.write_str("somebody asks for the preferred leader"),
            What::Elect { unclean: true } => f.write_str("somebody asks for any leader"),
            What::Reassign { target: number } => {
                let target = target(number).iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" ");
                write!(f, "the replicas are to move to {target}")
            }
            What::CancelReassignment => f.write_str("a move of replicas is taken back"),
            What::Leave { whom } => write!(f, "{whom} hands over and stops"),
            What::MakeAgain => f.write_str("the topic is deleted and made again"),
            What::ClientDies { which } => write!(f, "client {which} dies"),
            What::Rot { whom, .. } => write!(f, "a byte rots on the disk of {whom}"),
        }
    }
}
