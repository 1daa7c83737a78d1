use std::io;
use std::path::Path;

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::{BatchBuilder, Codec, EpochEnd, Log, Record, ZeroAheadMode};

use super::*;
use crate::config::BrokerConfig;

/// A partition with an empty log of its own.
pub(crate) fn hosted(services: &Arc<Services>, dir: &Path) -> Arc<Hosted> {
    let of = TopicPartition::new("t", 0);
    let (log, _) = Log::open(dir, LogOptions::default()).expect("a log");
    let partition = Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(1)), of.clone(), log, None);
    Hosted::new(of, TopicId([7; 16]), partition, ProduceRules::default(), services)
}

/// A command may be at its effects on another thread while the partition is taken away.
#[tokio::test]
async fn a_partition_that_was_taken_away_leaves_nothing_with_timer_and_fetchers() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, dir.path());
    let plan = FetchPlan {
        leader: BrokerId(2),
        leader_epoch: LeaderEpoch(0),
        from: Offset::ZERO,
        last_fetched_epoch: None,
        log_start: Offset::ZERO,
        broker_epoch: BrokerEpoch(1),
    };
    let deeds = || [Deed::Arm(services.clock.now().after(60_000)), Deed::Fetch(plan)];
    let left = || format!("{:?} {:?}", services.deadlines, services.fetchers);
    for deed in deeds() {
        hosted.owner.outlet().carry_out(deed);
    }
    assert!(left().contains("entries: 1") && left().contains("{BrokerId(2): 1}"), "{}", left());
    assert!(hosted.take().is_some());
    assert!(left().contains("entries: 0") && left().contains("{BrokerId(2): 0}"), "{}", left());
    services.end_tasks().await;
    let after = left();
    for deed in deeds() {
        hosted.owner.outlet().carry_out(deed);
    }
    assert_eq!(left(), after);
}

/// Cuts and new starts wait for the disk: such an answer is not taken on the thread that brings it.
#[test]
fn an_answer_that_changes_more_than_the_end_or_holds_much_is_taken_on_an_owner_thread() {
    let plan = FetchPlan {
        leader: BrokerId(2),
        leader_epoch: LeaderEpoch(0),
        from: Offset(9),
        last_fetched_epoch: None,
        log_start: Offset(5),
        broker_epoch: BrokerEpoch(1),
    };
    let came = |log_start, diverging| {
        Ok(LeaderRecords { records: Bytes::new(), high_watermark: Offset(9), log_start: Offset(log_start), diverging })
    };
    let end = EpochEnd { epoch: LeaderEpoch(0), end: Offset(7) };
    let long = |bytes: usize| came(5, None).map(|came| LeaderRecords { records: vec![0; bytes].into(), ..came });
    for (result, expected) in [
        (long(MANY_BYTES - 1), false),
        (long(MANY_BYTES), true),
        (came(0, None), false),
        (came(5, None), false),
        (came(6, None), true),
        (came(5, Some(end)), true),
        (Err(FetchFailure::OutOfRange { log_start: Some(Offset(6)) }), true),
        (Err(FetchFailure::OutOfRange { log_start: None }), true),
        (Err(FetchFailure::Unreachable), false),
        (Err(FetchFailure::FencedLeaderEpoch), false),
    ] {
        let what = format!("{result:?}");
        assert_eq!(Core::is_heavy(&Command::Fetched(LeaderReply { plan, result })), expected, "{what}");
    }
}

/// What was logged on this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The warnings that this logs.
    fn of(act: impl FnOnce()) -> Vec<String> {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(lines.0.lock().expect("nobody panicked").clone()).expect("text");
        text.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
    }
}

/// Writes three batches, and syncs them.
fn fill(dir: &Path, options: &LogOptions, close: bool) {
    let (mut log, _) = Log::open(dir, options.clone()).expect("a log");
    let now = TimestampMs(1_700_000_000_000);
    for _ in 0..3 {
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(now, &[7; 500]));
        log.append(now, LeaderEpoch(0), &batch.build()).expect("room");
    }
    log.flush().expect("synced");
    if close {
        log.close().expect("closed");
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("written");
}

/// Keeps house as the broker's timer does. Returns the warnings.
fn keep_house(core: &mut Core, hosted: &Hosted) -> Vec<String> {
    keep_house_with(core, hosted, true)
}

fn keep_house_with(core: &mut Core, hosted: &Hosted, retention: bool) -> Vec<String> {
    Lines::of(|| {
        let mut commands = vec![Command::Housekeeping { retention }];
        while let Some(command) = commands.pop() {
            let mut deeds = Vec::new();
            core.handle(command, &mut deeds);
            for deed in deeds {
                match deed {
                    Deed::Work(job) => commands.push(Command::Worked(Box::new(job.run()))),
                    deed => hosted.owner.outlet().carry_out(deed),
                }
            }
        }
    })
}

#[tokio::test]
async fn what_the_scrubber_finds_is_told_once_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { segment_bytes: 600, retention: false, ..LogOptions::default() };
    fill(&dir.path().join("t-0"), &options, true);
    let rotten = dir.path().join("t-0/00000000000000000001.log");
    flip(&rotten, 100);
    flip(&dir.path().join("t-0/00000000000000000000.timeindex"), 3);
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, &dir.path().join("another"));
    let (log, report) = Log::open(dir.path().join("t-0"), options).expect("a log");
    assert!(report.clean && report.rotten.is_empty(), "{report:?}");
    let of = hosted.topic_partition().clone();
    let partition = Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(1)), of, log, None);
    let mut core = Core::new(partition, services.clock, Arc::default());

    let told = keep_house(&mut core, &hosted);
    let of_damage: Vec<_> = told.iter().filter(|line| line.contains("is damaged")).collect();
    assert_eq!(of_damage.len(), 1, "{told:#?}");
    let file = format!("file={}", rotten.display());
    for part in ["partition=t-0", &file, "position=0", "first_offset=1", "end_offset=2", "log verify", "log repair"] {
        assert!(of_damage[0].contains(part), "{part}: {}", of_damage[0]);
    }
    let of_indexes: Vec<_> = told.iter().filter(|line| line.contains("index files were wrong")).collect();
    assert!(of_indexes.len() == 1 && of_indexes[0].contains("segment=0"), "{told:#?}");
    let known = core.partition.as_ref().expect("it is open").log().damage();
    assert_eq!((known.len(), core.told.news(known)), (1, Vec::new()), "no news any more");
    services.end_tasks().await;
}

/// Field fault S41: of a wrong clock the operator hears, once, where retention meets it.
#[tokio::test]
async fn a_timestamp_later_than_now_is_told_once_for_a_partition() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, &dir.path().join("another"));
    let mut options = LogOptions { segment_bytes: 600, retention_ms: 1 << 40, ..LogOptions::default() };
    options.rules.timestamp_after_max_ms = i64::MAX;
    let (mut log, _) = Log::open(dir.path().join("t-0"), options).expect("a log");
    let now = services.clock.now();
    for _ in 0..3 {
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(now.after(1 << 40), &[7; 500]));
        log.append(now, LeaderEpoch(0), &batch.build()).expect("room");
    }
    let (of, end) = (hosted.topic_partition().clone(), log.end());
    let partition = Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(1)), of, log, Some(end));
    let mut core = Core::new(partition, services.clock, Arc::default());
    let told = keep_house(&mut core, &hosted);
    let ahead: Vec<_> = told.iter().filter(|line| line.contains("later than now")).collect();
    assert!(ahead.len() == 1 && ahead[0].contains("partition=t-0 ") && ahead[0].contains("segment=0"), "{told:#?}");
    assert_eq!(keep_house(&mut core, &hosted), Vec::<String>::new(), "it was told");
    services.end_tasks().await;
}

/// Records of long ago, as clients' tests write them, are there until it is time to look for what is too old: all other
/// work comes far more often, and took them along.
#[tokio::test]
async fn records_of_long_ago_stay_until_retention_is_looked_at() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, &dir.path().join("another"));
    let options = LogOptions { segment_bytes: 600, retention_ms: 1_000, ..LogOptions::default() };
    let (mut log, _) = Log::open(dir.path().join("t-0"), options).expect("a log");
    for _ in 0..3 {
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(TimestampMs(1337), &[7; 500]));
        log.append(services.clock.now(), LeaderEpoch(0), &batch.build()).expect("room");
    }
    let (of, end) = (hosted.topic_partition().clone(), log.end());
    let partition = Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(1)), of, log, Some(end));
    let mut core = Core::new(partition, services.clock, Arc::default());
    let start = |core: &Core| core.partition.as_ref().expect("it is open").log().start();
    for _ in 0..3 {
        keep_house_with(&mut core, &hosted, false);
        assert_eq!(start(&core), Offset(0));
    }
    keep_house_with(&mut core, &hosted, true);
    assert_eq!(start(&core), end, "all are too old, not only the first segment");
    services.end_tasks().await;
}

/// A log that syncs each message needs the zeros ahead of it long before the timer asks for housekeeping, and then a
/// checkpoint, for the replica asks for syncs of the records only.
#[tokio::test]
async fn what_a_log_needs_that_is_written_to_is_done_after_a_flush() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, &dir.path().join("another"));
    let options = LogOptions { zero_ahead: ZeroAheadMode::Always, ..LogOptions::default() };
    fill(&dir.path().join("t-0"), &options, true);
    let (mut log, _) = Log::open(dir.path().join("t-0"), options).expect("a log");
    let now = services.clock.now();
    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(Record::new(now, b"x"));
    log.append(now.after(-5_000), LeaderEpoch(0), &batch.build()).expect("room");
    let active = log.segments().pop().expect("one");
    let mut config = ReplicaConfig::new(BrokerId(1), BrokerEpoch(1));
    config.flush_messages = 1;
    let mut core =
        Core::new(Partition::new(config, hosted.topic_partition().clone(), log, None), services.clock, Arc::default());
    let mut steps = Vec::new();
    let mut commands = vec![Command::Tick];
    while let Some(command) = commands.pop() {
        let mut deeds = Vec::new();
        core.handle(command, &mut deeds);
        for deed in deeds {
            match deed {
                Deed::Flush(job) => commands.push(Command::Flushed(Box::new(job.run()))),
                Deed::Work(job) => {
                    let done = job.run();
                    steps.push(format!("{done:?}"));
                    commands.push(Command::Worked(Box::new(done)));
                }
                deed => hosted.owner.outlet().carry_out(deed),
            }
        }
    }
    assert!(steps.first().is_some_and(|step| step.contains("ZeroAhead")), "{steps:#?}");
    assert!(steps.iter().any(|step| step.contains("Checkpoint")), "{steps:#?}");
    let file = std::fs::metadata(dir.path().join(format!("t-0/{:020}.log", active.base.0))).expect("a file");
    assert_eq!(file.len(), active.size_bytes + u64::from(LogOptions::default().zero_ahead_bytes));
    let partition = core.partition.as_ref().expect("it is open");
    assert_eq!(partition.log().recovery_point(), partition.log().end());
    services.end_tasks().await;
}

#[test]
fn what_recovery_found_is_told_with_file_and_position() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { retention: false, ..LogOptions::default() };
    fill(dir.path(), &options, false);
    let of = TopicPartition::new("t", 0);
    let file = dir.path().join("00000000000000000000.log");
    let bytes = std::fs::metadata(&file).expect("a file").len();
    let last = usize::try_from(bytes / 3 * 2).expect("small");
    // Records and length of the first batch, and the base offset of the last, which the end and the batch before tell.
    flip(&file, 8);
    flip(&file, 100);
    flip(&file, last + 7);
    let (log, report) = Log::open(dir.path(), options).expect("a log");
    let told = Lines::of(|| damage::tell_recovery(&of, &report));
    let rotten: Vec<_> = told.iter().filter(|line| line.contains("is damaged")).collect();
    let corrected: Vec<_> = told.iter().filter(|line| line.contains("corrected a batch's header")).collect();
    assert!(rotten.len() == 1 && rotten[0].contains("position=0 "), "{told:#?}");
    let position = format!("position={last} ");
    assert!(corrected.len() == 1 && corrected[0].contains(&position) && corrected[0].contains("is=2"), "{told:#?}");
    // It was told: the scrubber says nothing of it.
    assert_eq!(Told::at_open(log.damage()).news(log.damage()), []);
}

#[test]
fn missing_records_another_programs_traces_and_strange_names_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { retention: false, ..LogOptions::default() };
    fill(dir.path(), &options, true);
    let of = TopicPartition::new("t", 0);
    let path = dir.path().join("00000000000000000000.log");
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
    let bytes = file.metadata().expect("metadata").len();
    file.set_len(bytes / 3 * 2).expect("cut");
    std::fs::write(dir.path().join("notes.txt"), "?").expect("written");
    std::fs::create_dir(dir.path().join("lost+found")).expect("made");
    let (log, report) = Log::open(dir.path(), options.clone()).expect("a log");
    let told = Lines::of(|| damage::tell_recovery(&of, &report));
    let expected: [&[&str]; 4] = [
        &["records are gone that were synced", "first_offset=2 ", "end_offset=3 ", "log_end_offset=2"],
        &["another program"],
        &["no log has a file of this name", "name=\"lost+found\""],
        &["no log has a file of this name", "name=\"notes.txt\""],
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (line, parts) in told.iter().zip(expected) {
        assert!(parts.iter().chain(&["partition=t-0"]).all(|part| line.contains(part)), "{parts:?}: {line}");
    }
    // What is there and belongs there is nothing to tell.
    log.close().expect("closed");
    for name in ["notes.txt", "lost+found"] {
        let path = dir.path().join(name);
        if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) }.expect("gone");
    }
    let (_log, report) = Log::open(dir.path(), options).expect("a log");
    assert_eq!(Lines::of(|| damage::tell_recovery(&of, &report)), Vec::<String>::new());
}

/// Records that come to lie above a cut and below a high watermark of before would count as committed after the next start.
#[tokio::test]
async fn a_cut_below_the_recorded_high_watermark_is_recorded_before_the_log_grows() {
    for (recorded, expected) in [(6, 3), (3, 3), (2, 2)] {
        let dir = tempfile::tempdir().expect("a directory");
        let services = Services::new(BrokerConfig::default());
        let hosted = hosted(&services, &dir.path().join("another"));
        let (of, other) = (hosted.topic_partition().clone(), TopicPartition::new("t", 1));
        let fs: Arc<dyn highwater_storage::fs::Fs> = Arc::new(highwater_storage::fs::OsFs);
        let root = dir.path().join("root");
        let (data, _) = DataDir::open(fs, &root, DataDirOptions::of_node(1)).expect("a root");
        let log_dir = dir.path().join("t-0");
        fill(&log_dir, &LogOptions::default(), false);
        fill(&log_dir, &LogOptions::default(), false);
        let marks = [(of.clone(), Offset(recorded)), (other.clone(), Offset(9))];
        data.write_high_watermarks(&marks.into()).expect("written");
        *services.data.write().expect("nobody panicked") = Some(data);

        let (log, _) = Log::open(&log_dir, LogOptions::default()).expect("a log");
        let partition =
            Partition::new(ReplicaConfig::new(BrokerId(1), BrokerEpoch(1)), of.clone(), log, Some(Offset(6)));
        let mut core = Core::new(partition, services.clock, Arc::default());
        let state = PartitionState {
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(1),
            isr: vec![BrokerId(2)],
            doubtful: Vec::new(),
            controller_epoch: 1,
            recovering: false,
        };
        let assignment = vec![BrokerId(1), BrokerId(2)];
        let mut deeds = Vec::new();
        core.handle(Command::State { state: Versioned { value: state, version: 1 }, assignment }, &mut deeds);
        let asked = deeds.into_iter().find_map(|deed| if let Deed::Fetch(plan) = deed { Some(plan) } else { None });
        let answer = LeaderRecords {
            records: Bytes::new(),
            high_watermark: Offset(3),
            log_start: Offset(0),
            diverging: Some(EpochEnd { epoch: LeaderEpoch(0), end: Offset(3) }),
        };
        let mut deeds = Vec::new();
        core.handle(Command::Fetched(LeaderReply { plan: asked.expect("it follows"), result: Ok(answer) }), &mut deeds);
        let grows = deeds.iter().position(|deed| matches!(deed, Deed::Fetch(_))).expect("it goes on");
        deeds.drain(..grows).for_each(|deed| hosted.owner.outlet().carry_out(deed));
        let text = std::fs::read_to_string(root.join("replication-offset-checkpoint")).expect("it is there");
        assert_eq!(text, format!("0\n2\nt 0 {expected}\nt 1 9\n"), "{recorded} was recorded");
        services.end_tasks().await;
    }
}

fn leads(hosted: &Hosted, epoch: i32) {
    let state = PartitionState {
        leader: Some(BrokerId(1)),
        leader_epoch: LeaderEpoch(epoch),
        isr: vec![BrokerId(1)],
        doubtful: Vec::new(),
        controller_epoch: 1,
        recovering: false,
    };
    let state = Versioned { value: state, version: i64::from(epoch) };
    hosted.submit(Command::State { state, assignment: vec![BrokerId(1)] });
}

/// One that is at its last requests while this broker has begun to lead anew would write what the next one does not know of.
#[tokio::test]
async fn a_coordinator_of_an_earlier_leadership_writes_nothing_in_a_later_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, dir.path());
    let writes = async |epoch: i32| {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(services.clock.now(), b"decided"));
        let batch = CheckedBatch::check(Bytes::from(builder.build()), &ProduceRules::default(), services.clock.now());
        let (gather, mut slots) = crate::gather::Gather::new(1);
        hosted.produce_in(LeaderEpoch(epoch), batch.expect("whole"), None, slots.next().expect("one"));
        gather.all().await.pop().flatten().expect("an answer").map(|done| done.base_offset)
    };
    leads(&hosted, 3);
    assert_eq!(writes(3).await.expect("it leads"), Offset(0));
    leads(&hosted, 4);
    let refused = ProduceRefused::NotLeader { leader: None, leader_epoch: LeaderEpoch(4) };
    let late = writes(3).await.expect_err("another does");
    assert!(matches!(late, NotProduced::Partition(ProduceError::Refused(why)) if why == refused), "{late:?}");
    assert_eq!(writes(4).await.expect("it leads"), Offset(1));
    services.end_tasks().await;
}

/// The marker of a producer's last transaction may come while the coordinator is asked about the first batch of the next.
#[tokio::test]
async fn a_batch_of_transaction_version_2_whose_guard_was_broken_is_to_come_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, dir.path());
    leads(&hosted, 3);
    let producer = Producer { id: 7, epoch: 1 };
    let answer = async |act: &dyn Fn(Slot<ProduceAnswer>)| {
        let (gather, mut slots) = crate::gather::Gather::new(1);
        act(slots.next().expect("one"));
        gather.all().await.pop().flatten().expect("an answer")
    };
    let now = services.clock.now();
    let batch = || {
        let mut builder = BatchBuilder::new(Codec::None).producer(producer.id, producer.epoch, 0).transactional();
        builder.push(Record::new(now, b"first"));
        CheckedBatch::check(Bytes::from(builder.build()), &ProduceRules::default(), now).expect("whole")
    };
    let guard = hosted.guard(producer);
    let marker = highwater_storage::TransactionMarker {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        coordinator_epoch: 0,
        is_abort: false,
    };
    let rules = ProduceRules { origin: highwater_storage::Origin::Coordinator, ..ProduceRules::default() };
    let marker = || CheckedBatch::check(Bytes::from(marker.to_batch(now)), &rules, now).expect("whole");
    let deadline = TimestampMs(i64::MAX);
    answer(&|slot| hosted.produce(marker(), Acks::All, deadline, None, slot)).await.expect("written");
    let anew = |guard: &Option<Arc<Guard>>, slot| {
        hosted.produce_counting_anew(batch(), Acks::All, deadline, guard.clone(), slot)
    };
    let again = answer(&|slot| anew(&guard, slot)).await.expect_err("it is broken");
    assert!(matches!(again, NotProduced::Transaction(ErrorCode::ConcurrentTransactions)), "{again:?}");
    let before = answer(&|slot| hosted.produce(batch(), Acks::All, deadline, guard.clone(), slot)).await;
    let error = before.expect_err("of version 1 the transaction itself has ended");
    assert!(matches!(error, NotProduced::Partition(ProduceError::Append(AppendError::Sequence(_)))), "{error:?}");
    let guard = hosted.guard(producer);
    assert!(answer(&|slot| anew(&guard, slot)).await.is_ok());
    services.end_tasks().await;
}

/// The first batch of a producer may not be verified for want of its coordinator while the second one is. Were that taken, the
/// first would come too late for ever after.
#[tokio::test]
async fn a_second_batch_is_not_taken_before_the_first_that_waits_to_be_verified() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(BrokerConfig::default());
    let hosted = hosted(&services, dir.path());
    leads(&hosted, 3);
    let now = services.clock.now();
    let writes = async |producer: Producer, sequence: i32| {
        let mut builder =
            BatchBuilder::new(Codec::None).producer(producer.id, producer.epoch, sequence).transactional();
        builder.push(Record::new(now, b"one"));
        let batch = CheckedBatch::check(Bytes::from(builder.build()), &ProduceRules::default(), now).expect("whole");
        let (gather, mut slots) = crate::gather::Gather::new(1);
        let guard = hosted.guard(producer);
        hosted.produce(batch, Acks::All, TimestampMs(i64::MAX), guard, slots.next().expect("one"));
        gather.all().await.pop().flatten().expect("an answer")
    };
    let early = |outcome: ProduceAnswer| match outcome {
        Err(NotProduced::Partition(ProduceError::Append(AppendError::Sequence(SequenceError::OutOfOrder {
            sequence,
            ..
        })))) => sequence,
        other => panic!("{other:?}"),
    };
    // A leadership that begins breaks what was drawn before: whatever this is answered, it has begun then.
    let _ = writes(Producer { id: 1, epoch: 0 }, 0).await;
    let producer = Producer { id: 7, epoch: 1 };
    hosted.waits_with(producer, 4);
    hosted.waits_with(producer, 5);
    assert_eq!(early(writes(producer, 5).await), 5);
    assert_eq!(early(writes(producer, 5).await), 5, "however often");
    // Nothing is known here of a producer that has written before, so its numbers may begin with any.
    assert!(writes(producer, 4).await.is_ok());
    assert!(writes(producer, 5).await.is_ok());
    let other = Producer { id: 8, epoch: 1 };
    assert!(writes(other, 5).await.is_ok(), "of whom none waits, as where nobody is asked");
    // What waited is no reason any more once one of them is in the log, even if that is forgotten.
    assert!(hosted.guard(Producer { id: 9, epoch: 0 }).is_some());
    hosted.waits_with(Producer { id: 9, epoch: 0 }, 0);
    assert!(writes(Producer { id: 9, epoch: 0 }, 0).await.is_ok());
    assert_eq!(hosted.guards.first_number(Producer { id: 9, epoch: 0 }), None);
    services.end_tasks().await;
}
