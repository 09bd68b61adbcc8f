//! Ring: chunks travel from neighbour to neighbour and are added on the way.
//!
//! ```text
//!   0 -> 1 -> 2 -> 0      chunk c starts at member c+1, is added by c+2, ..., ends at member c
//! ```
//!
//! `2(n-1)` steps, `2S(n-1)/n` bytes sent by each, in the rotated order
//! `((x[c+1] + x[c+2]) + ...) + x[c]`: deterministic, but not rank order. 16-bit floats travel as
//! f32 while they are partial sums, so that they are rounded once; that doubles their first half.
//! (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.)

use super::{Links, Reduction};
use crate::communicator::ReduceOp;
use crate::communicator::chunks::Chunks;
use crate::communicator::reduce::{finish_partial, partial_dtype, reduce_in_rank_order, widen};
use crate::communicator::transport::{Fault, Incoming, Outgoing};

fn neighbours(links: &Links<'_>) -> (usize, usize) {
    let (index, n) = (links.index, links.size);
    ((index + 1) % n, (index + n - 1) % n)
}

/// `n-1` steps; this member's reduced chunk goes to `output`.
pub(super) fn reduce_chunks(
    links: &mut Links<'_>,
    reduction: Reduction,
    chunks: Chunks,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Fault> {
    let Reduction { dtype, op } = reduction;
    let partial = partial_dtype(dtype);
    // The mean divides once, when its chunk has come home.
    let step_op = if op == ReduceOp::Mean {
        ReduceOp::Sum
    } else {
        op
    };
    let (next, before) = neighbours(links);
    let n = links.size;
    let wide = widen(dtype, input);
    let chunk = |c: usize| &wide[chunks.byte_range(c, partial.size())];
    let mut travelling = chunk((links.index + n - 1) % n).to_vec();
    for step in 0..n - 1 {
        let arriving = (links.index + 2 * n - step - 2) % n;
        let mut sum = vec![0; chunk(arriving).len()];
        links.exchange(
            &[Outgoing {
                to: next,
                bytes: &travelling,
            }],
            &mut [Incoming {
                from: before,
                bytes: &mut sum,
            }],
        )?;
        reduce_in_rank_order(partial, step_op, 0, &[&[], chunk(arriving)], &mut sum);
        travelling = sum;
    }
    finish_partial(dtype, op, n, &mut travelling, output);
    Ok(())
}

/// `n-1` steps; every chunk reaches every member.
pub(super) fn gather_chunks(
    links: &mut Links<'_>,
    chunks: Chunks,
    element: usize,
    data: &mut [u8],
) -> Result<(), Fault> {
    let (next, before) = neighbours(links);
    let n = links.size;
    for step in 0..n - 1 {
        let leaving = chunks.byte_range((links.index + n - step) % n, element);
        let arriving = chunks.byte_range((links.index + 2 * n - step - 1) % n, element);
        let [leaving, arriving] = data
            .get_disjoint_mut([leaving, arriving])
            .expect("invariant: neighbouring chunks do not overlap");
        links.exchange(
            &[Outgoing {
                to: next,
                bytes: leaving,
            }],
            &mut [Incoming {
                from: before,
                bytes: arriving,
            }],
        )?;
    }
    Ok(())
}
