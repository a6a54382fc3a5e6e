"""Which routes the calls of a case took, and who computed, where the device counts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

# What making and reading the inputs and outputs of any case calls.
_OF_THE_SUITE = {
    "aten::as_strided",
    "aten::copy_",
    "aten::detach",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::_to_copy",
}


class Maker(StrEnum):
    """Who computed a result."""

    TARGET = "the target's kernels"
    BOTH = "them and the host"
    HOST = "the host"
    NOBODY = "nobody: views and copies"


class Work(NamedTuple):
    """What has been done so far: runs of the target's kernels, and ops that the host ran."""

    kernels: int
    host: int


def work() -> Work:
    """What the device has done so far within `counted`."""
    from torch_tenon import _C

    _C.commit_all()
    kernels = host = 0
    for route, _, calls, *_ in _C.counter_values():
        if route in ("plan", "library"):
            kernels += calls
        elif route in ("fallback", "reference") or route.startswith("at once: "):
            host += calls
    return Work(kernels, host)


def maker_since(before: Work) -> Maker:
    """Who has worked since another moment."""
    now = work()
    if now.kernels > before.kernels:
        return Maker.BOTH if now.host > before.host else Maker.TARGET
    return Maker.HOST if now.host > before.host else Maker.NOBODY


def _counters() -> dict[str, int]:
    package = sys.modules.get("torch_tenon")
    counters = getattr(package, "counters", None)
    return dict(counters()) if counters is not None else {}


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Fills the dict that it yields with calls by `route::op` made inside; empty if not counted.

    Inside, the runs of kernels are counted too.
    """
    core = getattr(sys.modules.get("torch_tenon"), "_C", None)
    before = _counters()
    timed = core is not None and core.set_timing(True)
    calls: dict[str, int] = {}
    try:
        yield calls
    finally:
        if core is not None:
            core.set_timing(timed)
    calls.update(
        (name, count - before.get(name, 0))
        for name, count in _counters().items()
        if count != before.get(name, 0)
    )


def routes(calls: dict[str, int]) -> list[str]:
    """The routes in `calls` (`lowered`, `fallback`, ...), those of the suite's own calls aside."""
    own = {name.split("::", 1)[0] for name in calls if name.split("::", 1)[-1] not in _OF_THE_SUITE}
    return sorted(own)
