//! The table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use highwater_replication::{BrokerId, Cut};

/// What the demo measured.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) input: String,
    pub(super) records: u64,
    pub(super) value_bytes: u64,
    /// From the first record sent to the last acknowledged.
    pub(super) elapsed: Duration,
    /// Of these, without the demo's pauses and the election.
    pub(super) flowing: Duration,
    pub(super) resent: u64,
    /// From the pause of a follower until the high watermark went on without it.
    pub(super) shrink: Duration,
    /// From the kill until a batch was acknowledged by the next leader.
    pub(super) without_leader: Duration,
    /// What each replica cut.
    pub(super) cuts: Vec<(BrokerId, Vec<Cut>)>,
    pub(super) digest: String,
    pub(super) batches_equal: usize,
}

impl Report {
    /// The table as text.
    pub(super) fn table(&self) -> String {
        let mut rows = vec![
            ("input", format!("{} ({} records, {} bytes of values)", self.input, self.records, self.value_bytes)),
            ("throughput", self.throughput()),
            ("follower paused", format!("{} ms until the ISR shrank and the HW went on", self.shrink.as_millis())),
            (
                "without a leader",
                format!("{} ms from the kill to the next acknowledgement", self.without_leader.as_millis()),
            ),
            ("sent again", format!("{} batches, none stored twice", self.resent)),
        ];
        for (broker, cuts) in &self.cuts {
            if cuts.is_empty() {
                rows.push(("cut", format!("broker {broker}: nothing")));
            }
            for cut in cuts {
                rows.push((
                    "cut",
                    format!(
                        "broker {broker}: {} records, {} (epoch {}) → {} (epoch {}), HW {}: {}",
                        cut.records, cut.from.0, cut.from.1, cut.to.0, cut.to.1, cut.high_watermark, cut.why
                    ),
                ));
            }
        }
        rows.push(("read back", format!("{} records, each once and in order", self.records)));
        rows.push(("SHA-256", format!("{} sent = read", self.digest)));
        rows.push(("logs", format!("{} batches below the HW equal on all replicas", self.batches_equal)));
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<17} {value}");
        }
        text
    }

    fn throughput(&self) -> String {
        format!(
            "{:.1} MB/s while acknowledgements flowed ({:.1} of {:.1} s; the rest are the pauses below)",
            self.megabytes_per_second(self.flowing),
            self.flowing.as_secs_f64(),
            self.elapsed.as_secs_f64()
        )
    }

    fn megabytes_per_second(&self, during: Duration) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let megabytes = self.value_bytes as f64 / 1e6;
        megabytes / during.as_secs_f64().max(1e-9)
    }
}
