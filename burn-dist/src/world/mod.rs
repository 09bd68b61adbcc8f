//! The world: which rank this is, how ranks find each other, how they are started.
//!
//! | file | what |
//! |---|---|
//! | `environment.rs`, `host_list.rs` | what the launcher's variables say; pure |
//! | `world.rs`, `world_options.rs` | the world and its groups |
//! | `store/` | the key-value store by which ranks find each other |
//! | `handshake.rs` | who may connect |
//! | `peers.rs` | connections between ranks |
//! | `doctor.rs` | what a host offers to a world |
//! | `nccl_start.rs` | NCCL, if the options ask for it |
//! | `flight_signal.rs` | recordings on demand |
//! | `launch_threads.rs`, `launch_detached.rs`, `process_launch.rs`, `launch_processes.rs`, `launch_signals.rs`, `output.rs`, `exit_report.rs`, `terminal_state.rs` | starting ranks |
//!
//! Only this folder reads the environment.

mod doctor;
mod environment;
mod exit_report;
mod flight_signal;
mod handshake;
mod host_list;
#[cfg(feature = "train")]
mod launch_detached;
mod launch_processes;
mod launch_signals;
mod launch_threads;
mod nccl_start;
mod output;
mod peers;
mod process_launch;
mod store;
mod terminal_state;
mod world;
mod world_options;

pub use doctor::Doctor;
#[cfg(feature = "train")]
pub(crate) use environment::launched_rank;
pub use environment::{Environment, Launcher};
pub use exit_report::ExitReport;
#[cfg(feature = "train")]
pub(crate) use launch_detached::launch_detached;
pub use launch_processes::launch_processes;
pub use launch_threads::launch_threads;
#[cfg(feature = "train")]
pub(crate) use launch_threads::panic_text;
pub use output::OutputStyle;
pub use process_launch::ProcessLaunch;
pub use store::{StoreClient, StoreServer};
pub use world::World;
pub use world_options::WorldOptions;
