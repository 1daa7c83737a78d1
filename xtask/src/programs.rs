//! The debug programs of the test run: tests, examples and binaries, all built by one command.
//!
//! Cargo gives a crate the features that the packages it is told to build ask for together. Part by part it would build
//! the broker, and all below it, anew for each choice of packages.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::Workspace;
use crate::command::{Counts, Run};
use crate::tally::Tally;

/// When a build is taken for stuck, whichever part it is the first of.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// With which features. The allocator of the `highwater` binary takes minutes to compile, and nothing here has a use for it.
pub(crate) const FEATURES: &str = "--no-default-features";

/// Something that cargo built and that can be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The directory of the package's `Cargo.toml`.
    directory: PathBuf,
    package: String,
    /// Its name; `lib` for the tests of a library.
    target: String,
    is_test: bool,
    executable: PathBuf,
}

impl Program {
    /// Runs it as cargo would.
    fn run(&self, workspace: &Workspace) -> Run {
        let run = Run::new(workspace, &self.executable).called(&format!("{} {}", self.package, self.target));
        run.within(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory)
    }

    /// What a line of cargo's `--message-format=json` tells of one.
    fn read(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" {
            return None;
        }
        let executable = PathBuf::from(message["executable"].as_str()?);
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        // `path+file:///…/crates/broker#highwater-broker@0.1.0`, or `…/xtask#0.1.0` where the directory has the package's name.
        let (place, id) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = id.rsplit_once('@').map_or_else(|| place.rsplit('/').next().unwrap_or(place), |(name, _)| name);
        let is_library = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "lib");
        let target = if is_library { "lib" } else { message["target"]["name"].as_str()? };
        Some(Self {
            directory,
            package: package.to_owned(),
            target: target.to_owned(),
            is_test: message["profile"]["test"].as_bool()?,
            executable,
        })
    }
}

/// Builds what the chosen parts need, once; an error if it cannot be built.
pub(crate) fn build<'a>(workspace: &'a Workspace, tally: &mut Tally) -> anyhow::Result<&'a [Program]> {
    let mut build = || -> anyhow::Result<Vec<Program>> {
        let mut programs = Vec::new();
        // An example with tests of its own is built by the first as tests only.
        for what in ["test --locked --no-run", "build --locked --examples"] {
            let run = with_packages(workspace, Run::cargo(workspace).words(what).words(FEATURES));
            let run = run.words("--message-format=json-render-diagnostics");
            let built = run.sifted(tally, Instant::now() + BUILD_LIMIT, |line| {
                programs.extend(Program::read(line));
                line.starts_with("{\"reason\"")
            })?;
            if !built {
                bail!("the tests cannot be built");
            }
        }
        Ok(programs)
    };
    let built = workspace.programs.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// The documentation's examples of the same packages.
pub(crate) fn documentation(workspace: &Workspace, tally: &mut Tally, deadline: Instant) {
    let run = with_packages(workspace, Run::cargo(workspace).words("test --locked --doc").words(FEATURES));
    run.run(tally, deadline, Counts::Lines);
}

fn with_packages(workspace: &Workspace, run: Run) -> Run {
    workspace.packages.iter().fold(run, |run, package| run.word("--package").word(package))
}

/// Runs the tests of a package, all or those of some targets, each in the package's directory as cargo does.
///
/// # Errors
/// If they cannot be built.
pub(crate) fn test(
    workspace: &Workspace,
    tally: &mut Tally,
    deadline: Instant,
    package: &str,
    targets: &[&str],
    arguments: &str,
    environment: &[(&str, &Path)],
) -> anyhow::Result<()> {
    let before = tally.passed() + tally.failed();
    let chosen = build(workspace, tally)?.iter().filter(|program| program.is_test && program.package == package);
    for program in chosen.filter(|program| targets.is_empty() || targets.contains(&program.target.as_str())) {
        let run = program.run(workspace).words(arguments);
        let run = environment.iter().fold(run, |run, &(key, value)| run.env(key, value));
        run.run(tally, deadline, Counts::Nothing);
    }
    if tally.passed() + tally.failed() == before {
        tally.fail(format!("{package} {}: ran no check", targets.join(" ")));
    }
    Ok(())
}

/// Tests that were built already.
pub(crate) fn test_program(workspace: &Workspace, package: &str, target: &str) -> Option<Run> {
    let mut built = workspace.programs.get()?.as_deref().ok()?.iter();
    let found = built.find(|program| program.is_test && program.package == package && program.target == target);
    found.map(|program| program.run(workspace))
}

/// Where an example or a binary is.
///
/// # Errors
/// If it cannot be built, or there is none of that name.
pub(crate) fn executable<'a>(
    workspace: &'a Workspace,
    tally: &mut Tally,
    package: &str,
    target: &str,
) -> anyhow::Result<&'a Path> {
    let mut programs = build(workspace, tally)?.iter();
    let found = programs.find(|program| !program.is_test && program.package == package && program.target == target);
    Ok(&found.with_context(|| format!("{package} has no program {target}"))?.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_tells_of_a_program_is_read() {
        let line = |id: &str, kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/w/crates/a/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = |package: &str, target: &str, is_test| Program {
            directory: PathBuf::from("/w/crates/a"),
            package: package.to_owned(),
            target: target.to_owned(),
            is_test,
            executable: PathBuf::from("/t/x"),
        };
        let id = "path+file:///w/crates/a#highwater-a@0.1.0";
        assert_eq!(
            Program::read(&line(id, "lib", "highwater_a", true, "\"/t/x\"")),
            Some(program("highwater-a", "lib", true))
        );
        assert_eq!(Program::read(&line(id, "bin", "a", false, "\"/t/x\"")), Some(program("highwater-a", "a", false)));
        let short = line("path+file:///w/xtask#0.1.0", "test", "it", true, "\"/t/x\"");
        assert_eq!(Program::read(&short), Some(program("xtask", "it", true)));
        assert_eq!(Program::read(&line(id, "lib", "highwater_a", false, "null")), None);
        assert_eq!(Program::read("{\"reason\":\"build-finished\",\"success\":true}"), None);
        assert_eq!(Program::read("   Compiling a"), None);
    }
}
