"""Running a call: once on a device, and in each mode as often as it takes to come by."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_tenon import _C, config
from torch_tenon.testing.space.case import Case

# The error of a call whose arguments cannot be made.
INVALID = "arguments that cannot be made"

Change = Callable[[list[Any]], list[Any]]


@dataclass
class Seen:
    """What a person sees of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    shares: int | None  # the first argument or earlier result whose memory it has
    bits: tuple[bool, bool]
    requires_grad: bool
    value: torch.Tensor | None = None  # on the CPU; where reading it raised, `error`
    error: str = ""


@dataclass
class Outcome:
    """What came of a call: an error's type, or results; what the arguments hold afterwards."""

    error: str = ""
    message: str = ""
    results: list[Any] = field(default_factory=list)
    arguments: list[Seen] = field(default_factory=list)
    rest: list[torch.Tensor] = field(default_factory=list)  # memory beside what arguments show
    gradients: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def functions(case: Case, k: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`given` and `compute` of the case's source at a size."""
    scope: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
    exec(compile(case.source(k), "<case>", "exec"), scope)
    return scope["given"], scope["compute"]


def run(
    case: Case,
    device: str,
    k: int = 0,
    compute: Callable[..., Any] | None = None,
    change: Change | None = None,
) -> Outcome:
    """One call. `compute` stands for the source's own; `change` replaces the arguments."""
    given, own = functions(case, k)
    try:
        arguments = given(torch.device(device))
    except Exception as error:
        return Outcome(INVALID, str(error))
    if change is not None:
        arguments = change(arguments)
    torch.manual_seed(7)
    outcome = Outcome()
    began = _log_size()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            got = (compute or own)(torch.device(device), *arguments)
            gradients = backward(got, arguments, device)
            outcome.results = tree_leaves(got)
            outcome.gradients = gradients
        except Exception as error:  # an error is a result
            outcome.error, outcome.message = type(error).__name__, str(error)
            del error
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        _observe(outcome, tensors)
    outcome.warnings = [_warning(w) for w in warned] + _logged_warnings(began)
    return outcome


def backward(got: Any, arguments: Sequence[Any], device: str) -> list[Any]:
    """The gradients of what requires one; the results' are small numbers that differ."""
    inputs = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    ends = [x for x in tree_leaves(got) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not inputs or not ends:
        return []
    with torch.no_grad():
        weights = [
            (torch.arange(x.numel()) % 3 + 0.5).to(x.dtype).view(x.shape).to(device) for x in ends
        ]
    return list(torch.autograd.grad(ends, inputs, weights, allow_unused=True))


def _observe(outcome: Outcome, tensors: list[torch.Tensor]) -> None:
    known = list(tensors)
    results, outcome.results = outcome.results, []
    for x in results:
        if isinstance(x, torch.Tensor):
            outcome.results.append(seen(x, known))
            known.append(x)
        else:
            outcome.results.append(x)
    gradients, outcome.gradients = outcome.gradients, []
    for x in gradients:
        outcome.gradients.append(seen(x, []) if isinstance(x, torch.Tensor) else x)
    for i, x in enumerate(tensors):
        outcome.arguments.append(seen(x, tensors[:i]))
        outcome.rest.append(_beside(x))


def seen(x: torch.Tensor, known: Sequence[torch.Tensor]) -> Seen:
    """What there is to see of a tensor; `known`: whose memory it may share."""
    storage = x.untyped_storage()._cdata if x.layout == torch.strided else 0
    shares = [
        i
        for i, y in enumerate(known)
        if y.layout == torch.strided and y.untyped_storage()._cdata == storage
    ]
    found = Seen(
        x.dtype,
        tuple(x.shape),
        tuple(x.stride()) if x.layout == torch.strided else (),
        int(x.storage_offset()) if x.layout == torch.strided else 0,
        shares[0] if shares else None,
        (x.is_conj(), x.is_neg()),
        x.requires_grad,
    )
    try:
        with torch.no_grad():
            found.value = x.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
    except Exception as error:  # late errors come here
        found.error = type(error).__name__
    return found


def _beside(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor as bytes, zero where the tensor itself lies."""
    if x.layout != torch.strided:
        return torch.empty(0)
    try:
        with torch.no_grad():
            whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(
                x.detach().untyped_storage()
            )
            copy = whole.to("cpu", copy=True)
            copy.as_strided(x.shape, x.stride(), x.storage_offset()).zero_()
            return copy.view(torch.uint8)
    except Exception:  # shown by the tensor itself
        return torch.empty(0)


_WARNED = re.compile(r"^\[W[^\]]*\] Warning: (.{1,60})", re.MULTILINE)


def _log_size() -> int:
    """How much is written to standard error, where that is a file one can read."""
    status, flags = os.fstat(2), fcntl.fcntl(2, fcntl.F_GETFL)
    readable = stat.S_ISREG(status.st_mode) and flags & os.O_ACCMODE == os.O_RDWR
    return status.st_size if readable else -1


def _logged_warnings(began: int) -> list[str]:
    """Warnings of PyTorch's C++ code; outside of Python's functions it writes them there."""
    if began < 0:
        return []
    text = os.pread(2, 1 << 16, began).decode(errors="replace")
    return [f"UserWarning: {found}" for found in _WARNED.findall(text)]


def _warning(w: warnings.WarningMessage) -> str:
    return f"{w.category.__name__}: {str(w.message)[:60]}"


@contextmanager
def executing(mode: str) -> Iterator[None]:
    """Windows run as `TENON_EXECUTE=mode` has them run."""
    before = _C.execute_mode()
    _C.set_execute_mode(config.EXECUTE_MODES.index(mode))
    try:
        yield
    finally:
        _C.commit_all()
        _C.set_execute_mode(before)


# In each mode: the execute mode, and the sizes in the order in which they are called. The first
# call of a kind runs at once, the second is recorded and has a plan. From three sizes on a plan is
# for any, and so is what is known of the results' sizes.
MODES: dict[str, tuple[str, tuple[int, ...]]] = {
    "reference": ("reference", (0,)),
    "window": ("compiled", (0, 0)),
    "sized": ("compiled", (0, 0, 1, 1, 2, 2)),
    "compiled": ("auto", (0, 0)),
    "dynamic": ("auto", (0, 1, 2)),
}


def run_on_device(case: Case) -> Iterator[tuple[int, str, Outcome]]:
    """Runs a case in its mode; yields the size, which run it was, and what came of it."""
    execute, sizes = MODES[case.mode]
    compute = None
    if case.mode in ("compiled", "dynamic"):
        torch._dynamo.reset()
        own = functions(case, 0)[1]
        compute = torch.compile(own, backend="tenon", dynamic=case.mode == "dynamic")
    with executing(execute):
        for turn, k in enumerate(sizes):
            yield k, f"run {turn + 1} at size {k}", run(case, "tenon", k, compute)
