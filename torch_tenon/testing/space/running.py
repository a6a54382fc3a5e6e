"""Running a call: once on a device, and in each mode as often as it takes to come by."""

from __future__ import annotations

import fcntl
import math
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
    with_nothing: bool  # that one has no elements
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


class Running:
    """A call under way: its arguments are made, `call` calls, `end` looks at what came of it."""

    def __init__(self, case: Case, device: str, k: int = 0, change: Change | None = None) -> None:
        self.case, self.device = case, torch.device(device)
        self.outcome = Outcome()
        self.compute = lambda *_: None
        self.arguments: list[Any] = []
        self.lengths: list[int] = []  # of their memory
        self.got: Any = None
        try:
            given, self.compute = functions(case, k)
            self.arguments = given(self.device)
            self.lengths = [
                x.untyped_storage().nbytes()
                for x in self.arguments
                if isinstance(x, torch.Tensor) and x.layout == torch.strided
            ]
            if change is not None:
                self.arguments = change(self.arguments)
        except Exception as error:  # no call at all
            self.outcome.error, self.outcome.message = INVALID, str(error)

    def call(self, compute: Callable[..., Any] | None = None) -> None:
        """Calls; `compute` stands for the source's own."""
        if self.outcome.error:
            return
        with self._listening():
            try:
                self.take((compute or self.compute)(self.device, *self.arguments))
            except Exception as error:  # an error is a result
                self.fail(error)

    def take(self, got: Any) -> None:
        """What the call returned."""
        self.got = got

    def fail(self, error: Exception) -> None:
        """What the call raised."""
        self.outcome.error, self.outcome.message = type(error).__name__, str(error)

    def end(self) -> Outcome:
        """Gradients, values and memory."""
        outcome = self.outcome
        if outcome.error == INVALID:
            return outcome
        with self._listening():
            if not outcome.error:
                try:
                    outcome.gradients = backward(self.got, self.arguments, self.device)
                    outcome.results = tree_leaves(self.got)
                except Exception as error:  # an error is a result
                    self.fail(error)
            tensors = [x for x in self.arguments if isinstance(x, torch.Tensor)]
            _observe(outcome, tensors, self.lengths)
        self.got = None
        return outcome

    @contextmanager
    def _listening(self) -> Iterator[None]:
        began = _log_size()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
        self.outcome.warnings += [_warning(w) for w in warned] + _logged_warnings(began)


def run(case: Case, device: str, k: int = 0, change: Change | None = None) -> Outcome:
    """One call at the k-th size; `change` replaces the arguments."""
    torch.manual_seed(7)
    running = Running(case, device, k, change)
    running.call()
    return running.end()


# Elements of results beyond which nobody compares them.
_MOST = 1 << 24


def too_large(case: Case, k: int) -> bool:
    """Whether a call's results would have too many elements at the k-th size, as PyTorch's Meta
    kernels say. They are asked where a number of the call is as large."""
    given = tree_leaves([case.data["args"], case.data["kwargs"]])
    if not any(isinstance(x, int | float) and _MOST < abs(x) < math.inf for x in given):
        return False
    running = Running(case, "meta", k)
    running.call()
    return any(isinstance(x, torch.Tensor) and x.numel() > _MOST for x in tree_leaves(running.got))


def backward(got: Any, arguments: Sequence[Any], device: torch.device) -> list[Any]:
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


def _observe(outcome: Outcome, tensors: list[torch.Tensor], lengths: Sequence[int]) -> None:
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
        outcome.rest.append(_beside(x)[: lengths[i] if i < len(lengths) else None])


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
        bool(shares) and known[shares[0]].numel() == 0,
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
    """The memory of a tensor as bytes, zero where the tensor itself lies. What a call adds to it
    is the call's own."""
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
    "direct": ("direct", (0, 0)),
    "window": ("compiled", (0, 0)),
    "sized": ("compiled", (0, 0, 1, 1, 2, 2)),
    "compiled": ("auto", (0, 0)),
    "dynamic": ("auto", (0, 1, 2)),
}

GRAPHS = ("compiled", "dynamic")


def run_on_device(cases: Sequence[Case]) -> Iterator[tuple[int, str, list[Outcome]]]:
    """Runs cases of one mode together: in one window, or in one graph. Yields the size, which run
    it was, and what came of each."""
    mode = cases[0].mode
    if mode in GRAPHS:
        yield from run_as_graph(cases, "tenon", "tenon")
        return
    execute, sizes = MODES[mode]
    with executing(execute):
        if len(cases) == 1 and execute == "compiled":
            # A call that raises is not known afterwards: one of the same kind that goes well is,
            # and what is wrong with numbers is then for the plan to see.
            for k in dict.fromkeys(sizes):
                Running(cases[0], "tenon", k, _with_zeros).call()
        for turn, k in enumerate(sizes):
            torch.manual_seed(7)
            running = [Running(case, "tenon", k) for case in cases]
            for r in running:
                r.call()
            yield k, f"run {turn + 1} at size {k}", [r.end() for r in running]


def run_as_graph(
    cases: Sequence[Case], device: str, backend: str
) -> Iterator[tuple[int, str, list[Outcome]]]:
    """Runs cases of one mode together, in one graph that a backend of `torch.compile` makes."""
    execute, sizes = MODES[cases[0].mode]
    torch._dynamo.reset()
    dynamic = cases[0].mode == "dynamic"
    together = torch.compile(_graph(cases), backend=backend, dynamic=dynamic)
    with executing(execute):
        for turn, k in enumerate(sizes):
            torch.manual_seed(7)
            running = [Running(case, device, k) for case in cases]
            _call_graph(together, running)
            yield k, f"run {turn + 1} at size {k}", [r.end() for r in running]


def _with_zeros(arguments: list[Any]) -> list[Any]:
    """Arguments whose whole numbers, such as indices, are zeros."""
    for x in tree_leaves(arguments):
        if isinstance(x, torch.Tensor) and not x.is_floating_point() and not x.is_complex():
            x.zero_()
    return arguments


def _graph(cases: Sequence[Case]) -> Callable[..., Any]:
    functions_of = [functions(case, 0)[1] for case in cases]

    def together(device: torch.device, given: list[list[Any]]) -> list[Any]:
        return [f(device, *x) for f, x in zip(functions_of, given, strict=True)]

    return together


def _call_graph(together: Callable[..., Any], running: list[Running]) -> None:
    """Calls a graph of several calls; what it raises each of them raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = together(running[0].device, [r.arguments for r in running])
    except Exception as error:  # an error is a result
        for r in running:
            r.fail(error)
        return
    for r, value in zip(running, got, strict=True):
        r.take(value)
