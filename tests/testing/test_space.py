"""The argument space: any call gives on the device what it gives on the CPU, and what does not is
found and made small.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_tenon.testing.fuzz.workers import Worker
from torch_tenon.testing.space import ops
from torch_tenon.testing.space.case import Case, Data
from torch_tenon.testing.space.running import MODES
from torch_tenon.testing.space.script import script
from torch_tenon.testing.space.search import Search, calls, run, search

TESTS = Path(__file__).parent.parent
ENVIRONMENT = {"TENON_PLAN": "all", "TENON_PLAN_FILES": "0", "TENON_BUILDER": "thread"}


class Asking:
    """A worker process, asked as `search` does."""

    def __init__(self, module: str = "torch_tenon.testing.space.worker") -> None:
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        environment = {**ENVIRONMENT, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self.worker = Worker(environment, 200, module, programs=100_000)

    def __call__(self, cases: list[Data]) -> list[dict[str, Any]]:
        answer = self.worker.ask({"cases": cases})
        assert "answers" in answer, f"{answer['failure']}\n{[c['op'] for c in cases]}"
        found: list[dict[str, Any]] = answer["answers"]
        return found


@pytest.fixture(scope="module")
def planted() -> Iterator[Asking]:
    ask = Asking("testing.planted_faults")
    yield ask
    ask.worker.stop()


@pytest.mark.parametrize(
    ("op", "mode", "kind"),
    [
        ("aten.sin.default", "window", "value"),
        ("aten.sin.default", "sized", "value"),
        ("aten.sin.default", "compiled", "value"),
        ("aten.index_select.default", "window", "no error"),
        ("aten.cos.default", "reference", "dtype"),
        ("aten.tan.default", "reference", "strides"),
        ("aten.ceil.default", "reference", "shares"),
        ("aten.erf.default", "reference", "value"),
    ],
)
def test_a_planted_fault_is_found_and_made_small(
    planted: Asking, op: str, mode: str, kind: str
) -> None:
    found = search(op, 1, 30, planted, [mode], shrinking=20)
    assert kind in found.failing, found.failing
    case = found.failing[kind].case
    assert all(len(t["palette"]) == 1 for t in case["tensors"] if kind != "no error")
    assert sum(len(t["shape"]) for t in case["tensors"]) <= 4
    assert case["before"] is None
    assert len(Case(case).source().splitlines()) < 12
