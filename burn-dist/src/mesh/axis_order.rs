//! [`AxisOrder`]: which axis has neighbouring ranks.

use std::fmt;
use std::str::FromStr;

use super::MeshAxis;
use crate::error::DistError;

/// The order of the axes, fastest first: ranks that are neighbours in number differ in the first.
///
/// Put the axis that talks most first, so that its groups stay within a host. Written with
/// Megatron's names, `tp-cp-ep-dp-pp` (the default): `dp` stands for `dp_shard` and then
/// `dp_replicate`; `ep` orders nothing among the dense axes, as experts are a second view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisOrder {
    dense: [MeshAxis; 5],
    /// As it was written.
    text: String,
}

impl AxisOrder {
    /// The five dense axes, fastest first.
    pub fn dense(&self) -> &[MeshAxis; 5] {
        &self.dense
    }

    /// Whether `pp` is outermost, as the expert view needs it.
    pub fn is_pp_outermost(&self) -> bool {
        self.dense[4] == MeshAxis::Pp
    }
}

impl Default for AxisOrder {
    fn default() -> Self {
        "tp-cp-ep-dp-pp"
            .parse()
            .expect("invariant: the default order is right")
    }
}

impl fmt::Display for AxisOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for AxisOrder {
    type Err = DistError;

    /// Reads names joined by `-`, fastest first. `cp` and `ep` may be left out; they are then
    /// placed after `tp`.
    fn from_str(text: &str) -> Result<Self, DistError> {
        let refuse = |problem: String| {
            DistError::config(
                format!("the axis order {text:?} {problem}"),
                "write each of tp, cp, ep, dp and pp once, fastest first, as tp-cp-ep-dp-pp",
            )
        };
        let mut names: Vec<&str> = text.split('-').collect();
        if !names.contains(&"cp") {
            let after_tp = names
                .iter()
                .position(|&name| name == "tp")
                .map_or(0, |at| at + 1);
            names.insert(after_tp, "cp");
        }
        let mut dense = Vec::with_capacity(5);
        for name in names.into_iter().filter(|&name| name != "ep") {
            let axes: &[MeshAxis] = match name {
                "tp" => &[MeshAxis::Tp],
                "cp" => &[MeshAxis::Cp],
                "dp" => &[MeshAxis::DpShard, MeshAxis::DpReplicate],
                "dp_shard" => &[MeshAxis::DpShard],
                "dp_replicate" => &[MeshAxis::DpReplicate],
                "pp" => &[MeshAxis::Pp],
                other => return Err(refuse(format!("names {other:?}"))),
            };
            for &axis in axes {
                if dense.contains(&axis) {
                    return Err(refuse(format!("names {axis} twice")));
                }
                dense.push(axis);
            }
        }
        for axis in [
            MeshAxis::Tp,
            MeshAxis::DpShard,
            MeshAxis::DpReplicate,
            MeshAxis::Pp,
        ] {
            if !dense.contains(&axis) {
                return Err(refuse(format!("lacks {axis}")));
            }
        }
        let dense = dense
            .try_into()
            .expect("invariant: five different dense axes");
        Ok(Self {
            dense,
            text: text.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_or_refused_by_name() {
        let order: AxisOrder = "tp-pp-dp".parse().expect("an order");
        let names: Vec<&str> = order.dense().iter().map(|axis| axis.name()).collect();
        assert_eq!(names, ["tp", "cp", "pp", "dp_shard", "dp_replicate"]);
        for (text, word) in [
            ("tp-cp-dp", "lacks pp"),
            ("tp-tp-dp-pp", "tp twice"),
            ("tp-dp-pp-xx", "\"xx\""),
            ("", "\"\""),
        ] {
            let error = text.parse::<AxisOrder>().expect_err(text).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
