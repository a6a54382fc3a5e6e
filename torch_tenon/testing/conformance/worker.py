"""The process that runs cases: one JSON line in for each case, one out for each result.

Started by `pool.py` as `python -m torch_tenon.testing.conformance.worker`. It imports PyTorch and
its databases, never touches the device, and forks a child that runs the cases; when a case ends the
child, the next one is there at once. Where the device would stay with the parent, the child is a
process of its own, with `--serve`. It writes to the file descriptor of `--position` where it is, so
that the parent can say what crashed or hung.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
from types import ModuleType

PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
# The length of the record of where a child is, in bytes.
POSITION = 512
# A child that holds more memory than this is replaced after its case.
MEMORY = 3 << 30


def main() -> None:
    """Keeps a child that serves cases until standard input ends."""
    _end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--results", type=int, required=True)
    parser.add_argument("--position", type=int, required=True)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    # After a crash, and on SIGUSR1 in a hang, the stack goes to standard error.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    import torch

    from torch_tenon import _C

    torch.set_num_threads(1)
    suite = importlib.import_module(arguments.suite)
    forks = _C.survives_fork()
    if forks or arguments.serve:
        suite.prepare()
    child = 0 if arguments.serve else None
    while child != 0:
        sys.stdout.flush()
        if forks:
            child = os.fork()
        else:
            child = os.posix_spawn(sys.executable, [*sys.orig_argv, "--serve"], os.environ)
        if child == 0:
            _end_with_parent()
            break
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        # The child may have died in the middle of a line.
        _send(arguments.results, {"ended": code}, before=b"\n")
    _serve(arguments, suite)


def _end_with_parent() -> None:
    """Has the system kill this process when the one that started it ends, however that does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(arguments: argparse.Namespace, suite: ModuleType) -> None:
    """Runs cases until standard input ends, or leaves with status 1 to be replaced."""
    import torch

    # A device that cannot allocate fails here, once, and not in every case.
    torch.empty(1, device=arguments.device)
    _send(arguments.results, {"ready": os.getpid()})
    while line := _read_line():
        case = suite.Case.from_id(json.loads(line)["case"])

        def position(check: str, sample: str) -> None:
            text = f"{check}, sample {sample}".encode()[:POSITION]
            os.pwrite(arguments.position, text.ljust(POSITION), 0)

        position("start", "none")
        # The parent ends a hang; should it be gone itself, this does.
        faulthandler.dump_traceback_later(2 * arguments.timeout + 60, exit=True)
        result = suite.run_case(case, arguments.device, limit=arguments.limit, position=position)
        faulthandler.cancel_dump_traceback_later()
        last = _resident_bytes() > MEMORY
        _send(arguments.results, {"result": result.to_json(), "last": last})
        if last:
            os._exit(1)


def _read_line() -> bytes:
    """The next line of standard input without reading ahead of it, empty at the end."""
    line = bytearray()
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            return bytes(line)
    return b""


def _send(descriptor: int, value: object, before: bytes = b"") -> None:
    data = before + json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
