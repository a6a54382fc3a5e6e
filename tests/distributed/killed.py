"""Runs of examples/train_ddp.py in which a rank is killed, for tests."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.distributed.held import hold
from tests.distributed.ranks import processes

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"
#: Seconds that a rank waits for another one; the others have to end by then.
TIMEOUT = 60.0
STEPS = 24


class Port:
    """The number of a port that the system gives to nobody else while this is there.

    Nobody listens at it but who knows the number: its socket does not, and lets others do so.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = int(self._socket.getsockname()[1])


def command(checkpoint: Path, device: str = "tenon") -> list[str]:
    """The example's arguments: a line for each step, a checkpoint for every fifth."""
    options = {
        "steps": STEPS,
        "batch": 8,
        "checkpoint": checkpoint,
        "save-every": 5,
        "log-every": 1,
        "device": device,
        "timeout": TIMEOUT,
    }
    return [str(EXAMPLE), *(text for k, v in options.items() for text in (f"--{k}", str(v)))]


def _train(
    arguments: list[str], variables: dict[str, object], log: str, released: Path | None
) -> None:
    # As the interpreter does with a script, whose output goes to a file.
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.argv = arguments
    if released is not None:
        hold(released, STEPS - 1)
    torch.set_num_threads(1)
    runpy.run_path(arguments[0], run_name="__main__")


class Run:
    """Ranks that train; each is a process of its own. With `held` they wait before the last step
    until one is killed."""

    def __init__(
        self, size: int, checkpoint: Path, device: str = "tenon", held: bool = False
    ) -> None:
        self._port = Port()
        common = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port.number}
        folder = Path(tempfile.mkdtemp(dir=checkpoint.parent))
        self._released = folder / "released"
        self.logs = [folder / f"rank{rank}.txt" for rank in range(size)]
        self.ranks = []
        for rank, log in enumerate(self.logs):
            variables = {"RANK": rank, "LOCAL_RANK": rank, **common}
            released = self._released if held else None
            arguments = (command(checkpoint, device), variables, str(log), released)
            self.ranks.append(processes().Process(target=_train, args=arguments, daemon=True))
            self.ranks[rank].start()

    def wait_for_step(self, step: int, timeout: float = 300) -> None:
        """Returns when rank 0 has done it; raises AssertionError if it ends before."""
        deadline = time.monotonic() + timeout
        while f"step {step} " not in (text := self.output(0)):
            assert self.ranks[0].is_alive() and time.monotonic() < deadline, text
            time.sleep(0.002)

    def kill(self, rank: int) -> None:
        """As the system does when it has no memory left."""
        self.ranks[rank].kill()
        self._released.touch()

    def wait(self, timeout: float = 300) -> list[int]:
        """The exit statuses when all have ended. Raises TimeoutError, and kills them."""
        deadline = time.monotonic() + timeout
        for process in self.ranks:
            process.join(max(0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(self.ranks) if process.is_alive()]
        for rank in late:
            self.ranks[rank].kill()
            self.ranks[rank].join()
        if late:
            raise TimeoutError(
                f"ranks {late} did not end within {timeout} s: {self.output(late[0])}"
            )
        return [process.exitcode for process in self.ranks]

    def output(self, rank: int) -> str:
        """What it has written so far."""
        return self.logs[rank].read_text() if self.logs[rank].exists() else ""


def parameters(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Of a run that has done all its steps."""
    state = torch.load(checkpoint, map_location="cpu")
    assert state["step"] == STEPS
    return {name.removeprefix("module."): t for name, t in state["model"].items()}


def check_killed(checkpoint: Path, size: int, victim: int, step: int) -> float:
    """Kills a rank after a step; the others have to end with an error that names it. Returns the
    seconds until all had ended."""
    run = Run(size, checkpoint, held=True)
    run.wait_for_step(step)
    run.kill(victim)
    killed_at = time.monotonic()
    statuses = run.wait(timeout=TIMEOUT)
    seconds = time.monotonic() - killed_at
    for rank, status in enumerate(statuses):
        text = run.output(rank)
        if rank == victim:
            assert status == -signal.SIGKILL
        else:
            assert status == 1, (rank, status, text)
            assert f"rank {victim} is gone" in text, (rank, text)
    return seconds


def check_result(run: Run, checkpoint: Path, expected: dict[str, torch.Tensor] | None) -> None:
    """Waits until the ranks have done all their steps, and compares what came of it."""
    statuses = run.wait()
    assert statuses == [0] * len(statuses), [run.output(rank) for rank in range(len(statuses))]
    if expected is not None:
        torch.testing.assert_close(parameters(checkpoint), expected, rtol=1e-4, atol=1e-5)


def undisturbed(checkpoint: Path, size: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The parameters after a run in which nobody dies."""
    check_result(Run(size, checkpoint, device), checkpoint, None)
    return parameters(checkpoint)
