"""The tuned product beside the machine's libraries, and what an epilogue adds to it.

    python -m benchmarks.matmul [--sizes 16,32,...] [--dtype float32] [--seconds 0.5] [--epilogue]

Prints, for square, rectangular and transposed products, GFLOP/s of MKL (PyTorch's kernel), oneDNN,
OpenBLAS (NumPy's) and the way that the tuner chose, with its rate over the fastest library's; with
--epilogue, the time of a fused bias and ReLU, and of bias and GELU, over the bare product's. All
take turns, after the choice was made; figures are medians. PyTorch's, oneDNN's and the generated
kernel are timed in the core, without Python; from OpenBLAS's times that of an empty call is taken
off.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import torch_tenon  # noqa: F401  registers the ops
from torch_tenon.targets.cpu.autotune import WAYS, Trial, Tuner
from torch_tenon.targets.cpu.compiler import default_compiler

SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# rows, columns, depth, and which operands are transposed in memory
OTHERS = (
    (1, 768, 768, "t"),
    (1, 3072, 768, "n"),
    (4, 1024, 1024, "t"),
    (8, 1024, 1024, "n"),
    (128, 768, 768, "t"),
    (128, 3072, 768, "t"),
    (128, 768, 3072, "t"),
    (768, 768, 128, "tn"),
    (2048, 64, 64, "n"),
    (64, 64, 2048, "n"),
    (512, 512, 512, "t"),
    (512, 512, 512, "tn"),
)

Ways = dict[str, Callable[[], float]]  # each gives the seconds of one run


def timed(run: Callable[[], object]) -> Callable[[], float]:
    """The seconds of a run, repeated where it is short."""

    def seconds(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats

    seconds(1)
    repeats = max(1, min(200, int(30e-6 / seconds(1))))
    return lambda: seconds(repeats)


def median_seconds(ways: Ways, seconds: float) -> dict[str, float]:
    """Medians of as many interleaved rounds as fit in `seconds`, at least five."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        rounds += 1
        for name, way in ways.items():
            times[name].append(way())
    return {name: statistics.median(t) for name, t in times.items()}


class Stopwatch(Tuner):
    """Chooses as the tuner does, then times every way beside OpenBLAS."""

    openblas: Callable[[], float]
    seconds = 0.5
    found: dict[str, float]
    winner = ""

    def choose(self, key: tuple[int, ...], trial: Trial) -> str:
        """The tuner's choice; the times of all ways are in `found`."""
        self.winner = super().choose(key, trial)
        if key[-1] == 0:
            repeats = max(1, min(200, int(30e-6 / trial(0, 1))))
            ways = {
                w: partial(trial, k, repeats) for k, w in enumerate(WAYS) if self.serves(w, key)
            }
            if key[4] == 0:
                ways["OpenBLAS"] = self.openblas
            self.found = median_seconds(ways, self.seconds)
        return self.winner


def compiled(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> Callable[[], float]:
    """Seconds of the function through the compiler, ready to run."""
    run = torch.compile(function, backend="tenon")
    run(*args)
    return timed(lambda: run(*args))


def openblas(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Callable[[], float]:
    """Seconds of a product by NumPy's OpenBLAS, less those of an empty one."""
    (file,) = (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")
    sgemm = ctypes.CDLL(str(file)).scipy_cblas_sgemm64_
    (m, k), n = x.shape, y.shape[1]

    def call(m: int) -> Callable[[], float]:
        def whole(*numbers: int) -> list[ctypes.c_int64]:
            return [ctypes.c_int64(v) for v in numbers]

        def matrix(t: torch.Tensor) -> list[object]:
            turned = t.stride(1) != 1
            return [ctypes.c_void_p(t.data_ptr()), ctypes.c_int64(t.stride(int(turned)))]

        def form(t: torch.Tensor) -> ctypes.c_int:
            return ctypes.c_int(111 if t.stride(1) == 1 else 112)

        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        head = [ctypes.c_int(101), form(x), form(y), *whole(m, n, k)]
        args = [*head, one, *matrix(x), *matrix(y), zero, *matrix(out)]
        return timed(lambda: sgemm(*args))

    empty = statistics.median(call(0)() for _ in range(21))
    product = call(m)
    return lambda: max(product() - empty, 1e-9)


def operand(rows: int, columns: int, turned: bool, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, dense along the rows or, turned, along the columns."""
    made = torch.randn(columns, rows) if turned else torch.randn(rows, columns)
    return made.to(dtype).t() if turned else made.to(dtype)


def main() -> None:
    """Runs the sweep and prints a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each product")
    parser.add_argument("--square", action="store_true", help="square products only")
    parser.add_argument("--epilogue", action="store_true", help="time fused epilogues as well")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    watch = Stopwatch(default_compiler())
    watch.seconds = options.seconds
    shapes = [(n, n, n, "n") for n in map(int, options.sizes.split(","))]
    print(f"{dtype}, {torch.get_num_threads()} threads, GFLOP/s")
    names = {"pytorch": "MKL", "OpenBLAS": "OpenBLAS", "onednn": "oneDNN", "generated": "generated"}
    print(f"{'':23}" + "".join(f"{name:>10}" for name in names.values()) + "  of best  chosen")
    for m, n, k, form in shapes if options.square else [*shapes, *OTHERS]:
        x = operand(m, k, form == "tn", dtype)
        y = operand(k, n, form == "t", dtype)
        out = torch.empty(m, n, dtype=dtype)
        if dtype is torch.float32:
            watch.openblas = openblas(x, y, out)
        watch.install()
        torch.ops.tenon.mm.out(x, y, out=out)
        rate = {w: 2e-9 * m * n * k / s for w, s in watch.found.items()}
        best = max(r for w, r in rate.items() if w != "generated")
        line = f"{m:>5} x{n:>5} x{k:>5} {form:3}"
        line += "".join(f"{rate[w]:10.1f}" if w in rate else f"{'':10}" for w in names)
        line += f"{rate[watch.winner] / best:9.2f}  {watch.winner}"
        if options.epilogue:
            torch._dynamo.reset()
            bias = torch.randn(n).to(dtype)
            pair = {
                "bare": compiled(torch.mm, x, y),
                "relu": compiled(lambda x, y, b: torch.relu(x @ y + b), x, y, bias),
                "gelu": compiled(lambda x, y, b: F.gelu(x @ y + b), x, y, bias),
            }
            both = median_seconds(pair, options.seconds)
            line += "".join(f"  {e} {both[e] / both['bare']:.3f}" for e in ("relu", "gelu"))
        print(line, flush=True)


if __name__ == "__main__":
    main()
