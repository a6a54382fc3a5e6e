"""Windows on their own: run by reference and by plan outside of the engine, kept in files.

A window is what `frontends/eager.py` describes, with the contents of its slots. `TENON_EXECUTE=
verify` hands over those whose plan and reference disagree; `find` names the first op whose result
differs, `save` and `load` keep a window as JSON: names, numbers and bytes, and no code.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_tenon import device
from torch_tenon.builder.planning import make_plan
from torch_tenon.frontends.eager import IN_FLOAT32
from torch_tenon.ops import variants
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.testing.fuzz.compare import NOISY_RUNS, compare_tensors, noise
from torch_tenon.testing.fuzz.program import Perturb

FORMAT = "tenon window 1"
_DIGITS = 256  # units in the last place of the largest number, by which sums may differ
Memory = list[torch.Tensor]  # for each slot its bytes


@dataclass
class Window:
    """Calls and slots as the core describes them, the slots' contents and the run-time numbers
    (the bits of a float64 or an int64, as integers)."""

    calls: list[Any]
    slots: list[tuple[int, bool, bool, bool]]  # bytes, made here, outlives it, written
    contents: list[bytes]
    numbers: list[int]

    def memory(self) -> Memory:
        """The slots' memory at the start; what was made in the window begins with zeros."""
        made = []
        for (nbytes, *_), data in zip(self.slots, self.contents, strict=True):
            held = bytearray(data) if data else bytearray(nbytes)
            made.append(torch.frombuffer(held, dtype=torch.uint8) if held else torch.empty(0))
        return made


class NotAWindow(ValueError):
    """A file that `save` did not write, or that was changed since."""


@dataclass
class Difference:
    """A slot that a plan leaves other than the reference."""

    call: int  # the one that wrote it last
    op: str
    slot: int
    text: str


# Running


def _tensors(x: Any) -> list[Any]:
    if x is None or x[0] in ("constant", "number", "argument"):
        return []
    return [x] if x[0] == "tensor" else [t for y in x[1] for t in _tensors(y)]


def _view(memory: Memory, t: Sequence[Any]) -> torch.Tensor:
    _, slot, dtype, sizes, strides, offset = t
    return torch.empty(0, dtype=dtype).set_(memory[slot].untyped_storage(), offset, sizes, strides)


def _written(call: Sequence[Any]) -> list[Any]:
    """The tensors that a call writes: results and arguments."""
    name, _, arguments, results = call
    schema = variants.overload(name)._schema.arguments
    given = [x for a, x in zip(schema, arguments, strict=True) if variants.is_written(a)]
    return [t for x in [*results, *given] for t in _tensors(x)]


def _given(window: Window) -> dict[int, Any]:
    """By slot, the first tensor in it that a call reads before any has written there."""
    found: dict[int, Any] = {}
    written: set[int] = set()
    for call in window.calls:
        for t in (t for x in call[2] for t in _tensors(x)):
            if t[1] not in written:
                found.setdefault(t[1], t)
        written |= {t[1] for t in _written(call)}
    return found


def written_text(call: Sequence[Any]) -> str:
    """In words what a call writes."""
    return ", ".join(f"{str(t[2])[6:]} {list(t[3])} in slot {t[1]}" for t in _written(call))


def run_by_reference(
    window: Window, perturb: Perturb | None = None, perturbs_given: bool = False
) -> Memory:
    """Runs the calls one by one with PyTorch's CPU kernels; `perturb` sees what each wrote, and
    where `perturbs_given` what they are given as well."""
    memory = window.memory()
    if perturb is not None and perturbs_given:
        for t in _given(window).values():
            perturb(_view(memory, t), False)

    def value(x: Any) -> Any:
        if x[0] == "tensor":
            return _view(memory, x)
        if x[0] == "list":
            return [value(y) for y in x[1]]
        if x[0] == "number":
            _, place, dtype, wrapped, real = x
            bits = window.numbers[place]
            number = struct.unpack("d", struct.pack("q", bits))[0] if real else bits
            number = bool(number) if dtype is torch.bool else number
            return number if wrapped else torch.tensor(number, dtype=dtype)
        return torch.device("cpu") if isinstance(x[1], torch.device) else x[1]

    with torch.no_grad():
        for call in window.calls:
            name, _, arguments, results = call
            op = variants.overload(name)
            positional, keywords = [], {}
            for a, x in zip(op._schema.arguments, arguments, strict=True):
                if a.kwarg_only:
                    keywords[a.name] = value(x)
                else:
                    positional.append(value(x))
            got = op(*positional, **keywords)
            answers = got if len(op._schema.returns) > 1 else [got]
            for r, answer in zip(results, answers, strict=False):
                made = answer if isinstance(answer, list | tuple) else [answer]
                for t, one in zip(_tensors(r), made, strict=False):
                    if math.prod(t[3]):
                        _view(memory, t).copy_(one)
            if perturb is not None:
                for t in _written(call):
                    perturb(_view(memory, t), False)
    return memory


def run_by_plan(window: Window) -> Memory:
    """Compiles the window and runs it, on a target with memory of its own on copies; raises
    CannotLower for what has no plan."""
    plan, built, _ = make_plan((0, window.calls, window.slots))
    memory = window.memory()
    numbers = torch.tensor(window.numbers, dtype=torch.int64)
    narrow = numbers.view(torch.float64).float()

    def address(k: int) -> int:
        if k >= 0:
            return memory[k].data_ptr()
        place = -1 - k
        return (numbers[place] if place < IN_FLOAT32 else narrow[place - IN_FLOAT32]).data_ptr()

    inputs = [address(k) for k in built.inputs]
    outputs = [memory[k].data_ptr() for k in built.outputs]
    written = [n for n, k in enumerate(built.inputs) if k >= 0 and window.slots[k][3]]
    where = torch.device("cpu" if device.target().host_memory else "tenon")
    plan.native(()).run_in_place(inputs, outputs, where, written)
    return memory


# Comparing


def compare(window: Window, by_plan: Memory, by_reference: Memory) -> list[Difference]:
    """The slots that outlive the window and differ by more than rounding, the first written
    first."""
    last: dict[int, tuple[int, Any]] = {}
    for k, call in enumerate(window.calls):
        for t in _written(call):
            last[t[1]] = (k, t)
    unequal = [
        n for n in last if window.slots[n][2] and not torch.equal(by_plan[n], by_reference[n])
    ]
    if not unequal:
        return []
    noisy = [run_by_reference(window, noise(seed)) for seed in range(NOISY_RUNS)]
    found = []
    for n in sorted(unequal, key=lambda n: last[n][0]):
        k, t = last[n]
        want, got, *others = (m[n].view(t[2]) for m in (by_reference, by_plan, *noisy))
        text = compare_tensors(want, got, others)
        if text is not None and not _is_rounding(window, n, want, got):
            found.append(Difference(k, window.calls[k][0], n, text))
    return found


def _is_rounding(window: Window, slot: int, want: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether a difference is one that rounding of what the window is given makes as well: a sum
    may be far smaller than what is added, whose digits set its own. It has to be small beside
    that: a choice that the last digit decides is none of these."""
    if not want.is_floating_point():
        return False
    seeds = range(1, 2 * NOISY_RUNS, 2)  # of one unit in the last place
    noisy = [run_by_reference(window, noise(s), perturbs_given=True) for s in seeds]
    if compare_tensors(want, got, [m[slot].view(want.dtype) for m in noisy]) is not None:
        return False
    memory = window.memory()
    seen = [_view(memory, t) for t in _given(window).values() if t[2].is_floating_point]
    scales = [x.double().nan_to_num(0, 0, 0).abs().max() for x in (want, *seen) if x.numel()]
    difference = (want.double() - got.double()).abs().nan_to_num(0, 0, 0)
    return bool((difference <= _DIGITS * torch.finfo(want.dtype).eps * max(scales)).all())


def disagree(window: Window) -> list[Difference]:
    """Runs the window both ways and compares."""
    try:
        by_plan = run_by_plan(window)
    except (CannotLower, NotImplementedError):
        return []  # it would run by reference
    return compare(window, by_plan, run_by_reference(window))


def find(window: Window, differences: list[Difference]) -> tuple[Window, Difference]:
    """The first op whose result differs, and the smallest window found that shows it.

    Each op on the way to what differs is tried as the last one of a window of its own, with all
    that its result needs and nothing else. Where none of these differs, only all of them together
    do, and the answer is the first difference of the whole.
    """
    first = differences[0]
    needed = _needed(window, {first.slot}, first.call)
    for k in needed:
        results = {t[1] for t in _written(window.calls[k])}
        part = _part(window, [n for n in _needed(window, results, k) if n <= k], results)
        found = disagree(part)
        if found:
            return part, found[0]
    alone = _part(window, needed, {first.slot})
    found = disagree(alone)
    return (alone, found[0]) if found else (window, first)


def _needed(window: Window, slots: set[int], last: int) -> list[int]:
    """The calls up to `last` that what is in `slots` then depends on, in order."""
    found: list[int] = []
    wanted = set(slots)
    for k in range(last, -1, -1):
        call = window.calls[k]
        if any(t[1] in wanted for t in _written(call)):
            found.append(k)
            wanted |= {t[1] for x in call[2] for t in _tensors(x)}
    return found[::-1]


def _part(window: Window, calls: Sequence[int], results: set[int]) -> Window:
    """A window of some of the calls, of which `results` outlive it; slots keep their numbers."""
    kept = [window.calls[k] for k in calls]
    used = {t[1] for c in kept for x in [*c[2], *c[3]] for t in _tensors(x)}
    written = {t[1] for c in kept for t in _written(c)}
    slots, contents = [], []
    for n, (nbytes, fresh, alive, _) in enumerate(window.slots):
        if n not in used:
            slots.append((0, True, False, False))
            contents.append(b"")
            continue
        slots.append((nbytes, fresh, (n in results) if fresh else alive, n in written))
        contents.append(window.contents[n])
    return replace(window, calls=kept, slots=slots, contents=contents)


# Files


def _plain(x: Any) -> Any:
    if isinstance(x, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(x).removeprefix("torch.")}
    if isinstance(x, torch.device):
        return {"device": str(x)}
    if isinstance(x, complex):
        return {"complex": [x.real, x.imag]}
    if isinstance(x, torch.Tensor):
        return {"tensor": _plain(x.item()), "dtype": _plain(x.dtype)}
    if isinstance(x, list | tuple):
        return [_plain(y) for y in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise TypeError(f"a window's file cannot hold {x!r}")


def _value(x: Any) -> Any:
    if isinstance(x, list):
        return [_value(y) for y in x]
    if not isinstance(x, dict):
        return x
    if "torch" in x:
        found = getattr(torch, str(x["torch"]), None)
        if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
            raise NotAWindow(f"{x['torch']!r} is no dtype, layout or memory format")
        return found
    if "device" in x:
        return torch.device(x["device"])
    if "tensor" in x:
        return torch.tensor(_value(x["tensor"]), dtype=_value(x["dtype"]))
    return complex(*x["complex"])


def save(window: Window, path: Path, difference: Difference | None = None) -> None:
    """Writes a window, and what differs in it, as JSON."""
    data = {
        "format": FORMAT,
        "torch": torch.__version__,
        "difference": None if difference is None else vars(difference),
        "calls": _plain(window.calls),
        "slots": _plain(window.slots),
        "numbers": window.numbers,
        "contents": [base64.b64encode(zlib.compress(c)).decode() for c in window.contents],
    }
    path.write_text(json.dumps(data))


def load(path: Path) -> Window:
    """Reads what `save` wrote. Raises NotAWindow for anything else: ops that do not exist or that
    touch files, tensors beyond their memory."""
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise NotAWindow(f"its format is {data['format']!r}, not {FORMAT!r}")
        contents = [_unpacked(c) for c in data["contents"]]
        slots = [(int(s[0]), bool(s[1]), bool(s[2]), bool(s[3])) for s in data["slots"]]
        window = Window(_value(data["calls"]), slots, contents, [int(n) for n in data["numbers"]])
        _check(window)
    except (KeyError, IndexError, TypeError, AttributeError, zlib.error, ValueError) as error:
        raise NotAWindow(f"{path} is no window: {error}") from error
    return window


_MOST_BYTES = 1 << 32


def _unpacked(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b64decode(text), _MOST_BYTES)


def _check(window: Window) -> None:
    if len(window.slots) != len(window.contents):
        raise NotAWindow("not every slot has contents")
    for (nbytes, *_), data in zip(window.slots, window.contents, strict=True):
        if not 0 <= nbytes <= _MOST_BYTES or len(data) not in (0, nbytes):
            raise NotAWindow("a slot's contents are not of its size")
    for name, _, arguments, results in window.calls:
        op = variants.overload(name)
        if "file" in name or len(op._schema.arguments) != len(arguments):
            raise NotAWindow(f"a call of {name}")
        for t in [t for x in [*arguments, *results] for t in _tensors(x)]:
            _, slot, dtype, sizes, strides, offset = t
            if min([*sizes, *strides, offset, slot, 0]) < 0 or len(sizes) != len(strides):
                raise NotAWindow(f"a tensor of sizes {sizes} and strides {strides}")
            last = offset + sum((n - 1) * k for n, k in zip(sizes, strides, strict=True))
            if math.prod(sizes) and (last + 1) * dtype.itemsize > window.slots[slot][0]:
                raise NotAWindow(f"a tensor of {dtype} {sizes} beyond its memory")
