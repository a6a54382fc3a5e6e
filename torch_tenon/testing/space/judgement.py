"""Whether the device's outcome is the CPU's. What differs in values is looked at more closely:
an element may be what the CPU itself makes of the same numbers in another layout, in double
precision, or of numbers that are off by a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tenon.testing.conformance.comparison import same_strides
from torch_tenon.testing.space.running import Outcome, Seen

# Relative: vector math is good to a few units in the last place.
_RELATIVE = {
    torch.float64: 1e-12,
    torch.float32: 4e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
# PyTorch's `bessel_j0` is off by so much in float64, and its `polygamma` by a hundredth of that.
_APPROXIMATE = 1e-6
_FACTOR = 8.0  # how many times as far from the exact number as the CPU's
_SPREAD = 16.0
# Vector math makes zeros of the smallest numbers.
_TINY = {torch.float64: 1e-300, torch.float32: 1e-36, torch.float16: 2e-7, torch.bfloat16: 1e-36}
# A wider one would be a step and no slope: a number beside a threshold.
_SLOPE = 256.0


@dataclass(frozen=True)
class Finding:
    """What is wrong. `kind` is the same for like findings."""

    kind: str
    text: str


@dataclass
class Evidence:
    """What the CPU makes of the call otherwise: `ways` in other right ways, `repeats` in the very
    same way, `noisy` with numbers that are off by a little, `scale` the largest number given;
    `undefined`: it has no one result, `of_numbers`: it is given no tensor, so that nothing but the
    CPU's largest error shows how exact its elements are; `terms` of absolute numbers, where it adds
    numbers up."""

    ways: list[Outcome]
    repeats: list[Outcome]
    noisy: list[Outcome]
    scale: float
    undefined: bool = False
    of_numbers: bool = False
    terms: list[Outcome] = field(default_factory=list)


class Judge:
    """Compares outcomes of one call; `more` runs the CPU in other ways, which is done once.

    `signs`: whether zeros have signs, which what adds numbers up does not promise. `approximate`:
    the CPU itself has few digits of the function. `first_alone`: of the other results it leaves
    some as its memory was. `apart`: its schema has no views, though the CPU gives some.
    """

    def __init__(
        self,
        want: Outcome,
        more: Callable[[], Evidence],
        *,
        values: bool = True,
        signs: bool = True,
        approximate: bool = False,
        first_alone: bool = False,
        apart: bool = False,
    ) -> None:
        self.want = want
        self.first_alone, self.apart = first_alone, apart
        self.approximate = approximate
        self.values, self.signs = values, signs
        self._more = more
        self._evidence: Evidence | None = None

    @property
    def evidence(self) -> Evidence:
        """What the CPU makes of the call otherwise."""
        if self._evidence is None:
            self._evidence = self._more()
        return self._evidence

    def find(self, got: Outcome, *, graph: bool = False, by_plan: bool = False) -> Finding | None:
        """What is wrong with an outcome. `graph`: it is a compiled graph's, whose errors come from
        PyTorch's tracing. `by_plan`: the CPU's kernel did not run, whose warnings are those of the
        calls before."""
        want = self.want
        if got.error or want.error:
            return self._errors(got, graph)
        for name in ("results", "gradients", "arguments"):
            mine, theirs = getattr(got, name), getattr(want, name)
            if len(mine) != len(theirs):
                return Finding("structure", f"{len(mine)} {name}, CPU {len(theirs)}")
            for i, (x, y) in enumerate(zip(mine, theirs, strict=True)):
                found = self._leaf(x, y, name, i, graph)
                if found:
                    return found
        for i, (x, y) in enumerate(zip(got.rest, want.rest, strict=True)):
            if self.values and not torch.equal(x, y) and not self.evidence.undefined:
                return Finding("memory", f"memory beside argument {i} was written")
        if not by_plan and (lost := set(want.warnings) - set(got.warnings)):
            return Finding("warning", f"no warning: {sorted(lost)[0]}")
        return None

    def _errors(self, got: Outcome, graph: bool) -> Finding | None:
        want = self.want
        if got.error == want.error:
            return None
        if not want.error:
            return Finding("error", f"{got.error}: {got.message[:300]}; none on the CPU")
        raised = f"{want.error}: {want.message[:300]}"
        if got.error:
            # Of two errors at once either may come, and no kernel is one that only the CPU has.
            lacking = want.error == "NotImplementedError"
            if graph or lacking or {got.error, want.error} <= {"OutOfMemoryError", "RuntimeError"}:
                return None
            return Finding("error", f"{got.error}: {got.message[:300]}; on the CPU {raised}")
        late = [x for x in [*got.results, *got.arguments, *got.gradients] if isinstance(x, Seen)]
        errors = {x.error for x in late if x.error}
        if want.error in errors or (graph and errors):
            return None
        if errors:
            return Finding("error", f"{errors} when it is read; on the CPU {raised}")
        if graph and ("not implemented" in want.message or "not support" in want.message):
            return None  # the CPU has no kernel for what a graph computes
        return Finding("no error", f"no error; on the CPU {raised}")

    def _leaf(self, got: Any, want: Any, name: str, i: int, graph: bool) -> Finding | None:
        where = f"{name.removesuffix('s')} {i}"
        if not isinstance(want, Seen):
            return _plain(got, want, where)
        if graph and self.first_alone and i > 0 and name == "results":
            return None  # a trace has other sizes for what means nothing
        if not isinstance(got, Seen):
            return Finding("structure", f"{where}: {got!r:.60}, CPU a tensor")
        for what in ("dtype", "shape", "requires_grad", "shares", "bits"):
            mine, theirs = getattr(got, what), getattr(want, what)
            unseen = 0 in want.shape or want.with_nothing  # nobody sees who has no elements
            if graph and what == "shares" and (unseen or self.apart):
                continue
            if mine != theirs and not (what == "bits" and want.shares is None):
                return Finding(what, f"{where}: {what} {mine}, CPU {theirs}")
        if not _same_layout(got, want, graph):
            kind = "strides" if want.shares is None else "strides of a view"
            return Finding(
                kind, f"{where}: {got.strides} + {got.offset}, CPU {want.strides} + {want.offset}"
            )
        if got.error:
            return Finding("error", f"{where}: {got.error} when it is read; none on the CPU")
        if not self.values or got.value is None or want.value is None:
            return None
        if self.first_alone and i > 0 and name == "results":
            return None
        value = want.value
        if exactly(got.value, value):
            return None

        def same(outcomes: list[Outcome]) -> list[torch.Tensor]:
            leaves = [getattr(o, name) for o in outcomes if not o.error]
            found = [x[i].value for x in leaves if len(x) > i and isinstance(x[i], Seen)]
            return [
                x
                for x in found
                if x is not None and (x.shape, x.dtype) == (value.shape, value.dtype)
            ]

        evidence = self.evidence
        if evidence.undefined:
            return None
        text = differing(
            got.value,
            value,
            same(evidence.ways),
            same(evidence.repeats),
            same(evidence.noisy),
            evidence.scale,
            self.signs,
            self.approximate,
            evidence.of_numbers,
            same(evidence.terms),
        )
        return Finding("value", f"{where}: {text}") if text else None


def _plain(got: Any, want: Any, where: str) -> Finding | None:
    if type(got) is not type(want):
        return Finding("structure", f"{where}: {got!r:.60}, CPU {want!r:.60}")
    both_nan = isinstance(want, float) and math.isnan(want) and math.isnan(got)
    if got == want or both_nan:
        return None
    if isinstance(want, float) and math.isclose(got, want, rel_tol=1e-6):
        return None
    return Finding("value", f"{where}: {got!r:.60}, CPU {want!r:.60}")


def _same_layout(got: Seen, want: Seen, graph: bool) -> bool:
    """Whether two tensors' elements lie alike. A graph may place what it makes in other memory, and
    values show where a view begins."""
    if 0 in want.shape or not want.strides:
        return True
    shapes = (
        torch.empty_strided(want.shape, s, device="meta") for s in (got.strides, want.strides)
    )
    if not same_strides(*shapes):
        return False
    return graph or want.shares is None or got.offset == want.offset


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def exactly(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers, signs of zeros included; any NaN is any other."""
    if x.layout != torch.strided:
        return torch.equal(x.to_dense(), y.to_dense())
    a, b = (_reals(t) for t in (x, y))
    if torch.equal(a, b) and not a.is_floating_point():
        return True
    return bool((_alike(a, b)).all()) if a.is_floating_point() else False


def _reals(x: torch.Tensor) -> torch.Tensor:
    """Real numbers in a dtype that loses none of them and that PyTorch compares."""
    if x.is_quantized:
        x = x.int_repr()
    if x.is_complex():
        x = torch.view_as_real(x.contiguous())  # the steps of no elements may be any
    if x.is_floating_point():
        return x.double()
    return x.view(torch.int64) if x.dtype == torch.uint64 else x.long()


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a == b
    return ((a == b) & ((a != 0) | (a.signbit() == b.signbit()))) | (a.isnan() & b.isnan())


def differing(
    got: torch.Tensor,
    want: torch.Tensor,
    ways: Sequence[torch.Tensor],
    repeats: Sequence[torch.Tensor],
    noisy: Sequence[torch.Tensor],
    scale: float,
    signs: bool = True,
    approximate: bool = False,
    of_numbers: bool = False,
    terms: Sequence[torch.Tensor] = (),
) -> str | None:
    """In words where numbers differ from all that the CPU makes; None where they do not.

    `scale` is the largest number given, `signs` says whether zeros have some, `of_numbers` that no
    tensor was given. What two equal calls on the CPU differ in is undefined. Of a sum the rounding
    is beside the sum of the absolute `terms`, however little the terms themselves leave.
    """
    part = want.dtype.to_real() if want.is_complex() else want.dtype
    mine, theirs, *others = (_reals(x) for x in (got, want, *ways))
    right = _alike(mine, theirs)
    if want.is_complex() or not signs:  # of complex ones they are what vectors happen to make
        for x in (theirs, *others):
            right |= mine == x
    for x in repeats:
        right |= ~_alike(_reals(x), theirs)
    for x in others:
        right |= _alike(mine, x)
    if mine.is_floating_point():
        relative, tiny = _RELATIVE.get(part, 0.0), _TINY.get(part, 0.0)
        relative = max(relative, _APPROXIMATE) if approximate else relative
        for x in [theirs, *others]:
            right |= _near(mine, x, x.abs() * relative + tiny)
            # As far from the exact number, which one of these is, as the CPU's a few times.
            off = (theirs - x).abs().nan_to_num(0, 0, 0)
            if of_numbers and off.numel():  # one of them may happen to be exact
                most = torch.finfo(part).eps * x.abs().nan_to_num(0, 0, 0).max()
                off = off.max().clamp(max=most).expand_as(off)
            right |= _near(mine, x, _FACTOR * off)
        last = torch.finfo(torch.float32 if part.itemsize == 2 else part).eps  # 16 bits add in 32
        for x in (_reals(y).clamp(max=torch.finfo(part).max) for y in terms):
            right |= _near(mine, theirs, _FACTOR * last * x.nan_to_num(0))
        slope = _SLOPE * scale * torch.finfo(part).eps * math.sqrt(max(1, want.numel()))
        for x in (_reals(y) for y in noisy):
            moved = (x - theirs).abs().nan_to_num(0, 0, 0)
            moved = torch.where(moved <= slope + x.abs() * 64 * relative, moved, 0)
            right |= _near(mine, theirs, _SPREAD * moved)
    if bool(right.all()):
        return None
    at = tuple(int(i) for i in (~right).nonzero()[0])
    count = int((~right).sum())
    pair = [t[at].item() for t in (mine, theirs)]
    many = f"{count} of {right.numel()} elements of {want.dtype}"
    return f"{pair[0]!r}, CPU {pair[1]!r} at {list(at)}; {many}"


def _near(a: torch.Tensor, b: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Whether finite numbers are near; zeros have a sign where nothing else is allowed."""
    near = (a - b).abs() <= allowed
    zeros = (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    return near & a.isfinite() & b.isfinite() & ~zeros
