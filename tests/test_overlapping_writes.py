"""Writes through views whose elements share memory, and between parts of one tensor.

PyTorch says for a few of these what they give and leaves the others open. Nothing is lost, though,
and what runs by a plan gives what PyTorch's kernels give.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same, executing, same_error_on_both
from torch import Tensor
from turns import MODES, turns

import torch_tenon
from torch_tenon.builder.counts import plan_counts

pytestmark = pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")

View = Callable[[Tensor], Tensor]
# Of a base of n rows and three columns, with n rows and three columns.
VIEWS: dict[str, View] = {
    "expanded_rows": lambda b: b[:1].expand(b.shape[0], 3),
    "expanded_columns": lambda b: b[:, 1:2].expand(b.shape[0], 3),
    "unfolded": lambda b: b.view(-1).unfold(0, 3, 1)[: b.shape[0]],
    "strided": lambda b: b.as_strided(b.shape, (2, 1), 1),
}


def at(x: Tensor, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=x.device)


def mask(x: Tensor) -> Tensor:
    return at(x, 0, 1, 1).bool()[None] & (torch.arange(x.shape[0], device=x.device) < 2)[:, None]


def assign_where(x: Tensor) -> None:
    x[mask(x)] = 5.0


def assign_column(x: Tensor) -> None:
    x[:, 1] = 5.0


def assign_at(x: Tensor) -> None:
    x[:, at(x, 0, 2)] = at(x, 5, 6).to(x.dtype)


# These write an element of memory several times, or one of several times that it is shown.
WRITES: dict[str, Callable[[Tensor], object]] = {
    "index_fill": lambda x: x.index_fill_(1, at(x, 1), 5.0),
    "index_fill_row": lambda x: x.index_fill_(0, at(x, 1), 5.0),
    "masked_fill": lambda x: x.masked_fill_(mask(x), 5.0),
    "masked_fill_tensor": lambda x: x.masked_fill_(mask(x), at(x, 5).to(x.dtype)[0]),
    "masked_scatter": lambda x: x.masked_scatter_(mask(x), x.new_ones(x.shape)),
    "assign_where": assign_where,
    "assign_column": assign_column,
    "assign_at": assign_at,
    "index_put": lambda x: x.index_put_((at(x, 0, 1), at(x, 1, 2)), x.new_full((2,), 7.0)),
    "index_put_added": lambda x: x.index_put_((at(x, 0, 1), at(x, 2, 1)), x.new_ones(2), True),
    "index_copy": lambda x: x.index_copy_(1, at(x, 2), x.new_full((x.shape[0], 1), 4.0)),
    "index_add": lambda x: x.index_add_(1, at(x, 1), x.new_ones(x.shape[0], 1)),
    "scatter": lambda x: x.scatter_(1, at(x, 1, 2)[None], 8.0),
    "scatter_add": lambda x: x.scatter_add_(1, at(x, 1, 1)[None], x.new_ones(1, 2)),
    "scatter_reduce": lambda x: x.scatter_reduce_(1, at(x, 1, 0)[None], x.new_ones(1, 2), "amax"),
    "put": lambda x: x.put_(at(x, 1, 4), x.new_ones(2), True),
    "fill_column": lambda x: x[:, 1].fill_(3.0),
    "fill": lambda x: x.fill_(3.0),
    "add": lambda x: x.add_(1.0),
    "mul": lambda x: x.mul_(x.new_full((3,), 2.0)),
    "copy": lambda x: x.copy_(torch.arange(x.numel(), device=x.device).view(x.shape)),
    "copy_of_itself": lambda x: x.copy_(x.as_strided(x.shape, x.stride(), x.storage_offset())),
    "foreach": lambda x: torch._foreach_add_([x], 2.0),
    "foreach_numbers": lambda x: torch._foreach_mul_([x, x.new_ones(2)], [3, 0.5]),
    "foreach_whole_numbers": lambda x: torch._foreach_addcdiv_([x], [x + 1], [x + 1], [2]),
    "out": lambda x: torch.mul(x.new_ones(x.shape), 2.0, out=x),
    "product": lambda x: x.addmm_(x.new_ones(x.shape[0], 2), x.new_ones(2, 3)),
}


def raises(view: str, write: str) -> bool:
    """Whether PyTorch refuses it."""
    try:
        WRITES[write](VIEWS[view](torch.zeros(4, 3)))
    except RuntimeError:
        return True
    return False


def written(x: Tensor, view: str) -> list[Tensor]:
    """What each write leaves, also of memory that was not computed yet, and what was read of the
    memory before."""
    found = []
    for name, write in WRITES.items():
        if not raises(view, name):
            base = x * 2
            before = base + 1
            write(VIEWS[view](base))
            found += [base, before, base.sum(0)]
    return found


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_lost(view: str, mode: str) -> None:
    hits = plan_counts()["hits"]
    with executing(mode):
        for _ in turns(4):
            x = torch.randn(4, 3)
            assert_same(written(x.to("tenon"), view), written(x, view), rtol=1e-5, atol=1e-5)
    # Whether windows as short as these are worth plans is decided by measured times.
    if mode == "compiled" and torch_tenon.target().backend is not None:
        assert plan_counts()["hits"] > hits


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_lost_at_any_size(view: str) -> None:
    for rows in (4, 5, 6, 7, 9):
        for _ in turns(2):
            x = torch.randn(rows, 3)
            assert_same(written(x.to("tenon"), view), written(x, view), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("view", VIEWS)
def test_what_pytorch_refuses_is_refused_each_time(view: str) -> None:
    refused = [name for name in WRITES if raises(view, name)]
    assert refused or view in ("unfolded", "strided")
    for _ in turns(3):
        for name in refused:
            same_error_on_both(lambda d, w=WRITES[name]: w(VIEWS[view](torch.zeros(4, 3).to(d))))


def in_place_add(x: Tensor) -> None:
    x[1:] += x[:-1]


def assign_rows(x: Tensor) -> None:
    x[1:] = x[:-1]


def assign_rows_at(x: Tensor) -> None:
    x[at(x, 2, 1)] = x[1:3]


BETWEEN_PARTS: dict[str, Callable[[Tensor], object]] = {
    "copy": lambda x: x[1:].copy_(x[:-1]),
    "copy back": lambda x: x[:-1].copy_(x[1:]),
    "copy of a row": lambda x: x.view(-1)[2:].copy_(x.view(-1)[:-2]),
    "copy turned": lambda x: x[:3].copy_(x[:3].t()),
    "copy of bits": lambda x: x.view(torch.int32)[1:].copy_(x.view(torch.int32)[:-1]),
    "copy converted": lambda x: x[1:].copy_(x.view(torch.int32)[:-1]),
    "assignment": assign_rows,
    "assignment at": assign_rows_at,
    "add": in_place_add,
    "mul": lambda x: x[:2].mul_(x[1:3]),
    "out": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "index_add": lambda x: x.index_add_(0, at(x, 0), x[1:2]),
    "index_copy": lambda x: x.index_copy_(0, at(x, 0), x[1:2]),
    "scatter": lambda x: x.scatter_(0, at(x, 1, 2, 0)[None], x[:1]),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("mode", [*MODES, "direct"])
@pytest.mark.parametrize("name", BETWEEN_PARTS)
def test_what_pytorch_refuses_between_parts_is_refused_each_time(name: str, mode: str) -> None:
    with executing(mode):
        for rows in (4, 4, 4, 5, 6, 7):
            x = torch.arange(3.0 * rows).view(rows, 3)
            there = x.to("tenon")
            same_error_on_both(lambda d, t=(x, there): BETWEEN_PARTS[name](t[d.type != "cpu"]))
            assert_same(there, x)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BETWEEN_PARTS)
def test_what_pytorch_refuses_between_parts_is_refused_compiled(name: str, dynamic: bool) -> None:
    def compute(x: Tensor) -> Tensor:
        x = x * 2
        BETWEEN_PARTS[name](x)
        return x + 1

    torch._dynamo.reset()
    compiled = torch.compile(compute, backend="tenon", dynamic=dynamic)
    for rows in (4, 5):
        with pytest.raises(RuntimeError) as on_cpu:
            compute(torch.ones(rows, 3))
        with pytest.raises(RuntimeError) as on_device:
            compiled(torch.ones(rows, 3, device="tenon")).cpu()
        assert str(on_device.value) == str(on_cpu.value)


def shifted(x: Tensor) -> list[Tensor]:
    """What PyTorch defines: the same elements are read and written, or different ones."""
    y, z, products = x * 2, x + 1, x[:3].clone()
    y.add_(y)
    y[::2] += y[1::2]
    y[:, 0] = y[:, 2]
    torch.cumsum(z, 0, out=z)
    torch.exp(z[:1], out=z[1:2])
    products.copy_(products.t().clone())
    torch.sub(products, 1, out=products)
    return [y, z, products]


@pytest.mark.parametrize("mode", MODES)
def test_what_pytorch_defines_between_parts(mode: str) -> None:
    with executing(mode):
        for _ in turns(4):
            x = torch.randn(4, 3)
            assert_same(shifted(x.to("tenon")), shifted(x), rtol=1e-5, atol=1e-5)


def column_of_expanded(b: Tensor, i: Tensor) -> Tensor:
    """The elements that are written are not shared; those of the tensor that they are a view of."""
    x = b[:, None].expand(-1, 3)
    x.select(1, 2).add_(i.sum())
    return x * 1


def window_of(b: Tensor, i: Tensor) -> Tensor:
    b = b * 2
    b.unfold(0, 2, 1).index_fill_(1, i, 5.0)
    return b * 1


def filled(b: Tensor, i: Tensor) -> Tensor:
    x = b[:, None].expand(-1, 3)
    return x.index_fill_(1, i, 5.0) + 1


def put(b: Tensor, i: Tensor) -> Tensor:
    x = b[:, None].expand(-1, 3)
    x[:, i] = 3.0
    return b + 1


def not_shared(b: Tensor, i: Tensor) -> Tensor:
    """Reading elements that share memory is nothing special."""
    y = b * 2
    y.add_(b[:1].expand(4))
    return y.index_fill_(0, i, 5.0) * b[:, None].expand(-1, 3).sum(1)


IN_COMPILED: dict[str, Callable[[Tensor], object]] = {
    **WRITES,
    "function": lambda x: F.relu(x, True),
    "function of a name": lambda x: F.leaky_relu(x, inplace=True),
    "dropout": lambda x: F.dropout(x, 0.0, True, True),
    "statistics": lambda x: F.batch_norm(x.new_ones(2, 3), x[0], x[1] * 0, training=True),
    "method": lambda x: x.__iadd__(1),
    "item": lambda x: x.__setitem__(slice(0, 2), 1.0),
    "attribute": lambda x: torch.Tensor.add_(x, 1.0),
    "overload": lambda x: torch.ops.aten.add_.Tensor(x, x.new_ones(3)),
    "lists": lambda x: torch._foreach_mul_([x, x * 2], 2.0),
    "clamp": lambda x: torch.clamp(x, 0, 1, out=x),
    "random": lambda x: x.bernoulli_(1.0),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", IN_COMPILED)
def test_writes_to_shared_elements_compiled(view: str, name: str) -> None:
    """What PyTorch refuses is refused, and all else computed as by eager code; but for what its own
    trace refuses, whatever the backend."""

    def compute(b: Tensor) -> Tensor:
        b = b * 2
        IN_COMPILED[name](VIEWS[view](b))
        return b + 1

    torch._dynamo.reset()
    compiled = torch.compile(compute, backend="tenon")
    x = torch.arange(12.0).view(4, 3) - 3
    try:
        want = compute(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            compiled(x.to("tenon")).cpu()
        return
    try:
        got = compiled(x.to("tenon"))
    except RuntimeError:
        torch._dynamo.reset()
        with pytest.raises(RuntimeError):
            torch.compile(compute, backend="aot_eager")(x)
    else:
        assert_same(got, want)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [filled, put, window_of, column_of_expanded, not_shared])
def test_compiled(
    function: Callable[[Tensor, Tensor], Tensor], dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon", dynamic=dynamic)
    for _ in range(3):
        cpu, i = torch.randn(4), torch.tensor([1])
        base = cpu.to("tenon")
        assert_same(compiled(base, i.to("tenon")), function(cpu, i))
        assert_same(base, cpu)
    assert ("runs as eager code" in caplog.text) == (function is not not_shared)


LISTS: dict[str, tuple[bool, Callable[[Tensor, Tensor], Any]]] = {
    "two that swap": (True, lambda x, y: torch._foreach_add_([x, y], [y, x])),
    "rows that swap": (True, lambda x, y: torch._foreach_mul_([x[0], x[1]], [x[1], x[0]])),
    "the next row": (True, lambda x, y: torch._foreach_sub_(x[:-1].unbind(), x[1:].unbind())),
    "the row before": (True, lambda x, y: torch._foreach_sub_(x[1:].unbind(), x[:-1].unbind())),
    "twice in a list": (True, lambda x, y: torch._foreach_mul_([x, x], [x * 2, y])),
    "a view in a list": (True, lambda x, y: torch._foreach_mul_([x, x[1]], [y, y[0]])),
    "a third list": (True, lambda x, y: torch._foreach_addcmul_([x, y], [y, y], [y + 1, x])),
    "a number": (False, lambda x, y: torch._foreach_mul_([x[0], x[1]], x[0, 0] * 1)),
    "copies": (True, lambda x, y: torch._foreach_copy_([x[0], x[1]], [x[1], x[0]])),
    "rows of one": (False, lambda x, y: torch._foreach_mul_(x.unbind(), y.unbind())),
    "each by itself": (False, lambda x, y: torch._foreach_add_([x, y], [x, y])),
    "one that is read twice": (False, lambda x, y: torch._foreach_add_(x.unbind(), [y[0]] * 4)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LISTS)
def test_lists_in_compiled_code(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each tensor of a list is computed of what those before it have become."""
    meets, change = LISTS[name]

    def compute(x: Tensor, y: Tensor) -> list[Tensor]:
        x, y = x * 2, y + 1
        change(x, y)
        return [x * 1, y * 1]

    torch._dynamo.reset()
    given = torch.randn(4, 3), torch.randn(4, 3)
    compiled = torch.compile(compute, backend="tenon")
    got = compiled(*(t.to("tenon") for t in given))
    assert_same(got, compute(*given), rtol=1e-6, atol=1e-6)
    assert ("runs as eager code" in caplog.text) == meets


# Of 64 numbers and a size: at some sizes what is written meets what is read, or itself.
AT_SOME_SIZES: dict[str, Callable[[Tensor, int], object]] = {
    "longer": lambda x, n: x[6 : 6 + n].add_(x[:n]),
    "further": lambda x, n: x[n : n + 6].mul_(x[:6]),
    "copy": lambda x, n: x[6 : 6 + n].copy_(x[:n]),
    "index_add": lambda x, n: x[:n].index_add_(0, torch.arange(n, device=x.device), x[6 : 6 + n]),
    "columns": lambda x, n: x.as_strided((3, n), (6, 1)).mul_(2),
    "own columns": lambda x, n: x.as_strided((3, n), (6, 1)).copy_(
        x.as_strided((3, n), (6, 1)) + 1
    ),
    "step": lambda x, n: x.as_strided((4, 6), (n, 1)).copy_(x.as_strided((4, 6), (n, 1)) * 2),
    "window": lambda x, n: x.unfold(0, n, 6).index_fill_(1, at(x, 0), 5.0),
}


@pytest.mark.parametrize("sizes", [(4, 5, 7, 9, 3), (8, 5, 9, 4)], ids=["apart", "meeting"])
@pytest.mark.parametrize("name", AT_SOME_SIZES)
def test_what_meets_at_some_sizes_compiled(name: str, sizes: tuple[int, ...]) -> None:
    """A graph is for sizes at which parts meet as they do at the first one, or not at all."""

    def compute(x: Tensor, n: int) -> Tensor:
        x = x * 2
        AT_SOME_SIZES[name](x, n)
        return x + 1

    torch._dynamo.reset()
    compiled = torch.compile(compute, backend="tenon", dynamic=True)
    x = torch.arange(64.0)
    refused = 0
    for n in sizes:
        try:
            want = compute(x, n)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError):
                compiled(x.to("tenon"), n).cpu()
        else:
            assert_same(compiled(x.to("tenon"), n), want)
    assert refused < len(sizes)
    torch._dynamo.reset()
