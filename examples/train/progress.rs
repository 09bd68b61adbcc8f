//! [`Progress`]: what the first rank shows while it trains.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
}

impl Progress {
    /// For `steps` steps; rank 0 shows them.
    pub(super) fn new(rank: usize, steps: usize) -> Self {
        let bar = (rank == 0 && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{eta}]")
                .expect("invariant: the template is right");
            ProgressBar::new(steps as u64).with_style(style)
        });
        // A number of lines that a log can bear.
        let quiet = rank != 0;
        Self {
            bar,
            steps: if quiet { 0 } else { steps },
        }
    }

    pub(super) fn show(&self, step: usize, loss: f32, tokens_per_second: f64, bytes_moved: u64) {
        let moved = bytes_moved as f64 / f64::from(1 << 20);
        let text = format!("loss {loss:.4}, {tokens_per_second:.0} tokens/s, {moved:.1} MiB moved");
        if let Some(bar) = &self.bar {
            bar.set_position(step as u64 + 1);
            bar.set_message(text);
        } else if self.steps > 0 {
            let every = self.steps.div_ceil(10);
            if (step + 1).is_multiple_of(every) || step == 0 || step + 1 == self.steps {
                println!("step {}/{}: {text}", step + 1, self.steps);
            }
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
