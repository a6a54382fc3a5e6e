"""Who computes: eager PyTorch and Inductor on CPU tensors, tenon compiled and eager on its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.cases import Bench, Case, Compile, Work
from torch_tenon import _C
from torch_tenon.builder.counts import plan_counts

SETTLE_SECONDS = 60.0  # most to wait for plans


@dataclass(frozen=True)
class Engine:
    """A column of the table: the device of the tensors, and torch.compile's backend if any."""

    name: str
    device: str
    backend: str | None
    what: str

    def compile(self, function: Any) -> Any:
        """The function or module as this engine runs it."""
        if self.backend is None:
            return function
        return torch.compile(function, backend=self.backend)

    def make(self, case: Case, scale: float, compile: Compile | None = None) -> Work:
        """The case on this engine (with another function than its own to compile, if given); a
        compiler starts with the first run."""
        device = torch.device(self.device)
        return case.make(Bench(scale, device, case.dtype, compile or self.compile))

    def settle(self, run: Callable[[], Any]) -> None:
        """Runs until the plans of recorded code are there: what is timed is the steady state."""
        if self.device == "cpu" or self.backend is not None:
            return
        _C.set_plan_all(True)
        end = time.monotonic() + SETTLE_SECONDS
        ready = -1
        while time.monotonic() < end:
            for _ in range(3):
                run()
            counts = plan_counts()
            if counts["ready"] == ready and not counts["waiting"]:
                return
            ready = counts["ready"]
            while plan_counts()["waiting"] and time.monotonic() < end:
                time.sleep(0.02)

    def waiting(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """`run`, returning when the device is done."""
        if self.device == "cpu":
            return run

        @functools.wraps(run)
        def run_and_wait() -> Any:
            result = run()
            torch.tenon.synchronize()
            return result

        return run_and_wait


ENGINES = {
    e.name: e
    for e in (
        Engine("eager", "cpu", None, "PyTorch, CPU tensors, op by op"),
        Engine("inductor", "cpu", "inductor", "torch.compile, CPU tensors"),
        Engine("tenon", "tenon", "tenon", "torch.compile(backend='tenon'), tenon tensors"),
        Engine("tenon-eager", "tenon", None, "the eager column's code, tenon tensors"),
    )
}
