//! The coordinator of the groups of one partition of `__consumer_offsets`.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::GroupConfig;
use crate::group::{Group, OffsetKey};
use crate::pending::{GivenId, PendingIds};
use crate::records::{GroupValue, OffsetValue, OffsetsKey, RecordError};
use crate::step::{Appends, Purpose, Step};
use crate::vocabulary::{
    Answer, Appended, Commit, Effect, GroupDescription, GroupListing, GroupState, Input, LoadedBatch, Now, Record,
    Refused, Request, Ticket,
};

/// About how many bytes of tombstones that nobody has asked for one by one are appended at a time.
const TOMBSTONES_BYTES: usize = 16 << 10;

/// About what a tombstone needs beside the names in it.
const TOMBSTONE_BYTES: usize = 40;

/// Groups, their members and their offsets, in memory. What must outlive it is in the records it asks to be appended, and
/// is there again once they have been loaded.
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: GroupConfig,
    groups: BTreeMap<String, Group>,
    /// The earliest deadline of each group that has one.
    deadlines: BTreeSet<(u64, String)>,
    appends: Appends,
    pending: PendingIds,
    /// Topics that were deleted while it loads: what it reads yet may be of them.
    deleted_meanwhile: BTreeSet<String>,
    phase: Phase,
    /// When offsets are looked over next.
    expiry_due_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
    Resigned,
}

impl Coordinator {
    /// A coordinator that is loading.
    pub fn new(config: GroupConfig) -> Self {
        Self {
            config,
            groups: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            appends: Appends::default(),
            pending: PendingIds::default(),
            deleted_meanwhile: BTreeSet::new(),
            phase: Phase::Loading,
            expiry_due_ms: 0,
        }
    }

    /// Lets something happen. What is to be done about it comes back, in the order in which it is to be done.
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.phase == Phase::Resigned {
            if let Input::Request(ticket, request) = input {
                effects.push(Effect::Answer(ticket, request.refused(Refused::NotCoordinator)));
            }
            return effects;
        }
        match input {
            Input::Load(batch) => self.load(now, batch, &mut effects),
            Input::Loaded => self.loaded(now, &mut effects),
            Input::Request(ticket, request) => self.request(now, ticket, request, &mut effects),
            Input::Appended(id, how) => {
                if let Some(purpose) = self.appends.waiting.remove(&id) {
                    let late = self.appended(now, purpose, how, &mut effects);
                    self.appends.waiting.extend(late.map(|purpose| (id, purpose)));
                }
            }
            Input::Marker { producer_id, commits } => self.decide(producer_id, commits),
            Input::TopicDeleted(topic) if self.phase == Phase::Loading => {
                self.deleted_meanwhile.insert(topic);
            }
            Input::TopicDeleted(topic) => self.forget_topic(now, &topic, &mut effects),
            Input::Tick => {}
            Input::Resigned => self.resign(&mut effects),
        }
        self.fire(now, &mut effects);
        effects
    }

    /// When [`Input::Tick`] is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let groups = self.deadlines.first().map(|(at, _)| *at);
        let expiry = (self.phase == Phase::Serving).then_some(self.expiry_due_ms);
        groups.into_iter().chain(expiry).min()
    }

    /// Does something with a group that is there, and notes its next deadline.
    fn with_group<T>(
        &mut self,
        now: Now,
        id: &str,
        effects: &mut Vec<Effect>,
        change: impl FnOnce(&mut Group, &mut Step<'_>) -> T,
    ) -> Option<T> {
        let group = self.groups.get_mut(id)?;
        let before = group.next_deadline_ms();
        let mut step = Step { now, config: &self.config, appends: &mut self.appends, effects };
        let changed = change(group, &mut step);
        let after = group.next_deadline_ms();
        if before != after {
            self.deadlines.extend(after.map(|at| (at, id.to_owned())));
            if let Some(before) = before {
                self.deadlines.remove(&(before, id.to_owned()));
            }
        }
        Some(changed)
    }

    fn group_or_new(&mut self, id: &str) {
        if !self.groups.contains_key(id) {
            self.groups.insert(id.to_owned(), Group::new(id.to_owned()));
        }
    }

    fn request(&mut self, now: Now, ticket: Ticket, request: Request, effects: &mut Vec<Effect>) {
        // A group without a name may have offsets, and no members.
        let needs_name = matches!(
            request,
            Request::Join(_)
                | Request::Sync(_)
                | Request::Heartbeat(_)
                | Request::Leave { .. }
                | Request::DeleteOffsets { .. }
        );
        if needs_name && request.group() == Some("") {
            return effects.push(Effect::Answer(ticket, request.refused(Refused::InvalidGroupId)));
        }
        if self.phase == Phase::Loading {
            let answer = match request {
                // A member would take anything else for the end of its session.
                Request::Heartbeat(_) => Answer::Heartbeat(Ok(())),
                request => request.refused(Refused::CoordinatorLoadInProgress),
            };
            return effects.push(Effect::Answer(ticket, answer));
        }
        let being_deleted = request.group().and_then(|id| self.groups.get(id)).is_some_and(|group| group.deleting);
        if being_deleted {
            return effects.push(Effect::Answer(ticket, request.refused(Refused::CoordinatorNotAvailable)));
        }
        let answer = match request {
            Request::Join(join) => {
                if let Err(why) = self.may_join(&join.group, join.session_timeout_ms, &join.member_id) {
                    return effects.push(Effect::Answer(ticket, Answer::Join(Err((why, join.member_id)))));
                }
                self.group_or_new(&join.group);
                let id = join.group.clone();
                let given = self.with_group(now, &id, effects, |group, step| group.join(step, ticket, join)).flatten();
                self.drop_if_nothing(&id);
                if let Some(member) = given {
                    self.pending.give(id, member);
                    self.bound_pending(now, effects);
                }
                return;
            }
            Request::Sync(sync) => {
                let id = sync.member.group.clone();
                if self.with_group(now, &id, effects, |group, step| group.sync(step, ticket, sync)).is_some() {
                    return;
                }
                Answer::Sync(Err(Refused::UnknownMemberId))
            }
            Request::Heartbeat(member) => {
                let done = self.with_group(now, &member.group, effects, |group, step| group.heartbeat(step, &member));
                Answer::Heartbeat(done.unwrap_or(Err(Refused::UnknownMemberId)))
            }
            Request::Leave { group, members } => {
                let left = self.with_group(now, &group, effects, |group, step| group.leave(step, &members));
                self.drop_if_nothing(&group);
                let nobody = || members.iter().map(|_| Err(Refused::UnknownMemberId)).collect();
                Answer::Leave(Ok(left.unwrap_or_else(nobody)))
            }
            Request::Commit(commit) => return self.commit(now, ticket, commit, effects),
            Request::FetchOffsets(fetch) => {
                let nothing = Group::new(fetch.group.clone());
                let group = self.groups.get(&fetch.group).unwrap_or(&nothing);
                Answer::Offsets(Ok(group.offsets.fetch_all(&fetch)))
            }
            Request::DeleteOffsets { group, partitions } => {
                return self.delete_offsets(now, ticket, &group, &partitions, effects);
            }
            Request::DeleteGroup(group) => return self.delete_group(now, ticket, &group, effects),
            Request::Describe(group) => Answer::Described(self.describe(&group)),
            Request::List => Answer::Listed(Ok(self.list())),
        };
        effects.push(Effect::Answer(ticket, answer));
    }

    fn may_join(&self, group: &str, session_timeout_ms: i32, member: &str) -> Result<(), Refused> {
        let timeouts = self.config.session_timeout_min_ms..=self.config.session_timeout_max_ms;
        if !timeouts.contains(&session_timeout_ms) {
            return Err(Refused::InvalidSessionTimeout);
        }
        if !member.is_empty() && !self.groups.contains_key(group) {
            return Err(Refused::UnknownMemberId);
        }
        Ok(())
    }

    /// How many ids are waited for.
    #[cfg(test)]
    pub(crate) fn pending_members(&self) -> usize {
        self.groups.values().map(Group::pending_members).sum()
    }

    /// Of the ids that were given out and not joined with yet the eldest are forgotten where they are too many.
    fn bound_pending(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let (count_max, bytes_max) = (self.config.pending_members_max, self.config.pending_members_bytes_max);
        loop {
            let groups = &self.groups;
            let is_pending = |id: &GivenId| groups.get(&id.group).is_some_and(|group| group.has_pending(&id.member));
            let Some(GivenId { group: id, member }) = self.pending.take_excess(count_max, bytes_max, is_pending) else {
                return;
            };
            self.with_group(now, &id, effects, |group, step| group.forget_pending(step, &member));
            self.drop_if_nothing(&id);
        }
    }

    /// A group that nobody was let into and that has nothing is none. One that is being deleted stays until that is done: it
    /// would take along whoever joins meanwhile.
    fn drop_if_nothing(&mut self, id: &str) {
        let nothing = |group: &Group| {
            let is_known = group.is_recorded() || group.has_had_offsets || group.deleting;
            group.is_empty() && group.offsets.is_empty() && !is_known
        };
        if self.groups.get(id).is_some_and(nothing) {
            self.groups.remove(id);
        }
    }

    fn commit(&mut self, now: Now, ticket: Ticket, commit: Commit, effects: &mut Vec<Effect>) {
        let id = commit.member.group.clone();
        if !self.groups.contains_key(&id) {
            if commit.member.generation >= 0 {
                return effects.push(Effect::Answer(ticket, Answer::Commit(Err(Refused::GroupIdNotFound))));
            }
            self.group_or_new(&id);
        }
        self.with_group(now, &id, effects, |group, step| {
            if let Err(why) = group.may_commit(step, &commit.member, commit.transaction.is_some()) {
                return step.answer(ticket, Answer::Commit(Err(why)));
            }
            let metadata_max = step.config.offset_metadata_max_bytes;
            let (mut offsets, mut results, mut records) = (Vec::new(), Vec::new(), Vec::new());
            for given in commit.offsets {
                if given.metadata.len() > metadata_max {
                    results.push(Err(Refused::OffsetMetadataTooLarge));
                    continue;
                }
                let committed_ms = step.now.timestamp_ms;
                let value = OffsetValue {
                    offset: given.offset,
                    leader_epoch: given.leader_epoch,
                    metadata: given.metadata,
                    commit_timestamp_ms: committed_ms,
                    expire_timestamp_ms: given.retention_ms.map_or(-1, |kept_ms| committed_ms.saturating_add(kept_ms)),
                };
                let key = (given.topic, given.partition);
                records.push(group.offset_record(&key, Some(&value)));
                group.offsets.begin(&key, commit.transaction.is_some());
                offsets.push((key, value));
                results.push(Ok(()));
            }
            if records.is_empty() {
                return step.answer(ticket, Answer::Commit(Ok(results)));
            }
            let transaction = commit.transaction;
            let purpose =
                Purpose::Offsets { group: group.id.clone(), ticket: Some(ticket), transaction, offsets, results };
            step.append(transaction, records, purpose);
        });
        self.drop_if_nothing(&id);
    }

    fn delete_offsets(
        &mut self,
        now: Now,
        ticket: Ticket,
        id: &str,
        partitions: &[OffsetKey],
        effects: &mut Vec<Effect>,
    ) {
        let found = self.with_group(now, id, effects, |group, step| {
            if group.has_others_than_consumers() {
                return step.answer(ticket, Answer::DeletedOffsets(Err(Refused::NonEmptyGroup)));
            }
            let (offsets, results) = group.deletable(partitions);
            if offsets.is_empty() {
                return step.answer(ticket, Answer::DeletedOffsets(Ok(results)));
            }
            remove_offsets(group, step, Some(ticket), offsets, results);
        });
        if found.is_none() {
            effects.push(Effect::Answer(ticket, Answer::DeletedOffsets(Err(Refused::GroupIdNotFound))));
        }
    }

    fn delete_group(&mut self, now: Now, ticket: Ticket, id: &str, effects: &mut Vec<Effect>) {
        let found = self.with_group(now, id, effects, |group, step| {
            if group.state() != GroupState::Empty {
                return step.answer(ticket, Answer::DeletedGroup(Err(Refused::NonEmptyGroup)));
            }
            remove_group(group, step, Some(ticket));
        });
        if found.is_none() {
            effects.push(Effect::Answer(ticket, Answer::DeletedGroup(Err(Refused::GroupIdNotFound))));
        }
    }

    fn describe(&self, id: &str) -> Result<GroupDescription, Refused> {
        self.groups.get(id).map(Group::describe).ok_or(Refused::GroupIdNotFound)
    }

    fn list(&self) -> Vec<GroupListing> {
        self.groups.values().map(Group::listing).collect()
    }

    /// An append has ended; what is still waited for after it comes back.
    fn appended(&mut self, now: Now, purpose: Purpose, how: Appended, effects: &mut Vec<Effect>) -> Option<Purpose> {
        let refused = match (how, &purpose) {
            // The one request whose error for that is a code of its own.
            (Appended::TooLarge, Purpose::Offsets { .. }) => Some(Refused::InvalidCommitOffsetSize),
            _ => how.refused(),
        };
        let late = how == Appended::Late;
        match purpose {
            Purpose::Note => {}
            Purpose::Assignment { group, generation } => {
                self.with_group(now, &group, effects, |group, step| group.stored(step, generation, how));
                return late.then_some(Purpose::Assignment { group, generation });
            }
            Purpose::StaticMember { group, instance, before, ticket, joined } => {
                let still = self.groups.get(&group).map_or(Err(Refused::UnknownMemberId), |group| {
                    group.has_static_member(&instance, &joined.member_id, joined.generation)
                });
                let told = match refused.map_or(still, Err) {
                    Ok(()) => Ok(joined.clone()),
                    Err(why) => Err((why, joined.member_id.clone())),
                };
                let told = Answer::Join(told);
                effects.extend(ticket.map(|ticket| Effect::Answer(ticket, told)));
                if late {
                    return Some(Purpose::StaticMember { group, instance, before, ticket: None, joined });
                }
                if refused.is_some() {
                    self.with_group(now, &group, effects, |group, step| {
                        group.static_member_not_written(step, &instance, &before, &joined.member_id);
                    });
                }
            }
            Purpose::Offsets { group, ticket, transaction, offsets, results } => {
                let told = refused.map_or_else(|| Ok(results.clone()), Err);
                effects.extend(ticket.map(|ticket| Effect::Answer(ticket, Answer::Commit(told))));
                if late {
                    return Some(Purpose::Offsets { group, ticket: None, transaction, offsets, results });
                }
                self.with_group(now, &group, effects, |group, _| {
                    group.has_had_offsets |= refused.is_none();
                    for (key, value) in offsets {
                        group.offsets.end(&key, transaction.is_some());
                        if refused.is_none() {
                            group.offsets.put(key, value, transaction.map(|producer| producer.id));
                        }
                    }
                });
                self.drop_if_nothing(&group);
            }
            Purpose::DeletedOffsets { group, ticket, offsets, results } => {
                let told = refused.map_or_else(|| Ok(results.clone()), Err);
                effects.extend(ticket.map(|ticket| Effect::Answer(ticket, Answer::DeletedOffsets(told))));
                if late {
                    return Some(Purpose::DeletedOffsets { group, ticket: None, offsets, results });
                }
                if refused.is_none() {
                    self.with_group(now, &group, effects, |group, _| {
                        for key in &offsets {
                            group.offsets.remove(key);
                        }
                    });
                    self.drop_if_nothing(&group);
                }
            }
            Purpose::DeletedGroup { group, ticket } => {
                // The tombstones of its offsets have ended by now; some of them may not be in the log.
                let has_offsets = self.groups.get(&group).is_some_and(|group| !group.offsets.is_empty());
                let refused = refused.or_else(|| has_offsets.then_some(Refused::CoordinatorNotAvailable));
                let told = refused.map_or(Ok(()), Err);
                effects.extend(ticket.map(|ticket| Effect::Answer(ticket, Answer::DeletedGroup(told))));
                if late {
                    return Some(Purpose::DeletedGroup { group, ticket: None });
                }
                self.with_group(now, &group, effects, |group, _| {
                    group.deleting = false;
                    if how == Appended::Committed {
                        group.forget_members();
                    }
                });
                self.drop_if_nothing(&group);
            }
        }
        None
    }

    /// A producer's transaction is decided, in each group in which it has written.
    fn decide(&mut self, producer: i64, commits: bool) {
        let taking_part = self.groups.values_mut().filter(|group| group.offsets.take_part_in(producer));
        let mut decided = Vec::new();
        for group in taking_part {
            group.offsets.decide(producer, commits);
            decided.push(group.id.clone());
        }
        for id in decided {
            self.drop_if_nothing(&id);
        }
    }

    fn forget_topic(&mut self, now: Now, topic: &str, effects: &mut Vec<Effect>) {
        for id in self.groups.keys().cloned().collect::<Vec<_>>() {
            self.with_group(now, &id, effects, |group, step| {
                let offsets = group.of_topic(topic);
                forget_offsets(group, step, offsets);
            });
        }
    }

    /// Lets go what nobody has used for long.
    fn expire(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.expiry_due_ms = now.uptime_ms.saturating_add(self.config.offsets_retention_check_interval_ms);
        for id in self.groups.keys().cloned().collect::<Vec<_>>() {
            self.with_group(now, &id, effects, |group, step| {
                let offsets = group.expired(step);
                if !offsets.is_empty() {
                    forget_offsets(group, step, offsets);
                } else if group.is_empty() && group.offsets.is_empty() && !group.deleting {
                    remove_group(group, step, None);
                }
            });
        }
    }

    fn fire(&mut self, now: Now, effects: &mut Vec<Effect>) {
        while self.phase == Phase::Serving && self.deadlines.first().is_some_and(|(at, _)| *at <= now.uptime_ms) {
            let Some((_, id)) = self.deadlines.pop_first() else { break };
            self.with_group(now, &id, effects, |group, step| group.fire(step));
            self.drop_if_nothing(&id);
        }
        if self.phase == Phase::Serving && now.uptime_ms >= self.expiry_due_ms {
            self.expire(now, effects);
        }
    }

    /// Everyone who waits is told to look for the new coordinator.
    fn resign(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Resigned;
        let why = Refused::NotCoordinator;
        for purpose in std::mem::take(&mut self.appends).waiting.into_values() {
            let answered = match purpose {
                Purpose::Note | Purpose::Assignment { .. } => None,
                Purpose::StaticMember { ticket, .. } => ticket.zip(Some(Answer::Join(Err((why, String::new()))))),
                Purpose::Offsets { ticket, .. } => ticket.zip(Some(Answer::Commit(Err(why)))),
                Purpose::DeletedOffsets { ticket, .. } => ticket.zip(Some(Answer::DeletedOffsets(Err(why)))),
                Purpose::DeletedGroup { ticket, .. } => ticket.zip(Some(Answer::DeletedGroup(Err(why)))),
            };
            effects.extend(answered.map(|(ticket, answer)| Effect::Answer(ticket, answer)));
        }
        for group in std::mem::take(&mut self.groups).into_values() {
            for (ticket, joins, member) in group.waiting() {
                let answer = if joins { Answer::Join(Err((why, member))) } else { Answer::Sync(Err(why)) };
                effects.push(Effect::Answer(ticket, answer));
            }
        }
        self.deadlines.clear();
        self.pending = PendingIds::default();
    }

    /// Everything has been read, which may have taken longer than a session: those of members begin now.
    fn loaded(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.phase = Phase::Serving;
        self.expiry_due_ms = now.uptime_ms.saturating_add(self.config.offsets_retention_check_interval_ms);
        for id in self.groups.keys().cloned().collect::<Vec<_>>() {
            self.with_group(now, &id, effects, |group, step| group.goes_on(step));
        }
        for topic in std::mem::take(&mut self.deleted_meanwhile) {
            self.forget_topic(now, &topic, effects);
        }
        // Who coordinated them before may have been gone when one of them was deleted.
        let topics: BTreeSet<String> = self.groups.values().flat_map(|group| group.offsets.topics()).collect();
        if !topics.is_empty() {
            effects.push(Effect::LookUpTopics(topics));
        }
    }

    fn load(&mut self, now: Now, batch: LoadedBatch, effects: &mut Vec<Effect>) {
        match batch {
            LoadedBatch::Marker { producer_id, commits } => self.decide(producer_id, commits),
            LoadedBatch::Records { transaction, records } => {
                for record in records {
                    if let Err(error) = self.load_record(now, transaction, record, effects) {
                        effects.push(Effect::Odd(error.to_string()));
                    }
                }
            }
        }
    }

    fn load_record(
        &mut self,
        now: Now,
        transaction: Option<i64>,
        record: Record,
        effects: &mut Vec<Effect>,
    ) -> Result<(), RecordError> {
        match OffsetsKey::decode(&record.key)? {
            OffsetsKey::Offset { group: id, topic, partition } => {
                let value = record.value.as_deref().map(OffsetValue::decode).transpose()?;
                self.group_or_new(&id);
                self.with_group(now, &id, effects, |group, _| match value {
                    Some(value) => {
                        group.has_had_offsets = true;
                        group.offsets.put((topic, partition), value, transaction);
                    }
                    None => group.offsets.remove(&(topic, partition)),
                });
                self.drop_if_nothing(&id);
            }
            OffsetsKey::Group(id) => match record.value.as_deref().map(GroupValue::decode).transpose()? {
                Some(value) => {
                    self.group_or_new(&id);
                    self.with_group(now, &id, effects, |group, _| group.load(value));
                }
                // Its offsets go by tombstones of their own.
                None => {
                    self.with_group(now, &id, effects, |group, _| group.forget_members());
                    self.drop_if_nothing(&id);
                }
            },
            OffsetsKey::Other(_) => {}
        }
        Ok(())
    }
}

fn remove_offsets(
    group: &Group,
    step: &mut Step<'_>,
    ticket: Option<Ticket>,
    offsets: Vec<OffsetKey>,
    results: Vec<Result<(), Refused>>,
) {
    let records = offsets.iter().map(|key| group.offset_record(key, None)).collect();
    step.append(None, records, Purpose::DeletedOffsets { group: group.id.clone(), ticket, offsets, results });
}

/// However many they are: one batch takes only so many, and a group whose tombstones do not fit would stay for ever.
fn forget_offsets(group: &Group, step: &mut Step<'_>, offsets: Vec<OffsetKey>) {
    let (mut piece, mut bytes) = (Vec::new(), 0);
    for key in offsets {
        bytes += TOMBSTONE_BYTES + group.id.len() + key.0.len();
        piece.push(key);
        if bytes >= TOMBSTONES_BYTES {
            remove_offsets(group, step, None, std::mem::take(&mut piece), Vec::new());
            bytes = 0;
        }
    }
    if !piece.is_empty() {
        remove_offsets(group, step, None, piece, Vec::new());
    }
}

/// Its tombstones go out; it takes no requests until they are committed.
fn remove_group(group: &mut Group, step: &mut Step<'_>, ticket: Option<Ticket>) {
    group.deleting = true;
    forget_offsets(group, step, group.all_offsets());
    let record = Record { key: OffsetsKey::Group(group.id.clone()).encode(), value: None };
    step.append(None, vec![record], Purpose::DeletedGroup { group: group.id.clone(), ticket });
}
