"""What a target's hardware can compute with, as its backend declares it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch_tenon.compiler.memory import ALIGNMENT

# Not PyTorch: backends are there before it is loaded whole.
if TYPE_CHECKING:
    import torch

    from torch_tenon.compiler.loops.tree import Array, Space, Tree
    from torch_tenon.ir.program import Loop


@dataclass(frozen=True)
class Tiles:
    """A matrix unit: what `TileProduct` may be.

    rows, columns, depth  of a tile of the sums, and what each is a sum over
    operands    the dtype of both operands
    sums        the dtype that products are added in
    reads       the memory space of the operands
    adds        the memory space of the sums
    by_columns  which of the tiles have neighbours in memory along their columns, not their rows

    The bytes of both spaces are in `Capabilities.spaces`, of private memory too. One matrix unit
    with several dtypes is several of these. Sums of whole numbers wrap, and do not saturate.
    """

    rows: int
    columns: int
    depth: int
    operands: torch.dtype
    sums: torch.dtype
    reads: Space = "scratch"
    adds: Space = "accumulator"
    by_columns: frozenset[Literal["left", "right", "sums"]] = frozenset()

    def gives(self, result: torch.dtype) -> bool:
        """Whether its sums have all that results of a dtype are made of: floats as they are in
        registers, and at least the bits of whole numbers, which wrap."""
        from torch_tenon.ir.dtypes import TABLE

        found, sums = TABLE[result], TABLE[self.sums]
        if found.kind in ("int", "uint"):
            return sums.kind in ("int", "uint") and sums.itemsize >= found.itemsize
        return found.compute is self.sums


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use. A loop that needs more is the host's, and does not fuse with others.

    storage     dtypes of the elements that kernels load and store
    arithmetic  dtypes that numbers have in registers: 16-bit floats are float32 there
    spaces      bytes of each memory space beside global and private memory: of a group's `shared`
                memory, of a `scratch` memory; none of a space that is not there
    tiles       its matrix units
    rank        loops of a kernel at most, two or more: over results and over what is reduced,
                before tiles. Where an op has more, some are joined, with divisions in their place
    alignment   bytes of which the address of a kernel's memory is a multiple: 64, 128, 256 or 512.
                It is for memory that the host cannot reach: what a target with `host_memory` runs
                on may be anybody's
    atomics     by dtype of memory, how an element of it can be combined in one step with others at
                work on it: names of `ir.scalar_ops.REDUCTIONS`, as `sum`. Of floats
                `max` and `min` alone, which have to keep NaN
    denormals   whether numbers below the least normal one are told from 0. Where they are not,
                `tenon conformance --db space` gives the device none

    None stands for all of them. Products of matrices have `Backend.product_dtypes`.
    """

    storage: frozenset[torch.dtype] | None = None
    arithmetic: frozenset[torch.dtype] | None = None
    spaces: Mapping[Space, int] = field(default_factory=dict)
    tiles: tuple[Tiles, ...] = ()
    rank: int | None = None
    alignment: int = ALIGNMENT
    atomics: Mapping[torch.dtype, frozenset[str]] = field(default_factory=dict)
    denormals: bool = True

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 2:
            raise ValueError(f"a rank of {self.rank}: a reduction has two loops")
        if self.alignment not in (64, 128, 256, 512):
            raise ValueError(f"an alignment of {self.alignment} bytes is none of 64, 128, 256, 512")
        for dtype, combinations in self.atomics.items():
            _check_atomics(dtype, combinations)

    def identity(self) -> str:
        """All of this as text, the same in every process: plans that are kept depend on it."""
        return str(_plain(self))

    def has_float64(self) -> bool:
        """Whether kernels compute in float64."""
        import torch

        return self.arithmetic is None or torch.float64 in self.arithmetic

    def lacking(self, loop: Loop) -> str | None:
        """What a loop needs and there is not; None where there is all of it."""
        if self.storage is not None:
            memory = [loop.buffer, *loop.reads, *(s.args[0] for s in loop.loads)]
            for buffer in memory:
                if buffer.dtype not in self.storage:
                    return f"no memory of {buffer.dtype}"
        if self.arithmetic is not None and loop.kind != "matmul":
            for scalar in loop.trace:
                if scalar.dtype not in self.arithmetic:
                    return f"no arithmetic of {scalar.dtype} ({scalar.op})"
        return None

    def parting(self, loops: Sequence[Loop]) -> str | None:
        """Why these loops cannot be one kernel: the host computes one of them."""
        if self.storage is None and self.arithmetic is None:
            return None
        found = [self.lacking(loop) for loop in loops]
        missing = next((text for text in found if text is not None), None)
        return f"the target has {missing}" if missing is not None and None in found else None

    def tiles_of(self, operands: torch.dtype, result: torch.dtype) -> Tiles | None:
        """The first matrix unit for products of matrices of a dtype with results of another."""
        return next((t for t in self.tiles if t.operands is operands and t.gives(result)), None)

    def addresses(self, tree: Tree, space: Space) -> dict[Array, int]:
        """Where the arrays of a kernel lie in a space: their offsets in bytes.

        Raises NotImplementedError where they take more than there is, and so the host runs them.
        """
        from torch_tenon.compiler.loops.addresses import addresses

        offsets, nbytes = addresses(tree, space)
        if nbytes > (most := self.spaces.get(space, 0)):
            raise NotImplementedError(
                f"{nbytes} bytes of {space} memory, of which there are {most}"
            )
        return offsets


def _check_atomics(dtype: torch.dtype, combinations: Iterable[str]) -> None:
    from torch_tenon.ir.scalar_ops import REDUCTIONS

    whole = not (dtype.is_floating_point or dtype.is_complex)
    usable = [name for name in REDUCTIONS if whole or name in ("max", "min")]
    for name in combinations:
        if name not in usable:
            why = "" if whole else ": results would depend on the order, which differs"
            raise ValueError(f"atomics: {name!r} of {dtype} is none of {', '.join(usable)}{why}")


def _plain(x: Any) -> Any:
    """What is printed alike in every process: sets have no order."""
    if is_dataclass(x):
        return [_plain(getattr(x, f.name)) for f in fields(x)]
    if isinstance(x, frozenset):
        return sorted(map(str, x))
    if isinstance(x, Mapping):
        return sorted((str(key), _plain(value)) for key, value in x.items())
    return [_plain(y) for y in x] if isinstance(x, tuple) else x
