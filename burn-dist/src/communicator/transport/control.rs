//! [`Control`]: what members say beside the data: why a group ends, that they leave, wake up.
//!
//! One connection per pair carries nothing else, so that a word is heard whatever data is under way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::Fault;
#[cfg(any(test, fuzzing))]
use crate::communicator::PeerConnection;

const ABORT: u8 = 3;
const LEAVE: u8 = 4;
const WAKE: u8 = 5;

/// Longest reason that an abort carries.
const MAX_CAUSE: usize = 4096;

/// An abort's kind and the length of its reason.
const HEAD: usize = 5;

/// Longest time that saying why takes.
const FAREWELL: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Connection<S = TcpStream> {
    stream: S,
    /// What has come and is no whole word yet.
    heard: Vec<u8>,
    /// The member has left or broken off.
    gone: Option<Fault>,
    /// A word was left half said: nothing more can be.
    cut: bool,
}

/// The control connections of a group, by member; `None` for this member itself.
#[derive(Debug)]
pub(super) struct Control {
    connections: Vec<Option<Connection>>,
}

/// What the bytes begin with.
#[derive(Debug, PartialEq, Eq)]
enum Word<'a> {
    /// Not whole yet.
    Partial,
    Wake,
    Leave,
    Abort(&'a [u8]),
    Unknown(u8),
}

/// Reads one word; says how many bytes it took. Never looks beyond [`MAX_CAUSE`].
fn parse(bytes: &[u8]) -> (Word<'_>, usize) {
    match bytes.first() {
        None => (Word::Partial, 0),
        Some(&WAKE) => (Word::Wake, 1),
        Some(&LEAVE) => (Word::Leave, 1),
        Some(&ABORT) => {
            let Some(length) = bytes.get(1..HEAD) else {
                return (Word::Partial, 0);
            };
            let length = u32::from_le_bytes(length.try_into().expect("invariant: four bytes"));
            match length as usize {
                length if length > MAX_CAUSE => (Word::Unknown(ABORT), 0),
                length => match bytes.get(HEAD..HEAD + length) {
                    Some(cause) => (Word::Abort(cause), HEAD + length),
                    None => (Word::Partial, 0),
                },
            }
        }
        Some(&other) => (Word::Unknown(other), 0),
    }
}

fn abort_word(cause: &str) -> Vec<u8> {
    let mut end = cause.len().min(MAX_CAUSE);
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    let mut word = vec![ABORT];
    word.extend_from_slice(&(end as u32).to_le_bytes());
    word.extend_from_slice(&cause.as_bytes()[..end]);
    word
}

impl<S: Read> Connection<S> {
    /// Takes in what has come from member `index`; an abort or another protocol is returned.
    fn listen(&mut self, index: usize) -> Result<(), Fault> {
        let mut buffer = [0; 256];
        while self.gone.is_none() {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.lost(index, "the connection was closed".into()),
                Ok(count) => self.heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => self.lost(index, error.to_string()),
            }
            self.understand(index)?;
        }
        Ok(())
    }

    fn lost(&mut self, index: usize, detail: String) {
        let indices = vec![index];
        self.gone.get_or_insert(Fault::Lost { indices, detail });
    }

    fn understand(&mut self, index: usize) -> Result<(), Fault> {
        let mut rest = 0;
        loop {
            let (word, count) = parse(&self.heard[rest..]);
            match word {
                Word::Partial => break,
                Word::Wake => {}
                Word::Leave => {
                    self.gone = Some(Fault::Left { index });
                }
                Word::Abort(cause) => {
                    let cause = String::from_utf8_lossy(cause).into_owned();
                    return Err(Fault::PeerFailed { index, cause });
                }
                Word::Unknown(kind) => {
                    let detail = format!("a word of kind {kind}");
                    return Err(Fault::Garbled { index, detail });
                }
            }
            rest += count;
        }
        self.heard.drain(..rest);
        Ok(())
    }
}

impl Connection {
    /// Says a word, within a bounded time.
    fn say(&mut self, word: &[u8], until: Instant) {
        let mut done = 0;
        while !self.cut && done < word.len() {
            match self.stream.write(&word[done..]) {
                Ok(count) if count > 0 => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The peer is gone or does not listen; it will notice the end of the connection.
                _ => self.cut = true,
            }
        }
    }
}

impl Control {
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> std::io::Result<Self> {
        let mut connections = Vec::with_capacity(streams.len());
        for stream in streams {
            connections.push(match stream {
                None => None,
                Some(stream) => {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    Some(Connection {
                        stream,
                        // Words to wake a member are one byte, and come at any time.
                        heard: Vec::with_capacity(256),
                        gone: None,
                        cut: false,
                    })
                }
            });
        }
        Ok(Self { connections })
    }

    /// Takes note of members that have left or broken off; an abort is returned.
    pub(super) fn watch(&mut self) -> Result<(), Fault> {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                connection.listen(index)?;
            }
        }
        Ok(())
    }

    /// How a member has gone, if it has.
    pub(super) fn gone(&self, index: usize) -> Option<&Fault> {
        self.connections[index].as_ref()?.gone.as_ref()
    }

    /// Members that broke off without a word.
    pub(super) fn lost(&self) -> impl Iterator<Item = usize> + '_ {
        let is_lost = |&index: &usize| matches!(self.gone(index), Some(Fault::Lost { .. }));
        (0..self.connections.len()).filter(is_lost)
    }

    /// The connections of members that are still there, to sleep on.
    pub(super) fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        let connections = self.connections.iter().flatten();
        connections.filter(|c| c.gone.is_none()).map(|c| &c.stream)
    }

    /// Wakes a member that sleeps on its connections.
    pub(super) fn wake(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index] {
            connection.say(&[WAKE], Instant::now());
        }
    }

    pub(super) fn abort(&mut self, cause: &str) {
        self.farewell(&abort_word(cause));
    }

    pub(super) fn leave(&mut self) {
        self.farewell(&[LEAVE]);
    }

    fn farewell(&mut self, word: &[u8]) {
        let until = Instant::now() + FAREWELL;
        for connection in self.connections.iter_mut().flatten() {
            connection.say(word, until);
            connection.cut = true;
            // A peer that is gone does not mind.
            let _ = connection.stream.shutdown(Shutdown::Write);
        }
    }
}

impl Drop for Control {
    /// Closing a connection that holds unread bytes would reset it, and the peer could lose the
    /// reason that was sent before: take in what has come.
    fn drop(&mut self) {
        let mut sink = [0; 4096];
        for connection in self.connections.iter_mut().flatten() {
            for _ in 0..1024 {
                match connection.stream.read(&mut sink) {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
        }
    }
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl PeerConnection {
    /// Listens to a member until it is gone. The room that was taken for what it said, and how it
    /// went: the reason of its abort, `left` or `lost`; `None` if it said what it should not.
    pub(crate) fn fuzz_control(stream: impl Read) -> (usize, Option<String>) {
        let mut connection = Connection {
            stream,
            heard: Vec::new(),
            gone: None,
            cut: false,
        };
        let heard = connection.listen(0);
        let farewell = match heard.err().or(connection.gone) {
            Some(Fault::PeerFailed { cause, .. }) => Some(cause),
            Some(Fault::Left { .. }) => Some("left".into()),
            Some(Fault::Lost { .. }) => Some("lost".into()),
            _ => None,
        };
        (connection.heard.capacity(), farewell)
    }

    /// Some words before an abort.
    #[cfg(test)]
    pub(crate) fn fuzz_abort(cause: &str) -> Vec<u8> {
        [&[WAKE, WAKE], &abort_word(cause)[..]].concat()
    }

    /// A word before a member leaves.
    #[cfg(test)]
    pub(crate) fn fuzz_leave() -> Vec<u8> {
        vec![WAKE, LEAVE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_read_whole_or_not_at_all() {
        assert_eq!(parse(&[WAKE, LEAVE]), (Word::Wake, 1));
        assert_eq!(parse(&[LEAVE]), (Word::Leave, 1));
        let word = [ABORT, 2, 0, 0, 0, b'n', b'o'];
        assert_eq!(parse(&word), (Word::Abort(b"no"), 7));
        for cut in 0..word.len() {
            assert_eq!(parse(&word[..cut]), (Word::Partial, 0));
        }
        assert_eq!(parse(&[ABORT, 0, 0, 1, 0]), (Word::Unknown(ABORT), 0));
        assert_eq!(parse(b"GET /"), (Word::Unknown(b'G'), 0));
    }

    proptest! {
        #[test]
        fn what_a_word_takes_is_there(bytes in prop::collection::vec(0u8..7, 0..40)) {
            let (word, count) = parse(&bytes);
            prop_assert!(count <= bytes.len());
            prop_assert_eq!(count == 0, matches!(word, Word::Partial | Word::Unknown(_)));
        }
    }
}
