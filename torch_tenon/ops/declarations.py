"""What is said of a custom op, checked: its schema, what its kernels take, what its results are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon import device, targets
from torch_tenon.compiler.handwritten import Asked, Code, Launch, Next, Parameter
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ops.expressions import ExpressionError, SizeExpression
from torch_tenon.ops.manifest import misspelt, nearest

HOST = "host"
NEXT = "next"

_DTYPES = {str(d).removeprefix("torch."): d for d, x in TABLE.items() if x.kind != "complex"}
_NUMBERS = ("int8", "uint8", "int16", "int32", "int64", "float32", "float64", "bool")


class DeclarationError(ValueError):
    """What is declared of an op does not fit together; `path` leads to where it says so."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.text, self.path = text, path

    def at(self, *path: str | int) -> DeclarationError:
        """The same error, of a part that lies at `path`."""
        return DeclarationError(self.text, *path, *self.path)


@dataclass(frozen=True)
class KernelSource:
    """A kernel of a custom op: a source in the language of a device, and what a launch gives it.

    `device` is a target's name, or `host`; `entry` the function in the source. `arguments` are what
    that takes, in its order, each a dtype and a name or a size:

        float32 x          memory of the tensor x, whose dtype has to be that, contiguous
        float32 result     ... of the result; `result0`, `result1` where there are several, unless
                           the schema names them
        float64 factor     a number that the op takes
        int64 numel(x)     a size: numel(x), size(x, 0), whole numbers, cdiv(a, b), + - * // %
        int32 next         what comes after the launch, as far as that is known: 0 nothing, 1 the
                           same target, 2 the host

    A kernel is for calls whose tensors have these dtypes; a device may have several. A target with
    a grid starts as many runs of it as `global_size` says along each axis, in groups of
    `local_size`, both written as sizes are; a string alone is that of one axis. Whole groups are
    started. `file` and `line` say where
    `text` is from, for messages.
    """

    device: str
    text: str
    entry: str
    arguments: Sequence[str]
    global_size: str | Sequence[str] = ()
    local_size: str | Sequence[str] = ()
    file: str = ""
    line: int = 1

    def __post_init__(self) -> None:
        for name in ("global_size", "local_size"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, (given,))


@dataclass(frozen=True)
class Scope:
    """The names of an op's schema, by what they are."""

    names: tuple[str, ...]  # of all arguments
    tensors: tuple[str, ...]
    integers: tuple[str, ...]  # flags too
    floats: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str, ...]

    @staticmethod
    def of(schema: Any) -> Scope:
        """Those of a parsed schema. Raises DeclarationError for what no kernel can take."""
        kinds: dict[str, list[str]] = {"Tensor": [], "int": [], "float": [], "bool": []}
        for a in schema.arguments:
            kind = str(a.type).removeprefix("Optional[").removesuffix("]")
            if kind not in kinds or a.kwarg_only:
                said = "keyword-only" if kind in kinds else f"a {a.type}"
                raise DeclarationError(
                    f"{schema.name}: a kernel cannot take {a.name}, {said}; it takes tensors, "
                    "integers, floats and flags by position. Compose the op of others for "
                    "anything else",
                    "func",
                )
            kinds[kind].append(a.name)
        several = len(schema.returns) > 1
        results = []
        for k, r in enumerate(schema.returns):
            if str(r.type) != "Tensor" or r.alias_info is not None:
                raise DeclarationError(
                    f"{schema.name}: a result is a new tensor, not a {r.type}", "op"
                )
            results.append(r.name or (f"result{k}" if several else "result"))
        grads = [f"grad{k}" if several else "grad" for k in range(len(results))]
        return Scope(
            tuple(a.name for a in schema.arguments),
            tuple(kinds["Tensor"]),
            (*kinds["int"], *kinds["bool"]),
            tuple(kinds["float"]),
            tuple(results),
            tuple(grads),
        )


def parse_schema(text: str) -> Any:
    """PyTorch's parsed schema. Raises DeclarationError for what is none."""
    if "::" not in text.partition("(")[0]:
        raise DeclarationError(
            f"{text!r} has no namespace: write namespace::name(...) -> ...", "func"
        )
    try:
        return torch._C.parse_schema(text)
    except RuntimeError as error:
        raise DeclarationError(f"{text!r} is no schema of an op:\n{error}", "func") from None


@dataclass(frozen=True)
class Signature:
    """A kernel's code and where each of its parameters comes from, those of a kind in order."""

    code: Code
    tensors: tuple[str, ...]
    numbers: tuple[str | SizeExpression | Asked, ...]
    global_size: tuple[SizeExpression, ...]
    local_size: tuple[SizeExpression, ...]

    def dtypes(self) -> list[torch.dtype]:
        """Those of the tensors."""
        return [p.dtype for p in self.code.parameters if p.is_tensor]

    def fits(self, dtypes: Mapping[str, torch.dtype]) -> bool:
        """Whether it is for tensors of these dtypes, by name; absent ones are left out."""
        wanted = zip(self.tensors, self.dtypes(), strict=True)
        return all(dtypes.get(name, dtype) is dtype for name, dtype in wanted)

    def launch(self, tensors: Sequence[Any], values: Mapping[str, Any]) -> Launch:
        """A call; `values` has the sizes of tensors, and numbers, by name."""
        known = {n: 0 if v is None and n not in self.tensors else v for n, v in values.items()}
        numbers = [
            known[n] if isinstance(n, str) else n if isinstance(n, Asked) else n(known)
            for n in self.numbers
        ]
        return Launch(
            self.code,
            tensors,
            numbers,
            [size(known) for size in self.global_size],
            [size(known) for size in self.local_size],
        )


def signature_of(kernel: KernelSource, scope: Scope, op: str) -> Signature:
    """A kernel, checked against the op's names. Raises DeclarationError."""
    known = list(dict.fromkeys([HOST, *targets.known(), device.target().name]))
    # One that is not here may be installed elsewhere: only what looks misspelt is wrong.
    if kernel.device not in known and (near := misspelt(kernel.device, known)):
        raise DeclarationError(
            f"{op}: there is no device {kernel.device!r}; the nearest is {near}; there are "
            f"{', '.join(known)}, and a target in a file is known while TENON_TARGET names it",
            "device",
        )
    if not kernel.entry.isidentifier():
        raise DeclarationError(f"{op}: {kernel.entry!r} is no name of a function", "entry")
    tensors: list[str] = []
    numbers: list[str | SizeExpression | Asked] = []
    parameters = []
    for k, text in enumerate(kernel.arguments):
        try:
            dtype, found = _argument(text, scope)
        except (DeclarationError, ExpressionError) as error:
            raise DeclarationError(f"{op}: {error}", "arguments", k) from None
        is_tensor = isinstance(found, str) and found in (*scope.tensors, *scope.results)
        parameters.append(Parameter(dtype, is_tensor))
        if is_tensor:
            tensors.append(str(found))
        else:
            numbers.append(found)
    _require_all(kernel, scope, op, tensors)
    grid = [_sizes(kernel, scope, op, name) for name in ("global_size", "local_size")]
    language = targets.HOST if kernel.device == HOST else kernel.device
    if grid[1] and len(grid[1]) != len(grid[0]):
        raise DeclarationError(f"{op}: a group has as many axes as the grid", "local_size")
    axes, group = len(grid[0]), tuple(size.constant() for size in grid[1])
    code = Code(
        *(language, kernel.text, kernel.entry, tuple(parameters)),
        *(kernel.file, kernel.line, axes, group),
    )
    return Signature(code, tuple(tensors), tuple(numbers), *grid)


def _require_all(kernel: KernelSource, scope: Scope, op: str, tensors: Sequence[str]) -> None:
    # A result that no kernel writes would hold whatever was in its memory.
    for name in scope.results:
        if name not in tensors:
            raise DeclarationError(
                f"{op}: the kernel {kernel.entry} takes no {name}, which it has to write",
                "arguments",
            )


def _sizes(kernel: KernelSource, scope: Scope, op: str, field: str) -> tuple[SizeExpression, ...]:
    found = []
    for k, text in enumerate(getattr(kernel, field)):
        try:
            found.append(_size(str(text), scope))
        except ExpressionError as error:
            raise DeclarationError(f"{op}: {error}", field, k) from None
    return tuple(found)


def _size(text: str, scope: Scope) -> SizeExpression:
    return SizeExpression(text, (*scope.tensors, *scope.results), scope.integers)


def _argument(text: str, scope: Scope) -> tuple[torch.dtype, str | SizeExpression | Asked]:
    written, _, name = text.strip().partition(" ")
    name = name.strip()
    dtype = _DTYPES.get(written)
    if dtype is None or not name:
        raise DeclarationError(
            f"{text!r} is no argument of a kernel{nearest(written, _DTYPES)}; write a dtype and a "
            "name or a size, as in `float32 x` or `int64 numel(x)`"
        )
    if name in (*scope.tensors, *scope.results):
        return dtype, name
    if written not in _NUMBERS:
        raise DeclarationError(f"{text!r}: a number is passed as one of {', '.join(_NUMBERS)}")
    if name in scope.floats:
        if not dtype.is_floating_point:
            raise DeclarationError(
                f"{text!r}: the op takes {name} as a float; write float64 {name}"
            )
        return dtype, name
    if dtype.is_floating_point:
        found = "an integer" if name in scope.integers else "no name of the op's"
        near = nearest(name, scope.names)
        raise DeclarationError(f"{text!r}: {name} is {found}{near}")
    if name == NEXT and NEXT not in scope.names:
        return dtype, Asked.NEXT
    return dtype, name if name in scope.integers else _size(name, scope)


@dataclass(frozen=True)
class ResultLike:
    """What a result is, of the arguments: its sizes and dtype; it is contiguous."""

    sizes: str | tuple[SizeExpression, ...]  # a tensor's name, or each by itself
    dtype: str | torch.dtype  # a tensor's name, or the dtype

    def __call__(self, values: Mapping[str, Any], where: torch.device) -> torch.Tensor:
        """It, uninitialised; `values` are the op's arguments by name."""
        if isinstance(self.sizes, str):
            sizes = values[self.sizes].shape
        else:
            known = {n: v.shape if isinstance(v, torch.Tensor) else v for n, v in values.items()}
            sizes = [size(known) for size in self.sizes]
        dtype = self.dtype if isinstance(self.dtype, torch.dtype) else values[self.dtype].dtype
        return torch.empty(sizes, dtype=dtype, device=where)


def result_like(text: str, scope: Scope) -> ResultLike:
    """The declaration `like x`. Raises DeclarationError."""
    word, _, name = text.strip().partition(" ")
    if word != "like" or name.strip() not in scope.tensors:
        known = ", ".join(scope.tensors)
        raise DeclarationError(
            f"{text!r} does not say what the result is like; write `like NAME` with one of "
            f"{known}, or `sizes` and `dtype`"
        )
    return ResultLike(name.strip(), name.strip())


def result_of(sizes: Sequence[Any], dtype: str, scope: Scope) -> ResultLike:
    """A declaration by sizes, and a dtype or `like x`. Raises DeclarationError."""
    found = []
    for k, size in enumerate(sizes):
        try:
            found.append(SizeExpression(str(size), scope.tensors, scope.integers))
        except ExpressionError as error:
            raise DeclarationError(str(error), "sizes", k) from None
    if dtype in _DTYPES:
        return ResultLike(tuple(found), _DTYPES[dtype])
    try:
        return ResultLike(tuple(found), result_like(dtype, scope).dtype)
    except DeclarationError:
        raise DeclarationError(
            f"{dtype!r} is no dtype{nearest(dtype, _DTYPES)}; write one, or `like NAME`", "dtype"
        ) from None


def maker(scope: Scope, results: Sequence[ResultLike]) -> Callable[..., Any]:
    """A function that makes the results of a call, uninitialised, of its arguments."""

    def make(*given: Any) -> Any:
        values = dict(zip(scope.names, given, strict=True))
        where = next(v.device for v in values.values() if isinstance(v, torch.Tensor))
        made = [result(values, where) for result in results]
        return made[0] if len(made) == 1 else tuple(made) if made else None

    return make


__all__ = [
    "DeclarationError",
    "KernelSource",
    "Next",
    "ResultLike",
    "Scope",
    "Signature",
    "maker",
    "parse_schema",
    "result_like",
    "result_of",
    "signature_of",
]
