//! [`BucketPlan`]: which gradient travels in which bucket, and where in it. Pure arithmetic.

use burn::tensor::DType;

use crate::communicator::HostBuffer;

/// Target sizes of buckets, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSizes {
    /// The first bucket, small so that communication starts early.
    pub first: usize,
    /// Every other bucket.
    pub rest: usize,
}

impl Default for BucketSizes {
    /// 1 MB, then 25 MB.
    fn default() -> Self {
        Self {
            first: 1_000_000,
            rest: 25_000_000,
        }
    }
}

impl BucketSizes {
    /// A bucket for each parameter.
    pub fn one_per_parameter() -> Self {
        Self { first: 0, rest: 0 }
    }
}

/// A parameter's place in a bucket, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketSlot {
    /// The parameter's number.
    pub parameter: usize,
    /// First element in the bucket.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

/// One bucket: a contiguous array of one element type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLayout {
    /// Element type that is accumulated and sent.
    pub dtype: DType,
    /// Its parameters, in the order in which their gradients are expected.
    pub slots: Vec<BucketSlot>,
}

impl BucketLayout {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.slots.iter().map(|slot| slot.len).sum()
    }

    /// Number of elements when `n` ranks share the bucket in equal parts: the last ones are padding.
    pub fn padded_elements(&self, n: usize) -> usize {
        self.num_elements().next_multiple_of(n)
    }

    /// Number of bytes.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size()
    }
}

/// Parameters in reverse order, cut into buckets. Buckets are launched in index order on every
/// rank, whatever order the gradients come in.
///
/// (PyTorch DDP, arXiv 2006.15704, section 3.2.3: the last layers' gradients are ready first.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<BucketLayout>,
    bucket_of: Vec<Option<(usize, usize)>>,
}

impl BucketPlan {
    /// Plans for parameters in declaration order: `Some((num_elements, dtype))` if trained.
    ///
    /// 16-bit gradients travel as f32. A bucket is closed when it has reached its target size or
    /// when the element type changes.
    pub fn new(parameters: &[Option<(usize, DType)>], sizes: BucketSizes) -> Self {
        let mut buckets: Vec<BucketLayout> = Vec::new();
        let mut bucket_of = vec![None; parameters.len()];
        let mut open = false;
        for (parameter, trained) in parameters.iter().enumerate().rev() {
            let Some((len, dtype)) = *trained else {
                continue;
            };
            let dtype = HostBuffer::sum_dtype(dtype);
            let fits = open && buckets.last().is_some_and(|bucket| bucket.dtype == dtype);
            if !fits {
                buckets.push(BucketLayout {
                    dtype,
                    slots: Vec::new(),
                });
            }
            let index = buckets.len() - 1;
            let bucket = &mut buckets[index];
            bucket_of[parameter] = Some((index, bucket.slots.len()));
            bucket.slots.push(BucketSlot {
                parameter,
                offset: bucket.num_elements(),
                len,
            });
            let target = if index == 0 { sizes.first } else { sizes.rest };
            open = bucket.num_bytes() < target;
        }
        Self { buckets, bucket_of }
    }

    /// The buckets in launch order.
    pub fn buckets(&self) -> &[BucketLayout] {
        &self.buckets
    }

    /// Bucket and slot of a parameter; `None` if it is not trained.
    pub fn place(&self, parameter: usize) -> Option<(usize, usize)> {
        self.bucket_of.get(parameter).copied().flatten()
    }

    /// Bytes of all gradients as they travel: `S` in `2S(n-1)/n`.
    pub fn num_bytes(&self) -> usize {
        self.buckets.iter().map(BucketLayout::num_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn last_parameters_come_first_and_buckets_close_at_their_size() {
        let f32s = |n| Some((n, DType::F32));
        let sizes = BucketSizes {
            first: 8,
            rest: 100,
        };
        let plan = BucketPlan::new(&[f32s(5), f32s(20), None, f32s(2), f32s(1)], sizes);
        let parameters: Vec<Vec<usize>> = plan
            .buckets()
            .iter()
            .map(|b| b.slots.iter().map(|s| s.parameter).collect())
            .collect();
        assert_eq!(parameters, [vec![4, 3], vec![1, 0]]);
        assert_eq!(plan.place(0), Some((1, 1)));
        assert_eq!(plan.place(2), None);
        assert_eq!(plan.buckets()[1].slots[1].offset, 20);
        assert_eq!(plan.num_bytes(), 4 * 28);
    }

    #[test]
    fn sixteen_bit_gradients_travel_as_f32_and_types_do_not_mix() {
        let plan = BucketPlan::new(
            &[
                Some((3, DType::BF16)),
                Some((3, DType::F64)),
                Some((3, DType::F16)),
            ],
            BucketSizes::default(),
        );
        let dtypes: Vec<DType> = plan.buckets().iter().map(|b| b.dtype).collect();
        assert_eq!(dtypes, [DType::F32, DType::F64, DType::F32]);
    }

    proptest! {
        #[test]
        fn every_trained_parameter_has_one_place_and_slots_tile_their_bucket(
            lens in prop::collection::vec(prop::option::of(0usize..5000), 0..40),
            first in 0usize..10_000,
            rest in 0usize..20_000,
        ) {
            let parameters: Vec<_> = lens.iter().map(|l| l.map(|l| (l, DType::F32))).collect();
            let plan = BucketPlan::new(&parameters, BucketSizes { first, rest });
            let mut seen = 0;
            for (index, bucket) in plan.buckets().iter().enumerate() {
                let mut offset = 0;
                for (slot_index, slot) in bucket.slots.iter().enumerate() {
                    prop_assert_eq!(slot.offset, offset);
                    prop_assert_eq!(plan.place(slot.parameter), Some((index, slot_index)));
                    prop_assert_eq!(Some(slot.len), lens[slot.parameter]);
                    offset += slot.len;
                    seen += 1;
                }
            }
            prop_assert_eq!(seen, lens.iter().flatten().count());
        }
    }
}
