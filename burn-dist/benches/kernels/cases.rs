//! What is measured.

use std::cell::RefCell;
use std::rc::Rc;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use burn_dist::backend::{self, KernelChoice};
use burn_dist::fused::{FusedAdamW, FusedSgd};
use burn_dist::kernels::AdamWStep;

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

/// Runs a function by the kernel and by its twin; compares what both gave first.
fn of_function(
    (name, elements): (&'static str, usize),
    bytes: f64,
    device: &Device,
    tolerance: f64,
    function: impl FnMut(KernelChoice) -> Vec<Tensor<1>> + 'static,
) -> Case {
    let results: [Rc<RefCell<Vec<TensorData>>>; 2] = Default::default();
    let function = Rc::new(RefCell::new(function));
    let run = |choice: KernelChoice, result: Rc<RefCell<Vec<TensorData>>>| -> Box<dyn FnMut()> {
        let (function, device) = (function.clone(), device.clone());
        Box::new(move || {
            let tensors = (function.borrow_mut())(choice);
            settle(&device);
            // Only in the first round, which warms up and is not measured.
            if result.borrow().is_empty() {
                *result.borrow_mut() = tensors.into_iter().map(Tensor::into_data).collect();
            }
        })
    };
    Case {
        name,
        elements,
        bytes,
        copy_bytes: 8.0 * elements as f64,
        fused: run(KernelChoice::Fused, results[0].clone()),
        twin: run(KernelChoice::Twin, results[1].clone()),
        copy: copy(elements, device),
        verify: Box::new(move || {
            let (got, right) = (results[0].borrow(), results[1].borrow());
            assert!(!got.is_empty() && got.len() == right.len(), "both ran");
            for (got, right) in got.iter().zip(&*right) {
                assert_eq!(got.shape(), right.shape(), "{name}");
                let pairs = got.iter::<f64>().zip(right.iter::<f64>());
                let worst = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
                let worst = worst.fold(0.0, f64::max);
                assert!(worst <= tolerance, "{name}: off by {worst}");
            }
        }),
    }
}

/// Steps of an optimizer and of Burn's own.
fn optimizer<F: Optimizer + 'static, O: Optimizer + 'static>(
    (name, elements): (&'static str, usize),
    streams: f64,
    device: &Device,
    fused: F,
    stock: O,
) -> Case {
    let (parameter, gradient) = (random(elements, device), random(elements, device));
    let apart = || parameter.clone().add_scalar(0.0);
    let (mut of_fused, mut of_stock) = ((Some(apart()), None), (Some(apart()), None));
    let mut steps = [0; 2];
    let tolerance = if *device == Device::flex() { 0.0 } else { 1e-5 };
    let function = move |choice: KernelChoice| {
        let gradient = gradient.clone();
        let (stepped, number) = match choice {
            KernelChoice::Fused => {
                let (parameter, state) = (of_fused.0.take(), of_fused.1.take());
                let parameter = parameter.expect("it comes back");
                let (parameter, state) = fused.step(1e-3, parameter, gradient, state);
                of_fused = (Some(parameter), state);
                (of_fused.0.as_ref(), 0)
            }
            KernelChoice::Twin => {
                let (parameter, state) = (of_stock.0.take(), of_stock.1.take());
                let parameter = parameter.expect("it comes back");
                let (parameter, state) = stock.step(1e-3, parameter, gradient, state);
                of_stock = (Some(parameter), state);
                (of_stock.0.as_ref(), 1)
            }
        };
        steps[number] += 1;
        // Later a second holder would keep the next step from its place.
        let is_first = steps[number] == 1;
        let first = stepped.filter(|_| is_first);
        first
            .map(|first| first.clone().add_scalar(0.0))
            .into_iter()
            .collect()
    };
    let bytes = streams * 4.0 * elements as f64;
    of_function((name, elements), bytes, device, tolerance, function)
}

/// AdamW of 32-bit masters with 16-bit gradients, and 16-bit copies of the masters.
fn masters(elements: usize, device: &Device) -> Case {
    let gradient = random(elements, device).cast(DType::BF16);
    let start = || [(); 3].map(|()| Tensor::<1>::zeros([elements], device).add_scalar(0.01));
    let mut held = [Some(start()), Some(start())];
    let step = AdamWStep {
        lr: 1e-3,
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-5,
        weight_decay: 1e-4,
        time: 1,
        gradient_scale: 0.5,
    };
    let function = move |choice: KernelChoice| {
        let held = &mut held[usize::from(choice == KernelChoice::Twin)];
        let [p, m, v] = held.take().expect("it comes back");
        let gradient = gradient.clone();
        let (p, [m, v], copy) =
            backend::adamw_with_copies(p, gradient, [m, v], step, DType::BF16, choice);
        *held = Some([p, m, v]);
        vec![copy]
    };
    // Three arrays of 32 bits each way, one of 16 bits in, one out.
    let case = ("adamw, bf16 and masters", elements);
    of_function(case, 28.0 * elements as f64, device, 0.01, function)
}

/// Sixteen parts into a bucket.
fn pack(name: &'static str, elements: usize, dtype: DType, scale: f64, device: &Device) -> Case {
    let part = elements / 16;
    let parts: Vec<Tensor<1>> = (0..16).map(|_| random(part, device)).collect();
    let mut buckets = [(); 2].map(|()| {
        let filled = Tensor::<1>::zeros([16 * part], (device, dtype)).add_scalar(1.0);
        Some(filled)
    });
    let bytes = (4 + dtype.size()) as f64 * elements as f64;
    of_function((name, elements), bytes, device, 0.0, move |choice| {
        let held = &mut buckets[usize::from(choice == KernelChoice::Twin)];
        let mut bucket = held.take().expect("it comes back");
        for (number, values) in parts.iter().enumerate() {
            bucket = backend::pack(bucket, values.clone(), number * part, scale, choice);
        }
        let last = 16 * part - part.min(1000)..16 * part;
        let last = bucket.clone().slice([last]).add_scalar(0.0);
        *held = Some(bucket);
        vec![last]
    })
}

fn unpack(elements: usize, device: &Device) -> Case {
    let part = elements / 16;
    let bucket = random(16 * part, device);
    let bytes = 8.0 * elements as f64;
    let case = ("unpack f32, scaled", elements);
    of_function(case, bytes, device, 0.0, move |choice| {
        let parts = (0..16).map(|number| {
            let bucket = bucket.clone();
            backend::unpack(bucket, number * part, [part], 0.25, DType::F32, choice)
        });
        parts.collect()
    })
}

/// Sixteen gradients; beside the kernel the chain that Burn would take: squares, their sums, the root.
fn norm(elements: usize, device: &Device) -> Case {
    let part = elements / 16;
    let parts: Vec<Tensor<1>> = (0..16).map(|_| random(part, device)).collect();
    let on = device.clone();
    let bytes = 4.0 * elements as f64;
    of_function(("norm", elements), bytes, device, 1e-4, move |choice| {
        let norm = match choice {
            KernelChoice::Fused => backend::square_sum(parts.clone(), choice).norm() as f32,
            KernelChoice::Twin => {
                let sums = parts.iter().map(|part| part.clone().powi_scalar(2).sum());
                let sum = Tensor::cat(sums.collect(), 0).sum();
                sum.sqrt().into_scalar::<f32>()
            }
        };
        vec![Tensor::from_data([norm], &on)]
    })
}

/// Rows of logits over 8192 tokens, forward and backward.
fn loss(elements: usize, device: &Device) -> Case {
    let columns = 8192.min(elements);
    let rows = elements / columns;
    let logits = random(rows * columns, device).reshape([rows, columns]);
    let targets = (0..rows as i64).map(|row| row * 7919 % columns as i64);
    let targets: Vec<i64> = targets.collect();
    let targets = Tensor::<1, Int>::from_data(targets.as_slice(), device).reshape([rows, 1]);
    // Read forward, read and written backward.
    let bytes = 12.0 * (rows * columns) as f64;
    let case = ("loss, both passes", rows * columns);
    let mut held = [(); 2].map(|()| Some(logits.clone().add_scalar(0.0)));
    of_function(case, bytes, device, 1e-5, move |choice| {
        let held = &mut held[usize::from(choice == KernelChoice::Twin)];
        let logits = held.take().expect("it comes back");
        let parts = backend::row_parts(logits.clone(), targets.clone(), columns, choice);
        let column = |number: usize| parts.clone().narrow(1, number, 1);
        let losses = column(1).log() + column(0) - column(2);
        let every = |value: f64| column(0).zeros_like().add_scalar(value);
        let slopes = vec![column(0), column(1).recip(), every(0.0), every(1.0)];
        let slopes = Tensor::cat(slopes, 1);
        // The next round's logits are this one's gradient.
        let gradient = backend::row_slopes(logits, targets.clone(), slopes, columns, choice);
        let first = gradient.clone().slice([0..rows.min(4)]).add_scalar(0.0);
        *held = Some(gradient);
        vec![losses.reshape([-1]), first.reshape([-1])]
    })
}

fn rank_sum(elements: usize, device: &Device) -> Case {
    let parts = random(4 * elements, device).reshape([4, elements]);
    let bytes = 20.0 * elements as f64;
    let case = ("sum of 4 ranks", elements);
    of_function(case, bytes, device, 1e-6, move |choice| {
        vec![backend::rank_sum(parts.clone(), false, choice)]
    })
}

fn merge(elements: usize, device: &Device) -> Case {
    let (columns, rows) = (64, elements / 64);
    let array = |columns: usize| random(rows * columns, device).reshape([rows, columns]);
    let (other, logs) = (array(columns), [array(1), array(1)]);
    let start: Tensor<2> = array(columns);
    let mut held = [(); 2].map(|()| Some(start.clone().add_scalar(0.0)));
    // Two arrays are read, one is written.
    let bytes = 12.0 * (rows * columns) as f64;
    let case = ("softmax merge", rows * columns);
    of_function(case, bytes, device, 1e-5, move |choice| {
        let held = &mut held[usize::from(choice == KernelChoice::Twin)];
        let outputs = [held.take().expect("it comes back"), other.clone()];
        let (output, log) = backend::softmax_merge(outputs, logs.clone(), choice);
        let first = output.clone().slice([0..rows.min(100)]).add_scalar(0.0);
        *held = Some(output);
        vec![first.reshape([-1]), log.reshape([-1])]
    })
}

/// Names of all cases.
pub(crate) const NAMES: [&str; 12] = [
    "adamw",
    "masters",
    "sgd",
    "pack",
    "pack-scaled",
    "pack-bf16",
    "pack-f16",
    "unpack",
    "norm",
    "loss",
    "rank-sum",
    "merge",
];

/// A kernel on arrays of this length, by its name.
pub(crate) fn case(name: &str, elements: usize, device: &Device) -> Case {
    match name {
        "adamw" => {
            let config = AdamWConfig::new();
            let (fused, stock) = (FusedAdamW::new(&config), config.build());
            optimizer(("adamw", elements), 7.0, device, fused, stock)
        }
        "masters" => masters(elements, device),
        "sgd" => {
            let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
            let (fused, stock) = (FusedSgd::new(&config), config.build());
            optimizer(("sgd with momentum", elements), 5.0, device, fused, stock)
        }
        "pack" => pack("pack f32", elements, DType::F32, 1.0, device),
        "pack-scaled" => pack("pack f32, scaled", elements, DType::F32, 0.25, device),
        "pack-bf16" => pack("pack bf16, scaled", elements, DType::BF16, 0.25, device),
        "pack-f16" => pack("pack f16, scaled", elements, DType::F16, 0.25, device),
        "unpack" => unpack(elements, device),
        "norm" => norm(elements, device),
        "loss" => loss(elements, device),
        "rank-sum" => rank_sum(elements, device),
        "merge" => merge(elements, device),
        other => panic!("no kernel is called {other}; there are {NAMES:?}"),
    }
}
