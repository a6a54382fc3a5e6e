"""A process that stands by to become the builder, which has PyTorch loaded by then.

Loading PyTorch takes one and a half seconds of a processor, and a program that wants its first
plans has every processor busy. So the program forks at the end of `import torch`, where its memory
is PyTorch's alone, and its copy sleeps. When the program wants a builder the copy becomes it; when
the program ends first, so does the copy.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import traceback
import warnings
from pathlib import Path

from torch_tenon import config
from torch_tenon.targets.target import Target

MOST_BYTES = 1 << 30  # of the program: what it changes later the copy keeps as it was
MOST_ORDER = 1 << 20  # bytes of an order: a socket, a log, and the environment
NAME = "tenon-builder"  # as `ps` and `top` show it


def stand_by(target: Target) -> int | None:
    """The end of a socket that takes one order (csrc/pytorch/windows/builder_process.h) and that,
    closed, ends the process. None where no process stands by: the core then starts the builder with
    a command."""
    if not _is_wanted(target) or not _can_fork(target):
        return None
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # for threads that hold nothing
            child = os.fork()
    except OSError:
        return None
    if child == 0:
        try:
            # The parent of the second one ends: no program waits for a child that it has not made.
            if os.fork() == 0:
                _wait(theirs.fileno())
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)  # the log, once it is the builder
        finally:
            os._exit(0)
    theirs.close()
    with contextlib.suppress(ChildProcessError):  # a program that ignores SIGCHLD has none
        os.waitpid(child, 0)
    return ours.detach()


def _is_wanted(target: Target) -> bool:
    """Whether the program may want a builder, and none is there."""
    if target.backend is None or config.BUILDER.read() != "process" or not config.PLAN_FILES.read():
        return False
    if config.EXECUTE.read() == "reference" or multiprocessing.parent_process() is not None:
        return False
    directory = config.CACHE_DIR.read()
    if config.cache_problem(directory) is not None:
        return False
    return not any(path.is_socket() for path in Path(directory).glob("builder-*"))


def _can_fork(target: Target) -> bool:
    """Whether a copy of this process can go on: the target has no driver that is open, no thread of
    Python's holds a lock, OpenMP has no threads, and there is little that is the program's own."""
    torch = sys.modules["torch"]
    is_loading = getattr(torch.__spec__, "_initializing", False)
    alone = threading.active_count() == 1
    return target.host_memory and is_loading and alone and _resident() < MOST_BYTES


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _wait(orders: int) -> None:
    """Sleeps until there is an order, and becomes the builder."""
    # A group of its own, for the terminal's signals. In a session of its own, which has a share of
    # the processors as a whole, it would take that share however low its priority is.
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.dup2(orders, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    Path("/proc/self/comm").write_text(NAME)
    with socket.socket(fileno=3) as order:
        received = order.recv(MOST_ORDER)
    if received:
        path, log, *environment = received.decode(errors="surrogateescape").split("\0")
        _forget_the_program(log, environment)
        _serve(path)


def _forget_the_program(log: str, environment: list[str]) -> None:
    """Leaves nothing of what the program had set up for itself, and takes its environment."""
    sys.settrace(None)
    sys.setprofile(None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    logging.root.handlers.clear()
    os.environ.clear()
    os.environ.update({k: v for k, is_set, v in (e.partition("=") for e in environment) if is_set})
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _serve(path: str) -> None:
    import gc

    import torch

    from torch_tenon.builder.server import serve

    # What follows the loading of devices in PyTorch's own import.
    vars(torch.__spec__)["_initializing"] = False
    with contextlib.suppress(ImportError):
        import torch._native
    gc.disable()  # until the compiler is loaded: nothing of that is garbage
    serve(path, is_copy=True)
