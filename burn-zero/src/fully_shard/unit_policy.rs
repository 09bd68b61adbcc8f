//! [`UnitPolicy`] and [`ShardUnit`]: which parameters travel together. Pure.

/// A unit of parameters that are gathered in one call and whose gradients are reduced in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardUnit {
    /// Where it lies in the model, as `blocks.3`.
    pub name: String,
    /// The numbers of its parameters, ascending.
    pub parameters: Vec<usize>,
}

/// How a model's parameters are divided into units.
///
/// At most two units are whole at a time, one in use and one on its way: large units hide more, small
/// ones hold less.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UnitPolicy {
    /// A unit per layer: per element of each list of modules, and per field of the model otherwise.
    #[default]
    PerLayer,
    /// A unit per path, as `encoder.layers.0`; a parameter belongs to the longest path that leads to it,
    /// and the others form a unit of their own.
    ByPath(Vec<String>),
    /// In the model's order, closed when they have reached this many bytes.
    BySize(usize),
    /// One unit.
    Whole,
}

/// What planning needs to know of a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned<'a, K> {
    pub(crate) number: usize,
    pub(crate) name: &'a str,
    pub(crate) bytes: usize,
    /// Parameters of a unit agree in this.
    pub(crate) kind: K,
}

impl UnitPolicy {
    /// Divides parameters, given in the model's order. Units smaller than `least` bytes join their
    /// neighbour where kinds allow it.
    pub(crate) fn plan<K: Copy + PartialEq>(
        &self,
        parameters: &[Planned<'_, K>],
        least: usize,
    ) -> Vec<ShardUnit> {
        let mut units: Vec<(ShardUnit, K, usize)> = Vec::new();
        for parameter in parameters {
            let name = self.unit_of(parameter.name);
            let fits = |(unit, kind, bytes): &(ShardUnit, K, usize)| {
                let room = match self {
                    Self::BySize(size) => bytes < size,
                    _ => unit.name == name,
                };
                room && *kind == parameter.kind
            };
            // Only the last unit by size is open.
            let found = match self {
                Self::BySize(_) => units
                    .len()
                    .checked_sub(1)
                    .filter(|&last| fits(&units[last])),
                _ => units.iter().position(fits),
            };
            let unit = found.unwrap_or_else(|| {
                let parameters = Vec::new();
                units.push((ShardUnit { name, parameters }, parameter.kind, 0));
                units.len() - 1
            });
            units[unit].0.parameters.push(parameter.number);
            units[unit].2 += parameter.bytes;
        }
        let mut joined: Vec<(ShardUnit, K, usize)> = Vec::new();
        let total = units.len();
        for (number, (unit, kind, bytes)) in units.into_iter().enumerate() {
            let is_last = number + 1 == total;
            match joined.last_mut() {
                Some((last, known, held))
                    if *known == kind && (*held < least || is_last && bytes < least) =>
                {
                    last.name = format!("{}..{}", last.first_name(), unit.name);
                    last.parameters.extend(unit.parameters);
                    *held += bytes;
                }
                _ => joined.push((unit, kind, bytes)),
            }
        }
        joined
            .into_iter()
            .map(|(mut unit, ..)| {
                unit.parameters.sort_unstable();
                unit
            })
            .collect()
    }

    fn unit_of(&self, path: &str) -> String {
        match self {
            Self::PerLayer => {
                let parts: Vec<&str> = path.split('.').collect();
                let listed = parts.iter().position(|part| part.parse::<usize>().is_ok());
                parts[..=listed.unwrap_or(0)].join(".")
            }
            Self::ByPath(paths) => {
                let leads = |prefix: &&String| {
                    path.strip_prefix(prefix.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                let longest = paths.iter().filter(leads).max_by_key(|path| path.len());
                longest.cloned().unwrap_or_else(|| "the rest".into())
            }
            Self::BySize(_) => path.into(),
            Self::Whole => "the model".into(),
        }
    }
}

impl ShardUnit {
    fn first_name(&self) -> &str {
        self.name
            .split_once("..")
            .map_or(&self.name, |(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(names: &[&'static str]) -> Vec<Planned<'static, u8>> {
        let parameter = |(number, &name)| Planned {
            number,
            name,
            bytes: 100,
            kind: 0,
        };
        names.iter().enumerate().map(parameter).collect()
    }

    fn shown(units: &[ShardUnit]) -> Vec<String> {
        let line = |unit: &ShardUnit| format!("{} {:?}", unit.name, unit.parameters);
        units.iter().map(line).collect()
    }

    const GPT: &[&str] = &[
        "tokens.weight",
        "blocks.0.up.weight",
        "blocks.0.up.bias",
        "blocks.1.up.weight",
        "head.weight",
    ];

    #[test]
    fn a_unit_per_layer() {
        let parameters = planned(GPT);
        let units = UnitPolicy::PerLayer.plan(&parameters, 0);
        assert_eq!(
            shown(&units),
            ["tokens [0]", "blocks.0 [1, 2]", "blocks.1 [3]", "head [4]"]
        );
        let units = UnitPolicy::PerLayer.plan(&parameters, 150);
        assert_eq!(
            shown(&units),
            ["tokens..blocks.0 [0, 1, 2]", "blocks.1..head [3, 4]"]
        );
        let units = UnitPolicy::PerLayer.plan(&parameters, 1000);
        assert_eq!(shown(&units), ["tokens..head [0, 1, 2, 3, 4]"]);
    }

    #[test]
    fn by_path_by_size_and_whole() {
        let mut parameters = planned(GPT);
        let by_path = UnitPolicy::ByPath(vec!["blocks".into(), "blocks.1".into(), "head.w".into()]);
        let units = by_path.plan(&parameters, 0);
        assert_eq!(
            shown(&units),
            ["the rest [0, 4]", "blocks [1, 2]", "blocks.1 [3]"]
        );
        let units = UnitPolicy::BySize(150).plan(&parameters, 0);
        assert_eq!(
            shown(&units),
            [
                "tokens.weight [0, 1]",
                "blocks.0.up.bias [2, 3]",
                "head.weight [4]"
            ]
        );
        parameters[2].kind = 1;
        let units = UnitPolicy::Whole.plan(&parameters, 0);
        assert_eq!(shown(&units), ["the model [0, 1, 3, 4]", "the model [2]"]);
        assert_eq!(UnitPolicy::Whole.plan::<u8>(&[], 0), []);
    }
}
