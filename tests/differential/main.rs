//! The same requests to Highwater and to Apache Kafka, and their answers side by side.
//!
//! ```text
//! differential --kafka-libs DIR --work DIR [--requests N] [--seed S] [--api NAME]… [--explain]
//! ```
//!
//! Both brokers begin with the same topics and records (`story`). Then requests are drawn, of every API that both offer and in
//! every version, sent to both in one order, and each answer is compared field by field. What a broker makes up itself (ids,
//! ports, sessions) is replaced by a name that both share (`world`); what may differ stands in `allowed.tsv`, with its reason.
//! Any other difference fails the run, and so does an answer that does not decode.

mod allowed;
mod exchange;
mod generator;
mod records;
mod story;
mod tree;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use highwater_tests::requests::{Api, apis};
use highwater_tests::{Kafka, Random, ServeOptions, Server, messages};

use allowed::AllAllowed;
use exchange::{Outcome, Peer};
use generator::Generator;
use tree::Tree;

/// Settings that both brokers get: what a single broker can do, and no waiting for members that never come.
const SETTINGS: &[(&str, &str)] = &[
    ("group.initial.rebalance.delay.ms", "0"),
    ("offsets.topic.num.partitions", "4"),
    ("transaction.state.log.num.partitions", "4"),
    ("auto.create.topics.enable", "false"),
    ("log.retention.check.interval.ms", "3600000"),
];

/// The APIs that only read. What a broker's answer tells of may reach it a moment later than the answer to who changed it, so
/// these are asked again until both say the same, and what differs then differs.
const READS: &[&str] = &[
    "DescribeClientQuotas",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeLogDirs",
    "DescribeProducers",
    "DescribeTopicPartitions",
    "DescribeTransactions",
    "DescribeUserScramCredentials",
    "ListConfigResources",
    "ListGroups",
    "ListOffsets",
    "ListTransactions",
    "Metadata",
    "OffsetFetch",
];

/// How often they are, and after how long each time.
const READS_MAX: usize = 20;
const READ_AGAIN: Duration = Duration::from_millis(50);

fn main() -> anyhow::Result<()> {
    let options = Options::read(std::env::args().skip(1))?;
    let highwater = SETTINGS.iter().fold(ServeOptions::default(), |all, (key, value)| all.set(key, value));
    std::fs::create_dir_all(&options.work).context("cannot make the working directory")?;
    let directory = tempfile::tempdir_in(&options.work)?;
    let (kafka, server) = thread::scope(|scope| {
        let kafka = scope.spawn(|| Kafka::start(&options.kafka_libs, &directory.path().join("kafka"), SETTINGS));
        let server = Server::start_with(&directory.path().join("highwater"), highwater);
        (kafka.join().expect("starting Kafka does not panic"), server)
    });
    let (kafka, mut server) = (kafka?, server?);
    let started_ms = generator::now_ms();
    let mut run = Run {
        ours: Peer::new(server.address(), started_ms),
        theirs: Peer::new(kafka.address(), started_ms),
        first_time_ms: started_ms - generator::AGE_MS,
        allowed: AllAllowed::read()?,
        correlation_id: 0,
        counts: BTreeMap::new(),
        found: BTreeMap::new(),
        explain: options.explain,
    };
    let done = run.all(&options);
    if done.is_err() || options.explain {
        println!("---- Kafka's log\n{}\n---- ours\n{}\n----", kafka.log(), server.log());
    }
    ensure!(server.is_running(), "the broker is gone");
    ensure!(!server.log().contains("panicked"), "something panicked:\n{}", server.log());
    let told = run.report(options.requests);
    done.and(told)
}

struct Options {
    kafka_libs: PathBuf,
    work: PathBuf,
    requests: usize,
    seed: u64,
    apis: BTreeSet<String>,
    explain: bool,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self {
            kafka_libs: PathBuf::new(),
            work: std::env::temp_dir(),
            requests: 500,
            seed: 1,
            apis: BTreeSet::new(),
            explain: false,
        };
        while let Some(word) = words.next() {
            if word == "--explain" {
                options.explain = true;
                continue;
            }
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match &*word {
                "--kafka-libs" => options.kafka_libs = value.into(),
                "--work" => options.work = value.into(),
                "--requests" => options.requests = value.parse().context("--requests takes a number")?,
                "--seed" => options.seed = value.parse().context("--seed takes a number")?,
                "--api" => _ = options.apis.insert(value),
                _ => bail!("there is no option {word}"),
            }
        }
        ensure!(!options.kafka_libs.as_os_str().is_empty(), "--kafka-libs names the directory of Apache Kafka's jars");
        Ok(options)
    }
}

/// What was asked and what came of it, of one API.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: usize,
    closed: usize,
    allowed: usize,
    different: usize,
}

/// API, path, ours, theirs.
type Difference = (String, String, String, String);

/// How often a difference was met, and the first request that shows it with its number.
type Shown = (usize, i32, String);

struct Run {
    ours: Peer,
    theirs: Peer,
    first_time_ms: i64,
    allowed: AllAllowed,
    correlation_id: i32,
    counts: BTreeMap<String, Count>,
    found: BTreeMap<Difference, Shown>,
    explain: bool,
}

impl Run {
    /// Both begin with the same; then the requests.
    fn all(&mut self, options: &Options) -> anyhow::Result<()> {
        let apis = apis();
        let common = self.common_apis(&apis)?;
        story::begin(self, &apis)?;
        println!("{} requests from seed {}", options.requests, options.seed);
        let mut random = Random::new(options.seed);
        let is_chosen = |name: &String| options.apis.is_empty() || options.apis.contains(name);
        let chosen: Vec<&(&Api, i16, i16)> = common.iter().filter(|(api, ..)| is_chosen(&api.name)).collect();
        ensure!(!chosen.is_empty(), "both know none of {:?}", options.apis);
        for _ in 0..options.requests {
            let (api, min, max) = **random.choose(&chosen);
            let version = min + i16::try_from(random.below(usize::try_from(max - min)? + 1))?;
            self.both(api, version, random.number())?;
        }
        Ok(())
    }

    /// The APIs that both brokers and `requests.txt` know, with the versions that both serve.
    fn common_apis<'a>(&mut self, apis: &'a [Api]) -> anyhow::Result<Vec<(&'a Api, i16, i16)>> {
        let (ours, theirs) = (story::ranges(&mut self.ours)?, story::ranges(&mut self.theirs)?);
        let common = apis.iter().filter_map(|api| {
            let (our_min, our_max) = *ours.get(&api.key)?;
            let (their_min, their_max) = *theirs.get(&api.key)?;
            // Below 3 both refuse a Produce in words of their own: `tests/it` asks for those.
            let least = if api.name == "Produce" { 3 } else { 0 };
            Some((api, our_min.max(their_min).max(least), our_max.min(their_max)))
        });
        Ok(common.collect())
    }

    /// Draws one request and sends it to both.
    fn both(&mut self, api: &Api, version: i16, seed: u64) -> anyhow::Result<()> {
        self.correlation_id += 1;
        let correlation_id = self.correlation_id;
        let first_time_ms = self.first_time_ms;
        let frame = |peer: &Peer| {
            let mut values = Generator::new(&api.name, version, Random::new(seed), first_time_ms, &peer.world);
            api.frame(version, correlation_id, "differential", &mut values).bytes
        };
        let (our_frame, their_frame) = (frame(&self.ours), frame(&self.theirs));
        self.exchange(api, version, &our_frame, &their_frame)
    }

    /// Sends one request to both, each its own form of it, and compares what comes of it.
    fn exchange(&mut self, api: &Api, version: i16, our_frame: &[u8], their_frame: &[u8]) -> anyhow::Result<()> {
        let correlation_id = self.correlation_id;
        let request = request_text(api, version, our_frame)?;
        let mut asked = 0;
        let (our_outcome, their_outcome) = loop {
            let (our_outcome, their_outcome) = self.ask_both(api, version, our_frame, their_frame, &request)?;
            asked += 1;
            let is_settled = match (&our_outcome, &their_outcome) {
                (Outcome::Answered(ours), Outcome::Answered(theirs)) => {
                    let differences = self.ours.common(ours).differences(&self.theirs.common(theirs));
                    differences
                        .iter()
                        .all(|(path, ours, theirs)| self.allowed.would_allow(&api.name, path, ours, theirs))
                }
                _ => true,
            };
            if is_settled || asked == READS_MAX || !READS.contains(&&*api.name) {
                break (our_outcome, their_outcome);
            }
            thread::sleep(READ_AGAIN);
        };
        if self.explain {
            println!("{correlation_id} {} {version}: {request}", api.name);
        }
        let count = self.counts.entry(api.name.clone()).or_default();
        count.requests += 1;
        let differences = match (&our_outcome, &their_outcome) {
            (Outcome::Closed, Outcome::Closed) => {
                count.closed += 1;
                vec![]
            }
            (Outcome::Answered(our_answer), Outcome::Answered(their_answer)) => {
                for (peer, frame, answer) in
                    [(&mut self.ours, our_frame, our_answer), (&mut self.theirs, their_frame, their_answer)]
                {
                    peer.world.learn(
                        correlation_id,
                        &api.name,
                        &Tree::read(&request_text(api, version, frame)?)?,
                        answer,
                    );
                }
                let ours = self.ours.common(our_answer);
                let theirs = self.theirs.common(their_answer);
                let differences = ours.differences(&theirs);
                if self.explain {
                    println!("    ours   {ours:?}\n    theirs {theirs:?}");
                }
                differences
            }
            (ours, theirs) => vec![("outcome".to_owned(), ours.word().to_owned(), theirs.word().to_owned())],
        };
        for (path, ours, theirs) in differences {
            if self.allowed.allows(&api.name, &path, &ours, &theirs) {
                count.allowed += 1;
                continue;
            }
            count.different += 1;
            let key = (api.name.clone(), path, ours, theirs);
            let shown =
                self.found.entry(key).or_insert_with(|| (0, correlation_id, format!("version {version}: {request}")));
            shown.0 += 1;
        }
        match &*api.name {
            "CreateTopics" | "CreatePartitions" | "DeleteTopics" => story::settle(self),
            "InitProducerId" | "EndTxn" => story::settle_transactions(self),
            "JoinGroup" | "LeaveGroup" => {
                let request = Tree::read(&request)?;
                story::settle_group(self, request.leaf("group_id").unwrap_or_default())
            }
            // What a leader does by them it does a moment later.
            "AlterConfigs" | "IncrementalAlterConfigs" => {
                thread::sleep(READ_AGAIN);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn ask_both(
        &mut self,
        api: &Api,
        version: i16,
        our_frame: &[u8],
        their_frame: &[u8],
        request: &str,
    ) -> anyhow::Result<(Outcome, Outcome)> {
        let correlation_id = self.correlation_id;
        let (ours, theirs) = (&mut self.ours, &mut self.theirs);
        let (our_outcome, their_outcome) = thread::scope(|scope| {
            let theirs = scope.spawn(|| theirs.ask(api.key, version, correlation_id, their_frame));
            let ours = ours.ask(api.key, version, correlation_id, our_frame);
            (ours, theirs.join().expect("asking does not panic"))
        });
        let asked = |who: &str| format!("{who}, asked {} version {version}: {request}", api.name);
        Ok((our_outcome.with_context(|| asked("Highwater"))?, their_outcome.with_context(|| asked("Apache Kafka"))?))
    }

    /// Notes that the brokers do not hold the same topics after one request.
    fn tell_topics(&mut self, ours: &BTreeMap<String, usize>, theirs: &BTreeMap<String, usize>) {
        let key = ("topics".to_owned(), String::new(), format!("{ours:?}"), format!("{theirs:?}"));
        self.found.entry(key).or_insert_with(|| (1, self.correlation_id, "after this request".to_owned()));
    }

    fn report(&self, requests: usize) -> anyhow::Result<()> {
        // The first ones first: what comes later may come of them.
        let mut found: Vec<_> = self.found.iter().collect();
        found.sort_by_key(|(_, (_, number, _))| *number);
        for ((api, path, ours, theirs), (times, number, request)) in found {
            println!("{api}\t{path}\t{ours}\t{theirs}\t{times} times, first by number {number}, {request}");
        }
        if requests >= 5000 {
            self.allowed.unused().for_each(|line| println!("allowed for nothing: {line}"));
        }
        for (api, Count { requests, closed, allowed, different }) in &self.counts {
            let all = format!("{requests} requests, {closed} closed, {allowed} allowed differences");
            match different {
                0 => println!("check ok: differential: {api}: {all}"),
                _ => println!("check FAILED: differential: {api}: {all}, {different} that are not"),
            }
        }
        ensure!(self.found.is_empty(), "{} kinds of differences from Apache Kafka's answers", self.found.len());
        Ok(())
    }
}

/// A request in words.
fn request_text(api: &Api, version: i16, frame: &[u8]) -> anyhow::Result<String> {
    // Length, API, version, correlation id, client id, and a tag section in the second form of the header.
    let client_id = usize::from(u16::from_be_bytes([frame[12], frame[13]]));
    let body = 14 + client_id + usize::from(api.is_flexible(version));
    messages::request_text(api.key, version, Bytes::copy_from_slice(&frame[body..]))
}
