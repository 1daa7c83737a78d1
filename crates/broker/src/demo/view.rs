//! The live view: a line for each replica, refreshed in place on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use highwater_replication::{BrokerId, Role, Status};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// How often plain lines are printed.
const PLAIN_INTERVAL: Duration = Duration::from_secs(1);

/// Shows how the replicas stand.
pub(super) struct View {
    started: Instant,
    live: Option<Live>,
    last_plain: Option<Instant>,
}

struct Live {
    all: MultiProgress,
    replicas: Vec<ProgressBar>,
    records: ProgressBar,
}

impl View {
    /// A view for `replicas` replicas and so many records.
    pub(super) fn new(replicas: usize, records: u64) -> Self {
        let live = std::io::stdout().is_terminal().then(|| Live::new(replicas, records));
        Self { started: Instant::now(), live, last_plain: None }
    }

    /// Tells of an event; it stays on the screen.
    pub(super) fn event(&self, text: &str) {
        let line = format!("{:6.2} s  {text}", self.started.elapsed().as_secs_f64());
        match &self.live {
            // Printing above the bars fails only where the terminal is gone; then nobody reads it either.
            Some(live) => drop(live.all.println(line)),
            None => println!("{line}"),
        }
    }

    /// Shows the replicas as they are now.
    pub(super) fn update(&mut self, replicas: &[(BrokerId, Option<Status>)], acknowledged: u64) {
        let lines = table(replicas);
        if let Some(live) = &self.live {
            for (bar, line) in live.replicas.iter().zip(lines) {
                bar.set_message(line);
            }
            live.records.set_position(acknowledged);
        } else if self.last_plain.is_none_or(|last| last.elapsed() >= PLAIN_INTERVAL) {
            self.last_plain = Some(Instant::now());
            println!("{:6.2} s  {acknowledged} records acknowledged", self.started.elapsed().as_secs_f64());
            for line in lines {
                println!("          {line}");
            }
        }
    }

    /// Takes the live lines away; what was printed stays.
    pub(super) fn finish(&self) {
        if let Some(live) = &self.live {
            drop(live.all.clear());
        }
    }
}

impl Live {
    fn new(replicas: usize, records: u64) -> Self {
        let all = MultiProgress::new();
        let line = ProgressStyle::with_template("  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let replicas = (0..replicas).map(|_| all.add(ProgressBar::new_spinner().with_style(line.clone()))).collect();
        let bar = ProgressStyle::with_template("  acknowledged {bar:40} {pos}/{len} records")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let records = all.add(ProgressBar::new(records).with_style(bar));
        Self { all, replicas, records }
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
