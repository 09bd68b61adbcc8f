//! [`SchedulePlan`]: what every rank does in a step, in order.

use std::fmt;
use std::str::FromStr;

use burn_dist::{DistError, Result};

use crate::Action;
use crate::simulate::{StageCosts, simulate};

/// The actions of every rank. Prints as a grid, a rank per line and a unit of time per column, and parses
/// from one: `.` is an idle unit, `=` the rest of an action that takes longer, `#` starts a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulePlan {
    ranks: Vec<Vec<Action>>,
}

impl SchedulePlan {
    /// A plan from each rank's actions, not yet checked: see [`validate`](crate::validate).
    pub fn new(ranks: Vec<Vec<Action>>) -> Self {
        Self { ranks }
    }

    /// Each rank's actions.
    pub fn ranks(&self) -> &[Vec<Action>] {
        &self.ranks
    }

    /// All actions.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.ranks.iter().flatten()
    }

    /// Number of stages.
    pub fn num_stages(&self) -> usize {
        let stages = self.actions().map(|action| action.stage + 1);
        stages.max().unwrap_or(0)
    }

    /// Number of micro-batches.
    pub fn num_micro_batches(&self) -> usize {
        let micro_batches = self.actions().map(|action| action.micro_batch + 1);
        micro_batches.max().unwrap_or(0)
    }

    /// The rank that computes a stage: the first one that does something for it.
    pub fn rank_of(&self, stage: usize) -> Option<usize> {
        let has = |actions: &Vec<Action>| {
            let mut computes = actions.iter().filter(|action| action.kind.is_compute());
            computes.any(|action| action.stage == stage)
        };
        self.ranks.iter().position(has)
    }

    /// The stages of a rank, in order.
    pub fn stages_of(&self, rank: usize) -> Vec<usize> {
        let stages = 0..self.num_stages();
        stages
            .filter(|&stage| self.rank_of(stage) == Some(rank))
            .collect()
    }

    /// Plain lists, a rank per line, with one action marked.
    pub(crate) fn marked(&self, rank: usize, index: usize) -> String {
        let lines = self.ranks.iter().enumerate().map(|(r, actions)| {
            let words: Vec<String> = actions
                .iter()
                .enumerate()
                .map(|(i, action)| match (r, i) == (rank, index) {
                    true => format!(">>{action}<<"),
                    false => action.to_string(),
                })
                .collect();
            format!("rank {r}: {}", words.join(" "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for SchedulePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.actions().map(|action| action.to_string().len()).max();
        let width = width.unwrap_or(1);
        // Forward one unit, backward two: the columns of a plan that runs.
        let step = simulate(self, &StageCosts::units(self.num_stages()));
        for (rank, actions) in self.ranks.iter().enumerate() {
            write!(f, "rank {rank}:")?;
            let mut column = 0;
            for (index, action) in actions.iter().enumerate() {
                let span = step.as_ref().ok().map(|step| &step.ranks[rank][index]);
                if let Some(span) = span.filter(|span| span.end > span.start) {
                    for _ in column..span.start as usize {
                        write!(f, " {:<width$}", ".")?;
                    }
                    column = span.end as usize;
                }
                write!(f, " {action:<width$}")?;
                let units = span.map_or(0.0, |span| span.end - span.start) as usize;
                for _ in 1..units {
                    write!(f, " {:<width$}", "=")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for SchedulePlan {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self> {
        let mut ranks = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let actions = line.split_once(':').map_or(line, |(_, actions)| actions);
            let words = actions
                .split(|c: char| c.is_whitespace() || c == ',')
                .filter(|word| !word.is_empty() && *word != "." && *word != "=");
            let actions = words.map(|word| {
                word.parse().map_err(|error: DistError| {
                    DistError::config(
                        format!("line {} of a schedule: {error}", number + 1),
                        "a line per rank, actions apart by spaces",
                    )
                })
            });
            ranks.push(actions.collect::<Result<Vec<Action>>>()?);
        }
        Ok(Self { ranks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_reads_as_the_plan_that_it_prints() {
        let text = "rank 0: 0F0 0F1 . . . 0B0 = 0B1 =\n# second\n1: 1F0,1B0,1F1 1B1\n\n";
        let plan: SchedulePlan = text.parse().expect("a plan");
        assert_eq!((plan.num_stages(), plan.num_micro_batches()), (2, 2));
        assert_eq!((plan.rank_of(1), plan.stages_of(0)), (Some(1), vec![0]));
        let grid = plan.to_string();
        assert_eq!(grid.parse(), Ok(plan.clone()));
        let right =
            "rank 0: 0F0 0F1 .   .   0B0 =   .   0B1 =  \nrank 1: .   1F0 1B0 =   1F1 1B1 =  \n";
        assert_eq!(grid, right);
        let marked = plan.marked(1, 2);
        assert!(marked.contains("1B0 >>1F1<< 1B1"), "{marked}");
        // One that cannot run prints, too.
        let stuck: SchedulePlan = "0B0 0F0".parse().expect("words");
        assert_eq!(stuck.to_string().parse(), Ok(stuck));
        let error = "0F0\n0G0".parse::<SchedulePlan>().expect_err("no G");
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
