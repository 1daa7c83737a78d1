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
        let fits = |allowed: &&mut Allowed| {
            matches(&allowed.api, api)
                && (allowed.path == path
                    || allowed.path == "*"
                    || allowed.path.strip_prefix("*.").is_some_and(|end| path.ends_with(end)))
                && matches(&allowed.ours, ours)
                && matches(&allowed.theirs, theirs)
        };
        match self.0.iter_mut().find(fits) {
            Some(allowed) => {
                allowed.used += 1;
                true
            }
            None => false,
        }
    }

    /// The lines that allowed nothing.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let unused = self.0.iter().filter(|allowed| allowed.used == 0);
        unused.map(|Allowed { api, path, ours, theirs, .. }| format!("{api} {path} {ours} {theirs}"))
    }
}

/// `*` is anything, `text` any text in quotes, everything else itself; `|` stands between several.
fn matches(pattern: &str, value: &str) -> bool {
    pattern.split('|').any(|pattern| match pattern {
        "*" => true,
        "text" => value.starts_with('"'),
        _ => pattern == value,
    })
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
    }
}
