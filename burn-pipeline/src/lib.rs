//! Pipeline parallelism for Burn: consecutive blocks of a model on consecutive ranks, a batch cut in
//! micro-batches that keep every stage busy.
//!
//! A schedule says when each stage runs which micro-batch. With `p` stages and `m` micro-batches
//! GPipe and 1F1B leave a bubble of `(p-1)/(m+p-1)` of the step; they differ in how many activations
//! live at once (`m` and at most `p`).
//!
//! The crate holds its purpose; stages and schedules are built on the process groups and
//! collectives of [`burn_dist`].
#![warn(missing_docs)]
