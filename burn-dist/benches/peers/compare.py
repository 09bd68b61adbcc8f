#!/usr/bin/env python3
"""Our collectives beside OpenMPI's and those of PyTorch's Gloo, in one run.

    python3 burn-dist/benches/peers/compare.py [--ranks 2,4] [--sizes 4096,67108864] [--rounds 3]
        [--json FILE] [--torch-python PATH] [--bench EXECUTABLE]

Times of one machine drift, so only those of one run are compared: every round runs each of them once,
every second round in the opposite order, and the tables hold medians over the rounds. A ratio is their
time over ours: above 1 ours is faster. Every rank has one thread. Peers that are not installed are
left out.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
# The communicators of a table's columns, ours first.
TABLES = [
    ("shared memory", [("process", "ours"), ("openmpi-shm", "OpenMPI"), ("gloo", "Gloo")]),
    ("TCP", [("tcp", "ours"), ("gloo", "Gloo"), ("openmpi-tcp", "OpenMPI")]),
]
# The order within a round: what is compared runs one after the other.
ORDER = ["process", "openmpi-shm", "gloo", "tcp", "openmpi-tcp"]
# A run that takes this many seconds hangs.
LIMIT = 3600
# What a command that ends it is given to clean up, in seconds.
GRACE = 10


class Failed(Exception):
    """A command ended badly, or could not be started."""


def run(command, **environment):
    """The standard output of a command, which may take up to LIMIT seconds."""
    command = [str(part) for part in command]
    try:
        # A group of its own, so that the ranks it starts end with it.
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=dict(os.environ, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except BaseException as error:
        end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"{' '.join(command)} did not end within {LIMIT} s") from error
        raise
    if process.returncode != 0:
        raise Failed(f"{' '.join(command)} ended with {process.returncode}\n{errors.strip()}")
    return output


def end(process):
    """Ends a command and what it started; mpirun ends its ranks only when it is asked kindly."""
    for what in [signal.SIGTERM, signal.SIGKILL]:
        try:
            os.killpg(process.pid, what)
            process.wait(GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def build_bench():
    """The executable of our bench, by the name that cargo gives it."""
    print("building our bench", file=sys.stderr)
    command = [os.environ.get("CARGO", "cargo"), "bench", "-p", "burn-dist", "--bench", "collectives"]
    command += ["--no-run", "--message-format=json-render-diagnostics"]
    # Its progress goes to the terminal, only the messages for programs are taken.
    built = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        raise SystemExit("our bench does not build; see above")
    for line in built.stdout.splitlines():
        message = json.loads(line)
        target = message.get("target", {})
        if message.get("executable") and target["name"] == "collectives" and "bench" in target["kind"]:
            return message["executable"]
    raise SystemExit("cargo named no executable of the bench collectives")


def find_gloo(python):
    """Torch's version, with a reason instead when there is none."""
    probe = "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
    try:
        return run([python, "-c", probe]).strip(), None
    except Failed as failed:
        # The last line of a traceback says what it is about.
        return None, f"{python} has no torch with Gloo ({str(failed).splitlines()[-1]})"


def find_openmpi(program):
    """OpenMPI's version, with a reason instead when there is none; compiles its side to `program`."""
    missing = [name for name in ["mpicc", "mpirun"] if not shutil.which(name)]
    if missing:
        return None, f"no {' and no '.join(missing)} on PATH"
    try:
        version = run(["mpirun", "--version"]).splitlines()[0]
        # The options below are OpenMPI's own.
        if "Open MPI" not in version:
            return None, f"mpirun is not OpenMPI's but {version}"
        run(["mpicc", "-O3", "-o", program, HERE / "collectives_mpi.c"])
    except Failed as failed:
        return None, str(failed)
    return version, None


def commands(arguments, bench, program, folder):
    """How each communicator is run, of a number of ranks; each returns its rows."""
    sizes = [str(size) for size in arguments.sizes]
    one_thread = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def rows_of(output):
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    def ours(communicator):
        def start(ranks):
            path = folder / "ours.json"
            command = [bench, "--ranks", ranks, "--communicators", communicator]
            run([*command, "--sizes", ",".join(sizes), "--json", path], **one_thread)
            return json.loads(path.read_text())

        return start

    def openmpi(communicator, flags):
        # More ranks than cores is a case to be measured; mpirun asks root whether it means it.
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            mpirun.append("--allow-run-as-root")

        def start(ranks):
            command = [*mpirun, "-np", ranks, *flags, program, communicator, *sizes]
            return rows_of(run(command, **one_thread))

        return start

    def gloo(ranks):
        command = [arguments.torch_python, HERE / "collectives_torch.py", "--ranks", ranks]
        return rows_of(run([*command, "--sizes", ",".join(sizes)], **one_thread))

    # With another messaging layer than ob1 the choice of transports would be ignored.
    tcp = "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo".split()
    return {
        "process": ours("process"),
        "tcp": ours("tcp"),
        # What mpirun takes by itself between ranks of one host.
        "openmpi-shm": openmpi("openmpi-shm", []),
        "openmpi-tcp": openmpi("openmpi-tcp", tcp),
        "gloo": gloo,
    }


def measure(ranks, rounds, starts):
    """Medians over the rounds, by communicator, operation and bytes."""
    times = {}
    left = [name for name in ORDER if name in starts]
    for index in range(rounds):
        for name in left[:] if index % 2 == 0 else left[::-1]:
            print(f"{ranks} ranks, round {index + 1} of {rounds}: {name}", file=sys.stderr)
            try:
                rows = starts[name](ranks)
            except Failed as failed:
                if name in ["process", "tcp"]:
                    raise SystemExit(f"our bench failed: {failed}") from failed
                print(f"{name} over {ranks} ranks is left out: {failed}")
                left.remove(name)
                continue
            for row in rows:
                times.setdefault((name, row["op"], row["bytes"]), []).append(row["us"])
    return {key: statistics.median(values) for key, values in times.items() if key[0] in left}


def print_table(title, columns, medians):
    (ours, our_title), *peers = columns
    head = f"{'operation':<14}  {'bytes':>10}  {our_title + ' us':>12}"
    for _, name in peers:
        head += f"  {name + ' us':>12}  {name + '/' + our_title:>12}"
    print(f"\n{title}\n{head}")
    bytes_of = sorted({size for name, _, size in medians if name == ours})
    for op in OPERATIONS:
        for size in bytes_of:
            own = medians[ours, op, size]
            line = f"{op:<14}  {size:>10}  {own:>12.1f}"
            for name, _ in peers:
                theirs = medians.get((name, op, size))
                if theirs is None:
                    line += f"  {'-':>12}  {'-':>12}"
                else:
                    ratio = theirs / own
                    # Two decimals, unless they would all be zeros.
                    decimals = 2 if ratio >= 0.1 else 4
                    line += f"  {theirs:>12.1f}  {ratio:>12.{decimals}f}"
            print(line)


def parse():
    def numbers(text):
        values = [int(number) for number in text.split(",")]
        if min(values) < 1:
            raise ValueError
        return values

    def number(text):
        (value,) = numbers(text)
        return value

    parser = argparse.ArgumentParser(
        description="Our collectives beside OpenMPI's and those of PyTorch's Gloo, in one run."
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="numbers of ranks")
    parser.add_argument(
        "--sizes",
        type=numbers,
        default=[4 << 10, 256 << 10, 4 << 20, 64 << 20],
        help="bytes of the arrays",
    )
    parser.add_argument("--rounds", type=number, default=3, help="rounds that medians are taken over")
    parser.add_argument("--json", type=Path, help="write the medians as JSON")
    parser.add_argument("--torch-python", default="python3", help="a python that has torch")
    parser.add_argument("--bench", type=Path, help="our bench, already built; otherwise it is built")
    arguments = parser.parse_args()
    # Commands run in the repository's root; a path is of where this was started.
    if arguments.bench:
        arguments.bench = arguments.bench.absolute()
    if os.sep in arguments.torch_python:
        # Not resolved: the python of a virtual environment is a link that must stay one.
        arguments.torch_python = os.path.abspath(arguments.torch_python)
    return arguments


def main():
    arguments = parse()
    # As an exception, so that the running command and the temporary folder do not outlive this.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    bench = arguments.bench or build_bench()
    with tempfile.TemporaryDirectory(prefix="burn-dist-peers-") as folder:
        folder = Path(folder)
        program = folder / "collectives_mpi"
        starts = commands(arguments, bench, program, folder)
        for title, (version, reason), names in [
            ("OpenMPI", find_openmpi(program), ["openmpi-shm", "openmpi-tcp"]),
            ("Gloo", find_gloo(arguments.torch_python), ["gloo"]),
        ]:
            if version is None:
                print(f"{title} is missing: {reason}")
                for name in names:
                    del starts[name]
            else:
                print(f"{title}: {version}")
        rows = []
        for ranks in arguments.ranks:
            medians = measure(ranks, arguments.rounds, starts)
            cores = len(os.sched_getaffinity(0))
            for transport, columns in TABLES:
                title = f"{ranks} ranks on {cores} cores, {transport}; rounds: {arguments.rounds}"
                print_table(title, columns, medians)
            for (name, op, size), us in medians.items():
                rows.append({"communicator": name, "op": op, "ranks": ranks, "bytes": size, "us": us})
            sys.stdout.flush()
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
