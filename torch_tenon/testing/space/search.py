"""Looking for calls of an op that fail, and making those that do small: hypothesis draws, a worker
process runs, so a crash and a hang are made small as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from torch_tenon.testing.space import (
    algebra_constraints,
    constraints,
    domains,
    gradient_constraints,
    image_constraints,
    layer_constraints,
    loss_constraints,
    recurrent_constraints,
)
from torch_tenon.testing.space.case import Case, Data
from torch_tenon.testing.space.drawing import Drawing
from torch_tenon.testing.space.ops import base_name, named
from torch_tenon.testing.space.running import GRAPHS, MODES
from torch_tenon.testing.space.shrinking import shrink
from torch_tenon.testing.space.undefined import written_tensors

# Runs cases of one mode together; says of each what failed, and whether the CPU refuses it.
Ask = Callable[[list[Data]], list[dict[str, Any]]]


@dataclass
class Failing:
    """A call that fails, as small as it was made, and what is wrong with it. `beside`: it fails
    only together with these."""

    kind: str
    text: str
    case: Data
    beside: list[Data] = field(default_factory=list)


@dataclass
class Search:
    """What became of the calls of an op."""

    op: str
    ran: int = 0
    refused: int = 0  # by the CPU, beside these
    modes: dict[str, int] = field(default_factory=dict)
    failing: dict[str, Failing] = field(default_factory=dict)


# How many calls of each mode, out of the sum; how many share a window or a graph, and so its plan.
SHARES = {"reference": 5, "direct": 3, "window": 5, "sized": 3, "compiled": 2, "dynamic": 2}
TOGETHER = {"reference": 16, "direct": 16, "window": 16, "sized": 8, "compiled": 8, "dynamic": 4}
BESIDE = " beside other calls"


# Whose import makes entries.
assert layer_constraints and image_constraints and loss_constraints and gradient_constraints
assert recurrent_constraints and algebra_constraints


@st.composite
def cases(draw: Callable[..., Any], op: str, modes: Sequence[str]) -> Data:
    """Calls of an op."""
    mode = draw(st.sampled_from(modes))
    right = draw(st.integers(0, 4)) < 4
    d = Drawing(draw, op, right)
    d.changing = mode == "sized"
    low, high = constraints.RANKS.get(d.name, (0, 4))
    # Many ops take floats alone.
    if d.name in domains.OF_WHOLE and not d.chance(4):
        d.dtype = d.one((*domains.INTEGERS, "bool"))
    elif d.chance(24) and torch.Tag.nondeterministic_seeded not in named(op).tags:
        d.dtype = d.one(domains.RARE)
    else:
        d.dtype = d.one(domains.FLOATS if d.chance(2) else domains.DTYPES)
    d.shape = d.some_shape(low, high)
    rule = None if op.startswith("aten._foreach_") else constraints.RULES.get(d.name)
    if rule is not None and (right or d.name in constraints.UNCHECKED or draw(st.booleans())):
        rule(d)
    args, kwargs = d.arguments()
    data: Data = {"op": op, "mode": mode, "right": right, "tensors": d.tensors}
    data |= {"args": args, "kwargs": kwargs, "before": None}
    if mode in GRAPHS:
        # PyTorch's own graphs may apply what they do to these more than once.
        for k in written_tensors(Case(data)):
            d.tensors[k].pop("bits", None)
    if mode != "dynamic" and draw(st.integers(0, 4)) == 4:
        data["before"] = "made"
    elif draw(st.integers(0, 3)) == 3:
        for t in d.tensors:
            if "float" in t["dtype"] or "complex" in t["dtype"]:
                t["grad"] = draw(st.booleans())
    return data


def calls(op: str, number: int, count: int, modes: Sequence[str]) -> list[Data]:
    """About `count` calls of an op, the same ones for the same number."""
    found: list[Data] = []

    @seed(zlib.crc32(op.encode()) + number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(op, modes))
    def draw(case: Data) -> None:
        found.append(case)

    draw()
    return found


def search(
    op: str,
    number: int,
    count: int,
    ask: Ask,
    modes: Sequence[str] = tuple(MODES),
    shrinking: float = 60.0,
) -> Search:
    """Runs about `count` calls of an op, drawn by the seed `number`. Of those that fail alike the
    first is made small, for at most `shrinking` seconds."""
    found = Search(op)
    chosen = [mode for mode in MODES if mode in modes for _ in range(SHARES[mode])]
    waiting: dict[str, list[Data]] = {mode: [] for mode in modes}
    # As many again, since the CPU refuses some.
    for case in calls(op, number, 2 * count, chosen):
        mine = waiting[case["mode"]]
        mine.append(case)
        if len(mine) >= TOGETHER[case["mode"]]:
            run(found, mine, ask)
            mine.clear()
        if found.ran >= count:
            break
    for mine in waiting.values():
        run(found, mine, ask)
    for failing in found.failing.values():
        make_small(failing, ask, shrinking)
    return found


def run(found: Search, cases: list[Data], ask: Ask) -> None:
    """Runs cases of one mode together, and notes what comes of each."""
    answers = ask(cases) if cases else []
    for case, answer in zip(cases, answers, strict=True):
        failure, mode = answer["failure"], case["mode"]
        if answer["refused"] and case["right"] and not failure:
            found.refused += 1
            continue
        found.ran += 1
        found.modes[mode] = found.modes.get(mode, 0) + 1
        if failure and failure[0] not in found.failing:
            others = [c for c in cases if c is not case] if failure[0].endswith(BESIDE) else []
            found.failing[failure[0]] = Failing(failure[0], failure[1], case, others)


def make_small(failing: Failing, ask: Ask, seconds: float) -> None:
    """Makes a failing call small, in place."""
    if failing.beside:
        return

    def fails(case: Data) -> bool:
        (answer,) = ask([{**case, "right": False}])
        failure = answer["failure"]
        if failure is None or failure[0] != failing.kind:
            return False
        failing.text = failure[1]
        return True

    together = base_name(named(failing.case["op"])) in constraints.UNCHECKED
    failing.case = shrink(failing.case, fails, seconds, together)
