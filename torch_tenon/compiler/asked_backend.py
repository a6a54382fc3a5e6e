"""What a backend is asked, and what it answers: an error of its code, or an answer that is none,
names the backend, the method, the ops and the line."""

from __future__ import annotations

import logging
import operator
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.kernel import Kernel, calls_of, operations_of, ops_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.program import Loop
from torch_tenon.ir.values import Buffer
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.targets.target import BackendFailed, TargetError

code_log = logging.getLogger("torch_tenon.code")

# What a backend may raise by its contract, and what has other causes than its code.
_FORESEEN = (NotImplementedError, CannotLower, TargetError, OSError, MemoryError)
_MOST_NAMES = 3
_shown: set[str] = set()  # sources that the log has
_HERE = Path(__file__).parents[1]


def kernel_of(backend: Backend, group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a fused group. Raises NotImplementedError for one that the host computes, and
    BackendFailed where the backend raises what it should not, or gives no kernel."""
    loops = (n for n in group.nodes() if isinstance(n, Loop))
    lacking = map(backend.capabilities.lacking, loops)
    if missing := next(filter(None, lacking), None):
        raise NotImplementedError(f"the target {backend.name!r} has {missing}")
    with _named(backend, "kernel", [ops_of(group)]):
        kernel = backend.kernel(group, kept)
        if not isinstance(kernel, Kernel):
            raise TypeError(f"it gave a {type(kernel).__name__} and no Kernel")
        if left_out := _checks_of(group) - {k for calls in kernel.checks for k in calls}:
            raise ValueError(
                f"it gave a Kernel whose `checks` leave out {len(left_out)} calls with an index or "
                "a divisor that may be wrong (`parameters(tree).failures` has them)"
            )
    kernel.calls, kernel.operations = calls_of(group), operations_of(group, kernel.work)
    return kernel


def _checks_of(group: Group) -> set[int]:
    """The recorded calls that fail where a check of the group does."""
    loops = [n for n in group.nodes() if isinstance(n, Loop)]
    return {s.args[4] for n in loops for s in n.trace if s.op == "check"}


def handles_of(backend: Backend, kernels: Sequence[Kernel]) -> list[int]:
    """What launches take the kernels by. Raises what `Backend.compile` may, and BackendFailed."""
    if code_log.isEnabledFor(logging.DEBUG):
        for source in dict.fromkeys(k.source for k in kernels):
            if source not in _shown:
                _shown.add(source)
                code_log.debug("%s", source)
    with _named(backend, "compile", [k.origin for k in kernels]):
        handles = backend.compile(kernels)
        if len(handles) != len(kernels):
            raise TypeError(f"it gave {len(handles)} numbers for {len(kernels)} kernels")
        for handle in handles:
            _check_number(handle)
    return handles


def _check_number(handle: object) -> None:
    try:
        operator.index(handle)  # type: ignore[arg-type]
    except TypeError:
        name = type(handle).__name__
        address = "; a launch takes its `address()`" if hasattr(handle, "address") else ""
        raise TypeError(f"it gave a {name} for a kernel and no number{address}") from None


@contextmanager
def _named(backend: Backend, method: str, ops: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except _FORESEEN:
        raise
    except Exception as error:
        names = "; ".join([*ops[:_MOST_NAMES], *(["..."] if len(ops) > _MOST_NAMES else [])])
        raise BackendFailed(
            f"`{method}` of the backend {backend.name!r} failed for {names}: "
            f"{type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: Exception) -> str:
    """The last line of the backend's own on the way to an error; of one of ours the last of all."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    theirs = [f for f in frames if not Path(f.filename).is_relative_to(_HERE)]
    if not frames:
        return ""
    last = (theirs or frames)[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"
