//! [`StepChart`]: a step as a chart.

use std::path::Path;

use burn_dist::{DistError, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::write_whole;
use crate::simulate::idle_share;
use crate::{Action, ActionKind, SimulatedStep, TimeSpan};

/// A row per rank, a box per pass with its micro-batch's number, from left to right in time; idle ranks show
/// the background. Stages of one rank differ in shade.
#[derive(Debug, Clone)]
pub struct StepChart {
    title: String,
    unit: String,
    ranks: Vec<Vec<TimeSpan>>,
}

const WIDTH: u32 = 1400;
const ROW: u32 = 44;
/// Title, summary, axis and legend.
const FRAME: u32 = 150;

/// Kinds of passes, their names, and colours of unlike lightness.
const KINDS: [(ActionKind, &str, RGBColor); 4] = [
    (ActionKind::Forward, "forward", RGBColor(158, 202, 225)),
    (ActionKind::Backward, "backward", RGBColor(49, 130, 189)),
    (
        ActionKind::BackwardInput,
        "backward, input",
        RGBColor(253, 174, 107),
    ),
    (
        ActionKind::BackwardWeight,
        "backward, weights",
        RGBColor(166, 54, 3),
    ),
];

impl StepChart {
    /// Of ranks' passes, which begin and end in `unit`s after any moment that all ranks share; what is no
    /// pass is left out.
    pub fn new(
        title: impl Into<String>,
        unit: impl Into<String>,
        ranks: Vec<Vec<TimeSpan>>,
    ) -> Self {
        let passes = |spans: Vec<TimeSpan>| -> Vec<TimeSpan> {
            let spans = spans.into_iter();
            spans.filter(|span| span.action.kind.is_compute()).collect()
        };
        let mut ranks: Vec<Vec<TimeSpan>> = ranks.into_iter().map(passes).collect();
        let starts = ranks.iter().flatten().map(|span| span.start);
        let first = starts.fold(f64::INFINITY, f64::min);
        for span in ranks.iter_mut().flatten() {
            span.start -= first;
            span.end -= first;
        }
        Self {
            title: title.into(),
            unit: unit.into(),
            ranks,
        }
    }

    /// Of a simulated step, in the unit of its costs.
    pub fn simulated(title: impl Into<String>, step: &SimulatedStep) -> Self {
        Self::new(title, "units", step.ranks.clone())
    }

    /// From the first pass to the end of the last.
    pub fn makespan(&self) -> f64 {
        let ends = self.ranks.iter().flatten().map(|span| span.end);
        ends.fold(0.0, f64::max)
    }

    /// Idle time over all time, of all ranks.
    pub fn bubble(&self) -> f64 {
        idle_share(&self.ranks, self.makespan())
    }

    /// The chart as SVG.
    ///
    /// # Errors
    /// [`DistError::Config`] if there is nothing to draw.
    pub fn to_svg(&self) -> Result<String> {
        if self.makespan() <= 0.0 {
            return Err(DistError::config(
                "a step without a pass cannot be drawn",
                "draw one that has run",
            ));
        }
        let mut svg = String::new();
        let height = FRAME + ROW * self.ranks.len() as u32;
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // A string takes whatever is drawn.
        self.draw(&area).map_err(|error| {
            DistError::config(
                format!("the chart cannot be drawn: {error}"),
                "this is a bug",
            )
        })?;
        drop(area);
        Ok(svg)
    }

    /// Writes the chart; the file appears whole or not at all.
    ///
    /// # Errors
    /// As [`to_svg`](Self::to_svg); [`DistError::File`].
    pub fn write(&self, path: &Path) -> Result<()> {
        write_whole(path, &self.to_svg()?)
    }

    fn summary(&self) -> String {
        format!(
            "{:.1} {}, bubble {:.1} %",
            self.makespan(),
            self.unit,
            100.0 * self.bubble()
        )
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
    ) -> std::result::Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let text = |size: i32| ("sans-serif", size).into_font();
        area.draw(&Text::new(self.title.clone(), (60, 10), text(20)))?;
        area.draw(&Text::new(self.summary(), (60, 36), text(15)))?;
        let (top, legend) = area.split_vertically(area.dim_in_pixel().1 - 34);
        let mut chart = ChartBuilder::on(&top)
            .margin_top(62)
            .margin_right(20)
            .x_label_area_size(42)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..self.makespan(), self.ranks.len() as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc(format!("time, {}", self.unit))
            .x_labels(12)
            .y_labels(0)
            .label_style(text(13))
            .draw()?;
        let plane = chart.plotting_area();
        for (rank, spans) in self.ranks.iter().enumerate() {
            let middle = rank as f64 + 0.5;
            let (x, y) = plane.map_coordinate(&(0.0, middle));
            let style = text(14).into_text_style(area);
            let style = style.pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(format!("rank {rank}"), (x - 8, y), style))?;
            for span in spans {
                let corners = [
                    (span.start, rank as f64 + 0.06),
                    (span.end, rank as f64 + 0.94),
                ];
                let (fill, ink) = self.colours(rank, span.action);
                plane.draw(&Rectangle::new(corners, fill.filled()))?;
                plane.draw(&Rectangle::new(corners, WHITE.stroke_width(1)))?;
                let (left, _) = plane.map_coordinate(&corners[0]);
                let (right, _) = plane.map_coordinate(&corners[1]);
                let number = span.action.micro_batch.to_string();
                if right - left >= 8 * number.len() as i32 + 2 {
                    let style = text(13).into_text_style(area).color(&ink);
                    let style = style.pos(Pos::new(HPos::Center, VPos::Center));
                    area.draw(&Text::new(number, ((left + right) / 2, y), style))?;
                }
            }
        }
        let mut x = 60;
        for (kind, name, colour) in KINDS {
            let mut spans = self.ranks.iter().flatten();
            if spans.any(|span| span.action.kind == kind) {
                legend.draw(&Rectangle::new([(x, 8), (x + 18, 24)], colour.filled()))?;
                legend.draw(&Text::new(name, (x + 24, 9), text(14)))?;
                x += 170;
            }
        }
        let note = match self.ranks.iter().any(|spans| stages_of(spans).len() > 1) {
            true => "numbers are micro-batches; later stages of a rank are darker",
            false => "numbers are micro-batches",
        };
        legend.draw(&Text::new(note, (x, 9), text(14)))?;
        area.present()
    }

    /// Of a box and of the number in it: later stages of a rank are darker.
    fn colours(&self, rank: usize, action: Action) -> (RGBColor, RGBColor) {
        let stages = stages_of(&self.ranks[rank]);
        let place = stages.iter().position(|stage| *stage == action.stage);
        let shade = 0.35 * place.unwrap_or(0) as f64 / stages.len() as f64;
        let kind = KINDS.iter().find(|(kind, ..)| *kind == action.kind);
        let RGBColor(r, g, b) = kind.map_or(BLACK, |(.., colour)| *colour);
        let [r, g, b] = [r, g, b].map(|part| (f64::from(part) * (1.0 - shade)) as u8);
        let light = 0.3 * f64::from(r) + 0.6 * f64::from(g) + 0.1 * f64::from(b);
        let ink = if light > 120.0 { BLACK } else { WHITE };
        (RGBColor(r, g, b), ink)
    }
}

fn stages_of(spans: &[TimeSpan]) -> Vec<usize> {
    let mut stages: Vec<usize> = spans.iter().map(|span| span.action.stage).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Schedule, StageCosts, simulate};

    fn chart(schedule: &Schedule, p: usize, m: usize) -> StepChart {
        let plan = schedule.plan(p, m).expect("right");
        let step = simulate(&plan, &StageCosts::units(plan.num_stages())).expect("right");
        let chart = StepChart::simulated("a step", &step);
        assert!((chart.bubble() - step.bubble()).abs() < 1e-12);
        assert!((chart.makespan() - step.makespan).abs() < 1e-12);
        chart
    }

    #[test]
    fn a_box_for_each_pass_and_a_row_for_each_rank() {
        for (schedule, p, m, passes) in [
            (Schedule::OneFOneB, 4, 8, 64),
            (Schedule::Interleaved(2), 2, 4, 32),
            (Schedule::ZeroBubbleH1, 2, 4, 24),
        ] {
            let svg = chart(&schedule, p, m).to_svg().expect("it can be drawn");
            let filled = svg.matches("<rect").count();
            // A box and its edge for each pass, the background, and a box per kind in the legend.
            let kinds = if schedule == Schedule::ZeroBubbleH1 {
                3
            } else {
                2
            };
            assert_eq!(filled, 2 * passes + 1 + kinds, "{schedule}");
            for rank in 0..p {
                assert!(svg.contains(&format!("rank {rank}")), "{schedule}");
            }
            assert!(svg.trim_end().ends_with("</svg>"));
        }
    }

    #[test]
    fn nothing_to_draw_is_an_error_and_no_file() {
        let empty = StepChart::new("none", "s", vec![Vec::new()]);
        assert!(empty.to_svg().is_err());
        let chart = chart(&Schedule::GPipe, 2, 2);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("no folder").join("chart.svg");
        assert!(matches!(chart.write(&path), Err(DistError::File { .. })));
        let path = folder.path().join("chart.svg");
        chart.write(&path).expect("written");
        assert!(
            std::fs::read_to_string(&path)
                .expect("text")
                .contains("<svg")
        );
    }
}
