"""Kernels written by hand on tensors of the host: called here, or run by the device on copies."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torch_tenon import _C
from torch_tenon.compiler.asked_backend import handles_of
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.handwritten import Asked, Code, Next, kernel_of
from torch_tenon.compiler.plan import Plan
from torch_tenon.ir.arguments import key_of
from torch_tenon.ops.declarations import Signature
from torch_tenon.ops.manifest import nearest
from torch_tenon.targets.target import CompileError

if TYPE_CHECKING:
    from torch_tenon.ops.custom import CustomOp

_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_MOST_PLANS = 256


@functools.cache
def compiled(code: Code, backend: Backend) -> int:
    """What a launch takes the kernel by. Raises what `Backend.compile` does, saying where the
    source is from; NotImplementedError where the backend takes none."""
    try:
        (found,) = handles_of(backend, [kernel_of(code, backend)])
    except CompileError as error:
        where = f"{code.file}:{code.line}: " if code.file else ""
        if not re.search(rf"\b{code.entry}\b", code.text):
            near = nearest(code.entry, re.findall(r"([A-Za-z_]\w*)\s*\(", code.text))
            raise CompileError(
                f"{where}`entry` is {code.entry}, a name that the source for {code.device} does "
                f"not have{near}",
                is_of_source=True,
            ) from None
        raise CompileError(
            f"{where}the kernel {code.entry} for {code.device} does not build: {error}",
            error.is_of_source,
        ) from None
    return found


def run(
    signature: Signature,
    backend: Backend,
    written: Sequence[str],
    values: Mapping[str, Any],
    results: Mapping[str, torch.Tensor],
) -> None:
    """Runs a kernel of a backend whose functions the host can call, over memory of the host.

    Tensors that are not contiguous are copied, and what the kernel writes is copied back. Raises
    CompilerMissing and CompileError as `Backend.compile` does.
    """
    call = _FUNCTION(compiled(signature.code, backend))
    given = {**values, **results}
    dense = {n: v.contiguous() for n, v in given.items() if isinstance(v, torch.Tensor)}
    sizes = {n: tuple(v.shape) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    tensors = [dense.get(n) for n in signature.tensors]
    launch = signature.launch(tensors, sizes)
    words: list[Any] = [
        int(Next.HOST) if isinstance(w, Asked) else w
        for w in [*launch.words(), *launch.global_size, *launch.local_size]
    ]
    pointers = [0 if t is None else t.data_ptr() for t in tensors]
    call(
        (ctypes.c_void_p * len(pointers))(*pointers),
        (ctypes.c_int64 * len(words))(*words),
        None,
    )
    for name in (*written, *results):
        if dense[name] is not given[name]:
            given[name].copy_(dense[name])


@dataclass(frozen=True)
class Facts:
    """What is known of a call's arguments: values by which plans are kept."""

    key: Any
    values: tuple[Any, ...] = field(compare=False)

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Facts:
        """Those of these values."""
        return cls(key_of(values), values)


@functools.lru_cache(_MOST_PLANS)
def plan_of(op: CustomOp, backend: Backend, facts: Facts, shapes: tuple[Any, ...]) -> _C.Plan:
    """One call as a plan of the device's: see `CustomOp.program`."""
    return Plan(op.program(facts.values, shapes), backend).compile().native(())
