//! Planted mistakes: tests must find each of them.
//!
//! A mutant is a file `tests/mutants/NAME.toml` with four keys, all strings in the form `'''…'''` or `"…"`:
//! `about` (the mistake in a sentence), `file`, `text` (exact, once in that file) and `replacement`. The tree is copied
//! below the target directory, the mistake is planted there, and the run passes if the tests fail: production code
//! carries no switch for it. Who has to find it is said by a fifth key:
//!
//! - without it the fuzz targets' plain tests;
//! - `found_by = "PACKAGE TARGET TEST"`: one test of a workspace member; TARGET is a file in its `tests/`, or `lib`;
//! - `found_by = "seeds"`, or `"seeds FIRST..END"`: the simulator, built with the mistake, by one of these seeds. The seed
//!   that finds it must pass without the mistake.
//!
//! Each costs a build. `cargo xtask test` therefore draws some by the hash of the committed tree, so that commit after
//! commit all have their turn; `cargo xtask mutants` plants all of them, or those named.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fmt, fs};

use anyhow::{Context, bail, ensure};

use crate::command::{Counts, Run};
use crate::tally::Tally;
use crate::{Workspace, programs};

#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    about: String,
    file: PathBuf,
    text: String,
    replacement: String,
    suite: Suite,
}

impl Mutant {
    /// Its file in a tree, with what is in it.
    fn place(&self, tree: &Path) -> anyhow::Result<(PathBuf, String)> {
        let path = tree.join(&self.file);
        let original = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let times = original.matches(&self.text).count();
        ensure!(times == 1, "its text is {times} times in {}: it must be there once", self.file.display());
        Ok((path, original))
    }
}

/// What has to find a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Suite {
    /// The fuzz targets' plain tests.
    Fuzz,
    /// One test of a workspace member.
    Test(NamedTest),
    /// The simulator, by one of these seeds.
    Seeds(Range<u64>),
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fuzz => f.write_str("the fuzz targets' tests"),
            Self::Test(NamedTest { test, .. }) => write!(f, "`{test}`"),
            Self::Seeds(_) => f.write_str("the simulator"),
        }
    }
}

/// What a mutant was found by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// How many seeds it took, if it were seeds.
    seeds: Option<u64>,
    /// The first line of what failed.
    what: String,
}

/// So many seeds at most are run for a mutant that names none.
const SEEDS: Range<u64> = 0..20_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedTest {
    package: String,
    /// A file in the package's `tests/`, or `lib`.
    target: String,
    test: String,
}

/// The kinds of mutants: those that the fuzz targets' plain tests must find, those that name a test, and those that the
/// simulator must find. `cargo xtask test` draws one of each but for one kind, in turn: each costs a build.
const KINDS: usize = 3;

/// A number from the hash of the committed tree: another one with each commit, and the same for all who have it.
pub(crate) fn tree_seed(workspace: &Workspace) -> anyhow::Result<u32> {
    let tree = Run::new(workspace, "git").words("rev-parse HEAD^{tree}").output()?;
    let seed = tree.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    seed.with_context(|| format!("git names no tree: {tree}"))
}

/// Plants the drawn mutants.
pub(crate) fn run_drawn(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let seed = tree_seed(workspace)? as usize;
    let mut kinds = [const { Vec::new() }; KINDS];
    for (name, mutant) in all(&workspace.root)? {
        let [fuzz, named, seeded] = &mut kinds;
        let kind = match &mutant.suite {
            Suite::Fuzz => fuzz,
            Suite::Test(_) => named,
            Suite::Seeds(_) => seeded,
        };
        kind.push((name, mutant));
    }
    plant(workspace, draw(kinds, seed), tally, deadline)
}

/// One of each kind but one.
fn draw<T>(kinds: [Vec<T>; KINDS], seed: usize) -> Vec<T> {
    let drawn = kinds.into_iter().enumerate().filter(|(kind, all)| *kind != seed % KINDS && !all.is_empty());
    drawn.map(|(_, mut all)| all.swap_remove(seed / KINDS % all.len())).collect()
}

/// Plants the mutants with these names, all if there is none.
pub(crate) fn run_named(
    workspace: &Workspace,
    names: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let mut mutants = all(&workspace.root)?;
    if let Some(unknown) = names.iter().find(|name| !mutants.iter().any(|(known, _)| known == *name)) {
        bail!("there is no mutant {unknown} in tests/mutants");
    }
    mutants.retain(|(name, _)| names.is_empty() || names.contains(name));
    plant(workspace, mutants, tally, deadline)
}

/// All mutants by name.
fn all(root: &Path) -> anyhow::Result<Vec<(String, Mutant)>> {
    let directory = root.join("tests/mutants");
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    ensure!(!files.is_empty(), "there is no mutant in {}", directory.display());
    let read = |file: PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok((name, parse(&text).with_context(|| format!("in {}", file.display()))?))
    };
    files.into_iter().map(read).collect()
}

/// Plants each mutant in a copy of the tree and counts those that were found as passed.
fn plant(
    workspace: &Workspace,
    mutants: Vec<(String, Mutant)>,
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let tree = workspace.target.join("mutants/tree");
    copy_tree(workspace, &tree)?;
    // The tests must pass without a mistake, or their failing says nothing. Of seeds and of the fuzz targets' tests that is
    // asked of the one that fails.
    let mut suites: Vec<&Suite> = Vec::new();
    for (_, mutant) in &mutants {
        if !suites.contains(&&mutant.suite) && matches!(mutant.suite, Suite::Test(_)) {
            suites.push(&mutant.suite);
        }
    }
    for suite in suites {
        // A name that no test has is noticed here: that run counts no line.
        if !without_mistake(workspace, &tree, suite).run(tally, deadline, Counts::Lines) {
            return Ok(());
        }
    }
    let mut table = String::from("| mutant | found by | seeds until then | what failed |\n|---|---|---|---|\n");
    for (name, mutant) in mutants {
        match found(workspace, &tree, &mutant, deadline) {
            Ok(Finding { seeds, what }) => {
                let seeds = seeds.map_or_else(String::new, |seeds| seeds.to_string());
                tally.say(format!(
                    "check ok: mutant {name} is found by {} {seeds}: {}: {what}",
                    mutant.suite, mutant.about
                ));
                table.push_str(&format!("| `{name}` | {} | {seeds} | {what} |\n", mutant.suite));
                tally.pass();
            }
            Err(error) => {
                tally.say(format!("check FAILED: mutant {name}: {error:#}"));
                tally.fail(format!("mutant {name} ({}): {error:#}", mutant.about));
            }
        }
    }
    tally.say(format!("\n{table}"));
    Ok(())
}

/// Succeeds if it is.
fn found(workspace: &Workspace, tree: &Path, mutant: &Mutant, deadline: Instant) -> anyhow::Result<Finding> {
    let (path, original) = mutant.place(tree)?;
    fs::write(&path, original.replace(&mutant.text, &mutant.replacement))?;
    let built = tests(workspace, tree, &mutant.suite, Stage::Build).try_run(deadline);
    let tested = tests(workspace, tree, &mutant.suite, Stage::Run).try_run(deadline);
    fs::write(&path, original)?;
    let ((builds, errors), (unnoticed, printed)) = (built?, tested?);
    ensure!(builds, "it does not compile:\n{errors}");
    ensure!(!unnoticed, "no test noticed it");
    // Not every way to fail is to have found something.
    let nothing = || format!("the tests failed, but none of them by itself:\n{printed}");
    match &mutant.suite {
        Suite::Fuzz => {
            ensure!(printed.contains("panicked at"), nothing());
            let failed = |line: &&str| line.starts_with("test ") && line.ends_with(" ... FAILED");
            let what = printed.lines().find(failed).with_context(nothing)?;
            let test = what.trim_start_matches("test ").trim_end_matches(" ... FAILED");
            let without = tests(workspace, &workspace.root, &mutant.suite, Stage::Run).words("-- --exact").word(test);
            let (passes, printed) = without.try_run(deadline)?;
            ensure!(passes && printed.contains("1 passed"), "{test} fails without it as well:\n{printed}");
            Ok(Finding { seeds: None, what: what.to_owned() })
        }
        Suite::Test(NamedTest { test, .. }) => {
            ensure!(printed.contains(&format!("test {test} ... FAILED")), nothing());
            let after = printed.split_once("panicked at").and_then(|(_, after)| after.lines().nth(1));
            Ok(Finding { seeds: None, what: told(after.unwrap_or_default()) })
        }
        Suite::Seeds(Range { start, .. }) => {
            let (seed, what) = failed_seed(&printed).with_context(nothing)?;
            let without = simulator(workspace, &workspace.root, Stage::Run).words("--brief --seed");
            let (passes, printed) = without.word(seed.to_string()).try_run(deadline)?;
            ensure!(passes, "seed {seed} fails without it as well:\n{printed}");
            Ok(Finding { seeds: Some(seed - start + 1), what: told(what) })
        }
    }
}

/// The seed of `seed N FAILED: what`, and what was wrong.
fn failed_seed(printed: &str) -> Option<(u64, &str)> {
    printed.lines().find_map(|line| {
        let (seed, what) = line.strip_prefix("seed ")?.split_once(" FAILED: ")?;
        Some((seed.parse().ok()?, what))
    })
}

/// A message as it stands in a table.
fn told(what: &str) -> String {
    let what = what.strip_prefix("assertion `left == right` failed: ").unwrap_or(what).trim();
    // Some go on with all that there was.
    let short = if what.len() > 100 { what.split_once([':', '{']).map_or(what, |(first, _)| first) } else { what };
    short.replace('|', "\\|")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Build,
    Run,
}

/// The tests where nothing is planted: in the tree itself, by what other parts have built there, if they have.
fn without_mistake(workspace: &Workspace, tree: &Path, suite: &Suite) -> Run {
    let built = match suite {
        Suite::Test(NamedTest { package, target, test }) => {
            programs::test_program(workspace, package, target).map(|run| run.word("--exact").word(test))
        }
        Suite::Fuzz | Suite::Seeds(_) => None,
    };
    built.unwrap_or_else(|| tests(workspace, tree, suite, Stage::Run))
}

/// The crates that are not ours are those that other parts have built.
fn tests(workspace: &Workspace, tree: &Path, suite: &Suite, stage: Stage) -> Run {
    let cargo = Run::cargo(workspace).words("test --locked").words(programs::FEATURES);
    let run = match suite {
        Suite::Fuzz => cargo
            .words("--lib --manifest-path")
            .word(tree.join("fuzz/Cargo.toml"))
            .env("CARGO_TARGET_DIR", &workspace.target),
        Suite::Test(NamedTest { package, target, .. }) => {
            let run = cargo.word("--package").word(package).word("--manifest-path").word(tree.join("Cargo.toml"));
            let run = if target == "lib" { run.word("--lib") } else { run.word("--test").word(target) };
            run.env("CARGO_TARGET_DIR", &workspace.target)
        }
        Suite::Seeds(_) => simulator(workspace, tree, stage),
    };
    // Cargo names what it builds by the path within a workspace: a copy's crates would be taken for the ones they are copied
    // from, mistakes and all, were they not built in another way. A simulator is built for one run, soon rather than well.
    let run = match suite {
        _ if tree == workspace.root => run,
        Suite::Seeds(_) => run.env("CARGO_INCREMENTAL", "1"),
        Suite::Fuzz | Suite::Test(_) => run.env("CARGO_INCREMENTAL", "0"),
    };
    match (stage, suite) {
        (Stage::Build, Suite::Seeds(_)) => run,
        (Stage::Build, _) => run.word("--no-run"),
        (Stage::Run, Suite::Fuzz) => run,
        (Stage::Run, Suite::Test(NamedTest { test, .. })) => run.words("-- --exact").word(test),
        (Stage::Run, Suite::Seeds(Range { start, end })) => {
            run.words("--brief --from").word(start.to_string()).word("--seeds").word((end - start).to_string())
        }
    }
}

/// The simulator of a tree; what it is told comes after.
fn simulator(workspace: &Workspace, tree: &Path, stage: Stage) -> Run {
    let words = match stage {
        Stage::Build => "build --locked --release --package highwater-sim --manifest-path",
        Stage::Run => "run --quiet --locked --release --package highwater-sim --manifest-path",
    };
    let run = Run::cargo(workspace).words(words).word(tree.join("Cargo.toml"));
    let run = run.env("CARGO_TARGET_DIR", &workspace.target);
    if stage == Stage::Run { run.word("--") } else { run }
}

/// Copies what is built. Files that are the same already keep their time, so that cargo rebuilds only what changed since
/// the last run.
fn copy_tree(workspace: &Workspace, tree: &Path) -> anyhow::Result<()> {
    let listed = Run::new(workspace, "git").words("ls-files --cached --others --exclude-standard").output()?;
    let mut copied = BTreeSet::new();
    for name in listed.lines() {
        let from = workspace.root.join(name);
        if !from.is_file() {
            continue;
        }
        let to = tree.join(name);
        copied.insert(to.clone());
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    // A test file that is gone would be built as before.
    remove_others(tree, &copied)
}

fn remove_others(directory: &Path, copied: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_others(&path, copied)?;
        } else if !copied.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Reads the keys. This is the small part of TOML that mutants are written in, not TOML.
fn parse(text: &str) -> anyhow::Result<Mutant> {
    let mut values = BTreeMap::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after).trim_start();
            continue;
        }
        let (key, after) = rest.split_once('=').context("expected KEY = VALUE")?;
        let (value, after) = string(after.trim_start())?;
        values.insert(key.trim().to_owned(), value);
        rest = after.trim_start();
    }
    let mut take = |key: &str| values.remove(key).with_context(|| format!("the key {key} is missing"));
    let mutant = Mutant {
        about: take("about")?,
        file: take("file")?.into(),
        text: take("text")?,
        replacement: take("replacement")?,
        suite: take("found_by").map_or(Ok(Suite::Fuzz), |words| suite(&words))?,
    };
    if let Some(key) = values.keys().next() {
        bail!("there is no key {key}");
    }
    ensure!(!mutant.text.is_empty() && mutant.text != mutant.replacement, "it changes nothing");
    Ok(mutant)
}

fn suite(words: &str) -> anyhow::Result<Suite> {
    let words: Vec<&str> = words.split(' ').collect();
    let range = |text: &str| {
        let (first, end) = text.split_once("..")?;
        let range = first.parse().ok()?..end.parse().ok()?;
        (!range.is_empty()).then_some(range)
    };
    match words[..] {
        ["seeds"] => Ok(Suite::Seeds(SEEDS)),
        ["seeds", seeds] => range(seeds).map(Suite::Seeds).with_context(|| format!("{seeds} are no seeds")),
        [package, target, test] => {
            let [package, target, test] = [package, target, test].map(str::to_owned);
            Ok(Suite::Test(NamedTest { package, target, test }))
        }
        _ => bail!("expected found_by = \"PACKAGE TARGET TEST\" or \"seeds FIRST..END\""),
    }
}

fn string(text: &str) -> anyhow::Result<(String, &str)> {
    for quote in ["'''", "\""] {
        if let Some(inside) = text.strip_prefix(quote) {
            let (value, after) = inside.split_once(quote).with_context(|| format!("a {quote} is not closed"))?;
            // As in TOML, a line end right after the opening quotes does not count.
            return Ok((value.strip_prefix('\n').unwrap_or(value).to_owned(), after));
        }
    }
    bail!("expected '''…''' or \"…\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_read() {
        let text = "# why\nabout = \"a\"\nfile = \"crates/x.rs\"\ntext = '''\n  a = 1;\n'''\nreplacement = '''b'''\n";
        let expected = Mutant {
            about: "a".into(),
            file: "crates/x.rs".into(),
            text: "  a = 1;\n".into(),
            replacement: "b".into(),
            suite: Suite::Fuzz,
        };
        assert_eq!(parse(text).unwrap(), expected);
        let [package, target, test] = ["p", "rot", "a::b"].map(str::to_owned);
        let named = Suite::Test(NamedTest { package, target, test });
        for (words, suite) in
            [("p rot a::b", named), ("seeds", Suite::Seeds(SEEDS)), ("seeds 5..90", Suite::Seeds(5..90))]
        {
            let mutant = parse(&format!("{text}found_by = \"{words}\"\n")).unwrap();
            assert_eq!(mutant, Mutant { suite, ..parse(text).unwrap() });
        }
    }

    /// Those that are not drawn too: a text that nobody finds any more tests nothing.
    #[test]
    fn every_mutant_has_its_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (name, mutant) in all(root).unwrap() {
            mutant.place(root).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    #[test]
    fn the_seed_that_failed_is_read() {
        let printed =
            "90 seeds from 5\n\nseed x FAILED: no\nseed 17 FAILED: lost | gone\n  left: 1\nseed 18 FAILED: later";
        assert_eq!(failed_seed("running 1 test\ntest seeded ... FAILED"), None);
        assert_eq!(failed_seed(printed), Some((17, "lost | gone")));
        assert_eq!(told("assertion `left == right` failed: lost | gone "), "lost \\| gone");
    }

    #[test]
    fn each_mutant_has_its_turn() {
        let kinds = || [vec![0, 1], vec![2, 3, 4], vec![5]];
        let mut seen: Vec<u8> = (0..18).flat_map(|seed| draw(kinds(), seed)).collect();
        seen.sort_unstable();
        assert_eq!(seen.len(), 36, "two of three kinds each time");
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        assert_eq!(draw([vec![1], vec![], vec![2]], 0), [2]);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "about = \"a\"",
            "about = a",
            "about",
            "about = \"a\nfile = ",
            "about = \"a\"\nfile = \"f\"\ntext = \"\"\nreplacement = \"\"",
            "about = \"a\"\nfile = \"f\"\ntext = \"t\"\nreplacement = \"r\"\nmore = \"m\"",
            "about = \"a\"\nfile = \"f\"\ntext = \"t\"\nreplacement = \"r\"\nfound_by = \"p name\"",
            "about = \"a\"\nfile = \"f\"\ntext = \"t\"\nreplacement = \"r\"\nfound_by = \"p f n 3\"",
            "about = \"a\"\nfile = \"f\"\ntext = \"t\"\nreplacement = \"r\"\nfound_by = \"p f n 3..3\"",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
