//! [`TerminalState`]: how the terminal was before a rank had it.

use std::io::Write;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::OutputStyle;

/// The settings of a terminal that a rank may leave in disorder when it is killed.
pub(super) struct TerminalState(Termios);

/// Back from a dashboard's own screen, with a cursor, without reports of the mouse.
const PLAIN: &[u8] = b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l";

impl TerminalState {
    /// `None` if no rank gets the terminal.
    pub(super) fn of(style: OutputStyle) -> Option<Self> {
        let settings = || tcgetattr(std::io::stdin()).ok();
        style.owns_terminal(0).then(settings).flatten().map(Self)
    }

    /// Puts the settings back, if they differ.
    pub(super) fn restore(&self) {
        let raw =
            tcgetattr(std::io::stdin()).is_ok_and(|now| now.local_modes != self.0.local_modes);
        if raw {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
            let mut out = std::io::stdout();
            let _ = out.write_all(PLAIN).and_then(|()| out.flush());
        }
    }
}
