//! [`ShardableOptimizer`]: an optimizer, and how its state may be divided.

use std::sync::Arc;

use burn::module::ParamGroup;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, LionConfig, ModuleOptimizer, RmsPropConfig,
    SgdConfig,
};
use burn_dist::fused::{FusedAdamW, FusedSgd, GradientScale};

use crate::ElementWise;

/// Adds an optimizer to those before it; tells where it takes a scale.
type Layer =
    Arc<dyn Fn(Option<ModuleOptimizer>) -> (ModuleOptimizer, Option<GradientScale>) + Send + Sync>;

/// An optimizer, and how its state may be divided among ranks.
///
/// Made from an [`ElementWise`] optimizer (`FusedAdamW`, `AdamWConfig::new().build()`), or from a configuration
/// of Burn's (`AdamWConfig::new()`), it is cut anywhere, in equal parts; the configurations of AdamW and SGD give
/// [`FusedAdamW`] and [`FusedSgd`]. Made from a [`ModuleOptimizer`] (`AdamWConfig::new().init()`, LAMB, Muon, several
/// groups, gradient clipping), of which nobody can tell what it looks at, each parameter belongs to one rank
/// as a whole: the same numbers for every optimizer that treats parameters one by one, as all of a
/// `ModuleOptimizer` do.
#[derive(Clone)]
pub struct ShardableOptimizer(Kind);

#[derive(Clone)]
enum Kind {
    ElementWise(Vec<Layer>),
    Whole(ModuleOptimizer),
}

/// A [`ShardableOptimizer`] that is about to be used: nobody else has its optimizer.
pub(crate) struct BuiltOptimizer {
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) element_wise: bool,
    /// Where all of its groups take a scale, if all do.
    pub(crate) scales: Option<Vec<GradientScale>>,
}

fn layer<O: ElementWise>(optimizer: O, group: Option<ParamGroup>) -> Layer {
    Arc::new(move |below| {
        // A clone of its own for each use: ranks that are threads do not share what they set.
        let optimizer = optimizer.clone();
        let scale = optimizer.gradient_scale();
        let whole = match (below, &group) {
            (Some(below), Some(group)) => below.with_group(group.clone(), optimizer, None),
            _ => optimizer.into(),
        };
        (whole, scale)
    })
}

impl ShardableOptimizer {
    /// Another element-wise optimizer for a group of parameters; the last group that matches counts.
    pub fn with_group<O: ElementWise>(mut self, group: ParamGroup, optimizer: O) -> Self {
        match &mut self.0 {
            Kind::ElementWise(layers) => layers.push(layer(optimizer, Some(group))),
            Kind::Whole(whole) => *whole = whole.clone().with_group(group, optimizer, None),
        }
        self
    }

    pub(crate) fn build(self) -> BuiltOptimizer {
        let layers = match self.0 {
            Kind::ElementWise(layers) => layers,
            Kind::Whole(optimizer) => {
                return BuiltOptimizer {
                    optimizer,
                    element_wise: false,
                    scales: None,
                };
            }
        };
        let (mut optimizer, mut scales) = (None, Some(Vec::new()));
        for layer in layers {
            let (whole, scale) = layer(optimizer);
            optimizer = Some(whole);
            scales = scales.zip(scale).map(|(mut scales, scale)| {
                scales.push(scale);
                scales
            });
        }
        BuiltOptimizer {
            optimizer: optimizer.expect("invariant: it is made from one"),
            element_wise: true,
            scales,
        }
    }
}

impl<O: ElementWise> From<O> for ShardableOptimizer {
    fn from(optimizer: O) -> Self {
        Self(Kind::ElementWise(vec![layer(optimizer, None)]))
    }
}

/// From a configuration of Burn's: cut anywhere, in one pass where there is such; or, where it clips gradients, which
/// looks at whole parameters, as Burn initialises it.
macro_rules! from_config {
    ($($config:ty => $build:expr),+ $(,)?) => {$(
        impl From<$config> for ShardableOptimizer {
            fn from(config: $config) -> Self {
                let whole = config.init();
                match whole.has_gradient_clipping() {
                    true => whole.into(),
                    false => $build(&config).into(),
                }
            }
        }
    )+};
}

from_config! {
    AdaGradConfig => AdaGradConfig::build,
    AdamConfig => AdamConfig::build,
    AdamWConfig => FusedAdamW::new,
    AdanConfig => AdanConfig::build,
    LionConfig => LionConfig::build,
    RmsPropConfig => RmsPropConfig::build,
    SgdConfig => FusedSgd::new,
}

impl From<ModuleOptimizer> for ShardableOptimizer {
    fn from(optimizer: ModuleOptimizer) -> Self {
        Self(Kind::Whole(optimizer))
    }
}
