"""Whether two runs of a program agree, and by how much they may differ.

A program of random ops can amplify rounding without bound: a comparison beside its threshold, a
difference of nearly equal numbers. How much is measured, not guessed: the CPU runs the program
again with each computed number off by a few units in the last place. What that moves may move.
Before a program counts as one that differs, the CPU runs it more often, and another way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_tenon.testing.fuzz.failing import Course, Failed
from torch_tenon.testing.fuzz.otherwise import Otherwise
from torch_tenon.testing.fuzz.program import Observation, Perturb, Program
from torch_tenon.testing.fuzz.running import judged, run

# Relative, for an op's own error: vector math is good to a few units in the last place.
_BASE = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
_NOISE = 4.0  # units in the last place
NOISY_RUNS = 5
_MORE_RUNS = 20
_WAYS = 12  # of which 16-bit numbers a fused loop may round
_SPREAD = 16.0  # how many times the measured spread is allowed
# Below it float32 numbers may become zero: vector math flushes some of the smallest.
_TINY = {torch.float64: 1e-300, torch.float32: 1e-36, torch.float16: 2e-7, torch.bfloat16: 1e-36}


@dataclass
class Expected:
    """What the CPU observed, and what it did under noise."""

    program: Program
    observations: list[Observation]
    noisy: list[list[Observation]]
    course: Course

    def look_closer(self) -> None:
        """More runs under noise, and some with each op computed in another right way, under noise
        and not."""
        if len(self.noisy) > NOISY_RUNS:
            return
        seeds = range(NOISY_RUNS, NOISY_RUNS + _MORE_RUNS)
        self.noisy += [run(self.program, CPU, noise(seed)) for seed in seeds]
        for k, way in enumerate((None, *range(_WAYS))):
            for perturb in (None, noise(k)):
                with Otherwise(way):
                    self.noisy.append(run(self.program, CPU, perturb))


CPU = {"D0": torch.device("cpu"), "D1": torch.device("cpu"), "H": torch.device("cpu")}


def expect(program: Program) -> Expected:
    """Runs a program on the CPU, as it is and with noise."""
    noisy = [run(program, CPU, noise(seed)) for seed in range(NOISY_RUNS)]
    observations, course = judged(program, CPU)
    return Expected(program, observations, noisy, course)


def noise(seed: int) -> Perturb:
    """Moves each number of a tensor that is not exact up or down by a few units in the last place,
    by at most one where the seed is odd: so that it meets the few numbers there are in 16 bits
    beside it.

    Which NaN it is, its sign and its other bits, no standard settles: it becomes any quiet one.
    """
    generator = torch.Generator().manual_seed(seed)

    def perturb(x: torch.Tensor, exact: bool) -> None:
        if x.is_complex() and not x.is_conj():
            x = torch.view_as_real(x.data)
        if not x.is_floating_point() or x.numel() == 0:
            return
        unit = torch.finfo(x.dtype).eps
        smallest = torch.finfo(x.dtype).smallest_normal * unit  # the last place of the tiniest
        # Amounts of all sizes: signs alone would leave equal what is equal, too often.
        amount = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
        data = x.data  # its version is its own: autograd does not see the change
        last = (data != 0).double() * smallest
        amount *= 1 if seed % 2 else _NOISE
        moved = (data.double() * (1 + unit * amount) + last * amount).to(x.dtype)
        moved = data if exact else moved
        try:
            with torch.inference_mode(x.is_inference()):
                data.copy_(torch.where(data.isnan(), _any_nan(data, generator), moved))
        except RuntimeError:
            return  # elements that share memory

    return perturb


def _any_nan(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    limits = torch.iinfo(bits)
    anything = torch.randint(limits.min, limits.max, x.shape, generator=generator, dtype=bits)
    return (anything | x.new_full((), torch.nan).view(bits)).view(x.dtype)


def difference(expected: Expected, got: Sequence[Observation]) -> str | None:
    """In words where `got` is not what the CPU observed; None where it is."""
    if found := _difference(expected, got):
        expected.look_closer()
        found = _difference(expected, got)
    return found


def _difference(expected: Expected, got: Sequence[Observation]) -> str | None:
    if any(len(n) != len(expected.observations) for n in expected.noisy):
        return None  # rounding alone decides which lines raise
    places = {o.where for o in expected.observations}
    left = list(got)
    for k, want in enumerate(expected.observations):
        noisy = [n[k] for n in expected.noisy]
        if any(n.where != want.where or type(n.value) is not type(want.value) for n in noisy):
            return None
        if left and left[0].where not in places:
            break
        there = left.pop(0) if left and left[0].where == want.where else None
        if isinstance(want.value, Failed):
            found = _compare_failed(want, there, [n.value.value for n in noisy])
        elif there is None:
            found = f"{_short(want.value)} on the CPU, and nothing on the device"
        else:
            found = _compare(want.value, there.value, [n.value for n in noisy])
        if found:
            return f"{want.where}: {found}"
    if left:
        return f"{left[0].where}: {_short(left[0].value)} on the device alone"
    return None


def _errors(failed: Failed) -> str:
    return " or ".join(sorted(failed.failure.errors))


def _compare_failed(
    want: Observation, there: Observation | None, noisy: list[object]
) -> str | None:
    """In words what is wrong with what the device has where a call before failed."""
    failed: Failed = want.value
    if there is None:
        # A variable need not be there, and a statement need not raise unless it asks for a value.
        silent = failed.shows and want.where.startswith("line ")
        return f"no error, {_errors(failed)} on the CPU" if silent else None
    if isinstance(there.value, str):
        allowed = failed.allows(there.value)
        return None if allowed else f"{_short(there.value)} where {_errors(failed)} may come"
    if failed.shows:
        return f"{_short(there.value)} and no error, {_errors(failed)} on the CPU"
    return _compare(failed.value, there.value, noisy) if failed.failure.valued else None


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {tuple(value.shape)}"
    return repr(value)[:80]


def _compare(want: object, got: object, noisy: list[object]) -> str | None:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return compare_tensors(want, got, [n for n in noisy if isinstance(n, torch.Tensor)])
    if type(want) is not type(got):
        return f"{_short(got)} for {_short(want)}"
    if isinstance(want, float) and isinstance(got, float):
        pair = [torch.tensor(x, dtype=torch.float32) for x in (want, got)]
        others = [torch.tensor(n, dtype=torch.float32) for n in noisy if isinstance(n, float)]
        return compare_tensors(pair[0], pair[1], others)
    if isinstance(want, str) and isinstance(got, str) and want.startswith("tensor("):
        return None  # printed: the numbers are compared elsewhere
    if isinstance(want, list):
        return None
    if any(n != want for n in noisy):
        return None
    return None if want == got else f"{_short(got)} for {_short(want)}"


def compare_tensors(want: torch.Tensor, got: torch.Tensor, noisy: list[torch.Tensor]) -> str | None:
    """In words where `got` is not `want`, beyond what noise moves; None where it is."""
    if any(n.shape != want.shape for n in noisy):
        return None
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{_short(got)} for {_short(want)}"
    if want.numel() == 0:
        return None
    a, b, *others = (_reals(x) for x in (want, got, *noisy))
    part = want.dtype.to_real()
    allowed = a.abs() * _BASE.get(part, 0.0) + _TINY.get(part, 0.0)
    steady = torch.ones(a.shape, dtype=torch.bool)
    for n in others:
        # Where noise alone makes a number infinite, or no number, nothing is known.
        steady &= (n.isfinite() == a.isfinite()) & (n.isnan() == a.isnan())
        moved = (n - a).abs().nan_to_num(0.0)
        allowed = torch.maximum(allowed, _SPREAD * moved)
        # Elements differ in how they happen to move: the others' spread is allowed too.
        finite = moved[moved.isfinite()]
        if (want.is_floating_point() or want.is_complex()) and finite.numel():
            allowed = torch.maximum(allowed, 4 * finite.mean())
    if want.dtype in (torch.float16, torch.bfloat16):
        # A fused loop holds 16-bit numbers as float32: what overflowed on the CPU may not there.
        steady &= a.isfinite() | ~b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= allowed) | ~steady
    if bool(same.all()):
        return None
    at = tuple(int(i) for i in (~same).nonzero()[0])
    count = int((~same).sum())
    x, y = (t[at].item() for t in (a, b))
    limit = allowed[at].item()
    text = f"{y:.9g} for {x:.9g} at {list(at)}" + (f" (allowed: {limit:.2g})" if limit else "")
    return f"{text}; {count} of {a.numel()} elements of {want.dtype} differ" + _kind(x, y)


def _reals(x: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()


def _kind(x: float, y: float) -> str:
    return " (not finite)" if not (math.isfinite(x) and math.isfinite(y)) else ""
