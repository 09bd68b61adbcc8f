use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Environment> {
    Environment::read(&|name| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_string())
    })
}

fn problems(variables: &[(&str, &str)]) -> Vec<String> {
    match read(variables) {
        Err(DistError::Environment { problems }) => problems,
        other => panic!("expected problems, got {other:?}"),
    }
}

#[test]
fn a_plain_start_is_one_rank() {
    let plain = read(&[]).expect("nothing is wrong");
    assert_eq!(
        (plain.launcher, plain.rank, plain.world_size),
        (Launcher::Plain, 0, 1)
    );
    // As in a batch script without srun.
    let script = read(&[("SLURM_PROCID", "0")]).expect("nothing is wrong");
    assert_eq!(script.launcher, Launcher::Plain);
    let alone = read(&[("RANK", "0"), ("WORLD_SIZE", "1")]).expect("one rank needs no address");
    assert_eq!(alone.world_size, 1);
}

#[test]
fn torchruns_variables_are_understood() {
    let variables = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("BURN_DIST_SECRET", "words"),
        ("BURN_DIST_STEP_TIMEOUT", "1.5"),
        // torchrun under Slurm
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
    ];
    let found = read(&variables).expect("complete");
    assert_eq!(found.launcher, Launcher::Torchrun);
    assert_eq!((found.rank, found.world_size), (5, 8));
    assert_eq!((found.local_rank, found.local_size), (1, 4));
    assert_eq!(
        (found.master_addr.as_str(), found.master_port),
        ("10.0.0.1", 29500)
    );
    assert_eq!(found.step_timeout, Some(Duration::from_millis(1500)));
}

#[test]
fn torchruns_own_store_keeps_its_port() {
    let variables = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    assert_eq!(read(&variables).expect("complete").master_port, 29501);
    let text = problems(&[("BURN_DIST_STORE", "elsewhere")]).join("; ");
    assert!(text.contains("\"elsewhere\""), "{text}");
}

#[test]
fn slurms_variables_are_understood() {
    let variables = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
        ("SLURM_JOB_ID", "4711"),
        ("BURN_DIST_SECRET", "words"),
    ];
    let found = read(&variables).expect("complete");
    assert_eq!(found.launcher, Launcher::Slurm);
    assert_eq!((found.rank, found.world_size, found.local_size), (3, 4, 2));
    assert_eq!(found.master_addr, "node07");
    assert!(DERIVED_PORTS.contains(&u64::from(found.master_port)));
    assert_eq!(
        found,
        read(&variables).expect("the same port on every rank")
    );
    let one_node = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NNODES", "1"),
        ("SLURM_STEP_NODELIST", "node07"),
    ];
    assert_eq!(read(&one_node).expect("complete").master_addr, "127.0.0.1");
}

#[test]
fn open_mpis_variables_are_understood() {
    let mut variables = vec![
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "prterun-host-1@1"),
    ];
    let found = read(&variables).expect("one host needs no address");
    assert_eq!((found.launcher, found.rank), (Launcher::OpenMpi, 1));
    assert_eq!(found.master_addr, "127.0.0.1");
    variables[3].1 = "2";
    assert!(problems(&variables)[0].contains("MASTER_ADDR is missing"));
}

#[test]
fn everything_that_is_wrong_is_listed_at_once() {
    let found = problems(&[
        ("RANK", "x"),
        ("WORLD_SIZE", "4"),
        ("MASTER_PORT", "70000"),
        ("BURN_DIST_STARTUP_TIMEOUT", "-1"),
    ]);
    let text = found.join("; ");
    for word in [
        "RANK is \"x\"",
        "LOCAL_RANK is missing",
        "MASTER_ADDR is missing",
        "MASTER_PORT is 70000",
        "BURN_DIST_STARTUP_TIMEOUT is \"-1\"",
    ] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[test]
fn contradictions_are_named() {
    let table: [(&[(&str, &str)], &str); 5] = [
        (
            &[("RANK", "4"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")],
            "the rank is 4",
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "4"),
                ("LOCAL_RANK", "2"),
                ("LOCAL_WORLD_SIZE", "2"),
            ],
            "the local rank is 2",
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("LOCAL_WORLD_SIZE", "4"),
            ],
            "the host has 4 ranks",
        ),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "world size is 0"),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("MASTER_ADDR", "10.1.2.3"),
                ("MASTER_PORT", "29500"),
            ],
            "BURN_DIST_SECRET",
        ),
    ];
    for (variables, word) in table {
        let text = problems(variables).join("; ");
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}
