"""The process that runs cases: one JSON line in for each case, one out for each result.

Started by `pool.py` as `python -m torch_tenon.testing.conformance.worker`. It writes to the file
descriptor of `--position` where it is, so that the parent can say what crashed or hung.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
from typing import IO

# The length of the record of where a worker is, in bytes.
POSITION = 512


def main() -> None:
    """Serves cases until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--results", type=int, required=True)
    parser.add_argument("--position", type=int, required=True)
    arguments = parser.parse_args()
    # After a crash, and on SIGUSR1 in a hang, the stack goes to standard error.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    import torch

    torch.set_num_threads(1)

    suite = importlib.import_module(arguments.suite)
    # A device that cannot allocate fails here, once, and not in every case.
    torch.empty(1, device=arguments.device)
    with os.fdopen(arguments.results, "w", buffering=1) as results:
        _send(results, {"ready": True})
        for line in sys.stdin:
            case = suite.Case.from_id(json.loads(line)["case"])

            def position(check: str, sample: str) -> None:
                text = f"{check}, sample {sample}".encode()[:POSITION]
                os.pwrite(arguments.position, text.ljust(POSITION), 0)

            position("start", "none")
            result = suite.run_case(
                case, arguments.device, limit=arguments.limit, position=position
            )
            _send(results, {"result": result.to_json(), "rss": _resident_bytes()})


def _send(results: IO[str], value: object) -> None:
    results.write(json.dumps(value) + "\n")


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
