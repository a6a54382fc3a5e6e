"""Which routes the calls of a case took, where the device counts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# What making and reading the inputs and outputs of any case calls.
_OF_THE_SUITE = {
    "aten::as_strided",
    "aten::copy_",
    "aten::detach",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::_to_copy",
}


def _counters() -> dict[str, int]:
    package = sys.modules.get("torch_tenon")
    counters = getattr(package, "counters", None)
    return dict(counters()) if counters is not None else {}


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Fills the dict that it yields with calls by `route::op` made inside; empty if not counted."""
    before = _counters()
    calls: dict[str, int] = {}
    yield calls
    calls.update(
        (name, count - before.get(name, 0))
        for name, count in _counters().items()
        if count != before.get(name, 0)
    )


def routes(calls: dict[str, int]) -> list[str]:
    """The routes in `calls` (`lowered`, `fallback`, ...), those of the suite's own calls aside."""
    own = {name.split("::", 1)[0] for name in calls if name.split("::", 1)[-1] not in _OF_THE_SUITE}
    return sorted(own)
