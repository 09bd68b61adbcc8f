//! What a learner holds while ranks train: nothing; and for a checkpoint: all.

use std::collections::HashMap;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::{Device, Tensor};
use burn::train::{Learner, LearnerModel};

#[cfg(feature = "flex")]
use super::untouched_record;

/// Gives the learner's model new values, flat, in its own types, on a device.
pub(super) fn fill<M: LearnerModel>(
    learner: &mut Learner<M>,
    values: HashMap<ParamId, Tensor<1>>,
    device: &Device,
) {
    learner.fork(device);
    let whole = learner.model().map(&mut SetValues(values));
    learner.load_model(whole.into_record());
}

/// Lets the memory go of the learner's trained parameters and of its optimizer's state: a learner keeps its shapes,
/// and nobody reads its values until they are [filled](fill) in.
/// Without the `flex` feature the values stay.
pub(super) fn let_go<M: LearnerModel>(learner: &mut Learner<M>) {
    learner.load_optim(OptimizerRecord::default());
    #[cfg(feature = "flex")]
    untouched_record::put(learner);
}

/// Gives parameters new values, flat ones.
struct SetValues(HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for SetValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.get(&param.id).cloned() else {
            return param;
        };
        param.map(|old| {
            let value: Tensor<D> = value.reshape(old.dims());
            let value = value.to_device(&old.device().inner()).cast(old.dtype());
            if !old.is_autodiff() {
                return value;
            }
            Tensor::from_inner(value).set_require_grad(old.is_require_grad())
        })
    }
}

#[cfg(all(test, target_os = "linux", feature = "flex"))]
mod tests {
    use super::*;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::AdamWConfig;
    use burn::train::{InferenceStep, TrainOutput, TrainStep};

    #[derive(Module, Debug)]
    struct Wide {
        layer: Linear,
    }

    impl TrainStep for Wide {
        type Input = Tensor<2>;
        type Output = ();

        fn step(&self, input: Tensor<2>) -> TrainOutput<()> {
            TrainOutput::new(self, self.layer.forward(input).mean().backward(), ())
        }
    }

    impl InferenceStep for Wide {
        type Input = Tensor<2>;
        type Output = ();

        fn step(&self, _input: Tensor<2>) {}
    }

    /// Of this process, in MiB.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        let pages: usize = statm
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse().ok())
            .expect("pages");
        pages * 4 / 1024
    }

    #[test]
    fn a_learner_that_is_let_go_takes_no_memory_and_is_filled_again() {
        const WIDTH: usize = 8192;
        let device = Device::flex().autodiff();
        let layer = LinearConfig::new(WIDTH, WIDTH).init(&device);
        let wide = Wide { layer };
        // Drawn when it is read.
        drop(wide.layer.weight.val());
        let id = wide.layer.weight.id;
        let mut learner = Learner::new(wide, AdamWConfig::new().init(), 0.1);
        let before = resident();
        let_go(&mut learner);
        let gone = before.saturating_sub(resident());
        assert!(gone > 240, "{gone} of 256 MiB");
        let values: Tensor<1> = Tensor::ones([WIDTH * WIDTH], &Device::flex()).mul_scalar(0.5);
        fill(&mut learner, HashMap::from([(id, values)]), &device);
        let weight = learner.model().layer.weight;
        assert_eq!(weight.val().mean().into_scalar::<f32>(), 0.5);
        assert!(weight.val().is_require_grad());
        assert_eq!(weight.id, id);
    }
}
