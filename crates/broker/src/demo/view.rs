//! The live view: a line for each replica, refreshed in place on a terminal, plain lines elsewhere.

use std::time::Duration;

use highwater_replication::{BrokerId, Role, Status};

use crate::driver::screen::Screen;

/// How often plain lines are printed.
const PLAIN_INTERVAL: Duration = Duration::from_secs(1);

/// Shows how the replicas stand.
pub(super) struct View(Screen);

impl View {
    /// A view for `replicas` replicas and so many records.
    pub(super) fn new(replicas: usize, records: u64) -> Self {
        let bar = "  acknowledged {bar:40} {pos}/{len} records";
        Self(Screen::new(replicas, bar, records, PLAIN_INTERVAL))
    }

    /// Tells of an event; it stays on the screen.
    pub(super) fn event(&self, text: &str) {
        self.0.event(text);
    }

    /// Shows the replicas as they are now.
    pub(super) fn update(&mut self, replicas: &[(BrokerId, Option<Status>)], acknowledged: u64) {
        self.0.update(table(replicas), acknowledged, &format!("{acknowledged} records acknowledged"));
    }

    /// Takes the live lines away; what was printed stays.
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}

/// One line for each replica: role, epoch, log start, LEO, HW, in the ISR or not, lag.
fn table(replicas: &[(BrokerId, Option<Status>)]) -> Vec<String> {
    let leader = replicas.iter().filter_map(|(_, status)| status.as_ref()).filter(|status| status.role == Role::Leader);
    let leader = leader.max_by_key(|status| status.leader_epoch);
    replicas
        .iter()
        .map(|(broker, status)| match status {
            None => format!("broker {broker}  down"),
            Some(status) => {
                let lag = leader.map_or(0, |leader| (leader.log_end - status.log_end).max(0));
                let in_isr = leader.map_or(status.in_isr, |leader| leader.isr.contains(broker));
                format!(
                    "broker {broker}  {:<8} epoch {:<3} start {:<6} LEO {:<8} HW {:<8} {:<10} lag {lag}",
                    role_name(status.role),
                    status.leader_epoch,
                    status.log_start,
                    status.log_end,
                    status.high_watermark,
                    if in_isr { "in ISR" } else { "not in ISR" },
                )
            }
        })
        .collect()
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        _ => "offline",
    }
}
