//! A follower's half of its fetch session with one leader: what the leader keeps of it, and what the next request says.
//!
//! A request asks for exactly the partitions that want records now, as one without a session does. So a partition that has
//! no plan at the moment (it flushes, cuts, or waits after a failure) is forgotten at the leader: kept there, it would be
//! answered though nobody asked, and counted as having fetched.
//!
//! Pure. Whatever goes wrong with a session, the next request is a full one.

use std::collections::{HashMap, HashSet};

use highwater_replication::BrokerEpoch;

use crate::api::ErrorCode;
use crate::fetch_sessions::{Asked, EPOCH_OPENING, Key, NO_SESSION, epoch_after};

/// What a leader keeps for us.
#[derive(Debug, Default)]
pub(crate) struct FollowerSession {
    id: i32,
    /// What the next request says; [`EPOCH_OPENING`] for a full one, which closes the session `id` and opens another.
    epoch: i32,
    listed: HashMap<Key, Asked>,
}

/// What a request says of its session and its partitions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) session_id: i32,
    pub(crate) session_epoch: i32,
    pub(crate) list: Vec<(Key, Asked)>,
    pub(crate) forget: Vec<Key>,
}

/// What an answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It tells of every partition.
    Full,
    /// Of partitions that it does not name there is nothing new.
    OnlyNews,
    /// The leader does not go on with the session: the same is to be asked again, in full.
    AskAgain,
    /// The leader failed.
    Failed,
}

impl FollowerSession {
    /// The request for these partitions, each of which is wanted once.
    pub(crate) fn draft(&mut self, wanted: &[(Key, Asked)]) -> Draft {
        let (session_id, session_epoch) = (self.id, self.epoch);
        if session_epoch == EPOCH_OPENING {
            self.listed = wanted.iter().cloned().collect();
            return Draft { session_id, session_epoch, list: wanted.to_vec(), forget: Vec::new() };
        }
        let mut list = Vec::new();
        for (key, asked) in wanted {
            if self.listed.get(key) != Some(asked) {
                self.listed.insert(key.clone(), *asked);
                list.push((key.clone(), *asked));
            }
        }
        let mut forget = Vec::new();
        if self.listed.len() > wanted.len() {
            let wanted: HashSet<&Key> = wanted.iter().map(|(key, _)| key).collect();
            forget.extend(self.listed.keys().filter(|key| !wanted.contains(key)).cloned());
            forget.sort_unstable();
            for key in &forget {
                self.listed.remove(key);
            }
        }
        Draft { session_id, session_epoch, list, forget }
    }

    /// Takes the head of the answer to the last draft. `None` is a code that nobody knows.
    pub(crate) fn answered(&mut self, code: Option<ErrorCode>, session_id: i32) -> Verdict {
        match code {
            Some(ErrorCode::None) => {
                let was_full = self.epoch == EPOCH_OPENING;
                let goes_on = session_id != NO_SESSION && (was_full || session_id == self.id);
                self.id = session_id;
                self.epoch = if goes_on { epoch_after(self.epoch) } else { EPOCH_OPENING };
                if was_full { Verdict::Full } else { Verdict::OnlyNews }
            }
            Some(ErrorCode::FetchSessionIdNotFound) => {
                self.id = NO_SESSION;
                self.reset();
                Verdict::AskAgain
            }
            Some(ErrorCode::InvalidFetchSessionEpoch | ErrorCode::FetchSessionTopicIdError) => {
                self.reset();
                Verdict::AskAgain
            }
            _ => {
                self.reset();
                Verdict::Failed
            }
        }
    }

    /// Begins anew with the next request: the answer did not come, or was not about what had been asked for. The leader
    /// may keep something; it is told to close it.
    pub(crate) fn reset(&mut self) {
        self.epoch = EPOCH_OPENING;
        self.listed = HashMap::new();
    }
}

/// Parts what is to be fetched by the life of this broker it was planned in. A request speaks for one life, the latest; what
/// was planned in an earlier one must not count as progress of this one.
pub(crate) fn of_latest_life<T>(planned: Vec<T>, life: impl Fn(&T) -> BrokerEpoch) -> (BrokerEpoch, Vec<T>, Vec<T>) {
    let latest = planned.iter().map(&life).max().unwrap_or(BrokerEpoch(-1));
    let (current, earlier) = planned.into_iter().partition(|planned| life(planned) == latest);
    (latest, current, earlier)
}

#[cfg(test)]
mod tests;
