//! [`RankOutput`]: outputs that travel to the rank that computes metrics.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn::train::{
    ClassificationOutput, ItemLazy, MultiLabelClassificationOutput, RegressionOutput,
    SequenceOutput,
};
use serde::{Deserialize, Serialize};

use crate::error::{DistError, Result};

/// An output of a model's `TrainStep` or `InferenceStep` that can be sent to another rank, where the metrics
/// are. Burn's own outputs are; for one of your own, list its tensors:
///
/// ```
/// use burn::tensor::{Device, ExecutionError, Tensor, TensorData};
/// use burn::train::ItemLazy;
/// use burn_dist::train::RankOutput;
///
/// struct Scored { loss: Tensor<1>, score: Tensor<2> }
///
/// impl ItemLazy for Scored {
///     fn sync(self) -> std::result::Result<Self, ExecutionError> {
///         Ok(self)
///     }
/// }
///
/// impl RankOutput for Scored {
///     fn into_parts(self) -> Vec<TensorData> {
///         vec![self.loss.into_data(), self.score.into_data()]
///     }
///
///     fn from_parts(mut parts: Vec<TensorData>, device: &Device) -> Option<Self> {
///         let (score, loss) = (parts.pop()?, parts.pop()?);
///         Some(Self {
///             loss: Tensor::from_data(loss, device),
///             score: Tensor::from_data(score, device),
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "outputs of type `{Self}` cannot be sent to the rank that computes metrics",
    note = "implement `burn_dist::train::RankOutput` for it: list its tensors, and make it from them"
)]
pub trait RankOutput: ItemLazy + 'static {
    /// Its tensors, in an order of its own.
    fn into_parts(self) -> Vec<TensorData>;

    /// Made from its tensors again, on `device`; `None` if these are not what
    /// [`into_parts`](Self::into_parts) gives.
    fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self>;
}

fn float<const D: usize>(part: TensorData, device: &Device) -> Option<Tensor<D>> {
    let dtype = part.dtype();
    (part.rank() == D && dtype.is_float()).then(|| Tensor::from_data(part, (device, dtype)))
}

fn int<const D: usize>(part: TensorData, device: &Device) -> Option<Tensor<D, Int>> {
    let dtype = part.dtype();
    let is_int = dtype.is_int() || dtype.is_uint();
    (part.rank() == D && is_int).then(|| Tensor::from_data(part, (device, dtype)))
}

impl RankOutput for () {
    fn into_parts(self) -> Vec<TensorData> {
        Vec::new()
    }

    fn from_parts(parts: Vec<TensorData>, _device: &Device) -> Option<Self> {
        parts.is_empty().then_some(())
    }
}

/// For an output of three tensors.
macro_rules! three_tensors {
    ($output:ident, $targets:ident) => {
        impl RankOutput for $output {
            fn into_parts(self) -> Vec<TensorData> {
                vec![
                    self.loss.into_data(),
                    self.output.into_data(),
                    self.targets.into_data(),
                ]
            }

            fn from_parts(parts: Vec<TensorData>, device: &Device) -> Option<Self> {
                let [loss, output, targets] = parts.try_into().ok()?;
                Some(Self {
                    loss: float(loss, device)?,
                    output: float(output, device)?,
                    targets: $targets(targets, device)?,
                })
            }
        }
    };
}

three_tensors!(ClassificationOutput, int);
three_tensors!(MultiLabelClassificationOutput, int);
three_tensors!(RegressionOutput, float);

impl RankOutput for SequenceOutput {
    fn into_parts(self) -> Vec<TensorData> {
        let mut parts = vec![
            self.loss.into_data(),
            self.logits.into_data(),
            self.targets.into_data(),
        ];
        parts.extend(self.predictions.map(Tensor::into_data));
        parts
    }

    fn from_parts(mut parts: Vec<TensorData>, device: &Device) -> Option<Self> {
        let predictions = match parts.len() {
            4 => Some(int(parts.pop()?, device)?),
            _ => None,
        };
        let [loss, logits, targets] = parts.try_into().ok()?;
        Some(Self {
            loss: float(loss, device)?,
            logits: float(logits, device)?,
            predictions,
            targets: int(targets, device)?,
        })
    }
}

/// What the bytes of an output say first.
#[derive(Serialize, Deserialize)]
struct Contents(Vec<(Vec<usize>, DType)>);

/// As bytes: the length of the table of contents, the table, each tensor's elements.
pub(super) fn encode(parts: Vec<TensorData>) -> Vec<u8> {
    let contents = parts.iter().map(|p| (p.shape().to_vec(), p.dtype()));
    let contents = serde_json::to_vec(&Contents(contents.collect()));
    let contents = contents.expect("invariant: numbers and names are JSON");
    let mut bytes = (contents.len() as u64).to_le_bytes().to_vec();
    bytes.extend(contents);
    parts.iter().for_each(|part| bytes.extend(part.as_bytes()));
    bytes
}

/// The way back.
///
/// # Errors
/// [`DistError::Config`] if an output of this type has other parts, as when ranks run different programs.
pub(super) fn decode<T: RankOutput>(bytes: &[u8], device: &Device) -> Result<T> {
    let parts = read(bytes).and_then(|parts| T::from_parts(parts, device));
    parts.ok_or_else(|| {
        DistError::config(
            format!(
                "the {} bytes that came are not those of a {}",
                bytes.len(),
                std::any::type_name::<T>()
            ),
            "run the same program on all ranks; of your own outputs, from_parts must take what into_parts gives",
        )
    })
}

fn read(bytes: &[u8]) -> Option<Vec<TensorData>> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (contents, mut rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let Contents(contents) = serde_json::from_slice(contents).ok()?;
    let mut parts = Vec::new();
    for (shape, dtype) in contents {
        let count = shape.iter().product::<usize>() * dtype.size();
        let (elements, others) = rest.split_at_checked(count)?;
        parts.push(TensorData::from_bytes_vec(elements.to_vec(), shape, dtype));
        rest = others;
    }
    rest.is_empty().then_some(parts)
}
