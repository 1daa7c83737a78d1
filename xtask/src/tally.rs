//! Counting: what test runners and our own programs print, as numbers.

/// What ran in a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    failures: Vec<String>,
    kept: Option<String>,
    last_lines: Vec<String>,
}

impl Tally {
    /// One that keeps what is said until it is merged: for what runs beside something else.
    pub(crate) fn keeping() -> Self {
        Self { kept: Some(String::new()), ..Self::default() }
    }

    /// Shows a line, at once or when this is merged.
    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        match &mut self.kept {
            Some(kept) => {
                kept.push_str(&line.to_string());
                kept.push('\n');
            }
            None => println!("{line}"),
        }
    }

    /// What was said and not shown.
    pub(crate) fn kept(&self) -> &str {
        self.kept.as_deref().unwrap_or_default()
    }

    /// Counts one check that passed.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts one check that failed.
    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Keeps the last lines that a failed command printed, for the end of the run: a log of which only the end is left should
    /// still say why.
    pub(crate) fn keep_last_lines(&mut self, command: &str, lines: impl IntoIterator<Item = String>) {
        self.last_lines.push(format!("---- the last lines of {command} ----"));
        self.last_lines.extend(lines);
    }

    /// What failed commands printed last.
    pub(crate) fn last_lines(&self) -> &[String] {
        &self.last_lines
    }

    /// Adds what one command of the part counted, and says what it kept.
    pub(crate) fn merge(&mut self, other: Self) {
        if let Some(kept) = other.kept.as_deref().filter(|kept| !kept.is_empty()) {
            self.say(kept.trim_end_matches('\n'));
        }
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.last_lines.extend(other.last_lines);
    }

    /// Adds what a part counted, its failures under the part's name.
    pub(crate) fn add(&mut self, part: &str, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures.into_iter().map(|failure| format!("{part}: {failure}")));
        self.last_lines.extend(other.last_lines);
    }

    /// Counts one line of a runner's output, if it says anything.
    ///
    /// | line | from | counts |
    /// |---|---|---|
    /// | `test NAME ... FAILED` | libtest | the name, for the list of failures |
    /// | `test result: ok. 3 passed; 0 failed; …` | libtest | the numbers |
    /// | `Success` | criterion `--test` | one bench that ran |
    /// | `check ok: NAME` | our programs | one passed |
    /// | `check FAILED: NAME: WHY` | our programs | one failed |
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        } else if let Some(failure) = line.strip_prefix("check FAILED: ") {
            self.fail(failure.to_owned());
        } else if line.starts_with("check ok: ") || line == "Success" {
            self.pass();
        }
    }

    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else { return 0 };
    let digits = text[..end].bytes().rev().take_while(u8::is_ascii_digit).count();
    text[end - digits..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        lines.iter().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn libtest_lines_are_counted() {
        let tally = count(&[
            "running 3 tests",
            "test batch::tests::stamps ... ok",
            "test log::tests::rolls ... FAILED",
            "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        assert_eq!((tally.passed(), tally.failed()), (13, 1));
        assert_eq!(tally.failures(), ["log::tests::rolls"]);
    }

    #[test]
    fn our_own_lines_and_criterions_are_counted() {
        let tally =
            count(&["check ok: kcat: lz4", "check FAILED: kcat: zstd: codec 0 is stored", "Success", "Successor"]);
        assert_eq!((tally.passed(), tally.failed()), (2, 1));
        assert_eq!(tally.failures(), ["kcat: zstd: codec 0 is stored"]);
    }

    #[test]
    fn failures_of_parts_carry_the_parts_name() {
        let mut total = Tally::default();
        total.add("clients", count(&["check ok: a", "check FAILED: b: c"]));
        assert_eq!(total.failures(), ["clients: b: c"]);
        assert_eq!((total.passed(), total.failed()), (1, 1));
    }
}
