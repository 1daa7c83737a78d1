//! What may be on the disk after a crash.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::node::{DataChange, Directory, Entries, EntryChange, FileContent, Node, PendingData, PendingEntry};
use super::random::Random;
use super::{Disk, DiskState, Process, SimFs};

/// Writes reach the disk by whole sectors.
const SECTOR_BYTES: usize = 512;

/// Up to so many changes of directories, all sets of them are among the plans; beyond, each alone and each left out.
const ENTRIES_COMBINED_MAX: usize = 4;

/// So many plans are tried for each image asked for: some give a disk that another gave.
const PLANS_PER_IMAGE: usize = 3;

impl SimFs {
    /// Up to `max` different disks that a power cut at this moment may leave behind: first the corners (nothing that was
    /// not synced survives; everything does; only entries or only content do; lengths do but bytes do not), then in turns
    /// those of three kinds: everything up to some change and nothing after it, the last write torn; all content, but
    /// only some of the changes of directories (each set of them if they are few, else each alone and each left out); and
    /// ones drawn with `seed`, which also says where each kind begins.
    ///
    /// Each is a machine started again: all that is there is durable, nothing is locked, no faults wait. The original is
    /// not touched. Equal arguments on equal disks give equal images.
    pub fn images(&self, max: usize, seed: u64) -> Vec<Self> {
        let mut pending = Pending::default();
        pending.collect(&self.disk.root);
        pending.all.sort_unstable();
        pending.all.dedup();
        pending.entries.sort_unstable();
        pending.entries.dedup();

        let mut random = Random::new(seed);
        let mut plans = Plans::new(&pending, &mut random);
        let mut seen = Vec::new();
        let mut images = Vec::new();
        for _ in 0..max.saturating_mul(PLANS_PER_IMAGE) {
            let Some(plan) = plans.next(&mut random).filter(|_| images.len() < max) else { break };
            let mut builder = Builder { plan, made: BTreeMap::new(), fingerprint: DefaultHasher::new(), used_bytes: 0 };
            let root = builder.build(&self.disk.root);
            let fingerprint = builder.fingerprint.finish();
            if !seen.contains(&fingerprint) {
                seen.push(fingerprint);
                images.push(self.restarted(root, builder.used_bytes, random.fork()));
            }
        }
        images
    }

    /// The disk after a crash of the process alone: everything written is there, and what was not synced still is not.
    /// Nothing is locked. The original is not touched. ([`SimFs::kill`] does the same without a copy.)
    pub fn process_crash_image(&self) -> Self {
        let root = copy(&self.disk.root, &mut BTreeMap::new());
        let used_bytes = self.disk.lock().used_bytes;
        let random = self.process.lock().random.fork();
        self.restarted(root, used_bytes, random)
    }

    fn restarted(&self, root: Arc<Node>, used_bytes: u64, random: Random) -> Self {
        let DiskState { next_inode, sequence, now, capacity_bytes, .. } = *self.disk.lock();
        let state = DiskState { next_inode, sequence, now, used_bytes, capacity_bytes };
        Self { disk: Arc::new(Disk { root, state: state.into() }), process: Process::new(random) }
    }
}

/// The numbers of all changes that no sync has made durable.
#[derive(Default)]
struct Pending {
    all: Vec<u64>,
    /// Those of directories.
    entries: Vec<u64>,
}

/// The plans for images, one after the other.
struct Plans {
    corners: std::vec::IntoIter<Plan>,
    ordered: std::vec::IntoIter<Plan>,
    sets: std::vec::IntoIter<Plan>,
    drawn: usize,
    nothing_pending: bool,
}

impl Plans {
    fn new(pending: &Pending, random: &mut Random) -> Self {
        let nothing_pending = pending.all.is_empty();
        let mut corners = vec![Plan::Nothing];
        if !nothing_pending {
            corners.extend([Plan::Everything, Plan::Entries, Plan::Content, Plan::Lengths]);
        }
        let mut ordered: Vec<Plan> =
            pending.all.iter().map(|&last| Plan::UpTo { last, random: random.fork() }).collect();
        let mut sets: Vec<Plan> =
            entry_sets(&pending.entries).into_iter().map(|surviving| Plan::EntrySet { surviving }).collect();
        random.shuffle(&mut ordered);
        random.shuffle(&mut sets);
        Self {
            corners: corners.into_iter(),
            ordered: ordered.into_iter(),
            sets: sets.into_iter(),
            drawn: 0,
            nothing_pending,
        }
    }

    fn next(&mut self, random: &mut Random) -> Option<Plan> {
        if let Some(corner) = self.corners.next() {
            return Some(corner);
        }
        if self.nothing_pending {
            return None;
        }
        self.drawn += 1;
        let listed = match self.drawn % 3 {
            0 => None,
            1 => self.ordered.next().or_else(|| self.sets.next()),
            _ => self.sets.next().or_else(|| self.ordered.next()),
        };
        Some(listed.unwrap_or_else(|| {
            let random = random.fork();
            if self.drawn.is_multiple_of(4) { Plan::EachUpTo { random } } else { Plan::drawn(random) }
        }))
    }
}

/// Sets of changes of directories that may be the only ones to survive.
fn entry_sets(entries: &[u64]) -> Vec<Vec<u64>> {
    if entries.len() <= ENTRIES_COMBINED_MAX {
        let bit = |set: usize, at: usize| set >> at & 1 == 1;
        return (0..1 << entries.len())
            .map(|set| entries.iter().enumerate().filter(|(at, _)| bit(set, *at)).map(|(_, entry)| *entry).collect())
            .collect();
    }
    let alone = entries.iter().map(|entry| vec![*entry]);
    let left_out = entries.iter().map(|left| entries.iter().copied().filter(|entry| entry != left).collect());
    alone.chain(left_out).collect()
}

/// Which pending changes survive.
enum Plan {
    Nothing,
    Everything,
    /// Entries, but no content.
    Entries,
    /// Content, but no entries.
    Content,
    /// Entries and the lengths of files, but zeros where bytes were written.
    Lengths,
    /// All content, and of the entries those with these numbers.
    EntrySet {
        surviving: Vec<u64>,
    },
    /// Everything up to the change numbered `last`, which is torn if it is a write.
    UpTo {
        last: u64,
        random: Random,
    },
    /// In each file and directory the changes up to some one, which is torn if it is a write.
    EachUpTo {
        random: Random,
    },
    /// Each on its own, with these chances in percent.
    Drawn {
        entry: u64,
        whole: u64,
        torn: u64,
        zeros: u64,
        random: Random,
    },
}

/// What became of one write.
enum Written {
    Not,
    Whole,
    /// The length, but zeros for bytes.
    Zeros,
    /// Each sector on its own.
    Torn,
}

impl Plan {
    fn drawn(mut random: Random) -> Self {
        let entry = [5, 50, 95, 100].into_iter().nth(random.below(4) as usize).unwrap_or(50);
        let (whole, torn, zeros) = [(5, 30, 10), (40, 30, 10), (80, 10, 5), (10, 85, 0)]
            .into_iter()
            .nth(random.below(4) as usize)
            .unwrap_or((40, 30, 10));
        Self::Drawn { entry, whole, torn, zeros, random }
    }

    /// How many of a file's or directory's `count` pending changes this plan looks at; the rest is lost.
    fn limit(&mut self, count: usize) -> usize {
        match self {
            Self::EachUpTo { random } => random.below(count as u64 + 1) as usize,
            _ => count,
        }
    }

    fn entry_survives(&mut self, sequence: u64) -> bool {
        match self {
            Self::Nothing | Self::Content => false,
            Self::Everything | Self::Entries | Self::Lengths | Self::EachUpTo { .. } => true,
            Self::EntrySet { surviving } => surviving.contains(&sequence),
            Self::UpTo { last, .. } => sequence <= *last,
            Self::Drawn { entry, random, .. } => random.chance(*entry),
        }
    }

    fn length_survives(&mut self, sequence: u64) -> bool {
        match self {
            Self::Nothing | Self::Entries => false,
            Self::Everything | Self::Content | Self::Lengths | Self::EntrySet { .. } | Self::EachUpTo { .. } => true,
            Self::UpTo { last, .. } => sequence <= *last,
            Self::Drawn { whole, torn, random, .. } => random.chance(*whole + *torn),
        }
    }

    fn written(&mut self, sequence: u64, last_of_file: bool) -> Written {
        match self {
            Self::Nothing | Self::Entries => Written::Not,
            Self::Everything | Self::Content | Self::EntrySet { .. } => Written::Whole,
            Self::Lengths => Written::Zeros,
            Self::UpTo { last, .. } if sequence == *last => Written::Torn,
            Self::UpTo { last, .. } if sequence < *last => Written::Whole,
            Self::UpTo { .. } => Written::Not,
            Self::EachUpTo { .. } if last_of_file => Written::Torn,
            Self::EachUpTo { .. } => Written::Whole,
            Self::Drawn { whole, torn, zeros, random, .. } => match random.below(100) {
                draw if draw < *whole => Written::Whole,
                draw if draw < *whole + *torn => Written::Torn,
                draw if draw < *whole + *torn + *zeros => Written::Zeros,
                _ => Written::Not,
            },
        }
    }

    /// Whether one sector of a torn write arrived.
    fn sector_survives(&mut self) -> bool {
        match self {
            Self::UpTo { random, .. } | Self::EachUpTo { random } | Self::Drawn { random, .. } => random.chance(50),
            _ => true,
        }
    }
}

/// Builds one image from the durable state and what the plan lets through.
struct Builder {
    plan: Plan,
    /// Nodes of the image by inode: a file with two names stays one file.
    made: BTreeMap<u64, Arc<Node>>,
    /// Of names and bytes, to tell images apart.
    fingerprint: DefaultHasher,
    used_bytes: u64,
}

impl Builder {
    fn build(&mut self, node: &Arc<Node>) -> Arc<Node> {
        if let Some(made) = self.made.get(&node.inode) {
            node.inode.hash(&mut self.fingerprint);
            if let Ok(mut file) = made.file() {
                file.links += 1;
            }
            return made.clone();
        }
        let made = if let Ok(file) = node.file() {
            Arc::new(self.build_file(node.inode, &file))
        } else {
            let entries = node.entries().map(|directory| self.surviving_entries(&directory)).unwrap_or_default();
            let mut durable = Entries::new();
            entries.len().hash(&mut self.fingerprint);
            for (name, child) in entries {
                name.hash(&mut self.fingerprint);
                durable.insert(name, self.build(&child));
            }
            let directory = Directory { live: durable.clone(), durable, pending: Vec::new(), sync_failed: false };
            Arc::new(Node::directory(node.inode, directory))
        };
        self.made.insert(node.inode, made.clone());
        made
    }

    fn build_file(&mut self, inode: u64, file: &FileContent) -> Node {
        let mut durable = file.durable.clone();
        let limit = self.plan.limit(file.pending.len());
        for (at, pending) in file.pending.iter().take(limit).enumerate() {
            self.apply(pending, at + 1 == limit, &mut durable);
        }
        durable.hash(&mut self.fingerprint);
        self.used_bytes += durable.len() as u64;
        let content = FileContent { live: durable.clone(), durable, pending: Vec::new(), links: 1, ..*file };
        Node::file_of(inode, content)
    }

    fn apply(&mut self, pending: &PendingData, last_of_file: bool, to: &mut Vec<u8>) {
        let DataChange::Write { position, bytes } = &pending.change else {
            if self.plan.length_survives(pending.sequence) {
                pending.change.apply(to);
            }
            return;
        };
        match self.plan.written(pending.sequence, last_of_file) {
            Written::Not => {}
            Written::Whole => pending.change.apply(to),
            Written::Zeros => {
                // Only what lies beyond the old end: blocks that were there keep their bytes.
                let end = position + bytes.len();
                if to.len() < end {
                    to.resize(end, 0);
                }
            }
            Written::Torn => {
                let mut rest = bytes.as_slice();
                let mut start = *position;
                while !rest.is_empty() {
                    let sector = (SECTOR_BYTES - start % SECTOR_BYTES).min(rest.len());
                    let (bytes, behind) = rest.split_at(sector);
                    if self.plan.sector_survives() {
                        super::node::write_bytes(to, start, bytes);
                    }
                    start += sector;
                    rest = behind;
                }
            }
        }
    }

    fn surviving_entries(&mut self, directory: &Directory) -> Entries {
        let mut entries = directory.durable.clone();
        let limit = self.plan.limit(directory.pending.len());
        let considered = directory.pending.get(..limit).unwrap_or_default();
        let mut survives: Vec<bool> =
            considered.iter().map(|pending| self.plan.entry_survives(pending.sequence)).collect();
        imply_earlier_moves(considered, &mut survives);
        for (pending, survives) in considered.iter().zip(survives) {
            if survives {
                pending.change.apply(&mut entries);
            }
        }
        entries
    }
}

/// A rename that happened moved the file from where its earlier changes had put it; without them it would have two names.
fn imply_earlier_moves(pending: &[PendingEntry], survives: &mut [bool]) {
    let mut moved: Vec<&Arc<Node>> = Vec::new();
    for (pending, survives) in pending.iter().zip(survives).rev() {
        let node = pending.change.node();
        if moved.iter().any(|moved| Arc::ptr_eq(moved, node)) {
            *survives = true;
        } else if *survives && matches!(pending.change, EntryChange::Rename { .. }) {
            moved.push(node);
        }
    }
}

impl Pending {
    /// Takes in all pending changes at and below a node, also in what may come back or vanish.
    fn collect(&mut self, node: &Node) {
        if let Ok(file) = node.file() {
            self.all.extend(file.pending.iter().map(|pending| pending.sequence));
            return;
        }
        let Ok(directory) = node.entries() else { return };
        let changes = directory.pending.iter().map(|pending| pending.sequence);
        self.all.extend(changes.clone());
        self.entries.extend(changes);
        let mut children: BTreeMap<u64, &Arc<Node>> = BTreeMap::new();
        let pending = directory.pending.iter().map(|pending| pending.change.node());
        for child in directory.live.values().chain(directory.durable.values()).chain(pending) {
            children.insert(child.inode, child);
        }
        for child in children.values() {
            self.collect(child);
        }
    }
}

/// Copies a node with everything below it, durable and pending, keeping files with several names single.
fn copy(node: &Arc<Node>, made: &mut BTreeMap<u64, Arc<Node>>) -> Arc<Node> {
    if let Some(made) = made.get(&node.inode) {
        return made.clone();
    }
    let copied = if let Ok(file) = node.file() {
        Node::file_of(node.inode, file.clone())
    } else {
        let original = node.entries().map(|directory| directory.clone()).unwrap_or_default();
        let mut entries = |entries: Entries| -> Entries {
            entries.into_iter().map(|(name, child)| (name, copy(&child, made))).collect()
        };
        let (live, durable) = (entries(original.live), entries(original.durable));
        let pending = original.pending.into_iter().map(|PendingEntry { sequence, change }| {
            let change = match change {
                EntryChange::Set { name, node } => EntryChange::Set { name, node: copy(&node, made) },
                EntryChange::Rename { from, to, node } => EntryChange::Rename { from, to, node: copy(&node, made) },
                EntryChange::Unset { name, node } => EntryChange::Unset { name, node: copy(&node, made) },
            };
            PendingEntry { sequence, change }
        });
        let pending = pending.collect();
        Node::directory(node.inode, Directory { live, durable, pending, sync_failed: original.sync_failed })
    };
    let copied = Arc::new(copied);
    made.insert(node.inode, copied.clone());
    copied
}
