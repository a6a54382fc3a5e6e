"""Plans as bytes: what the core reads a plan of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_tenon.compiler.wire import archive
from torch_tenon.compiler.wire.archive import ITEM_BYTES, WireError, Writer
from torch_tenon.compiler.wire.arguments import NO_ARGUMENT, OPS, TENSOR, OpArgument
from torch_tenon.runtime.dtypes import NUMBERS

if TYPE_CHECKING:
    from torch_tenon.compiler.backend import KernelFile
    from torch_tenon.compiler.plan import PlanData

# As `Slot::Kind` in csrc/runtime/plan.h has them.
SLOT_KINDS = ("input", "output", "temporary", "block", "external", "constant", "unused")
_SLOT_KIND = {kind: number for number, kind in enumerate(SLOT_KINDS)}
# As `SizedNumber` in csrc/runtime/plan.h has them.
IN_SLOT, IN_KERNEL, IN_TENSOR, IN_RESULT, IN_ARGUMENT, IN_BYTES = range(6)
SIZE, STRIDE, OFFSET = range(3)
_KERNEL_STEP, _CALL_STEP = range(2)


def plan_bytes(
    data: PlanData,
    kernels: Sequence[KernelFile] = (),
    constants: Sequence[torch.Tensor] = (),
) -> bytes:
    """A plan as the core reads it, and after it the numbers that change with sizes.

    `kernels` are where other processes find the plan's kernels, by number; none where they are in
    no file. `constants` are host tensors, by place; none where they are handed over beside the
    bytes. Raises WireError for a call that its op does not take so, and for what no plan can hold.
    """
    try:
        return _PlanWriter().write(data, kernels, constants)
    except (LookupError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise WireError(f"no data of a plan: {type(error).__name__}: {error}") from error


def put_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """A host tensor: its dtype, sizes and dense bytes."""
    dense = tensor.detach().cpu().contiguous()
    writer.number(NUMBERS[str(dense.dtype).removeprefix("torch.")])
    writer.numbers(dense.shape)
    writer.text(dense.reshape(-1).view(torch.uint8).numpy().tobytes())


def put_constants(writer: Writer, constants: Sequence[torch.Tensor]) -> None:
    """A list of host tensors."""
    writer.number(len(constants))
    for tensor in constants:
        put_tensor(writer, tensor)


class _PlanWriter:
    """Writes one plan; on the way it finds the numbers that change with sizes."""

    def __init__(self) -> None:
        self.out = Writer()
        self.sized = Writer()  # where each of these stands, and its expression
        self.sized_count = 0
        self.grids: list[int] = []  # of kernels: the step, and how many of its sizes are what
        self.op = OPS.now()

    def write(
        self,
        data: PlanData,
        kernels: Sequence[KernelFile],
        constants: Sequence[torch.Tensor],
    ) -> bytes:
        out = self.out
        out.numbers(data["inputs"])
        out.numbers(data["outputs"])
        out.number(data["arena_bytes"])
        out.number(len(data["results"]))
        for x in data["results"]:
            self.tensor(out, x, None)
        out.number(len(kernels))
        for path, symbol, checksum in kernels:
            out.text(path)
            out.text(symbol)
            out.number(checksum - (1 << 64) if checksum >> 63 else checksum)
        out.number(len(data["slots"]))
        for k, slot in enumerate(data["slots"]):
            self.slot(k, slot)
        out.number(len(data["steps"]))
        for k, step in enumerate(data["steps"]):
            self.step(k, step)
        put_constants(out, constants)
        out.number(self.sized_count)
        out.bytes += self.sized.bytes
        if self.grids:
            out.numbers(self.grids)
        return bytes(out.bytes)

    def number(
        self, x: Any, where: int, index: int, which: int = 0, field: int = SIZE, at: int = 0
    ) -> int:
        """A number that stands there; with sizes of any value, its example."""
        if not isinstance(x, dict):
            return int(x)
        sized = self.sized
        for place in (where, index, which, field, at):
            sized.number(place)
        sized.numbers(x["words"])
        self.sized_count += 1
        return int(x["example"])

    def slot(self, k: int, x: Sequence[Any]) -> None:
        out = self.out
        out.number(_SLOT_KIND[x[0]])
        out.number(self.number(x[1], IN_SLOT, k))
        out.number(self.number(x[2], IN_BYTES, k) if len(x) > 2 else 0)

    def tensor(self, out: Writer, x: Mapping[str, Any], place: tuple[int, int, int] | None) -> None:
        """A tensor over a slot. `place`: where it stands, of which step, and which one there; None
        for the results of a plan, which nobody asks for where sizes may have any value."""
        sizes, strides, offset = x["sizes"], x["strides"], x["offset"]
        if place is not None:
            sizes = [
                self.number(n, *place, SIZE, d) if type(n) is dict else n
                for d, n in enumerate(sizes)
            ]
            strides = [
                self.number(n, *place, STRIDE, d) if type(n) is dict else n
                for d, n in enumerate(strides)
            ]
            if type(offset) is dict:
                offset = self.number(offset, *place, OFFSET, max(len(strides) - 1, 0))
        else:
            sizes, strides = list(map(_example, sizes)), list(map(_example, strides))
            offset = _example(offset)
        dtype = x["dtype"]
        out.number(x["slot"])
        out.number(NUMBERS[dtype])
        out.numbers(sizes)
        out.numbers(strides)
        out.number(offset)
        out.number(_storage_bytes(sizes, strides, offset, ITEM_BYTES[dtype]))
        out.bytes += b"\0\0"  # it has no gradient, and is no number of Python's

    def step(self, k: int, x: Mapping[str, Any]) -> None:
        out = self.out
        is_kernel = "kernel" in x
        out.text(x["name"])
        out.numbers(x["allocated"])
        out.numbers(x["released"])
        out.number(_KERNEL_STEP if is_kernel else _CALL_STEP)
        out.text(x["detail"])
        out.number(len(x["detail_sizes"]))
        for n in x["detail_sizes"]:
            self.expression(n)
        out.numbers(x["calls"])
        self.expression(x["bytes"])
        self.expression(x["operations"])
        if is_kernel:
            self.kernel(k, x)
        else:
            self.call(k, x)

    def expression(self, x: Any) -> None:
        self.out.numbers(x["words"] if isinstance(x, dict) else (0, x))

    def kernel(self, k: int, x: Mapping[str, Any]) -> None:
        out = self.out
        out.number(x["kernel"])
        out.numbers(x["slots"])
        grid, group = x.get("grid", ()), x.get("group", ())
        scratch = [n] if (n := x.get("scratch", 0)) else []
        sizes = [*x["sizes"], *grid, *group, *scratch]
        out.numbers([self.number(n, IN_KERNEL, k, i) for i, n in enumerate(sizes)])
        if len(sizes) > len(x["sizes"]):
            self.grids += [k, len(grid), len(group), len(scratch)]
        out.number(len(x["checks"]))
        for calls in x["checks"]:
            out.numbers(calls)

    def call(self, k: int, x: Mapping[str, Any]) -> None:
        out = self.out
        op = self.op(x["op"], x["overload"])
        out.text(op.text)
        given = x["arguments"]
        tensors = _Tensors(k)
        out.number(len(op.arguments))
        used = 0
        for i, argument in enumerate(op.arguments):
            if argument.name in given:
                self.argument(given[argument.name], argument, i, tensors)
                used += 1
            elif argument.default is None:
                raise WireError(f"{x['op']} lacks {argument.name!r}")
            else:
                out.bytes += argument.default
        if used != len(given):
            raise WireError(f"{x['op']} does not take all that is given")
        out.number(tensors.count)
        out.bytes += tensors.writer.bytes
        out.number(len(x["results"]))
        for i, r in enumerate(x["results"]):
            out.number(r is not None)
            if r is not None:
                self.tensor(out, r, (IN_RESULT, k, i))
        out.text(x["route"])
        out.text(x["counted"])
        out.number(x["call"])

    def argument(self, x: Any, argument: OpArgument, i: int, tensors: _Tensors) -> None:
        """Argument `i` of a call; its tensors are added to the call's."""
        out, k = self.out, tensors.step
        if type(x) is dict and "slot" in x:
            self.add(x, tensors)
            out.bytes += argument.tensor
            return
        if isinstance(x, list) and any(type(y) is dict and "slot" in y for y in x):
            out.number(archive.LIST_ARGUMENT)
            out.number(archive.LIST)
            out.number(argument.elements)
            out.number(0)
            out.number(len(x))
            for y in x:
                if y is None:
                    out.bytes += NO_ARGUMENT
                elif type(y) is dict and "slot" in y:
                    self.add(y, tensors)
                    out.bytes += argument.tensor
                elif argument.tensor is not TENSOR:
                    out.number(archive.CONSTANT_ARGUMENT)
                    argument.put_element(out, y)
                    out.number(0)
                else:
                    raise WireError(f"{argument.name}: {y!r} in a list of tensors")
            return
        if type(x) is dict and "words" in x:
            x = self.number(x, IN_ARGUMENT, k, i)
        elif isinstance(x, list):
            x = [
                self.number(y, IN_ARGUMENT, k, i, SIZE, at)
                if type(y) is dict and "words" in y
                else y
                for at, y in enumerate(x)
            ]
        out.number(archive.CONSTANT_ARGUMENT)
        argument.put(out, x)
        out.number(0)

    def add(self, x: Mapping[str, Any], tensors: _Tensors) -> None:
        self.tensor(tensors.writer, x, (IN_TENSOR, tensors.step, tensors.count))
        tensors.count += 1


class _Tensors:
    """Tensors of a call's arguments."""

    def __init__(self, step: int) -> None:
        self.step, self.count, self.writer = step, 0, Writer()


def _example(x: Any) -> int:
    return int(x["example"] if isinstance(x, dict) else x)


def _storage_bytes(sizes: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> int:
    """Of the smallest storage that holds such a tensor; 0 for one without elements."""
    last = offset
    for n, stride in zip(sizes, strides, strict=True):
        if n == 0:
            return 0
        last += (n - 1) * stride
    return (last + 1) * itemsize
