//! A program of three machines, tried on simulated disks, clocks and a simulated network.
//!
//! The program keeps a queue of jobs. The first machine takes jobs, writes them to its log and sends them to the two others;
//! a job is accepted once all three have it on disk. What was accepted must be in each machine's log for ever, whichever
//! loses power, and in the same order; and once nothing goes wrong any more, all three come to have the same.
//!
//! The test runs it from a seed: machines are killed and lose power, messages get lost, come twice and overtake each other,
//! links are cut one way, clocks are set back. Equal seeds run equally, so a failing one can be told.
//!
//! `cargo run -p highwater-storage --example simulate_your_program -- [--seeds N] [--seed S] [--bug early-answer|trusts-the-clock]`
//!
//! In a crate of yours: `highwater-storage = { version = "0.1", features = ["sim"] }` among the `dev-dependencies`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::data_dir::OpenHints;
use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::sim::{Clock, Fate, Network, Queue, Random, after_power_cut};
use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, ReadLimit, Record, TimestampMs, batches,
};

// The program. It does its file access through the trait, asks no clock and sends nothing itself: it is told and it answers.

const FIRST: usize = 0;
const MACHINES: usize = 3;
/// The first machine sends again what was not answered for so long.
const AGAIN_MS: i64 = 50;
/// Of what is to be flushed later, this much later.
const FLUSH_MS: i64 = 100;

/// A mistake that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The others answer before what they have is on disk.
    EarlyAnswer,
    /// Whether it is time to send again goes by a clock that may be set back.
    TrustsTheClock,
}

#[derive(Clone, Debug)]
enum Message {
    /// A client wants this done.
    Job(u64),
    /// What comes at this offset, from the first machine.
    Entries { from: Offset, bytes: Vec<u8> },
    /// A machine has everything below on disk.
    Have(Offset),
    /// The job is accepted at this offset.
    Accepted { offset: i64, job: u64 },
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Machine(usize),
    Client,
}

struct Program {
    me: usize,
    bug: Option<Bug>,
    log: Log,
    /// What the others have said that they have.
    have: [Offset; MACHINES],
    waiting: BTreeMap<i64, u64>,
    sent_ms: i64,
    flushed_ms: i64,
}

impl Program {
    fn open(me: usize, bug: Option<Bug>, fs: &SimFs, now_ms: i64) -> Result<Self, String> {
        let directory = Path::new("/jobs");
        if fs.metadata(directory).is_err() {
            fs.create_dir(directory).map_err(text)?;
        }
        fs.sync_dir(Path::new("/")).map_err(text)?;
        let options = LogOptions { segment_bytes: 1_000, ..LogOptions::default() };
        let (log, _) = Log::open_with(Arc::new(fs.clone()), directory, options, OpenHints::default()).map_err(text)?;
        let (have, waiting) = ([log.start(); MACHINES], BTreeMap::new());
        Ok(Self { me, bug, log, have, waiting, sent_ms: now_ms, flushed_ms: now_ms })
    }

    fn take(&mut self, now_ms: i64, from: usize, message: Message) -> Result<Vec<(To, Message)>, String> {
        match message {
            Message::Job(job) if self.me == FIRST => {
                let time = TimestampMs(now_ms);
                let mut batch = BatchBuilder::new(Codec::None);
                batch.push(Record::new(time, &job.to_be_bytes()));
                let appended = self.log.append(time, LeaderEpoch(0), &batch.build()).map_err(text)?;
                self.log.flush().map_err(text)?;
                self.waiting.insert(appended.first.0, job);
                self.send(now_ms)
            }
            Message::Entries { from, bytes } => {
                if from == self.log.end() {
                    self.log.append_replicated(TimestampMs(now_ms), &bytes).map_err(text)?;
                }
                if self.bug != Some(Bug::EarlyAnswer) {
                    self.log.flush().map_err(text)?;
                }
                Ok(vec![(To::Machine(FIRST), Message::Have(self.log.end()))])
            }
            Message::Have(end) => {
                if let Some(have) = self.have.get_mut(from) {
                    *have = end;
                }
                let everywhere = self.have[1].min(self.have[2]);
                let waiting = self.waiting.split_off(&everywhere.0);
                let accepted = std::mem::replace(&mut self.waiting, waiting);
                Ok(accepted.into_iter().map(|(offset, job)| (To::Client, Message::Accepted { offset, job })).collect())
            }
            Message::Job(_) | Message::Accepted { .. } => Ok(Vec::new()),
        }
    }

    /// Time has passed, by this machine's clock.
    fn tick(&mut self, now_ms: i64) -> Result<Vec<(To, Message)>, String> {
        let is_due = |since: i64, after: i64| {
            let was_set_back = now_ms < since && self.bug != Some(Bug::TrustsTheClock);
            now_ms - since >= after || was_set_back
        };
        let (flushes, sends) = (is_due(self.flushed_ms, FLUSH_MS), is_due(self.sent_ms, AGAIN_MS));
        if flushes {
            self.log.flush().map_err(text)?;
            self.flushed_ms = now_ms;
        }
        if self.me == FIRST && sends { self.send(now_ms) } else { Ok(Vec::new()) }
    }

    /// What each of the others lacks, or nothing, which asks what it has.
    fn send(&mut self, now_ms: i64) -> Result<Vec<(To, Message)>, String> {
        self.sent_ms = now_ms;
        let mut messages = Vec::new();
        for (other, have) in self.have.into_iter().enumerate().skip(1) {
            let bytes = if have < self.log.end() {
                self.log.read(have, ReadLimit::bytes(500)).map_err(text)?.bytes
            } else {
                Vec::new()
            };
            messages.push((To::Machine(other), Message::Entries { from: have, bytes }));
        }
        Ok(messages)
    }

    fn jobs(&self) -> Result<Vec<u64>, String> {
        let (mut jobs, mut from) = (Vec::new(), self.log.start());
        while from < self.log.end() {
            let fetched = self.log.read(from, ReadLimit::bytes(4096)).map_err(text)?;
            for batch in batches(&fetched.bytes) {
                let batch = batch.map_err(text)?;
                for record in batch.records().ok_or("a compressed batch")? {
                    let value = record.map_err(text)?.value.unwrap_or_default();
                    jobs.push(u64::from_be_bytes(value.try_into().map_err(text)?));
                }
            }
            from = fetched.next;
        }
        Ok(jobs)
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

// The test: a world around it.

const CLIENT: usize = MACHINES;
const TICK_MS: i64 = 10;
/// When a run begins, in true time.
const BEGINS: i64 = 1_700_000_000_000;
/// Until then things go wrong; some time later all must be well.
const HEALS_MS: i64 = 2_000;
const ENDS_MS: i64 = 3_500;

enum Event {
    Arrives { to: usize, life: u32, from: usize, message: Message },
    Ticks { machine: usize, life: u32 },
    Boots(usize),
    Asks,
    GoesWrong,
    Heals,
}

struct Machine {
    disk: SimFs,
    clock: Clock,
    program: Option<Program>,
    /// Counts starts: what was on its way to an earlier life does not arrive.
    life: u32,
}

struct World {
    bug: Option<Bug>,
    queue: Queue<Event>,
    network: Network,
    faults: Random,
    clients: Random,
    machines: Vec<Machine>,
    jobs: u64,
    /// What was accepted, by offset: the promise.
    accepted: BTreeMap<i64, u64>,
    story: Vec<String>,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How many jobs were accepted.
    pub(crate) accepted: usize,
    /// What was wrong.
    pub(crate) failure: Option<String>,
    /// What happened.
    pub(crate) story: Vec<String>,
}

/// Runs the program from a seed. Equal seeds give equal outcomes.
pub(crate) fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let machine = |number: u64| Machine {
        disk: SimFs::new(Random::stream(seed, 0x100 + number).draw()),
        clock: Clock::default(),
        program: None,
        life: 0,
    };
    let mut world = World {
        bug,
        queue: Queue::new(BEGINS),
        network: Network::new(seed, MACHINES + 1, 8),
        faults: Random::stream(seed, 1),
        clients: Random::stream(seed, 2),
        machines: (0..).take(MACHINES).map(machine).collect(),
        jobs: 0,
        accepted: BTreeMap::new(),
        story: Vec::new(),
    };
    let failure = world.run().err();
    Outcome { accepted: world.accepted.len(), failure, story: world.story }
}

impl World {
    fn run(&mut self) -> Result<(), String> {
        (0..MACHINES).for_each(|machine| self.queue.schedule(0, Event::Boots(machine)));
        self.queue.schedule(20, Event::Asks);
        self.queue.schedule(50, Event::GoesWrong);
        self.queue.schedule(HEALS_MS, Event::Heals);
        while let Some(event) = self.queue.pop() {
            if self.passed() >= ENDS_MS {
                return self.check_end();
            }
            match event {
                Event::Boots(machine) => self.boot(machine)?,
                Event::Ticks { machine, life } if self.machines[machine].life == life => {
                    self.queue.schedule(TICK_MS, Event::Ticks { machine, life });
                    self.step(machine, |program, now_ms| program.tick(now_ms))?;
                }
                Event::Arrives { to: CLIENT, message: Message::Accepted { offset, job }, .. } => {
                    self.tell(format!("the client hears: job {job} is accepted at {offset}"));
                }
                Event::Arrives { to, life, from, message } if to < MACHINES && self.machines[to].life == life => {
                    self.step(to, |program, now_ms| program.take(now_ms, from, message))?;
                }
                Event::Ticks { .. } | Event::Arrives { .. } => {}
                Event::Asks => {
                    self.jobs += 1;
                    self.send(CLIENT, To::Machine(FIRST), Message::Job(self.jobs));
                    if self.passed() < HEALS_MS - 200 {
                        let after = self.clients.between(5, 40);
                        self.queue.schedule(after, Event::Asks);
                    }
                }
                Event::GoesWrong if self.passed() < HEALS_MS => {
                    self.go_wrong();
                    let after = self.faults.between(10, 150);
                    self.queue.schedule(after, Event::GoesWrong);
                }
                Event::GoesWrong => {}
                Event::Heals => {
                    self.tell("all is well from now on".to_owned());
                    self.network.heal();
                }
            }
        }
        Err("nothing is left to happen".to_owned())
    }

    /// How long it has run.
    fn passed(&self) -> i64 {
        self.queue.now() - BEGINS
    }

    fn tell(&mut self, what: String) {
        self.story.push(format!("{:>5} ms  {what}", self.passed()));
    }

    /// Has a machine do something, and sends what it wants to send.
    fn step(
        &mut self,
        machine: usize,
        act: impl FnOnce(&mut Program, i64) -> Result<Vec<(To, Message)>, String>,
    ) -> Result<(), String> {
        let now_ms = self.machines[machine].clock.read(self.queue.now());
        let Some(program) = &mut self.machines[machine].program else { return Ok(()) };
        let messages = act(program, now_ms).map_err(|error| format!("machine {machine}: {error}"))?;
        for (to, message) in messages {
            if let Message::Accepted { offset, job } = message {
                // The promise is made when the answer is given, whether it arrives or not.
                self.accepted.insert(offset, job);
            }
            self.send(machine, to, message);
        }
        Ok(())
    }

    fn send(&mut self, from: usize, to: To, message: Message) {
        let to = if let To::Machine(machine) = to { machine } else { CLIENT };
        let life = self.machines.get(to).map_or(0, |machine| machine.life);
        for fate in self.network.send(self.queue.now(), from, to) {
            if let Fate::Arrives { after_ms } = fate {
                self.queue.schedule(after_ms, Event::Arrives { to, life, from, message: message.clone() });
            }
        }
    }

    fn boot(&mut self, number: usize) -> Result<(), String> {
        let machine = &mut self.machines[number];
        let now_ms = machine.clock.read(self.queue.now());
        let program = Program::open(number, self.bug, &machine.disk, now_ms)?;
        let jobs = program.jobs()?;
        (machine.program, machine.life) = (Some(program), machine.life + 1);
        let ticks = Event::Ticks { machine: number, life: machine.life };
        self.queue.schedule(TICK_MS, ticks);
        self.tell(format!("machine {number} starts with {} jobs", jobs.len()));
        self.holds_what_was_accepted(number, &jobs)
    }

    fn holds_what_was_accepted(&self, machine: usize, jobs: &[u64]) -> Result<(), String> {
        for (offset, job) in &self.accepted {
            let found = usize::try_from(*offset).ok().and_then(|offset| jobs.get(offset));
            if found != Some(job) {
                return Err(format!("machine {machine} has {found:?} at {offset}, where job {job} was accepted"));
            }
        }
        Ok(())
    }

    fn go_wrong(&mut self) {
        let now = self.queue.now();
        let (machine, ms) = (self.faults.index(MACHINES), self.faults.between(50, 400));
        let what = match self.faults.below(7) {
            choice @ 0..=2 if self.machines[machine].program.is_some() => {
                let disk = &self.machines[machine].disk;
                let (left, what) = match choice {
                    0 => (disk.kill(), "is killed"),
                    _ => (after_power_cut(disk, self.faults.draw()), "loses power"),
                };
                let died = &mut self.machines[machine];
                (died.program, died.disk, died.life) = (None, left, died.life + 1);
                self.queue.schedule(ms, Event::Boots(machine));
                format!("machine {machine} {what}, for {ms} ms")
            }
            0..=2 => return,
            3 => {
                let other = (machine + 1 + self.faults.index(MACHINES - 1)) % MACHINES;
                self.network.cut(machine, other, now + ms);
                format!("nothing gets from machine {machine} to {other}, for {ms} ms")
            }
            4 => {
                self.network.lose(3, now + ms);
                format!("one in three messages is lost, for {ms} ms")
            }
            5 => {
                self.network.double(3, now + ms);
                self.network.slow(now + ms);
                format!("messages come twice and late, for {ms} ms")
            }
            _ => {
                let by = self.faults.pick(&[-3_600_000, -200, 200, 3_600_000]);
                self.machines[machine].clock.step(by);
                format!("the clock of machine {machine} is set by {by} ms")
            }
        };
        self.tell(what);
    }

    fn check_end(&self) -> Result<(), String> {
        let mut all = Vec::new();
        for (number, machine) in self.machines.iter().enumerate() {
            let jobs = machine.program.as_ref().ok_or("a machine is down long after all is well")?.jobs()?;
            self.holds_what_was_accepted(number, &jobs)?;
            all.push(jobs);
        }
        if all.iter().any(|jobs| *jobs != all[FIRST]) {
            let counts: Vec<usize> = all.iter().map(Vec::len).collect();
            return Err(format!("long after all is well the machines have {counts:?} jobs"));
        }
        let waiting = self.machines[FIRST].program.as_ref().map_or(0, |program| program.waiting.len());
        if waiting > 0 { Err(format!("{waiting} jobs are not accepted long after all is well")) } else { Ok(()) }
    }
}

fn main() -> Result<(), String> {
    let (mut seeds, mut only, mut bug) = (300, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match (argument.as_str(), value.as_str()) {
            ("--seeds", number) => seeds = number.parse().map_err(text)?,
            ("--seed", number) => only = Some(number.parse::<u64>().map_err(text)?),
            ("--bug", "early-answer") => bug = Some(Bug::EarlyAnswer),
            ("--bug", "trusts-the-clock") => bug = Some(Bug::TrustsTheClock),
            _ => return Err(format!("{argument} {value} is not known")),
        }
    }
    let mut accepted = 0;
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let outcome = run(seed, bug);
        accepted += outcome.accepted;
        if only.is_some() || outcome.failure.is_some() {
            println!("{}", outcome.story.join("\n"));
        }
        if let Some(failure) = outcome.failure {
            return Err(format!("seed {seed}: {failure}"));
        }
    }
    println!("{accepted} jobs accepted, and every promise kept");
    Ok(())
}
