//! The smallest distributed program: `burnrun --nproc-per-node 4 -- target/debug/examples/hello_ranks`.

use burn_dist::{Result, World, communicator::ReduceOp};

fn main() -> Result<()> {
    let world = World::from_env()?;
    let group = world.whole()?;
    let sum = group.all_reduce_values(vec![world.rank() as u32], ReduceOp::Sum)?;
    println!(
        "rank {} of {}: the ranks add up to {}",
        world.rank(),
        world.world_size(),
        sum[0]
    );
    Ok(())
}
