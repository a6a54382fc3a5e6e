"""What several ranks cost on the device beside tensors of the host, both through Gloo.

An all-reduce, and a step of data-parallel training, on two processes; host and device by turns,
medians. A ratio is the device's time by the host's.

    python -m benchmarks.distributed [--mebibytes N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE = 2
DEVICES = ("cpu", "tenon")


def all_reduce(device: str, mebibytes: int) -> Callable[[], None]:
    """Adds up that much of float32."""
    x = torch.zeros(mebibytes << 18, device=device)
    return lambda: dist.all_reduce(x)


def training_step(device: str, mebibytes: int) -> Callable[[], None]:
    """A step of a network of linear layers, about 9 million parameters."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 1024, device=device)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.tenon.synchronize()

    return step


def measure(run: Callable[[], None]) -> float:
    """Seconds of one run that all ranks begin together."""
    dist.barrier()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def work(rank: int, store: str, mebibytes: int, rounds: int) -> None:
    """One of the two processes."""
    torch.set_num_threads(max(1, (os.cpu_count() or SIZE) // SIZE))
    dist.init_process_group(init_method=f"file://{store}", rank=rank, world_size=SIZE)
    cases = ((f"all-reduce of {mebibytes} MiB", all_reduce), ("training step", training_step))
    for name, case in cases:
        runs = {device: case(device, mebibytes) for device in DEVICES}
        for _ in range(20 if case is training_step else 2):  # until plans are there
            for run in runs.values():
                measure(run)
        seconds: dict[str, list[float]] = {device: [] for device in DEVICES}
        for _ in range(rounds):
            for device, run in runs.items():
                seconds[device].append(measure(run))
        host, device = (statistics.median(seconds[d]) * 1e3 for d in DEVICES)
        if rank == 0:
            print(f"{name}: host {host:.1f} ms, device {device:.1f} ms, ratio {device / host:.2f}")
    dist.destroy_process_group()


def main() -> None:
    """Starts the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/store", options.mebibytes, options.rounds)
        mp.spawn(work, arguments, nprocs=SIZE)


if __name__ == "__main__":
    main()
