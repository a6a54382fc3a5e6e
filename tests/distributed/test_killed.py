"""A rank that dies ends the others with an error that names it, and the run can be resumed."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.distributed import killed

SIZE = 2
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return killed.undisturbed(tmp_path_factory.mktemp("undisturbed") / "digits.pt", SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(SIZE))
def test_a_rank_is_killed(tmp_path: Path, expected: dict[str, torch.Tensor], victim: int) -> None:
    checkpoint = tmp_path / "digits.pt"
    step = random.randint(1, killed.STEPS - 2)
    killed.check_killed(checkpoint, SIZE, victim, step)
    killed.check_result(killed.Run(SIZE, checkpoint), checkpoint, expected)


def command_line(process: psutil.Process) -> str:
    """Empty of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.slow
def test_torchrun_starts_again(tmp_path: Path, expected: dict[str, torch.Tensor]) -> None:
    checkpoint, released, port = tmp_path / "digits.pt", tmp_path / "released", killed.Port()
    options = {"nproc-per-node": SIZE, "max-restarts": 1, "master-port": port.number}
    start = ["torch.distributed.run", "--monitor-interval", "0.1"]
    start += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    held = ["-m", "tests.distributed.held", str(released), str(killed.STEPS - 1)]
    run = subprocess.Popen(
        [sys.executable, "-m", *start, *held, *killed.command(checkpoint)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        if line.startswith("step 7 "):
            break
    workers = [p for p in psutil.Process(run.pid).children() if "train_ddp" in command_line(p)]
    assert len(workers) == SIZE, "".join(lines)
    workers[1].kill()
    released.touch()
    try:
        rest, _ = run.communicate(timeout=400)
    finally:
        run.kill()
    assert run.returncode == 0, "".join(lines) + rest
    (went_on,) = re.findall(r"goes on after step (\d+)", rest)
    assert int(went_on) in range(5, killed.STEPS, 5), rest  # from a checkpoint on
    torch.testing.assert_close(killed.parameters(checkpoint), expected, rtol=1e-4, atol=1e-5)
    deadline = time.monotonic() + 60
    while any(p.is_running() for p in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(p.is_running() for p in workers)
