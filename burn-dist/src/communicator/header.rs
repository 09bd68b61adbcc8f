//! The header of a call: what members compare before data moves.

use std::io::Write;

use burn::tensor::DType;

use super::Operation;

/// What one member says about its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    /// Operation with its parameters, as `all_reduce(sum)` or `broadcast(root 1)`.
    pub(super) operation: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    /// all_to_all: rows to each member; send_recv: the shape to receive.
    pub(super) send: Vec<u64>,
    /// all_to_all: rows from each member.
    pub(super) receive: Vec<u64>,
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
    bytes: &mut Vec<u8>,
) {
    let name = match operation {
        // Partners compare under one name, of which each side is one half.
        Operation::SendRecv { .. } => "send_recv",
        other => other.name(),
    };
    bytes.clear();
    bytes.extend_from_slice(&sequence.to_le_bytes());
    text(bytes, |bytes| match operation {
        Operation::AllReduce(op) | Operation::ReduceScatter(op) => {
            write!(bytes, "{name}({})", op.name())
        }
        Operation::Broadcast { root }
        | Operation::Gather { root }
        | Operation::Scatter { root } => write!(bytes, "{name}(root {root})"),
        _ => write!(bytes, "{name}"),
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
    let partners = match operation {
        Operation::SendRecv { to, from, .. } => [*to, *from],
        _ => [None, None],
    };
    for index in partners {
        let index = index.map_or(u64::MAX, |index| index as u64);
        bytes.extend_from_slice(&index.to_le_bytes());
    }
}

/// A text of at most 255 bytes, its length before it.
fn text(bytes: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
    let start = bytes.len();
    bytes.push(0);
    put(bytes).expect("invariant: memory takes what is written");
    bytes[start] = (bytes.len() - start - 1) as u8;
}

impl Header {
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
        match operation.as_str() {
            "barrier" => format!("call {sequence}: barrier"),
            "all_to_all" => format!(
                "call {sequence}: all_to_all {dtype} {shape:?} sending {send:?} and receiving {receive:?} rows"
            ),
            "send_recv" => {
                let side = |name: &str, index: Option<u64>, shape: &[u64]| match index {
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
    pub(super) fn agrees(&self, own: usize, theirs: &Header, other: usize) -> bool {
        if self.operation != theirs.operation || self.sequence != theirs.sequence {
            return false;
        }
        let operation = self.operation.as_str();
        if operation == "barrier" {
            return true;
        }
        if self.dtype != theirs.dtype {
            return false;
        }
        if operation == "all_to_all" {
            return self.shape.get(1..) == theirs.shape.get(1..)
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

    /// `None` if the bytes are not a header: never allocates more than they hold.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let sequence = reader.u64()?;
        let operation = reader.text()?;
        let dtype = reader.text()?;
        let shape = reader.list()?;
        let send = reader.list()?;
        let receive = reader.list()?;
        let index = |value: u64| (value != u64::MAX).then_some(value);
        let to = index(reader.u64()?);
        let from = index(reader.u64()?);
        reader.0.is_empty().then_some(Self {
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

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.take(1)?[0];
        String::from_utf8(self.take(length.into())?.to_vec()).ok()
    }

    fn list(&mut self) -> Option<Vec<u64>> {
        let count = u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize;
        let bytes = self.take(count.checked_mul(8)?)?;
        Some(
            bytes
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes(b.try_into().expect("invariant: eight bytes")))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::ReduceOp;
    use proptest::prelude::*;

    impl Header {
        fn new(sequence: u64, operation: &Operation, dtype: DType, shape: &[usize]) -> Self {
            let mut bytes = Vec::new();
            encode(sequence, operation, dtype, shape, &mut bytes);
            Self::decode(&bytes).expect("invariant: what was encoded can be read")
        }
    }

    fn all_to_all() -> Header {
        let operation = Operation::AllToAll {
            send_counts: vec![1, 2],
            recv_counts: vec![1, 0],
        };
        Header::new(7, &operation, DType::F32, &[3, 4])
    }

    #[test]
    fn headers_say_what_they_are() {
        let header = Header::new(0, &Operation::AllReduce(ReduceOp::Sum), DType::F32, &[4]);
        assert_eq!(header.describe(), "call 0: all_reduce(sum) f32 [4]");
        let header = Header::new(2, &Operation::Broadcast { root: 1 }, DType::BF16, &[2, 3]);
        assert_eq!(header.describe(), "call 2: broadcast(root 1) bf16 [2, 3]");
    }

    #[test]
    fn all_to_all_counts_must_mirror() {
        let mine = all_to_all();
        let mut theirs = mine.clone();
        (theirs.send, theirs.receive) = (vec![0, 3], vec![2, 3]);
        theirs.shape = vec![3, 4];
        assert!(mine.agrees(0, &theirs, 1));
        theirs.send[0] = 1;
        assert!(!mine.agrees(0, &theirs, 1));
    }

    #[test]
    fn headers_round_trip_and_cut_ones_are_refused() {
        let header = all_to_all();
        let operation = Operation::AllToAll {
            send_counts: vec![1, 2],
            recv_counts: vec![1, 0],
        };
        let mut bytes = vec![9; 300];
        encode(7, &operation, DType::F32, &[3, 4], &mut bytes);
        assert_eq!(Header::decode(&bytes).as_ref(), Some(&header));
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
