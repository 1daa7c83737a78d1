//! Opening and leaving the data root.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::OsFs;
use highwater_storage::{Log, LogOptions, Offset, RecoveryReport, TopicPartition};

use crate::damage::damaged_and_repaired;
use crate::features::{COPIED, FEATURES, Places, REPAIRED, Topic, ZEROS_AHEAD, append_some, leave_zeros, options};
use crate::records::{Row, verify};

/// Kafka's node in `check_kafka_files.py`.
const NODE_ID: i32 = 1;

struct Root {
    data: DataDir,
    broker_epoch: i64,
    logs: BTreeMap<TopicPartition, Log>,
}

impl Root {
    /// Opens the root, which has to have been stopped cleanly, and hands each log to `look`.
    fn open(
        path: &Path,
        mut look: impl FnMut(&str, &mut Log, &RecoveryReport) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let (data, report) = DataDir::open(OsFs::shared(), path, DataDirOptions::of_node(NODE_ID))?;
        ensure!(report.clean, "the root was not stopped cleanly");
        ensure!(report.warnings.is_empty() && report.strays.is_empty(), "{:?} {:?}", report.warnings, report.strays);
        let mut logs = BTreeMap::new();
        for (topic, ..) in FEATURES {
            let topic_partition = TopicPartition::new(*topic, 0);
            let found = data.partitions().iter().find(|found| found.topic_partition == topic_partition);
            let found = found.with_context(|| format!("there is no {topic}-0"))?;
            ensure!(found.topic_id.is_some(), "{topic} has no id");
            let hints = data.hints(&topic_partition);
            let (mut log, report) = Log::open_with(OsFs::shared(), &found.dir, options(topic), hints)
                .with_context(|| format!("cannot open {topic}"))?;
            ensure!(report.cut.is_none(), "{topic} was cut: {report:?}");
            look(topic, &mut log, &report).with_context(|| (*topic).to_owned())?;
            logs.insert(topic_partition, log);
        }
        let broker_epoch = report.broker_epoch.context("the marker of the clean stop has no broker epoch")?;
        Ok(Self { data, broker_epoch, logs })
    }

    fn checkpoint(&self) -> anyhow::Result<()> {
        let offsets = |of: fn(&Log) -> Offset| -> BTreeMap<TopicPartition, Offset> {
            self.logs.iter().map(|(partition, log)| (partition.clone(), of(log))).collect()
        };
        self.data.write_recovery_points(&offsets(Log::recovery_point))?;
        self.data.write_log_starts(&offsets(Log::start))?;
        self.data.write_high_watermarks(&offsets(Log::end))?;
        Ok(())
    }

    fn close(mut self) -> anyhow::Result<()> {
        for log in self.logs.values_mut() {
            log.checkpoint()?;
        }
        self.checkpoint()?;
        let points: BTreeMap<_, _> = self.logs.iter().map(|(partition, log)| (partition.clone(), log.end())).collect();
        for (_, log) in self.logs {
            log.close()?;
        }
        self.data.write_recovery_points(&points)?;
        self.data.close_clean(self.broker_epoch)?;
        Ok(())
    }
}

fn append_rows<'r>(file: &Path, rows: impl Iterator<Item = &'r Row>) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    for row in rows {
        writeln!(file, "{row}")?;
    }
    Ok(())
}

/// Fills the topics, which Kafka has made and nobody has written to; puts the copy of one in its place, damages another,
/// and repairs it.
pub(crate) fn write(path: &Path, records: &Path, data: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(records)?;
    let copy = path.with_file_name("copy-of-a-log");
    let places = Places { data, copy: &copy };
    let root = Root::open(path, |name, log, _| {
        ensure!(log.end() == Offset::ZERO, "it holds records already");
        let mut topic = Topic::new(log);
        let (_, fill) = FEATURES.iter().find(|(topic, _)| *topic == name).context("a feature")?;
        fill(&mut topic, &places)?;
        let rows = topic.into_rows();
        println!(
            "{name}: {} records in {} segments, {} to {}",
            rows.len(),
            log.segments().len(),
            log.start(),
            log.end()
        );
        append_rows(&records.join(name), rows.values())
    })?;
    root.close()?;
    // What Kafka finds is the copy, untouched since it was made.
    let original = path.join(format!("{COPIED}-0"));
    fs::remove_dir_all(&original)?;
    fs::rename(&copy, &original)?;
    let lost = damaged_and_repaired(&path.join(format!("{REPAIRED}-0"))).context("cannot repair what was damaged")?;
    let file = records.join(REPAIRED);
    let is_lost =
        |line: &str| line.split('\t').next().is_some_and(|offset| lost.contains(&offset.parse().unwrap_or(-1)));
    let rows = fs::read_to_string(&file)?;
    let kept: String = rows.lines().filter(|line| !is_lost(line)).flat_map(|line| [line, "\n"]).collect();
    ensure!(kept.len() < rows.len(), "records were lost");
    println!("{REPAIRED}: {} offsets lost to damage, repaired", lost.len());
    fs::write(&file, kept)?;
    Ok(())
}

/// Reads what Kafka served and went on with, appends, and ends as if the process had been killed: nothing is flushed or
/// closed. Two logs end as a power cut may leave them, with part of a batch and with zeros; a third with the zeros that it
/// wrote ahead.
pub(crate) fn crash(path: &Path, records: &Path) -> anyhow::Result<()> {
    let root = Root::open(path, |name, log, _| {
        let file = records.join(name);
        let count = verify(&log.reader(), &file)?;
        let mut topic = Topic::new(log);
        append_some(&mut topic)?;
        if name == ZEROS_AHEAD {
            println!("{name}: {} zeros ahead", leave_zeros(&mut topic, &path.join(format!("{name}-0")))?);
        }
        let rows = topic.into_rows();
        println!("{name}: {count} records were there, {} more", rows.len());
        append_rows(&file, rows.values())
    })?;
    let last_segment = |topic: &str| -> anyhow::Result<_> {
        let log = root.logs.get(&TopicPartition::new(topic, 0)).context("a log")?;
        let base = log.segments().last().context("a segment")?.base;
        Ok(path.join(format!("{topic}-0")).join(format!("{:020}.log", base.0)))
    };
    let (torn, zeros) = (last_segment("codec-none")?, last_segment("codec-gzip")?);
    drop(root);
    let whole = fs::read(&torn)?;
    let mut file = OpenOptions::new().append(true).open(&torn)?;
    file.write_all(whole.get(..80).context("a batch")?)?;
    OpenOptions::new().append(true).open(&zeros)?.write_all(&[0; 5000])?;
    Ok(())
}

/// Reads all and closes the root.
pub(crate) fn read(path: &Path, records: &Path) -> anyhow::Result<()> {
    let root = Root::open(path, |name, log, _| {
        let count = verify(&log.reader(), &records.join(name))?;
        println!("{name}: {count} records");
        Ok(())
    })?;
    root.close()
}

/// So that a topic rolls, and has several index entries in each segment.
pub(crate) fn small_segments() -> LogOptions {
    LogOptions { segment_bytes: 4096, index_interval_bytes: 512, retention: false, ..LogOptions::default() }
}
