//! What the checks need and cargo does not bring: Debian packages, and everything else below the target directory.
//!
//! Nothing else on the machine is touched. Each function is quick when the thing is there already, and says in one
//! sentence what is missing when it cannot get it.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::Workspace;
use crate::command::{Counts, Run};
use crate::tally::Tally;

/// The version of cargo-fuzz that `fuzz/` was tried with.
const CARGO_FUZZ: &str = "0.13.2";

/// Two parts that need the same thing at once do not both get it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An installation that takes longer than this is stuck.
const LIMIT: Duration = Duration::from_secs(600);

/// Finds kcat, or installs Debian's.
pub(crate) fn kcat() -> anyhow::Result<PathBuf> {
    let _alone = alone();
    if let Some(kcat) = on_path("kcat") {
        return Ok(kcat);
    }
    debian(&[&["kcat"]])?;
    on_path("kcat").context("the package kcat is installed, but kcat is not on the PATH")
}

/// Debian's ZooKeeper, in the version that the tests were tried with.
const ZOOKEEPER: &str = "zookeeper=3.8.0-11+deb12u2";

/// Finds Debian's ZooKeeper, or installs it, and returns its jar.
pub(crate) fn zookeeper(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let _alone = alone();
    java(workspace)?;
    let jar = PathBuf::from("/usr/share/java/zookeeper.jar");
    if !jar.is_file() {
        // A mirror keeps the last revision only.
        debian(&[&[ZOOKEEPER], &["zookeeper"]])?;
    }
    ensure!(jar.is_file(), "the package zookeeper is installed, but {} is not there", jar.display());
    Ok(jar)
}

/// Finds what makes namespaces, networks and mounts, or installs Debian's, and returns `ip`.
pub(crate) fn namespaces() -> anyhow::Result<PathBuf> {
    let _alone = alone();
    for (tool, package) in
        [("unshare", "util-linux"), ("nsenter", "util-linux"), ("mount", "mount"), ("ip", "iproute2")]
    {
        if on_path(tool).is_none() {
            debian(&[&[package]])?;
        }
    }
    on_path("ip").context("the package iproute2 is installed, but ip is not on the PATH")
}

/// The requirements of what runs the clients, and of the newest of them.
pub(crate) const CLIENTS: &str = "requirements.txt";

/// Makes the virtual environment of a file in `tests/clients` and returns its Python.
pub(crate) fn python(workspace: &Workspace, requirements: &str) -> anyhow::Result<PathBuf> {
    let _alone = alone();
    let name = requirements.trim_start_matches("requirements").trim_end_matches(".txt");
    let requirements = workspace.root.join("tests/clients").join(requirements);
    let wanted =
        fs::read_to_string(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let venv = workspace.target.join(format!("clients-venv{name}"));
    let python = venv.join("bin/python");
    let stamp = venv.join("installed");
    if python.exists() && fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if venv.exists() {
        fs::remove_dir_all(&venv).with_context(|| format!("cannot remove {}", venv.display()))?;
    }
    let make = |python: &Path| prepare(Run::new(workspace, python).words("-m venv").word(&venv));
    // Debian splits venv from python3. A python3 without it fails here, and Debian's own is used once it is complete.
    if on_path("python3").is_none_or(|python| make(&python).is_err()) {
        debian(&[&["python3", "python3-venv"]])?;
        make(Path::new("/usr/bin/python3")).context("cannot make a Python virtual environment")?;
    }
    let pip = Run::new(workspace, &python).words("-m pip install --quiet --disable-pip-version-check -r");
    prepare(pip.word(&requirements)).context("cannot install the Python clients from PyPI")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// Gets the jars that `tests/kafka-peer/pom.xml` names by Maven and returns their directory.
pub(crate) fn kafka(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    jars(workspace, "tests/kafka-peer/pom.xml", "kafka-peer", &[])
}

/// Gets the jars of Kafka's Java clients in one version and returns their directory.
pub(crate) fn java_client(workspace: &Workspace, version: &str) -> anyhow::Result<PathBuf> {
    let place = format!("clients-java/{version}");
    jars(workspace, "tests/clients/programs/java/pom.xml", &place, &[format!("-Dkafka.version={version}")])
}

/// Gets the jars of Kafka Streams in one version and returns their directory.
pub(crate) fn kafka_streams(workspace: &Workspace, version: &str) -> anyhow::Result<PathBuf> {
    let place = format!("clients-java/streams-{version}");
    let options = ["-Pstreams".to_owned(), format!("-Dkafka.version={version}")];
    jars(workspace, "tests/clients/programs/java/pom.xml", &place, &options)
}

/// Gets what a pom names into `libs` below a directory of the target directory.
fn jars(workspace: &Workspace, pom: &str, place: &str, options: &[String]) -> anyhow::Result<PathBuf> {
    let _alone = alone();
    let pom = workspace.root.join(pom);
    let mut wanted = fs::read_to_string(&pom).with_context(|| format!("cannot read {}", pom.display()))?;
    wanted.extend(options.iter().map(String::as_str));
    java(workspace)?;
    let libs = workspace.target.join(place).join("libs");
    let stamp = workspace.target.join(place).join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(libs);
    }
    if on_path("mvn").is_none() {
        debian(&[&["maven"]])?;
    }
    fs::create_dir_all(&libs).with_context(|| format!("cannot create {}", libs.display()))?;
    let mut maven = Run::new(workspace, "mvn").words("--quiet --batch-mode --file").word(&pom);
    for option in options {
        maven = maven.word(option);
    }
    let output = format!("-DoutputDirectory={}", libs.display());
    prepare(maven.words("dependency:copy-dependencies").word(output))
        .context("cannot get Apache Kafka's jars from Maven Central")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(libs)
}

/// Compiles a program of the Java clients against these jars and returns where its classes are.
pub(crate) fn java_program(workspace: &Workspace, libs: &Path, program: &str) -> anyhow::Result<PathBuf> {
    let _alone = alone();
    if on_path("javac").is_none() {
        debian(&[&["openjdk-17-jdk-headless"], &["default-jdk-headless"]])?;
    }
    let classes = libs.with_file_name("classes");
    let compile = Run::new(workspace, "javac").words("-nowarn -Xlint:-options --release 11 -cp").word(libs.join("*"));
    let source = workspace.root.join(format!("tests/clients/programs/java/{program}.java"));
    prepare(compile.word("-d").word(&classes).word(source))
        .with_context(|| format!("cannot compile {program}.java"))?;
    Ok(classes)
}

/// The oldest release of Go that builds the Go clients.
const GO: [u32; 2] = [1, 26];

/// Finds a Go that is new enough, or installs Debian's.
pub(crate) fn go(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let release = || -> Option<[u32; 2]> {
        // go version go1.26.8 linux/amd64
        let text = Run::new(workspace, "go").word("version").output().ok()?;
        let mut numbers = text.split_whitespace().nth(2)?.strip_prefix("go")?.split('.');
        Some([numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?])
    };
    if on_path("go").is_none() {
        debian(&[&["golang-go"]])?;
    }
    let found = release().context("go is installed, but cannot be run")?;
    let [major, minor] = GO;
    // From 1.21 on, Go gets itself the release that a module asks for.
    ensure!(
        found >= [1, 21],
        "the Go clients need Go {major}.{minor}, and `go` is {}.{}, too old to fetch it: install a newer one",
        found[0],
        found[1]
    );
    on_path("go").context("the package golang-go is installed, but go is not on the PATH")
}

/// Builds a program of the Go clients and returns it.
pub(crate) fn go_program(workspace: &Workspace, program: &str) -> anyhow::Result<PathBuf> {
    let go = go(workspace)?;
    let built = workspace.target.join("clients-go").join(program);
    let module = workspace.root.join("tests/clients/programs/go");
    let build = Run::new(workspace, go).word("-C").word(module).words("build -mod=readonly -o").word(&built);
    prepare(build.word(format!("./{program}"))).context("cannot build the Go clients")?;
    Ok(built)
}

/// Finds Node.js, or installs Debian's, gets the packages of kafkajs from npm, and returns `node` and the program.
pub(crate) fn node(workspace: &Workspace) -> anyhow::Result<[PathBuf; 2]> {
    let _alone = alone();
    if on_path("node").is_none() || on_path("npm").is_none() {
        debian(&[&["nodejs", "npm"]])?;
    }
    // Node.js looks for packages beside and above a program, so the program moves to where they are.
    let source = workspace.root.join("tests/clients/programs/node");
    let place = workspace.target.join("clients-node");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    for name in ["package.json", "package-lock.json", "main.mjs"] {
        fs::copy(source.join(name), place.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    let lock = place.join("package-lock.json");
    let wanted = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let stamp = place.join("installed");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        let npm = Run::new(workspace, "npm").words("ci --silent --no-audit --no-fund --ignore-scripts --prefix");
        prepare(npm.word(&place)).context("cannot get kafkajs from npm")?;
        fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    let node = on_path("node").context("the package nodejs is installed, but node is not on the PATH")?;
    Ok([node, place.join("main.mjs")])
}

/// Finds what librdkafka is built with and npm, which brings its tests, or installs Debian's.
pub(crate) fn c_libraries() -> anyhow::Result<()> {
    let _alone = alone();
    for (tool, package) in [("gcc", "gcc"), ("g++", "g++"), ("make", "make"), ("npm", "npm")] {
        if on_path(tool).is_none() {
            debian(&[&[package]])?;
        }
    }
    for (header, package) in [("zlib.h", "zlib1g-dev"), ("zstd.h", "libzstd-dev"), ("openssl/ssl.h", "libssl-dev")] {
        if !Path::new("/usr/include").join(header).is_file() {
            debian(&[&[package]])?;
        }
    }
    Ok(())
}

/// Finds cargo-fuzz, or builds it, and returns the program.
pub(crate) fn cargo_fuzz(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let _alone = alone();
    let tools = workspace.target.join("tools");
    let program = tools.join("bin/cargo-fuzz");
    if program.exists() {
        return Ok(program);
    }
    if let Some(program) = on_path("cargo-fuzz") {
        return Ok(program);
    }
    // It only starts others: how well it is optimised is no matter, and how long that takes is.
    let install = Run::cargo(workspace).words("install --quiet --debug --locked cargo-fuzz --version").word(CARGO_FUZZ);
    prepare(install.word("--root").word(&tools)).context("cannot install cargo-fuzz from crates.io")?;
    Ok(program)
}

/// Makes sure that there is a Java of at least 17, which Kafka 4.1 asks for.
fn java(workspace: &Workspace) -> anyhow::Result<()> {
    let release = || -> Option<u32> {
        // openjdk 17.0.15 2025-04-15
        let text = Run::new(workspace, "java").word("--version").output().ok()?;
        text.split_whitespace().nth(1)?.split(['.', '-', '+']).next()?.parse().ok()
    };
    if release().is_none_or(|release| release < 17) {
        debian(&[&["openjdk-17-jre-headless"], &["default-jre-headless"]])?;
    }
    let found = release().context("java is installed, but cannot be run")?;
    ensure!(found >= 17, "Apache Kafka 4.1 needs Java 17, and `java` is Java {found}");
    Ok(())
}

/// Installs the first of the alternatives that Debian has.
fn debian(alternatives: &[&[&str]]) -> anyhow::Result<()> {
    let names = alternatives.iter().map(|packages| packages.join(" ")).collect::<Vec<_>>().join(" or ");
    ensure!(
        on_path("apt-get").is_some(),
        "{names} is missing and this is no Debian: install it, or leave the part out with --skip"
    );
    let root = rustix::process::geteuid().is_root();
    ensure!(
        root || on_path("sudo").is_some(),
        "{names} is missing and installing it takes root or sudo: run `apt-get install {names}` as root, or leave the \
         part out with --skip"
    );
    let apt = |words: &str| {
        let run = if root {
            Run::here("apt-get")
        } else {
            // Without a terminal sudo has nobody to ask for a password, and must fail instead of waiting.
            let ask = if std::io::stderr().is_terminal() { "" } else { "-n" };
            Run::here("sudo").words(ask).words("DEBIAN_FRONTEND=noninteractive apt-get")
        };
        prepare(run.env("DEBIAN_FRONTEND", "noninteractive").words(words))
    };
    apt("-q update").with_context(|| format!("{names} is missing and Debian's package lists cannot be updated"))?;
    let mut last = None;
    for packages in alternatives {
        let install = format!("-q -y --no-install-recommends install {}", packages.join(" "));
        match apt(&install) {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.context(format!("{names} is missing and cannot be installed"))),
        None => bail!("nothing to install was named"),
    }
}

/// Runs a command that has nothing to count, with its output shown.
fn prepare(run: Run) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    if run.run(&mut tally, Instant::now() + LIMIT, Counts::Nothing) {
        return Ok(());
    }
    bail!("{}", tally.failures().join("; "));
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}
