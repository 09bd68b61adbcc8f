//! [`Snippet`]: a piece of a file.

use super::Language;

/// Bytes in a row, and what they are written in.
#[derive(Debug, Clone)]
pub struct Snippet {
    /// The bytes.
    pub bytes: [u8; Self::BYTES],
    /// What the file is written in.
    pub language: Language,
}

impl Snippet {
    /// Bytes of a snippet.
    pub const BYTES: usize = 64;
}
