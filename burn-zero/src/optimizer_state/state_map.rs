//! [`StateMap`]: which rank keeps what of each parameter's state. Pure.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use burn_dist::{DistError, Result};
use burn_pack::{Reader, Scalar, Tensor, Writer};

/// How the state of a parameter lies on the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// In pieces: the elements of each rank, row-major.
    Cut {
        shape: Vec<usize>,
        elements: Vec<Range<usize>>,
    },
    /// By one rank, or by all alike.
    Whole { owner: Option<usize> },
}

/// How the state of a model's optimizer lies on the ranks.
///
/// Burn's record names a state's tensors and numbers `"{identifier}.{field}"`. Ranks that are processes have drawn
/// identifiers of their own, so between ranks it is `"#{number}.{field}"`, with the parameter's place in this map. Of
/// a parameter that is cut, each rank's tensors are flat and as long as its piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateMap {
    parameters: Vec<(u64, Held)>,
    numbers: HashMap<u64, usize>,
}

/// Under this name a record has a parameter's number of dimensions.
const DIMENSIONS: &str = "__rank";

/// A record's content.
#[derive(Default)]
struct Parts {
    tensors: BTreeMap<String, Tensor>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

impl Parts {
    fn read(bytes: Bytes) -> Result<Self> {
        let reader = Reader::from_bytes(bytes).map_err(unreadable)?;
        let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
        let tensors = reader.into_tensors().map_err(unreadable)?.into_iter();
        Ok(Self {
            tensors: tensors
                .map(|tensor| (tensor.name.clone(), tensor))
                .collect(),
            scalars,
            paths,
        })
    }

    /// With other names for parameters; without those that have none.
    fn renamed(self, name: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let entry = |entry: String| match entry.split_once('.') {
            Some((id, field)) => name(id).map(|id| format!("{id}.{field}")),
            None => name(&entry),
        };
        let mut renamed = Self::default();
        for (name, mut tensor) in self.tensors {
            if let Some(name) = entry(name) {
                tensor.name.clone_from(&name);
                renamed.tensors.insert(name, tensor);
            }
        }
        let scalars = self.scalars.into_iter();
        renamed.scalars = scalars
            .filter_map(|(name, value)| Some((entry(name)?, value)))
            .collect();
        let paths = self.paths.into_iter();
        renamed.paths = paths
            .filter_map(|(name, path)| Some((entry(name)?, path)))
            .collect();
        Ok(renamed)
    }

    fn into_record(self) -> Result<OptimizerRecord> {
        OptimizerRecord::from_bytes(self.into_bytes()?).map_err(unreadable)
    }

    fn into_bytes(self) -> Result<Bytes> {
        let mut writer = Writer::new(self.tensors.into_values().collect());
        for (name, value) in self.scalars {
            writer = writer.with_scalar(&name, value);
        }
        for (name, path) in &self.paths {
            writer = writer.with_metadata(name, path);
        }
        writer.into_bytes().map_err(unreadable)
    }
}

fn unreadable(error: impl std::fmt::Display) -> DistError {
    DistError::config(
        format!("an optimizer's state cannot be read or written: {error}"),
        "use a record of this version of Burn",
    )
}

fn product(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl StateMap {
    /// In the same order on all ranks.
    pub(crate) fn insert(&mut self, id: ParamId, held: Held) {
        self.numbers.insert(id.val(), self.parameters.len());
        self.parameters.push((id.val(), held));
    }

    /// The parameter that an entry of this rank's record belongs to.
    fn of(&self, name: &str) -> Option<&Held> {
        let id = name.split('.').next()?.parse().ok()?;
        let number = *self.numbers.get(&id)?;
        Some(&self.parameters[number].1)
    }

    /// This rank's record with numbers in place of identifiers. Of parameters that are not in the map, those of the
    /// first rank count.
    pub(crate) fn numbered(&self, own: Bytes, index: usize) -> Result<Bytes> {
        let own = Parts::read(own)?;
        own.renamed(|id| match self.numbers.get(&id.parse().ok()?) {
            Some(number) => Some(format!("#{number}")),
            None => (index == 0).then(|| id.into()),
        })?
        .into_bytes()
    }

    /// What a rank keeps of a whole record.
    pub(crate) fn cut(&self, whole: Bytes, index: usize) -> Result<OptimizerRecord> {
        let whole = Parts::read(whole)?;
        if !whole.tensors.keys().any(|name| self.of(name).is_some()) {
            return Err(DistError::config(
                "an optimizer's state has no parameter of this model",
                "load the model of the same checkpoint first: a record knows parameters by their identifiers",
            ));
        }
        let keeps = |name: &str| match self.of(name) {
            // Of a parameter that every rank has to itself.
            None => true,
            Some(Held::Whole { owner }) => owner.is_none_or(|owner| owner == index),
            Some(Held::Cut { elements, .. }) => !elements[index].is_empty(),
        };
        let mut own = Parts::default();
        for (name, tensor) in whole.tensors.into_iter().filter(|(name, _)| keeps(name)) {
            let tensor = match self.of(&name) {
                Some(Held::Cut { shape, elements }) => {
                    let range = elements[index].clone();
                    slice(tensor, shape, range)?
                }
                _ => tensor,
            };
            own.tensors.insert(name, tensor);
        }
        for (name, value) in whole.scalars.into_iter().filter(|(name, _)| keeps(name)) {
            let is_cut = matches!(self.of(&name), Some(Held::Cut { .. }));
            let value = match is_cut && name.ends_with(DIMENSIONS) {
                true => Scalar::from(1usize),
                false => value,
            };
            own.scalars.insert(name, value);
        }
        own.paths = whole.paths;
        own.into_record()
    }

    /// The whole record with this rank's identifiers, from the [numbered](Self::numbered) ones of all ranks.
    pub(crate) fn join(&self, records: Vec<Bytes>) -> Result<OptimizerRecord> {
        let mut whole = Parts::default();
        let mut cut: BTreeMap<String, Joined> = BTreeMap::new();
        for (index, record) in records.into_iter().enumerate() {
            let part = Parts::read(record)?;
            for (name, tensor) in part.tensors {
                match self.numbered_held(&name) {
                    Some(Held::Cut { shape, elements }) => {
                        let joined = cut
                            .entry(name)
                            .or_insert_with(|| Joined::new(&tensor, shape));
                        joined.put(tensor, elements[index].clone())?;
                    }
                    _ => {
                        whole.tensors.entry(name).or_insert(tensor);
                    }
                }
            }
            for (name, value) in part.scalars {
                let value = match self.numbered_held(&name) {
                    Some(Held::Cut { shape, .. }) if name.ends_with(DIMENSIONS) => {
                        Scalar::from(shape.len())
                    }
                    _ => value,
                };
                whole.scalars.entry(name).or_insert(value);
            }
            for (name, path) in part.paths {
                whole.paths.entry(name).or_insert(path);
            }
        }
        for (name, joined) in cut {
            let tensor = joined.finish(&name)?;
            whole.tensors.insert(name, tensor);
        }
        let mut whole = whole.renamed(|name| match self.by_number(name) {
            Some((id, _)) => Some(id.to_string()),
            None => Some(name.into()),
        })?;
        for (name, tensor) in &mut whole.tensors {
            tensor.param_id = name.split('.').next().and_then(|id| id.parse().ok());
        }
        whole.into_record()
    }

    fn by_number(&self, name: &str) -> Option<&(u64, Held)> {
        let number: usize = name.strip_prefix('#')?.parse().ok()?;
        self.parameters.get(number)
    }

    fn numbered_held(&self, entry: &str) -> Option<&Held> {
        let (_, held) = self.by_number(entry.split('.').next()?)?;
        Some(held)
    }
}

fn not_by_element(tensor: &Tensor, elements: usize) -> DistError {
    DistError::config(
        format!(
            "{} of an optimizer's state has shape {:?}: not a number for each of {elements} elements",
            tensor.name, tensor.shape
        ),
        "implement ElementWise only for optimizers whose state has the parameter's shape",
    )
}

/// Some elements of a whole tensor.
fn slice(tensor: Tensor, shape: &[usize], range: Range<usize>) -> Result<Tensor> {
    if tensor.shape.as_slice() != shape {
        return Err(not_by_element(&tensor, product(shape)));
    }
    let (name, dtype, _, id, bytes) = tensor.into_parts().map_err(unreadable)?;
    let size = dtype.size();
    let own = bytes[range.start * size..range.end * size].to_vec();
    let own = Bytes::from_bytes_vec(own);
    Ok(Tensor::new(name, dtype, vec![range.len()], id, own))
}

/// A whole tensor that pieces are put into.
struct Joined {
    dtype: DType,
    shape: Vec<usize>,
    id: Option<u64>,
    bytes: Vec<u8>,
    filled: usize,
}

impl Joined {
    fn new(first: &Tensor, shape: &[usize]) -> Self {
        Self {
            dtype: first.dtype,
            shape: shape.to_vec(),
            id: first.param_id,
            bytes: vec![0; product(shape) * first.dtype.size()],
            filled: 0,
        }
    }

    fn put(&mut self, piece: Tensor, range: Range<usize>) -> Result<()> {
        if piece.shape.as_slice() != [range.len()] || piece.dtype != self.dtype {
            return Err(not_by_element(&piece, range.len()));
        }
        let size = self.dtype.size();
        let (.., bytes) = piece.into_parts().map_err(unreadable)?;
        self.bytes[range.start * size..range.end * size].copy_from_slice(&bytes);
        self.filled += range.len();
        Ok(())
    }

    fn finish(self, name: &str) -> Result<Tensor> {
        if self.filled != product(&self.shape) {
            return Err(DistError::config(
                format!(
                    "{name} of an optimizer's state has {} of {} elements on all ranks together",
                    self.filled,
                    product(&self.shape)
                ),
                "call this after the same step on all ranks",
            ));
        }
        let bytes = Bytes::from_bytes_vec(self.bytes);
        let name = name.to_string();
        Ok(Tensor::new(name, self.dtype, self.shape, self.id, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(id: u64, shape: &[usize]) -> Parts {
        let count = product(shape);
        let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
        let bytes = Bytes::from_elems(values);
        let name = format!("{id}.moment_1");
        let mut parts = Parts::default();
        let tensor = Tensor::new(name.clone(), DType::F32, shape.to_vec(), Some(id), bytes);
        parts.tensors.insert(name, tensor);
        let dimensions = Scalar::from(shape.len());
        parts.scalars.insert(format!("{id}.__rank"), dimensions);
        parts
            .scalars
            .insert(format!("{id}.time"), Scalar::from(3usize));
        parts.paths.insert(id.to_string(), "layer.weight".into());
        parts
    }

    fn shared(record: OptimizerRecord) -> Bytes {
        record.into_bytes().expect("bytes").shared()
    }

    proptest! {
        /// Also where a rank has nothing of a parameter, and where nobody has.
        #[test]
        fn a_record_in_parts_is_the_whole_record_again(
            (rows, columns) in (0usize..5, 0usize..5),
            mut ends in proptest::collection::vec(0usize..=25, 0..4),
        ) {
            let count = rows * columns;
            ends.iter_mut().for_each(|end| *end = (*end).min(count));
            ends.sort_unstable();
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let cuts = starts.zip(ends.iter().copied().chain([count]));
            let elements: Vec<_> = cuts.map(|(start, end)| start..end).collect();
            let ranks = elements.len();
            // Each rank has drawn its own identifiers.
            let cut = |index: u64| 7 + 10 * index;
            let owned = |index: u64| 8 + 10 * index;
            let map = |index: u64| {
                let mut map = StateMap::default();
                let (shape, elements) = (vec![rows, columns], elements.clone());
                map.insert(cut(index).into(), Held::Cut { shape, elements });
                map.insert(owned(index).into(), Held::Whole { owner: Some(ranks - 1) });
                map
            };
            let whole = |index: u64| {
                let mut parts = record(cut(index), &[rows, columns]);
                let other = record(owned(index), &[2, 3]);
                parts.tensors.extend(other.tensors);
                parts.scalars.extend(other.scalars);
                parts.paths.extend(other.paths);
                shared(parts.into_record().expect("a record"))
            };
            let own = |index: u64| {
                let part = map(index).cut(whole(index), index as usize).map(shared);
                let numbered = map(index).numbered(part.expect("a part"), index as usize);
                numbered.expect("numbers")
            };
            let own: Vec<Bytes> = (0..ranks as u64).map(own).collect();
            let again = shared(map(0).join(own).expect("the whole"));
            if count > 0 {
                prop_assert_eq!(&*again, &*whole(0));
            }
        }
    }

    #[test]
    fn what_is_not_by_element_is_refused() {
        let mut map = StateMap::default();
        let elements = vec![0..3, 3..6];
        map.insert(
            7.into(),
            Held::Cut {
                shape: vec![2, 3],
                elements,
            },
        );
        let bytes = |parts: Parts| shared(parts.into_record().expect("a record"));
        let cut = map.cut(bytes(record(7, &[3, 2])), 0).expect_err("a shape");
        assert!(cut.to_string().contains("7.moment_1"), "{cut}");
        let strange = map.cut(bytes(record(9, &[2, 3])), 0).expect_err("a name");
        assert!(strange.to_string().contains("no parameter"), "{strange}");
        let part = || map.numbered(bytes(record(7, &[3])), 0).expect("numbers");
        let few = map.join(vec![part()]).expect_err("half of it");
        assert!(few.to_string().contains("3 of 6"), "{few}");
        map.join(vec![part(), part()]).expect("all of it");
    }
}
