//! Connections between ranks: one listener per rank, two connections per pair and group.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::StoreClient;
#[cfg(any(test, fuzzing))]
use super::World;
#[cfg(any(test, fuzzing))]
use super::handshake::erring;
use super::handshake::{self, Refusal};
use crate::communicator::{Members, PeerConnection};
use crate::deadline::deadline;
use crate::error::{DistError, Result};

/// Longest name of a group on the wire.
const MAX_GROUP_KEY: usize = 60_000;

/// Most connections that are in the middle of a handshake.
const MAX_STRANGERS: usize = 256;

/// This rank's listener and the connections that came for groups it has yet to make.
#[derive(Debug)]
pub(super) struct Peers {
    rank: usize,
    address: SocketAddr,
    /// Where every rank listens.
    addresses: Vec<String>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    secret: String,
    /// By group key and the peer's index in it.
    arrived: Mutex<HashMap<(String, usize), TcpStream>>,
    changed: Condvar,
    strangers: AtomicUsize,
    closed: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, usize), TcpStream>> {
        self.arrived
            .lock()
            .expect("invariant: no panic under this lock")
    }
}

fn address_key(rank: usize) -> String {
    format!("address/{rank}")
}

impl Peers {
    /// Listens on `local`, a free port, says so in the store, and waits until every rank has done so:
    /// from then on the store is not needed.
    pub(super) fn meet(
        rank: usize,
        world_size: usize,
        local: IpAddr,
        secret: &str,
        store: &StoreClient,
        timeout: Duration,
    ) -> Result<Self> {
        let failure = |error: std::io::Error| DistError::Rendezvous {
            rank,
            address: local.to_string(),
            problem: format!("cannot listen there: {error}"),
            hint: "look at the limits of open files and threads".into(),
        };
        let listener = TcpListener::bind((local, 0)).map_err(failure)?;
        let address = listener.local_addr().map_err(failure)?;
        let shared = Arc::new(Shared {
            secret: secret.into(),
            arrived: Mutex::default(),
            changed: Condvar::new(),
            strangers: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let for_acceptor = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("peers".into())
            .spawn(move || accept_peers(&listener, &for_acceptor))
            .map_err(failure)?;
        let mut this = Self {
            rank,
            address,
            addresses: Vec::with_capacity(world_size),
            shared,
            acceptor: Some(acceptor),
        };
        store.set(&address_key(rank), address.to_string().as_bytes())?;
        this.collect(world_size, store, timeout)?;
        Ok(this)
    }

    fn collect(&mut self, world_size: usize, store: &StoreClient, timeout: Duration) -> Result<()> {
        let deadline = deadline(timeout);
        let mut missing = Vec::new();
        for peer in 0..world_size {
            let rest = deadline.saturating_duration_since(Instant::now());
            match store.wait(&address_key(peer), rest)? {
                Some(address) => {
                    let address = String::from_utf8_lossy(&address).into_owned();
                    self.addresses.push(address);
                }
                None => missing.push(peer),
            }
        }
        if !missing.is_empty() {
            return Err(self.absent(&missing, "the world", timeout));
        }
        // The rank that serves the store may be the first to end: it waits until all have read.
        if store.add("met", 1)? == world_size as i64 {
            store.set("all have met", b"yes")?;
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        match store.wait("all have met", rest)? {
            Some(_) => Ok(()),
            None => Err(self.absent(&[], "the world", timeout)),
        }
    }

    fn absent(&self, missing: &[usize], to: &str, timeout: Duration) -> DistError {
        let who = match missing {
            [] => "some ranks".to_string(),
            ranks => format!("rank(s) {ranks:?}"),
        };
        DistError::Rendezvous {
            rank: self.rank,
            address: self.address.to_string(),
            problem: format!("{who} did not come to {to} within {timeout:?}"),
            hint: "read the output of these ranks; every member makes the same groups in the same order"
                .into(),
        }
    }

    /// Connections to every other member of a group; `key` is the same on all members and new.
    ///
    /// Members connect to those before them and wait for those behind them.
    pub(super) fn connect_group(
        &self,
        members: &Members,
        key: &str,
        timeout: Duration,
    ) -> Result<Vec<Option<PeerConnection>>> {
        let deadline = deadline(timeout);
        let mut connections = Vec::with_capacity(members.size());
        let data_key = format!("{key} data");
        for &peer in &members.ranks()[..members.index()] {
            let control = self.call(peer, members.index(), key, deadline)?;
            let data = self.call(peer, members.index(), &data_key, deadline)?;
            connections.push(Some(PeerConnection { control, data }));
        }
        connections.push(None);
        let mut missing = Vec::new();
        for index in members.index() + 1..members.size() {
            let control = self.await_arrival(key, index, deadline);
            let data = self.await_arrival(&data_key, index, deadline);
            let both = control.zip(data);
            if both.is_none() {
                missing.push(members.ranks()[index]);
            }
            connections.push(both.map(|(control, data)| PeerConnection { control, data }));
        }
        match missing.is_empty() {
            true => Ok(connections),
            false => {
                let group = format!("group {}", members.name());
                Err(self.absent(&missing, &group, timeout))
            }
        }
    }

    /// Connects to a rank, trying again until the deadline: it may be busy with other connections.
    fn call(&self, peer: usize, index: usize, key: &str, deadline: Instant) -> Result<TcpStream> {
        loop {
            let refusal = match self.try_call(peer, index, key, deadline) {
                Ok(stream) => return Ok(stream),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::WrongSecret || Instant::now() >= deadline {
                return Err(DistError::Rendezvous {
                    rank: self.rank,
                    address: self.addresses[peer].clone(),
                    problem: format!("rank {peer}: {refusal}"),
                    hint: "read the output of that rank; a firewall may also be in the way".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn try_call(
        &self,
        peer: usize,
        index: usize,
        key: &str,
        deadline: Instant,
    ) -> std::result::Result<TcpStream, Refusal> {
        let address: SocketAddr = self.addresses[peer]
            .parse()
            .map_err(|_| Refusal::Stranger("its address in the store cannot be read".into()))?;
        let rest = deadline.saturating_duration_since(Instant::now());
        let rest = rest.clamp(Duration::from_millis(10), Duration::from_secs(30));
        let stream = TcpStream::connect_timeout(&address, rest)?;
        handshake::connect(&stream, &self.shared.secret)?;
        (&stream).write_all(&hello(index, key))?;
        Ok(stream)
    }

    fn await_arrival(&self, key: &str, index: usize, deadline: Instant) -> Option<TcpStream> {
        let wanted = (key.to_string(), index);
        let mut arrived = self.shared.lock();
        loop {
            if let Some(stream) = arrived.remove(&wanted) {
                return Some(stream);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return None;
            }
            arrived = self
                .shared
                .changed
                .wait_timeout(arrived, rest)
                .expect("invariant: no panic under this lock")
                .0;
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // Wakes the acceptor, which then sees that it is to end.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_peers(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, say: others may free some.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if shared.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let for_peer = shared.clone();
        let spawned = std::thread::Builder::new()
            .name("peer".into())
            .spawn(move || {
                if let Some((key, index)) = greet(&stream, &for_peer.secret) {
                    for_peer.lock().insert((key, index), stream);
                    for_peer.changed.notify_all();
                }
                for_peer.strangers.fetch_sub(1, Ordering::AcqRel);
            });
        if spawned.is_err() {
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Who it is and for which group; `None` for a stranger.
fn greet(stream: &TcpStream, secret: &str) -> Option<(String, usize)> {
    handshake::accept(stream, secret).ok()?;
    read_hello(stream)
}

/// What a peer says after the handshake: its index in the group, and the key of the group.
fn hello(index: usize, key: &str) -> Vec<u8> {
    let mut hello = (index as u64).to_le_bytes().to_vec();
    hello.extend_from_slice(&(key.len() as u32).to_le_bytes());
    hello.extend_from_slice(key.as_bytes());
    hello
}

fn read_hello(mut from: impl Read) -> Option<(String, usize)> {
    let mut head = [0; 12];
    from.read_exact(&mut head).ok()?;
    let index = u64::from_le_bytes(head[..8].try_into().ok()?);
    let length = u32::from_le_bytes(head[8..].try_into().ok()?) as usize;
    if length > MAX_GROUP_KEY {
        return None;
    }
    let mut key = vec![0; length];
    from.read_exact(&mut key).ok()?;
    Some((String::from_utf8(key).ok()?, usize::try_from(index).ok()?))
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl World {
    /// Greets a peer that errs by `noise`; see [`erring`].
    pub(crate) fn fuzz_greet(noise: &[u8]) -> Option<(String, usize)> {
        let greet = |stream: &TcpStream| greet(stream, erring::SECRET);
        let say = |peer: &mut erring::Peer<'_>| peer.connect(&hello(3, "group"));
        erring::meet(greet, say, noise).ok()?
    }

    /// What a peer says after the handshake.
    pub(crate) fn fuzz_hello(from: impl Read) -> Option<(String, usize)> {
        read_hello(from)
    }

    /// Who says `key` after the handshake.
    #[cfg(test)]
    pub(crate) fn fuzz_hello_of(index: usize, key: &str) -> Vec<u8> {
        hello(index, key)
    }
}
