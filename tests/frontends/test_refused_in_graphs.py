"""What PyTorch's kernels refuse, a graph refuses: its trace does not look at every argument."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same

aten = torch.ops.aten
HALF = torch.float16
REFUSED: dict[str, Callable[[torch.device], Any]] = {
    "hash_tensor": lambda d: torch.hash_tensor(torch.ones(3, device=d), mode=3),
    "gelu_backward": lambda d: aten.gelu_backward(
        torch.ones(3, device=d), torch.ones(3, device=d), approximate="none of them"
    ),
    "_embedding_bag": lambda d: aten._embedding_bag(
        torch.ones(3, 2, device=d), torch.tensor([0, 1], device=d), torch.tensor([0], device=d),
        False, 5,
    ),
    "index_put": lambda d: torch.zeros(3, device=d).index_put(
        (torch.ones(2, device=d),), torch.ones(2, device=d)
    ),
    "index_put, 16 bits": lambda d: torch.zeros(3, device=d).index_put(
        (torch.ones(2, device=d, dtype=torch.int16),), torch.ones(2, device=d)
    ),
    "index_add": lambda d: torch.zeros(3, device=d).index_add(
        0, torch.ones(2, device=d, dtype=torch.uint8), torch.ones(2, device=d)
    ),
    "index_reduce": lambda d: torch.zeros(3, device=d).index_reduce(
        0, torch.ones(2, device=d), torch.ones(2, device=d), "amax"
    ),
    **{
        f"diagonal_scatter, {shape}": lambda d, shape=shape: torch.diagonal_scatter(
            torch.zeros(4, 5, 6, device=d), torch.ones(shape, device=d), 0, 0, 2
        )
        for shape in ((4, 6), (4,), (), (5, 1), (1, 5, 4))
    },
    **{
        f"select_scatter, {at}": lambda d, at=at: torch.select_scatter(
            torch.zeros(4, 5, device=d), torch.ones(5, device=d), 0, at
        )
        for at in (4, -5)
    },
    **{
        f"rrelu_with_noise, slopes of another shape, {training}": lambda d, training=training: (
            aten.rrelu_with_noise(
                torch.ones(2, 3, device=d), torch.ones(3, 2, device=d), training=training
            )
        )
        for training in (False, True)
    },
    "rrelu_with_noise_, slopes of another dtype": lambda d: aten.rrelu_with_noise_(
        torch.ones(2, 3, device=d), torch.ones(2, 3, device=d, dtype=HALF), training=True
    ),
    "select_scatter, another rank": lambda d: torch.select_scatter(
        torch.zeros(4, 5, device=d), torch.ones((), device=d), 0, 1
    ),
    "slice_scatter, a source of 1": lambda d: torch.slice_scatter(
        torch.zeros(4, 5, device=d), torch.ones(4, 1, device=d), 1, 1, 3
    ),
    **{
        f"{name} of nothing": lambda d, name=name: getattr(torch.zeros(2, 0, device=d), name)()
        for name in ("max", "min", "amax", "amin", "argmax", "argmin")
    },
    **{
        f"{name}, a dimension of a number": lambda d, f=f: f(torch.ones((), device=d), 7)
        for name, f in {
            "softmax": torch.softmax, "cummax": torch.cummax, "cumsum": torch.cumsum,
            "sum": torch.sum, "var": torch.var, "argmax": torch.argmax, "sort": torch.sort,
        }.items()
    },
    **{
        f"{name} of nothing, {at}": lambda d, f=f, at=at: f(torch.ones(0, 3, device=d), at)
        for name, f in {
            "sort": torch.Tensor.sort, "argsort": torch.Tensor.argsort,
            "stable": lambda x, at: torch.sort(x, dim=at, stable=True)[0],
            "topk": lambda x, at: x.topk(1, at), "kthvalue": lambda x, at: x.kthvalue(4, at),
            "mode": torch.mode, "median": torch.median, "cumsum": torch.cumsum,
            "softmax": torch.softmax,
        }.items()
        for at in (2, -3)
    },
    "topk of nothing, more than there is": lambda d: torch.ones(0, 3, device=d).topk(4),
    "dot of truth values": lambda d: torch.dot(*[torch.ones(3, device=d).bool()] * 2),
    "vdot of truth values": lambda d: torch.vdot(*[torch.ones(3, device=d).bool()] * 2),
    "multinomial, whole": lambda d: torch.multinomial(torch.ones(3, device=d).long(), 2),
    "multinomial, too many": lambda d: torch.multinomial(torch.ones(3, device=d), 4),
    "addmv": lambda d: torch.addmv(
        *(torch.ones(n, device=d, dtype=HALF) for n in ((2,), (2, 3), (3,))), alpha=1e6
    ),
    "addmv, beta": lambda d: torch.addmv(
        *(torch.ones(n, device=d, dtype=HALF) for n in ((2,), (2, 3), (3,))), beta=1e6
    ),
}  # fmt: skip

# Of classes or indices (3) and of floats (3, 3).
OF_INDICES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "one_hot": lambda at, x: F.one_hot(at, 4),
    "nll_loss": lambda at, x: F.nll_loss(x, at),
    "nll_loss2d": lambda at, x: F.nll_loss(x[None, :, None], at[None, None]),
    "cross_entropy": lambda at, x: F.cross_entropy(x, at),
    "nll_loss_backward": lambda at, x: aten.nll_loss_backward(x[0, 0], x, at, None, 2, -1, x[0, 0]),
    "multi_margin_loss": lambda at, x: F.multi_margin_loss(x, at),
    "multilabel_margin_loss": lambda at, x: F.multilabel_margin_loss(x[0], at),
    "embedding_dense_backward": lambda at, x: aten.embedding_dense_backward(x, at, 3, -1, False),
    "masked_scatter": lambda at, x: x.masked_scatter(at, x),
}
_ANOTHER = {"embedding_dense_backward": torch.int16, "masked_scatter": torch.uint8}
for _name, _function in OF_INDICES.items():
    for _dtype in (_ANOTHER.get(_name, torch.int32), torch.float32):
        REFUSED[f"{_name}, {_dtype}"] = lambda d, f=_function, dtype=_dtype: f(  # type: ignore[misc]
            torch.ones(3, dtype=dtype, device=d), torch.ones(3, 3, device=d)
        )
for _loss in (aten.mse_loss, aten.smooth_l1_loss):
    for _reduction in (-1, 3):
        REFUSED[f"{_loss.__name__}, {_reduction}"] = lambda d, f=_loss, k=_reduction: f(  # type: ignore[misc]
            torch.ones(3, device=d), torch.ones(3, device=d), k
        )

# Of floats (4, 4), whole numbers (4) and what is written: tensors of another dtype than computed.
INTO_ANOTHER: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "hardsigmoid": lambda x, at, out: aten.hardsigmoid.out(x, out=out),
    "gelu": lambda x, at, out: aten.gelu(x, out=out),
    "softplus": lambda x, at, out: aten.softplus.out(x, out=out),
    "log_sigmoid": lambda x, at, out: aten.log_sigmoid.out(x, out=out),
    "softmax": lambda x, at, out: torch.softmax(x, 0, out=out),
    "index_select": lambda x, at, out: torch.index_select(x, 0, at, out=out),
    "take": lambda x, at, out: torch.take(x, at, out=out),
    "clamp": lambda x, at, out: torch.clamp(x, 0, 1, out=out),
    "round": lambda x, at, out: torch.round(x, out=out),
    "tril": lambda x, at, out: torch.tril(x, out=out),
    "sort": lambda x, at, out: torch.sort(x, out=(out, torch.zeros_like(out, dtype=torch.long))),
    "isin": lambda x, at, out: torch.isin(x, at.double(), out=out),
}
# In place: what the tensor that is written can not have.
BEYOND_ITSELF: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul": lambda x, at: at.mul_(x[0]),
    "addcmul": lambda x, at: at.addcmul_(x[0], x[1]),
    "sub": lambda x, at: x.sub_(x + 1j),
    "overload": lambda x, at: aten.mul_.Tensor(at, x[0]),
}
# Of floats (4) and whole numbers (4): what is scattered to is its own index or source.
TO_ITSELF: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "scatter": lambda x, at: x.scatter_(0, at, x),
    "scatter, its index": lambda x, at: at.scatter_(0, at, 7),
    "scatter, a view": lambda x, at: x.view(2, 2).view(4).scatter_(0, at, x),
    "scatter, overload": lambda x, at: aten.scatter_.src(x, 0, at, x),
    "scatter_add": lambda x, at: x.scatter_add_(0, at, x),
    "scatter_reduce": lambda x, at: x.scatter_reduce_(0, at, x, "amax"),
    "index_copy": lambda x, at: x.index_copy_(0, at, x),
    "index_add": lambda x, at: x.index_add_(0, at, x),
    "index_add, its index": lambda x, at: at.index_add_(0, at, at + 1),
    "index_fill, its index": lambda x, at: at.index_fill_(0, at, 9),
    "index_reduce": lambda x, at: x.index_reduce_(0, at, x, "prod"),
    "index_put": lambda x, at: x.index_put_((at,), x),
    "put": lambda x, at: x.put_(at, x),
    "subscript": lambda x, at: operator.setitem(x, at, x),
    "subscript, its index": lambda x, at: operator.setitem(at, at, at + 1),
    "index_select": lambda x, at: torch.index_select(x, 0, at, out=x),
    "take": lambda x, at: torch.take(x, at, out=x),
}
for _name, _to in TO_ITSELF.items():
    REFUSED[f"{_name}, itself"] = lambda d, f=_to: f(  # type: ignore[misc]
        torch.ones(4, device=d), torch.tensor([1, 2, 3, 0], device=d)
    )
for _name, _into in INTO_ANOTHER.items():
    for _dtype in (torch.float64, HALF):
        REFUSED[f"{_name}, out of {_dtype}"] = lambda d, f=_into, dtype=_dtype: f(  # type: ignore[misc]
            torch.ones(4, 4, device=d),
            torch.zeros(4, dtype=torch.long, device=d),
            torch.zeros(4, 4, dtype=dtype, device=d),
        )
for _name, _beyond in BEYOND_ITSELF.items():
    REFUSED[f"{_name}, in place"] = lambda d, f=_beyond: f(  # type: ignore[misc]
        torch.full((4, 4), 1.5, device=d), torch.ones(4, dtype=torch.long, device=d)
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [name for name in REFUSED if "scatter, " in name])
def test_sources_and_places_that_do_not_fit(name: str, dynamic: bool) -> None:
    """The message is PyTorch's, and no lowering fails."""

    def function(x: torch.Tensor) -> Any:
        return REFUSED[name](x.device)

    torch._dynamo.reset()
    run = torch.compile(function, backend="tenon", dynamic=dynamic)
    with pytest.raises((RuntimeError, IndexError)):
        run(torch.ones(1, device="tenon"))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_a_kernel_refuses(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return REFUSED[name](x.device)

    torch._dynamo.reset()
    for run, device in ((function, "cpu"), (torch.compile(function, backend="tenon"), "tenon")):
        with pytest.raises((RuntimeError, IndexError)):
            run(torch.ones(1, device=device))
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["native_batch_norm_backward", "batch_norm_backward"])
def test_gradients_that_nobody_asks_for(name: str, training: bool) -> None:
    """They are None, as those of eager code."""
    op = getattr(aten, name).default
    more = (torch.empty(0, dtype=torch.uint8),) if name == "batch_norm_backward" else ()
    x, ones = torch.randn(2, 3, 4), torch.ones(3)
    for mask in ([False, True, True], [False, False, True], [True, False, False], [False] * 3):

        def function(x: Any, ones: Any, *more: Any, mask: Any = mask) -> Any:
            return op(x, x, ones, ones, ones, ones, ones, training, 1e-5, mask, *more)

        torch._dynamo.reset()
        got = torch.compile(function, backend="tenon")(*(t.to("tenon") for t in (x, ones, *more)))
        assert [g is not None for g in got] == mask
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1, 2)])
def test_a_reduction_that_a_kernel_takes_for_a_sum(shape: tuple[int, ...]) -> None:
    op = aten.nll_loss_forward if len(shape) == 2 else aten.nll_loss2d_forward
    x, at = torch.randn(shape), torch.zeros(shape[:1] + shape[2:], dtype=torch.int64)

    def function(x: torch.Tensor, at: torch.Tensor) -> Any:
        return op(x, at, None, 7, -100)

    torch._dynamo.reset()
    got = torch.compile(function, backend="tenon")(x.to("tenon"), at.to("tenon"))
    assert_same(got, function(x, at), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_statistics_that_batch_norms_save(dtype: torch.dtype, training: bool) -> None:
    """They have the sizes and the dtype of eager code's; those of nothing are refused."""
    x, w = torch.randn(4, 3, 5).to(dtype), torch.rand(3).to(dtype)
    ops: list[Callable[..., Any]] = [
        lambda x, w: aten._native_batch_norm_legit_functional(x, w, w, w, w, training, 0.5, 1e-3),
        lambda x, w: (
            aten._batch_norm_with_update_functional(x, w, w, w, w, 0.5, 1e-3)
            if training
            else aten._native_batch_norm_legit_no_training(x, w, w, w, w, 0.5, 1e-3)
        ),
    ]
    for op in ops:
        torch._dynamo.reset()
        compiled = torch.compile(op, backend="tenon")
        got = compiled(x.to("tenon"), w.to("tenon"))
        for ours, theirs in zip(got, op(x, w), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-2, atol=1e-2)
        if training:
            with pytest.raises(RuntimeError):
                compiled(x[:0].to("tenon"), w.to("tenon"))
    torch._dynamo.reset()


# What the CPU takes, and computes in the dtype of `out` where it does.
CONVERTED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out[0]),
    "sum": lambda x, out: torch.sum(x, 1, out=out[0]),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "arange": lambda x, out: torch.arange(0, 4, out=out[0]),
    "addcmul in place": lambda x, out: out.addcmul_(x, x),
    "ldexp in place": lambda x, out: aten.ldexp_(out, x / 1e3),
    "ldexp in place, as a method": lambda x, out: out.ldexp_(x / 1e3),
    "addmv in place, as a function": lambda x, out: torch.addmv_(out[0], x, x[0]),
    "ldexp in place, as an overload": lambda x, out: aten.ldexp_.default(out, x / 1e3),
}


@pytest.mark.parametrize("dtype", [torch.float64, HALF, torch.int32])
@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_written_in_another_dtype(name: str, dtype: torch.dtype) -> None:
    """What PyTorch's kernels convert, a graph converts, and nothing else."""
    function = CONVERTED[name]
    torch._dynamo.reset()
    found: list[Any] = []
    for run, device in ((function, "cpu"), (torch.compile(function, backend="tenon"), "tenon")):
        x = torch.linspace(0.1, 4000.7, 16).view(4, 4).to(device)
        out = torch.ones(4, 4, dtype=dtype, device=device)
        try:
            run(x, out)
            found.append(out)
        except RuntimeError:
            found.append(None)
    if found[0] is None:
        assert found[1] is None
    else:
        assert_same(found[1], found[0])
    torch._dynamo.reset()


# What writes the very elements that it reads, and is no matter of places.
AT_ITS_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul": lambda x: x.mul_(x),
    "addcmul": lambda x: x.addcmul_(x, x),
    "out": lambda x: torch.add(x, x, out=x),
    "list": lambda x: torch._foreach_mul_([x], [x]),
}


@pytest.mark.parametrize("name", AT_ITS_PLACE)
def test_elements_that_are_written_where_they_are_read(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan computes them."""
    function = AT_ITS_PLACE[name]
    torch._dynamo.reset()
    x, y = (torch.linspace(-2, 2, 9, device=device) for device in ("cpu", "tenon"))
    function(x)
    torch.compile(function, backend="tenon")(y)
    assert_same(y, x)
    assert "eager code" not in caplog.text
    torch._dynamo.reset()


def _ends_as_wanted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, y, 0, 3, 3 + y.shape[0])


def _by_name(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(input=x, src=y, start=3, end=3 + y.shape[0], dim=0)


def _from_the_end(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.slice_scatter(y, 0, -y.shape[0], None)


def _of_the_dispatcher(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return aten.slice_scatter.default(x, y, 0, 3, 3 + y.shape[0], 1)


@pytest.mark.parametrize("function", [_ends_as_wanted, _by_name, _from_the_end, _of_the_dispatcher])
def test_slices_of_any_size_are_replaced_by_some_of_their_size(
    function: Callable[..., Any],
) -> None:
    compiled = torch.compile(function, backend="tenon", dynamic=True)
    for rows, others in [(40, 20), (30, 12), (40, 38), (40, 45), (20, 18), (21, 10)]:
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        try:
            wanted = function(x, y)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="size equal to the slice"):
                compiled(x, y)
        else:
            torch.testing.assert_close(compiled(x, y), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.as_strided((y.shape[0], 2), (3, 1), 1) + 1,
        lambda x, y: torch.as_strided(x * 2, (y.shape[0], 3), (3, 1)) + 1,
        lambda x, y: torch.as_strided(input=x, size=y.shape, stride=(3, 1)) + 1,
    ],
)
def test_strides_within_the_memory(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend="tenon", dynamic=dynamic)
    for rows, others in [(20, 5), (20, 20), (20, 21), (10, 30), (300, 4)]:
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        if others > rows:
            with pytest.raises(RuntimeError, match="storage"):
                compiled(x, y)
        else:
            torch.testing.assert_close(compiled(x, y), function(x, y), rtol=0, atol=0)
