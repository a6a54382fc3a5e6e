"""A window's plan, made in the builder process."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import time
from typing import TYPE_CHECKING

import torch

from torch_tenon import _C
from torch_tenon.builder import foreign_ops, plain_sizes
from torch_tenon.builder.answer import Answer
from torch_tenon.builder.install import tell_where_files_are
from torch_tenon.builder.planning import plan_window
from torch_tenon.compiler.wire import foreign_ops_of, window_of
from torch_tenon.device import target
from torch_tenon.frontends import dynamo_waits

if TYPE_CHECKING:
    from torch_tenon.builder.server import Pace

log = logging.getLogger("torch_tenon.program")
plans_log = logging.getLogger("torch_tenon.plans")

LONGEST = 900.0  # seconds that a plan may take, after which something hangs

# Nobody traces anything here.
dynamo_waits.stay_in_parts()
plain_sizes.install()

# Nothing is recorded here, which is when others are told.
tell_where_files_are(target())
if (_backend := target().backend) is not None:
    _backend.work_in_background()


def collect_garbage() -> None:
    """Lets the interpreter collect what plans leave, without the compiler itself."""
    gc.freeze()
    gc.enable()


def make(structure: bytes, pace: Pace) -> Answer:
    """Makes the plan of a window, and notes what that took.

    Where it takes far too long the process says where it is, and ends: who waits asks again.
    """
    start, used = time.perf_counter(), _processor_seconds()
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=2)
    try:
        for text in foreign_ops_of(structure):
            foreign_ops.define(text)
        window = _C.Window.of_structure(structure)
        if window.find_kept():
            return Answer.KEPT
        read = window_of(structure)
        # As they are where the window was recorded.
        torch.set_num_threads(read.threads)
        torch.set_default_dtype(read.default_dtype)
        answer = plan_window(window, read)
        seconds, used = time.perf_counter() - start, _processor_seconds() - used
        pace.note(used, read.calls)
        plans_log.debug(
            "a plan for %d calls took %.2f s, %.2f s of a processor",
            read.calls,
            seconds,
            used,
        )
        return answer
    except Exception:
        log.exception("a plan was not made")
        return Answer.NOTHING
    finally:
        faulthandler.cancel_dump_traceback_later()


def _processor_seconds() -> float:
    """Of all threads of this process, and of the compilers that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
