//! One line of the table.

use serde::{Deserialize, Serialize};

/// What one stage keeps, sends and costs, per rank; the rank that has most.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) stage: u8,
    pub(crate) ranks: usize,
    /// Parameters, gradients as the optimizer gets them, optimizer state.
    pub(crate) state_bytes: u64,
    pub(crate) formula_bytes: u64,
    /// Parameters, optimizer state, and the most at once of gradients, gathered units and what travels.
    pub(crate) peak_bytes: u64,
    /// `VmHWM` of the process.
    pub(crate) rss_bytes: u64,
    pub(crate) traffic_bytes: u64,
    pub(crate) traffic_formula: u64,
    pub(crate) step_ratio_to_stage0: f64,
    /// Stage 3: to stage 0, both on a device that recomputes.
    pub(crate) step_ratio_recomputing: Option<f64>,
}

pub(crate) fn print(row: &Row) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if row.stage == 0 {
        println!(
            "ranks stage   state  formula     peak      RSS     sent  formula  step/stage 0   (MiB)"
        );
    }
    let recomputing = row.step_ratio_recomputing;
    let recomputing = recomputing.map_or(String::new(), |r| format!("  {r:.3} recomputing"));
    println!(
        "{:5} {:5} {:7.2} {:8.2} {:8.2} {:8.1} {:8.2} {:8.2}  {:.3}{recomputing}",
        row.ranks,
        row.stage,
        mib(row.state_bytes),
        mib(row.formula_bytes),
        mib(row.peak_bytes),
        mib(row.rss_bytes),
        mib(row.traffic_bytes),
        mib(row.traffic_formula),
        row.step_ratio_to_stage0,
    );
}
