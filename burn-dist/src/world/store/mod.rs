//! The key-value store by which ranks find each other.

mod client;
mod protocol;
mod server;

pub use client::StoreClient;
pub use server::StoreServer;
