//! A log whose side files (indexes, snapshots, epochs, state) are any bytes.
//!
//! What must hold: opening is no error; every batch is found by every offset in it (I5), whatever an index says; a search
//! by time finds nothing that is earlier than was asked; appending goes on; after the side files are removed the answers
//! stay the same.

use std::path::Path;

use highwater_storage::fs::{Fs, OpenMode, SimFs};
use highwater_storage::io::FileExt;
use highwater_storage::{LeaderEpoch, Log, Offset, ReadLimit};

use crate::directory::search;
use crate::input::Input;
use crate::model::{DIR, Model, disk, open, options};

/// The target's body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let options = options(&mut input);
    let fs = disk();
    let (mut log, _) = open(&fs, &options);
    let mut model = Model::default();
    let closes = input.flag();
    for number in 0..2 + input.below(12) {
        model.append(&mut log, LeaderEpoch(i32::try_from(number / 4).expect("small")), &mut input);
    }
    let bases: Vec<i64> = log.segments().iter().map(|segment| segment.base.0).collect();
    if closes {
        log.close().expect("the simulated disk works");
    } else {
        log.checkpoint().expect("the simulated disk works");
        drop(log);
    }
    let fs = fs.kill();
    let mut spoils_epochs = false;
    for _ in 0..1 + input.below(3) {
        let base = bases[input.below(bases.len())];
        let kind =
            input.choose(&["index", "index", "index", "timeindex", "timeindex", "txnindex", "snapshot", "epochs"]);
        spoils_epochs |= kind == "epochs";
        let name = if kind == "epochs" { "leader-epoch-checkpoint".to_owned() } else { format!("{base:020}.{kind}") };
        let length = input.below(80);
        let bytes = input.take(length);
        write(&fs, &name, bytes);
    }
    fs.sync_everything();

    let (log, _) = open(&fs, &options);
    check(&model, &log, spoils_epochs);
    drop(log);
    let fs = fs.kill();
    for entry in fs.read_dir(Path::new(DIR)).expect("it is there") {
        if entry.name.ends_with("index") || entry.name.ends_with(".snapshot") {
            fs.remove_file(&Path::new(DIR).join(entry.name)).expect("it is there");
        }
    }
    let (mut log, _) = open(&fs, &options);
    check(&model, &log, spoils_epochs);
    let epoch = log.latest_epoch().max(LeaderEpoch(9));
    model.append(&mut log, epoch, &mut input);
    check(&model, &log, true);
}

fn write(fs: &SimFs, name: &str, bytes: &[u8]) {
    let file = fs.open(&Path::new(DIR).join(name), OpenMode::Truncate).expect("the simulated disk works");
    file.write_all_at(bytes, 0).expect("the simulated disk works");
}

/// Everything but what a time index or the epochs' file may say wrongly and still look well.
fn check(model: &Model, log: &Log, spoils_epochs: bool) {
    assert_eq!((log.start(), log.end()), (Offset::ZERO, model.end()), "start and end");
    for batch in &model.batches {
        for offset in batch.base.0..batch.next.0 {
            let fetched = log.read(Offset(offset), ReadLimit::bytes(1)).expect("what is there can be read");
            assert!(fetched.bytes == batch.bytes, "reading at {offset} does not give the batch that holds it");
        }
    }
    search(log);
    if !spoils_epochs {
        assert_eq!(log.epochs(), model.epochs(), "epochs");
    }
}
