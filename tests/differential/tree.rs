//! A message as a tree of named values, read from Rust's debug output: the protocol crate gives its fields no names that a
//! program could ask for otherwise.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};

/// Fields that say what a structure is about.
const KEYS: &[&str] = &[
    "api_key",
    "name",
    "topic",
    "topic_id",
    "group_id",
    "key",
    "resource_name",
    "partition_index",
    "partition_id",
    "partition",
    "index",
    "member_id",
    "producer_id",
    "transactional_id",
    "user",
    "feature",
    "entity_type",
    "entity_name",
    "resource_type",
    "mechanism",
    "topic_name",
];

/// Arrays whose elements are told apart in a path: what one of them may, the others may not. By their names, or by their paths.
const NAMED: &[&str] = &["api_keys", "config_resources", "configs", "finalized_features", "supported_features"];
const NAMED_THERE: &[&str] = &["results[].topics"];

/// A value in a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tree {
    /// A number, a text in its quotes, bytes, an id, or null.
    Leaf(String),
    /// An array.
    List(Vec<Self>),
    /// A structure: names and values, in the order of the message.
    Struct(Vec<(String, Self)>),
}

impl Tree {
    /// Reads what `{:?}` writes of a message.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let mut reader = Reader { text };
        let tree = reader.value()?;
        ensure!(reader.text.is_empty(), "cannot read {:?}", start(reader.text));
        Ok(tree)
    }

    /// A field of a structure.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The elements of an array that is a field of a structure; none if it is not there.
    pub(crate) fn list(&self, name: &str) -> &[Self] {
        match self.get(name) {
            Some(Self::List(elements)) => elements,
            _ => &[],
        }
    }

    /// A field that is a leaf, without the quotes of a text.
    pub(crate) fn leaf(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Self::Leaf(text) => Some(text.trim_matches('"')),
            _ => None,
        }
    }

    /// Changes every leaf, given its path: names with dots between, `[]` behind an array's.
    pub(crate) fn map(&mut self, path: &str, change: &dyn Fn(&str, &str) -> Option<String>) {
        match self {
            Self::Leaf(text) => {
                if let Some(changed) = change(path, text) {
                    *text = changed;
                }
            }
            Self::List(elements) => {
                elements.iter_mut().for_each(|element| element.map(&format!("{path}[]"), change));
            }
            Self::Struct(fields) => {
                fields.iter_mut().for_each(|(name, value)| value.map(&join(path, name), change));
            }
        }
    }

    /// Sorts all arrays of structures by what their elements are about, and of leaves by themselves.
    pub(crate) fn sort(&mut self) {
        match self {
            Self::Leaf(_) => {}
            Self::List(elements) => {
                elements.iter_mut().for_each(Self::sort);
                elements.sort_by_cached_key(Self::about);
                elements.dedup_by(|later, first| first.absorb(later));
            }
            Self::Struct(fields) => fields.iter_mut().for_each(|(_, value)| value.sort()),
        }
    }

    /// Takes over the partitions of another structure about the same topic: Kafka may name a topic once for those with an error
    /// and once for the others.
    fn absorb(&mut self, other: &mut Self) -> bool {
        let about = self.about();
        let (Self::Struct(fields), Self::Struct(_)) = (&mut *self, &*other) else { return false };
        let partitions = fields
            .iter_mut()
            .find(|(name, _)| matches!(&**name, "partitions" | "partition_responses" | "results_by_partition"));
        let Some((name, Self::List(own))) = partitions else { return false };
        let theirs = other.list(name);
        if about != other.about() || theirs.is_empty() {
            return false;
        }
        own.extend_from_slice(theirs);
        own.sort_by_cached_key(Self::about);
        true
    }

    /// What a structure is about: its names and numbers, without what is said of them.
    fn about(&self) -> Vec<String> {
        match self {
            Self::Leaf(text) => vec![text.clone()],
            _ => {
                // What has a name is called by it: its id may be one that only one side has drawn.
                let has_name =
                    ["name", "topic"].iter().any(|name| !matches!(self.leaf(name), None | Some("" | "null")));
                let keys = KEYS.iter().filter(|name| **name != "topic_id" || !has_name);
                let own = keys.filter_map(|name| self.leaf(name).map(str::to_owned));
                own.chain(self.list("entity").iter().flat_map(Self::about)).collect()
            }
        }
    }

    /// Where two trees differ: path, the value here, the value there. Elements of arrays are held against those that are about
    /// the same; what only one side has is `there` on that side.
    pub(crate) fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        self.compare(other, "", &mut found);
        found
    }

    fn compare(&self, other: &Self, path: &str, found: &mut Vec<(String, String, String)>) {
        match (self, other) {
            (Self::List(ours), Self::List(theirs)) => match (by_subject(ours), by_subject(theirs)) {
                (Some(ours), Some(theirs)) if is_named(path) || !ours.is_empty() && !theirs.is_empty() => {
                    compare_subjects(&ours, &theirs, path, found)
                }
                _ if ours.len() == theirs.len() => {
                    ours.iter().zip(theirs).for_each(|(one, other)| one.compare(other, &format!("{path}[]"), found));
                }
                _ => found.push((format!("{path}[]"), counted(ours), counted(theirs))),
            },
            (Self::Struct(ours), Self::Struct(theirs)) => {
                let theirs: BTreeMap<_, _> = theirs.iter().map(|(name, value)| (name, value)).collect();
                for (name, value) in ours {
                    if let Some(other) = theirs.get(name) {
                        value.compare(other, &join(path, name), found);
                    }
                }
            }
            _ if self == other => {}
            _ => found.push((path.to_owned(), self.short(), other.short())),
        }
    }

    fn short(&self) -> String {
        match self {
            Self::Leaf(text) => text.clone(),
            Self::List(elements) => counted(elements),
            Self::Struct(_) => "a structure".to_owned(),
        }
    }
}

/// Whether the elements of the array at a path are told apart in paths.
fn is_named(path: &str) -> bool {
    NAMED.contains(&path.rsplit('.').next().unwrap_or(path)) || NAMED_THERE.contains(&path)
}

/// Structures by what they are about, if no two of them are about the same.
fn by_subject(elements: &[Tree]) -> Option<BTreeMap<Vec<String>, &Tree>> {
    let subjects: BTreeMap<_, _> = elements.iter().map(|element| (element.about(), element)).collect();
    let are_told_apart = subjects.len() == elements.len() && !subjects.contains_key(&vec![]);
    (are_told_apart && elements.iter().all(|element| matches!(element, Tree::Struct(_)))).then_some(subjects)
}

fn compare_subjects(
    ours: &BTreeMap<Vec<String>, &Tree>,
    theirs: &BTreeMap<Vec<String>, &Tree>,
    path: &str,
    found: &mut Vec<(String, String, String)>,
) {
    let subjects: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let is_named = is_named(path);
    let (there, absent) = (|| "there".to_owned(), || "absent".to_owned());
    for subject in subjects {
        let path = format!("{path}[{}]", if is_named { subject.join(" ") } else { String::new() });
        match (ours.get(subject), theirs.get(subject)) {
            (Some(one), Some(other)) => one.compare(other, &path, found),
            (Some(_), None) => found.push((path, there(), absent())),
            (None, _) => found.push((path, absent(), there())),
        }
    }
}

fn counted(elements: &[Tree]) -> String {
    format!("{} elements", elements.len())
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn start(text: &str) -> String {
    text.chars().take(60).collect()
}

struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> anyhow::Result<Tree> {
        if self.eat("[") {
            return Ok(Tree::List(self.until_closed("]", Self::value)?));
        }
        // The only maps are those of unknown tags.
        if self.eat("{") {
            return Ok(Tree::List(self.until_closed("}", |reader| {
                let tag = reader.value()?;
                ensure!(reader.eat(": "), "a map without values");
                Ok(Tree::List(vec![tag, reader.value()?]))
            })?));
        }
        if self.text.starts_with('"') || self.text.starts_with("b\"") {
            return Ok(Tree::Leaf(self.quoted()?.to_owned()));
        }
        let word = self.word();
        if self.eat(" { ") {
            let fields = self.until_closed(" }", |reader| {
                let name = reader.word();
                ensure!(reader.eat(": "), "{name:?} has no value");
                Ok((name.to_owned(), reader.value()?))
            })?;
            let fields = fields.into_iter().filter(|(name, value)| {
                !(name == "unknown_tagged_fields" && matches!(value, Tree::List(tags) if tags.is_empty()))
            });
            return Ok(Tree::Struct(fields.collect()));
        }
        if word == "Some" && self.eat("(") {
            let value = self.value()?;
            ensure!(self.eat(")"), "an option is not closed at {:?}", start(self.text));
            return Ok(value);
        }
        ensure!(!word.is_empty(), "no value at {:?}", start(self.text));
        Ok(Tree::Leaf(if word == "None" { "null".to_owned() } else { word.to_owned() }))
    }

    fn until_closed<T>(&mut self, end: &str, read: impl Fn(&mut Self) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
        let mut all = Vec::new();
        while !self.eat(end) {
            ensure!(all.is_empty() || self.eat(", "), "no comma at {:?}", start(self.text));
            all.push(read(self)?);
        }
        Ok(all)
    }

    fn quoted(&mut self) -> anyhow::Result<&'a str> {
        let open = self.text.find('"').context("no quote")? + 1;
        let mut escaped = false;
        for (at, character) in self.text.char_indices().skip(open) {
            match character {
                '"' if !escaped => return Ok(self.split(at + 1)),
                '\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        anyhow::bail!("a text is not closed")
    }

    fn word(&mut self) -> &'a str {
        let end = self.text.find([',', ' ', '(', ')', '[', ']', '{', '}', ':']).unwrap_or(self.text.len());
        self.split(end)
    }

    fn split(&mut self, at: usize) -> &'a str {
        let (head, rest) = self.text.split_at(at);
        self.text = rest;
        head
    }

    fn eat(&mut self, word: &str) -> bool {
        let rest = self.text.strip_prefix(word);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
    use kafka_protocol::messages::{BrokerId, FetchResponse, TopicName};
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    fn response(error: i16) -> Tree {
        let partition = PartitionData::default()
            .with_error_code(error)
            .with_preferred_read_replica(BrokerId(-1))
            .with_records(Some(Bytes::from_static(b"a\"b\\\xff")));
        let topic = FetchableTopicResponse::default()
            .with_topic(TopicName(StrBytes::from_static_str("a, \"b\" { c: [d] }\\")))
            .with_partitions(vec![partition, PartitionData::default().with_records(None)])
            .with_unknown_tagged_fields([(7, Bytes::from_static(b"x"))].into());
        Tree::read(&format!("{:?}", FetchResponse::default().with_responses(vec![topic]))).unwrap()
    }

    #[test]
    fn every_field_of_a_message_is_found() {
        let tree = response(3);
        let topic = &tree.list("responses")[0];
        assert_eq!(topic.leaf("topic").unwrap(), r#"a, \"b\" { c: [d] }\\"#);
        assert_eq!(topic.leaf("topic_id").unwrap(), "00000000-0000-0000-0000-000000000000");
        let partition = &topic.list("partitions")[0];
        assert_eq!(partition.leaf("error_code").unwrap(), "3");
        assert_eq!(partition.leaf("records").unwrap(), r#"b"a\"b\\\xff"#);
        assert_eq!(topic.list("partitions")[1].leaf("records").unwrap(), "null");
        assert_eq!(topic.list("unknown_tagged_fields").len(), 1);
        assert!(partition.get("unknown_tagged_fields").is_none());
    }

    #[test]
    fn differences_have_their_path() {
        assert_eq!(response(3).differences(&response(3)), vec![]);
        let path = "responses[].partitions[].error_code".to_owned();
        assert_eq!(response(3).differences(&response(0)), vec![(path, "3".to_owned(), "0".to_owned())]);
        let mut shorter = response(3);
        let Tree::Struct(fields) = &mut shorter else { panic!("{shorter:?}") };
        fields.iter_mut().filter(|(name, _)| name == "responses").for_each(|(_, value)| *value = Tree::List(vec![]));
        let differences = response(3).differences(&shorter);
        assert_eq!(differences, vec![("responses[]".to_owned(), "1 elements".to_owned(), "0 elements".to_owned())]);
    }

    #[test]
    fn elements_are_held_against_those_that_are_about_the_same() {
        let read = |text: &str| Tree::read(text).unwrap();
        let ours = read(
            "A { configs: [C { name: \"a\", value: 1 }, C { name: \"b\", value: 2 }], topics: [T { name: \"t\" }] }",
        );
        let theirs = read("A { configs: [C { name: \"b\", value: 3 }, C { name: \"c\", value: 4 }], topics: [] }");
        let told = |path: &str, ours: &str, theirs: &str| (path.to_owned(), ours.to_owned(), theirs.to_owned());
        assert_eq!(
            ours.differences(&theirs),
            vec![
                told("configs[a]", "there", "absent"),
                told("configs[b].value", "2", "3"),
                told("configs[c]", "absent", "there"),
                told("topics[]", "1 elements", "0 elements"),
            ]
        );
        // Their names count, and their ids where they have none.
        let made = |name: &str, id: u8| read(&format!("A {{ topics: [T {{ name: {name}, topic_id: {id} }}] }}"));
        let id = told("topics[].topic_id", "1", "2");
        assert_eq!(made("\"t\"", 1).differences(&made("\"t\"", 2)), vec![id]);
        let both = vec![told("topics[]", "there", "absent"), told("topics[]", "absent", "there")];
        assert_eq!(made("null", 1).differences(&made("null", 2)), both);
        let twice = read("A { topics: [T { name: \"t\", code: 1 }, T { name: \"t\", code: 2 }] }");
        let once = read("A { topics: [T { name: \"t\", code: 1 }] }");
        assert_eq!(twice.differences(&once), vec![told("topics[]", "2 elements", "1 elements")]);
    }

    #[test]
    fn arrays_are_sorted_by_what_they_are_about_and_leaves_are_changed() {
        let mut tree =
            Tree::read("A { list: [3, 1, 2], all: [B { code: 1, name: \"b\" }, B { code: 2, name: \"a\" }] }").unwrap();
        tree.map("", &|path, text| (path == "list[]" && text == "3").then(|| "0".to_owned()));
        tree.sort();
        let sorted = "A { list: [0, 1, 2], all: [B { code: 2, name: \"a\" }, B { code: 1, name: \"b\" }] }";
        assert_eq!(tree, Tree::read(sorted).unwrap());
        let mut twice =
            Tree::read("A { topics: [T { name: \"t\", partitions: [2] }, T { name: \"t\", partitions: [1] }] }")
                .unwrap();
        twice.sort();
        assert_eq!(twice, Tree::read("A { topics: [T { name: \"t\", partitions: [1, 2] }] }").unwrap());
        assert!(Tree::read("A { list: [1").is_err());
    }
}
