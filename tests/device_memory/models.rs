//! Models without matrix products: on CubeCL's CPU runtime those wait for each other in a loop, and take seconds each
//! where cores are few.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};

/// A model with a loss on numbered items.
pub(crate) trait Toy: Module {
    fn init(device: &Device) -> Self;
    fn loss(&self, item: usize, device: &Device) -> Tensor<1>;
}

const ROWS: usize = 3;
const WIDTH: usize = 7;

pub(crate) fn fill(shape: [usize; 2], seed: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..shape[0] * shape[1])
        .map(|i| (((i + 1) * (seed + 3) * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn input(item: usize, device: &Device) -> Tensor<2> {
    fill([ROWS, WIDTH], item + 100, device)
}

fn square_mean(output: Tensor<2>) -> Tensor<1> {
    output.square().mean()
}

/// `tanh(x * w + b)`, all element by element; `b` is one row.
#[derive(Module, Debug)]
pub(crate) struct Cell {
    weight: Param<Tensor<2>>,
    shift: Param<Tensor<2>>,
}

impl Cell {
    fn new(seed: usize, device: &Device) -> Self {
        Self {
            weight: Param::from_tensor(fill([ROWS, WIDTH], seed, device)),
            shift: Param::from_tensor(fill([1, WIDTH], seed + 50, device)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        (x * self.weight.val() + self.shift.val()).tanh()
    }
}

/// A chain.
#[derive(Module, Debug)]
pub(crate) struct Chain {
    cells: Vec<Cell>,
}

impl Toy for Chain {
    fn init(device: &Device) -> Self {
        Self {
            cells: (0..4).map(|seed| Cell::new(seed, device)).collect(),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let cells = self.cells.iter();
        square_mean(cells.fold(input(item, device), |x, cell| x.clone() + cell.forward(x)))
    }
}

/// A part that is not trained, a cell that is used twice, and one that nobody uses.
#[derive(Module, Debug)]
pub(crate) struct Partly {
    frozen: Cell,
    twice: Cell,
    idle: Cell,
}

impl Toy for Partly {
    fn init(device: &Device) -> Self {
        Self {
            frozen: Cell::new(1, device).no_grad(),
            twice: Cell::new(2, device),
            idle: Cell::new(4, device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = self.frozen.forward(input(item, device));
        square_mean(self.twice.forward(self.twice.forward(x)))
    }
}

/// A cell that only some items use, and so only some ranks.
#[derive(Module, Debug)]
pub(crate) struct Sometimes {
    always: Cell,
    sometimes: Cell,
}

impl Toy for Sometimes {
    fn init(device: &Device) -> Self {
        Self {
            always: Cell::new(2, device),
            sometimes: Cell::new(3, device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let mut x = self.always.forward(input(item, device));
        if item.is_multiple_of(3) {
            x = self.sometimes.forward(x);
        }
        square_mean(x)
    }
}

/// Named as what Burn's recurrent layers are made of, whose gradients are taken when the backward pass has ended.
#[derive(Module, Debug)]
pub(crate) struct GateController {
    cell: Cell,
}

/// A recurrence.
#[derive(Module, Debug)]
pub(crate) struct Recurrent {
    gate: GateController,
    head: Cell,
}

impl Toy for Recurrent {
    fn init(device: &Device) -> Self {
        Self {
            gate: GateController {
                cell: Cell::new(5, device),
            },
            head: Cell::new(6, device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = (0..3).fold(input(item, device), |x, _| self.gate.cell.forward(x));
        square_mean(self.head.forward(x))
    }
}

/// Computes in the type of its parameters.
#[derive(Module, Debug)]
pub(crate) struct Narrow {
    first: Cell,
    second: Cell,
}

impl Toy for Narrow {
    fn init(device: &Device) -> Self {
        Self {
            first: Cell::new(7, device),
            second: Cell::new(8, device),
        }
    }

    fn loss(&self, item: usize, device: &Device) -> Tensor<1> {
        let x = input(item, device).cast(self.first.weight.val().dtype());
        let output = self.second.forward(self.first.forward(x));
        square_mean(output.cast(DType::F32))
    }
}
