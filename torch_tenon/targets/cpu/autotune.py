"""`tuned_mm`: the fastest way to multiply two matrices on this machine, found once and kept.

The cpu target's kernels (`targets/cpu/csrc/matmul.cpp`) have the table of choices, and ask here
when a product is not in it. The ways are PyTorch's own kernel (MKL or OpenBLAS), oneDNN, and the
generated driver (`templates/matmul.c`), each with the epilogue if there is one. They are timed on
the operands at hand, taking turns, so that a busy moment hits them all; the winner is kept in the
cache. While PyTorch's deterministic algorithms are on nobody asks: PyTorch's kernel takes all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from torch_tenon import _C
from torch_tenon.compiler.cache import digest
from torch_tenon.forked import LockOfProcess
from torch_tenon.targets.cpu.compiler import CpuCompiler, Function
from torch_tenon.targets.cpu.toolchain import processor
from torch_tenon.targets.target import CompileError, CompilerMissing

log = logging.getLogger("torch_tenon.code")

FOLDER = Path(__file__).parent / "templates"
INTERFACE = (FOLDER / "matmul.h").read_text()
DRIVER = INTERFACE + "".join(
    (FOLDER / name).read_text() for name in ("blocks.c", "places.c", "matmul.c")
)

WAYS = ("pytorch", "onednn", "generated")  # in the order of MatmulRoute
ROUNDS = 9
SECONDS = 0.1  # spent on one product, unless two rounds take longer
LONG = 1.0  # seconds after which progress is shown
SHORTEST = 20e-6  # of one timing: what is faster is repeated
# Times as slow as the best that a way is out of the race by: at its first run, if that takes so
# many seconds that nothing it has to make first can be the reason, or its second; and later.
HOPELESS, SLOW_START = 2.0, 0.01
BEHIND = 1.1

Trial = Callable[[int, int], float]
Run = Callable[[int], float]


class Tuner:
    """Chooses among the ways and keeps that on disk; the one that was installed last is asked."""

    def __init__(self, compiler: CpuCompiler) -> None:
        self.compiler = compiler
        self._lock = LockOfProcess()
        self._driver: Function | None = None
        self._has_none = False

    def install(self) -> Tuner:
        """Makes the kernels ask this tuner; they forget the choices made before."""
        _C.set_matmul_tuner(self._answer)
        return self

    def begin(self) -> None:
        """Starts to compile the generated driver."""
        with contextlib.suppress(CompilerMissing, CompileError):  # `driver` says why
            self.compiler.begin([DRIVER])

    def driver(self) -> bool:
        """Whether there is a generated driver; compiles and hands it over the first time."""
        if self._driver is None and not self._has_none:
            try:
                (self._driver,) = self.compiler.functions([DRIVER])
            except (CompilerMissing, CompileError) as error:
                log.warning("matmul goes without its generated kernel: %s", error)
                self._has_none = True
            else:
                _C.set_matmul_driver(self._driver, self._driver.owner)
        return self._driver is not None

    def choose(self, key: tuple[int, ...], trial: Trial) -> str:
        """The fastest way for `key` (batch, m, n, k, dtype, layouts, threads, epilogue).

        `trial(way, repeats)` gives the seconds of one run by the way of that number.
        """
        entry = f"mm-{digest(repr(key), processor(), torch.__version__, DRIVER)}.json"
        with self._lock:
            ways = [w for w in WAYS if self.serves(w, key)]
            kept = self.compiler.cache.read_json(entry)
            if isinstance(kept, dict) and kept.get("winner") in ways:
                return str(kept["winner"])
            runs: dict[str, Run] = {w: functools.partial(trial, WAYS.index(w)) for w in ways}
            seconds = _race(runs, str(key[:4]))
            winner = min(seconds, key=lambda w: seconds[w])
            self.compiler.cache.write_json(entry, {"winner": winner, "seconds": seconds})
            return winner

    def serves(self, way: str, key: tuple[int, ...]) -> bool:
        """Whether a way exists for products of this kind on this machine."""
        batch, dtype = key[0], key[4]
        if way == "onednn":
            if batch != 1 or not torch.backends.mkldnn.is_available():
                return False
            return dtype == 0 or (dtype == 1 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return way == "pytorch" or self.driver()

    def _answer(self, key: Sequence[int], trial: Trial) -> int:
        # The caller is in the middle of a kernel and can do nothing about an exception.
        try:
            return WAYS.index(self.choose(tuple(key), trial))
        except Exception:
            log.exception("tuning a product of shape %s failed; PyTorch's kernel takes it", key[:4])
            return 0


def _race(ways: dict[str, Run], title: str) -> dict[str, float]:
    """Seconds of each way that is in the running at the end: the lower quartile, since others may
    be busy. A way is a function from how often it runs to the seconds of one run."""
    first = {w: run(1) for w, run in ways.items()}  # which makes what later runs find
    best = min(first.values())
    running = [w for w, t in first.items() if t < max(SLOW_START, HOPELESS * best)]
    again = {w: ways[w](1) for w in running}
    repeats = {w: max(1, min(100, int(SHORTEST / max(t, 1e-7)))) for w, t in again.items()}
    times = {w: [t] if repeats[w] == 1 else [ways[w](repeats[w])] for w, t in again.items()}
    running = _in_reach(times, running, HOPELESS)
    start = time.perf_counter()
    each = sum(times[w][0] for w in running)
    for k in _shown(range(ROUNDS), title) if each * ROUNDS >= LONG else range(ROUNDS):
        if len(running) == 1:
            break
        for w in running:
            times[w].append(ways[w](repeats[w]))
        running = _in_reach(times, running, BEHIND)
        if k >= 1 and time.perf_counter() - start > SECONDS:
            break
    return {w: statistics.quantiles(times[w] * 2, n=4)[0] for w in running}


def _in_reach(times: dict[str, list[float]], running: list[str], limit: float) -> list[str]:
    best = min(min(times[w]) for w in running)
    return [w for w in running if min(times[w]) < limit * best]


def _shown(rounds: range, title: str) -> Iterable[int]:
    from rich.progress import track  # it takes as long to import as the compiler

    return track(rounds, f"timing the product {title}", transient=True)
