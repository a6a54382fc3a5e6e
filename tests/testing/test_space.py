"""The argument space: any call gives on the device what it gives on the CPU, and what does not is
found and made small.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_tenon.testing.space import ops
from torch_tenon.testing.space.asking import Asking, environment_with
from torch_tenon.testing.space.case import Case
from torch_tenon.testing.space.script import script
from torch_tenon.testing.space.search import Search, calls, run, search


@pytest.fixture(scope="module")
def asking() -> Iterator[Asking]:
    ask = Asking()
    yield ask
    ask.stop()


# Of how many ops one has a call in a mode, and how many such calls share a window or a graph.
SAMPLE = {
    "direct": (8, 24),
    "window": (4, 24),
    "sized": (24, 12),
    "compiled": (46, 12),
    "dynamic": (82, 8),
}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", SAMPLE)
def test_a_sample_of_all_ops(asking: Asking, mode: str) -> None:
    """The same calls every time: `tenon conformance --db space` draws others. What is called in a
    window runs by reference first."""
    every, together = SAMPLE[mode]
    # The first call that is drawn is the simplest there is.
    drawn = [calls(op, 0, 2, [mode])[-1] for op in ops.names()[::every]]
    found = Search("")
    for k in range(0, len(drawn), together):
        run(found, drawn[k : k + together], asking)
    assert found.ran > len(drawn) / 4
    for failing in found.failing.values():
        raise AssertionError(f"{failing.text}\n\n{script([failing.case, *failing.beside])}")


@pytest.fixture(scope="module")
def planted() -> Iterator[Asking]:
    ask = Asking("testing.planted_faults", environment_with(str(Path(__file__).parent.parent)))
    yield ask
    ask.stop()


@pytest.mark.slow
@pytest.mark.sampled(2)
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
    # Few indices are out of range, and of these few are given to a call that is known by then.
    seed, drawn = (3, 300) if kind == "no error" else (1, 30)
    found = search(op, seed, drawn, planted, [mode], shrinking=20)
    assert kind in found.failing, found.failing
    case = found.failing[kind].case
    assert all(len(t["palette"]) == 1 for t in case["tensors"] if kind != "no error")
    assert sum(len(t["shape"]) for t in case["tensors"]) <= 4
    assert case["before"] is None
    assert len(Case(case).source().splitlines()) < 12
