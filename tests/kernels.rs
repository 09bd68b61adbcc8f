//! Kernels beside their twins.

#[path = "kernels/adamw.rs"]
mod adamw;
#[path = "kernels/row_losses.rs"]
mod row_losses;
#[path = "kernels/sgd.rs"]
mod sgd;
