"""Does training keep what it takes? `python tests/soak.py --steps 10000`

Trains a small model with dropout, batch norm, data from a loader and an optimizer, and compares the
device's live and reserved bytes and the process's resident size after 100 steps with those at the
end. Exit status 1 when one of them grew.
"""

import argparse
import gc
import sys
import time
from typing import NamedTuple

import psutil
import torch

from torch_tenon.builder.counts import plan_counts

WARM_UP = 100
# Python and the C library keep what they once took, at times late: so much is no leak. (A leak of
# a tensor of this model a step is 10 MiB in 10,000 steps.)
RESIDENT_SLACK = 4 << 20


class Held(NamedTuple):
    """What a process holds, in bytes."""

    live: int
    reserved: int
    resident: int


def held() -> Held:
    """What this process holds now, with nothing left to run: a result has memory from then on."""
    gc.collect()
    torch.tenon.synchronize()
    return Held(
        torch.tenon.memory_allocated(),
        torch.tenon.memory_reserved(),
        psutil.Process().memory_info().rss,
    )


def soak(steps: int, report_every: int = 0) -> tuple[Held, Held]:
    """Trains for `steps` steps; what is held after 100 of them, and at the end."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 1, 8, 8), torch.arange(256) % 10)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(144, 10),
    ).to("tenon")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = held()
    step = 0
    while step < steps:
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to("tenon")), y.to("tenon"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step in (WARM_UP // 2, WARM_UP):  # for the second time plans have run, not only come
                del loss
                while plan_counts()["waiting"]:  # what compiles holds memory of its own
                    time.sleep(0.05)
                first = held()
            elif report_every and step % report_every == 0:
                print(f"step {step:>7,}: loss {loss.item():.4f}, {held()}", flush=True)
            if step == steps:
                break
    del loss
    return first, held()


def main() -> int:
    """Runs it and says what it found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    if steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}")
    first, last = soak(steps, report_every=max(1, steps // 10))
    for name, slack in (("live", 0), ("reserved", 0), ("resident", RESIDENT_SLACK)):
        a, b = getattr(first, name), getattr(last, name)
        print(f"{name:>9}: {a:,} bytes after {WARM_UP} steps, {b:,} after {steps:,} ({b - a:+,})")
        if b > a + slack:
            print(f"{name} grew")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
