//! An optimizer's state between one record of all of it and the parts that ranks keep.
//!
//! | file | what |
//! |---|---|
//! | `state_map.rs` | which rank keeps what of each parameter's state; cuts and joins records; pure |
//! | `exchange.rs` | from all ranks' parts to the whole state, and back |

mod exchange;
mod state_map;

pub(crate) use exchange::{cut_state, gather_state};
pub(crate) use state_map::{Held, StateMap};
