//! [`AuditReport`]: what an audit found.

use std::fmt;

use crate::placement::AxisPlacement;

/// What an audit found of each trained parameter, in visiting order.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditReport {
    /// The parameters.
    pub parameters: Vec<AuditedParameter>,
}

/// One parameter in an [`AuditReport`].
#[derive(Debug, Clone, PartialEq)]
pub struct AuditedParameter {
    /// Path in the model.
    pub name: String,
    /// Shape on this rank.
    pub shape: Vec<usize>,
    /// How it lies; nothing for one that no layer speaks of: whole on every rank.
    pub placements: Vec<AxisPlacement>,
    /// The reductions of its gradient, in order.
    pub reductions: Vec<String>,
    /// How far the loss moved when the parameter did, against what its gradient says, relative to the gradient:
    /// the worst of a few directions; 0 is right. `None` if nothing that is larger than rounding could be seen.
    pub error: Option<f64>,
}

impl AuditedParameter {
    pub(super) fn describe(&self) -> String {
        let placements = self.placements.iter();
        let placements: Vec<String> = placements.map(ToString::to_string).collect();
        match placements.is_empty() {
            true => "whole on every rank".into(),
            false => placements.join("; "),
        }
    }
}

impl fmt::Display for AuditReport {
    /// How many were checked, and a line for each parameter: error, placement, reductions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self
            .parameters
            .iter()
            .filter(|parameter| parameter.error.is_some());
        write!(
            f,
            "{} of {} parameters checked; those marked - have gradients too small to tell",
            told.count(),
            self.parameters.len()
        )?;
        for parameter in &self.parameters {
            writeln!(f)?;
            let error = match parameter.error {
                Some(error) => format!("{error:.4}"),
                None => "-".into(),
            };
            write!(
                f,
                "{error:>7}  {} {:?}: {}",
                parameter.name,
                parameter.shape,
                parameter.describe()
            )?;
            for reduction in &parameter.reductions {
                write!(f, "; {reduction}")?;
            }
        }
        Ok(())
    }
}
