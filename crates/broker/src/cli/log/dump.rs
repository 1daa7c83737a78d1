//! `highwater log dump`: batches, one a line, and their records, in the words of Kafka's `DumpLogSegments`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use highwater_storage::fs::{Fs, OpenMode};
use highwater_storage::inspect::{
    Correction, DamagedBytes, PartitionFiles, Piece, SegmentFiles, SegmentWalk, Target, position_before,
};
use highwater_storage::io::IoContext;
use highwater_storage::names::SegmentFile;
use highwater_storage::{BatchHeader, BatchView, Offset, RecordsError, StoredRecord, TimestampType};
use serde_json::{Value, json};

use super::output::Output;
use super::selection::{Bound, Selection};
use super::text::{escaped, json_bytes};
use super::{ResultFormat, file_system, partitions, target, usage};

/// Show batches, and records.
#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// Partitions' directories, data directories or segments (`.log` files).
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show the records of each batch: keys, values and headers.
    #[arg(long)]
    records: bool,
    /// Begin at an offset, or at a time (2023-11-14T22:13:20Z, or @ and milliseconds since 1970).
    #[arg(long, value_name = "OFFSET|TIME")]
    from: Option<Bound>,
    /// End before an offset or a time.
    #[arg(long, value_name = "OFFSET|TIME")]
    to: Option<Bound>,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &DumpArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let selection = Selection { from: arguments.from, to: arguments.to };
    let output = Output::new(arguments.format);
    let mut dump = Dump { fs: &*fs, selection, records: arguments.records, output };
    for path in &arguments.paths {
        match target(&*fs, path)? {
            Target::File(path, name) if name.kind == SegmentFile::Log => dump.file(&path, name.base_offset)?,
            Target::File(path, _) => {
                return Err(usage(format!("{} is no segment: only .log files hold batches", path.display())));
            }
            target => {
                for dir in partitions(&target) {
                    dump.partition(&dir)?;
                }
            }
        }
    }
    dump.output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// A batch whose records take more than this is not decompressed to be shown.
const SHOWN_BYTES_MAX: u64 = 256 << 20;

struct Dump<'a> {
    fs: &'a dyn Fs,
    selection: Selection,
    records: bool,
    output: Output,
}

impl Dump<'_> {
    fn partition(&mut self, dir: &Path) -> anyhow::Result<()> {
        let files = PartitionFiles::list(self.fs, dir)?;
        let mut following = files.segments.iter().skip(1).map(|segment| segment.base);
        for segment in &files.segments {
            let next = following.next();
            if next.is_some_and(|next| next <= self.selection.first_offset()) {
                continue;
            }
            if self.selection.ends_before(segment.base) {
                break;
            }
            self.segment(segment, next)?;
        }
        Ok(())
    }

    /// A segment's file on its own: beside it there may be an index, or not.
    fn file(&mut self, path: &Path, base: Offset) -> anyhow::Result<()> {
        self.segment(&SegmentFiles::alone(self.fs, path, base)?, None)
    }

    fn segment(&mut self, files: &SegmentFiles, next: Option<Offset>) -> anyhow::Result<()> {
        let path = &files.log.path;
        self.output.line(&format!("Dumping {}", path.display()))?;
        let object = json!({ "type": "segment", "path": path, "base_offset": files.base.0, "bytes": files.log.bytes });
        self.output.object(&object)?;
        // A segment that retention removed since it was listed is gone, and none of its records is asked for any more.
        let file = match self.fs.open(path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.context("open", path)?,
        };
        let start = position_before(self.fs, files, self.selection.first_offset());
        let mut walk = SegmentWalk::from_position(&*file, files.base, files.log.bytes, next, start);
        loop {
            match walk.next_piece().context("read", path)? {
                Piece::End => return Ok(()),
                Piece::Batch { position, batch, corrections } => {
                    if self.selection.ends_before(batch.base_offset()) {
                        return Ok(());
                    }
                    for correction in &corrections {
                        self.corrected(path, position, correction)?;
                    }
                    self.batch(position, &batch)?;
                }
                Piece::Damaged(damaged) => self.damaged(path, &damaged)?,
                Piece::Zeros { position, bytes } => {
                    self.output.line(&format!("zeros: {bytes} bytes from position {position} to the end"))?;
                    let object = json!({ "type": "zeros", "path": path, "position": position, "bytes": bytes });
                    self.output.object(&object)?;
                }
                other => anyhow::bail!("{}: {other:?} cannot be shown", path.display()),
            }
        }
    }

    fn batch(&mut self, position: u64, batch: &BatchView<'_>) -> anyhow::Result<()> {
        let header = batch.header();
        if !self.selection.takes_batch(header) {
            return Ok(());
        }
        if self.output.is_json() {
            self.output.object(&batch_object(position, header))?;
        } else {
            self.output.line(&batch_line(position, header))?;
        }
        if !self.records {
            return Ok(());
        }
        match self.records_of(batch)? {
            Ok(()) => Ok(()),
            Err(fault) => {
                self.output.line(&format!("| unreadable records: {fault}"))?;
                let offset = header.base_offset().0;
                let what = fault.to_string();
                Ok(self.output.object(&json!({ "type": "unreadable", "base_offset": offset, "what": what }))?)
            }
        }
    }

    /// Shows the records of a batch up to the first that cannot be read.
    fn records_of(&mut self, batch: &BatchView<'_>) -> io::Result<Result<(), RecordsError>> {
        let mut reader = match batch.read_records(SHOWN_BYTES_MAX) {
            Ok(reader) => reader,
            Err(fault) => return Ok(Err(fault)),
        };
        loop {
            match reader.next() {
                Ok(Some(record)) if self.selection.takes_record(record.offset, record.timestamp) => {
                    self.record(batch.header(), &record)?;
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Ok(())),
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }

    fn record(&mut self, header: &BatchHeader, record: &StoredRecord<'_>) -> io::Result<()> {
        if self.output.is_json() {
            self.output.object(&record_object(header, record))
        } else {
            self.output.line(&record_line(header, record))
        }
    }

    /// What the next batch is shown with is not what the file says.
    fn corrected(&mut self, path: &Path, position: u64, correction: &Correction) -> anyhow::Result<()> {
        self.output.line(&format!("damaged: {correction} in the batch at position {position}"))?;
        let Correction { field, was, is, .. } = correction;
        let field = field.to_string();
        self.output.object(&json!({
            "type": "corrected", "path": path, "position": position, "field": field, "was": was, "is": is,
        }))?;
        Ok(())
    }

    fn damaged(&mut self, path: &Path, damaged: &DamagedBytes) -> anyhow::Result<()> {
        let DamagedBytes { position, bytes, what, offsets, .. } = damaged;
        let mut line = format!("damaged: {bytes} bytes from position {position}: {what}");
        if offsets.start < offsets.end {
            line.push_str(&format!(" (offsets {} to {} are missing)", offsets.start, offsets.end.0 - 1));
        }
        self.output.line(&line)?;
        self.output.object(&json!({
            "type": "damaged",
            "path": path,
            "position": position,
            "bytes": bytes,
            "what": what.to_string(),
            "first_offset": offsets.start.0,
            "end_offset": offsets.end.0,
        }))?;
        Ok(())
    }
}

fn codec_name(header: &BatchHeader) -> String {
    header.attributes().codec().map_or_else(|id| format!("unknown({id})"), |codec| codec.to_string())
}

fn timestamp_type(header: &BatchHeader) -> &'static str {
    match header.attributes().timestamp_type() {
        TimestampType::CreateTime => "CreateTime",
        TimestampType::LogAppendTime => "LogAppendTime",
    }
}

fn delete_horizon(header: &BatchHeader) -> Option<i64> {
    header.attributes().has_delete_horizon().then_some(header.base_timestamp().0)
}

fn batch_line(position: u64, header: &BatchHeader) -> String {
    let horizon = delete_horizon(header).map_or_else(|| "none".to_owned(), |horizon| horizon.to_string());
    format!(
        "baseOffset: {} lastOffset: {} count: {} baseSequence: {} lastSequence: {} producerId: {} producerEpoch: {} \
         partitionLeaderEpoch: {} isTransactional: {} isControl: {} deleteHorizonMs: {horizon} position: {position} \
         {}: {} size: {} magic: {} compresscodec: {} crc: {} isvalid: true",
        header.base_offset(),
        header.last_offset(),
        header.record_count(),
        header.base_sequence(),
        header.last_sequence(),
        header.producer_id(),
        header.producer_epoch(),
        header.leader_epoch(),
        header.is_transactional(),
        header.is_control(),
        timestamp_type(header),
        header.max_timestamp(),
        header.total_bytes(),
        header.magic(),
        codec_name(header),
        header.crc(),
    )
}

fn batch_object(position: u64, header: &BatchHeader) -> Value {
    json!({
        "type": "batch",
        "position": position,
        "bytes": header.total_bytes(),
        "base_offset": header.base_offset().0,
        "last_offset": header.last_offset().0,
        "count": header.record_count(),
        "leader_epoch": header.leader_epoch().0,
        "magic": header.magic(),
        "crc": header.crc(),
        "codec": codec_name(header),
        "timestamp_type": timestamp_type(header),
        "base_timestamp": header.base_timestamp().0,
        "max_timestamp": header.max_timestamp().0,
        "producer_id": header.producer_id(),
        "producer_epoch": header.producer_epoch(),
        "base_sequence": header.base_sequence(),
        "transactional": header.is_transactional(),
        "control": header.is_control(),
        "delete_horizon": delete_horizon(header),
    })
}

/// What a control record says: Kafka's types, and the epoch of the coordinator that ended a transaction.
fn control_type(record: &StoredRecord<'_>) -> Option<(String, Option<i32>)> {
    let (_version, key) = record.key?.split_first_chunk::<2>()?;
    let kind = i16::from_be_bytes(*key.first_chunk()?);
    let names =
        ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"];
    let name = usize::try_from(kind).ok().and_then(|kind| names.get(kind));
    let coordinator = record.value.and_then(|value| value.get(2..6)?.try_into().ok()).map(i32::from_be_bytes);
    Some((name.map_or_else(|| format!("UNKNOWN({kind})"), |&name| name.to_owned()), coordinator.filter(|_| kind < 2)))
}

fn record_line(header: &BatchHeader, record: &StoredRecord<'_>) -> String {
    let size = |bytes: Option<&[u8]>| bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.len().to_string());
    let text = |bytes: Option<&[u8]>| bytes.map_or_else(|| "null".to_owned(), escaped);
    let mut line = format!(
        "| offset: {} {}: {} keySize: {} valueSize: {} sequence: {}",
        record.offset,
        timestamp_type(header),
        record.timestamp,
        size(record.key),
        size(record.value),
        sequence(header, record),
    );
    if header.is_control() {
        if let Some((kind, coordinator)) = control_type(record) {
            line.push_str(&format!(" endTxnMarker: {kind}"));
            if let Some(coordinator) = coordinator {
                line.push_str(&format!(" coordinatorEpoch: {coordinator}"));
            }
        }
        return line;
    }
    let headers: Vec<_> =
        record.headers().map(|header| format!("{}={}", escaped(header.key), text(header.value))).collect();
    line.push_str(&format!(
        " headers: [{}] key: {} payload: {}",
        headers.join(","),
        text(record.key),
        text(record.value)
    ));
    line
}

fn record_object(header: &BatchHeader, record: &StoredRecord<'_>) -> Value {
    let headers: Vec<_> = record
        .headers()
        .map(|header| json!({ "key": json_bytes(Some(header.key)), "value": json_bytes(header.value) }))
        .collect();
    json!({
        "type": "record",
        "offset": record.offset.0,
        "timestamp": record.timestamp.0,
        "sequence": sequence(header, record),
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": headers,
    })
}

/// A record's sequence number, -1 if its batch has none.
fn sequence(header: &BatchHeader, record: &StoredRecord<'_>) -> i64 {
    let first = i64::from(header.base_sequence());
    if first < 0 { -1 } else { (first + (record.offset - header.base_offset())) % (i64::from(i32::MAX) + 1) }
}
