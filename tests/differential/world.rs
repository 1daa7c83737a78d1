//! What one broker has told: the ids, members and sessions by which later requests name things. Both brokers are asked for the
//! same things; what they call them differs, so a request is made for each of them from the same choices.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::tree::Tree;

/// Kafka's code for a member that the group does not have.
const UNKNOWN_MEMBER_ID: &str = "25";

/// The id that requests name a topic by that never was.
pub(crate) const MADE_UP: Uuid = Uuid::from_bytes([7; 16]);

/// A group's member, as the broker that answered calls it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) generation: i64,
}

/// What one broker has told.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// The ids of topics; the latest of a name that was used again.
    topic_ids: BTreeMap<String, [u8; 16]>,
    /// Group → who joined last.
    members: BTreeMap<String, Member>,
    /// Producer ids and epochs, in the order they were given out.
    producers: Vec<(i64, i16)>,
    /// Transactional id → the producer id and epoch behind it.
    transactional: BTreeMap<String, (i64, i16)>,
    /// The directory that its partitions are in.
    log_dir: Option<String>,
    /// Fetch session ids, and the epoch that is next.
    sessions: Vec<(i32, i32)>,
    /// When the run began.
    started_ms: i64,
    /// What to put in the place of what only this broker says: text → name.
    names: BTreeMap<String, String>,
}

impl World {
    /// Of a broker that was asked nothing yet.
    pub(crate) fn new(started_ms: i64) -> Self {
        Self { started_ms, ..Self::default() }
    }

    /// The id of a topic; zeros if it has none.
    pub(crate) fn topic_id(&self, name: &str) -> [u8; 16] {
        self.topic_ids.get(name).copied().unwrap_or_default()
    }

    /// Who joined a group last, if anybody did.
    pub(crate) fn member(&self, group: &str) -> Option<&Member> {
        self.members.get(group)
    }

    /// Some producer that was given its id; `pick` counts from the latest.
    pub(crate) fn producer(&self, pick: usize) -> Option<(i64, i16)> {
        self.producers.iter().rev().nth(pick).copied()
    }

    /// The producer behind a transactional id.
    pub(crate) fn transactional(&self, id: &str) -> Option<(i64, i16)> {
        self.transactional.get(id).copied()
    }

    /// The directory that its partitions are in, once it has told.
    pub(crate) fn log_dir(&self) -> Option<&str> {
        self.log_dir.as_deref()
    }

    /// Some fetch session; `pick` counts from the latest.
    pub(crate) fn session(&self, pick: usize) -> Option<(i32, i32)> {
        self.sessions.iter().rev().nth(pick).copied()
    }

    /// Takes note of what an answer tells. `request` is what was asked, in the same form; `number` is its place in the run, by
    /// which both brokers' worlds name what the answer brings.
    pub(crate) fn learn(&mut self, number: i32, api: &str, request: &Tree, answer: &Tree) {
        match api {
            "JoinGroup" => {
                let (Some(group), Some(id)) = (request.leaf("group_id"), answer.leaf("member_id")) else { return };
                if answer.leaf("error_code") == Some(UNKNOWN_MEMBER_ID)
                    && self.member(group).is_some_and(|one| one.id == id)
                {
                    self.members.remove(group);
                    return;
                }
                if id.is_empty() || request.leaf("member_id") == Some(id) && answer.leaf("error_code") != Some("0") {
                    return;
                }
                let generation = answer.leaf("generation_id").and_then(|text| text.parse().ok()).unwrap_or(-1);
                if request.leaf("member_id") != Some(id) {
                    self.names.insert(format!("{id:?}"), format!("the member of {number}"));
                }
                self.members.insert(group.to_owned(), Member { id: id.to_owned(), generation });
            }
            "LeaveGroup" => {
                let Some(group) = request.leaf("group_id") else { return };
                let is_refused = |tree: &Tree| tree.leaf("error_code") != Some("0");
                if !is_refused(answer) && !answer.list("members").iter().any(is_refused) {
                    self.members.remove(group);
                }
            }
            "InitProducerId" | "EndTxn" => {
                let read = |name| answer.leaf(name).and_then(|text| text.parse::<i64>().ok());
                let (Some(id), Some(epoch)) = (read("producer_id").filter(|id| *id >= 0), read("producer_epoch"))
                else {
                    return;
                };
                let name = format!("producer {id}");
                self.names.entry(name).or_insert_with(|| format!("the producer of {number}"));
                let producer = (id, i16::try_from(epoch).unwrap_or_default());
                match request.leaf("transactional_id").filter(|id| !matches!(*id, "null" | "")) {
                    Some(transactional) => _ = self.transactional.insert(transactional.to_owned(), producer),
                    None => self.producers.push(producer),
                }
            }
            "DescribeLogDirs" => {
                let told = answer.list("results").first().and_then(|dir| dir.leaf("log_dir"));
                self.log_dir = told.map(str::to_owned).or_else(|| self.log_dir.take());
            }
            "Fetch" => {
                let read = |tree: &Tree, name| tree.leaf(name).and_then(|text| text.parse::<i32>().ok()).unwrap_or(0);
                let id = read(answer, "session_id");
                let known = self.sessions.iter_mut().find(|(known, _)| *known == id);
                match known {
                    Some((_, next)) => *next = read(request, "session_epoch") + 1,
                    None if id != 0 => {
                        self.names.insert(format!("session {id}"), format!("the session of {number}"));
                        self.sessions.push((id, 1));
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// Takes note of a topic's id.
    pub(crate) fn learn_topic(&mut self, name: &str, id: &str) {
        let Some(id) = Uuid::parse_str(id).ok().filter(|id| !id.is_nil()) else { return };
        if self.topic_ids.insert(name.to_owned(), *id.as_bytes()) != Some(*id.as_bytes()) {
            let count = self.names.values().filter(|known| known.starts_with(&format!("id of {name},"))).count();
            self.names.insert(id.to_string(), format!("id of {name}, number {count}"));
        }
    }

    /// What to compare instead of a value of this broker's own.
    pub(crate) fn common(&self, path: &str, text: &str, port: u16) -> Option<String> {
        let is_now = |text: &str| text.parse::<i64>().is_ok_and(|time_ms| time_ms > self.started_ms);
        let field = path.rsplit('.').next().unwrap_or(path);
        let named = |kind: &str| self.names.get(&format!("{kind} {text}")).cloned();
        match field {
            "port" if text == port.to_string() => Some("its port".to_owned()),
            "log_append_time_ms"
            | "timestamp"
            | "transaction_start_time_ms"
            | "last_timestamp"
            | "last_fetch_timestamp"
            | "last_caught_up_timestamp"
                if is_now(text) =>
            {
                Some("now".to_owned())
            }
            "log_dir" => Some("its directory".to_owned()),
            "total_bytes" | "usable_bytes" if text != "-1" => Some("so many".to_owned()),
            "cluster_id" if text.starts_with('"') => Some("its cluster id".to_owned()),
            "producer_id" => named("producer"),
            "session_id" => named("session"),
            "records" => Some(crate::records::describe(text, &|id| {
                self.names.get(&format!("producer {id}")).cloned().unwrap_or_else(|| id.to_string())
            })),
            "topic_id" => self.names.get(text).cloned().or_else(|| {
                // Of a topic that is being made, or of none.
                let id = Uuid::parse_str(text).ok().filter(|id| !id.is_nil() && *id != MADE_UP);
                id.map(|_| "a new id".to_owned())
            }),
            _ => self.names.get(text).cloned(),
        }
    }
}
