//! What the demo sends: the lines of a file, over and over until there are enough.

use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use sha2::{Digest, Sha256};

/// The repository's own `Cargo.lock`, so that the demo runs from any folder.
const DEFAULT_INPUT: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));

/// The records of one run: record `i` is line `i` modulo the number of lines.
#[derive(Debug)]
pub(super) struct Input {
    /// Where the lines come from, for people.
    pub(super) name: String,
    lines: Vec<Bytes>,
    /// How many records are sent: the whole file, as often as needed.
    pub(super) records: u64,
}

impl Input {
    /// Reads `path`, or takes the built-in file, and repeats it whole to at least `records_min` records.
    pub(super) fn open(path: Option<&Path>, records_min: u64) -> anyhow::Result<Self> {
        let (name, data) = match path {
            Some(path) => {
                let data = std::fs::read(path).with_context(|| format!("cannot read --input {}", path.display()))?;
                (path.display().to_string(), Bytes::from(data))
            }
            None => ("Cargo.lock".to_owned(), Bytes::from_static(DEFAULT_INPUT)),
        };
        if data.is_empty() {
            bail!("--input {name} is empty: give a file with at least one line");
        }
        let lines = split_lines(&data);
        let length = lines.len() as u64;
        Ok(Self { name, lines, records: records_min.max(1).div_ceil(length) * length })
    }

    /// The value of record `number`.
    pub(super) fn value(&self, number: u64) -> &Bytes {
        let line = usize::try_from(number % self.lines.len() as u64).unwrap_or(0);
        &self.lines[line]
    }

    /// SHA-256 over all values in order, each followed by a line feed, in hexadecimal.
    pub(super) fn digest(&self) -> String {
        let mut digest = ValueDigest::default();
        for number in 0..self.records {
            digest.add(self.value(number));
        }
        digest.finish()
    }

    /// Bytes of all values together.
    pub(super) fn value_bytes(&self) -> u64 {
        let once: u64 = self.lines.iter().map(|line| line.len() as u64).sum();
        once * (self.records / self.lines.len() as u64)
    }
}

/// The lines of `data` without their line feeds. A last line without one counts too.
fn split_lines(data: &Bytes) -> Vec<Bytes> {
    let mut lines = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let end = data[start..].iter().position(|&byte| byte == b'\n').map_or(data.len(), |at| start + at);
        lines.push(data.slice(start..end));
        start = end + 1;
    }
    lines
}

/// A digest over values, each followed by a line feed.
#[derive(Debug, Default)]
pub(super) struct ValueDigest(Sha256);

impl ValueDigest {
    /// Takes the next value in.
    pub(super) fn add(&mut self, value: &[u8]) {
        self.0.update(value);
        self.0.update(b"\n");
    }

    /// The digest in hexadecimal.
    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(text: &'static str, records_min: u64) -> Input {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("input");
        std::fs::write(&path, text).expect("written");
        Input::open(Some(&path), records_min).expect("opened")
    }

    #[test]
    fn the_whole_file_is_repeated() {
        let input = input("one\n\nthree", 4);
        assert_eq!(input.records, 6);
        let values: Vec<_> = (0..6).map(|number| input.value(number).clone()).collect();
        assert_eq!(values, ["one", "", "three", "one", "", "three"]);
        assert_eq!(input.value_bytes(), 16);
    }

    #[test]
    fn a_missing_or_empty_file_is_named() {
        let missing = Input::open(Some(Path::new("/nowhere/x")), 1).expect_err("there is no such file");
        assert!(missing.to_string().contains("/nowhere/x"), "{missing}");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("empty");
        std::fs::write(&path, "").expect("written");
        let empty = Input::open(Some(&path), 1).expect_err("nothing to send");
        assert!(empty.to_string().contains("is empty"), "{empty}");
    }

    #[test]
    fn the_built_in_file_has_lines() {
        assert!(Input::open(None, 200_000).expect("built in").records >= 200_000);
    }
}
