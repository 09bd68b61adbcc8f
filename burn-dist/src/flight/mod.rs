//! The flight recorder: the last calls of a rank, and what those of all ranks say together.
//!
//! | file | what |
//! |---|---|
//! | `flight_call.rs` | a call as it is noted; no allocation |
//! | `flight_recorder.rs` | the ring of a rank's last calls |
//! | `flight_log.rs` | a recording as a file |
//! | `diagnosis.rs` | who is behind, where, and what the others wait for |

mod diagnosis;
mod flight_call;
mod flight_log;
mod flight_recorder;

pub use diagnosis::Diagnosis;
pub use flight_call::{FlightCall, FlightDetail, FlightState};
pub use flight_log::{FlightEntry, FlightGroup, FlightLog, FlightReason};
pub use flight_recorder::{FlightRecorder, FlightTicket};
