//! What stays, what goes, and when.

use highwater_storage::{Offset, Step};

use crate::keyed::{compact, compacted, keys, new_log, put, records, roll};
use crate::support::{T0, bases, disk, names, open};

fn owned(pairs: &[(i64, &str)]) -> Vec<(i64, String)> {
    pairs.iter().map(|(offset, key)| (*offset, (*key).to_owned())).collect()
}

#[test]
fn the_last_record_of_each_key_stays_at_its_offset() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    put(&mut log, &[(Some("a"), Some("1")), (Some("b"), Some("1")), (None, Some("no key")), (Some("c"), Some("1"))]);
    put(&mut log, &[(Some("a"), Some("2"))]);
    roll(&mut log);
    put(&mut log, &[(Some("b"), Some("2")), (Some("d"), Some("1"))]);
    roll(&mut log);
    put(&mut log, &[(Some("c"), Some("of the active segment"))]);
    let before = records(&log.reader());
    let steps = compact(&mut log, T0);
    let [Step::Compacted { cleaner_offset, bytes_before, bytes_after, segments_left_out: 0, .. }] = *steps else {
        panic!("{steps:?}")
    };
    assert_eq!((cleaner_offset, log.cleaner_offset(), log.end()), (Offset(7), Offset(7), Offset(8)));
    assert!(bytes_after < bytes_before);
    assert_eq!(keys(&log.reader()), owned(&[(3, "c"), (4, "a"), (5, "b"), (6, "d"), (7, "c")]));
    for (offset, record) in records(&log.reader()) {
        assert_eq!(record, before[&offset], "a record that stays is the same");
    }
    assert_eq!(bases(&log), [0, 7], "what fits into one segment becomes one");
    assert_eq!(compact(&mut log, T0), [], "there is nothing left to do");
    let left: Vec<_> =
        names(&fs).into_iter().filter(|name| name.contains("cleaned") || name.contains("swap")).collect();
    assert_eq!(left, Vec::<String>::new());

    // Opened again after a crash it is the same.
    let expected = records(&log.reader());
    drop(log);
    let (log, _) = open(&fs, &compacted());
    assert_eq!(records(&log.reader()), expected);
    assert_eq!(log.end(), Offset(8));
}
