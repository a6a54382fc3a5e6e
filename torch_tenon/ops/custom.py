"""Custom ops: an op of one's own, with a kernel in source for each target.

    @custom_op("demo::scale(Tensor x, float factor) -> Tensor", kernels={"cpu": Source(T, "scale")})
    def scale(x, factor):
        return torch.empty_like(x)  # what the result looks like

A kernel is called with a pointer to each result, then the op's arguments in their order (a tensor
as a pointer, an integer or a flag as 64 bits, a float as a double), then the number of elements of
the first result, or of the first tensor that the op writes. Tensors come contiguous.
"""

import functools
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tenon import _C
from torch_tenon.device import target
from torch_tenon.ops.register import counted
from torch_tenon.targets.target import Kernel, TargetError

_libraries: list[torch.library.Library] = []  # a registration lasts as long as its library


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's source, in the target's language, and the name of the function in it."""

    text: str
    entry: str


def custom_op(
    schema: str,
    *,
    kernels: Mapping[str, Source],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], OpOverload]:
    """Decorator that makes a custom op of a function that makes its results, uninitialised.

    `schema` is PyTorch's, with the namespace: "demo::scale(Tensor x, float factor) -> Tensor".
    `kernels` holds a kernel by the name of its target. `backward` and `setup_context` are those of
    `torch.library.register_autograd`. The function also serves as the op's fake kernel, so the op
    can be traced and compiled. Returns the op.

    Raises ValueError for a schema with an argument that no kernel can take. A call raises
    TargetError when there is no kernel for the target, CompileError when its source does not
    compile.
    """

    def decorate(make_results: Callable[..., Any]) -> OpOverload:
        namespace, _, rest = schema.partition("::")
        name = rest.partition("(")[0].strip()
        parsed = torch._C.parse_schema(schema)
        _require_simple(parsed)
        library = torch.library.Library(namespace, "FRAGMENT")
        _libraries.append(library)
        library.define(rest)
        base, _, suffix = name.partition(".")
        op: OpOverload = getattr(getattr(getattr(torch.ops, namespace), base), suffix or "default")
        launch = _launcher(op, make_results, dict(kernels))
        library.impl(name, counted("kernel", f"{namespace}::{name}", launch), "PrivateUse1")
        torch.library.register_fake(f"{namespace}::{name}", make_results, lib=library)
        if backward is not None:
            torch.library.register_autograd(
                f"{namespace}::{name}", backward, setup_context=setup_context, lib=library
            )
        return op

    return decorate


def load_custom_ops(path: str | Path) -> dict[str, OpOverload]:
    """Makes the custom ops that a YAML file declares, a list of

        - func: demo::scale(Tensor x, float factor) -> Tensor
          fake: demo_ops:scale             # module:function that makes the results
          kernels:
            - device: cpu
              source: scale.c              # beside the YAML file
              entry: scale

    Returns them by name. Raises ValueError that names the entry for a field that is missing.
    """
    import yaml

    path = Path(path)
    made = {}
    for row in yaml.safe_load(path.read_text()):
        for wanted in ("func", "fake", "kernels"):
            if wanted not in row:
                raise ValueError(f"{path}: {row.get('func', row)} has no `{wanted}`")
        module, _, function = row["fake"].partition(":")
        fake = getattr(importlib.import_module(module), function)
        kernels = {
            kernel["device"]: Source((path.parent / kernel["source"]).read_text(), kernel["entry"])
            for kernel in row["kernels"]
        }
        op = custom_op(row["func"], kernels=kernels)(fake)
        made[op.name()] = op
    return made


def _require_simple(schema: Any) -> None:
    for argument in schema.arguments:
        kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
        if kind not in ("Tensor", "int", "float", "bool"):
            raise ValueError(
                f"{schema.name}: a kernel cannot take {argument.name}, a {argument.type}; it takes "
                "tensors, integers, floats and flags. Compose the op of others for anything else"
            )


def _launcher(
    op: OpOverload, make_results: Callable[..., Any], kernels: Mapping[str, Source]
) -> Callable[..., Any]:
    lock = threading.Lock()

    @functools.cache
    def compiled() -> Kernel:
        machine = target()
        if machine.name not in kernels:
            raise TargetError(
                f"{op} has no kernel for the target {machine.name!r}, only for "
                f"{', '.join(kernels) or 'none'}; add one to its `kernels`"
            )
        source = kernels[machine.name]
        if machine.backend is None:
            raise TargetError(
                f"{op}: the target {machine.name!r} has no backend, and so nothing that compiles "
                f"the kernel {source.entry!r}"
            )
        return machine.backend.compile_source(source.text, source.entry)

    arguments = op._schema.arguments
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]

    def launch(*given: Any) -> Any:
        with lock:
            kernel = compiled()
        values = [*given, *(a.default_value for a in arguments[len(given) :])]
        results = make_results(*values)
        fresh = [] if results is None else _as_list(results)
        dense = [v.contiguous() if isinstance(v, torch.Tensor) else v for v in values]
        of_target = [t for t in [*fresh, *dense] if isinstance(t, torch.Tensor)]
        sized = fresh or [v for v, w in zip(dense, written, strict=True) if w]
        args: list[int | float | bool] = [t.data_ptr() for t in fresh]
        for value in dense:
            if isinstance(value, torch.Tensor):
                args.append(value.data_ptr())
            else:
                args.append(0 if value is None else value)
        args.append(sized[0].numel() if sized else 0)
        index = of_target[0].device.index
        _C.commit(index)  # the kernel sees memory, and what is recorded has to be in it
        queue = target().queue(index)
        queue.encode(kernel, args)
        queue.commit()
        for value, used, is_written in zip(values, dense, written, strict=True):
            if is_written and used is not value:
                value.copy_(used)
        return results

    return launch


def _as_list(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, Sequence) else [results]
