"""`tuned_mm`: the fastest way to multiply two matrices on this machine, found once and kept.

Candidates are PyTorch's own kernel (MKL or OpenBLAS), oneDNN, and a generated one. They are timed
on the first product of a shape, dtype and layout; the winner is kept in the cache.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from torch_tenon.compiler.cache import digest
from torch_tenon.compiler.cpu_compiler import CpuCompiler, processor

MATMUL = (Path(__file__).parent / "codegen" / "matmul.c").read_text()
WORTH_TUNING = 1 << 20  # multiplications below which every candidate takes microseconds
ROUNDS = 5
PANEL_FLOATS = 4096 * 256  # WIDTH * DEPTH of matmul.c

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class Tuner:
    """Chooses among candidates and remembers; one for each cache and compiler."""

    def __init__(self, compiler: CpuCompiler) -> None:
        self.compiler = compiler
        self.chosen: dict[tuple[object, ...], str] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def mm(self, x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        """`x @ y` into `out` (row-major); x is M x K, y is K x N."""
        m, k = x.shape
        n = y.shape[1]
        if m * n * k < WORTH_TUNING or x.dtype not in (torch.float32, torch.bfloat16):
            return torch.mm(x, y, out=out)
        layout = (x.stride(1) == 1, y.stride(1) == 1)
        key = (m, n, k, str(x.dtype), layout, torch.get_num_threads())
        name = self.chosen.get(key)
        if name is None:
            name = self._choose(key, x, y, out)
        self.candidates(x, out)[name](x, y, out)
        return out

    def candidates(self, x: torch.Tensor, out: torch.Tensor) -> dict[str, Multiply]:
        """The ways to multiply operands of this dtype, by name."""
        found: dict[str, Multiply] = {
            "pytorch": lambda x, y, out: torch.mm(x, y, out=out),
            "onednn": _onednn,
        }
        if x.dtype is torch.float32 and out.is_contiguous():
            found["generated"] = self._generated
        return found

    def _choose(
        self, key: tuple[object, ...], x: torch.Tensor, y: torch.Tensor, out: torch.Tensor
    ) -> str:
        entry = f"mm-{digest(repr(key), processor(), torch.__version__)}.json"
        with self._lock:
            kept = self.compiler.cache.read_json(entry)
            candidates = self.candidates(x, out)
            if isinstance(kept, dict) and kept.get("winner") in candidates:
                self.chosen[key] = str(kept["winner"])
                return self.chosen[key]
            times: dict[str, list[float]] = {name: [] for name in candidates}
            for _ in range(ROUNDS):  # interleaved: a busy moment hits them all
                for name, multiply in candidates.items():
                    start = time.perf_counter()
                    multiply(x, y, out)
                    times[name].append(time.perf_counter() - start)
            medians = {name: statistics.median(t[1:]) for name, t in times.items()}
            winner = min(medians, key=lambda name: medians[name])
            self.compiler.cache.write_json(entry, {"winner": winner, "seconds": medians})
            self.chosen[key] = winner
            return winner

    def _generated(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        room = getattr(self._local, "room", None)
        if room is None:
            room = self._local.room = torch.empty(PANEL_FLOATS + 32 * 256)
            (address,) = self.compiler.functions([MATMUL])
            self._local.run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address)
        pointers = (ctypes.c_void_p * 4)(
            x.data_ptr(), y.data_ptr(), out.data_ptr(), room.data_ptr()
        )
        sizes = (ctypes.c_int64 * 8)(
            x.shape[0], y.shape[1], x.shape[1], *x.stride(), *y.stride(), torch.get_num_threads()
        )
        self._local.run(pointers, sizes, None)


def _onednn(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> object:
    product = torch.ops.mkldnn._linear_pointwise(x, y.t(), None, "none", [], "")
    return out.copy_(product)
