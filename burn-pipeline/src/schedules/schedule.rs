//! [`Schedule`]: a named schedule, or one from a file.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use burn_dist::{DistError, Result};

use super::{gpipe, interleaved, one_f_one_b, zero_bubble};
use crate::{SchedulePlan, validate};

/// What a schedule is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineShape {
    /// p: ranks.
    pub ranks: usize,
    /// v: stages on each rank.
    pub chunks: usize,
    /// m: micro-batches.
    pub micro_batches: usize,
}

/// A way to order passes. Stage `s` is on rank `s % p`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// The same with this many stages on each rank.
    Interleaved(usize),
    /// Backward in two parts, without more memory than 1F1B.
    ZeroBubbleH1,
    /// A plan in a text file, as [`SchedulePlan`] prints it.
    File(PathBuf),
}

impl Schedule {
    /// Stages on each rank; a file says so itself.
    pub fn chunks(&self) -> Option<usize> {
        match self {
            Self::Interleaved(chunks) => Some(*chunks),
            Self::File(_) => None,
            _ => Some(1),
        }
    }

    /// The plan for `ranks` ranks and `micro_batches` micro-batches, validated.
    ///
    /// # Errors
    /// [`DistError::Config`] for no ranks, stages or micro-batches, for interleaving with micro-batches that
    /// are no multiple of the ranks, and for a file whose plan is wrong or for another number of ranks or
    /// micro-batches; [`DistError::File`].
    pub fn plan(&self, ranks: usize, micro_batches: usize) -> Result<SchedulePlan> {
        let shape = PipelineShape {
            ranks,
            chunks: self.chunks().unwrap_or(1),
            micro_batches,
        };
        if ranks == 0 || shape.chunks == 0 || micro_batches == 0 {
            return Err(DistError::config(
                format!("a pipeline of {shape:?}"),
                "take at least one of each",
            ));
        }
        let each = |actions: fn(PipelineShape, usize) -> Vec<crate::Action>| {
            SchedulePlan::new((0..ranks).map(|rank| actions(shape, rank)).collect())
        };
        let plan = match self {
            Self::GPipe => each(gpipe::actions),
            Self::OneFOneB | Self::Interleaved(1) => each(one_f_one_b::actions),
            Self::Interleaved(_) => {
                if !micro_batches.is_multiple_of(ranks) {
                    return Err(DistError::config(
                        format!(
                            "{self} with {micro_batches} micro-batches on {ranks} ranks: rounds are of {ranks}"
                        ),
                        format!(
                            "take {} micro-batches, or 1f1b",
                            micro_batches.next_multiple_of(ranks)
                        ),
                    ));
                }
                each(interleaved::actions)
            }
            Self::ZeroBubbleH1 => each(zero_bubble::actions),
            Self::File(path) => read(path, ranks, micro_batches)?,
        };
        validate(&plan)?;
        Ok(plan)
    }

    /// Forward passes of a rank before its passes alternate; `None` for schedules in which they do not.
    pub fn warm_up(&self, ranks: usize, micro_batches: usize, rank: usize) -> Option<usize> {
        let shape = PipelineShape {
            ranks,
            chunks: self.chunks()?,
            micro_batches,
        };
        match self {
            Self::OneFOneB | Self::Interleaved(1) => Some(one_f_one_b::warm_up(shape, rank)),
            Self::Interleaved(_) => Some(interleaved::warm_up(shape, rank)),
            _ => None,
        }
    }
}

fn read(path: &PathBuf, ranks: usize, micro_batches: usize) -> Result<SchedulePlan> {
    let text = std::fs::read_to_string(path).map_err(|error| DistError::File {
        path: path.display().to_string(),
        problem: error.to_string(),
    })?;
    let plan: SchedulePlan = text.parse()?;
    let found = (plan.ranks().len(), plan.num_micro_batches());
    if found == (ranks, micro_batches) {
        return Ok(plan);
    }
    Err(DistError::config(
        format!(
            "{} is a schedule for {} ranks and {} micro-batches, not {ranks} and {micro_batches}",
            path.display(),
            found.0,
            found.1
        ),
        "write one line per rank, and every micro-batch in each",
    ))
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GPipe => f.write_str("gpipe"),
            Self::OneFOneB => f.write_str("1f1b"),
            Self::Interleaved(chunks) => write!(f, "interleaved:{chunks}"),
            Self::ZeroBubbleH1 => f.write_str("zb-h1"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Schedule {
    type Err = DistError;

    /// `gpipe`, `1f1b`, `interleaved:V`, `zb-h1`, or else a file's path.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "gpipe" => Ok(Self::GPipe),
            "1f1b" => Ok(Self::OneFOneB),
            "zb-h1" => Ok(Self::ZeroBubbleH1),
            _ => match text.strip_prefix("interleaved:").map(str::parse) {
                Some(Ok(chunks)) if chunks > 0 => Ok(Self::Interleaved(chunks)),
                Some(_) => Err(DistError::config(
                    format!("{text:?} does not say how many stages each rank has"),
                    "write interleaved:2",
                )),
                None if PathBuf::from(text).is_file() => Ok(Self::File(text.into())),
                None => Err(DistError::config(
                    format!("there is no schedule {text:?}, and no file of that name"),
                    "take gpipe, 1f1b, interleaved:V, zb-h1, or a file",
                )),
            },
        }
    }
}
