//! Clients: what they ask, what they are told, and how that gets there and back.

use highwater_groups::transactions::{TransactionAnswer, TransactionRefused};
use highwater_groups::{Answer, Commit, Refused};

use super::driver::Asker;
use super::taking_part::Mode;
use super::*;
use crate::fault::CLIENTS;

/// How long an answer is waited for; the one to JoinGroup and SyncGroup comes when others have come.
const PATIENCE_MS: i64 = 150;
const REBALANCE_MS: i64 = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Writer(usize),
    Member(usize),
    Reader(usize),
}

/// Whose request it is, and the number of that: it is on a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) number: u64,
}

/// What a client asks of a broker.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Coordinator(Asking),
    /// TxnOffsetCommit.
    Offsets {
        id: String,
        mode: Mode,
        commit: Commit,
    },
    /// Produce, in a transaction if an id is named.
    Produce {
        at: usize,
        batch: Vec<u8>,
        of: Option<(String, Mode)>,
    },
}

/// What a coordinator is asked.
#[derive(Clone, Debug)]
pub(super) enum Asking {
    Group(Request),
    Transaction(TransactionRequest),
}

#[derive(Clone, Debug)]
pub(super) enum Told {
    Group(Answer),
    Transaction(TransactionAnswer),
    Produced(Result<Offset, Code>),
    /// Before its coordinator was asked.
    Refused(Code),
}

impl Told {
    /// The coordinator has ended before it answered.
    pub(super) fn nobody(which: usize) -> Self {
        debug_assert!(which < 2, "one of the coordinators' partitions");
        Self::Refused(produce::NOT_COORDINATOR)
    }

    /// Of an answer about a partition that is to take part.
    pub(super) fn code(self) -> Result<(), Code> {
        match self {
            Self::Transaction(TransactionAnswer::Done(done)) => done.map_err(TransactionRefused::code),
            Self::Refused(code) => Err(code),
            other => panic!("no answer about taking part: {other:?}"),
        }
    }

    /// Why it was refused, if it was.
    pub(super) fn refusal(&self) -> Option<Code> {
        let of_group = |why: &Refused| why.code();
        let of_transaction = |why: &TransactionRefused| why.code();
        match self {
            Self::Group(answer) => match answer {
                Answer::Join(Err((why, _)))
                | Answer::Sync(Err(why))
                | Answer::Heartbeat(Err(why))
                | Answer::Leave(Err(why))
                | Answer::Commit(Err(why))
                | Answer::Offsets(Err(why)) => Some(of_group(why)),
                Answer::Commit(Ok(each)) => each.iter().find_map(|one| one.as_ref().err().map(of_group)),
                Answer::Offsets(Ok(each)) => each.iter().find_map(|one| one.offset.as_ref().err().map(of_group)),
                _ => None,
            },
            Self::Transaction(TransactionAnswer::Producer(Err(why)) | TransactionAnswer::Done(Err(why))) => {
                Some(of_transaction(why))
            }
            Self::Transaction(_) => None,
            Self::Produced(produced) => produced.err(),
            Self::Refused(code) => Some(*code),
        }
    }
}

impl Ask {
    /// Whether a broker may come to it after its client has given it up. What goes by epochs and numbers must bear that.
    fn may_come_late(&self) -> bool {
        match self {
            Self::Coordinator(Asking::Group(_)) => false,
            Self::Coordinator(Asking::Transaction(request)) => {
                matches!(request, TransactionRequest::Begin { .. } | TransactionRequest::End { bumps: true, .. })
            }
            Self::Offsets { mode, .. } => *mode == Mode::Add,
            Self::Produce { of, .. } => of.as_ref().is_none_or(|(_, mode)| *mode == Mode::Add),
        }
    }

    fn patience_ms(&self) -> i64 {
        match self {
            Self::Coordinator(Asking::Group(Request::Join(_) | Request::Sync(_))) => REBALANCE_MS,
            _ => PATIENCE_MS,
        }
    }
}

impl World {
    pub(super) fn clients(&self) -> Vec<Client> {
        let writers = (0..self.writers.len()).map(Client::Writer);
        let readers = (0..self.readers.len()).map(Client::Reader);
        writers.chain(readers).chain((0..self.members.len()).map(Client::Member)).collect()
    }

    pub(super) fn client_acts(&mut self, client: Client) {
        let again_ms = self.chance.between(2, 12);
        self.schedule(again_ms, NOBODY, Event::ClientActs(client));
        match client {
            Client::Writer(writer) => self.writer_acts(writer),
            Client::Member(member) => self.member_acts(member),
            Client::Reader(reader) => self.reader_reads(reader),
        }
    }

    /// The broker that a client asks about a partition: the leader, as the cluster says mostly, or one that it heard of once.
    pub(super) fn whom_to_ask(&mut self, at: usize) -> usize {
        match self.store.leader(at) {
            Some(leader) if self.healed || !self.chance.one_in(8) => leader,
            _ => self.chance.index(BROKERS),
        }
    }

    /// Sends a request. The number of it comes back.
    pub(super) fn send(&mut self, client: Client, to: usize, ask: Ask) -> u64 {
        let number = self.number();
        let caller = Caller { client, number };
        self.schedule(ask.patience_ms(), NOBODY, Event::TimesOut(caller));
        self.post(CLIENTS, to, Event::Asked(caller, Box::new(ask)));
        number
    }

    fn is_open(&self, caller: Caller) -> bool {
        match caller.client {
            Client::Writer(writer) => self.writers[writer].waits_for(caller.number),
            Client::Member(member) => self.members[member].waits_for(caller.number),
            Client::Reader(_) => false,
        }
    }

    /// A request comes to a broker.
    pub(super) fn asked(&mut self, node: usize, caller: Caller, ask: Ask) {
        // A connection that its client has closed is read no further.
        if !ask.may_come_late() && !self.is_open(caller) {
            return;
        }
        let about = self.about(caller, &ask);
        match ask {
            Ask::Coordinator(asking) => {
                let which = if matches!(asking, Asking::Group(_)) { OFFSETS } else { TRANSACTIONS };
                self.ask_driver(node, which, Asker::Client(caller, about), asking, None);
            }
            Ask::Offsets { id, mode, commit } => self.offsets_arrive(node, caller, about, id, mode, commit),
            Ask::Produce { at, batch, of } => self.produce_arrives(node, caller, at, batch, of),
        }
    }

    /// A broker answers.
    pub(super) fn answer(&mut self, node: usize, caller: Caller, told: Told) {
        let after_ms = self.network.latency(self.now, node, CLIENTS);
        if !self.network.loses(self.now, node, CLIENTS) {
            self.schedule(after_ms, NOBODY, Event::Answered(caller, Box::new(told)));
        }
    }

    pub(super) fn client_hears(&mut self, caller: Caller, told: Told) {
        if self.is_open(caller) {
            match caller.client {
                Client::Writer(writer) => self.writer_hears(writer, &told),
                Client::Member(member) => self.member_hears(member, caller.number, told),
                Client::Reader(_) => {}
            }
        }
    }

    /// An answer has not come in time: it is asked for again, over another connection.
    pub(super) fn client_waited(&mut self, caller: Caller) {
        if self.is_open(caller) {
            match caller.client {
                Client::Writer(writer) => self.writers[writer].gives_up(),
                Client::Member(member) => self.members[member].gives_up(caller.number),
                Client::Reader(_) => {}
            }
        }
    }
}
