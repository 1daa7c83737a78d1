//! How far a long reading has come, for people who look at a terminal.

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::ResultFormat;

/// A bar on standard error, if that is a terminal; nothing otherwise.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
}

impl Progress {
    /// A bar for so many bytes.
    pub(crate) fn new(bytes: u64, format: ResultFormat) -> Self {
        let shown = format == ResultFormat::Text && io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left") {
            bar.set_style(style);
        }
        Self { bar, started: Instant::now(), shown }
    }

    /// So many more bytes were read.
    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Lets something be written without the bar in between.
    pub(crate) fn beside<T>(&self, write: impl FnOnce() -> T) -> T {
        if self.shown { self.bar.suspend(write) } else { write() }
    }

    /// Takes the bar away. How fast it went, where a bar was shown and there was enough to tell.
    pub(crate) fn finish(&self) -> Option<String> {
        self.bar.finish_and_clear();
        let seconds = self.started.elapsed().as_secs_f64();
        let bytes = self.bar.position();
        (self.shown && bytes > 0 && seconds > 0.0).then(|| format!("{:.2} GB/s", bytes as f64 / seconds / 1e9))
    }
}
