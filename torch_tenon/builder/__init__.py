"""Who makes plans of recorded windows: a process of its own, or a thread of this one.

The core looks among the files of plans first (`csrc/execute/plan_file.h`), and asks the builder for
what is not there: `server.py` is the process, `thread.py` the thread where there can be no process.
`TENON_BUILDER` chooses.
"""

from __future__ import annotations

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
    try:
        directory = config.cache_directory()
    except config.ConfigError:
        return  # whoever compiles something says why
    _C.set_plan_directory(directory, known)
    name = f"{_C.checksum(known.encode()):0{_SOCKET_BYTES}x}"
    _C.set_known_calls(f"{directory}/plans/calls-{name}", known)
    if choice == "process" and process.is_writable(directory):
        command = [sys.executable, "-m", "torch_tenon.builder", f"{directory}/builder-{name}"]
        _C.set_builder(command[-1], command)
