//! The parts of `cargo xtask test`.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::command::{Counts, Run};
use crate::tally::Tally;
use crate::{Workspace, differential, install, mutants, programs};

/// One part of the test run.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What the part may take on two cores with nothing compiled and nothing installed. A part that goes over it is
    /// made to do less of the same.
    pub(crate) budget: Duration,
    /// Whether it mostly waits for servers and clients to start, and so runs beside its neighbours that do.
    pub(crate) beside: bool,
    /// Whose debug programs it needs.
    pub(crate) packages: &'static [&'static str],
    /// Whether it needs the `highwater` programs as users build them.
    pub(crate) binaries: bool,
    pub(crate) run: fn(&Workspace, &mut Tally, Instant) -> anyhow::Result<()>,
}

impl Part {
    /// When a command of this part is taken for stuck.
    pub(crate) fn limit(&self) -> Duration {
        self.budget * 2 + Duration::from_secs(120)
    }

    const fn beside(self) -> Self {
        Self { beside: true, ..self }
    }

    const fn on_the_binary(self) -> Self {
        Self { binaries: true, ..self }
    }

    /// Builds what it needs, if no part before it has: that takes as long as it takes, and none of the part's time.
    pub(crate) fn prepare(&self, workspace: &Workspace, tally: &mut Tally) -> anyhow::Result<()> {
        if self.name == "build" {
            return Ok(());
        }
        if !self.packages.is_empty() {
            programs::build(workspace, tally)?;
        }
        if self.binaries {
            binaries(workspace, tally, Counts::Nothing)?;
        }
        Ok(())
    }

    const fn needs(self, packages: &'static [&'static str]) -> Self {
        Self { packages, ..self }
    }
}

const fn part(
    name: &'static str,
    budget_seconds: u64,
    about: &'static str,
    run: fn(&Workspace, &mut Tally, Instant) -> anyhow::Result<()>,
) -> Part {
    Part {
        name,
        about,
        budget: Duration::from_secs(budget_seconds),
        beside: false,
        packages: &[],
        binaries: false,
        run,
    }
}

/// The packages whose tests are not a question of speed.
const TESTED: &[&str] = &[
    "highwater-storage",
    "highwater-replication",
    "highwater-groups",
    "highwater-broker",
    "highwater-testbed",
    "highwater-tests",
    "highwater-benches",
    "xtask",
];

/// All parts, in the order they run: what fails fastest first.
pub(crate) const PARTS: &[Part] = &[
    part("build", 950, "format, lints, documentation, the tests, the binary with both allocators", build).needs(TESTED),
    part("workspace", 5, "rules of the workspace, this program's own tests", workspace_rules)
        .needs(&["highwater-tests", "xtask"]),
    part("storage", 100, "crates/storage: unit, model and crash tests, examples", storage).needs(&["highwater-storage"]),
    part("replication", 10, "crates/replication: unit tests", replication).needs(&["highwater-replication"]),
    part("groups", 10, "crates/groups: unit and random tests, Kafka's records", coordinators)
        .needs(&["highwater-groups"]),
    part(
        "sim",
        180,
        "crates/checker: its checks; crates/replication: scripted stories; tests/sim: fixed seeds, and fresh ones",
        simulation,
    ),
    part(
        "broker",
        95,
        "crates/broker: unit tests, clusters in one process, coordination stores (ZooKeeper too)",
        broker,
    )
    .needs(&["highwater-broker", "highwater-tests"]),
    part("binary", 30, "the real binary: command line, signals, kill -9, hostile frames", binary)
        .needs(&["highwater-tests"])
        .on_the_binary(),
    part("bench", 20, "every bench once", bench).needs(&["highwater-benches"]),
    part("fuzz", 300, "fuzz targets: seeds, then 20 s of fuzzing each, two at a time", fuzz),
    part("clients", 290, "clients of six languages and Kafka's Java tools on the real binary", clients)
        .beside()
        .needs(&["highwater-tests"])
        .on_the_binary(),
    part("suites", 60, "a quick choice of other people's test suites, held to what Kafka passes", suites)
        .beside()
        .on_the_binary(),
    part(
        "kafka-files",
        160,
        "real Kafka on logs that our engine wrote, and the other way round; the same requests to both",
        kafka_files,
    )
    .beside()
    .needs(&["highwater-broker", "highwater-tests"]),
    part("mutants", 200, "planted mistakes, some drawn by the tree, each of which tests must find", mutants::run_drawn).beside(),
    part(
        "cluster",
        215,
        "the demo: three brokers, a killed leader, nothing lost; processes with ZooKeeper, which goes away, and whose links and disks fail; an attack",
        cluster,
    )
    .needs(&["highwater-testbed", "highwater-tests"])
    .on_the_binary(),
];

/// The parts in the order they run: one alone, or neighbours beside each other.
pub(crate) fn groups<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<Vec<&'a Part>> {
    let mut groups: Vec<Vec<&Part>> = Vec::new();
    for part in parts {
        match groups.last_mut() {
            Some(group) if part.beside && group.iter().all(|other| other.beside) => group.push(part),
            _ => groups.push(vec![part]),
        }
    }
    groups
}

/// How many parts run beside each other.
pub(crate) const BESIDE: usize = 2;

/// What a group may take.
pub(crate) fn budget(group: &[&Part]) -> Duration {
    let together: Duration = group.iter().map(|part| part.budget).sum();
    let longest = group.iter().map(|part| part.budget).max().unwrap_or_default();
    longest.max(together / u32::try_from(BESIDE.min(group.len())).unwrap_or(1))
}

fn build(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    // Beside each other: where a crate is long in compiling and all others wait for it, the other build goes on.
    let mut of_binaries = Tally::keeping();
    let (optimised, checked) = thread::scope(|scope| {
        let optimised = scope.spawn(|| binaries(workspace, &mut of_binaries, Counts::Itself).map(|_| ()));
        let checked = check_and_build_tests(workspace, tally, deadline);
        (optimised.join(), checked)
    });
    tally.merge(of_binaries);
    checked?;
    optimised.unwrap_or_else(|_| bail!("the build of the binaries panicked"))
}

fn check_and_build_tests(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    Run::cargo(workspace).words("fmt --all --check").run(tally, deadline, Counts::Itself);
    // The packages that are workspaces of their own. The part `fuzz` builds the one; the other is only built by who compares,
    // for the crates that it is about take a minute and belong to nothing else.
    for package in ["fuzz", "benches/compare"] {
        let format = Run::cargo(workspace).words("fmt --check --manifest-path").word(format!("{package}/Cargo.toml"));
        format.run(tally, deadline, Counts::Itself);
    }
    let clippy = Run::cargo(workspace).words("clippy --locked --workspace --all-targets").words(programs::FEATURES);
    clippy.words("-- -D warnings").run(tally, deadline, Counts::Itself);
    // Each crate alone and without its features, so that no other member lends it what it lacks.
    for package in ["highwater-storage", "highwater-replication", "highwater-groups"] {
        let alone = Run::cargo(workspace).words("clippy --locked --no-default-features --package").word(package);
        alone.words("-- -D warnings").run(tally, deadline, Counts::Itself);
    }
    let documentation = Run::cargo(workspace).words("doc --locked --workspace --no-deps").words(programs::FEATURES);
    documentation.env("RUSTDOCFLAGS", "-D warnings").run(tally, deadline, Counts::Itself);
    programs::build(workspace, tally)?;
    programs::documentation(workspace, tally, deadline);
    Ok(())
}

fn workspace_rules(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    programs::test(workspace, tally, deadline, "xtask", &[], "", &[])?;
    programs::test(workspace, tally, deadline, "highwater-tests", &["it"], "workspace::", &[])
}

fn storage(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    programs::test(workspace, tally, deadline, "highwater-storage", &[], "", &[])?;
    for example in rust_files(workspace, "crates/storage/examples")? {
        let program = programs::executable(workspace, tally, "highwater-storage", &example)?;
        Run::new(workspace, program).run(tally, deadline, Counts::Itself);
    }
    Ok(())
}

fn replication(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    programs::test(workspace, tally, deadline, "highwater-replication", &["lib"], "", &[])
}

fn coordinators(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    programs::test(workspace, tally, deadline, "highwater-groups", &[], "", &[])
}

fn simulation(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    // Release: thousands of seeds are a question of seconds there and of minutes without optimisation.
    let packages = "--package highwater-checker --package highwater-replication --package highwater-sim";
    let tests = Run::cargo(workspace).words("test --locked --release --no-fail-fast --lib --test *").words(packages);
    tests.run(tally, deadline, Counts::Lines);
    // Seeds that nobody has run yet, others with each commit.
    for world in ["replicas --minutes 1", "coordinators --minutes 0.05"] {
        Run::cargo(workspace)
            .words("run --quiet --locked --release --package highwater-sim -- --world")
            .words(world)
            .word("--from")
            .word(mutants::tree_seed(workspace)?.to_string())
            .run(tally, deadline, Counts::Itself);
    }
    Ok(())
}

fn broker(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    programs::test(workspace, tally, deadline, "highwater-broker", &[], "", &[])?;
    // Without the server the tests that need it fail; the others still run.
    if let Err(error) = install::zookeeper(workspace) {
        tally.fail(format!("ZooKeeper is not to be had: {error:#}"));
    }
    programs::test(workspace, tally, deadline, "highwater-tests", &["coordination"], "", &[])
}

fn binary(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let binaries = binaries(workspace, tally, Counts::Nothing)?;
    // One test at a time: the memory and time limits that they hold are meant for a machine that does nothing else.
    let arguments = "--test-threads=1 --show-output --skip workspace::";
    let environment = [
        ("HIGHWATER_BINARY", binaries.jemalloc.as_path()),
        ("HIGHWATER_BINARY_SYSTEM_ALLOCATOR", binaries.system_allocator.as_path()),
    ];
    programs::test(workspace, tally, deadline, "highwater-tests", &["lib", "it"], arguments, &environment)
}

fn bench(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    // Without optimisation: that each runs, not how fast.
    programs::test(workspace, tally, deadline, "highwater-benches", &[], "--test", &[])
}

/// How long each fuzz target runs. Longer runs are for `cargo fuzz run`: see `fuzz/README.md`.
const FUZZ_SECONDS: u32 = 20;

fn fuzz(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    // The seeds first, as plain tests: they need neither cargo-fuzz nor a C++ compiler.
    Run::cargo(workspace)
        .words("test --locked --manifest-path fuzz/Cargo.toml --no-default-features --lib")
        .env("CARGO_TARGET_DIR", &workspace.target)
        .run(tally, deadline, Counts::Lines);
    let cargo_fuzz = install::cargo_fuzz(workspace)?;
    // Without a sanitizer cargo-fuzz works on the pinned stable toolchain; the targets hold no unsafe code that one would
    // watch.
    let fuzzer = |words: &str| {
        let run = Run::new(workspace, &cargo_fuzz).words(words).words("--sanitizer none");
        run.env("CARGO_TARGET_DIR", workspace.target.join("fuzz"))
    };
    if !fuzzer("build").run(tally, deadline, Counts::Nothing) {
        return Ok(());
    }
    // Another one with each commit; and who has the commit can have the same inputs made again.
    let seed = mutants::tree_seed(workspace)?.max(1);
    let mut runs = Vec::new();
    for target in rust_files(workspace, "fuzz/fuzz_targets")? {
        let corpus = workspace.target.join("fuzz-corpus").join(&target);
        fs::create_dir_all(&corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
        let run = fuzzer("run").word(&target).word(&corpus).word(format!("fuzz/seeds/{target}")).word("--");
        let run = run.word(format!("-max_total_time={FUZZ_SECONDS}")).word(format!("-seed={seed}"));
        runs.push(run.env("RUST_BACKTRACE", "0").words("-timeout=20 -rss_limit_mb=2048 -verbosity=0"));
    }
    Run::run_together(runs, tally, deadline, Counts::Itself);
    Ok(())
}

fn clients(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let binary = &binaries(workspace, tally, Counts::Nothing)?.jemalloc;
    crate::clients::test(workspace, binary, tally, deadline)
}

fn suites(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let binaries = binaries(workspace, tally, Counts::Nothing)?;
    crate::suites::quick(workspace, &binaries.jemalloc, tally, deadline)
}

fn kafka_files(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let python = install::python(workspace, install::CLIENTS)?;
    let kafka = install::kafka(workspace)?;
    // As the tests build it: nothing here is a question of speed.
    let highwater = programs::executable(workspace, tally, "highwater-broker", "highwater")?;
    let files = programs::executable(workspace, tally, "highwater-tests", "kafka-files")?;
    Run::new(workspace, &python)
        .words("-u tests/clients kafka_files --highwater")
        .word(highwater)
        .word("--kafka-files")
        .word(files)
        .word("--kafka-data")
        .word(workspace.root.join("crates/storage/tests/data"))
        .word("--work")
        .word(workspace.target.join("kafka-files-work"))
        .word("--kafka-libs")
        .word(&kafka)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run(tally, deadline, Counts::Lines);
    // What answers like Kafka stands beside what writes like it: both need one, and a debug build.
    programs::test(workspace, tally, deadline, "highwater-tests", &["differential"], "", &[])?;
    differential::quick(workspace, &kafka, tally, deadline)
}

fn cluster(workspace: &Workspace, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    let binaries = binaries(workspace, tally, Counts::Nothing)?;
    Run::new(workspace, &binaries.jemalloc).word("demo").run(tally, deadline, Counts::Itself);
    Run::new(workspace, &binaries.jemalloc).words("demo --brokers 5 --records 60000 --seed 42 --input README.md").run(
        tally,
        deadline,
        Counts::Itself,
    );
    // Without these the tests fail and say so.
    if let Err(error) = install::zookeeper(workspace) {
        tally.fail(format!("ZooKeeper is not to be had: {error:#}"));
    }
    if let Err(error) = install::namespaces() {
        tally.fail(format!("namespaces are not to be had: {error:#}"));
    }
    programs::test(workspace, tally, deadline, "highwater-testbed", &[], "", &[])?;
    // What is cut off waits most of the time, and each test has a machine of its own; the others measure.
    for arguments in ["apart:: --test-threads=3 --show-output", "--test-threads=1 --show-output --skip apart::"] {
        let environment = [("HIGHWATER_BINARY", binaries.jemalloc.as_path())];
        programs::test(workspace, tally, deadline, "highwater-tests", &["cluster"], arguments, &environment)?;
    }
    Ok(())
}

/// The `highwater` programs, as users build them.
#[derive(Debug)]
pub(crate) struct Binaries {
    jemalloc: PathBuf,
    system_allocator: PathBuf,
}

/// Builds both, once; an error if they cannot be built.
fn binaries<'a>(workspace: &'a Workspace, tally: &mut Tally, counts: Counts) -> anyhow::Result<&'a Binaries> {
    let mut build = |kind: &str, options: &str| -> anyhow::Result<Option<PathBuf>> {
        let build = "rustc --locked --release --package highwater-broker --bin highwater --";
        let run = Run::cargo(workspace).words(build).words(options);
        if !run.run(tally, Instant::now() + programs::BUILD_LIMIT, counts) {
            return Ok(None);
        }
        // Both have one name in the target directory, and what others build there later has it too.
        let built = workspace.target.join("release/highwater");
        let kept = workspace.target.join(format!("release/highwater-{kind}"));
        let _ = fs::remove_file(&kept);
        fs::copy(&built, &kept).with_context(|| format!("cannot copy {} to {}", built.display(), kept.display()))?;
        Ok(Some(kept))
    };
    let mut both = || -> anyhow::Result<Option<Binaries>> {
        let Some(system_allocator) = build("system-allocator", "--cfg system_allocator")? else { return Ok(None) };
        Ok(build("jemalloc", "")?.map(|jemalloc| Binaries { jemalloc, system_allocator }))
    };
    let built = workspace.binaries.get_or_init(|| both().map_err(|error| format!("{error:#}")));
    match built {
        Ok(Some(binaries)) => Ok(binaries),
        Ok(None) => bail!("the binary cannot be built"),
        Err(error) => bail!("{error}"),
    }
}

/// The names, without their ending, of the Rust files right in a directory.
fn rust_files(workspace: &Workspace, directory: &str) -> anyhow::Result<Vec<String>> {
    let directory = workspace.root.join(directory);
    let entries = fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let names = entries.flatten().filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budgets_fit_in_forty_minutes() {
        let together: Duration = groups(PARTS.iter()).iter().map(|group| budget(group)).sum();
        assert!(together <= Duration::from_secs(40 * 60), "{together:?}");
    }

    #[test]
    fn neighbours_that_wait_run_beside_each_other() {
        let named = |groups: Vec<Vec<&Part>>| -> Vec<Vec<&str>> {
            groups.iter().map(|group| group.iter().map(|part| part.name).collect()).collect()
        };
        let part = |name, seconds| part(name, seconds, "", build);
        let parts = [part("a", 1), part("b", 5).beside(), part("c", 9).beside(), part("d", 1), part("e", 1).beside()];
        assert_eq!(named(groups(parts.iter())), [vec!["a"], vec!["b", "c"], vec!["d"], vec!["e"]]);
        assert_eq!(budget(&[&parts[1], &parts[2]]), Duration::from_secs(9));
        assert_eq!(budget(&[&parts[2], &parts[2], &parts[2]]), Duration::from_millis(13_500));
        assert_eq!(budget(&[&parts[0]]), Duration::from_secs(1));
    }

    #[test]
    fn no_two_parts_have_one_name() {
        for (at, part) in PARTS.iter().enumerate() {
            assert!(PARTS.iter().skip(at + 1).all(|other| other.name != part.name), "{}", part.name);
        }
    }
}
