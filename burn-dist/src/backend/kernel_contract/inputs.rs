//! [`Input`]: tensors to start from.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use proptest::prelude::*;

/// Which tensors a kernel is given.
#[derive(Debug, Clone)]
pub(super) struct Input {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) dtype: DType,
    /// Whether somebody else holds the tensors.
    is_shared: bool,
    /// Whether they are views with gaps.
    has_gaps: bool,
    seed: usize,
}

/// All of them.
pub(super) fn inputs() -> impl Strategy<Value = Input> {
    let columns = prop_oneof![
        1 => Just(0usize),
        1 => Just(1usize),
        2 => 2usize..40,
        2 => (1usize..12).prop_map(|n| n * 8),
        1 => 3000usize..6000,
    ];
    let dtype = prop_oneof![
        3 => Just(DType::F32),
        2 => Just(DType::F16),
        2 => Just(DType::BF16),
        1 => Just(DType::F64),
    ];
    let flags = (any::<bool>(), any::<bool>());
    (1usize..6, columns, dtype, flags, 0usize..1000).prop_map(
        |(rows, columns, dtype, (is_shared, has_gaps), seed)| Input {
            rows,
            columns,
            dtype,
            is_shared,
            has_gaps,
            seed,
        },
    )
}

impl Input {
    pub(super) fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Between -2 and 2, some of them 0 and some -0.0; another array for each `number`.
    pub(super) fn values(&self, number: usize, len: usize) -> Vec<f64> {
        let mut state = (self.seed * 31 + number) as u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 11
        };
        let values = (0..len).map(|_| match next() {
            random if random % 13 == 0 => 0.0,
            random if random % 13 == 1 => -0.0,
            random => random as f64 / 2f64.powi(51) - 2.0,
        });
        values.collect()
    }

    /// `[rows, columns]` of these values, as a view with gaps if the input says so.
    pub(super) fn place(
        &self,
        values: Vec<f64>,
        [rows, columns]: [usize; 2],
        dtype: DType,
        device: &Device,
    ) -> Tensor<2> {
        // Burn itself does not read all views without elements.
        if !self.has_gaps || values.is_empty() {
            let data = TensorData::new(values, [rows, columns]).convert_dtype(dtype);
            return Tensor::from_data(data, (device, dtype));
        }
        let mut turned = vec![0.0; values.len()];
        for (i, value) in values.into_iter().enumerate() {
            turned[i % columns * rows + i / columns] = value;
        }
        let data = TensorData::new(turned, [columns, rows]).convert_dtype(dtype);
        Tensor::<2>::from_data(data, (device, dtype)).transpose()
    }

    pub(super) fn tensor(&self, number: usize, dtype: DType, device: &Device) -> Tensor<2> {
        let values = self.values(number, self.len());
        self.place(values, [self.rows, self.columns], dtype, device)
    }

    /// As [`tensor`](Self::tensor), of squares.
    pub(super) fn squares(&self, number: usize, dtype: DType, device: &Device) -> Tensor<2> {
        let values = self.values(number, self.len()).into_iter();
        let squares = values.map(|x| x * x).collect();
        self.place(squares, [self.rows, self.columns], dtype, device)
    }

    /// `[len]`; every other element of an array if the input says so.
    pub(super) fn flat(
        &self,
        number: usize,
        len: usize,
        dtype: DType,
        device: &Device,
    ) -> Tensor<1> {
        let values = self.values(number, len);
        match self.has_gaps && len > 0 {
            false => {
                let data = TensorData::new(values, [len]).convert_dtype(dtype);
                Tensor::from_data(data, (device, dtype))
            }
            true => {
                let twice = values.into_iter().flat_map(|value| [value, 7.0]);
                let data = TensorData::new(twice.collect(), [len, 2]).convert_dtype(dtype);
                let twice = Tensor::<2>::from_data(data, (device, dtype));
                twice.slice([0..len, 0..1]).squeeze_dim(1)
            }
        }
    }

    /// `[rows, 1]`: one of the tokens, or negative; in 32 bits or in 64.
    pub(super) fn targets(&self, tokens: usize, device: &Device) -> Tensor<2, Int> {
        let random = self.values(99, self.rows).into_iter();
        let targets = random.map(|x| match tokens {
            _ if x < -1.0 => -1,
            0 => -1,
            _ => ((x + 2.0) * 1000.0) as i64 % tokens as i64,
        });
        let dtype = match self.seed % 2 {
            0 => DType::I32,
            _ => DType::I64,
        };
        let data = TensorData::new(targets.collect(), [self.rows, 1]).convert_dtype(dtype);
        Tensor::from_data(data, (device, dtype))
    }

    /// Other references to tensors, if somebody else holds them, with what they hold.
    pub(super) fn held<const D: usize>(&self, tensors: &[&Tensor<D>]) -> Held<D> {
        let held = tensors.iter().filter(|_| self.is_shared);
        Held(
            held.map(|&tensor| (tensor.clone(), tensor.to_data()))
                .collect(),
        )
    }

    /// A number from 0 to `most`, another one for each `number`.
    pub(super) fn pick(&self, number: usize, most: usize) -> usize {
        (self.seed * 7919 + number * 104_729) % (most + 1)
    }
}

/// Tensors that somebody else holds, and what was in them.
pub(super) struct Held<const D: usize>(Vec<(Tensor<D>, TensorData)>);

impl<const D: usize> Held<D> {
    /// # Panics
    /// If a kernel wrote into them.
    pub(super) fn assert_untouched(self) {
        for (tensor, before) in self.0 {
            let after = tensor.into_data();
            assert_eq!(after.as_bytes(), before.as_bytes(), "held by others");
        }
    }
}
