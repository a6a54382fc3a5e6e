"""Custom ops that write their arguments, recorded, by plan and in compiled graphs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor
from turns import MODES, turns

NAMESPACE = "tenon_writes"


def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


def bump(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * 2 + y


def swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    held = x.clone()
    x.copy_(y)
    y.copy_(held)
    return x + y, x - y


def scale_each(xs: Sequence[Tensor], factor: float) -> None:
    for x in xs:
        x.mul_(factor)


def raised(x: Tensor) -> Tensor:
    return x.add_(3)


OPS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "scale_": ("(Tensor(a!) x, float factor) -> ()", scale_, lambda x, factor: None),
    "bump": ("(Tensor(a!) x, Tensor y) -> Tensor", bump, lambda x, y: torch.empty_like(x)),
    "swap": (
        "(Tensor(a!) x, Tensor(b!) y) -> (Tensor, Tensor)",
        swap,
        lambda x, y: (torch.empty_like(x), torch.empty_like(x)),
    ),
    "scale_each": ("(Tensor(a!)[] xs, float factor) -> ()", scale_each, lambda xs, factor: None),
    "raised": ("(Tensor(a!) x) -> Tensor(a!)", raised, lambda x: x),
}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[torch.library.Library]:
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, (schema, kernel, fake) in OPS.items():
        library.define(name + schema)
        library.impl(name, kernel, "CPU")
        library.impl(name, fake, "Meta")
        torch_tenon_records(name)
    yield library
    library._destroy()


def torch_tenon_records(name: str) -> None:
    """Has the device record an op that came after it."""
    from torch_tenon import _C

    _C.record_op(f"{NAMESPACE}::{name}", "")


def whole(x: Tensor, y: Tensor, big: Tensor) -> list[Tensor]:
    """What was computed and never stored is written, and what is read of it stays what it was."""
    ops = torch.ops.tenon_writes
    x = x * 2
    before = x + 1
    ops.scale_(x, 3.0)
    seen = [x * 1 + before]
    seen.append(ops.bump(x, y) * 2)
    p, q = ops.swap(big[: x.shape[0]], y)
    return [*seen, p, q + 1, big * 1, y * 1, x]


def through_views(x: Tensor, y: Tensor, big: Tensor) -> list[Tensor]:
    ops = torch.ops.tenon_writes
    ops.scale_(x.t()[1:3], 0.5)
    first = ops.bump(x[2:4], y[0:2])
    second = ops.bump(x[2:4], x[2:4].t().reshape(2, -1))  # a copy of what is written
    ops.scale_each([x[0], x[1], big[3]], 2.0)
    ops.scale_(y[:0], 2.0)
    return [first, second, x + 0, big + x.sum()]


def twice_the_same(x: Tensor, y: Tensor, big: Tensor) -> list[Tensor]:
    """The kernel writes what it also reads, through another argument."""
    ops = torch.ops.tenon_writes
    first = ops.bump(x[2:4], x[0:2])
    return [first, ops.bump(x, x), x + y]


def returned(x: Tensor, y: Tensor, big: Tensor) -> list[Tensor]:
    ops = torch.ops.tenon_writes
    z = ops.raised(y[1:])
    return [z * 2, y + 0, ops.raised(big) + 1]


PROGRAMS = {f.__name__: f for f in (whole, through_views, twice_the_same, returned)}


def inputs(rows: int) -> list[Tensor]:
    return [torch.randn(rows, 5), torch.randn(rows, 5), torch.randn(rows + 6, 5)]


def agree(program: Callable[..., list[Tensor]], expected: Any, rows: int) -> None:
    given = inputs(rows)
    there = [x.to("tenon") for x in given]
    assert_same(program(*there), expected(*given), rtol=1e-5, atol=1e-5)
    assert_same(there, given, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_code(name: str, mode: str) -> None:
    with executing(mode):
        for _ in turns(5):
            agree(PROGRAMS[name], PROGRAMS[name], 6)


def test_windows_with_them_run_by_plan() -> None:
    from torch_tenon.builder.counts import plan_counts

    for _ in turns(4):
        before = plan_counts()["hits"]
        agree(whole, whole, 7)
    assert plan_counts()["hits"] > before


# Where a kernel reads what it writes through another argument, tracing makes two tensors of it.
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", ("whole", "through_views"))
def test_compiled_graphs(name: str, dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="tenon", dynamic=dynamic)
    for rows in (6, 7, 9) if dynamic else (6, 6):
        agree(compiled, PROGRAMS[name], rows)
    assert "runs by reference" not in caplog.text


def append(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    torch.ops.tenon_writes.scale_(cache[1:3], 2.0)
    y = torch.ops.tenon_writes.bump(cache, new)
    return cache.sum(0), y


def append_and_read_old(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    old = cache + 1
    torch.ops.tenon_writes.bump(cache, new)
    return old * cache, old


@pytest.mark.parametrize("function", (append, append_and_read_old))
def test_an_input_is_written_where_it_lies(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon")
    cache, new = torch.randn(64, 1024), torch.randn(64, 1024)
    there, new_there = cache.to("tenon"), new.to("tenon")
    for _ in range(3):
        expected, found = function(cache, new), compiled(there, new_there)
        assert_same(found, expected, rtol=1e-4, atol=1e-4)
        assert_same(there, cache, rtol=1e-4, atol=1e-4)
