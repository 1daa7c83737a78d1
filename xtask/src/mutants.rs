//! Planted mistakes: the fuzz targets' plain tests must find each of them.
//!
//! A mutant is a file `tests/mutants/NAME.toml` with four keys, all strings in the form `'''…'''` or `"…"`:
//! `about` (the mistake in a sentence), `file`, `text` (exact, once in that file) and `replacement`. The tree is copied
//! below the target directory, the mistake is planted there, and the run passes if the tests fail: production code
//! carries no switch for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::Workspace;
use crate::command::{Counts, Run};
use crate::tally::Tally;

#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    about: String,
    file: PathBuf,
    text: String,
    replacement: String,
}

/// Plants each mutant in a copy of the tree and counts those that were found as passed.
pub(crate) fn run(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let directory = workspace.root.join("tests/mutants");
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    ensure!(!files.is_empty(), "there is no mutant in {}", directory.display());

    let tree = workspace.target.join("mutants/tree");
    copy_tree(workspace, &tree)?;
    // The tests must pass without a mistake, or their failing says nothing.
    if !tests(workspace, &tree).run(tally, deadline, Counts::Lines) {
        return Ok(());
    }
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mutant = parse(&text).with_context(|| format!("in {}", file.display()))?;
        match found(workspace, &tree, &mutant, deadline) {
            Ok(()) => {
                println!("check ok: mutant {name} is found: {}", mutant.about);
                tally.pass();
            }
            Err(error) => tally.fail(format!("mutant {name} ({}): {error:#}", mutant.about)),
        }
    }
    Ok(())
}

fn found(workspace: &Workspace, tree: &Path, mutant: &Mutant, deadline: Instant) -> anyhow::Result<()> {
    let path = tree.join(&mutant.file);
    let original = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let times = original.matches(&mutant.text).count();
    ensure!(times == 1, "its text is {times} times in {}: it must be there once", mutant.file.display());
    fs::write(&path, original.replace(&mutant.text, &mutant.replacement))?;
    let built = tests(workspace, tree).word("--no-run").try_run(deadline);
    let tested = tests(workspace, tree).try_run(deadline);
    fs::write(&path, original)?;
    let ((builds, errors), (unnoticed, printed)) = (built?, tested?);
    ensure!(builds, "it does not compile:\n{errors}");
    ensure!(!unnoticed, "no test noticed it");
    // Not every way to fail is to have found something.
    ensure!(printed.contains("panicked at"), "the tests failed, but none of them by itself:\n{printed}");
    Ok(())
}

fn tests(workspace: &Workspace, tree: &Path) -> Run {
    Run::cargo(workspace)
        .words("test --locked --no-default-features --lib --manifest-path")
        .word(tree.join("fuzz/Cargo.toml"))
        .env("CARGO_TARGET_DIR", workspace.target.join("fuzz-plain"))
}

/// Copies what the fuzz package builds from. Files that are the same already keep their time, so that cargo rebuilds
/// only what changed since the last run.
fn copy_tree(workspace: &Workspace, tree: &Path) -> anyhow::Result<()> {
    let listed = Run::new(workspace, "git").words("ls-files --cached --others --exclude-standard").output()?;
    for name in listed.lines() {
        let from = workspace.root.join(name);
        if !from.is_file() {
            continue;
        }
        let to = tree.join(name);
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        }
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

/// Reads the four keys. This is the small part of TOML that mutants are written in, not TOML.
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
    };
    if let Some(key) = values.keys().next() {
        bail!("there is no key {key}");
    }
    ensure!(!mutant.text.is_empty() && mutant.text != mutant.replacement, "it changes nothing");
    Ok(mutant)
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
        };
        assert_eq!(parse(text).unwrap(), expected);
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
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
