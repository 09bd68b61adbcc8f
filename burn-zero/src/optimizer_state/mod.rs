//! An optimizer's state between one record of all of it and the parts that ranks keep.
//!
//! | file | what |
//! |---|---|
//! | `state_map.rs` | which rank keeps what of each parameter's state; cuts and joins records; pure |
//! | `gather_state.rs` | records of all ranks on the first |

mod gather_state;
mod state_map;

pub(crate) use gather_state::gather_state;
pub(crate) use state_map::{Held, StateMap};
