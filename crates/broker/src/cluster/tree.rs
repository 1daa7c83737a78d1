//! The embedded store's nodes: a pure value with atomic commits that can be taken back. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{CommitCause, CommitError, Node, Op, OpDone};

/// No node is larger: a topic of 50,000 partitions fits, a runaway writer does not (ZooKeeper's `jute.maxbuffer`).
pub(super) const DATA_BYTES_MAX: usize = 1024 * 1024;

/// No path is longer; the longest of ours is a topic of 249 characters with `/brokers/topics/../partitions/N/state`.
pub(super) const PATH_BYTES_MAX: usize = 1024;

/// All nodes. The root is always there and has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    nodes: BTreeMap<String, TreeNode>,
    last_commit: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TreeNode {
    data: Bytes,
    version: i64,
    created: i64,
    /// The session it goes with.
    owner: Option<i64>,
    children: BTreeSet<String>,
}

/// A change that outlives sessions, as the journal keeps it. The commit's number is its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// A new node.
    Create { path: String, data: Bytes },
    /// A new value.
    Set { path: String, data: Bytes },
    /// The node is gone.
    Delete { path: String },
}

/// What a commit changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// One entry for each operation.
    pub(super) done: Vec<OpDone>,
    /// The commit's number; larger than any before.
    pub(super) number: i64,
    /// What to write down. Ephemeral nodes are not in it: their sessions do not survive the process.
    pub(super) effects: Vec<Effect>,
    /// Nodes that were created, written or deleted.
    pub(super) touched: Vec<String>,
    /// Nodes whose set of children changed.
    pub(super) families: Vec<String>,
    undo: Undo,
}

/// The way back from one commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Undo {
    /// Earlier values, to be put back last first.
    earlier: Vec<(String, Option<TreeNode>)>,
    commit: i64,
}

impl Changes {
    /// Takes the way back out: it is needed after the answer has been sent.
    pub(super) fn take_undo(&mut self) -> Undo {
        std::mem::take(&mut self.undo)
    }
}

/// A node as a snapshot keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) path: String,
    pub(super) data: Bytes,
    pub(super) version: i64,
    pub(super) created: i64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = TreeNode { data: Bytes::new(), version: 0, created: 0, owner: None, children: BTreeSet::new() };
        Self { nodes: BTreeMap::from([("/".to_owned(), root)]), last_commit: 0 }
    }

    /// The number of the last commit.
    pub(super) fn last_commit(&self) -> i64 {
        self.last_commit
    }

    pub(super) fn read(&self, path: &str) -> Option<Node> {
        let node = self.nodes.get(path)?;
        Some(Node {
            data: node.data.clone(),
            version: node.version,
            created: node.created,
            ephemeral: node.owner.is_some(),
        })
    }

    pub(super) fn children(&self, path: &str) -> Vec<String> {
        self.nodes.get(path).map(|node| node.children.iter().cloned().collect()).unwrap_or_default()
    }

    /// Carries out all of `ops` or nothing.
    pub(super) fn commit(&mut self, session: i64, ops: &[Op]) -> Result<Changes, CommitError> {
        let number = self.last_commit + 1;
        let mut changes =
            Changes { number, undo: Undo { earlier: Vec::new(), commit: self.last_commit }, ..Changes::default() };
        for (at, op) in ops.iter().enumerate() {
            if let Err(cause) = self.step(session, number, op, &mut changes) {
                self.undo(changes.take_undo());
                return Err(CommitError { at, cause });
            }
        }
        self.last_commit = number;
        Ok(changes)
    }

    /// Takes the latest commit back.
    pub(super) fn undo(&mut self, undo: Undo) {
        for (path, earlier) in undo.earlier.into_iter().rev() {
            let name = split(&path).map(|(parent, name)| (parent.to_owned(), name.to_owned()));
            let lives = earlier.is_some();
            match earlier {
                Some(node) => self.nodes.insert(path, node),
                None => self.nodes.remove(&path),
            };
            let Some((parent, name)) = name else { continue };
            let Some(parent) = self.nodes.get_mut(&parent) else { continue };
            if lives {
                parent.children.insert(name);
            } else {
                parent.children.remove(&name);
            }
        }
        self.last_commit = undo.commit;
    }

    /// Removes the nodes that go with a session. Not a commit: it has no number and needs no journal.
    pub(super) fn end_session(&mut self, session: i64) -> Changes {
        let mut changes = Changes::default();
        let owned: Vec<String> =
            self.nodes.iter().filter(|(_, node)| node.owner == Some(session)).map(|(path, _)| path.clone()).collect();
        for path in owned {
            self.remove(&path, &mut changes);
        }
        changes
    }

    /// Repeats a commit from the journal. `Err` says what does not fit.
    pub(super) fn replay(&mut self, number: i64, effects: &[Effect]) -> Result<(), String> {
        if number != self.last_commit + 1 {
            return Err(format!("commit {number} follows commit {}", self.last_commit));
        }
        let ops: Vec<Op> = effects
            .iter()
            .map(|effect| match effect.clone() {
                Effect::Create { path, data } => Op::Create { path, data },
                Effect::Set { path, data } => Op::Set { path, data, version: None },
                Effect::Delete { path } => Op::Delete { path, version: None },
            })
            .collect();
        self.commit(0, &ops).map(|_| ()).map_err(|error| format!("commit {number}, {error}"))
    }

    /// The nodes that outlive sessions, parents before children, without the root.
    pub(super) fn kept(&self) -> impl Iterator<Item = Kept> + '_ {
        self.nodes.iter().filter(|(path, node)| node.owner.is_none() && *path != "/").map(|(path, node)| Kept {
            path: path.clone(),
            data: node.data.clone(),
            version: node.version,
            created: node.created,
        })
    }

    /// A tree from a snapshot's nodes, parents before children. `Err` says what does not fit.
    pub(super) fn restore(last_commit: i64, nodes: impl IntoIterator<Item = Kept>) -> Result<Self, String> {
        let mut tree = Self::new();
        for kept in nodes {
            let Kept { path, data, version, created } = kept;
            if version > last_commit || created > version || created < 1 {
                return Err(format!("{path:?} has version {version} and creation number {created}"));
            }
            tree.insert(&path, data, created, None, &mut Changes::default())
                .map_err(|cause| format!("{path:?}: {cause}"))?;
            if let Some(node) = tree.nodes.get_mut(&path) {
                node.version = version;
            }
        }
        tree.last_commit = last_commit;
        Ok(tree)
    }

    fn step(&mut self, session: i64, number: i64, op: &Op, changes: &mut Changes) -> Result<(), CommitCause> {
        match op {
            Op::Check { path, version } => {
                let node = self.nodes.get(path).ok_or(CommitCause::Missing)?;
                expect_version(node, Some(*version))?;
                changes.done.push(OpDone { version: node.version, created: node.created });
            }
            Op::Exists { path } => {
                let node = self.nodes.get(path).ok_or(CommitCause::Missing)?;
                changes.done.push(OpDone { version: node.version, created: node.created });
            }
            Op::Create { path, data } => {
                self.insert(path, data.clone(), number, None, changes)?;
                changes.effects.push(Effect::Create { path: path.clone(), data: data.clone() });
                changes.done.push(OpDone { version: number, created: number });
            }
            Op::CreateEphemeral { path, data } => {
                self.insert(path, data.clone(), number, Some(session), changes)?;
                changes.done.push(OpDone { version: number, created: number });
            }
            Op::Set { path, data, version } => {
                if path == "/" {
                    return Err(CommitCause::Invalid);
                }
                expect_size(data)?;
                let node = self.nodes.get_mut(path).ok_or(CommitCause::Missing)?;
                expect_version(node, *version)?;
                changes.undo.earlier.push((path.clone(), Some(node.clone())));
                node.data = data.clone();
                node.version = number;
                if node.owner.is_none() {
                    changes.effects.push(Effect::Set { path: path.clone(), data: data.clone() });
                }
                changes.done.push(OpDone { version: number, created: node.created });
                changes.touched.push(path.clone());
            }
            Op::Delete { path, version } => {
                if path == "/" {
                    return Err(CommitCause::Invalid);
                }
                let node = self.nodes.get(path).ok_or(CommitCause::Missing)?;
                expect_version(node, *version)?;
                if !node.children.is_empty() {
                    return Err(CommitCause::NotEmpty);
                }
                changes.done.push(OpDone { version: node.version, created: node.created });
                if node.owner.is_none() {
                    changes.effects.push(Effect::Delete { path: path.clone() });
                }
                self.remove(path, changes);
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        path: &str,
        data: Bytes,
        number: i64,
        owner: Option<i64>,
        changes: &mut Changes,
    ) -> Result<(), CommitCause> {
        let (parent_path, name) = split(path).ok_or(CommitCause::Invalid)?;
        if path.len() > PATH_BYTES_MAX {
            return Err(CommitCause::Invalid);
        }
        expect_size(&data)?;
        if self.nodes.contains_key(path) {
            return Err(CommitCause::Exists);
        }
        let parent = self.nodes.get_mut(parent_path).ok_or(CommitCause::Missing)?;
        if parent.owner.is_some() {
            return Err(CommitCause::Invalid);
        }
        parent.children.insert(name.to_owned());
        let node = TreeNode { data, version: number, created: number, owner, children: BTreeSet::new() };
        self.nodes.insert(path.to_owned(), node);
        changes.undo.earlier.push((path.to_owned(), None));
        changes.touched.push(path.to_owned());
        changes.families.push(parent_path.to_owned());
        Ok(())
    }

    fn remove(&mut self, path: &str, changes: &mut Changes) {
        let Some(node) = self.nodes.remove(path) else { return };
        if let Some((parent_path, name)) = split(path) {
            if let Some(parent) = self.nodes.get_mut(parent_path) {
                parent.children.remove(name);
            }
            changes.families.push(parent_path.to_owned());
        }
        changes.undo.earlier.push((path.to_owned(), Some(node)));
        changes.touched.push(path.to_owned());
    }
}

fn expect_size(data: &Bytes) -> Result<(), CommitCause> {
    if data.len() > DATA_BYTES_MAX { Err(CommitCause::TooLarge) } else { Ok(()) }
}

fn expect_version(node: &TreeNode, expected: Option<i64>) -> Result<(), CommitCause> {
    if expected.is_some_and(|version| version != node.version) { Err(CommitCause::Version) } else { Ok(()) }
}

/// Parent and name, if `path` is absolute and no part of it is empty, `.` or `..`.
fn split(path: &str) -> Option<(&str, &str)> {
    let parts = path.strip_prefix('/')?;
    if parts.split('/').any(|part| matches!(part, "" | "." | "..")) || path.contains('\0') {
        return None;
    }
    match path.rsplit_once('/')? {
        ("", name) => Some(("/", name)),
        pair => Some(pair),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str, data: &'static str) -> Op {
        Op::Create { path: path.into(), data: Bytes::from_static(data.as_bytes()) }
    }
    fn ephemeral(path: &str) -> Op {
        Op::CreateEphemeral { path: path.into(), data: Bytes::new() }
    }
    fn set(path: &str, data: &'static str, version: Option<i64>) -> Op {
        Op::Set { path: path.into(), data: Bytes::from_static(data.as_bytes()), version }
    }
    fn delete(path: &str, version: Option<i64>) -> Op {
        Op::Delete { path: path.into(), version }
    }

    fn refused(tree: &mut Tree, ops: &[Op], at: usize, cause: CommitCause) {
        let before = tree.clone();
        assert_eq!(tree.commit(7, ops), Err(CommitError { at, cause }), "{ops:?}");
        assert_eq!(*tree, before, "a refused commit left something behind: {ops:?}");
    }

    #[test]
    fn commits_are_atomic_and_see_their_own_steps() {
        let mut tree = Tree::new();
        let done = tree.commit(7, &[create("/a", "1"), create("/a/b", "2"), set("/a/b", "3", Some(1))]).unwrap().done;
        assert_eq!(done, [OpDone { version: 1, created: 1 }; 3]);
        assert_eq!(tree.read("/a/b").unwrap().data, "3");
        assert_eq!(tree.children("/"), ["a"]);

        refused(&mut tree, &[create("/x", ""), create("/a", "")], 1, CommitCause::Exists);
        refused(&mut tree, &[delete("/a/b", None), set("/a", "", Some(9))], 1, CommitCause::Version);
        refused(&mut tree, &[set("/a", "9", None), delete("/a", None)], 1, CommitCause::NotEmpty);
        refused(&mut tree, &[create("/no/parent", "")], 0, CommitCause::Missing);
        refused(&mut tree, &[Op::Check { path: "/gone".into(), version: 1 }], 0, CommitCause::Missing);
        refused(&mut tree, &[ephemeral("/e"), create("/e/child", "")], 1, CommitCause::Invalid);
        for path in ["", "a", "/", "//", "/a/", "/a//b", "/a/../b", "/a/.", "/nul\0"] {
            refused(&mut tree, &[create(path, "")], 0, CommitCause::Invalid);
        }
        let huge = Bytes::from(vec![0; DATA_BYTES_MAX + 1]);
        refused(&mut tree, &[Op::Create { path: "/h".into(), data: huge }], 0, CommitCause::TooLarge);
        refused(&mut tree, &[create(&format!("/{}", "x".repeat(PATH_BYTES_MAX)), "")], 0, CommitCause::Invalid);
        refused(&mut tree, &[delete("/", None)], 0, CommitCause::Invalid);
    }

    /// The version of a node that was deleted and made again is not one it had before: a proposal against the earlier
    /// node cannot hit the new one.
    #[test]
    fn versions_do_not_return_with_a_node_of_the_same_name() {
        let mut tree = Tree::new();
        let first = tree.commit(7, &[create("/a", "")]).unwrap().done[0];
        tree.commit(7, &[delete("/a", None)]).unwrap();
        let second = tree.commit(7, &[create("/a", "")]).unwrap().done[0];
        assert!(second.version > first.version && second.created > first.created);
        refused(&mut tree, &[set("/a", "old", Some(first.version))], 0, CommitCause::Version);
    }

    #[test]
    fn a_session_takes_its_nodes_along_and_the_journal_never_sees_them() {
        let mut tree = Tree::new();
        tree.commit(7, &[create("/ids", "")]).unwrap();
        let changes = tree.commit(7, &[ephemeral("/ids/1"), set("/ids/1", "v", None), set("/ids", "p", None)]).unwrap();
        assert_eq!(changes.effects, [Effect::Set { path: "/ids".into(), data: Bytes::from_static(b"p") }]);
        tree.commit(8, &[ephemeral("/ids/2")]).unwrap();
        assert_eq!(tree.kept().map(|kept| kept.path).collect::<Vec<_>>(), ["/ids"]);

        let changes = tree.end_session(7);
        assert_eq!((changes.touched, changes.families), (vec!["/ids/1".to_owned()], vec!["/ids".to_owned()]));
        assert_eq!(tree.children("/ids"), ["2"]);
        assert_eq!(tree.last_commit(), 3);
    }

    #[test]
    fn every_commit_can_be_taken_back() {
        let mut tree = Tree::new();
        tree.commit(7, &[create("/a", "1"), create("/a/b", "")]).unwrap();
        let before = tree.clone();
        let mut first = tree.commit(7, &[delete("/a/b", None), delete("/a", None), create("/c", "")]).unwrap();
        let mut second = tree.commit(8, &[ephemeral("/c/e"), set("/c", "x", None)]).unwrap();
        tree.undo(second.take_undo());
        tree.undo(first.take_undo());
        assert_eq!(tree, before);
    }

    #[test]
    fn restoring_what_was_kept_gives_the_tree_without_ephemerals() {
        let mut tree = Tree::new();
        tree.commit(7, &[create("/a", "1"), create("/a/b", "2")]).unwrap();
        tree.commit(7, &[set("/a", "3", None)]).unwrap();
        let restored = Tree::restore(tree.last_commit(), tree.kept().collect::<Vec<_>>()).unwrap();
        assert_eq!(restored, tree);

        let orphan = Kept { path: "/x/y".into(), data: Bytes::new(), version: 1, created: 1 };
        assert!(Tree::restore(5, [orphan]).is_err());
        let future = Kept { path: "/x".into(), data: Bytes::new(), version: 6, created: 1 };
        assert!(Tree::restore(5, [future]).is_err());
    }
}
