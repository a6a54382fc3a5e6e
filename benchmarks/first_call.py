"""The first call of a compiled function, in a process of its own.

python -m benchmarks.first_call CASE ENGINE SCALE

Prints the seconds from `torch.compile` until the first run is done, with what the compiler imports
of its own, but without PyTorch, Dynamo and the model's library, which are loaded before. Where the
caches are, the environment says.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (before the clock starts)

from benchmarks.cases import CASES, Case
from benchmarks.engines import ENGINES, Engine


def first_calls(case: Case, engine: Engine, scale: float) -> tuple[float, float]:
    """Seconds with empty caches, and in a new process with those that the first one left."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environment = dict(os.environ)
        for variable in ("TENON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            path = Path(folder) / variable.lower()
            path.mkdir(mode=0o700)
            environment[variable] = str(path)
        if engine.device == "cpu":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        command = [sys.executable, "-m", "benchmarks.first_call", case.name, engine.name]
        cold, warm = (
            float(
                subprocess.run(
                    [*command, str(scale)],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout.splitlines()[-1]
            )
            for _ in range(2)
        )
    return cold, warm


def main(name: str, engine_name: str, scale: float) -> float:
    """Seconds of the first call of that case on that engine, in this process."""
    (case,) = (c for c in CASES if c.name == name)
    engine = ENGINES[engine_name]
    spent = 0.0

    def compile_by_the_clock(function: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        compiled = engine.compile(function)
        spent += time.perf_counter() - start
        return compiled

    run = engine.waiting(engine.make(case, scale, compile_by_the_clock).run)
    start = time.perf_counter()
    run()
    return spent + time.perf_counter() - start


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
