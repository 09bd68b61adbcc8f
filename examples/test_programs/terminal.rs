//! [`Terminal`]: a program as a user sees it, on a terminal, with a deadline.
#![allow(unreachable_pub)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Nothing that a test waits for takes longer.
const DEADLINE: Duration = Duration::from_secs(240);

/// A program, its keyboard and its screen.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a command on a terminal of its own.
    pub(crate) fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("ours");
        tcsetwinsize(
            &master,
            Winsize {
                ws_row: 50,
                ws_col: 160,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )
        .expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let open = || {
            let opened = rustix::fs::open(&name, flags, rustix::fs::Mode::empty());
            Stdio::from(opened.expect("a terminal"))
        };
        // Makes it the terminal that the command's keys come from, as a shell does.
        let mut on_terminal = Command::new("setsid");
        on_terminal.arg("--ctty").arg(command.get_program());
        on_terminal.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_terminal.env(name, value),
                None => on_terminal.env_remove(name),
            };
        }
        let folder = command.get_current_dir();
        let child = on_terminal
            .current_dir(folder.unwrap_or(Path::new(".")))
            .env("TERM", "xterm")
            .env_remove("RUST_BACKTRACE")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("the program starts");
        let keyboard = File::from(master);
        let mut from = keyboard.try_clone().expect("a second handle");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // A terminal that nobody has open any more is an error to read from.
            while let Ok(count @ 1..) = from.read(&mut piece) {
                let mut shown = shown.lock().expect("not poisoned");
                shown.extend_from_slice(&piece[..count]);
            }
        });
        Self {
            child,
            keyboard,
            screen,
        }
    }

    /// All that was written to the screen so far, without what moves and colours it.
    pub(crate) fn text(&self) -> String {
        plain(&self.raw())
    }

    fn raw(&self) -> String {
        let bytes = self.screen.lock().expect("not poisoned").clone();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn in_time(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            if start.elapsed() > DEADLINE {
                let _ = self.child.kill();
                panic!("no {what} within {DEADLINE:?}: {}", self.text());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until something is so.
    pub(crate) fn wait_until(&mut self, what: &str, so: impl Fn(&Self) -> bool) {
        self.in_time(what, |terminal| {
            if let Some(status) = terminal.child.try_wait().expect("our child") {
                panic!("{status} before {what}: {}", terminal.text());
            }
            so(terminal)
        });
    }

    pub(crate) fn press(&mut self, key: &str) {
        self.keyboard
            .write_all(key.as_bytes())
            .expect("the program listens");
    }

    /// Waits for the program's end: its code, and what was on the screen.
    pub(crate) fn end(self) -> (Option<i32>, String) {
        let (code, raw) = self.end_raw();
        (code, plain(&raw))
    }

    fn end_raw(mut self) -> (Option<i32>, String) {
        let mut code = None;
        self.in_time("end", |terminal| {
            let status = terminal.child.try_wait().expect("our child");
            code = status.map(|status| status.code());
            code.is_some()
        });
        // What is on its way to the screen.
        std::thread::sleep(Duration::from_millis(200));
        (code.flatten(), self.raw())
    }

    /// As [`end`](Self::end), with what was on the screen after a dashboard had given it back.
    #[allow(dead_code)]
    pub(crate) fn end_after_dashboard(self) -> (Option<i32>, String) {
        let (code, raw) = self.end_raw();
        let (_, after) = raw.rsplit_once("\u{1b}[?1049l").expect("a dashboard");
        (code, plain(after))
    }
}

/// Without what moves and colours.
fn plain(raw: &str) -> String {
    let mut text = String::new();
    let mut letters = raw.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => {
                let rest = letters.by_ref();
                let mut sequence =
                    rest.skip_while(|c| ['[', '?', ';'].contains(c) || c.is_ascii_digit());
                sequence.next();
            }
            letter => text.push(letter),
        }
    }
    text
}
