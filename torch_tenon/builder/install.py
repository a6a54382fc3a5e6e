"""Where plans are kept and who makes them: what the core is told of it at import."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from torch_tenon import _C, config, process
from torch_tenon.builder.identity import identity

if TYPE_CHECKING:
    from torch_tenon.targets.target import Target

# What a builder makes for one process, another one must be able to use: all of these are part of
# where it listens.
_SOCKET_BYTES = 16


def install(target: Target) -> None:
    """Tells the core where plans are kept and who makes them. Called once, at import.

    Without a compiler, or a cache directory that can be written, a thread makes plans, which end
    with the process.
    """
    choice = config.BUILDER.read()
    if choice == "off":
        return
    _C.set_ask_for_plan(process.ask_for_plan)
    if not config.PLAN_FILES.read() or (known := identity(target)) is None:
        return
    if target.backend is None or not target.backend.open_files():
        return
    try:
        directory = config.cache_directory()
    except config.ConfigError:
        return  # whoever compiles something says why
    _C.set_plan_directory(directory, known)
    name = f"{_C.checksum(known.encode()):0{_SOCKET_BYTES}x}"
    _C.set_known_calls(f"{directory}/plans/calls-{name}", known)
    if choice == "process" and os.access(directory, os.W_OK):
        command = [sys.executable, "-m", "torch_tenon.builder", f"{directory}/builder-{name}"]
        _C.set_builder(command[-1], command)
