"""`tuned_mm`: the fastest way to multiply two matrices on this machine, found once and kept.

The cpu target's kernels (`targets/cpu/csrc/matmul.cpp`) have the table of choices, and ask here
when a product is not in it. The ways are PyTorch's own kernel (MKL or OpenBLAS), oneDNN, and the
generated driver (`templates/matmul.c`), each with the epilogue if there is one. They are timed on
the operands at hand, taking turns, so that a busy moment hits them all; the winner is kept in the
cache. While PyTorch's deterministic algorithms are on nobody asks: PyTorch's kernel takes all.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from torch_tenon import _C
from torch_tenon.compiler.cache import digest
from torch_tenon.targets.cpu.compiler import CpuCompiler
from torch_tenon.targets.cpu.toolchain import processor
from torch_tenon.targets.target import CompileError, CompilerMissing

log = logging.getLogger("torch_tenon.code")

FOLDER = Path(__file__).parent / "templates"
INTERFACE = (FOLDER / "matmul.h").read_text()
DRIVER = INTERFACE + (FOLDER / "matmul.c").read_text()

WAYS = ("pytorch", "onednn", "generated")  # in the order of MatmulRoute
ROUNDS = 9
SECONDS = 0.3  # spent on one product, unless two rounds take longer
LONG = 1.0  # seconds after which progress is shown
SHORTEST = 20e-6  # of one timing: what is faster is repeated
HOPELESS = 2.0  # times as slow as the best at first: not timed again

Trial = Callable[[int, int], float]


class Tuner:
    """Chooses among the ways and keeps that on disk; the one that was installed last is asked."""

    def __init__(self, compiler: CpuCompiler) -> None:
        self.compiler = compiler
        self._lock = threading.Lock()
        self._driver: int | None = None

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
        if self._driver is None:
            try:
                (self._driver,) = self.compiler.functions([DRIVER])
            except (CompilerMissing, CompileError) as error:
                log.warning("matmul goes without its generated kernel: %s", error)
                self._driver = 0
            if self._driver:
                _C.set_matmul_driver(self._driver)
        return bool(self._driver)

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
            seconds = _race({w: _timed(trial, WAYS.index(w)) for w in ways}, str(key[:4]))
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


def _timed(trial: Trial, way: int) -> Callable[[], float]:
    trial(way, 1)  # the first run makes what later ones find
    repeats = max(1, min(100, int(SHORTEST / max(trial(way, 1), 1e-7))))
    return lambda: trial(way, repeats)


def _race(ways: dict[str, Callable[[], float]], title: str) -> dict[str, float]:
    """Seconds of each way that is in the running: the lower quartile, since others may be busy."""
    times: dict[str, list[float]] = {w: [min(run(), run())] for w, run in ways.items()}
    best = min(t[0] for t in times.values())
    running = [w for w, t in times.items() if t[0] < HOPELESS * best]
    start = time.perf_counter()
    rounds = 1 if len(running) < 2 else ROUNDS
    each = sum(times[w][0] for w in running)
    for k in _shown(range(rounds), title) if each * rounds >= LONG else range(rounds):
        for w in running:
            times[w].append(ways[w]())
        if k >= 1 and time.perf_counter() - start > SECONDS:
            break
    return {w: statistics.quantiles(times[w], n=4)[0] for w in running}


def _shown(rounds: range, title: str) -> Iterable[int]:
    from rich.progress import track  # it takes as long to import as the compiler

    return track(rounds, f"timing the product {title}", transient=True)
