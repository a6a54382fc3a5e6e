"""The long form of the tests of several ranks, for a person to run: `make test-distributed`.

50 steps of data-parallel, sharded and tensor-parallel training on 2 and on 4 ranks against ranks of
the host, and 20 runs in which a rank is killed at a random step. Raises at the first that is wrong.

    python -m tests.distributed.long [--steps N] [--kills N] [--seed N]
"""

import argparse
import os
import random
import tempfile
from pathlib import Path

from tests.distributed import killed, training
from tests.distributed.ranks import ranks

# The windows are small, and some get plans all the same; processes read this when they start.
os.environ.setdefault("TENON_PLAN", "all")

TRAININGS = (
    *(training.ddp, training.fsdp, training.fsdp_offloaded),
    *(training.tensor_parallel, training.sequence_parallel),
)


def train(steps: int) -> None:
    """Prints the greatest relative difference between losses."""
    for size in (2, 4):
        with ranks(size) as started:
            for function in TRAININGS:
                found = started.run(training.equal_to_the_host, function, steps, timeout=900)
                name = f"{function.__name__}, {steps} steps, {size} ranks"
                print(f"{name}: losses differ by {max(found):.1e} at most", flush=True)


def kill(count: int, seed: int) -> None:
    """Prints how long the other ranks took to end."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = {
            size: killed.undisturbed(Path(folder) / f"undisturbed{size}.pt", size)
            for size in (2, 4)
        }
        for k in range(count):
            size = choose.choice((2, 4))
            victim, step = choose.randrange(size), choose.randint(1, killed.STEPS - 2)
            path = Path(folder) / f"{k}.pt"
            seconds = killed.check_killed(path, size, victim, step)
            killed.check_result(killed.Run(size, path), path, expected[size])
            name = f"{k + 1}: rank {victim} of {size} killed after step {step}"
            print(f"{name}: the others ended within {seconds:.1f} s, and it went on", flush=True)


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.steps)
    kill(options.kills, options.seed)


if __name__ == "__main__":
    main()
