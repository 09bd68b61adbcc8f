//! [`listening`]: the sockets of this process's network namespace on which others can reach it.

use std::net::{IpAddr, SocketAddr};

/// TCP sockets that listen, and UDP sockets that take datagrams from anybody.
pub(crate) fn listening() -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let text = match std::fs::read_to_string(format!("/proc/self/net/{table}")) {
            Ok(text) => text,
            // A kernel without IPv6 has no table of it.
            Err(_) if table.ends_with('6') => continue,
            Err(error) => panic!("{table}: {error}"),
        };
        for line in text.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, of_this, ..] = columns[..] else {
                panic!("{table}: {line}");
            };
            if of_this == state {
                found.push(address(local).unwrap_or_else(|| panic!("{table}: {line}")));
            }
        }
    }
    found
}

/// `0100007F:1F90`: the address in words of 32 bits, as the machine holds them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for at in (0..words.len()).step_by(8) {
        let word = u32::from_str_radix(words.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let four = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
    let sixteen = <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from);
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(four.or(sixteen).ok()?, port))
}

#[test]
fn addresses_are_read_as_the_kernel_writes_them() {
    let words = |bytes: &[u8]| -> String {
        let words = bytes.chunks(4).map(|word| word.try_into().expect("four"));
        words
            .map(|word| format!("{:08X}", u32::from_ne_bytes(word)))
            .collect()
    };
    let four = words(&[10, 77, 0, 1]);
    let expected = "10.77.0.1:8080".parse().ok();
    assert_eq!(address(&format!("{four}:1F90")), expected);
    let mut six = [0; 16];
    six[15] = 1;
    let expected = "[::1]:80".parse().ok();
    assert_eq!(address(&format!("{}:0050", words(&six))), expected);
    assert_eq!(address("0100:1F90"), None);
}
