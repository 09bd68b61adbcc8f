#!/usr/bin/env python3
"""Times of the collectives of PyTorch's Gloo, measured as ../collectives.rs measures ours.

    python3 collectives_torch.py --ranks 2 --sizes 4096,4194304

Starts its ranks itself; rank 0 prints a JSON row per operation and size. Bytes are those of an
all_reduce's array and of the whole array of the others. A block's time is that of its slowest rank, a
row is the median over blocks. Every operation verifies its result first.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
# The first blocks only warm up.
WARM_UP = 2


def calls_and_blocks(size):
    if size <= 64 << 10:
        return 200, 15
    if size <= 1 << 20:
        return 40, 15
    if size <= 16 << 20:
        return 5, 15
    return 1, 9


class Gloo:
    """The operations on arrays of `ranks` parts."""

    def __init__(self):
        # Here and not above, so that the process that only starts the ranks stays small.
        import torch
        import torch.distributed

        # The sums are made by this one thread.
        torch.set_num_threads(1)
        self.torch, self.dist = torch, torch.distributed
        self.rank, self.ranks = self.dist.get_rank(), self.dist.get_world_size()
        self.reduce_scatter = self.find_reduce_scatter()

    def find_reduce_scatter(self):
        """Gloo has a reduce_scatter only in some versions of torch. Without one, it is what its users
        write instead: an all_reduce, of which each rank keeps its part."""

        def as_all_reduce(out, whole):
            self.dist.all_reduce(whole)
            part = out.numel()
            out.copy_(whole[self.rank * part : (self.rank + 1) * part])

        probe = self.torch.zeros(self.ranks)
        try:
            self.dist.reduce_scatter_tensor(self.torch.zeros(1), probe)
        except (AttributeError, RuntimeError):
            # Torch refuses it before anything is sent, and so on every rank alike.
            return as_all_reduce
        return self.dist.reduce_scatter_tensor

    def prepare(self, op, part):
        """What is called, the array it reads and the one with its result. all_reduce and broadcast work
        in their array, as our calls take their input and may return its memory."""
        # Memory that has been written: untouched zeros would all be one page.
        written = lambda parts: self.torch.empty(parts * part).fill_(0.0)
        whole = written(self.ranks)
        if op == "all_reduce":
            return lambda: self.dist.all_reduce(whole), whole, whole
        if op == "broadcast":
            return lambda: self.dist.broadcast(whole, 0), whole, whole
        if op == "reduce_scatter":
            out = written(1)
            return lambda: self.reduce_scatter(out, whole), whole, out
        if op == "all_gather":
            own = written(1)
            return lambda: self.dist.all_gather_into_tensor(whole, own), own, whole
        out = written(self.ranks)
        return lambda: self.dist.all_to_all_single(out, whole), whole, out

    def agree(self, value, how):
        """One number of all ranks."""
        box = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.all_reduce(box, how)
        return box.item()

    def is_right(self, op, part, call, read, result):
        # Small whole numbers, so that sums are exact, and no two alike, so that a part in the wrong
        # place is noticed.
        brought = lambda by, p: by * self.ranks + p + 1
        total = lambda p: sum(brought(by, p) for by in range(self.ranks))
        expected = {
            "all_reduce": total,
            "reduce_scatter": lambda _: total(self.rank),
            "all_gather": lambda p: brought(p, 0),
            "all_to_all": lambda p: brought(p, self.rank),
            "broadcast": lambda p: brought(0, p),
        }[op]
        for p, values in enumerate(read.split(part)):
            values.fill_(brought(self.rank, p))
        call()
        return all(bool((values == expected(p)).all()) for p, values in enumerate(result.split(part)))

    def measure(self, op, size):
        part = -(-(size // 4) // self.ranks)
        call, read, result = self.prepare(op, part)
        right = self.is_right(op, part, call, read, result)
        if not self.agree(right, self.dist.ReduceOp.MIN):
            raise SystemExit(f"{op} of {size} bytes over {self.ranks} ranks is wrong")
        # Zeros stay zeros however often they are summed.
        read.fill_(0.0)
        calls, blocks = calls_and_blocks(size)
        times = []
        for block in range(blocks + WARM_UP):
            self.dist.barrier()
            # One time around all calls: nothing else happens between them.
            start = time.perf_counter()
            for _ in range(calls):
                call()
            own = (time.perf_counter() - start) / calls
            slowest = self.agree(own, self.dist.ReduceOp.MAX)
            if block >= WARM_UP:
                times.append(slowest)
        return {
            "communicator": "gloo",
            "op": op,
            "ranks": self.ranks,
            "bytes": 4 * part * self.ranks,
            "us": sorted(times)[blocks // 2] * 1e6,
        }


def be_rank(arguments):
    import torch.distributed

    torch.distributed.init_process_group("gloo", rank=arguments.rank, world_size=arguments.ranks)
    gloo = Gloo()
    for op in OPERATIONS:
        for size in arguments.sizes:
            row = gloo.measure(op, size)
            if arguments.rank == 0:
                print(json.dumps(row), flush=True)
    torch.distributed.destroy_process_group()


def start_ranks(arguments):
    """Starts a process per rank; when one fails, the others are ended, as they would wait for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    environment["OMP_NUM_THREADS"] = "1"
    # Without it Gloo takes the interface of the host's name, which need not be the loopback.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, os.path.abspath(__file__), "--ranks", str(arguments.ranks)]
    command += ["--sizes", ",".join(map(str, arguments.sizes)), "--rank"]
    running = [
        subprocess.Popen([*command, str(rank)], env=environment) for rank in range(arguments.ranks)
    ]
    code = 0
    try:
        while running and code == 0:
            # Sleeps until any of them ends, and leaves it to its Popen to collect it.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            ended = [process for process in running if process.poll() is not None]
            running = [process for process in running if process not in ended]
            code = next((process.returncode for process in ended if process.returncode), 0)
    finally:
        for process in running:
            process.kill()
            process.wait()
    # A signal's number is negative.
    return abs(code)


def main():
    parser = argparse.ArgumentParser(description="Times of the collectives of PyTorch's Gloo.")
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks")
    parser.add_argument(
        "--sizes",
        type=numbers,
        default=[4 << 10, 256 << 10, 4 << 20, 64 << 20],
        help="bytes of the arrays",
    )
    # The rank of a started process.
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is None:
        sys.exit(start_ranks(arguments))
    be_rank(arguments)


if __name__ == "__main__":
    main()
