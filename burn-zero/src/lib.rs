//! ZeRO for Burn: optimizer state, gradients and parameters sharded over data-parallel ranks.
//!
//! Data parallelism keeps a whole replica on every rank. The three stages of ZeRO
//! (arXiv 1910.02054) remove that redundancy one kind of state at a time, with the same numbers:
//!
//! | stage | split over the ranks | sent per rank and step, in elements, for Ψ parameters |
//! |---|---|---|
//! | 1 | optimizer state | 2Ψ(n-1)/n |
//! | 2 | and gradients | 2Ψ(n-1)/n |
//! | 3 | and parameters | 3Ψ(n-1)/n |
//!
//! The crate holds its purpose; the stages are built on the process groups and collectives of
//! [`burn_dist`].
#![warn(missing_docs)]
