//! [`Declarations`]: what all layers of a model declared, by path.

use burn::module::{Module, ModuleVisitor};

use super::{AxisPlacement, LayerPlacement};
use crate::error::{DistError, Result};

/// The declarations that a visitor met; it passes on every container that it enters.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    declared: Vec<(String, AxisPlacement)>,
    failure: Option<DistError>,
}

/// Passes on the containers of a model.
#[derive(Default)]
struct Reader {
    path: Vec<String>,
    declarations: Declarations,
}

impl ModuleVisitor for Reader {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.declarations.enter(&self.path, container_type);
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

impl Declarations {
    /// Of all layers of a model.
    pub fn read<M: Module>(model: &M) -> Self {
        let mut reader = Reader::default();
        model.visit(&mut reader);
        reader.declarations
    }

    /// Of one container. `path` ends with the name of the field that holds it.
    pub fn enter(&mut self, path: &[String], container_type: &str) {
        let Some(placement) = LayerPlacement::of_container(container_type) else {
            return;
        };
        let placement = match placement {
            Ok(placement) => placement,
            Err(failure) => {
                self.failure.get_or_insert(failure);
                return;
            }
        };
        // Several declarations may stand in a list or tuple, whose places are numbers.
        let is_number = |name: &&String| name.parse::<usize>().is_ok();
        let numbers = path.iter().rev().take_while(is_number).count();
        let layer = &path[..(path.len() - numbers).saturating_sub(1)];
        for (field, placement) in placement.entries() {
            let parts = layer.iter().map(String::as_str).chain([field]);
            let place = parts.collect::<Vec<_>>().join(".");
            self.declared.push((place, placement));
        }
    }

    /// Refuses a declaration that covers none of these parameters: its layer has no such field.
    ///
    /// # Errors
    /// [`DistError::Config`] naming the place.
    pub fn check<'a>(&self, paths: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let covers_none =
            |entry: &&(String, AxisPlacement)| !paths.clone().any(|path| covers(&entry.0, path));
        match self.declared.iter().find(covers_none) {
            None => Ok(()),
            Some((place, placement)) => Err(DistError::config(
                format!("{place} is declared to be {placement}, but there is no such parameter"),
                "name a field of the layer that the declaration stands in",
            )),
        }
    }

    /// How the parameter at `path` lies; nothing on axes of which its layers said nothing.
    ///
    /// # Errors
    /// [`DistError::Config`] if two layers declared it over the same axis, or if a declaration cannot be
    /// read.
    pub fn of(&self, path: &str) -> Result<Vec<AxisPlacement>> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let mut placements: Vec<AxisPlacement> = Vec::new();
        for (place, placement) in &self.declared {
            if !covers(place, path) {
                continue;
            }
            let same_axis = |other: &&AxisPlacement| other.axis == placement.axis;
            if let Some(other) = placements.iter().find(same_axis) {
                return Err(DistError::config(
                    format!(
                        "parameter {path} is declared twice over {}: {other}, and {placement} at {place}: its gradient would be reduced twice",
                        placement.axis
                    ),
                    "put a parallel layer into no other parallel region of the same axis",
                ));
            }
            placements.push(placement.clone());
        }
        Ok(placements)
    }
}

/// Whether a path is at a place or below it.
fn covers(place: &str, path: &str) -> bool {
    let rest = path.strip_prefix(place);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_string).collect()
    }

    #[test]
    fn a_declaration_covers_its_field_and_what_is_below() {
        let mut declarations = Declarations::default();
        declarations.enter(&path("a"), "Struct:Linear");
        let text =
            "burn_dist::placement tp 0,1 weight:shard(1):shard(1) inner:replicate:partial(sum)";
        declarations.enter(&path("blocks.0.placement"), text);
        let of = |path: &str| declarations.of(path).expect("declared once");
        assert!(of("blocks.0.weight")[0].is_shard());
        assert!(of("blocks.0.inner.norm.gamma")[0].reduction().is_some());
        assert!(of("blocks.0.weights").is_empty());
        assert!(of("blocks.1.weight").is_empty());
        // In a list of several axes.
        let list = "burn_dist::placement cp 0,2 weight:replicate:partial(sum)";
        declarations.enter(&path("blocks.0.placement.1"), list);
        assert_eq!(
            declarations.of("blocks.0.weight").expect("two axes").len(),
            2
        );
        let names = ["blocks.0.weight", "blocks.0.inner.norm.gamma"];
        assert!(declarations.check(names.into_iter()).is_ok());
        let text = declarations
            .check(names[..1].iter().copied())
            .expect_err("no inner")
            .to_string();
        assert!(
            text.contains("blocks.0.inner") && text.contains("no such parameter"),
            "{text}"
        );
        let outer = "burn_dist::placement tp 0,1 blocks:replicate:partial(sum)";
        declarations.enter(&path("placement"), outer);
        let text = declarations
            .of("blocks.0.weight")
            .expect_err("twice")
            .to_string();
        assert!(
            text.contains("blocks.0.weight") && text.contains("twice"),
            "{text}"
        );
        declarations.enter(&path("placement"), "burn_dist::placement nonsense");
        assert!(declarations.of("else").is_err());
    }
}
