//! The differences that are allowed, each with its reason: `allowed.tsv`.

use anyhow::{Context, ensure};

/// One line of `allowed.tsv`.
#[derive(Debug)]
pub(crate) struct Allowed {
    api: String,
    path: String,
    ours: String,
    theirs: String,
    used: usize,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct AllAllowed(Vec<Allowed>);

impl AllAllowed {
    /// Reads the list that is part of this program.
    pub(crate) fn read() -> anyhow::Result<Self> {
        Self::parse(include_str!("allowed.tsv"))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let cells: Vec<&str> = line.split('\t').collect();
            let [api, path, ours, theirs, reason] = cells[..] else {
                anyhow::bail!("no five columns: {line:?}");
            };
            ensure!(!reason.trim().is_empty(), "no reason: {line:?}");
            let [api, path, ours, theirs] = [api, path, ours, theirs].map(str::to_owned);
            Ok(Allowed { api, path, ours, theirs, used: 0 })
        };
        lines.map(read).collect::<anyhow::Result<_>>().map(Self).context("allowed.tsv")
    }

    /// Whether a difference is allowed.
    pub(crate) fn allows(&mut self, api: &str, path: &str, ours: &str, theirs: &str) -> bool {
        match self.0.iter_mut().find(|allowed| allowed.covers(api, path, ours, theirs)) {
            Some(allowed) => {
                allowed.used += 1;
                true
            }
            None => false,
        }
    }

    /// Whether a difference is, without that being counted.
    pub(crate) fn would_allow(&self, api: &str, path: &str, ours: &str, theirs: &str) -> bool {
        self.0.iter().any(|allowed| allowed.covers(api, path, ours, theirs))
    }

    /// The lines that allowed nothing.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let unused = self.0.iter().filter(|allowed| allowed.used == 0);
        unused.map(|Allowed { api, path, ours, theirs, .. }| format!("{api} {path} {ours} {theirs}"))
    }
}

impl Allowed {
    fn covers(&self, api: &str, path: &str, ours: &str, theirs: &str) -> bool {
        matches(&self.api, api) && fits(&self.path, path) && matches(&self.ours, ours) && matches(&self.theirs, theirs)
    }
}

/// `text` is any text in quotes, everything else what fits; `|` stands between several.
fn matches(pattern: &str, value: &str) -> bool {
    pattern.split('|').any(|pattern| match pattern {
        "text" => value.starts_with('"'),
        _ => fits(pattern, value),
    })
}

/// `*` is anything in the place where it stands, everything else itself.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| fits(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads_and_each_line_has_a_reason() {
        AllAllowed::read().unwrap();
        assert!(AllAllowed::parse("A\tb\t*\t*\t ").is_err());
        assert!(AllAllowed::parse("A\tb\t*\t*").is_err());
    }

    #[test]
    fn only_what_a_line_names_is_allowed() {
        let mut all =
            AllAllowed::parse("# note\nA\ta[].b\t3|4\ttext\tbecause\n*\t*.words\ttext\ttext\tbecause").unwrap();
        assert!(all.allows("A", "a[].b", "3", "\"x\""));
        assert!(all.allows("A", "a[].b", "4", "\"x\""));
        assert!(!all.allows("A", "a[].b", "5", "\"x\""));
        assert!(!all.allows("A", "a[].b", "3", "null"));
        assert!(!all.allows("B", "a[].b", "3", "\"x\""));
        assert!(!all.allows("A", "a[].c", "3", "\"x\""));
        assert_eq!(all.unused().count(), 1);
        assert!(all.allows("B", "deep[].words", "\"x\"", "\"y\""));
        assert!(!all.allows("B", "deep[].words", "null", "\"y\""));
        let all = AllAllowed::parse("A\ta[own.*].b\tx*\t*\tbecause").unwrap();
        assert!(all.would_allow("A", "a[own.key].b", "xyz", "1"));
        assert!(!all.would_allow("A", "a[other.key].b", "xyz", "1"));
        assert!(!all.would_allow("A", "a[own.key].b.c", "xyz", "1"));
        assert!(!all.would_allow("A", "a[own.key].b", "yx", "1"));
    }
}
