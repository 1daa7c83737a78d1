//! Writes logs into a data root that Apache Kafka made, one topic for each feature, and reads them again after Kafka went
//! on with them. `tests/clients/check_kafka_files.py` runs it, between starts of Kafka on the same root:
//!
//! ```text
//! kafka-files write ROOT RECORDS DATA   fills the empty topics and closes the root
//! kafka-files crash ROOT RECORDS        reads all, appends, and ends without closing anything
//! kafka-files read ROOT RECORDS         reads all and closes the root
//! ```
//!
//! RECORDS is a directory with a file for each topic of what a consumer has to get, in the words of [`records::Row`];
//! whoever appends to a topic appends to its file. DATA are the storage crate's directories of Kafka's, for those that
//! only Kafka could write.

mod damage;
mod features;
mod records;
mod root;
mod transactions;

use std::path::PathBuf;

use anyhow::bail;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["topics"] => features::FEATURES.iter().for_each(|(topic, ..)| println!("{topic}")),
        ["write", root, records, data] => {
            root::write(&PathBuf::from(root), &PathBuf::from(records), &PathBuf::from(data))?
        }
        ["crash", root, records] => root::crash(&PathBuf::from(root), &PathBuf::from(records))?,
        ["read", root, records] => root::read(&PathBuf::from(root), &PathBuf::from(records))?,
        _ => bail!("usage: kafka-files topics | write ROOT RECORDS DATA | crash ROOT RECORDS | read ROOT RECORDS"),
    }
    Ok(())
}
