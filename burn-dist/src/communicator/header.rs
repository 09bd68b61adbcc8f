//! The header of a call: what members compare before data moves.

use std::fmt;
use std::io::Write;

use burn::tensor::DType;

use super::Operation;

/// Bytes that may follow a header: where an array lies.
const ADDRESS: usize = 8;

/// Numbers as they stand in a header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().expect("invariant: eight bytes")))
    }

    fn get(&self, index: usize) -> Option<u64> {
        self.iter().nth(index)
    }
}

impl fmt::Debug for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What one member says about its call. Reading it allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header<'a> {
    pub(super) sequence: u64,
    /// Operation with its parameters, as `all_reduce(sum)` or `broadcast(root 1)`.
    pub(super) operation: &'a str,
    pub(super) dtype: &'a str,
    pub(super) shape: Numbers<'a>,
    /// all_to_all: rows to each member; send_recv: the shape to receive.
    pub(super) send: Numbers<'a>,
    /// all_to_all: rows from each member.
    pub(super) receive: Numbers<'a>,
    /// send_recv: partners, by index.
    pub(super) to: Option<u64>,
    pub(super) from: Option<u64>,
}

/// Writes the header of a call to `bytes`, without allocating once they are long enough.
pub(super) fn encode(
    sequence: u64,
    operation: &Operation,
    dtype: DType,
    shape: &[usize],
    label: Option<&str>,
    bytes: &mut Vec<u8>,
) {
    let name = match operation {
        // Partners compare under one name, of which each side is one half.
        Operation::SendRecv { .. } => "send_recv",
        other => other.name(),
    };
    bytes.clear();
    bytes.extend_from_slice(&sequence.to_le_bytes());
    text(bytes, |bytes| {
        match operation {
            Operation::AllReduce(op) | Operation::ReduceScatter(op) => {
                write!(bytes, "{name}({})", op.name())
            }
            Operation::Broadcast { root }
            | Operation::Gather { root }
            | Operation::Scatter { root } => write!(bytes, "{name}(root {root})"),
            _ => write!(bytes, "{name}"),
        }?;
        match label {
            Some(label) if operation.takes_label() => write!(bytes, " of {}", cut(label)),
            _ => Ok(()),
        }
    });
    text(bytes, |bytes| write!(bytes, "{}", dtype.name()));
    let none: &[usize] = &[];
    let (send, receive) = match operation {
        Operation::AllToAll {
            send_counts,
            recv_counts,
        } => (send_counts.as_slice(), recv_counts.as_slice()),
        Operation::SendRecv { receive, .. } => (receive.as_slice(), none),
        _ => (none, none),
    };
    for list in [shape, send, receive] {
        bytes.extend_from_slice(&(list.len() as u32).to_le_bytes());
        for &value in list {
            bytes.extend_from_slice(&(value as u64).to_le_bytes());
        }
    }
    // Short headers take one line of the cache.
    let partners = match operation {
        Operation::SendRecv { to, from, .. } => &[*to, *from][..],
        _ => &[],
    };
    bytes.push(partners.len() as u8);
    for index in partners {
        let index = index.map_or(u64::MAX, |index| index as u64);
        bytes.extend_from_slice(&index.to_le_bytes());
    }
}

/// As much of a label as a header takes.
fn cut(label: &str) -> &str {
    const LONGEST: usize = 160;
    &label[..label.floor_char_boundary(LONGEST)]
}

/// A text of at most 255 bytes, its length before it.
fn text(bytes: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
    let start = bytes.len();
    bytes.push(0);
    put(bytes).expect("invariant: memory takes what is written");
    bytes[start] = (bytes.len() - start - 1) as u8;
}

impl<'a> Header<'a> {
    /// As it stands in errors: `all_reduce(sum) f32 [4]`.
    pub(super) fn describe(&self) -> String {
        let Self {
            sequence,
            operation,
            dtype,
            shape,
            send,
            receive,
            ..
        } = self;
        match *operation {
            "barrier" => format!("call {sequence}: barrier"),
            "all_to_all" => format!(
                "call {sequence}: all_to_all {dtype} {shape:?} sending {send:?} and receiving {receive:?} rows"
            ),
            "send_recv" => {
                let side = |name: &str, index: Option<u64>, shape: &Numbers<'_>| match index {
                    Some(index) => format!(" {name} index {index}: {shape:?}"),
                    None => String::new(),
                };
                format!(
                    "call {sequence}: point to point {dtype}{}{}",
                    side("to", self.to, shape),
                    side("from", self.from, send)
                )
            }
            _ => format!("call {sequence}: {operation} {dtype} {shape:?}"),
        }
    }

    /// Whether the header of member `other` fits this one of member `own`.
    pub(super) fn agrees(&self, own: usize, theirs: &Header<'_>, other: usize) -> bool {
        if self.operation != theirs.operation || self.sequence != theirs.sequence {
            return false;
        }
        let operation = self.operation;
        if operation == "barrier" {
            return true;
        }
        if self.dtype != theirs.dtype {
            return false;
        }
        if operation == "all_to_all" {
            // Rows may differ in number, not in length.
            return self.shape.0.get(8..) == theirs.shape.0.get(8..)
                && self.receive.get(other) == theirs.send.get(own)
                && self.send.get(other) == theirs.receive.get(own);
        }
        if operation == "send_recv" {
            let is = |index: Option<u64>, wanted: usize| index == Some(wanted as u64);
            let there = is(self.to, other) == is(theirs.from, own)
                && (!is(self.to, other) || self.shape == theirs.send);
            let back = is(self.from, other) == is(theirs.to, own)
                && (!is(self.from, other) || self.send == theirs.shape);
            return there && back;
        }
        // Only the root of a scatter knows the shape.
        operation.starts_with("scatter") || self.shape == theirs.shape
    }

    /// `None` if the bytes are not a header. An address may follow it.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let sequence = reader.u64()?;
        let operation = reader.text()?;
        let dtype = reader.text()?;
        let shape = reader.list()?;
        let send = reader.list()?;
        let receive = reader.list()?;
        let index = |value: u64| (value != u64::MAX).then_some(value);
        let (to, from) = match reader.take(1)?[0] {
            0 => (None, None),
            2 => (index(reader.u64()?), index(reader.u64()?)),
            _ => return None,
        };
        matches!(reader.0.len(), 0 | ADDRESS).then_some(Self {
            sequence,
            operation,
            dtype,
            shape,
            send,
            receive,
            to,
            from,
        })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.take(1)?[0];
        std::str::from_utf8(self.take(length.into())?).ok()
    }

    fn list(&mut self) -> Option<Numbers<'a>> {
        let count = u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize;
        self.take(count.checked_mul(8)?).map(Numbers)
    }
}

/// For `fuzzing.rs`, which cannot name this module.
#[cfg(any(test, fuzzing))]
impl Operation {
    /// Decodes the header of another member and uses it: the bytes that it holds, and how it is
    /// described. `None` if it is refused.
    pub(crate) fn fuzz_header(bytes: &[u8]) -> Option<(usize, String)> {
        let header = Header::decode(bytes)?;
        // Compared with itself it gets past the names, to the lists.
        let _ = header.agrees(0, &header, 1);
        let lists = [&header.shape, &header.send, &header.receive];
        let values: usize = lists.iter().map(|list| list.0.len()).sum();
        let held = header.operation.len() + header.dtype.len() + values;
        Some((held, header.describe()))
    }

    /// What a member sends before this call.
    #[cfg(test)]
    pub(crate) fn fuzz_encode(&self, sequence: u64, dtype: DType, shape: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(sequence, self, dtype, shape, None, &mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::ReduceOp;
    use proptest::prelude::*;

    fn encoded(sequence: u64, operation: &Operation, dtype: DType, shape: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(sequence, operation, dtype, shape, None, &mut bytes);
        bytes
    }

    fn all_to_all(send: [usize; 2], receive: [usize; 2]) -> Vec<u8> {
        let operation = Operation::AllToAll {
            send_counts: send.to_vec(),
            recv_counts: receive.to_vec(),
        };
        encoded(7, &operation, DType::F32, &[3, 4])
    }

    fn described(bytes: &[u8]) -> String {
        Header::decode(bytes).expect("a header").describe()
    }

    #[test]
    fn headers_say_what_they_are() {
        let header = encoded(0, &Operation::AllReduce(ReduceOp::Sum), DType::F32, &[4]);
        assert_eq!(described(&header), "call 0: all_reduce(sum) f32 [4]");
        let header = encoded(2, &Operation::Broadcast { root: 1 }, DType::BF16, &[2, 3]);
        assert_eq!(described(&header), "call 2: broadcast(root 1) bf16 [2, 3]");
    }

    #[test]
    fn all_to_all_counts_must_mirror() {
        let agree = |mine: &[u8], theirs: &[u8]| {
            let theirs = Header::decode(theirs).expect("a header");
            Header::decode(mine)
                .expect("a header")
                .agrees(0, &theirs, 1)
        };
        let mine = all_to_all([1, 2], [1, 0]);
        assert!(agree(&mine, &all_to_all([0, 3], [2, 3])));
        assert!(!agree(&mine, &all_to_all([1, 3], [2, 3])));
    }

    #[test]
    fn labels_are_compared_where_calls_have_them() {
        let encoded = |operation: Operation, label: Option<&str>| {
            let mut bytes = Vec::new();
            encode(7, &operation, DType::F32, &[3], label, &mut bytes);
            bytes
        };
        let long = "é".repeat(300);
        let gather = |label| encoded(Operation::AllGather, label);
        let agree = |a: &[u8], b: &[u8]| {
            let (a, b) = (Header::decode(a).unwrap(), Header::decode(b).unwrap());
            a.agrees(0, &b, 1)
        };
        assert!(agree(&gather(Some("blocks.0")), &gather(Some("blocks.0"))));
        assert!(!agree(&gather(Some("blocks.0")), &gather(Some("blocks.1"))));
        assert!(!agree(&gather(None), &gather(Some("blocks.1"))));
        assert!(agree(&gather(Some(&long)), &gather(Some(&long))));
        let described = gather(Some("blocks.0"));
        let described = Header::decode(&described).unwrap().describe();
        assert_eq!(described, "call 7: all_gather of blocks.0 f32 [3]");
        assert!(encoded(Operation::Barrier, Some("x")) == encoded(Operation::Barrier, None));
    }

    #[test]
    fn headers_round_trip_and_cut_ones_are_refused() {
        let header = all_to_all([1, 2], [1, 0]);
        let operation = Operation::AllToAll {
            send_counts: vec![1, 2],
            recv_counts: vec![1, 0],
        };
        let mut bytes = vec![9; 300];
        encode(7, &operation, DType::F32, &[3, 4], None, &mut bytes);
        assert_eq!(bytes, header);
        assert!(Header::decode(&bytes).is_some());
        for cut in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..cut]), None);
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Header::decode(&bytes);
        }
    }
}
