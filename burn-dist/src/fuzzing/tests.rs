//! A million inputs for every decoder: one half at random, the other of valid ones with errors.

use burn::tensor::DType;

use super::*;
use crate::communicator::ReduceOp;

const INPUTS: usize = 1_000_000;

/// Inputs that open a socket.
const MEETINGS: usize = 600;

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Bytes of all values, or of small ones, which lengths and kinds often are.
    fn fill(&mut self, bytes: &mut Vec<u8>) {
        let mask = [0xff, 0xff, 7, 1][self.below(4)];
        for _ in 0..self.below(10) {
            let word = self.next().to_le_bytes();
            bytes.extend(word.map(|byte| byte & mask));
        }
        bytes.truncate(bytes.len().saturating_sub(self.below(8)));
    }

    /// Flips, sets, cuts or repeats.
    fn err(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.below(bytes.len());
        match self.below(5) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.next() as u8,
            2 => bytes[at] = [0, 0xff][self.below(2)],
            3 => bytes.truncate(at),
            _ => {
                let end = at + self.below(bytes.len() - at).min(16);
                let repeated = bytes[at..end].to_vec();
                bytes.splice(at..at, repeated);
            }
        }
    }
}

/// Throws inputs at a decoder and returns how many it took.
fn throw(count: usize, valid: &[Vec<u8>], mut decode: impl FnMut(&[u8]) -> Option<usize>) -> usize {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut input, mut taken) = (Vec::new(), 0);
    for number in 0..count {
        input.clear();
        if number % 2 == 0 {
            random.fill(&mut input);
        } else {
            input.extend_from_slice(&valid[random.below(valid.len())]);
            for _ in 0..1 + random.below(3) {
                random.err(&mut input);
            }
        }
        taken += usize::from(decode(&input).is_some());
    }
    taken
}

/// Valid inputs are taken and hold what is expected; of a million others some are taken, so that the
/// inside of the decoder is reached, and many refused.
fn bombard(valid: &[(Vec<u8>, usize)], decode: impl Fn(&[u8]) -> Option<usize>) {
    for (bytes, held) in valid {
        assert_eq!(decode(bytes), Some(*held), "{bytes:?}");
    }
    let valid: Vec<Vec<u8>> = valid.iter().map(|(bytes, _)| bytes.clone()).collect();
    let taken = throw(INPUTS, &valid, decode);
    let refused = INPUTS - taken;
    println!("{taken} taken, {refused} refused");
    assert!(taken > INPUTS / 100 && refused > INPUTS / 100, "{taken}");
}

/// What a header is in bytes, beside its texts and the numbers of its lists.
const HEADER: usize = 8 + 2 + 3 * 4 + 1;

#[test]
fn headers() {
    let all_to_all = Operation::AllToAll {
        send_counts: vec![1, 2],
        recv_counts: vec![3, 0],
    };
    let partners = Operation::SendRecv {
        to: Some(1),
        from: None,
        receive: vec![2, 2],
    };
    let reduce = Operation::AllReduce(ReduceOp::Sum);
    let root = Operation::Scatter { root: 1 };
    let calls: [(&Operation, &[usize]); 5] = [
        (&reduce, &[4, 8, 2]),
        (&all_to_all, &[3, 4]),
        (&partners, &[5]),
        (&root, &[usize::MAX, 0]),
        (&Operation::Barrier, &[]),
    ];
    let valid = calls.map(|(operation, shape)| {
        let bytes = operation.fuzz_encode(7, DType::BF16, shape);
        let partners = if matches!(operation, Operation::SendRecv { .. }) {
            16
        } else {
            0
        };
        let held = bytes.len() - HEADER - partners;
        (bytes, held)
    });
    bombard(&valid, header);
}

#[test]
fn control_words() {
    let long = "reason ".repeat(700);
    let (held, farewell) = PeerConnection::fuzz_control(&PeerConnection::fuzz_abort(&long)[..]);
    assert_eq!(farewell.as_deref(), Some(&long[..4096]));
    assert!(held <= 2 * CONTROL);
    // An abort that announces more than a reason may have, and brings it.
    let flood = [&[3, 0, 0, 1, 0][..], &vec![b'a'; 1 << 16]].concat();
    assert_eq!(control(&flood), None);
    let words = [
        (PeerConnection::fuzz_abort("out of memory"), "out of memory"),
        (PeerConnection::fuzz_abort(""), ""),
        (PeerConnection::fuzz_leave(), "left"),
    ];
    let valid = words.map(|(bytes, said)| {
        let (held, farewell) = PeerConnection::fuzz_control(Wire::new(&bytes));
        assert_eq!(farewell.as_deref(), Some(said));
        (bytes, held + said.len())
    });
    bombard(&valid, control);
}

#[test]
fn messages() {
    let valid = [0, 1, 8, 40, 300].map(|length| {
        let mut bytes = (length as u32).to_le_bytes().to_vec();
        bytes.extend((0..length).map(|i| i as u8));
        let held = if length == 0 { 0 } else { length.max(SMALLEST) };
        (bytes, held)
    });
    bombard(&valid, message);
    let longest = [&(MESSAGE as u32).to_le_bytes()[..], &vec![1; MESSAGE]].concat();
    assert_eq!(message(&longest), Some(MESSAGE));
    let longer = [
        &(MESSAGE as u32 + 1).to_le_bytes()[..],
        &vec![1; MESSAGE + 1],
    ]
    .concat();
    assert_eq!(message(&longer), None);
}

#[test]
fn store_requests() {
    let pairs: [(&[u8], &[u8]); 3] = [(b"address/3", b"10.0.0.1:80"), (b"", b""), (b"k", &[9; 70])];
    let valid = pairs.map(|(key, value)| {
        let bytes = StoreClient::fuzz_request(key, value);
        (bytes, key.len() + value.len())
    });
    bombard(&valid, store_request);
}

#[test]
fn store_answers() {
    let values: [&[u8]; 3] = [b"10.0.0.1:80", b"", &[9; 70]];
    let valid = values.map(|value| (StoreServer::fuzz_answer(value), value.len()));
    bombard(&valid, store_answer);
}

#[test]
fn hellos() {
    let keys = ["world 0,1,2 #0", "", "schlüssel data"];
    let valid = keys.map(|key| (World::fuzz_hello_of(3, key), key.len()));
    bombard(&valid, hello);
}

#[test]
fn words_of_the_negotiation() {
    let words = [(1234, 0x7fff_1234_5678), (-1, 0), (i32::MAX, u64::MAX)];
    let valid =
        words.map(|(process, address)| (PeerConnection::fuzz_words_of(process, address), 0));
    bombard(&valid, negotiation);
}

#[test]
fn lists_of_hosts() {
    let lists = [
        ("node[03-07,12],login1", 6),
        ("a1,b[2-3]", 2),
        ("rack[1-2]-gpu", 9),
        ("knöten[1", 0),
    ];
    let (broken, whole) = lists.split_last().expect("four");
    assert_eq!(host_list(broken.0.as_bytes()), None);
    let valid: Vec<_> = whole
        .iter()
        .map(|(list, host)| (list.as_bytes().to_vec(), *host))
        .collect();
    bombard(&valid, host_list);
}

#[test]
fn counters_of_a_ring() {
    let mut pass = PeerConnection::fuzz_ring().expect("shared memory");
    assert_eq!(pass([0, 0], b"parcel")[..2], [6, 6]);
    let most = pass([0, 0], &[])[2];
    assert_eq!(pass([most as u64, 0], b"full")[..2], [0, most]);
    let valid: Vec<Vec<u8>> = [[0, 0], [70, 3], [u64::MAX, 0], [5, u64::MAX - 8]]
        .map(|counters| [counters.map(u64::to_le_bytes).concat(), vec![1; 40]].concat())
        .into();
    let taken = throw(INPUTS, &valid, |bytes| ring_with(&mut pass, bytes));
    assert!(taken > INPUTS / 2, "{taken}");
    assert_eq!(ring(&valid[3]), Some(0));
}

/// Lists and texts that announce more than there can be: twenty bytes and a length of all ones.
#[test]
fn announced_lengths_are_checked_before_memory_is_taken() {
    let announced = |start: &[u8]| {
        let mut bytes = [start, &[0xff; 4]].concat();
        bytes.resize(20, 0);
        bytes
    };
    assert_eq!(header(&announced(&[0; 10])), None);
    assert_eq!(control(&announced(&[3])), None);
    assert_eq!(message(&announced(&[])), None);
    assert_eq!(store_request(&announced(&[1, 1, 0])), None);
    assert_eq!(store_answer(&announced(&[1])), None);
    assert_eq!(hello(&announced(&[0; 8])), None);
}

/// Magic, random bytes and proof.
const PROVEN: usize = 5 + 32 + 32;

#[test]
fn handshakes() {
    let whole = PROVEN + World::fuzz_hello_of(3, "group").len();
    let accepting = vec![0; 1 + whole];
    let connecting = [vec![1], vec![0; 64]].concat();
    assert_eq!(handshake(&accepting), Some(5));
    assert_eq!(handshake(&connecting), Some(0));
    // Whatever byte is wrong: only the server's random bytes are for the client to believe.
    for at in 1..=PROVEN {
        let mut input = accepting.clone();
        input[at] = 1 << (at % 8);
        assert_eq!(handshake(&input), None, "byte {at}");
    }
    for at in 1..=64 {
        let mut input = connecting.clone();
        input[at] = 1 << (at % 8);
        assert_eq!(handshake(&input), None, "byte {at}");
    }
    throw(MEETINGS, &[accepting, connecting], handshake);
}
