//! [`PeerConnection`]: how a process reaches one other member of a group.

use std::net::TcpStream;

/// Two connections to one other member.
#[derive(Debug)]
pub struct PeerConnection {
    /// Says why the group ends and wakes sleepers, whatever data is under way.
    pub control: TcpStream,
    /// Carries the data, unless the two members share memory.
    pub data: TcpStream,
}
