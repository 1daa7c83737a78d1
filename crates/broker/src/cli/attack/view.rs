//! The live view: who is up, who leads, who is in sync.

use std::fs::File;
use std::time::Duration;

use super::cluster::{BROKERS, Cluster, Member};
use super::status::Status;
use crate::driver::screen::Screen;

/// How often plain lines are printed.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Shows how the cluster stands.
pub(super) struct View(Screen);

impl View {
    /// A view of an attack that lasts so many seconds, whose events go to a file as well.
    pub(super) fn new(seconds: u64, log: File) -> Self {
        let mut screen = Screen::new(BROKERS.len() + 2, "  attacked {bar:40} {pos}/{len} s", seconds, PLAIN_INTERVAL);
        screen.log_to(log);
        Self(screen)
    }

    /// Tells of an event; it stays on the screen.
    pub(super) fn event(&self, text: &str) {
        self.0.event(text);
    }

    /// Shows the cluster as it is now.
    pub(super) fn update(&mut self, cluster: &Cluster, status: &Status, acknowledged: u64, seconds: u64) {
        let mut lines = vec![format!("ZooKeeper {}", cluster.condition(Member::Store))];
        for broker in BROKERS {
            let of = |wanted: &dyn Fn(usize) -> bool| {
                let numbers = (0..status.partitions.len()).filter(|&partition| wanted(partition));
                numbers.map(|partition| partition.to_string()).collect::<Vec<_>>().join(",")
            };
            let condition = cluster.condition(Member::Broker(broker));
            let leads = of(&|partition| status.partitions[partition].leader == broker);
            let in_sync = of(&|partition| status.partitions[partition].isr.contains(&broker));
            lines.push(format!("broker {broker}  {condition:<7} leads {leads:<8} in sync {in_sync:<8}"));
        }
        let acknowledged = format!("{acknowledged} records acknowledged");
        lines.push(acknowledged.clone());
        self.0.update(lines, seconds, &acknowledged);
    }

    /// Takes the live lines away; what was printed stays.
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}
