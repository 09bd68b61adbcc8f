//! [`RandomStream`]: numbers by position and element.

use std::sync::{Arc, Mutex};

use burn::tensor::{Device, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{ElementRange, RandomPosition};

/// A source of random masks for layers whose activations are whole on some axes of the mesh and split
/// on others.
///
/// A number is a function of the seed, the replica, the [`RandomPosition`] and the place of
/// its element in the whole array; nothing is shared with Burn's generator. Hence:
///
/// - ranks that hold the same activation whole draw the same mask;
/// - ranks that hold parts of one activation draw the parts of one mask, which differ, and which are
///   those of a single device;
/// - data-parallel ranks differ, as [`of_replica`](Self::of_replica) says;
/// - a computation that is run again after [`rewind`](Self::rewind) draws its masks again, and a
///   micro-batch draws the same masks whatever was computed before it, if it starts with
///   [`begin`](Self::begin).
///
/// Clones share their position: a rank makes one stream, and each of its layers holds a clone. Layers that draw
/// at the same position draw the same numbers: stages of a pipeline rewind to positions of their own.
#[derive(Debug, Clone)]
pub struct RandomStream {
    seed: u64,
    replica: u32,
    position: Arc<Mutex<RandomPosition>>,
}

impl RandomStream {
    /// The stream of replica 0 at the start of training.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            replica: 0,
            position: Arc::default(),
        }
    }

    /// The stream of another data-parallel replica: `index` is the rank's position among all ranks that
    /// see other samples, over all data-parallel axes together. At a position of its own.
    pub fn of_replica(&self, index: usize) -> Self {
        Self {
            replica: u32::try_from(index).expect("invariant: fewer replicas than 2^32"),
            position: Arc::default(),
            ..self.clone()
        }
    }

    /// Starts a micro-batch: what is drawn next depends on these numbers and not on what was drawn
    /// before.
    pub fn begin(&self, step: u64, micro_batch: u64) {
        self.rewind(RandomPosition {
            step,
            micro_batch,
            draw: 0,
        });
    }

    /// Where the next mask is drawn.
    pub fn position(&self) -> RandomPosition {
        *self.lock()
    }

    /// Goes to a position, as [`position`](Self::position) gave it: what is computed from here on draws
    /// what was drawn there.
    pub fn rewind(&self, position: RandomPosition) {
        *self.lock() = position;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RandomPosition> {
        self.position
            .lock()
            .expect("invariant: no panic under this lock")
    }

    /// A mask of shape `shape` (this rank's part, `part` of the whole): one with probability `keep`,
    /// else zero. Local; moves the position on by one draw.
    pub fn mask<const D: usize>(
        &self,
        shape: [usize; D],
        part: ElementRange,
        keep: f64,
        device: &Device,
    ) -> Tensor<D> {
        let mut values = Vec::with_capacity(shape.iter().product());
        self.draw(&shape, part, |word| {
            let is_kept = f64::from(word) < keep * 4_294_967_296.0;
            values.push(if is_kept { 1.0f32 } else { 0.0 });
        });
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    fn draw(&self, shape: &[usize], part: ElementRange, mut each: impl FnMut(u32)) {
        let position = {
            let mut position = self.lock();
            let here = *position;
            position.draw += 1;
            here
        };
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..12].copy_from_slice(&self.replica.to_le_bytes());
        key[16..24].copy_from_slice(&position.step.to_le_bytes());
        key[24..].copy_from_slice(&position.micro_batch.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(position.draw);
        for run in part.runs(shape) {
            generator.set_word_pos(u128::from(run.start));
            for _ in run {
                each(generator.next_u32());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(stream: &RandomStream, part: ElementRange) -> Vec<f32> {
        let shape = match part.parts {
            1 => [3, 8, 5],
            parts => [3, 8 / parts, 5],
        };
        let mask = stream.mask(shape, part, 0.5, &Device::flex());
        mask.into_data().try_to_vec().expect("f32")
    }

    fn whole(stream: &RandomStream) -> Vec<f32> {
        mask(stream, ElementRange::WHOLE)
    }

    #[test]
    fn parts_are_those_of_the_whole() {
        let stream = RandomStream::new(7);
        let all = whole(&stream);
        for parts in [2, 4, 8] {
            let split = (0..parts).map(|index| {
                stream.begin(0, 0);
                let part = ElementRange {
                    dim: 1,
                    index,
                    parts,
                };
                Tensor::<3>::from_data(
                    TensorData::new(mask(&stream, part), [3, 8 / parts, 5]),
                    &Device::flex(),
                )
            });
            let joined = Tensor::cat(split.collect(), 1);
            assert_eq!(joined.into_data().try_to_vec::<f32>().expect("f32"), all);
        }
    }

    #[test]
    fn what_makes_a_difference() {
        let stream = RandomStream::new(7);
        let first = whole(&stream);
        let second = whole(&stream);
        assert_ne!(first, second, "draws differ");
        stream.begin(0, 0);
        assert_eq!(whole(&stream), first, "the same point");
        let here = stream.position();
        let again = whole(&stream);
        stream.rewind(here);
        assert_eq!(whole(&stream), again);
        assert_eq!(again, second);
        for (step, micro_batch) in [(0, 1), (1, 0)] {
            stream.begin(step, micro_batch);
            assert_ne!(whole(&stream), first, "{step} {micro_batch}");
        }
        stream.begin(0, 0);
        let clone = stream.clone();
        assert_eq!(whole(&clone), first);
        assert_eq!(stream.position().draw, 1, "clones share the position");
        assert_ne!(whole(&stream.of_replica(1)), first);
        assert_ne!(whole(&RandomStream::new(8)), first);
        assert_eq!(whole(&RandomStream::new(7)), first);
    }

    #[test]
    fn as_many_as_asked_for() {
        let stream = RandomStream::new(1);
        for keep in [0.0, 0.1, 0.9, 1.0] {
            let mask = stream.mask([100_000], ElementRange::WHOLE, keep, &Device::flex());
            let kept = mask.mean().into_scalar::<f32>();
            assert!((f64::from(kept) - keep).abs() < 0.005, "{kept} of {keep}");
        }
    }
}
