//! Schedules: which passes each rank runs, in which order. No tensors, no communication.
//!
//! | schedule | bubble over the step | micro-batches that live at once |
//! |---|---|---|
//! | GPipe | (p-1)/(m+p-1) | m |
//! | 1F1B | (p-1)/(m+p-1) | p, p-1, .. 1 |
//! | interleaved, v chunks per rank | (p-1)/(mv+p-1) | more |
//! | ZB-H1 | (p-1)/(3m+p-1), with equal parts F, I, W | p |

mod gpipe;
mod interleaved;
mod one_f_one_b;
mod schedule;
mod zero_bubble;

pub use schedule::{PipelineShape, Schedule};
