"""A process that makes one engine's file of one model, or runs it.

It reads commands from standard input, a line each, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.export.engines import ENGINES


def make(engine: str, name: str, path: Path) -> None:
    """Writes the file, and beside it what goes in and what PyTorch gives."""
    import copy

    import torch

    from benchmarks.export.models import case, outputs_of

    found = case(name)
    with torch.no_grad():
        expected = outputs_of(copy.deepcopy(found.model)(*found.args))
    inputs = {f"in{k}": x.numpy() for k, x in enumerate(found.args)}
    outputs = {f"out{k}": x.numpy() for k, x in enumerate(expected)}
    np.savez(path.with_suffix(".npz"), **inputs, **outputs)
    ENGINES[engine].make(found.model, found.args, path)


def serve(engine: str, path: Path, threads: int) -> None:
    """Loads the file and runs it once; then as often as each line says, timing each run."""
    start = time.perf_counter()
    kept = np.load(path.with_suffix(".npz"))
    inputs = [kept[k] for k in kept.files if k.startswith("in")]
    expected = [kept[k] for k in kept.files if k.startswith("out")]
    run = ENGINES[engine].load(path, threads)
    got = run(inputs)
    seconds = time.perf_counter() - start
    error = max(
        float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-6))
        for x, y in zip(got, expected, strict=False)
    )
    print(json.dumps({"first": seconds, "error": error}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            run(inputs)
            times.append(time.perf_counter() - begin)
        print(json.dumps({"times": times, "peak": _peak()}), flush=True)


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    command, engine, name, path, threads = sys.argv[1:]
    if command == "make":
        make(engine, name, Path(path))
    else:
        serve(engine, Path(path), int(threads))
