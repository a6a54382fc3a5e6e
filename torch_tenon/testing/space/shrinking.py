"""Making a call that fails small: each thing is made simpler while it still fails alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch_tenon.testing.space.case import Data
from torch_tenon.testing.space.running import MODES

# Whether a call still fails in the same way.
Fails = Callable[[Data], bool]
_LAYOUT = ("order", "step", "offset", "behind", "expanded", "overlapping", "bits", "times", "grad")


def shrink(case: Data, fails: Fails, seconds: float, together: bool = False) -> Data:
    """A simpler call that fails as `case` does, found within about `seconds`. `together`: sizes
    change only wherever they are met, and dtypes stay, as for kernels that do not look at them."""
    best = copy.deepcopy(case)
    deadline = time.monotonic() + seconds
    tried: set[str] = set()
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(best):
            if together and _differs_apart(candidate, best):
                continue
            if time.monotonic() > deadline:
                return best
            text = repr(candidate)
            if text in tried:
                continue
            tried.add(text)
            if fails(candidate):
                best, smaller = candidate, True
                break
    return best


def _simpler(case: Data) -> Iterator[Data]:
    """Calls that are simpler by one thing, the largest steps first."""
    modes = list(MODES)
    for mode in modes[: modes.index(case["mode"])]:
        yield {**case, "mode": mode}
    if case["before"]:
        yield {**case, "before": None}
    yield from _of_sizes(case)
    for i, t in enumerate(case["tensors"]):
        for simple in _of_tensor(t):
            yield _with(case, ("tensors", i), simple)
    for name in case["kwargs"]:
        kept = {k: v for k, v in case["kwargs"].items() if k != name}
        yield {**case, "kwargs": kept}
    for i, x in enumerate(case["args"]):
        for simple in _of_argument(x):
            yield _with(case, ("args", i), simple)
    for name, x in case["kwargs"].items():
        for simple in _of_argument(x):
            yield _with(case, ("kwargs", name), simple)
    yield from _without_unused(case)


def _differs_apart(case: Data, before: Data) -> bool:
    """Whether some of the tensors have other sizes or dtypes, and others not all of theirs."""
    pairs = list(zip(case["tensors"], before["tensors"], strict=False))
    if len(case["tensors"]) != len(before["tensors"]) or len(case["args"]) != len(before["args"]):
        return True
    if any(a["dtype"] != b["dtype"] or len(a["shape"]) != len(b["shape"]) for a, b in pairs):
        return True
    changed: dict[int, int] = {}
    for a, b in pairs:
        for n, m in zip(a["shape"], b["shape"], strict=True):
            if changed.setdefault(_first(m), _first(n)) != _first(n):
                return True
    lists = [[len(x) for x in c["args"] if isinstance(x, list)] for c in (case, before)]
    return lists[0] != lists[1]


def _with(case: Data, path: tuple[Any, ...], value: Any) -> Data:
    changed = copy.deepcopy(case)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


def _first(size: Any) -> int:
    found: int = size["sizes"][0] if isinstance(size, dict) else size
    return found


def _of_sizes(case: Data) -> Iterator[Data]:
    """One size smaller wherever it is met, then in one place alone; one dimension less."""
    shapes = [t["shape"] for t in case["tensors"]]
    sizes = sorted({_first(n) for shape in shapes for n in shape}, reverse=True)
    for n in sizes:
        for m in (m for m in (1, 2, 3, 5, 9) if m < n):

            def replaced(x: Any, n: int = n, m: int = m) -> Any:
                if isinstance(x, dict) and "sizes" in x:
                    return _size(m) if x["sizes"][0] == n else x
                if isinstance(x, list):
                    return [replaced(y) for y in x]
                return x

            changed = copy.deepcopy(case)
            for t in changed["tensors"]:
                t["shape"] = [_size(m) if _first(k) == n else k for k in t["shape"]]
            changed["args"] = replaced(changed["args"])
            changed["kwargs"] = {k: replaced(v) for k, v in changed["kwargs"].items()}
            yield changed
    for i, shape in enumerate(shapes):
        for d, n in enumerate(shape):
            for m in (m for m in (1, 2) if m < _first(n)):
                yield _with(case, ("tensors", i, "shape", d), m)
    if all(len(shape) == len(shapes[0]) for shape in shapes):
        for d in range(len(shapes[0]) if shapes else 0):
            changed = copy.deepcopy(case)
            for t in changed["tensors"]:
                _drop(t, d)
            yield changed
    for i, shape in enumerate(shapes):
        for d in range(len(shape)):
            changed = copy.deepcopy(case)
            _drop(changed["tensors"][i], d)
            yield changed


def _size(n: int) -> Any:
    return n if n < 2 else {"sizes": [n, n + 2, 3 * n + 1]}


def _drop(t: Data, d: int) -> None:
    """Takes a dimension out of a tensor, and out of what its layout says."""
    t["shape"].pop(d)
    for name in ("order", "expanded"):
        if name in t:
            t[name] = [k - (k > d) for k in t[name] if k != d]


def _of_tensor(t: Data) -> Iterator[Data]:
    plain = {k: v for k, v in t.items() if k not in _LAYOUT}
    yield plain
    for name in _LAYOUT:
        if t.get(name):
            yield {k: v for k, v in t.items() if k != name}
    for n in t["shape"]:
        if isinstance(n, dict):
            yield {**t, "shape": [_first(k) for k in t["shape"]]}
            break
    palette = t["palette"]
    if isinstance(palette, dict):  # numbers of each size
        yield {**t, "palette": palette["sizes"][0]}
        return
    if len(palette) > 1:
        for k in range(len(palette)):
            yield {**t, "palette": [palette[k]]}
        for k in range(len(palette)):
            yield {**t, "palette": palette[:k] + palette[k + 1 :]}
    for simple in (1.0, 0.0) if "float" in t["dtype"] else (1, 0) if "int" in t["dtype"] else ():
        for k, x in enumerate(palette):
            if x != simple and x not in (0, 1):
                yield {**t, "palette": [*palette[:k], simple, *palette[k + 1 :]]}
    if t["dtype"] not in ("float32", "int64", "bool") and not isinstance(palette[0], dict):
        for dtype in ("float32", "int64"):
            whole = all(isinstance(x, int) for x in palette)
            if whole or dtype == "float32":
                yield {**t, "dtype": dtype}


def _of_argument(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        if "complex" in x:
            yield x["complex"][0]
        return
    if isinstance(x, list):
        if len(x) > 1:
            for k in range(len(x)):
                yield x[:k] + x[k + 1 :]
        for k, y in enumerate(x):
            for simple in _of_argument(y):
                yield [*x[:k], simple, *x[k + 1 :]]
        return
    if isinstance(x, bool) or x is None or isinstance(x, str):
        if x is True:
            yield False
        return
    simpler = (0, 1, 2) if isinstance(x, int) else (0.0, 1.0, 2.0, int(x) if abs(x) < 1e9 else 1.0)
    for y in simpler:
        if type(y) is type(x) and y == x:
            return
        yield y


def _without_unused(case: Data) -> Iterator[Data]:
    """Without the tensors that nothing refers to."""
    used: list[int] = []

    def visit(x: Any) -> None:
        if isinstance(x, dict) and "tensor" in x:
            used.append(x["tensor"])
        elif isinstance(x, list):
            for y in x:
                visit(y)

    visit([case["args"], list(case["kwargs"].values())])
    unused = [i for i in range(len(case["tensors"])) if i not in used]
    if not unused or any("base" in t for t in case["tensors"]):
        return
    kept = [i for i in range(len(case["tensors"])) if i in used]

    def renumbered(x: Any) -> Any:
        if isinstance(x, dict) and "tensor" in x:
            return {"tensor": kept.index(x["tensor"])}
        return [renumbered(y) for y in x] if isinstance(x, list) else x

    yield {
        **case,
        "tensors": [case["tensors"][i] for i in kept],
        "args": renumbered(case["args"]),
        "kwargs": {k: renumbered(v) for k, v in case["kwargs"].items()},
    }
