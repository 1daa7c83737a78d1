//! The bodies of the fuzz targets. Each takes any bytes, reads them as a small program, runs it on a log on the simulated
//! disk, on three that are replicas of each other, or on a whole broker, and panics if it does not keep its word.

pub mod compaction;
mod directory;
pub mod index_load;
mod input;
pub mod legacy_messages;
pub mod log_operations;
mod model;
pub mod record_batch;
mod repairs;
pub mod replica_operations;
#[cfg(test)]
mod seeds;
pub mod segment_recovery;
pub mod truncate_to_high_watermark;
#[cfg(feature = "broker")]
pub mod wire_request;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic;
    use std::path::Path;

    use super::input::random_bytes;

    /// Random programs per target, beside the seeds: enough to find every planted mistake of `tests/mutants`.
    const PROGRAMS: u64 = 6_000;

    fn run_all(name: &str, target: fn(&[u8])) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let mut seeds: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        seeds.sort();
        assert!(seeds.len() >= 8, "only {} seeds in {}", seeds.len(), directory.display());
        for seed in seeds {
            let data = fs::read(&seed).unwrap();
            let outcome = panic::catch_unwind(|| target(&data));
            assert!(outcome.is_ok(), "the seed {} fails", seed.display());
        }
        for number in 0..PROGRAMS {
            let data = random_bytes(number);
            if panic::catch_unwind(|| target(&data)).is_err() {
                let file = std::env::temp_dir().join(format!("{name}-{number}"));
                fs::write(&file, &data).unwrap();
                panic!("program {number} fails; it is kept in {}", file.display());
            }
        }
    }

    #[test]
    fn compaction() {
        run_all("compaction", super::compaction::run);
    }

    #[test]
    fn index_load() {
        run_all("index_load", super::index_load::run);
    }

    #[test]
    fn legacy_messages() {
        run_all("legacy_messages", super::legacy_messages::run);
    }

    #[test]
    fn log_operations() {
        run_all("log_operations", super::log_operations::run);
    }

    #[test]
    fn record_batch() {
        run_all("record_batch", super::record_batch::run);
    }

    #[test]
    fn replica_operations() {
        run_all("replica_operations", super::replica_operations::run);
    }

    #[test]
    fn segment_recovery() {
        run_all("segment_recovery", super::segment_recovery::run);
    }

    #[test]
    fn truncate_to_high_watermark() {
        run_all("truncate_to_high_watermark", super::truncate_to_high_watermark::run);
    }
}
