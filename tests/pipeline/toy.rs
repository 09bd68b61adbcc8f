//! A model of numbered blocks.

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, DropoutConfig, LayerNorm, LayerNormConfig, LinearConfig,
};
use burn::optim::GradientsParams;
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Gradients, Int, Tensor, TensorData};
use burn_dist::Result;
use burn_dist::backend::DeferredProducts;
use burn_dist::random::{RandomPosition, RandomStream};
use burn_dist::tensor_parallel::{SplitDropout, TensorParallel};
use burn_pipeline::{Activation, DeferredLinear, PipelineStage};

fn device() -> Device {
    Device::flex().autodiff()
}

/// What the blocks in the middle are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A norm, a linear layer, a residual.
    Mlp,
    /// The same behind a BatchNorm.
    BatchNorm,
    /// Every other block has no parameters.
    Pass,
    /// Integers and booleans travel beside the floats.
    Mixed,
}

#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: LayerNorm,
    batch_norm: Option<BatchNorm>,
    linear: Option<DeferredLinear>,
    dropout: SplitDropout,
}

/// Some of the blocks of a model.
#[derive(Module, Debug)]
pub(crate) struct Toy {
    own: Vec<Block>,
    #[module(skip)]
    blocks: Range<usize>,
    total: usize,
    #[module(skip)]
    kind: Kind,
    #[module(skip)]
    products: DeferredProducts,
    #[module(skip)]
    stream: RandomStream,
}

/// Numbered items of a step.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    step: usize,
    items: Range<usize>,
}

impl Item {
    pub(crate) fn of(step: usize, items: Range<usize>) -> Self {
        Self { step, items }
    }

    /// `[items, 3, 6]`.
    fn input(&self) -> Tensor<3> {
        self.values(0)
    }

    fn target(&self) -> Tensor<3> {
        self.values(1000)
    }

    fn values(&self, seed: usize) -> Tensor<3> {
        let items = self.items.clone();
        let values: Vec<f32> = items
            .clone()
            .flat_map(|item| {
                (0..18).map(move |i| {
                    let n = (i + 1) * 7919 + (item + 13) * 104_729 + seed * 31;
                    (n % 1000) as f32 / 500.0 - 1.0
                })
            })
            .map(|value| value + self.step as f32 * 0.01)
            .collect();
        let shape = [items.len(), 3, 6];
        Tensor::from_data(TensorData::new(values, shape), &device())
    }
}

/// Values that depend on the number only.
pub(crate) fn fill<const D: usize>(shape: [usize; D], number: usize) -> Param<Tensor<D>> {
    let len = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..len)
        .map(|i| (((i + 3) * (number + 5) * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5)
        .collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), &device()))
}

impl Toy {
    pub(crate) fn new(
        kind: Kind,
        blocks: Range<usize>,
        total: usize,
        dropout: f64,
        stream: &RandomStream,
    ) -> Self {
        let products = DeferredProducts::default();
        let solo = burn_dist::World::solo().whole().expect("a group of one");
        let parallel = TensorParallel::new(&solo).random(stream);
        let block = |number: usize| {
            let mut norm = LayerNormConfig::new(6).init(&device());
            norm.gamma = fill([6], number + 50);
            let has_weights = kind != Kind::Pass || number.is_multiple_of(2);
            let linear = has_weights.then(|| {
                let mut linear = LinearConfig::new(6, 6).init(&device());
                linear.weight = fill([6, 6], number);
                linear.bias = Some(fill([6], number + 100));
                DeferredLinear::from_dense(linear, &products)
            });
            let dropout = DropoutConfig::new(dropout).init();
            Block {
                norm,
                batch_norm: (kind == Kind::BatchNorm)
                    .then(|| BatchNormConfig::new(3).init(&device())),
                linear,
                dropout: SplitDropout::whole(&dropout, &parallel).expect("it has a stream"),
            }
        };
        Self {
            own: blocks.clone().map(block).collect(),
            blocks,
            total,
            kind,
            products,
            stream: stream.clone(),
        }
    }

    /// The whole model's loss, in one graph.
    pub(crate) fn whole_loss(&self, step: usize, micro_batch: usize, batch: &Item) -> Tensor<1> {
        let mut x = Vec::new();
        for block in 0..self.total {
            self.stream.rewind(RandomPosition {
                step: step as u64,
                micro_batch: micro_batch as u64,
                draw: (block as u64) << 20,
            });
            x = self.forward_block(block, x, batch).expect("it fits");
        }
        x.remove(0).float().expect("a loss")
    }

    /// Gradients of a pass, with those that deferred layers left.
    pub(crate) fn take_all(&self, gradients: Gradients) -> GradientsParams {
        let mut gradients = GradientsParams::from_grads(gradients, self);
        for (weight, product) in self.products.take() {
            let gradient = Tensor::<2>::from_data(product(), &Device::flex());
            gradients.register(weight.into(), gradient);
        }
        gradients
    }

    /// Values of all running states.
    pub(crate) fn statistics(&self) -> Vec<f32> {
        struct States(Vec<f32>);
        impl ModuleVisitor for States {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !param.base().is_require_grad() {
                    self.0.extend(param.val().into_data().iter::<f32>());
                }
            }
        }
        let mut states = States(Vec::new());
        // What was seen is shown once it is asked for.
        self.valid().visit(&mut states);
        states.0
    }
}

impl PipelineStage for Toy {
    type Batch = Item;

    fn blocks(&self) -> Range<usize> {
        self.blocks.clone()
    }

    fn forward_block(
        &self,
        number: usize,
        mut input: Vec<Activation>,
        batch: &Item,
    ) -> Result<Vec<Activation>> {
        let block = &self.own[number - self.blocks.start];
        let (x, beside) = match number {
            0 => {
                let x = batch.input();
                let signs = x.clone().greater_elem(0.0);
                let ranks: Tensor<1, Int> = Tensor::arange(0..3, &device());
                (x, Some((signs, ranks)))
            }
            _ if self.kind == Kind::Mixed => {
                let ranks = input.pop().expect("three").int::<1>()?;
                let signs: Tensor<3, Bool> = input.pop().expect("three").bool()?;
                (input.pop().expect("three").float()?, Some((signs, ranks)))
            }
            _ => (input.pop().expect("one").float::<3>()?, None),
        };
        let mut y = match &block.linear {
            Some(linear) => {
                let normed = match &block.batch_norm {
                    Some(batch_norm) => batch_norm.forward(x.clone()),
                    None => block.norm.forward(x.clone()),
                };
                x + block.dropout.forward(gelu(linear.forward(normed)))
            }
            None => x.tanh(),
        };
        if self.kind == Kind::Mixed
            && let Some((signs, ranks)) = &beside
        {
            let scale = ranks.clone().float().add_scalar(1.0).reshape([1, 3, 1]);
            y = y.mask_fill(signs.clone(), 0.25) * scale.div_scalar(3.0);
        }
        if number + 1 == self.total {
            let loss = (y - batch.target()).powi_scalar(2).mean();
            return Ok(vec![loss.into()]);
        }
        let mut output = vec![y.into()];
        if self.kind == Kind::Mixed
            && let Some((signs, ranks)) = beside
        {
            output.extend([signs.into(), ranks.into()]);
        }
        Ok(output)
    }

    fn deferred_products(&self) -> Option<&DeferredProducts> {
        Some(&self.products)
    }
}
