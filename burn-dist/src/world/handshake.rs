//! Who may connect: both sides prove that they know the shared secret, without sending it.
//!
//! ```text
//! client -> server   magic, version, 32 random bytes
//! server -> client   32 random bytes, HMAC(secret, "server", both)
//! client -> server   HMAC(secret, "client", both)
//! server -> client   1
//! ```
//!
//! All sizes are fixed: nothing is allocated for a stranger.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;

const MAGIC: [u8; 5] = *b"BURN\x01";

/// Longest silence of a peer during the handshake.
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

/// The connecting side.
pub(super) fn connect(mut stream: &TcpStream, secret: &str) -> Result<(), Refusal> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let client = nonce()?;
    stream.write_all(&[&MAGIC[..], &client].concat())?;
    let (mut server, mut theirs) = ([0; 32], [0; 32]);
    stream.read_exact(&mut server)?;
    stream.read_exact(&mut theirs)?;
    proof(secret, "server", &client, &server)
        .verify_slice(&theirs)
        .map_err(|_| Refusal::WrongSecret)?;
    let ours = proof(secret, "client", &client, &server).finalize();
    stream.write_all(&ours.into_bytes())?;
    let mut welcome = [0];
    stream.read_exact(&mut welcome)?;
    Ok(())
}

/// The accepting side.
pub(super) fn accept(mut stream: &TcpStream, secret: &str) -> Result<(), Refusal> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(Refusal::Stranger("another protocol or version".into()));
    }
    let mut client = [0; 32];
    stream.read_exact(&mut client)?;
    let server = nonce()?;
    let ours = proof(secret, "server", &client, &server).finalize();
    stream.write_all(&[&server[..], &ours.into_bytes()].concat())?;
    let mut theirs = [0; 32];
    // A client that finds our proof wrong has another secret, and hangs up here.
    stream
        .read_exact(&mut theirs)
        .map_err(|_| Refusal::WrongSecret)?;
    proof(secret, "client", &client, &server)
        .verify_slice(&theirs)
        .map_err(|_| Refusal::WrongSecret)?;
    stream.write_all(&[1])?;
    Ok(())
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
        drop(stream);
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
