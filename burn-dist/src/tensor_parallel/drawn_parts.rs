//! Parameters drawn as if whole.

use std::sync::{Arc, Mutex};

use burn::module::{Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::{Device, Shape, Tensor};

use super::parts;
use crate::error::{DistError, Result};

/// Elements that are drawn at a time, of which a part is kept.
const BLOCK: usize = 1 << 16;

/// A whole matrix, or vector of width `columns`, as Burn would draw it.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    pub(super) initializer: Initializer,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) fan_in: Option<usize>,
    pub(super) fan_out: Option<usize>,
}

impl Draw {
    /// Refuses what cannot be drawn a block of rows at a time.
    pub(super) fn check(&self) -> Result<()> {
        if matches!(self.initializer, Initializer::Orthogonal { .. }) {
            return Err(DistError::config(
                "an orthogonal matrix cannot be drawn in parts",
                "build the dense layer and split it by from_dense, or take another initializer",
            ));
        }
        Ok(())
    }

    /// Draws all, in Burn's order, and keeps the columns `keep.1` of the rows `keep.0`: the generator
    /// ends where it would after the whole, of which a block is held at a time. `keep` may reach beyond
    /// the end: there are zeros.
    fn part(&self, keep: [std::ops::Range<usize>; 2], device: &Device) -> Tensor<2> {
        let [rows, columns] = keep;
        let (height, width) = (rows.len(), columns.len());
        let columns = columns.start.min(self.columns)..columns.end.min(self.columns);
        let block = (BLOCK / self.columns.max(1)).max(1);
        let mut kept = Vec::new();
        for start in (0..self.rows).step_by(block) {
            let count = block.min(self.rows - start);
            let drawn: Tensor<2> = self
                .initializer
                .init_with([count, self.columns], self.fan_in, self.fan_out, device)
                .into_value();
            let first = rows.start.clamp(start, start + count);
            let last = rows.end.clamp(start, start + count);
            if first < last && !columns.is_empty() {
                let part = drawn.slice([first - start..last - start, columns.clone()]);
                // A view would keep the block.
                let dtype = part.dtype();
                kept.push(Tensor::from_data(part.into_data(), (device, dtype)));
            }
        }
        let part = match kept.is_empty() {
            true => Tensor::zeros([0, columns.len()], device),
            false => Tensor::cat(kept, 0),
        };
        parts::padded(parts::padded(part, 1, width), 0, height)
    }
}

/// One section of a layer that is several linear layers: its weight, its bias, which columns to keep.
#[derive(Debug, Clone)]
pub(super) struct DrawnSection {
    pub(super) weight: Draw,
    pub(super) bias: Option<Draw>,
    pub(super) keep_rows: std::ops::Range<usize>,
    pub(super) keep_columns: std::ops::Range<usize>,
}

#[derive(Debug, Default)]
struct Drawn {
    weight: Option<Tensor<2>>,
    bias: Option<Tensor<1>>,
}

/// A lazy weight and bias: the first that is read draws both of every section, weight before bias, as a
/// visitor of the dense layers would.
pub(super) fn lazy_linear(
    sections: Vec<DrawnSection>,
    device: &Device,
) -> (Param<Tensor<2>>, Option<Param<Tensor<1>>>) {
    let has_bias = sections.iter().any(|section| section.bias.is_some());
    let height = sections[0].keep_rows.len();
    let width = sections
        .iter()
        .map(|section| section.keep_columns.len())
        .sum();
    let drawn = Arc::new(Mutex::new(Drawn::default()));
    let draw = move |device: &Device| {
        let device = &device.clone().inner();
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for section in &sections {
            let columns = section.keep_columns.clone();
            let keep = [section.keep_rows.clone(), columns.clone()];
            weights.push(section.weight.part(keep, device));
            if let Some(bias) = &section.bias {
                biases.push(bias.part([0..1, columns], device));
            }
        }
        Drawn {
            weight: Some(Tensor::cat(weights, 1)),
            bias: has_bias.then(|| Tensor::cat(biases, 1).squeeze_dim(0)),
        }
    };
    let draw = Arc::new(draw);
    let weight = {
        let (drawn, draw) = (drawn.clone(), draw.clone());
        lazy([height, width], device, move |device| {
            let mut drawn = drawn.lock().expect("invariant: no panic under this lock");
            if drawn.weight.is_none() {
                *drawn = draw(device);
            }
            drawn.weight.take().expect("invariant: drawn above")
        })
    };
    let bias = has_bias.then(|| {
        lazy([width], device, move |device| {
            let mut drawn = drawn.lock().expect("invariant: no panic under this lock");
            if drawn.bias.is_none() {
                *drawn = draw(device);
            }
            drawn.bias.take().expect("invariant: drawn above")
        })
    });
    (weight, bias)
}

/// A lazy matrix.
pub(super) fn lazy_matrix(
    draw: Draw,
    keep: [std::ops::Range<usize>; 2],
    device: &Device,
) -> Param<Tensor<2>> {
    let shape = [keep[0].len(), keep[1].len()];
    lazy(shape, device, move |device| {
        draw.part(keep, &device.clone().inner())
    })
}

fn lazy<const D: usize>(
    shape: [usize; D],
    device: &Device,
    values: impl FnOnce(&Device) -> Tensor<D> + Send + Sync + 'static,
) -> Param<Tensor<D>> {
    Param::uninitialized(
        ParamId::new(),
        move |device, require_grad| {
            let drawn = values(device);
            let dtype = drawn.dtype();
            let drawn = Tensor::from_data(drawn.into_data(), (device, dtype));
            match require_grad {
                true => drawn.require_grad(),
                false => drawn,
            }
        },
        device.clone(),
        true,
        Shape::from(shape),
    )
}
