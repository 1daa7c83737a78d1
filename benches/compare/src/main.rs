//! The log beside other log crates and the least a program could do: same payloads, same promise, checksums on, medians
//! of alternating turns in one run. Figures are ratios to the first line of each row.
//!
//! `cargo run --release --manifest-path benches/compare/Cargo.toml [-- --quick] [ROW…]`, with rows of `append`, `sync`,
//! `read`, `latency`, `open` and `scale`; all of them if none is named.

mod contest;
mod opens;
mod reads;
mod rivals;
mod synced;

use contest::{Row, Unit};
use highwater_benches::{LogAppend, RawAppend, SHAPES, readers};
use rivals::{Appends, Commitlog, Kafko, Load, Mrecordlog, Okaywal, RaftEngine};
use tempfile::TempDir;

mod buffer;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let rows: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |row: &str| rows.is_empty() || rows.contains(&row);
    if wanted("append") {
        appends(quick);
    }
    if wanted("sync") {
        syncs(quick);
    }
    if wanted("read") {
        reads(quick);
    }
    if wanted("latency") {
        opens::latencies(quick);
    }
    if wanted("open") {
        opens::opens(quick);
    }
    if wanted("scale") {
        opens::scale(quick);
    }
}

fn appends(quick: bool) {
    for (name, shape, records) in [("100 x 1 KiB, unsynced", SHAPES[0], 100), ("1 x 1 KiB, unsynced", SHAPES[1], 1)] {
        let load = Load::new(records, false);
        Row::new(name, Unit::Bytes, ("bare write + CRC-32C", Box::new(RawAppend::new(shape))))
            .with("highwater", LogAppend::new(shape))
            .with("highwater, checked before", LogAppend::checked(shape))
            .with("commitlog (checks nothing)", Appends::<Commitlog>::new(&load))
            .with("mrecordlog (not written through)", Appends::<Mrecordlog>::new(&load))
            .with("raft-engine", Appends::<RaftEngine>::new(&load))
            .with("kafko", Appends::<Kafko>::new(&load))
            .run(quick);
    }
    let load = Load::new(1, false);
    Row::new("1 x 1 KiB, gathered", Unit::Bytes, ("mrecordlog", Box::new(Appends::<Mrecordlog>::new(&load))))
        .with("highwater, RecordBuffer 64 KiB", buffer::Buffered::new(64 << 10))
        .with("highwater, RecordBuffer 512 KiB", buffer::Buffered::new(512 << 10))
        .run(quick);
}

fn syncs(quick: bool) {
    for (name, shape, records) in
        [("1 x 1 KiB, each synced", SHAPES[1], 1), ("100 x 1 KiB, each synced", SHAPES[0], 100)]
    {
        let load = Load::new(records, true);
        Row::new(name, Unit::Operations(1.0), ("bare, zero-filled file", Box::new(synced::BareSync::new(shape))))
            .with("highwater, zeros ahead", synced::LogSync::filled(shape))
            .with("highwater, zeros counted", synced::LogSync::filling(shape))
            .with("highwater, growing file", synced::LogSync::growing(shape))
            .with("okaywal", Appends::<Okaywal>::new(&load))
            .with("raft-engine", Appends::<RaftEngine>::new(&load))
            .with("kafko", Appends::<Kafko>::new(&load))
            .run(quick);
    }
    let (okaywal, rival) = synced::SharedOkaywal::new(16);
    let each = Unit::Operations(synced::operations(16));
    let bare = synced::Repeated::new(synced::BareSync::new(SHAPES[1]), 16);
    Row::new("16 threads, 1 x 1 KiB", each, ("bare, one thread", Box::new(bare)))
        .with("highwater, SharedLog", synced::SharedSync::new(SHAPES[1], 16))
        .with("okaywal", synced::OkaywalThreads(okaywal, rival))
        .with("raft-engine", synced::RaftEngineThreads::new(16))
        .run(quick);
}

fn reads(quick: bool) {
    let (raw, log) = readers();
    Row::new("read by 1 MiB", Unit::Bytes, ("pread", Box::new(raw)))
        .with("highwater, framed", log)
        .with("highwater, checksums verified", reads::Verified::new())
        .with("commitlog, checksums verified", reads::CommitlogRead::new())
        .run(quick);
    Row::new("read of a drawn record", Unit::Operations(1.0), ("pread", Box::new(reads::RandomPread::new())))
        .with("highwater", reads::RandomRead::new())
        .with("commitlog", reads::CommitlogRandom::new())
        .run(quick);
}

/// A directory beside the build's output: on the disk the project is on.
fn scratch() -> TempDir {
    let program = std::env::current_exe().expect("a program knows where it is");
    let beside = program.parent().expect("a program lies in a directory");
    tempfile::Builder::new().prefix("compare").tempdir_in(beside).expect("the build's output can be written to")
}
