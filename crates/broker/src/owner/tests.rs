use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Counts what it handles, and notices two threads inside at once and commands of one sender out of order.
struct Ledger {
    inside: Arc<AtomicBool>,
    last: Vec<Option<usize>>,
    inline: usize,
    abandoned: Arc<AtomicBool>,
    threads_seen: Vec<thread::ThreadId>,
}

/// Counts the effects, and notices those that overtook others.
struct Echo {
    last: Mutex<Vec<Option<usize>>>,
    handled: Arc<AtomicUsize>,
    overtaken: Arc<AtomicBool>,
}

impl Outlet<(usize, usize)> for Echo {
    fn carry_out(&self, (sender, number): (usize, usize)) {
        assert_ne!(number, usize::MAX, "on purpose");
        let mut last = self.last.lock().expect("no panic under the lock");
        if last[sender].map_or(0, |last| last + 1) != number {
            self.overtaken.store(true, Ordering::SeqCst);
        }
        last[sender] = Some(number);
        self.handled.fetch_add(1, Ordering::SeqCst);
    }
}

enum Command {
    Count { sender: usize, number: usize, heavy: bool },
    Block(mpsc::Sender<()>, mpsc::Receiver<()>),
    Panic,
    PanicOutside,
    Answer(Reply),
}

/// Tells its receiver whether it was handled or dropped.
struct Reply(Option<mpsc::Sender<bool>>);
impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(false);
        }
    }
}

impl Owned for Ledger {
    type Command = Command;
    type Effect = (usize, usize);
    type Outlet = Echo;

    fn handle(&mut self, command: Command, effects: &mut Vec<(usize, usize)>) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two threads own the state");
        match command {
            Command::Count { sender, number, .. } => {
                assert_eq!(self.last[sender].map_or(0, |last| last + 1), number, "out of order");
                self.last[sender] = Some(number);
                let id = thread::current().id();
                if self.threads_seen.last() != Some(&id) && self.threads_seen.len() < 1000 {
                    self.threads_seen.push(id);
                }
                self.inline += 1;
                effects.push((sender, number));
            }
            Command::Block(entered, release) => {
                entered.send(()).expect("the test waits");
                let _ = release.recv();
            }
            Command::Panic => {
                self.inside.store(false, Ordering::SeqCst);
                panic!("on purpose");
            }
            Command::PanicOutside => effects.push((0, usize::MAX)),
            Command::Answer(mut reply) => {
                let sender = reply.0.take().expect("answered once");
                let _ = sender.send(true);
            }
        }
        self.inside.store(false, Ordering::SeqCst);
    }

    fn is_heavy(command: &Command) -> bool {
        matches!(command, Command::Count { heavy: true, .. })
    }

    fn abandon(&mut self, _: &mut Vec<(usize, usize)>) {
        self.abandoned.store(true, Ordering::SeqCst);
    }
}

struct Bench {
    owner: Arc<Owner<Ledger>>,
    threads: Arc<Threads>,
    handled: Arc<AtomicUsize>,
    abandoned: Arc<AtomicBool>,
    overtaken: Arc<AtomicBool>,
}

fn bench(senders: usize, capacity: usize, threads: &Arc<Threads>) -> Bench {
    let handled = Arc::new(AtomicUsize::new(0));
    let abandoned = Arc::new(AtomicBool::new(false));
    let ledger = Ledger {
        inside: Arc::default(),
        last: vec![None; senders],
        inline: 0,
        abandoned: Arc::clone(&abandoned),
        threads_seen: Vec::new(),
    };
    let overtaken = Arc::new(AtomicBool::new(false));
    let last = Mutex::new(vec![None; senders]);
    let outlet = Echo { last, handled: Arc::clone(&handled), overtaken: Arc::clone(&overtaken) };
    let owner = Arc::new(Owner::new(ledger, capacity, Arc::clone(threads), outlet));
    Bench { owner, threads: Arc::clone(threads), handled, abandoned, overtaken }
}

fn wait_for(counter: &AtomicUsize, wanted: usize) {
    let started = Instant::now();
    while counter.load(Ordering::SeqCst) != wanted {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "a wake-up was lost: {} of {wanted} handled",
            counter.load(Ordering::SeqCst)
        );
        thread::yield_now();
    }
}

#[test]
fn an_idle_state_is_served_on_the_callers_thread() {
    let bench = bench(1, 10, &Arc::new(Threads::new("owner", 2)));
    for number in 0..1000 {
        assert!(bench.owner.submit(Command::Count { sender: 0, number, heavy: false }));
        assert_eq!(bench.handled.load(Ordering::SeqCst), number + 1, "handled before submit returned");
    }
    bench.owner.look(|ledger| assert_eq!(ledger.threads_seen, [thread::current().id()]));
}

#[test]
fn heavy_commands_go_to_an_owner_thread_and_keep_their_place_in_the_order() {
    let bench = bench(1, 10, &Arc::new(Threads::new("owner", 1)));
    for number in 0..100 {
        assert!(bench.owner.submit(Command::Count { sender: 0, number, heavy: number % 10 == 0 }));
    }
    wait_for(&bench.handled, 100);
    let me = thread::current().id();
    bench.owner.look(|ledger| assert!(ledger.threads_seen.iter().any(|&id| id != me)));
}

/// Eight senders on a few owners, light and heavy commands mixed, an inbox small enough to fill: each command is
/// handled once, in its sender's order, by one thread at a time, and none is left lying.
#[test]
fn no_wake_up_is_lost_under_contention() {
    const SENDERS: usize = 8;
    const EACH: usize = 4_000;
    let threads = Arc::new(Threads::new("owner", 2));
    let benches: Vec<Bench> = (0..3).map(|_| bench(SENDERS, 4, &threads)).collect();
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let benches = &benches;
            scope.spawn(move || {
                for number in 0..EACH {
                    for bench in benches {
                        let heavy = (number + sender) % 97 == 0;
                        let mut command = Command::Count { sender, number, heavy };
                        loop {
                            match bench.owner.try_submit(command) {
                                Ok(()) => break,
                                Err(Refused::Full(refused)) => command = refused,
                                Err(Refused::Closed(_)) => panic!("closed"),
                            }
                            thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    for bench in &benches {
        wait_for(&bench.handled, SENDERS * EACH);
        assert!(!bench.abandoned.load(Ordering::SeqCst), "an assertion failed inside");
        assert!(!bench.overtaken.load(Ordering::SeqCst), "an effect overtook another");
    }
}

#[test]
fn a_full_inbox_refuses_clients_but_not_the_brokers_own_commands() {
    let bench = bench(1, 2, &Arc::new(Threads::new("owner", 1)));
    let (entered, is_in) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let owner = Arc::clone(&bench.owner);
    let holder = thread::spawn(move || owner.submit(Command::Block(entered, released)));
    is_in.recv().expect("the holder is inside");
    for number in 0..2 {
        assert!(bench.owner.try_submit(Command::Count { sender: 0, number, heavy: false }).is_ok());
    }
    let full = bench.owner.try_submit(Command::Count { sender: 0, number: 2, heavy: false });
    assert!(matches!(full, Err(Refused::Full(_))));
    assert!(bench.owner.submit(Command::Count { sender: 0, number: 2, heavy: false }));
    release.send(()).expect("the holder waits");
    assert!(holder.join().expect("no panic"));
    wait_for(&bench.handled, 3);
}

#[test]
fn a_panic_closes_the_owner_and_answers_who_waits() {
    for panic in [Command::Panic, Command::PanicOutside] {
        a_panic_closes(panic);
    }
}

fn a_panic_closes(panic: Command) {
    let bench = bench(1, 10, &Arc::new(Threads::new("owner", 1)));
    let (entered, is_in) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let owner = Arc::clone(&bench.owner);
    let holder = thread::spawn(move || owner.submit(Command::Block(entered, released)));
    is_in.recv().expect("the holder is inside");
    let (reply, answer) = mpsc::channel();
    assert!(bench.owner.submit(panic));
    assert!(bench.owner.submit(Command::Answer(Reply(Some(reply)))));
    release.send(()).expect("the holder waits");
    holder.join().expect("the panic stays inside");
    assert_eq!(answer.recv_timeout(Duration::from_secs(5)), Ok(false), "dropped, and says so");
    assert!(bench.abandoned.load(Ordering::SeqCst));
    assert!(!bench.owner.submit(Command::Panic), "nothing enters any more");
}

#[test]
fn closing_waits_for_the_command_in_progress_and_drops_the_rest() {
    let bench = bench(1, 10, &Arc::new(Threads::new("owner", 1)));
    let (entered, is_in) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let owner = Arc::clone(&bench.owner);
    let holder = thread::spawn(move || owner.submit(Command::Block(entered, released)));
    is_in.recv().expect("the holder is inside");
    let (reply, answer) = mpsc::channel();
    assert!(bench.owner.submit(Command::Answer(Reply(Some(reply)))));
    let closer = {
        let owner = Arc::clone(&bench.owner);
        thread::spawn(move || owner.close(|ledger| ledger.inline))
    };
    thread::sleep(Duration::from_millis(20));
    assert!(!closer.is_finished(), "the state is still held");
    release.send(()).expect("the holder waits");
    assert_eq!(closer.join().expect("no panic"), 0);
    holder.join().expect("no panic");
    assert_eq!(answer.recv_timeout(Duration::from_secs(5)), Ok(false));
}

#[test]
fn commands_are_handled_even_after_the_owner_threads_have_ended() {
    let bench = bench(1, 10, &Arc::new(Threads::new("owner", 1)));
    bench.threads.finish();
    for number in 0..100 {
        assert!(bench.owner.submit(Command::Count { sender: 0, number, heavy: true }));
    }
    assert_eq!(bench.handled.load(Ordering::SeqCst), 100);
}
