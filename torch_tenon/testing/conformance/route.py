"""Which routes the calls of a case took, and who computed, where the device counts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


_AT_ONCE = "at once: "


class Work(NamedTuple):
    """What has been done so far: runs of the target's kernels, and calls of ops that the host ran,
    by route and op."""

    kernels: int
    host: dict[tuple[str, str], int]


def work() -> Work:
    """What the device has done so far within `counted`."""
    from torch_tenon import _C

    _C.commit_all()
    kernels, host = 0, {}
    for route, op, calls, *_ in _C.counter_values():
        if route in ("plan", "library"):
            kernels += calls
        elif route in ("fallback", "reference") or route.startswith(_AT_ONCE):
            host[route, op] = calls
    return Work(kernels, host)


# Why the host ran an op of a window, by route, where the window's plan does not say it.
_OF_WINDOWS = {
    "reference": "its window has no plan yet, or TENON_EXECUTE asks for none",
    "fallback": "PyTorch's kernel ran: a plan calls it, or the library's function did not take it",
}


class Worked(NamedTuple):
    """Who computed a result, and which ops the host ran by why: apart from windows, and in them."""

    maker: Maker
    at_once: dict[str, list[str]]
    in_windows: dict[str, list[str]]


def worked_since(before: Work) -> Worked:
    """Who has worked since another moment."""
    now = work()
    ran = [row for row, calls in now.host.items() if calls > before.host.get(row, 0)]
    at_once: dict[str, list[str]] = {}
    in_windows: dict[str, list[str]] = {}
    for route, op in ran:
        if route.startswith(_AT_ONCE):
            at_once.setdefault(f"runs at once: {route.removeprefix(_AT_ONCE)}", []).append(op)
    apart = {op for ops in at_once.values() for op in ops}
    for route, op in ran:
        if route in _OF_WINDOWS and op not in apart:
            in_windows.setdefault(_OF_WINDOWS[route], []).append(op)
    if now.kernels > before.kernels:
        maker = Maker.BOTH if ran else Maker.TARGET
    else:
        maker = Maker.HOST if ran else Maker.NOBODY
    return Worked(maker, at_once, in_windows)


# Why a window has no plan, where that is no fault: it has what no plan does, or nothing compiles.
_NO_FAULT = ("NotImplementedError", "CannotLower", "WireError", "CompilerMissing")


@dataclass(frozen=True)
class Planned:
    """What became of the plans of windows that have run.

    `failed` are errors of the compiler's, of a backend or of what it calls: the host computed then,
    so that the results say nothing. `on_host` says why a plan has work for the host, or why there
    is none, and of which ops.
    """

    failed: list[str]
    on_host: dict[str, list[str]]


def windows_run() -> dict[int, int]:
    """How often each window has run so far, by its number."""
    from torch_tenon import _C

    _C.commit_all()
    return {w.number: w.by_plan + w.by_reference for w in _C.window_runs()}


def planned_since(before: dict[int, int]) -> Planned:
    """Of the windows that have run since `windows_run`."""
    from torch_tenon import _C
    from torch_tenon.compiler.explain import Summary

    _C.commit_all()
    failed: dict[str, None] = {}
    on_host: dict[str, dict[str, None]] = {}
    for w in _C.window_runs():
        if w.number < 0 or w.by_plan + w.by_reference == before.get(w.number, 0):
            continue
        kind, _, text = w.error.partition(": ")
        if kind in _NO_FAULT:
            on_host.setdefault(text, {})[w.name] = None
        elif w.error:
            failed[w.error] = None
        plan = Summary.of_json(w.facts)
        for ops, why in (plan.fallbacks if plan else {}).items():
            on_host.setdefault(why, {})[ops] = None
    return Planned(list(failed), {why: list(ops) for why, ops in on_host.items()})


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
