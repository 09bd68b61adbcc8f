//! Kernels beside their twins.

#[path = "kernels/adamw.rs"]
mod adamw;
