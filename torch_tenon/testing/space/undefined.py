"""What PyTorch leaves open, shown by the CPU itself: the same call made in other right ways."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from torch_tenon.testing.fuzz.compare import noise
from torch_tenon.testing.fuzz.otherwise import Otherwise
from torch_tenon.testing.space.case import Case, Tensor
from torch_tenon.testing.space.judgement import Evidence
from torch_tenon.testing.space.ops import base_name, named
from torch_tenon.testing.space.running import Outcome, Seen, run

_NOISY = 8
# Ops whose results are sums of terms: of the absolute numbers they are what rounding is beside. No
# noise shows that where the next number is infinite.
_SUMS = frozenset(
    (
        *("sum", "nansum", "mean", "nanmean", "std_mean", "var_mean", "cumsum", "trace"),
        *("dot", "vdot", "mv", "mm", "bmm"),
    )
)


def evidence(case: Case, k: int) -> Evidence:
    """What the CPU makes of a case in other ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = written_tensors(case)
        ways = [run(case, "cpu", k, change=partial(_changed, written, f)) for f in _LAYOUTS]
        if is_pointwise(case) and not _has_parts_of_memory(case):
            ways.append(_first_of_many(run(case, "cpu", k, change=_among_others), case, k))
        with Otherwise(None):
            ways.append(run(case, "cpu", k))
        with _one_by_one():
            ways.append(run(case, "cpu", k))
        repeats = [run(case, "cpu", k)]
        with _filled():
            repeats.append(run(case, "cpu", k))
        if _to_whole(case):
            repeats += [run(case, "cpu", k, change=_ordinary)]
        noisy = [run(case, "cpu", k, change=partial(_moved, seed)) for seed in range(_NOISY)]
        of_numbers = not case.data["tensors"]
        adds = base_name(named(case.op)) in _SUMS
        absolute = partial(_changed, written, torch.abs)
        terms = [run(case, "cpu", k, change=absolute)] if adds else []
        undefined = not _settled(case, k)
    return Evidence(ways, repeats, noisy, _scale(case), undefined, of_numbers, terms)


def _settled(case: Case, k: int) -> bool:
    """Whether elements that share memory are all given the same number, where the call writes
    such: else the last of them stays, and PyTorch has no order."""
    tensors = case.tensors(k)
    shared = {i for i in written_tensors(case) if i < len(tensors) and _overlaps(tensors[i])}
    if not shared or case.data["before"]:
        return not shared

    def apart(arguments: list[Any]) -> list[Any]:
        return [
            x.detach().clone().requires_grad_(x.requires_grad) if i in shared else x
            for i, x in enumerate(arguments)
        ]

    written = run(case, "cpu", k, change=apart)
    if written.error:
        return False
    for i in shared:
        t, value = tensors[i], written.arguments[i].value
        if value is None or list(value.shape) != t.sizes:
            return False
        memory = torch.zeros(t.length, dtype=value.dtype)
        places = torch.arange(t.length).as_strided(t.sizes, t.strides, t.offset).reshape(-1)
        memory[places] = value.reshape(-1)
        if not torch.equal(memory[places].nan_to_num(), value.reshape(-1).nan_to_num()):
            return False
    return True


def _overlaps(t: Tensor) -> bool:
    places = torch.arange(max(1, t.length)).as_strided(t.sizes, t.strides, t.offset)
    return places.unique().numel() < places.numel()


def written_tensors(case: Case) -> set[int]:
    """Numbers of the tensors that the call writes: a copy of one would not show it."""
    given = _given(case)
    found: set[int] = set()
    for argument in named(case.op)._schema.arguments:
        if argument.alias_info is not None and argument.name in given:
            _collect(given[argument.name], found)
    bases = {case.data["tensors"][i].get("base", i) for i in found}
    shared = {i for i, t in enumerate(case.data["tensors"]) if t.get("base", i) in bases}
    return found | shared


def _collect(x: Any, found: set[int]) -> None:
    if isinstance(x, dict) and "tensor" in x:
        found.add(x["tensor"])
    elif isinstance(x, list):
        for y in x:
            _collect(y, found)


def _apart(x: torch.Tensor) -> torch.Tensor:
    """With another element between each two, so that the CPU takes them one by one."""
    return torch.stack((x, x), -1)[..., 0]


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _shifted(x: torch.Tensor) -> torch.Tensor:
    """Its elements in order, in a row with as many others before: vectors begin elsewhere."""
    flat = x.reshape(-1)
    return torch.cat((flat[:1], flat))[1:].view(x.shape) if x.numel() else x


def _repeated(x: torch.Tensor) -> torch.Tensor:
    """Columns of a larger tensor: each row is on its own, and too short for vectors."""
    return torch.cat((x, x), -1)[..., : x.shape[-1]] if x.dim() else x


_LAYOUTS = (_apart, _dense, _shifted, _repeated)


def _changed(written: set[int], change: Any, arguments: list[Any]) -> list[Any]:
    return [
        _laid(change, x.detach()).requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor) and i not in written
        else x
        for i, x in enumerate(arguments)
    ]


def _laid(change: Any, x: torch.Tensor) -> torch.Tensor:
    """A tensor in another layout. A negative or conjugate of memory stays one: of a zero the CPU's
    vectors make 0, and its single numbers -0."""
    if x.is_neg():
        return torch._neg_view(_laid(change, torch._neg_view(x)))
    return _laid(change, x.conj()).conj() if x.is_conj() else change(x)


# What many equal rows are: the weights of gradients repeat with every third of them.
_MANY = 96


# What PyTorch has no tag for. Losses are pointwise where they are not reduced.
_POINTWISE = frozenset(("hardswish", "_prelu_kernel", "log_sigmoid_forward", "log_sigmoid"))
_LOSSES = frozenset(
    ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy")
)


def is_pointwise(case: Case) -> bool:
    """Whether each element of a call's results is of those at its place; so is a gradient of
    such."""
    name = base_name(named(case.op))
    forward = name.removesuffix("_backward")
    if forward in _LOSSES:
        return _given(case).get("reduction", 1) == 0
    packets = [getattr(torch.ops.aten, n, None) for n in (name, forward)]
    overloads = [getattr(p, k) for p in packets if p is not None for k in p.overloads()]
    return forward in _POINTWISE or any(torch.Tag.pointwise in f.tags for f in overloads)


def _given(case: Case) -> dict[str, Any]:
    """The arguments by name."""
    names = (a.name for a in named(case.op)._schema.arguments)
    given: dict[str, Any] = dict(zip(names, case.data["args"], strict=False))
    return given | case.data["kwargs"]


def _has_parts_of_memory(case: Case) -> bool:
    return bool(case.data["before"]) or any("base" in t for t in case.data["tensors"])


def _among_others(arguments: list[Any]) -> list[Any]:
    """As many equal rows, in order: so the CPU's vectors take all elements, which they do not take
    of a row of a few."""
    rank = max((x.dim() for x in arguments if isinstance(x, torch.Tensor)), default=0)

    def many(x: torch.Tensor) -> torch.Tensor:
        rows = x.view(*[1] * (rank - x.dim()), *x.shape).expand(_MANY, *[-1] * rank)
        return rows.clone(memory_format=torch.contiguous_format)

    return _changed(set(), many, arguments)


def _first_of_many(outcome: Outcome, case: Case, k: int) -> Outcome:
    """The outcome of the first of such rows."""
    tensors = case.tensors(k)
    for x in outcome.results:
        _keep_first(x, None)
    for x, t in zip(outcome.arguments, tensors, strict=False):
        _keep_first(x, t.sizes)
    for x, t in zip(outcome.gradients, (t for t in tensors if t.data.get("grad")), strict=False):
        _keep_first(x, t.sizes)
    return outcome


def _keep_first(x: Any, sizes: list[int] | None) -> None:
    if isinstance(x, Seen) and x.value is not None and x.value.shape[:1] == (_MANY,):
        first = x.value[0]
        fits = sizes is not None and math.prod(sizes) == first.numel()
        x.value = first.reshape(sizes) if fits and sizes is not None else first


@contextlib.contextmanager
def _one_by_one() -> Iterator[None]:
    """Several threads cut elsewhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(3 if before == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _filled() -> Iterator[None]:
    """Memory that nothing has written holds NaN or the largest number."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _whole(x: str) -> bool:
    return "int" in x


def _to_whole(case: Case) -> bool:
    """Whether the call converts to whole numbers: what no such number can hold becomes anything."""
    wanted = [v["torch"] for v in _given(case).values() if isinstance(v, dict) and "torch" in v]
    written = [case.data["tensors"][i]["dtype"] for i in written_tensors(case)]
    return any(_whole(name) for name in wanted + written)


def _ordinary(arguments: list[Any]) -> list[Any]:
    """Numbers that no whole number of eight bits holds are replaced."""

    def change(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            data = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
            data.copy_(torch.where(data.abs() < 127, data, 1))
        return x

    return [change(x) for x in arguments]


def _moved(seed: int, arguments: list[Any]) -> list[Any]:
    perturb = noise(seed)
    for x in arguments:
        if isinstance(x, torch.Tensor) and not x.is_neg():
            perturb(x, False)
    return arguments


def _scale(case: Case) -> float:
    """The largest finite number given."""
    found = [1.0]

    def visit(x: Any) -> None:
        if isinstance(x, list):
            for y in x:
                visit(y)
        elif isinstance(x, dict):
            for y in x.values():
                visit(y)
        elif isinstance(x, int | float) and abs(x) < 1e38:  # neither infinite nor NaN
            found.append(abs(float(x)))

    visit([t["palette"] for t in case.data["tensors"]])
    visit([case.data["args"], case.data["kwargs"]])
    return max(found)


def outcomes_on_cpu(case: Case, k: int) -> Outcome:
    """The call on the CPU."""
    return run(case, "cpu", k)
