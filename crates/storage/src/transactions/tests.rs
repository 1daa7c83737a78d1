use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::fs::{Fs, SimFs};
use crate::index::IndexFault;
use crate::io::FileExt;

fn aborted(producer_id: i64, first: i64, last: i64, stable: i64) -> AbortedTransaction {
    let (first_offset, last_offset, last_stable_offset) = (Offset(first), Offset(last), Offset(stable));
    AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset }
}

fn completed(first: i64, last: i64) -> CompletedTransaction {
    let (first, last) = (Offset(first), Offset(last));
    CompletedTransaction { producer_id: 1, first, last, is_aborted: false, last_stable_offset: last.next() }
}

fn opened(bytes: &[u8], base: i64, end: i64) -> Result<SealedTransactionIndex, IndexError> {
    let fs = SimFs::new(1);
    let path = Path::new("/x");
    let file = fs.open(path, OpenMode::CreateNew).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    SealedTransactionIndex::open(file, bytes.len() as u64, Offset(base), Offset(end))
}

#[test]
fn an_entry_is_thirty_four_bytes_in_kafkas_order() {
    let bytes = encode_transactions(&[aborted(0x0102, 0x0304, 0x0506, 0x0507)]);
    let field = |bytes: [u8; 2]| [[0; 6].as_slice(), &bytes].concat();
    let wanted = [vec![0, 0], field([1, 2]), field([3, 4]), field([5, 6]), field([5, 7])].concat();
    assert_eq!(bytes, wanted);
    assert_eq!(opened(&bytes, 0x0500, 0x0600).unwrap().entries().unwrap(), [aborted(0x0102, 0x0304, 0x0506, 0x0507)]);
}

#[test]
fn an_index_that_cannot_be_right_is_refused_at_the_entry() {
    let good = [aborted(7, 10, 20, 15), aborted(8, 15, 25, 26)];
    assert_eq!(opened(&encode_transactions(&good), 20, 26).unwrap().len(), 2);
    let fault = |bytes: &[u8]| match opened(bytes, 20, 26) {
        Err(IndexError::Fault(IndexFault { position, .. })) => position,
        other => panic!("{other:?}"),
    };
    let with = |change: fn(&mut [AbortedTransaction; 2])| {
        let mut entries = good;
        change(&mut entries);
        fault(&encode_transactions(&entries))
    };
    assert_eq!(with(|entries| entries[0].producer_id = -1), 0);
    assert_eq!(with(|entries| entries[0].last_offset = Offset(19)), 0, "below the segment");
    assert_eq!(with(|entries| entries[1].last_offset = Offset(26)), 34, "past the segment");
    assert_eq!(with(|entries| entries[1].last_offset = Offset(20)), 34, "two markers at one offset");
    assert_eq!(with(|entries| entries[0].first_offset = Offset(20)), 0, "nothing before the marker");
    assert_eq!(with(|entries| entries[0].first_offset = Offset(-1)), 0);
    assert_eq!(with(|entries| entries[0].last_stable_offset = Offset(22)), 0, "past the marker");
    assert_eq!(with(|entries| entries[1].last_stable_offset = Offset(14)), 34, "it falls");
    for cut in 1..34 {
        assert_eq!(fault(&encode_transactions(&good)[..68 - cut]), 34, "{cut} bytes less");
    }
    let mut version = encode_transactions(&good);
    version[35] = 1;
    assert_eq!(fault(&version), 34);
}

#[test]
fn look_ups_end_where_no_later_transaction_can_reach_back() {
    // Producer 3 holds the last stable offset at 5 until its marker at 30.
    let entries = [
        aborted(1, 0, 10, 5),
        aborted(2, 8, 12, 5),
        aborted(1, 11, 20, 5),
        aborted(3, 5, 30, 31),
        aborted(1, 31, 40, 41),
    ];
    let index = opened(&encode_transactions(&entries), 0, 41).unwrap();
    let look_up = |from, upper| {
        let (mut found, mut in_memory) = (Vec::new(), Vec::new());
        let ended = index.collect(Offset(from), Offset(upper), &mut found).unwrap();
        assert_eq!(collect_from(&entries, Offset(from), Offset(upper), &mut in_memory), ended);
        assert_eq!(found, in_memory);
        // Against all there are, one by one.
        let reaches = |entry: &&AbortedTransaction| entry.last_offset.0 >= from && entry.first_offset.0 < upper;
        assert_eq!(found, entries.iter().filter(reaches).copied().collect::<Vec<_>>(), "{from}..{upper}");
        ended
    };
    for from in 0..42 {
        for upper in from..43 {
            let ended = look_up(from, upper);
            let behind = entries.iter().filter(|entry| entry.last_offset.0 >= from);
            let holds = behind.clone().any(|entry| entry.last_stable_offset.0 >= upper);
            assert_eq!(ended, holds, "{from}..{upper}");
        }
    }
}

#[test]
fn the_last_stable_offset_waits_for_markers_below_the_high_watermark() {
    let mut undecided = Undecided::new(None, &[completed(0, 10), completed(5, 12)], Offset(13));
    undecided.set_first_open(Some(Offset(20)));
    let first = |undecided: &Undecided, high_watermark| undecided.first_unstable(Offset(high_watermark)).map(|at| at.0);
    assert_eq!(first(&undecided, 10), Some(0), "the marker itself is not replicated");
    assert_eq!(first(&undecided, 11), Some(5));
    assert_eq!(first(&undecided, 12), Some(5));
    assert_eq!(first(&undecided, 13), Some(20));
    // One that began first and ends last makes all between irrelevant.
    undecided.end(&completed(3, 30));
    assert_eq!(first(&undecided, 13), Some(3));
    undecided.set_first_open(None);
    undecided.release(Offset(30));
    assert_eq!(first(&undecided, 30), Some(3));
    undecided.release(Offset(31));
    assert_eq!((first(&undecided, 31), undecided.ended.as_ref().unwrap().len()), (None, 0));
    assert_eq!(undecided.known_from(), Offset(31), "what was released is not known any more");

    // A cut takes markers away: what they ended is open again.
    let mut undecided = Undecided::new(None, &[completed(0, 10), completed(5, 12)], Offset(13));
    undecided.truncate(Offset(12), Some(Offset(5)));
    assert_eq!((first(&undecided, 12), undecided.ended.as_ref().unwrap().len()), (Some(5), 1));
    assert_eq!(undecided.known_from(), Offset(12), "and what comes in place of what was cut is");
}

/// What the batches of a segment say, and what of an index is believed beside them.
#[test]
fn an_index_is_corrected_by_the_markers_that_are_there() {
    let builder = || {
        let mut builder = AbortedBuilder::new(Offset(100), ProducerTable::default());
        let data = |producer: i64, base: i64| {
            let mut builder = crate::BatchBuilder::new(crate::Codec::None).producer(producer, 0, 0).transactional();
            builder = builder.base_offset(Offset(base));
            builder.push(crate::Record::new(crate::TimestampMs(1), b"x")).build()
        };
        let marker = |producer_id: i64, base: i64, is_abort| {
            let (now, coordinator_epoch) = (crate::TimestampMs(1), 0);
            let marker = TransactionMarker { producer_id, producer_epoch: 0, coordinator_epoch, is_abort };
            let mut bytes = marker.to_batch(now);
            bytes[..8].copy_from_slice(&base.to_be_bytes());
            bytes
        };
        for bytes in [
            data(1, 100),
            data(2, 101),
            marker(1, 102, true),
            marker(2, 103, false),
            marker(2, 107, true), // All of its data was compacted away.
        ] {
            builder.take(&BatchView::parse(&bytes).unwrap().0);
        }
        builder
    };
    let right = [aborted(1, 100, 102, 101)];
    assert_eq!(builder().finish(), right);
    assert_eq!(builder().correction(&right), None);
    assert_eq!(builder().correction(&[]), Some(right.to_vec()), "entries are missing");
    let more = [aborted(1, 100, 102, 101), aborted(2, 105, 107, 108)];
    assert_eq!(builder().correction(&more), None, "an entry of which compaction left the marker alone");
    for wrong in [
        [aborted(1, 99, 102, 101), more[1]],  // Reaches into offsets before the transaction.
        [aborted(1, 101, 102, 101), more[1]], // Begins too late.
        [aborted(1, 100, 102, 103), more[1]], // Would end look-ups too early.
        [aborted(9, 100, 102, 101), more[1]], // Another producer.
        [more[0], aborted(2, 103, 107, 108)], // From before the producer's last marker.
    ] {
        let corrected = builder().correction(&wrong).expect("it is wrong");
        assert_eq!(corrected[0], more[0], "{wrong:?}");
        assert_eq!(corrected.get(1), Some(&more[1]).filter(|_| wrong[1] == more[1]), "{wrong:?}");
    }
    assert_eq!(builder().correction(&[more[0], aborted(2, 101, 103, 104)]), Some(right.to_vec()), "it was committed");
    let unread = [more[0], aborted(4, 105, 108, 109)];
    assert_eq!(builder().correction(&unread), Some(more[..1].to_vec()));
    let mut damaged = builder();
    damaged.unread.push(Offset(108)..Offset(110));
    assert_eq!(damaged.correction(&unread), None, "of damaged batches the index alone knows");
}

#[test]
fn an_empty_index_has_no_file() {
    let fs = SimFs::new(1);
    let dir = Path::new("/data");
    fs.create_dir(dir).unwrap();
    let place = Place {
        fs: Arc::new(fs.clone()),
        dir: dir.into(),
        open_files: crate::options::LogOptions::default().open_files,
        index_interval_bytes: 0,
        read_only: false,
        rebuilt: Default::default(),
    };
    let entries = [aborted(1, 0, 3, 4)];
    let names = || fs.read_dir(dir).unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>();
    write_file(&place, Offset(0), &entries).unwrap();
    assert_eq!(names(), ["00000000000000000000.txnindex"]);
    assert!(file_matches(&place, Offset(0), &entries).unwrap() && !file_matches(&place, Offset(0), &[]).unwrap());
    write_file(&place, Offset(0), &[]).unwrap();
    assert!(names().is_empty() && file_matches(&place, Offset(0), &[]).unwrap());
    write_file(&place, Offset(0), &[]).unwrap();
}
