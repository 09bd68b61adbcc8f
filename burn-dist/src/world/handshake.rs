//! Who may connect: both sides prove that they know the shared secret, without sending it.
//!
//! ```text
//! client -> server   magic, version
//! server -> client   32 random bytes
//! client -> server   32 random bytes, HMAC(secret, "client", both)
//! server -> client   HMAC(secret, "server", both), or nothing: the connection is closed
//! ```
//!
//! The client proves itself first, so that a stranger gets nothing to guess the secret with. All
//! sizes are fixed: nothing is allocated for a stranger, and all of it has one deadline.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;

const MAGIC: [u8; 5] = *b"BURN\x01";

/// Longest handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

type Nonce = [u8; 32];

/// Why a handshake ended without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The other side does not know the secret.
    WrongSecret,
    /// The other side speaks something else, or not at all.
    Stranger(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::WrongSecret => f.write_str("the two sides have different secrets"),
            Self::Stranger(detail) => write!(f, "no answer of ours: {detail}"),
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Stranger(error.to_string())
    }
}

fn nonce() -> Result<Nonce, Refusal> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| Refusal::Stranger(error.to_string()))?;
    Ok(nonce)
}

fn proof(secret: &str, side: &str, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .expect("invariant: HMAC takes keys of every length");
    for part in [side.as_bytes(), client, server] {
        mac.update(part);
    }
    mac
}

/// A connection with a deadline for all of the handshake.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            deadline: Instant::now() + PATIENCE,
        }
    }

    fn rest(&self) -> std::io::Result<Option<Duration>> {
        let rest = self.deadline.saturating_duration_since(Instant::now());
        match rest.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(rest)),
        }
    }

    fn read<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            self.stream.set_read_timeout(self.rest()?)?;
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.set_write_timeout(self.rest()?)?;
        self.stream.write_all(bytes)
    }
}

/// The connecting side.
pub(super) fn connect(stream: &TcpStream, secret: &str) -> Result<(), Refusal> {
    let mut timed = Timed::new(stream);
    timed.write(&MAGIC)?;
    let server = timed.read::<32>()?;
    let client = nonce()?;
    let ours = proof(secret, "client", &client, &server).finalize();
    timed.write(&[&client[..], &ours.into_bytes()].concat())?;
    let theirs = timed.read::<32>().map_err(|error| match error.kind() {
        // A server that finds our proof wrong hangs up here.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Refusal::WrongSecret,
        _ => error.into(),
    })?;
    proof(secret, "server", &client, &server)
        .verify_slice(&theirs)
        .map_err(|_| Refusal::WrongSecret)
}

/// The accepting side.
pub(super) fn accept(stream: &TcpStream, secret: &str) -> Result<(), Refusal> {
    let mut timed = Timed::new(stream);
    if timed.read()? != MAGIC {
        return Err(Refusal::Stranger("another protocol or version".into()));
    }
    let server = nonce()?;
    timed.write(&server)?;
    let client = timed.read::<32>()?;
    let theirs = timed.read::<32>()?;
    proof(secret, "client", &client, &server)
        .verify_slice(&theirs)
        .map_err(|_| Refusal::WrongSecret)?;
    let ours = proof(secret, "server", &client, &server).finalize();
    timed.write(&ours.into_bytes())?;
    Ok(())
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl super::World {
    /// Connects to a server that errs by `noise`; whether that succeeds.
    pub(crate) fn fuzz_connect(noise: &[u8]) -> bool {
        let connect = |stream: &TcpStream| connect(stream, erring::SECRET);
        let say = |peer: &mut erring::Peer<'_>| peer.accept();
        erring::meet(connect, say, noise).is_ok_and(|outcome| outcome.is_ok())
    }
}

/// Peers that know the secret and err, so that fuzzing gets past the first proof.
#[cfg(any(test, fuzzing))]
pub(super) mod erring {
    use super::*;
    use std::net::{Shutdown, TcpListener};

    pub(in crate::world) const SECRET: &str = "words";

    /// Says what it should, each byte XORed with the next one of `noise`, and hangs up when that ends.
    #[derive(Debug)]
    pub(in crate::world) struct Peer<'a> {
        stream: &'a TcpStream,
        noise: &'a [u8],
    }

    impl Peer<'_> {
        fn say(&mut self, bytes: &[u8]) -> Option<()> {
            let (now, later) = self.noise.split_at(bytes.len().min(self.noise.len()));
            let said: Vec<u8> = bytes.iter().zip(now).map(|(b, n)| b ^ n).collect();
            self.noise = later;
            self.stream.write_all(&said).ok()?;
            (said.len() == bytes.len()).then_some(())
        }

        fn hear<const N: usize>(&mut self) -> Option<[u8; N]> {
            let mut bytes = [0; N];
            self.stream.read_exact(&mut bytes).ok()?;
            Some(bytes)
        }

        /// As the connecting side, with `hello` after the handshake.
        pub(in crate::world) fn connect(&mut self, hello: &[u8]) -> Option<()> {
            self.say(&MAGIC)?;
            let (client, server) = ([7; 32], self.hear::<32>()?);
            let ours = proof(SECRET, "client", &client, &server).finalize();
            self.say(&[&client[..], &ours.into_bytes(), hello].concat())
        }

        /// As the accepting side.
        pub(in crate::world) fn accept(&mut self) -> Option<()> {
            self.hear::<5>()?;
            let server = [7; 32];
            self.say(&server)?;
            let client = self.hear::<32>()?;
            self.hear::<32>()?;
            let ours = proof(SECRET, "server", &client, &server).finalize();
            self.say(&ours.into_bytes())
        }
    }

    /// What comes of `honest` when it meets an erring peer.
    pub(in crate::world) fn meet<T: Send>(
        honest: impl FnOnce(&TcpStream) -> T + Send,
        errs: impl FnOnce(&mut Peer<'_>) -> Option<()>,
        noise: &[u8],
    ) -> std::io::Result<T> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = &TcpStream::connect(listener.local_addr()?)?;
        let (other, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        std::thread::scope(|scope| {
            // Owns its end, which is closed as soon as it is through.
            let honest = scope.spawn(move || honest(&other));
            let mut peer = Peer { stream, noise };
            // What is left of the noise comes as it is.
            if errs(&mut peer).is_some() {
                let _ = peer.stream.write_all(peer.noise);
            }
            let _ = stream.shutdown(Shutdown::Write);
            match honest.join() {
                Ok(outcome) => Ok(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn meet(client_secret: &str, server_secret: &'static str) -> [Result<(), Refusal>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            accept(&stream, server_secret)
        });
        let stream = TcpStream::connect(address).expect("listening");
        let client = connect(&stream, client_secret);
        [client, server.join().expect("no panic")]
    }

    #[test]
    fn the_same_secret_opens_and_another_does_not() {
        assert_eq!(meet("", ""), [Ok(()), Ok(())]);
        assert_eq!(meet("words", "words"), [Ok(()), Ok(())]);
        let refused = [Err(Refusal::WrongSecret), Err(Refusal::WrongSecret)];
        assert_eq!(meet("words", "other"), refused);
        assert_eq!(meet("", "other"), refused);
    }

    #[test]
    fn a_stranger_is_told_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut stranger = TcpStream::connect(address).expect("listening");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        let (stream, _) = listener.accept().expect("a client");
        assert!(matches!(accept(&stream, ""), Err(Refusal::Stranger(_))));
        drop(stream);
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
}
