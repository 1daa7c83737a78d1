//! Real clients on the real binary: `cargo xtask test clients`, and `cargo xtask soak clients` with older ones too.
//!
//! `tests/clients` has a program for each; `check_table.py` there runs them all in the same scenarios.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Parser;

use crate::command::{Counts, Run};
use crate::tally::Tally;
use crate::{Workspace, install, programs, soak};

/// A row of the table: a client in one version.
#[derive(Debug)]
struct Client {
    name: &'static str,
    version: &'static str,
    kind: Kind,
    /// Whether the test run leaves it to the soak.
    soak: bool,
}

/// How a client comes here, and what runs it.
#[derive(Debug)]
enum Kind {
    /// A program of Debian's that a Python program starts.
    Kcat,
    /// A Python program in the environment of a file of requirements.
    Python { requirements: &'static str, program: &'static str },
    /// The one Java program, with this version's jars.
    Java,
    /// A program of the Go module.
    Go { program: &'static str },
    /// The Node.js program.
    Node,
    /// An example of the tests' package.
    Rust { example: &'static str },
}

const fn client(name: &'static str, version: &'static str, kind: Kind) -> Client {
    Client { name, version, kind, soak: false }
}

const fn in_soak(name: &'static str, version: &'static str, kind: Kind) -> Client {
    Client { name, version, kind, soak: true }
}

const CONFLUENT: &str = "run_confluent.py";
const KAFKA_PYTHON: &str = "run_kafka_python.py";
const NEW: &str = install::CLIENTS;
const OLD: &str = "requirements-old.txt";
const SOAK: &str = "requirements-soak.txt";

const CLIENTS: &[Client] = &[
    client("kcat", "1.7.1", Kind::Kcat),
    client("confluent-kafka", "2.16.1", Kind::Python { requirements: NEW, program: CONFLUENT }),
    client("kafka-python", "3.0.12", Kind::Python { requirements: NEW, program: KAFKA_PYTHON }),
    client("kafka-python", "2.0.6", Kind::Python { requirements: OLD, program: KAFKA_PYTHON }),
    client("java", "4.1.1", Kind::Java),
    client("java", "3.9.1", Kind::Java),
    client("franz-go", "1.22.3", Kind::Go { program: "franz" }),
    client("sarama", "1.61.1", Kind::Go { program: "sarama" }),
    client("kafkajs", "2.2.4", Kind::Node),
    client("rskafka", "0.6.0", Kind::Rust { example: "rskafka" }),
    in_soak("java", "2.8.2", Kind::Java),
    in_soak("aiokafka", "0.14.0", Kind::Python { requirements: SOAK, program: "run_aiokafka.py" }),
    in_soak("confluent-kafka", "2.3.0", Kind::Python { requirements: SOAK, program: CONFLUENT }),
];

impl Client {
    /// Gets what it needs and returns the command that runs its program.
    fn command(&self, workspace: &Workspace) -> anyhow::Result<Vec<OsString>> {
        let program = |name: &str| workspace.root.join("tests/clients/programs").join(name);
        Ok(match &self.kind {
            Kind::Kcat => {
                install::kcat()?;
                vec![install::python(workspace, NEW)?.into(), program("run_kcat.py").into()]
            }
            Kind::Python { requirements, program: name } => {
                vec![install::python(workspace, requirements)?.into(), program(name).into()]
            }
            Kind::Java => java(workspace, install::java_client(workspace, self.version)?, "Client", "-Xmx192m")?,
            Kind::Go { program: name } => vec![install::go_program(workspace, name)?.into()],
            Kind::Rust { example } => {
                vec![programs::executable(workspace, &mut Tally::default(), "highwater-tests", example)?.into()]
            }
            Kind::Node => install::node(workspace)?.map(OsString::from).into(),
        })
    }
}

/// The command that runs a Java program of ours with these jars.
fn java(workspace: &Workspace, libs: PathBuf, program: &str, memory: &str) -> anyhow::Result<Vec<OsString>> {
    let mut path = install::java_program(workspace, &libs, program)?.into_os_string();
    path.push(":");
    path.push(libs.join("*"));
    // Each process lives for seconds: the quick compiler and one collector thread start it sooner.
    let words = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp";
    let mut command: Vec<OsString> = ["java", memory].into_iter().chain(words.split(' ')).map(OsString::from).collect();
    command.extend([path, program.into()]);
    Ok(command)
}

/// What `cargo xtask soak clients` is told.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak clients", no_binary_name = true)]
struct Arguments {
    /// The clients to run, by name, in all versions that there are; none means all.
    #[arg(value_name = "CLIENT", value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.iter().map(|client| client.name)))]
    clients: Vec<String>,
    #[command(flatten)]
    on: On,
}

/// What `cargo xtask soak streams` is told.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak streams", no_binary_name = true)]
struct StreamsArguments {
    #[command(flatten)]
    on: On,
}

/// Which broker clients run on.
#[derive(Debug, clap::Args)]
struct On {
    /// Run on a debug build.
    #[arg(long)]
    debug: bool,
    /// Run on Apache Kafka; what it stored is read by `highwater log dump` all the same.
    #[arg(long)]
    against_kafka: bool,
}

impl On {
    /// Builds the binary, and gets Kafka's jars if they are asked for; nothing if the binary cannot be built.
    fn get(
        &self,
        workspace: &Workspace,
        tally: &mut Tally,
        deadline: Instant,
    ) -> anyhow::Result<Option<(PathBuf, Option<PathBuf>)>> {
        let kafka = self.against_kafka.then(|| install::kafka(workspace)).transpose()?;
        Ok(soak::binary(workspace, self.debug, tally, deadline).map(|binary| (binary, kafka)))
    }
}

/// Runs every client in every scenario.
pub(crate) fn soak(
    workspace: &Workspace,
    arguments: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let arguments = Arguments::parse_from(arguments);
    let Some((binary, kafka)) = arguments.on.get(workspace, tally, deadline)? else { return Ok(()) };
    let is_chosen = |name: &str| arguments.clients.is_empty() || arguments.clients.iter().any(|chosen| chosen == name);
    let chosen: Vec<&Client> = CLIENTS.iter().filter(|client| is_chosen(client.name)).collect();
    table(workspace, &chosen, &binary, kafka.as_deref(), tally, deadline)
}

/// What the test run has of it, beside the programs that look closer at one client.
pub(crate) fn test(workspace: &Workspace, binary: &Path, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    // Each of these is named if it cannot be had, and the programs that do without it still run.
    let python = install::python(workspace, NEW)?;
    let mut get = |what: &str, place: anyhow::Result<PathBuf>| {
        place.map_err(|error| tally.fail(format!("{what} is not to be had: {error:#}"))).ok()
    };
    let kcat = get("kcat", install::kcat());
    let kafka = get("Apache Kafka", install::kafka(workspace));
    for program in ["kcat", "confluent", "kafka_python", "java_tools", "kill_nine"] {
        let needs_kafka = program == "java_tools" || workspace.against_kafka;
        if (program == "kcat" && kcat.is_none()) || (needs_kafka && kafka.is_none()) {
            continue;
        }
        let mut run = start(workspace, &python, program, binary)?;
        if let Some(libs) = &kafka {
            run = run.word("--kafka-libs").word(libs);
        }
        if workspace.against_kafka {
            run = run.word("--against-kafka");
        }
        run.run(tally, deadline, Counts::Lines);
    }
    let chosen: Vec<&Client> = CLIENTS.iter().filter(|client| !client.soak).collect();
    let peer = if workspace.against_kafka { kafka.as_deref() } else { None };
    table(workspace, &chosen, binary, peer, tally, deadline)
}

/// Runs these clients in every scenario, on Highwater or on the Kafka whose jars are given.
fn table(
    workspace: &Workspace,
    clients: &[&Client],
    binary: &Path,
    kafka: Option<&Path>,
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let mut run = start(workspace, &install::python(workspace, NEW)?, "table", binary)?;
    for row in rows(clients, |client| client.command(workspace), tally) {
        run = run.word("--client").word(row);
    }
    against(run, kafka).run(tally, deadline, Counts::Lines);
    Ok(())
}

/// The rows of the clients that are to be had; each of the others is a failure by its name.
fn rows(
    clients: &[&Client],
    command: impl Fn(&Client) -> anyhow::Result<Vec<OsString>>,
    tally: &mut Tally,
) -> Vec<OsString> {
    let mut rows = Vec::new();
    for client in clients {
        match command(client) {
            Ok(command) => rows.push(row(client.name, client.version, &command)),
            Err(error) => tally.fail(format!("{} {} is not to be had: {error:#}", client.name, client.version)),
        }
    }
    rows
}

/// A client as the programs of `tests/clients` take one.
fn row(name: &str, version: &str, command: &[OsString]) -> OsString {
    let mut row = OsString::from(format!("{name}|{version}"));
    for word in command {
        row.push("|");
        row.push(word);
    }
    row
}

/// The run on Kafka, if its jars are given.
fn against(run: Run, kafka: Option<&Path>) -> Run {
    match kafka {
        Some(libs) => run.words("--against-kafka --kafka-libs").word(libs),
        None => run,
    }
}

/// The version of Kafka Streams that counts words.
const STREAMS: &str = "4.1.1";

/// A real application: Kafka Streams counts words exactly once, over a stop and a kill.
pub(crate) fn streams(
    workspace: &Workspace,
    arguments: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let arguments = StreamsArguments::parse_from(arguments);
    let Some((binary, kafka)) = arguments.on.get(workspace, tally, deadline)? else { return Ok(()) };
    let command = java(workspace, install::kafka_streams(workspace, STREAMS)?, "WordCount", "-Xmx512m")?;
    let run = start(workspace, &install::python(workspace, NEW)?, "streams", &binary)?;
    let run = run.word("--client").word(row("streams", STREAMS, &command));
    against(run, kafka.as_deref()).run(tally, deadline, Counts::Lines);
    Ok(())
}

/// A program of `tests/clients`, with an empty directory for what it writes.
fn start(workspace: &Workspace, python: &Path, program: &str, binary: &Path) -> anyhow::Result<Run> {
    let work = workspace.target.join("clients-work").join(program);
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    let run = Run::new(workspace, python).words("-u tests/clients").word(program).word("--work").word(work);
    Ok(run.word("--highwater").word(binary).env("PYTHONDONTWRITEBYTECODE", "1"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read(file: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// The rows of the table of `docs/clients.md` that begins so, its heading first and without the line below that.
    fn documented(heading: &str) -> Vec<Vec<String>> {
        let documentation = read("docs/clients.md");
        let table = documentation.lines().skip_while(|line| !line.starts_with(heading));
        let rows = table.take_while(|line| line.starts_with('|')).filter(|line| !line.starts_with("|---"));
        rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
    }

    #[test]
    fn the_documented_table_has_these_rows() {
        let documented = documented("| client | version |");
        let names: Vec<String> = documented.iter().skip(1).map(|row| row[..2].join(" ")).collect();
        let here: Vec<String> = CLIENTS.iter().map(|client| format!("{} {}", client.name, client.version)).collect();
        assert_eq!(names, here);
    }

    #[test]
    fn what_a_client_does_not_have_stands_in_both_documented_tables() {
        let mut gaps = BTreeSet::new();
        for [name, scenarios, _why] in documented("| client | does not have |").into_iter().skip(1).map(cells) {
            for Client { name: client, version, .. } in CLIENTS {
                if name == *client || name == format!("{client} {version}") {
                    gaps.extend(scenarios.split(", ").map(|scenario| format!("{client} {version}: {scenario}")));
                }
            }
        }
        let table = documented("| client | version |");
        let dashes: BTreeSet<String> = table[1..]
            .iter()
            .flat_map(|row| row.iter().zip(&table[0]).map(move |(cell, scenario)| (row, cell, scenario)))
            .filter(|(_, cell, _)| *cell == "-")
            .map(|(row, _, scenario)| format!("{}: {scenario}", row[..2].join(" ")))
            .collect();
        assert_eq!(dashes, gaps);
        assert!(!gaps.is_empty(), "no table was found");
    }

    fn cells(row: Vec<String>) -> [String; 3] {
        row.try_into().unwrap_or_else(|row| panic!("not three cells: {row:?}"))
    }

    #[test]
    fn a_client_that_is_not_to_be_had_is_a_failure_by_its_name() {
        let clients: Vec<&Client> = CLIENTS.iter().collect();
        let mut tally = Tally::default();
        let missing = |client: &Client| match client.kind {
            Kind::Kcat => anyhow::bail!("kcat is missing and this is no Debian"),
            _ => Ok(vec!["program".into()]),
        };
        let rows = rows(&clients, missing, &mut tally);
        assert_eq!(tally.failures(), ["kcat 1.7.1 is not to be had: kcat is missing and this is no Debian"]);
        assert_eq!(rows.len(), CLIENTS.len() - 1);
        assert!(rows.contains(&"rskafka|0.6.0|program".into()), "{rows:?}");
    }

    /// The table is to name what really runs.
    #[test]
    fn each_version_is_the_one_that_is_installed() {
        for Client { name, version, kind, .. } in CLIENTS {
            let (file, pinned) = match kind {
                // Debian's and, for Java, what the row itself says.
                Kind::Kcat | Kind::Java => continue,
                Kind::Python { requirements, .. } => {
                    (format!("tests/clients/{requirements}"), format!("{name}=={version}\n"))
                }
                Kind::Go { .. } => ("tests/clients/programs/go/go.mod".to_owned(), format!("/{name} v{version}\n")),
                Kind::Node => {
                    ("tests/clients/programs/node/package.json".to_owned(), format!("\"{name}\": \"{version}\""))
                }
                Kind::Rust { .. } => ("Cargo.toml".to_owned(), format!("{name} = \"={version}\"\n")),
            };
            assert!(read(&file).contains(&pinned), "{file} does not pin {name} {version}");
        }
    }
}
