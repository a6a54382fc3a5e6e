"""Asking a process to run calls; one that a call ends, or keeps, is replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch_tenon.testing.fuzz.workers import Worker
from torch_tenon.testing.space.case import Data

WORKER = "torch_tenon.testing.space.worker"
# What the worker says before it calls the CPU.
ON_CPU = "the CPU runs it"
# How long calls that run together may take, with their plan or graph.
_SECONDS = 240.0
# A process grows with what it compiles.
_REQUESTS = 500


class Asking:
    """A worker process, asked as `search` does."""

    def __init__(self, module: str = WORKER, environment: Mapping[str, str] | None = None) -> None:
        settings = {
            "TENON_PLAN": "all",
            "TENON_PLAN_FILES": "0",
            "TENON_BUILDER": "thread",
            "TENON_DEVICES": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.worker = Worker({**settings, **(environment or {})}, _SECONDS, module, _REQUESTS)

    def __call__(self, cases: list[Data]) -> list[dict[str, Any]]:
        """What is wrong with each of some calls that run together. Nothing is, where the CPU itself
        ends the process."""
        answer = self.worker.ask({"cases": cases})
        if "answers" in answer:
            found: list[dict[str, Any]] = answer["answers"]
            return found
        if len(cases) > 1:
            return [one for case in cases for one in self([case])]
        text: str = answer["failure"]
        if ON_CPU in text or "in _on_cpu" in text:
            return [{"failure": None, "refused": "the CPU ends the process"}]
        kind = "hang" if text.startswith("it hangs") else "crash"
        return [{"failure": [kind, text], "refused": ""}]

    def stop(self) -> None:
        """Ends the process."""
        self.worker.stop()


def environment_with(path: str) -> dict[str, str]:
    """An environment in which modules are found in a folder as well."""
    return {"PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
