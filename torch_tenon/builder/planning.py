"""A window's plan: built, compiled, tuned and given to the core."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon import _C, device
from torch_tenon.builder.answer import Answer
from torch_tenon.compiler.explain import summarise
from torch_tenon.compiler.plan import Plan
from torch_tenon.compiler.wire import ReadWindow, WireError, window_of
from torch_tenon.frontends.eager import BuiltWindow, build
from torch_tenon.ir.index import Symbol, product
from torch_tenon.ir.values import size_hint
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.pytorch import process, settings
from torch_tenon.targets.target import CompileError

log = logging.getLogger("torch_tenon.program")


def plan_window(window: _C.Window, known: ReadWindow | None = None) -> Answer:
    """Gives a window its plan, or says why it has none and stays on reference execution; `known` is
    the window, where it has been read.

    Only what the window itself shows to be impossible is kept, and holds for every process.
    Anything else may pass (a full disk, a compiler that was killed): it asks again later.
    """
    # What is lowered here looks at the process's default dtype: it has to be that of the calls.
    changes = settings.changes()
    try:
        read = known or window_of(window.structure(here=True), window.number)
    except WireError as error:  # arguments that are no plain data
        return _kept(window.finish(error=f"{type(error).__name__}: {error}"))
    if torch.get_default_dtype() is not read.default_dtype:
        return _kept(window.finish())  # it may ask again
    description, symbols = read.description, read.symbols
    start = time.perf_counter()
    try:
        plan, built, extras = make_plan(description, symbols)
        # With more of them than processors, those of the program would not wait awake.
        _C.release_threads()
    except Exception as error:  # the window stays on reference execution
        may_pass = not is_proven(error)
        if window.failures == 0 and (process.builder is None or not process.builder.stopped):
            log.warning(
                "a window of %d calls runs by reference%s: %s",
                read.calls,
                " for now" if may_pass else "",
                error,
            )
        log.debug("its plan failed", exc_info=True)
        kept = window.finish(error=f"{type(error).__name__}: {error}", may_pass=may_pass)
        return Answer.FAILED_FOR_NOW if may_pass else _kept(kept)
    if settings.changes() != changes:
        return _kept(window.finish())
    seconds = time.perf_counter() - start
    summary = summarise(plan, _bytes_by_op(description), built.fallbacks, seconds)
    made, data = plan.kept()
    kept = window.finish(
        plan=made,
        bytes=data,
        inputs=built.inputs,
        outputs=built.outputs,
        facts=summary.as_json(),
        extras=extras,
    )
    return _kept(kept)


def _kept(kept: bool) -> Answer:
    return Answer.KEPT if kept else Answer.NOTHING


def is_proven(error: Exception) -> bool:
    """Whether an error shows that there is no plan, whoever makes it and whenever."""
    if isinstance(error, CompileError):
        return error.is_of_source
    return isinstance(error, CannotLower | NotImplementedError)


def make_plan(
    description: tuple[Any, ...], symbols: Sequence[Symbol] = ()
) -> tuple[Plan, BuiltWindow, bytes]:
    """The window's plan, compiled, and what `Backend.tune` gave; `symbols` are its sizes of any
    value. Raises CannotLower for one that has none."""
    backend = device.backend()
    if backend is None:
        raise CannotLower(f"the target {device.target().name!r} has no backend")
    built = build(description, symbols)
    plan = Plan(built.program, backend).compile()
    return plan, built, backend.tune(plan)


def _bytes_by_op(description: tuple[Any, ...]) -> int:
    """What the window's calls read and write when each runs by itself."""

    def count(x: Any) -> int:
        if x is None or x[0] in ("constant", "number", "argument"):
            return 0
        if x[0] == "list":
            return sum(map(count, x[1]))
        return size_hint(product(x[3])) * int(x[2].itemsize)

    return sum(count(x) for _, _, arguments, results in description[1] for x in arguments + results)
