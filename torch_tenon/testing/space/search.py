"""Looking for calls of an op that fail, and making those that do small: hypothesis draws, a worker
process runs, so a crash and a hang are made small as well.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from torch_tenon.testing.space import constraints, domains
from torch_tenon.testing.space.case import Data
from torch_tenon.testing.space.drawing import Drawing
from torch_tenon.testing.space.running import MODES
from torch_tenon.testing.space.shrinking import shrink

Ask = Callable[[Data, bool], dict[str, Any]]


@dataclass
class Failing:
    """A call that fails, as small as it was made, and what is wrong with it."""

    kind: str
    text: str
    case: Data


@dataclass
class Search:
    """What became of the calls of an op."""

    op: str
    ran: int = 0
    refused: int = 0  # of these, by the CPU
    modes: dict[str, int] = field(default_factory=dict)
    failing: dict[str, Failing] = field(default_factory=dict)


# How many calls of each mode, out of the sum.
SHARES = {"reference": 6, "window": 3, "sized": 1, "compiled": 1, "dynamic": 1}


@st.composite
def cases(draw: Callable[..., Any], op: str, modes: Sequence[str]) -> Data:
    """Calls of an op."""
    mode = draw(st.sampled_from(modes))
    right = draw(st.integers(0, 4)) < 4
    d = Drawing(draw, op, right)
    low, high = constraints.RANKS.get(d.name, (0, 4))
    d.dtype = draw(st.sampled_from(domains.DTYPES))
    d.shape = d.some_shape(low, high)
    rule = constraints.RULES.get(d.name)
    if rule is not None and (right or draw(st.booleans())):
        rule(d)
    args, kwargs = d.arguments()
    data: Data = {"op": op, "mode": mode, "right": right, "tensors": d.tensors}
    data |= {"args": args, "kwargs": kwargs, "before": None}
    if mode != "dynamic" and draw(st.integers(0, 4)) == 4:
        data["before"] = "made"
    elif draw(st.integers(0, 3)) == 3:
        for t in d.tensors:
            if "float" in t["dtype"] or "complex" in t["dtype"]:
                t["grad"] = draw(st.booleans())
    return data


def search(
    op: str,
    number: int,
    count: int,
    ask: Ask,
    modes: Sequence[str] = tuple(MODES),
    shrinking: float = 60.0,
) -> Search:
    """Runs `count` calls of an op, drawn by the seed `number`. Of those that fail alike the first
    is made small, for at most `shrinking` seconds."""
    found = Search(op)
    chosen = [mode for mode in MODES if mode in modes for _ in range(SHARES[mode])]

    @seed(zlib.crc32(op.encode()) + number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(op, chosen))
    def run(case: Data) -> None:
        answer = ask(case, case["right"])
        if answer.get("refused") and case["right"] and not answer["failure"]:
            found.refused += 1
            reject()
        found.ran += 1
        found.modes[case["mode"]] = found.modes.get(case["mode"], 0) + 1
        if answer["failure"]:
            kind, text = answer["failure"]
            found.failing.setdefault(kind, Failing(kind, text, case))

    with contextlib.suppress(Unsatisfiable):
        run()
    for failing in found.failing.values():
        _make_small(failing, ask, shrinking)
    return found


def _make_small(failing: Failing, ask: Ask, seconds: float) -> None:
    def fails(case: Data) -> bool:
        answer = ask(case, False)["failure"]
        if answer is None or answer[0] != failing.kind:
            return False
        failing.text = answer[1]
        return True

    failing.case = shrink(failing.case, fails, seconds)
