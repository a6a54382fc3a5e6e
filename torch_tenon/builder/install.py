"""Where plans are kept and who makes them: what the core is told of it at import."""

from __future__ import annotations

import os
import sys

from torch_tenon import _C, config
from torch_tenon.builder import foreign_ops
from torch_tenon.builder.identity import identity
from torch_tenon.targets.target import Target


def install(target: Target) -> None:
    """Gives the core whom to ask for plans. Called once, at import.

    Without a compiler, or a cache directory that can be written, a thread makes plans, which end
    with the process.
    """
    _C.set_most_structures(config.STRUCTURES.read())
    if config.BUILDER.read() == "off":
        return
    _C.set_ask_for_plan(_ask_for_plan)
    _C.set_describe_op(foreign_ops.describe)
    _C.set_plan_all(config.PLAN.read() == "all")
    if config.PLAN_FILES.read() and target.backend is not None:
        # What files depend on is asked of the compiler: not by everybody who imports PyTorch.
        _C.set_before_recording(lambda: _begin(target))


def _ask_for_plan(window: _C.Window, wait: bool) -> None:
    from torch_tenon.builder.thread import builder  # when a program wants its first plan

    builder.ask(window, wait)


def _begin(target: Target) -> None:
    calls = tell_where_files_are(target)
    wants_plans = config.EXECUTE.read() != "reference"
    if wants_plans and calls is not None and not os.path.exists(calls):
        # Nothing is known of any program: this one will want plans, and loading the compiler takes
        # as long as many programs take until then.
        _C.start_builder()


def tell_where_files_are(target: Target) -> str | None:
    """Tells the core where plans are kept, and where the builder process listens. Gives the file of
    what is known of calls; None where nothing is kept."""
    if target.backend is None or not target.backend.open_files():
        return None
    known = identity(target)
    if known is None:
        return None
    try:
        directory = config.cache_directory()
    except config.ConfigError:
        return None  # whoever compiles something says why
    _C.set_plan_directory(directory, known)
    name = f"{_C.checksum(known.encode()):016x}"
    calls = f"{directory}/plans/calls-{name}"
    _C.set_known_calls(calls, known)
    if config.BUILDER.read() == "process" and os.access(directory, os.W_OK):
        command = [sys.executable, "-m", "torch_tenon.builder", f"{directory}/builder-{name}"]
        _C.set_builder(command[-1], command)
    return calls
