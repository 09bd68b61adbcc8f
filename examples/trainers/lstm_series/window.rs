//! [`Window`]: a piece of the series.

/// Values in a row, and the one that comes next.
#[derive(Debug, Clone)]
pub struct Window {
    /// The values.
    pub past: [f32; Self::VALUES],
    /// The value after them.
    pub next: f32,
}

impl Window {
    /// Values of a window.
    pub const VALUES: usize = 24;
}
