//! A member as clients have it: it looks for the coordinator, joins, asks for its assignment, fetches its offsets, and
//! commits and says that it lives. What is not answered in time it asks again, over another connection.

use bytes::Bytes;
use highwater_groups::*;

use super::PARTITIONS;

const HEARTBEAT_MS: u64 = 1_000;

/// How long a member waits for an answer, and how long others wait for it.
const PATIENCE_MS: u64 = 5_000;
const SESSION_MS: i32 = 6_000;
const REBALANCE_MS: i32 = 6_000;

/// The same of the static member: it is a member yet when others have gone on without it.
const STATIC_PATIENCE_MS: u64 = 20_000;
const STATIC_SESSION_MS: i32 = 25_000;

/// The place whose members are one static member.
const STATIC_PLACE: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Doing {
    Join,
    Sync { assignments: Vec<(String, Bytes)> },
    Fetch,
    Stable,
}

#[derive(Debug)]
pub(crate) struct Member {
    /// Makes what it writes its own.
    number: u64,
    instance: Option<String>,
    doing: Doing,
    coordinator: Option<usize>,
    id: String,
    generation: i32,
    mine: Vec<i32>,
    /// What it commits next, of each of its partitions.
    next: Vec<i64>,
    turn: usize,
    /// A question is on its way since then.
    asked_at_ms: Option<u64>,
    /// What that would commit.
    committing: Option<(i32, i64)>,
    beat_at_ms: u64,
    connection: u64,
    syncs: u64,
}

impl Member {
    pub(crate) fn new(place: usize, number: u64) -> Self {
        Self {
            number,
            instance: (place == STATIC_PLACE).then(|| "static".to_owned()),
            doing: Doing::Join,
            coordinator: None,
            id: String::new(),
            generation: -1,
            mine: Vec::new(),
            next: Vec::new(),
            turn: 0,
            asked_at_ms: None,
            committing: None,
            beat_at_ms: 0,
            // Answers to whoever was here before are not for this one.
            connection: number << 32,
            syncs: 0,
        }
    }

    pub(crate) fn is_stable(&self) -> bool {
        self.doing == Doing::Stable
    }

    pub(crate) fn partitions(&self) -> &[i32] {
        if self.is_stable() { &self.mine } else { &[] }
    }

    /// What the question on that connection would commit.
    pub(crate) fn commits(&self, connection: u64) -> Option<(i32, i64)> {
        self.committing.filter(|_| connection == self.connection)
    }

    /// What it asks next, of which broker and on which connection.
    pub(crate) fn acts(&mut self, leader: usize, now_ms: u64) -> Option<(usize, u64, Request)> {
        if let Some(since) = self.asked_at_ms {
            let patience_ms = if self.instance.is_some() { STATIC_PATIENCE_MS } else { PATIENCE_MS };
            if now_ms < since + patience_ms {
                return None;
            }
            self.coordinator = None;
        }
        let coordinator = *self.coordinator.get_or_insert(leader);
        self.asked_at_ms = Some(now_ms);
        self.committing = None;
        self.connection += 1;
        let request = match &self.doing {
            Doing::Join => Request::Join(self.join()),
            Doing::Sync { assignments } => Request::Sync(Sync {
                member: self.at(),
                protocol_type: None,
                protocol: None,
                assignments: assignments.clone(),
            }),
            Doing::Fetch => {
                let partitions = self.mine.iter().map(|&partition| ("books".into(), partition));
                Request::FetchOffsets(FetchOffsets {
                    group: "g".into(),
                    partitions: Some(partitions.collect()),
                    require_stable: false,
                })
            }
            Doing::Stable if now_ms >= self.beat_at_ms || self.mine.is_empty() => {
                self.beat_at_ms = now_ms + HEARTBEAT_MS;
                Request::Heartbeat(self.at())
            }
            Doing::Stable => {
                self.turn = (self.turn + 1) % self.mine.len();
                let (partition, offset) = (self.mine[self.turn], self.next[self.turn]);
                self.committing = Some((partition, offset));
                let one = CommittedOffset { topic: "books".into(), partition, offset, ..CommittedOffset::default() };
                Request::Commit(Commit { member: self.at(), transaction: None, offsets: vec![one] })
            }
        };
        Some((coordinator, self.connection, request))
    }

    /// It is answered. Of an assignment comes back in which generation it is, and what number its leader gave it.
    pub(crate) fn hears(&mut self, connection: u64, answer: &Answer) -> Option<(i32, u64)> {
        if connection != self.connection || self.asked_at_ms.take().is_none() {
            return None;
        }
        match answer {
            Answer::Join(Ok(joined)) => {
                self.id.clone_from(&joined.member_id);
                self.generation = joined.generation;
                self.syncs += 1;
                self.doing = Doing::Sync { assignments: self.assign(&joined.members) };
            }
            Answer::Join(Err((Refused::MemberIdRequired, id))) => self.id.clone_from(id),
            Answer::Sync(Ok(synced)) => {
                let (number, mine) = synced.assignment.split_first_chunk::<8>()?;
                self.mine = mine.iter().map(|&partition| partition.into()).collect();
                self.doing = if self.mine.is_empty() { Doing::Stable } else { Doing::Fetch };
                return Some((self.generation, u64::from_be_bytes(*number)));
            }
            Answer::Offsets(Ok(offsets)) => {
                let after = |found: &FetchedOffset| found.offset.as_ref().ok()?.as_ref().map(|value| value.offset + 1);
                self.next = offsets.iter().map(|found| after(found).unwrap_or(0)).collect();
                self.doing = Doing::Stable;
            }
            Answer::Commit(Ok(_)) => self.next[self.turn] += 1,
            Answer::Heartbeat(Ok(())) => {}
            Answer::Join(Err((why, _)))
            | Answer::Sync(Err(why))
            | Answer::Offsets(Err(why))
            | Answer::Commit(Err(why))
            | Answer::Heartbeat(Err(why)) => self.refused(*why),
            other => panic!("{other:?}"),
        }
        None
    }

    fn refused(&mut self, why: Refused) {
        match why {
            Refused::NotCoordinator => self.coordinator = None,
            Refused::CoordinatorLoadInProgress | Refused::CoordinatorNotAvailable => {}
            Refused::RebalanceInProgress => self.doing = Doing::Join,
            Refused::UnknownMemberId | Refused::IllegalGeneration | Refused::FencedInstanceId => {
                self.doing = Doing::Join;
                self.id.clear();
            }
            other => panic!("{other:?}"),
        }
    }

    fn at(&self) -> MemberAt {
        MemberAt {
            group: "g".into(),
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            generation: self.generation,
        }
    }

    fn join(&self) -> Join {
        Join {
            group: "g".into(),
            member_id: self.id.clone(),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            fresh_id: format!("{}-{}", self.number, self.connection),
            group_instance_id: self.instance.clone(),
            session_timeout_ms: if self.instance.is_some() { STATIC_SESSION_MS } else { SESSION_MS },
            rebalance_timeout_ms: REBALANCE_MS,
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), Bytes::new())],
            requires_known_member_id: true,
            ..Join::default()
        }
    }

    /// Gives out all partitions: the number of this assignment, and behind it the partitions of each member.
    fn assign(&self, members: &[JoinedMember]) -> Vec<(String, Bytes)> {
        let number = self.number << 16 | self.syncs;
        let partitions = 0..u8::try_from(PARTITIONS).expect("they are few");
        let of = |(at, member): (usize, &JoinedMember)| {
            let mine: Vec<u8> = partitions.clone().skip(at).step_by(members.len()).collect();
            (member.member_id.clone(), [&number.to_be_bytes()[..], &mine].concat().into())
        };
        members.iter().enumerate().map(of).collect()
    }
}
