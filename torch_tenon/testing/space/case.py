"""A call as data, and as the source that makes it: what is run is what a person is shown.

A case is JSON. `tensors` are the tensors that the call is given; `args` and `kwargs` refer to them
by `{"tensor": k}`; one with `host` is the CPU's on every device.
What differs between the three sizes of a structure is `{"sizes": [a, b, c]}`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

Data = dict[str, Any]


def at_size(x: Any, k: int) -> Any:
    """The case, or a part of it, at the k-th of its sizes."""
    if isinstance(x, dict):
        if "sizes" in x and len(x) == 1:
            return x["sizes"][k]
        return {name: at_size(value, k) for name, value in x.items()}
    return [at_size(y, k) for y in x] if isinstance(x, list) else x


@dataclass(frozen=True)
class Tensor:
    """A tensor that a call is given, at one size."""

    data: Data

    @property
    def sizes(self) -> list[int]:
        """Its sizes."""
        found: list[int] = self.data["shape"]
        return found

    @property
    def strides(self) -> list[int]:
        """Its strides: dense in `order`, outermost first, with a `step`; 0 where it is expanded,
        and 1 for the outermost dimension where its elements overlap."""
        strides = [0] * len(self.sizes)
        step = self.data.get("step", 1)
        order = self.data.get("order") or range(len(self.sizes))
        expanded = self.data.get("expanded", ())
        for d in reversed(list(order)):
            strides[d] = 0 if d in expanded else step
            step *= 1 if d in expanded else max(1, self.sizes[d])
        if self.data.get("overlapping") and self.sizes:
            strides[next(iter(order))] = 1
        return strides

    @property
    def offset(self) -> int:
        """Where in memory it begins."""
        found: int = self.data.get("offset", 0)
        return found

    @property
    def length(self) -> int:
        """How many elements its memory has."""
        if 0 in self.sizes:
            return self.offset
        reach = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        return self.offset + reach + 1 + self.data.get("behind", 0)

    @property
    def plain(self) -> bool:
        """Whether its memory in order is the tensor, but for its sizes."""
        dense = list(
            itertools.accumulate(self.sizes[:0:-1], lambda a, n: a * max(1, n), initial=1)
        )[::-1]
        same = 0 in self.sizes or not self.sizes or dense == self.strides
        return same and not self.offset and not self.data.get("behind")


def literal(x: Any) -> str:
    """A Python literal for a value of a case. `nan` and `inf` are names that the source has."""
    if isinstance(x, dict):
        (kind, value), *_ = x.items()
        if kind == "tensor":
            return f"t{value}"
        if kind == "complex":
            return f"complex({literal(value[0])}, {literal(value[1])})"
        if kind == "device":
            return "device"
        assert kind == "torch", x
        return f"torch.{value}"
    if isinstance(x, list):
        return f"[{', '.join(map(literal, x))}]"
    if isinstance(x, float) and math.isinf(x):
        return "inf" if x > 0 else "-inf"
    return "nan" if isinstance(x, float) and math.isnan(x) else repr(x)


class Case:
    """A call that can be run at three sizes."""

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    def op(self) -> str:
        """`aten.add.Tensor`."""
        found: str = self.data["op"]
        return found

    @property
    def mode(self) -> str:
        """How the device runs it."""
        found: str = self.data["mode"]
        return found

    def tensors(self, k: int) -> list[Tensor]:
        """What it is given, at the k-th size."""
        return [Tensor(t) for t in at_size(self.data["tensors"], k)]

    def parameters(self) -> list[Any]:
        """Whole numbers that are sizes and differ."""
        found: list[Any] = []

        def visit(x: Any) -> None:
            if isinstance(x, dict) and "sizes" in x:
                if x not in found:
                    found.append(x)
            elif isinstance(x, list):
                for y in x:
                    visit(y)

        visit(self.data["args"])
        visit(list(self.data["kwargs"].values()))
        return found

    def source(self, k: int = 0) -> str:
        """Two functions: `given(device)` makes the arguments at the k-th size, `compute` calls."""
        return f"{self._given(k)}\n\n\n{self._compute(k)}\n"

    def _function(self) -> str:
        """The op, whose overload may have a word of Python for its name."""
        packet, _, overload = self.op.rpartition(".")
        if iskeyword(overload):
            return f"getattr(torch.ops.{packet}, {overload!r})"
        return f"torch.ops.{self.op}"

    def _given(self, k: int) -> str:
        lines = ["def given(device):"]
        names = []
        made = self.data.get("before") == "made"
        for i, t in enumerate(self.tensors(k)):
            base = t.data.get("base")
            lines.append(f"    m{i} = " + (f"m{base}" if base is not None else _memory(t)))
            if made:
                names.append(f"m{i}")
                continue
            lines.append(f"    t{i} = {_view(t, f'm{i}')}")
            if t.data.get("grad"):
                lines.append(f"    t{i}.requires_grad_()")
            names.append(f"t{i}")
        names += [literal(at_size(p, k)) for p in self.parameters()]
        lines.append(f"    return [{', '.join(names)}]")
        return "\n".join(lines)

    def _compute(self, k: int) -> str:
        numbers = {json.dumps(p): f"n{i}" for i, p in enumerate(self.parameters())}

        def show(x: Any) -> str:
            if isinstance(x, dict) and "sizes" in x:
                return numbers[json.dumps(x)]
            if isinstance(x, list):
                return f"[{', '.join(map(show, x))}]"
            return literal(x)

        made = self.data.get("before") == "made"
        count = len(self.data["tensors"])
        letters = [f"{'m' if made else 't'}{i}" for i in range(count)]
        lines = [f"def compute(device, {', '.join([*letters, *numbers.values()])}):"]
        lines[0] = lines[0].replace("device, )", "device)")
        if made:
            for i, t in enumerate(self.tensors(k)):
                base = t.data.get("base")
                if base is None:
                    times = " * 1.1" if "float" in t.data["dtype"] else ""
                    lines.append(f"    m{i} = m{i}{times or '.clone()'}")
                else:
                    lines.append(f"    m{i} = m{base}")
                lines.append(f"    t{i} = {_view(t, f'm{i}')}")
        given = [show(a) for a in self.data["args"]]
        for name, a in self.data["kwargs"].items():
            by_name = f"**{{{name!r}: {show(a)}}}" if iskeyword(name) else f"{name}={show(a)}"
            given.append(by_name)
        lines.append(f"    got = {self._function()}({', '.join(given)})")
        kept = f"[{', '.join(f't{i}' for i in range(count))}]"
        lines.append(f"    return got, {kept}" if made else "    return got")
        return "\n".join(lines)


def _view(t: Tensor, memory: str) -> str:
    text = memory
    if not t.plain:
        text = f"{text}.as_strided({_tuple(t.sizes)}, {_tuple(t.strides)}, {t.offset})"
    elif len(t.sizes) != 1:
        text = f"{text}.view({_tuple(t.sizes)})"
    bits = t.data.get("bits")
    return {"conj": f"{text}.conj()", "neg": f"torch._neg_view({text})"}.get(bits or "", text)


def _tuple(numbers: Sequence[int]) -> str:
    return str(tuple(numbers))


def _memory(t: Tensor) -> str:
    palette: list[Any] = t.data["palette"]
    dtype = t.data["dtype"]
    there = "" if t.data.get("host") else ".to(device)"
    if t.length <= 12:
        times = t.data.get("times", 1)
        shown = [palette[i * times % len(palette)] for i in range(t.length)]
        return f"torch.tensor({literal(shown)}, dtype=torch.{dtype}){there}"
    if len(palette) == 1:
        return f"torch.full(({t.length},), {literal(palette[0])}, dtype=torch.{dtype}){there}"
    values = f"torch.tensor({literal(palette)}, dtype=torch.{dtype})"
    at = f"torch.arange({t.length})"
    if (times := t.data.get("times", 1)) != 1:
        at = f"{at} * {times}"
    # Few dtypes can be indexed on the CPU: all can be taken apart and joined.
    rows = f"{values}.view(torch.uint8).view({len(palette)}, -1)[{at} % {len(palette)}]"
    return f"{rows}.view(-1).view(torch.{dtype}){there}"
