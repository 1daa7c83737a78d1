//! Events that stay, and below them lines that are refreshed in place on a terminal; plain lines elsewhere.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// What is on the screen.
pub(crate) struct Screen {
    started: Instant,
    live: Option<Live>,
    /// How often the lines are printed where they cannot be refreshed.
    plain_interval: Duration,
    last_plain: Option<Instant>,
    /// Where events are kept as well.
    log: Option<File>,
}

struct Live {
    all: MultiProgress,
    lines: Vec<ProgressBar>,
    progress: ProgressBar,
}

impl Screen {
    /// So many lines, and a bar of this look (indicatif's template) that goes up to `length`.
    pub(crate) fn new(lines: usize, bar: &str, length: u64, plain_interval: Duration) -> Self {
        let live = std::io::stdout().is_terminal().then(|| Live::new(lines, bar, length));
        Self { started: Instant::now(), live, plain_interval, last_plain: None, log: None }
    }

    /// Keeps the events in a file too.
    pub(crate) fn log_to(&mut self, log: File) {
        self.log = Some(log);
    }

    /// Tells of an event; it stays on the screen.
    pub(crate) fn event(&self, text: &str) {
        let line = format!("{:6.2} s  {text}", self.started.elapsed().as_secs_f64());
        if let Some(mut log) = self.log.as_ref() {
            // The screen has it; a disk that is full is no reason to stop.
            let _ = writeln!(log, "{line}");
        }
        match &self.live {
            // Printing above the bars fails only where the terminal is gone; then nobody reads it either.
            Some(live) => drop(live.all.println(line)),
            None => println!("{line}"),
        }
    }

    /// Shows how things are now; `plain` heads the lines where there is no bar.
    pub(crate) fn update(&mut self, lines: Vec<String>, position: u64, plain: &str) {
        if let Some(live) = &self.live {
            for (bar, line) in live.lines.iter().zip(lines) {
                bar.set_message(line);
            }
            live.progress.set_position(position);
        } else if self.last_plain.is_none_or(|last| last.elapsed() >= self.plain_interval) {
            self.last_plain = Some(Instant::now());
            println!("{:6.2} s  {plain}", self.started.elapsed().as_secs_f64());
            for line in lines {
                println!("          {line}");
            }
        }
    }

    /// Takes the live lines away; what was printed stays.
    pub(crate) fn finish(&self) {
        if let Some(live) = &self.live {
            drop(live.all.clear());
        }
    }
}

impl Live {
    fn new(lines: usize, bar: &str, length: u64) -> Self {
        let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let all = MultiProgress::new();
        let line = style("  {msg}");
        let lines = (0..lines).map(|_| all.add(ProgressBar::new_spinner().with_style(line.clone()))).collect();
        let progress = all.add(ProgressBar::new(length).with_style(style(bar)));
        Self { all, lines, progress }
    }
}
