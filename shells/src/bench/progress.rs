//! How far a run has come, on a terminal; nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    /// Draws nothing where standard error is no terminal.
    pub fn start(steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress(bar)
    }

    pub fn show(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    pub fn advance(&self) {
        self.0.inc(1);
    }

    pub fn advance_by(&self, count: u64) {
        self.0.inc(count);
    }

    /// A remark, not a figure.
    pub fn note(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    /// Prints below what is there already, the bar being out of the way.
    pub fn print(&self, text: &str) {
        if !text.is_empty() {
            self.0.suspend(|| println!("{text}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
