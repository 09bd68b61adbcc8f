//! [`StoreServer`]: serves the store.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::protocol::{Operation, Request, Status, write_answer};
use crate::deadline::deadline;
use crate::error::{DistError, Result};
use crate::world::handshake;

/// Most clients at a time.
const MAX_CLIENTS: usize = 4096;
/// Most bytes that the store holds.
const MAX_STORED: usize = 64 << 20;

/// A key-value store over TCP. Ends when it is dropped.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    secret: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    stored: usize,
    clients: HashMap<u64, TcpStream>,
    next_client: u64,
    closed: bool,
}

impl StoreServer {
    /// Listens on `host:port` and nowhere else. Port 0 takes a free one; see
    /// [`address`](Self::address). Clients prove that they know `secret`.
    ///
    /// # Errors
    /// [`DistError::AddressInUse`] for a taken port, [`DistError::Rendezvous`] for an address that
    /// is not this host's.
    pub fn bind(host: &str, port: u16, secret: &str) -> Result<Self> {
        let failure = |error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse => DistError::AddressInUse {
                rank: 0,
                address: format!("{host}:{port}"),
            },
            _ => DistError::Rendezvous {
                rank: 0,
                address: format!("{host}:{port}"),
                problem: format!("cannot listen there: {error}"),
                hint: "give an address of the host of rank 0".into(),
            },
        };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(failure)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failure)?;
        let address = listener.local_addr().map_err(failure)?;
        let shared = Arc::new(Shared {
            secret: secret.into(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let for_acceptor = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || accept_clients(&listener, &for_acceptor))
            .map_err(failure)?;
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Waits until the clients have hung up, but no longer than `longest`, and ends.
    pub fn finish(self, longest: Duration) {
        let deadline = deadline(longest);
        let mut state = self.shared.lock();
        while !state.clients.is_empty() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, rest)
                .expect("invariant: no panic under this lock")
                .0;
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            for client in state.clients.values() {
                let _ = client.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // Wakes the acceptor, which then sees that the store is closed.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_clients(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.lock().closed {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, say: others may free some.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Some(id) = shared.admit(&stream) else {
            continue;
        };
        let for_client = shared.clone();
        // A handshake that stalls holds up its own thread only.
        let spawned = std::thread::Builder::new()
            .name("store client".into())
            .spawn(move || {
                for_client.serve(&stream);
                for_client.lock().clients.remove(&id);
                for_client.changed.notify_all();
            });
        if spawned.is_err() {
            shared.lock().clients.remove(&id);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("invariant: no panic under this lock")
    }

    fn admit(&self, stream: &TcpStream) -> Option<u64> {
        let mut state = self.lock();
        if state.clients.len() >= MAX_CLIENTS {
            return None;
        }
        let id = state.next_client;
        state.next_client += 1;
        state.clients.insert(id, stream.try_clone().ok()?);
        Some(id)
    }

    /// Serves one client until it hangs up or breaks the protocol.
    fn serve(&self, stream: &TcpStream) {
        if handshake::accept(stream, &self.secret).is_err() {
            return;
        }
        let ready = stream.set_read_timeout(None).and(stream.set_nodelay(true));
        if ready.is_err() {
            return;
        }
        while let Ok(request) = Request::read(stream) {
            let (status, value) = self.answer(request);
            if write_answer(stream, status, &value).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request) -> (Status, Vec<u8>) {
        let Request {
            operation,
            key,
            value,
        } = request;
        let mut state = self.lock();
        match operation {
            Operation::Set => self.store(&mut state, key, value),
            Operation::SetIfAbsent => match state.values.get(&key) {
                Some(stored) => (Status::Found, stored.clone()),
                None => self.store(&mut state, key, value),
            },
            Operation::Get => match state.values.get(&key) {
                Some(stored) => (Status::Found, stored.clone()),
                None => (Status::Absent, Vec::new()),
            },
            Operation::Add => {
                let number = |bytes: &[u8]| bytes.try_into().map(i64::from_le_bytes);
                let stored = match state.values.get(&key) {
                    Some(stored) => number(stored),
                    None => Ok(0),
                };
                match (stored, number(&value)) {
                    (Ok(stored), Ok(added)) => {
                        let sum = stored.wrapping_add(added);
                        self.store(&mut state, key, sum.to_le_bytes().to_vec())
                    }
                    _ => (Status::Refused, b"not a counter".to_vec()),
                }
            }
            Operation::Wait => {
                let Ok(milliseconds) = value.as_slice().try_into().map(u64::from_le_bytes) else {
                    return (Status::Refused, b"no time to wait".to_vec());
                };
                // Longer than any start-up, so that the sum below cannot overflow.
                let longest = Duration::from_millis(milliseconds.min(86_400_000));
                self.wait(state, &key, deadline(longest))
            }
        }
    }

    fn store(&self, state: &mut State, key: Vec<u8>, value: Vec<u8>) -> (Status, Vec<u8>) {
        let replaced = state
            .values
            .get(&key)
            .map_or(0, |old| key.len() + old.len());
        let stored = state.stored - replaced + key.len() + value.len();
        if stored > MAX_STORED {
            return (Status::Refused, b"the store is full".to_vec());
        }
        state.stored = stored;
        state.values.insert(key, value.clone());
        self.changed.notify_all();
        (Status::Found, value)
    }

    fn wait(
        &self,
        mut state: MutexGuard<'_, State>,
        key: &[u8],
        deadline: Instant,
    ) -> (Status, Vec<u8>) {
        loop {
            if let Some(value) = state.values.get(key) {
                return (Status::Found, value.clone());
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() || state.closed {
                return (Status::Absent, Vec::new());
            }
            state = self
                .changed
                .wait_timeout(state, rest)
                .expect("invariant: no panic under this lock")
                .0;
        }
    }
}
