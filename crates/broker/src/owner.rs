//! Owning a partition: lock it if it is idle, else leave the command with whoever has it.
//!
//! ```text
//!  submit ──► inbox ──► busy? ── no ──► mark busy, drain on this thread ──┐ inline budget used up,
//!                         │                                               ├─ or a heavy command is next:
//!                         └─ yes ─► done: the holder takes it             ▼  still busy, an owner thread drains on
//! ```
//!
//! There is one way of owning: whoever turned `busy` from false to true holds the state until it finds the inbox empty
//! and turns `busy` back, and both happen under the inbox's lock. A command is put there under the same lock, so it is
//! either seen by the holder or its submitter becomes the holder: no wake-up can be lost, and the order of submissions
//! is the order of handling.
//!
//! What handling a command causes outside (answers, wake-ups, work for other threads) is collected while the state is
//! locked and carried out after it is unlocked, still before the next command: `busy` keeps other threads from getting
//! in between, so effects leave in the order of their causes, and no lock is held while they do.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::threads::Threads;

/// Commands a submitting thread handles before an owner thread takes over: a connection that finds a partition idle
/// serves its own command and a few of those that arrive meanwhile, but is not kept from its socket by others.
const INLINE_COMMANDS_MAX: usize = 32;

/// Commands an owner thread handles for one partition before the others that wait for the thread get their turn.
const TURN_COMMANDS_MAX: usize = 256;

/// State that one thread at a time may touch, by handling commands in the order they were submitted.
pub(crate) trait Owned: Send + 'static {
    /// What it is told to do. A command that is dropped unhandled must tell whoever waits for it (by its `Drop`).
    type Command: Send + 'static;

    /// What that causes outside.
    type Effect: Send + 'static;

    /// Carries effects out.
    type Outlet: Outlet<Self::Effect>;

    /// Does it. Never waits for anything but the page cache, except for heavy commands.
    fn handle(&mut self, command: Self::Command, effects: &mut Vec<Self::Effect>);

    /// Whether the command may wait for the disk, so that it belongs on an owner thread and not on a socket's.
    fn is_heavy(command: &Self::Command) -> bool;

    /// Called once if `handle` panicked: the state may be half changed and will not be asked to handle more.
    fn abandon(&mut self, effects: &mut Vec<Self::Effect>);
}

/// Where the effects of owned state go.
pub(crate) trait Outlet<E>: Send + Sync + 'static {
    /// Carries one out. Only hands things on, and looks at no owned state. Waits for nothing, unless it is of a heavy
    /// command, whose next effects are to come after it is on the disk.
    fn carry_out(&self, effect: E);
}

/// One piece of owned state with its inbox.
pub(crate) struct Owner<S: Owned> {
    state: Mutex<S>,
    inbox: Mutex<Inbox<S::Command>>,
    capacity: usize,
    threads: Arc<Threads>,
    outlet: S::Outlet,
}

struct Inbox<C> {
    commands: VecDeque<C>,
    /// Somebody holds the state and will look into the inbox again before letting go.
    busy: bool,
    /// Takes nothing any more: a command panicked, or the state was taken away.
    closed: bool,
}

/// A command that found no place.
#[derive(Debug)]
pub(crate) enum Refused<C> {
    /// The inbox holds as many commands as it may. The client is told; nothing waits at this door, or the order of
    /// one producer's batches would depend on who is woken first.
    Full(C),
    /// The state is gone for good.
    Closed(C),
}

impl<S: Owned> Owner<S> {
    /// Owned state whose inbox takes up to `capacity` commands of clients.
    pub(crate) fn new(state: S, capacity: usize, threads: Arc<Threads>, outlet: S::Outlet) -> Self {
        let inbox = Inbox { commands: VecDeque::new(), busy: false, closed: false };
        Self { state: Mutex::new(state), inbox: Mutex::new(inbox), capacity: capacity.max(1), threads, outlet }
    }

    /// Where the effects go.
    pub(crate) fn outlet(&self) -> &S::Outlet {
        &self.outlet
    }

    /// Hands in a client's command: handled before this returns if the state was idle.
    pub(crate) fn try_submit(self: &Arc<Self>, command: S::Command) -> Result<(), Refused<S::Command>> {
        self.enter(command, self.capacity)
    }

    /// Hands in a command that is bounded where it is made (one sync result per partition, one state change per
    /// version …) and so is taken even when clients filled the inbox. False if the state is gone.
    pub(crate) fn submit(self: &Arc<Self>, command: S::Command) -> bool {
        self.enter(command, usize::MAX).is_ok()
    }

    /// Looks at the state, between two commands. For views; waits for a command in progress.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&S) -> R) -> R {
        look(&self.lock_state())
    }

    /// Takes no more commands, drops those that wait, and lets `end` put the state to rest. Waits for a command in
    /// progress.
    pub(crate) fn close<R>(&self, end: impl FnOnce(&mut S) -> R) -> R {
        let dropped = {
            let mut inbox = self.lock_inbox();
            inbox.closed = true;
            std::mem::take(&mut inbox.commands)
        };
        let result = end(&mut self.lock_state());
        // Outside the locks: dropping a command answers its client.
        drop(dropped);
        result
    }

    fn enter(self: &Arc<Self>, command: S::Command, capacity: usize) -> Result<(), Refused<S::Command>> {
        let mut inbox = self.lock_inbox();
        if inbox.closed {
            return Err(Refused::Closed(command));
        }
        if inbox.commands.len() >= capacity {
            return Err(Refused::Full(command));
        }
        inbox.commands.push_back(command);
        if !inbox.busy {
            inbox.busy = true;
            drop(inbox);
            self.drain(Place::Inline);
        }
        Ok(())
    }

    /// Handles commands until the inbox is empty or this thread has done its share. The caller has set `busy`.
    fn drain(self: &Arc<Self>, place: Place) {
        let mut left = match place {
            Place::Inline => INLINE_COMMANDS_MAX,
            Place::OwnerThread => TURN_COMMANDS_MAX,
            Place::LastResort => usize::MAX,
        };
        let mut effects = Vec::new();
        loop {
            let mut inbox = self.lock_inbox();
            let Some(next) = inbox.commands.front() else {
                inbox.busy = false;
                return;
            };
            if left == 0 || (matches!(place, Place::Inline) && S::is_heavy(next)) {
                break;
            }
            left -= 1;
            let command = inbox.commands.pop_front();
            drop(inbox);
            let Some(command) = command else { continue };
            if !self.handle(command, &mut effects) {
                return;
            }
        }
        self.hand_over();
    }

    /// Handles one command and carries its effects out. False if either panicked: the owner is closed then.
    fn handle(&self, command: S::Command, effects: &mut Vec<S::Effect>) -> bool {
        let handled = {
            let mut state = self.lock_state();
            catch_unwind(AssertUnwindSafe(|| state.handle(command, effects))).is_ok()
        };
        if handled && self.carry_out(effects) {
            return true;
        }
        self.lock_state().abandon(effects);
        // Whatever comes of this: nothing more can be done about an outlet that panics twice.
        self.carry_out(effects);
        let mut inbox = self.lock_inbox();
        inbox.closed = true;
        inbox.busy = false;
        let dropped = std::mem::take(&mut inbox.commands);
        drop(inbox);
        drop(dropped);
        false
    }

    fn carry_out(&self, effects: &mut Vec<S::Effect>) -> bool {
        let carry_out = || effects.drain(..).for_each(|effect| self.outlet.carry_out(effect));
        catch_unwind(AssertUnwindSafe(carry_out)).is_ok()
    }

    /// Lets an owner thread drain on; `busy` stays set, so nobody else begins meanwhile.
    fn hand_over(self: &Arc<Self>) {
        let owner = Arc::clone(self);
        if let Err(job) = self.threads.run(Box::new(move || owner.drain(Place::OwnerThread))) {
            // The threads have ended (the broker stops): somebody waits for these answers all the same.
            drop(job);
            self.drain(Place::LastResort);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, S> {
        // Panics of `handle` are caught before they reach the guard, and those of `look` changed nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inbox(&self) -> MutexGuard<'_, Inbox<S::Command>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
enum Place {
    Inline,
    OwnerThread,
    LastResort,
}

impl<S: Owned> fmt::Debug for Owner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inbox = self.lock_inbox();
        f.debug_struct("Owner")
            .field("queued", &inbox.commands.len())
            .field("busy", &inbox.busy)
            .field("closed", &inbox.closed)
            .finish()
    }
}

#[cfg(test)]
mod tests;
