//! Shows schedules of pipelines.

use std::path::PathBuf;
use std::process::ExitCode;

use burn_dist::{DistError, Result};
use burn_pipeline::pictures::StepChart;
use burn_pipeline::{Schedule, SchedulePlan, StageCosts, lower, simulate};
use clap::{Args, Parser, Subcommand};

/// Schedules of pipelines, without a model
#[derive(Debug, Parser)]
#[command(name = "schedule", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a schedule's grid, what it costs and keeps, and draw it
    Show(Show),
}

#[derive(Debug, Args)]
struct Show {
    /// gpipe, 1f1b, interleaved:V, zb-h1, or a file
    schedule: Schedule,
    /// Ranks
    #[arg(short = 'p', long, value_name = "P")]
    ranks: usize,
    /// Micro-batches
    #[arg(short = 'm', long, value_name = "M")]
    micro_batches: usize,
    /// How long a stage's forward pass, the input's and the weights' part of its backward pass, and a
    /// transfer take
    #[arg(long, value_delimiter = ',', num_args = 1, default_values_t = [1.0, 1.0, 1.0, 0.0], value_name = "F,I,W,T")]
    costs: Vec<f64>,
    /// Print each rank's actions with what it sends and receives
    #[arg(long)]
    lowered: bool,
    /// Where the chart goes [default: SCHEDULE-pP-mM.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or("error: bad arguments");
            eprintln!("{first}; see schedule show --help");
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    let Command::Show(show) = arguments.command;
    match run(&show) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(show: &Show) -> Result<()> {
    let plan = show.schedule.plan(show.ranks, show.micro_batches)?;
    let costs = costs(show, &plan)?;
    let step = simulate(&plan, &costs)?;
    let (p, m) = (show.ranks, show.micro_batches);
    let title = format!("{}, {p} ranks, {m} micro-batches", show.schedule);
    let path = show.svg.clone().unwrap_or_else(|| {
        let name = show.schedule.to_string();
        let name = name
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .replace(':', "-");
        format!("{name}-p{p}-m{m}.svg").into()
    });
    StepChart::simulated(&title, &step).write(&path)?;
    println!("{title}\n\n{plan}");
    if show.lowered {
        for (rank, actions) in lower(&plan)?.ranks().iter().enumerate() {
            let actions: Vec<String> = actions.iter().map(ToString::to_string).collect();
            println!("rank {rank} runs {}", actions.join(" "));
        }
        println!();
    }
    let each = costs[0];
    let pass = each.forward + each.backward_input + each.backward_weight;
    let busy = pass * m as f64 * (plan.num_stages() as f64 / p as f64);
    println!("makespan                 {:.4}", step.makespan);
    println!("bubble over total        {:.4}", step.bubble());
    println!("bubble over ideal time   {:.4}", step.makespan / busy - 1.0);
    let live: Vec<String> = step.peak_live.iter().map(ToString::to_string).collect();
    println!(
        "live activations         {} (most, per stage)",
        live.join(" ")
    );
    println!("chart                    {}", path.display());
    Ok(())
}

fn costs(show: &Show, plan: &SchedulePlan) -> Result<Vec<StageCosts>> {
    let costs = match show.costs[..] {
        [forward, input, weights] => [forward, input, weights, 0.0],
        [forward, input, weights, transfer] => [forward, input, weights, transfer],
        _ => [f64::NAN; 4],
    };
    let [forward, backward_input, backward_weight, transfer] = costs;
    let passes = forward > 0.0 && backward_input > 0.0 && backward_weight >= 0.0;
    if !passes || costs.iter().any(|cost| !cost.is_finite() || *cost < 0.0) {
        return Err(DistError::config(
            format!("--costs {:?}", show.costs),
            "give three or four numbers, as 1,1,1 or 1,1,1,0.1",
        ));
    }
    let costs = StageCosts {
        forward,
        backward_input,
        backward_weight,
        transfer,
    };
    Ok(vec![costs; plan.num_stages()])
}
