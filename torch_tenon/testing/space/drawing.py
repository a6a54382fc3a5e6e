"""Drawing a call of an op, from its schema and from what `constraints.py` says of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from torch_tenon.ops import manifest
from torch_tenon.testing.space import domains
from torch_tenon.testing.space.case import Data
from torch_tenon.testing.space.ops import base_name, named

# Functions of real numbers, to whose parameters nobody gives a complex one.
_REAL = frozenset(
    name + back
    for name in ("celu", "elu", "hardshrink", "hardtanh", "leaky_relu", "softplus", "softshrink")
    for back in ("", "_backward")
)
# The most elements that a tensor has, at the first of its sizes.
_MOST = 2048


class Size(tuple[int, int, int]):
    """A size at each of the three sizes of a structure."""

    @classmethod
    def of(cls, n: int) -> Size:
        """The size that is `n` first; 0 and 1 stay."""
        return cls((n, n + 2, 3 * n + 1)) if n > 1 else cls((n, n, n))

    def with_(self, f: Callable[..., int], *others: Sequence[int] | int) -> Size:
        """`f` of this and of others, at each size."""
        rows = [[x] * 3 if isinstance(x, int) else list(x) for x in others]
        return Size(tuple(f(*xs) for xs in zip(self, *rows, strict=True)))

    def json(self) -> Any:
        """As a case has it."""
        return self[0] if self[0] == self[1] == self[2] else {"sizes": list(self)}


Shape = list[Size]


@functools.cache
def _below(n: int) -> st.SearchStrategy[int]:
    """Whole numbers below n: to make a strategy takes longer than to draw from it."""
    return st.integers(0, n - 1)


class Drawing:
    """A call being drawn. `right`: what is drawn should not be refused."""

    def __init__(self, draw: Callable[..., Any], op: str, right: bool) -> None:
        self.draw, self.op, self.right = draw, op, right
        self.schema = named(op)._schema
        self.name = base_name(named(op))
        self.tensors: list[Data] = []
        self.given: dict[str, Any] = {}
        self.shape: Shape = []
        self.dtype = "float32"
        self.changing = False  # numbers, from size to size

    # Choices

    def one(self, values: Sequence[Any]) -> Any:
        """One of some values; the first is the simplest."""
        return values[self.draw(_below(len(values)))]

    def chance(self, n: int) -> bool:
        """True once in `n` times."""
        return bool(self.draw(_below(n)) == n - 1)

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        found: int = self.draw(_below(max(low, high) - low + 1))
        return low + found

    def size(self, most: int = 64) -> Size:
        """A size."""
        return Size.of(self.one([n for n in domains.SIZES if n <= most]))

    def some_shape(self, low: int = 0, high: int = 4, most: int = _MOST) -> Shape:
        """A shape of a rank, of few elements."""
        rank = self.one([r for r in (2, 1, 3, 0, 4, 5) if low <= r <= high] or [low])
        shape: Shape = []
        if rank and most == _MOST and self.chance(32):
            # One long dimension: reductions go by pieces, and loops by more than one round.
            long = self.whole(0, rank - 1)
            sizes = [self.size(3) for _ in range(rank)]
            sizes[long] = Size.of(self.one(domains.LONG))
            return sizes
        for _ in range(rank):
            shape.append(self.size(64 if most > 64 else most if most > 1 else 2))
            most //= max(1, shape[-1][0])
        return shape

    def dim(self, rank: int | None = None) -> int:
        """A dimension of the first tensor, counted from either end."""
        r = max(1, len(self.shape) if rank is None else rank)
        return self.whole(-r, r - 1) if self.chance(2) else self.whole(0, r - 1)

    # Tensors

    def tensor(
        self,
        shape: Sequence[Size],
        dtype: str | None = None,
        palette: Sequence[Any] | None = None,
        **layout: Any,
    ) -> Data:
        """A tensor of a shape: its dtype, numbers and layout are drawn where they are not given."""
        dtype = dtype or self.dtype
        t: Data = {"shape": [n.json() for n in shape], "dtype": dtype}
        t["palette"] = list(palette) if palette is not None else self._palette(dtype)
        if "times" not in layout and len(t["palette"]) > 2:
            layout["times"] = self.one((1, 3, 7))
        t |= layout if "expanded" in layout else {**self._layout(shape, dtype), **layout}
        self.tensors.append(t)
        return {"tensor": len(self.tensors) - 1}

    def in_order(self, values: Sequence[int], count: Size, dtype: str = "int64") -> Data:
        """A vector of these numbers one after the other, however it lies; of as many as there are
        of `count` at most."""
        found = self.tensor([count], dtype, values, times=1)
        t = self.tensors[-1]
        for name in ("bits", "expanded", "order", "overlapping"):
            t.pop(name, None)
        each = [x for x in values for _ in range(t.get("step", 1))]
        t["palette"] = [*values[:1] * t.get("offset", 0), *each]
        return found

    def _palette(self, dtype: str) -> list[Any]:
        all_of, plain = domains.palette_of(dtype), domains.ordinary_of(dtype)
        if self.chance(2):
            return [self.one(all_of) for _ in range(self.whole(1, 5))]
        return list(plain[: self.whole(1, len(plain))])

    def some(self, are: Callable[[Any], bool], dtype: str | None = None) -> list[Any]:
        """Some of the numbers of a dtype for which `are` holds."""
        found = [x for x in domains.palette_of(dtype or self.dtype) if are(x)]
        return [self.one(found) for _ in range(self.whole(1, 5))]

    def _layout(self, shape: Sequence[Size], dtype: str) -> Data:
        found: Data = {}
        rank = len(shape)
        if not self.chance(2):
            return found
        if rank > 1 and self.chance(2):
            order = self.draw(st.permutations(range(rank)))
            found["order"] = list(order)
        if rank in (4, 5) and self.chance(3):
            found["order"] = [0, *range(2, rank), 1]
        if self.chance(4):
            found["step"] = 2
        if self.chance(4):
            found["offset"] = self.one((1, 3))
        if self.chance(6):
            found["behind"] = 2
        if rank and self.chance(4):
            found["expanded"] = [self.whole(0, rank - 1)]
        if rank > 1 and self.chance(8):
            found["overlapping"] = True
        kind: torch.dtype = getattr(torch, dtype)
        if kind.is_complex and self.chance(2):
            found["bits"] = "conj"
        no_signs = kind is torch.bool or "uint" in dtype or "float8" in dtype
        if not no_signs and self.chance(12):
            found["bits"] = "neg"
        return found

    def like(self, shape: Sequence[Size] | None = None, dtype: str | None = None) -> Data:
        """A tensor that broadcasts with the first one; now and then the same one again."""
        shape = self.shape if shape is None else shape
        if dtype is None and self.chance(6):
            dtype = self.one(domains.DTYPES)
        if self.tensors and dtype in (None, self.tensors[0]["dtype"]):
            if self.chance(10):
                return {"tensor": 0}
            if self.chance(16) and self._may_share():
                return self._beside()
        kept = list(shape)
        if self.chance(3):
            kept = kept[self.whole(0, len(kept)) :]
            kept = [Size.of(1) if self.chance(4) else n for n in kept]
        return self.tensor(kept, dtype)

    def _may_share(self) -> bool:
        """Whether the call may be given two tensors of one memory that are not the same. What
        writes one and reads the other in an order of its own has no one result."""
        writes = any(a.alias_info is not None for a in self.schema.arguments)
        return not writes or torch.Tag.pointwise in named(self.op).tags

    def _beside(self) -> Data:
        """The first tensor's memory seen from another place on."""
        first = self.tensors[0]
        first["behind"] = max(first.get("behind", 0), 4)
        by = self.one((1, 0, 2))
        kept = {k: v for k, v in first.items() if k not in ("bits", "grad")}
        self.tensors.append({**kept, "base": 0, "offset": first.get("offset", 0) + by})
        return {"tensor": len(self.tensors) - 1}

    def index(
        self, shape: Sequence[Size], below: int, *, unique: bool = False, negative: bool = False
    ) -> Data:
        """A tensor of indices below a number; `unique`: those along a last dimension differ. Some
        of the CPU's kernels take those of a negative view for what its memory holds."""
        found = self._index(shape, below, unique=unique, negative=negative)
        self.tensors[found["tensor"]].pop("bits", None)
        return found

    def _index(self, shape: Sequence[Size], below: int, *, unique: bool, negative: bool) -> Data:
        dtype = "int64" if self.right or not self.chance(6) else self.one(domains.INTEGERS)
        low = -below if negative and self.chance(2) else 0
        if below <= 0:
            return self.tensor(shape, dtype, (0,))
        if unique:
            values = list(range(below))
            if self.chance(2):
                values = self.draw(st.permutations(values)) if below < 9 else values[::-1]
            return self.in_order(values, shape[0]) if shape else self.tensor([], dtype, values)
        values = [self.whole(low, below - 1) for _ in range(self.whole(1, 6))]
        if not self.right and self.chance(3):
            limits = torch.iinfo(getattr(torch, dtype))
            values.append(self.one((below, -below - 1, -1, 2**31)))
            values = [v for v in values if limits.min <= v <= limits.max] or [0]
        return self.tensor(shape, dtype, values, times=1)

    # The whole call

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments in order, and those by name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for a in self.schema.arguments:
            if a.name in self.given:
                value = self.given[a.name]
            elif a.has_default_value() and self.chance(3):
                continue_by_name = True
                value = None
            else:
                value, continue_by_name = self.by_type(a), False
            if a.name not in self.given and a.has_default_value() and value is None:
                if not continue_by_name and a.default_value is not None:
                    value = None
                else:
                    # Left out; what comes later is named.
                    kwargs.setdefault("", None)
                    continue
            if a.kwarg_only or "" in kwargs:
                kwargs[a.name] = value
            else:
                args.append(value)
        kwargs.pop("", None)
        return args, kwargs

    def by_type(self, a: Any) -> Any:
        """A value for an argument of which nothing is known but type and name."""
        kind = str(a.type)
        optional = kind.startswith("Optional[")
        kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
        if kind == "Device":
            return {"device": True}
        if kind == "Generator":
            return None
        if a.name in ("layout", "pin_memory"):
            return None
        if optional and self.chance(3):
            return None
        return self._of_kind(a, kind)

    def _of_kind(self, a: Any, kind: str) -> Any:
        if kind == "Tensor":
            return self._tensor_named(a)
        if kind in ("List[Tensor]", "List[Optional[Tensor]]", "List[Optional[Tensor"):
            count = self.given.setdefault("", self.whole(1, 3))
            return [self.like() for _ in range(count)]
        if a.name.endswith("dtype"):
            return {"torch": self.one((self.dtype, *domains.DTYPES))}
        if a.name == "memory_format":
            formats = ["preserve_format", "contiguous_format", "channels_last", "channels_last_3d"]
            return {"torch": self.one(formats)}
        if kind == "int":
            return self._int_named(a.name)
        if kind == "List[int]":
            return self._ints_named(a)
        simple: dict[str, st.SearchStrategy[Any]] = {
            "float": domains.floats(),
            "number": domains.numbers(),
            "bool": st.booleans(),
            "str": domains.strings(a.name),
            "List[number]": st.lists(domains.numbers(), min_size=1, max_size=3),
            "List[float]": st.lists(domains.floats(), max_size=3),
            "List[bool]": st.lists(st.booleans(), min_size=3, max_size=3),
        }
        value = self.draw(simple[kind])
        if kind == "number" and self.name in domains.OF_WHOLE and not self.chance(4):
            value = self.draw(domains.integers())
        if kind == "number" and "complex" not in self.dtype and self.name in _REAL:
            value = value["complex"][0] if isinstance(value, dict) else value
        if a.name == "alpha" and value == -(2**63):
            value = 0  # a subtraction negates it, which C++ leaves undefined
        if kind == "List[number]" and "" in self.given:
            value = (value * 3)[: self.given[""]]
        if self.changing and type(value) in (int, float) and self.chance(3):
            others = [self.draw(simple[kind]) for _ in range(2)]
            return {"sizes": [value, *(x if type(x) is type(value) else value for x in others)]}
        return value

    def _tensor_named(self, a: Any) -> Data:
        if a.alias_info is not None and a.alias_info.is_write and (a.is_out or a.kwarg_only):
            return self.out(a.name)
        if a.name in ("mask", "condition") and not self.chance(6):
            return self.like(dtype="bool")
        if a.name in ("index", "indices", "target"):
            return self.index(self.shape, max((n[0] for n in self.shape), default=1))
        if not self.tensors:
            return self.tensor(self.shape)
        if (a.name == "value" or self.op.startswith("aten._foreach_")) and not self.chance(6):
            return self.tensor([])  # a number
        return self.like()

    def out(self, name: str = "out") -> Data:
        """A tensor to write a result to."""
        shapes: list[Shape] = [[Size.of(0)], self.shape, self.reduced()]
        dtype = self._dtype_of_out(name) if not self.chance(3) else self.one(domains.DTYPES)
        if self.name in ("any", "all") and dtype == "uint8":
            dtype = "bool"  # the CPU makes numbers bytes first, and of 0.1 or 256 a 0
        # Where elements wait for each other, what one writes another may read or not.
        pointwise = torch.Tag.pointwise in named(self.op).tags
        if self.tensors and pointwise and self.chance(12):
            return {"tensor": 0}
        # One that is filled in the order of memory has to have room for all of it.
        plain: Data = {"expanded": []} if manifest.of(named(self.op).name()).flat_out else {}
        return self.tensor(self.one(shapes), dtype, **plain)

    def _dtype_of_out(self, name: str) -> str:
        if self.name in domains.TO_TRUTH:
            return "bool"
        if self.name == "float_power":
            return "complex128" if "complex" in self.dtype else "float64"
        if self.name in ("complex", "polar"):
            return domains.COMPLEX_OF.get(self.dtype, "complex64")
        if name == "exponent":
            return "int32"
        places = "indices" in name or name == "max_values" or self.name in domains.TO_PLACES
        return "int64" if places else self.dtype

    def reduced(self) -> Shape:
        """The first tensor's shape without the dimensions that the call names."""
        dims = self.given.get("dim")
        if dims is None:
            return []
        gone = [d % max(1, len(self.shape)) for d in (dims if isinstance(dims, list) else [dims])]
        return [n for d, n in enumerate(self.shape) if d not in gone]

    def _int_named(self, name: str) -> int:
        if name in ("dim", "dim0", "dim1", "dim2", "dimension") and (
            self.right or not self.chance(3)
        ):
            found = self.dim()
            self.given.setdefault(name, found)
            return found
        if name == "reduction":
            return self.whole(0, 2) if self.right or not self.chance(4) else 3
        if self.right and not self.chance(3):
            return self.whole(0, 3)
        drawn: int = self.draw(domains.integers())
        return drawn

    def _ints_named(self, a: Any) -> list[Any]:
        if a.name in ("dim", "dims"):
            rank = max(1, len(self.shape))
            dims: list[int] = self.draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=3))
            dims = [d - rank if self.chance(4) else d for d in dims]
            self.given.setdefault(a.name, dims)
            return dims
        if a.name in ("size", "sizes", "shape"):
            shape = self.some_shape()
            if not self.right and self.chance(4):
                # PyTorch takes some negative sizes beside 0, and makes a tensor of such a size.
                kept = [n for n in shape if 0 not in n]
                return [*(n.json() for n in kept), self.one((-1, 2**45, -(2**40)))]
            return [n.json() for n in shape]
        count = a.N if getattr(a, "N", None) else self.whole(0, 3)
        return [self._int_named("") for _ in range(count)]
