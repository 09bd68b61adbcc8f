//! Requests and answers of the store, of bounded size.
//!
//! Request: operation (1 byte), key length (2), value length (4), key, value.
//! Answer: status (1), value length (4), value. Numbers are little-endian.

use std::io::{Error, ErrorKind, Read, Result, Write};

#[cfg(any(test, fuzzing))]
use super::{StoreClient, StoreServer};

/// Longest key.
pub(super) const MAX_KEY: usize = 1024;
/// Longest value.
pub(super) const MAX_VALUE: usize = 1 << 20;

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// Stores the value.
    Set = 1,
    /// Stores the value unless there is one; answers with what is stored.
    SetIfAbsent = 2,
    /// The value, or nothing.
    Get = 3,
    /// The value, as soon as there is one; the request's value is the longest wait in
    /// milliseconds, 8 bytes.
    Wait = 4,
    /// Adds the request's value, 8 bytes signed, to a counter; answers with the sum.
    Add = 5,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The value follows.
    Found = 1,
    /// There is no value, or it did not come in time.
    Absent = 2,
    /// The request was refused; the value says why.
    Refused = 3,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

impl Request {
    pub(super) fn write(&self, mut to: impl Write) -> Result<()> {
        let mut bytes = vec![self.operation as u8];
        bytes.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.value);
        to.write_all(&bytes)
    }

    /// Lengths are checked before memory is taken.
    pub(super) fn read(mut from: impl Read) -> Result<Self> {
        let mut head = [0; 7];
        from.read_exact(&mut head)?;
        let operation = match head[0] {
            1 => Operation::Set,
            2 => Operation::SetIfAbsent,
            3 => Operation::Get,
            4 => Operation::Wait,
            5 => Operation::Add,
            _ => return Err(invalid("unknown operation")),
        };
        let key = usize::from(u16::from_le_bytes([head[1], head[2]]));
        let value = u32::from_le_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if key > MAX_KEY || value > MAX_VALUE {
            return Err(invalid("key or value too long"));
        }
        let mut request = Self {
            operation,
            key: vec![0; key],
            value: vec![0; value],
        };
        from.read_exact(&mut request.key)?;
        from.read_exact(&mut request.value)?;
        Ok(request)
    }
}

pub(super) fn write_answer(mut to: impl Write, status: Status, value: &[u8]) -> Result<()> {
    let mut bytes = vec![status as u8];
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(value);
    to.write_all(&bytes)
}

pub(super) fn read_answer(mut from: impl Read) -> Result<(Status, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let status = match head[0] {
        1 => Status::Found,
        2 => Status::Absent,
        3 => Status::Refused,
        _ => return Err(invalid("unknown status")),
    };
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_VALUE {
        return Err(invalid("answer too long"));
    }
    let mut value = vec![0; length];
    from.read_exact(&mut value)?;
    Ok((status, value))
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl StoreServer {
    /// The key and the value of a request.
    pub(crate) fn fuzz_request(from: impl Read) -> Result<[Vec<u8>; 2]> {
        let Request { key, value, .. } = Request::read(from)?;
        Ok([key, value])
    }

    /// What the server answers.
    #[cfg(test)]
    pub(crate) fn fuzz_answer(value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_answer(&mut bytes, Status::Found, value).expect("invariant: memory takes all");
        bytes
    }
}

/// As above.
#[cfg(any(test, fuzzing))]
impl StoreClient {
    /// The value of an answer.
    pub(crate) fn fuzz_answer(from: impl Read) -> Result<Vec<u8>> {
        Ok(read_answer(from)?.1)
    }

    /// What a client asks.
    #[cfg(test)]
    pub(crate) fn fuzz_request(key: &[u8], value: &[u8]) -> Vec<u8> {
        let request = Request {
            operation: Operation::SetIfAbsent,
            key: key.into(),
            value: value.into(),
        };
        let mut bytes = Vec::new();
        request
            .write(&mut bytes)
            .expect("invariant: memory takes all");
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_round_trip() {
        let request = Request {
            operation: Operation::SetIfAbsent,
            key: b"address/3".to_vec(),
            value: vec![1, 2, 3],
        };
        let mut bytes = Vec::new();
        request.write(&mut bytes).expect("memory");
        assert_eq!(Request::read(&bytes[..]).expect("whole"), request);
        assert!(Request::read(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn long_values_are_refused_before_memory_is_taken() {
        let bytes = [1, 1, 0, 0xff, 0xff, 0xff, 0xff, b'k'];
        let error = Request::read(&bytes[..]).expect_err("4 GiB");
        assert!(error.to_string().contains("too long"));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Request::read(&bytes[..]);
            let _ = read_answer(&bytes[..]);
        }
    }
}
