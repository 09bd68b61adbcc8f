//! What is checked.

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::program::{Programs, Ran};
use crate::report::{Outcome, Step};

/// The share of a device copy's bandwidth that every kernel is to reach; the report says whether it does, which is
/// no question of right and wrong.
const TARGET: f64 = 0.85;

/// Everything, in order; without what it takes, steps that were not run.
pub(crate) fn all(programs: &Programs, machine: &Machine, elements: usize) -> Vec<Step> {
    let steps: [(&'static str, bool, Check); 6] = [
        ("kernels against their twins", false, kernels),
        ("bandwidth of kernels", false, bandwidth),
        ("NCCL: the library", true, library),
        ("NCCL: a world of one", true, world_of_one),
        (
            "ranks that share the GPU, through host memory",
            false,
            shared,
        ),
        ("train_gpt on the GPU", false, training),
    ];
    let run = |(name, needs_nccl, check): (&'static str, bool, Check)| {
        let mut step = Step {
            name,
            outcome: Outcome::NotRun,
            why: Vec::new(),
            commands: Vec::new(),
            seconds: 0.0,
            figures: Vec::new(),
        };
        if let Some(missing) = machine.missing.first() {
            step.why.push(missing.clone());
            return step;
        }
        if let (true, Some(missing)) = (needs_nccl, &machine.without_nccl) {
            step.why.push(missing.clone());
            return step;
        }
        println!("{name} ...");
        check(programs, elements, &mut step);
        step.outcome = match step.why.is_empty() {
            true => Outcome::Right,
            false => Outcome::Wrong,
        };
        step
    };
    steps.into_iter().map(run).collect()
}

type Check = fn(&Programs, usize, &mut Step);

/// Notes a run; its last lines if it failed.
fn note(step: &mut Step, ran: &Ran) {
    step.commands.push(ran.command.clone());
    step.seconds += ran.seconds;
    if let Some(failure) = &ran.failure {
        let lines: Vec<&str> = ran.output.trim().lines().collect();
        let last = lines[lines.len().saturating_sub(8)..].join(" / ");
        step.why.push(format!("{failure}: {last}"));
    }
}

/// Runs tests, of which there must be at least `least`.
fn tests(programs: &Programs, step: &mut Step, program: &str, arguments: &[&str], least: usize) {
    let arguments = [arguments, &["--test-threads", "1", "--nocapture"]].concat();
    let ran = programs.run(program, program, &arguments);
    note(step, &ran);
    let passed = ran.output.lines().find_map(|line| {
        let counts = line.strip_prefix("test result: ")?;
        let (before, _) = counts.split_once(" passed")?;
        before.rsplit(' ').next()?.parse::<usize>().ok()
    });
    let lines = ran.output.lines().filter(|line| line.starts_with("test "));
    for line in lines {
        step.figures
            .push(json!({ "program": program, "said": line }));
    }
    if ran.failure.is_none() && passed.is_none_or(|passed| passed < least) {
        let passed = passed.map_or("none".into(), |passed| passed.to_string());
        step.why.push(format!(
            "{passed} tests of {program} ran, at least {least} should have"
        ));
    }
}

fn kernels(programs: &Programs, _: usize, step: &mut Step) {
    let arguments = ["kernel_contract", "--ignored"];
    tests(programs, step, "burn_dist_tests", &arguments, 12);
}

fn library(programs: &Programs, _: usize, step: &mut Step) {
    // The version of the machine's own library is in no package's name.
    match programs.has_own_nccl() {
        true => tests(programs, step, "nccl_tests", &["--include-ignored"], 2),
        false => tests(programs, step, "nccl_tests", &[], 1),
    }
}

fn world_of_one(programs: &Programs, _: usize, step: &mut Step) {
    tests(programs, step, "nccl_world_tests", &["--ignored"], 2);
}

fn shared(programs: &Programs, _: usize, step: &mut Step) {
    tests(programs, step, "cubecl_tests", &["on_cuda", "--ignored"], 2);
}

fn read(programs: &Programs, name: &str) -> Result<Value, String> {
    let path = programs.out(name);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))
}

fn bandwidth(programs: &Programs, elements: usize, step: &mut Step) {
    let rows = programs.out("kernels.json");
    let rows = rows.to_string_lossy();
    let elements = elements.to_string();
    let arguments = [
        "--backend",
        "cuda",
        "--elements",
        &elements,
        "--json",
        &rows,
    ];
    let ran = programs.run("kernels_bench", "kernels_bench", &arguments);
    note(step, &ran);
    if ran.failure.is_some() {
        return;
    }
    match read(programs, "kernels.json") {
        Ok(Value::Array(rows)) if !rows.is_empty() => {
            for mut row in rows {
                let share = row["copy_share"].as_f64();
                row["reaches its target"] = json!(share.is_some_and(|share| share >= TARGET));
                step.figures.push(row);
            }
        }
        Ok(_) => step.why.push("kernels.json has no rows".into()),
        Err(error) => step.why.push(error),
    }
}

/// A run of `train_gpt`, and its report.
fn train(programs: &Programs, step: &mut Step, name: &str, arguments: &[&str]) -> Option<Value> {
    let text = programs.path("text.txt");
    let text = text.to_string_lossy();
    let json = format!("{name}.json");
    let path = programs.out(&json);
    let path = path.to_string_lossy();
    let files = ["--data", &text, "--json", &path];
    let ran = programs.run(name, "train_gpt", &[arguments, &files].concat());
    note(step, &ran);
    if ran.failure.is_some() {
        return None;
    }
    let report = read(programs, &json)
        .map_err(|error| step.why.push(error))
        .ok()?;
    step.figures.push(json!({
        "run": arguments.join(" "),
        "first loss": report["losses"][0],
        "last loss": report["losses"].as_array().and_then(|losses| losses.last()),
        "tokens/s": report["tokens_per_second"],
        "parameters": report["parameter_hash"].as_str().map(|hash| &hash[..hash.len().min(16)]),
    }));
    Some(report)
}

/// The bits of two ranks are those of one in their grouping; losses are near Flex's; and the speed.
fn training(programs: &Programs, _: usize, step: &mut Step) {
    const STEPS: [&str; 6] = ["--steps", "20", "--layers", "2", "--hidden", "64"];
    let mut run = |name: &str, arguments: &[&str]| {
        let arguments = [&STEPS[..], arguments].concat();
        train(programs, step, name, &arguments)
    };
    let one = run(
        "one",
        &["--ranks", "1", "--as-ranks", "2", "--device", "cuda:0"],
    );
    let flex = run(
        "flex",
        &["--ranks", "1", "--as-ranks", "2", "--device", "flex"],
    );
    let many = ["0", "1", "3"].map(|zero| {
        let arguments = ["--ranks", "2", "--zero", zero, "--device", "cuda:0"];
        (zero, run(&format!("zero_{zero}"), &arguments))
    });
    if let Some(one) = &one {
        for (zero, many) in many {
            let same = |key: &str| many.as_ref().is_some_and(|many| many[key] == one[key]);
            if many.is_some() && !(same("loss_bits") && same("parameter_hash")) {
                step.why.push(format!(
                    "2 ranks with --zero {zero} have not the bits of one rank in their grouping"
                ));
            }
        }
        if let Some(flex) = flex {
            match distance(one, &flex) {
                Some(worst) if worst <= 1e-2 => {}
                Some(worst) => {
                    step.why
                        .push(format!("losses are {worst:e} away from Flex's"));
                }
                None => step
                    .why
                    .push("losses are not numbers, or not as many as Flex's".into()),
            }
        }
    }
    // A larger model, as fast as it goes.
    for arguments in [
        &["--device", "cuda", "--ranks", "1"][..],
        &["--device", "cuda", "--ranks", "1", "--dtype", "bf16"],
        &["--device", "cuda:0", "--ranks", "2"],
    ] {
        let model = [
            "--steps", "30", "--layers", "6", "--hidden", "384", "--heads", "6", "--batch", "32",
        ];
        let name = format!("speed{}", arguments.join("_").replace([':', '-'], "_"));
        train(programs, step, &name, &[&model[..], arguments].concat());
    }
}

/// The largest relative distance of losses; `None` if they are not as many numbers, NaN being none in JSON.
fn distance(one: &Value, other: &Value) -> Option<f64> {
    let losses = |report: &Value| -> Option<Vec<f64>> {
        report["losses"]
            .as_array()?
            .iter()
            .map(Value::as_f64)
            .collect()
    };
    let (one, other) = (losses(one)?, losses(other)?);
    let distances = one.iter().zip(&other).map(|(a, b)| ((a - b) / b).abs());
    (one.len() == other.len()).then(|| distances.fold(0.0, f64::max))
}
