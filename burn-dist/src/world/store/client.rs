//! [`StoreClient`]: asks the store.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::protocol::{MAX_KEY, MAX_VALUE, Operation, Request, Status, read_answer};
use crate::deadline::deadline;
use crate::error::{DistError, Result};
use crate::world::handshake::{self, Refusal};

/// A connection to a [`StoreServer`](super::StoreServer).
#[derive(Debug)]
pub struct StoreClient {
    rank: usize,
    address: String,
    stream: Mutex<TcpStream>,
}

impl StoreClient {
    /// Connects to the store at `host:port`, trying again until `timeout`: rank 0 may come last.
    ///
    /// # Errors
    /// [`DistError::Rendezvous`] if nobody answers in time, or at once if the secret is wrong.
    pub fn connect(
        rank: usize,
        host: &str,
        port: u16,
        secret: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let address = format!("{host}:{port}");
        let deadline = deadline(timeout);
        let failure = |problem: String, hint: &str| DistError::Rendezvous {
            rank,
            address: address.clone(),
            problem,
            hint: hint.into(),
        };
        loop {
            let problem = match try_connect(host, port, secret, deadline) {
                Ok(stream) => {
                    return Ok(Self {
                        rank,
                        address,
                        stream: Mutex::new(stream),
                    });
                }
                Err(Refusal::WrongSecret) => {
                    return Err(failure(
                        Refusal::WrongSecret.to_string(),
                        "set BURN_DIST_SECRET to the same words on every rank",
                    ));
                }
                Err(Refusal::Stranger(problem)) => problem,
            };
            if Instant::now() >= deadline {
                return Err(failure(
                    format!("no store answered within {timeout:?}: {problem}"),
                    "check that rank 0 runs, and the address and port",
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// This side's address of the connection: the one by which this host reaches the store's.
    pub(in crate::world) fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.stream
            .lock()
            .expect("invariant: no panic under this lock")
            .local_addr()
    }

    fn ask(&self, operation: Operation, key: &str, value: &[u8]) -> Result<Option<Vec<u8>>> {
        let failure = |problem: String, hint: &str| DistError::Rendezvous {
            rank: self.rank,
            address: self.address.clone(),
            problem,
            hint: hint.into(),
        };
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return Err(failure(
                format!(
                    "a key of {} and a value of {} bytes",
                    key.len(),
                    value.len()
                ),
                "the store takes 1 KiB and 1 MiB",
            ));
        }
        let request = Request {
            operation,
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
        };
        let stream = self
            .stream
            .lock()
            .expect("invariant: no panic under this lock");
        let answer = request
            .write(&*stream)
            .and_then(|()| read_answer(&*stream))
            .map_err(|error| {
                failure(
                    format!("the store hung up: {error}"),
                    "rank 0 or the launcher ended; read its output first",
                )
            })?;
        match answer {
            (Status::Found, value) => Ok(Some(value)),
            (Status::Absent, _) => Ok(None),
            (Status::Refused, why) => Err(failure(
                format!("the store refused: {}", String::from_utf8_lossy(&why)),
                "store less, or under another key",
            )),
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`DistError::Rendezvous`], here and below, if the store is gone or refuses.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.ask(Operation::Set, key, value).map(drop)
    }

    /// Stores a value unless there is one, and returns what is stored then.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_if_absent(&self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        let stored = self.ask(Operation::SetIfAbsent, key, value)?;
        Ok(stored.unwrap_or_default())
    }

    /// The value, if there is one.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.ask(Operation::Get, key, &[])
    }

    /// The value, as soon as there is one; `None` if it does not come in time.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn wait(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.ask(Operation::Wait, key, &milliseconds.to_le_bytes())
    }

    /// Adds to a counter and returns the sum.
    ///
    /// # Errors
    /// As [`set`](Self::set); also if the key holds something else.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let sum = self.ask(Operation::Add, key, &amount.to_le_bytes())?;
        let sum = sum.unwrap_or_default();
        Ok(i64::from_le_bytes(sum.try_into().unwrap_or_default()))
    }
}

fn try_connect(
    host: &str,
    port: u16,
    secret: &str,
    deadline: Instant,
) -> std::result::Result<TcpStream, Refusal> {
    let mut last = Refusal::Stranger(format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        let rest = deadline.saturating_duration_since(Instant::now());
        let rest = rest.clamp(Duration::from_millis(10), handshake::PATIENCE);
        match TcpStream::connect_timeout(&address, rest) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                handshake::connect(&stream, secret)?;
                // The store may take its time to answer a wait.
                stream.set_read_timeout(None)?;
                return Ok(stream);
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::StoreServer;

    const SOON: Duration = Duration::from_secs(5);

    fn client(server: &StoreServer, secret: &str) -> Result<StoreClient> {
        StoreClient::connect(1, "127.0.0.1", server.address().port(), secret, SOON)
    }

    #[test]
    fn values_are_stored_waited_for_and_counted() {
        let server = StoreServer::bind("127.0.0.1", 0, "words").expect("a free port");
        let one = client(&server, "words").expect("the secret is right");
        let other = client(&server, "words").expect("the secret is right");
        assert_eq!(one.get("key").expect("alive"), None);
        let waiting = std::thread::spawn(move || other.wait("key", SOON).expect("alive"));
        one.set("key", b"value").expect("alive");
        assert_eq!(
            waiting.join().expect("no panic").as_deref(),
            Some(&b"value"[..])
        );
        assert_eq!(one.set_if_absent("key", b"new").expect("alive"), b"value");
        assert_eq!(
            one.wait("none", Duration::from_millis(20)).expect("alive"),
            None
        );
        assert_eq!(one.add("count", 2).expect("a counter"), 2);
        assert_eq!(one.add("count", -5).expect("a counter"), -3);
        assert!(
            one.add("key", 1)
                .expect_err("text")
                .to_string()
                .contains("not a counter")
        );
        assert!(one.set("big", &vec![0; MAX_VALUE + 1]).is_err());
    }

    #[test]
    fn a_wrong_secret_and_a_taken_port_are_named() {
        let server = StoreServer::bind("127.0.0.1", 0, "words").expect("a free port");
        let error = client(&server, "other")
            .expect_err("wrong secret")
            .to_string();
        assert!(
            error.contains("different secrets") && error.contains("BURN_DIST_SECRET"),
            "{error}"
        );
        let taken = StoreServer::bind("127.0.0.1", server.address().port(), "").map(drop);
        let error = taken.expect_err("taken").to_string();
        assert!(error.contains(&server.address().to_string()), "{error}");
    }

    #[test]
    fn a_silent_stranger_does_not_hold_up_others_and_the_server_ends() {
        let server = StoreServer::bind("127.0.0.1", 0, "").expect("a free port");
        let _silent = TcpStream::connect(server.address()).expect("listening");
        let client = client(&server, "").expect("others are served");
        client.set("key", b"value").expect("alive");
        let start = Instant::now();
        drop(server);
        assert!(start.elapsed() < SOON, "threads end with the server");
        assert!(client.get("key").is_err());
    }

    #[test]
    fn nobody_there_is_said_in_time() {
        let port = StoreServer::bind("127.0.0.1", 0, "")
            .expect("a free port")
            .address()
            .port();
        let error = StoreClient::connect(3, "127.0.0.1", port, "", Duration::from_millis(200));
        let error = error
            .map(drop)
            .expect_err("the server has ended")
            .to_string();
        assert!(
            error.contains("rank 3") && error.contains("no store answered"),
            "{error}"
        );
    }
}
