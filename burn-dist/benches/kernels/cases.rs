//! What is measured.

use std::cell::RefCell;
use std::rc::Rc;

use burn::optim::{AdamWConfig, AdamWState, Optimizer};
use burn::tensor::{Device, Distribution, Tensor};
use burn_dist::fused::FusedAdamW;

/// A kernel, its twin, and a copy.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) elements: usize,
    /// That the kernel reads and writes.
    pub(crate) bytes: f64,
    /// That the copy reads and writes.
    pub(crate) copy_bytes: f64,
    pub(crate) fused: Box<dyn FnMut()>,
    pub(crate) twin: Box<dyn FnMut()>,
    pub(crate) copy: Box<dyn FnMut()>,
    /// Compares what both did.
    pub(crate) verify: Box<dyn Fn()>,
}

fn random(elements: usize, device: &Device) -> Tensor<1> {
    Tensor::random([elements], Distribution::Normal(0.0, 1.0), device)
}

/// Waits for what was launched.
fn settle(device: &Device) {
    device.sync().expect("the device goes on");
}

/// Of host memory that is there already, or of the device. On the host with ordinary stores, which read a line
/// before they write it, as the copy of STREAM does (McCalpin, 1995): for arrays of this size `memcpy` has
/// stores that do not.
fn copy(elements: usize, device: &Device) -> Box<dyn FnMut()> {
    if *device == Device::flex() {
        let from = vec![1f32; elements];
        let mut to = vec![0f32; elements];
        return Box::new(move || {
            let one = std::hint::black_box(1f32);
            for (to, from) in to.iter_mut().zip(&from) {
                *to = *from * one;
            }
            std::hint::black_box(&to);
        });
    }
    let (from, device) = (random(elements, device), device.clone());
    settle(&device);
    Box::new(move || {
        // A sum with nothing: as many bytes as a copy, and no kernel that could leave it out.
        std::hint::black_box(from.clone().add_scalar(0.0));
        settle(&device);
    })
}

/// A parameter with its optimizer.
struct Trained<O: Optimizer> {
    optimizer: O,
    held: Option<(Tensor<1>, Option<O::State<1>>)>,
    gradient: Tensor<1>,
    device: Device,
}

impl<O: Optimizer> Trained<O> {
    fn step(&mut self) {
        let (parameter, state) = self.held.take().expect("it comes back");
        self.held = Some(
            self.optimizer
                .step(1e-3, parameter, self.gradient.clone(), state),
        );
        settle(&self.device);
    }
}

fn adamw(elements: usize, device: &Device) -> Case {
    let (parameter, gradient) = (random(elements, device), random(elements, device));
    let config = AdamWConfig::new();
    let start = || {
        let held = Some((parameter.clone().add_scalar(0.0), None::<AdamWState<1>>));
        (held, gradient.clone(), device.clone())
    };
    let (held, of_fused, on) = start();
    let fused = Rc::new(RefCell::new(Trained {
        optimizer: FusedAdamW::new(&config),
        held,
        gradient: of_fused,
        device: on,
    }));
    let (held, of_twin, on) = start();
    let twin = Rc::new(RefCell::new(Trained {
        optimizer: config.build(),
        held,
        gradient: of_twin,
        device: on,
    }));
    let (a, b) = (fused.clone(), twin.clone());
    let is_flex = *device == Device::flex();
    Case {
        name: "adamw",
        elements,
        bytes: 28.0 * elements as f64,
        copy_bytes: 8.0 * elements as f64,
        fused: Box::new(move || a.borrow_mut().step()),
        twin: Box::new(move || b.borrow_mut().step()),
        copy: copy(elements, device),
        verify: Box::new(move || {
            let values = |held: &Option<(Tensor<1>, _)>| {
                let (parameter, _) = held.as_ref().expect("it came back");
                parameter.to_data()
            };
            let (got, right) = (values(&fused.borrow().held), values(&twin.borrow().held));
            if is_flex {
                assert!(got == right, "the bits of the chain");
            }
            let pairs = got.iter::<f32>().zip(right.iter::<f32>());
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "within {worst}");
        }),
    }
}

/// All kernels on arrays of this length.
pub(crate) fn cases(elements: usize, device: &Device) -> Vec<Case> {
    vec![adamw(elements, device)]
}
