"""Ops of graphs with an `out=` that PyTorch's trace has no right place for, and what is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import assert_same

aten = torch.ops.aten
SGD = {"weight_decay": 0.5, "momentum": 0.0, "lr": 0.25, "dampening": 0.0, "nesterov": False,
       "maximize": False, "is_first_step": False}  # fmt: skip

# Of floats (4), (4), a zero (1), a two (1), and what is written (4), (4), (1): each op writes one
# of the first four as well.
BESIDE_OUT: dict[str, Callable[..., Any]] = {
    "unscale": lambda x, y, zero, two, a, b, c: aten._amp_foreach_non_finite_check_and_unscale.out(
        [x, y], zero, two, out=[a, b]
    ),
    "unscale, packet": lambda x, y, zero, two, a, b, c: (
        aten._amp_foreach_non_finite_check_and_unscale([x, y], zero, two, out=[a, b])
    ),
    "scale": lambda x, y, zero, two, a, b, c: aten._amp_update_scale.out(
        two, zero.int(), zero, 2.0, 0.5, 1, out=c
    ),
    "batch norm": lambda x, y, zero, two, a, b, c: aten._native_batch_norm_legit.out(
        x[:, None], None, None, zero, two, True, 0.5, 1e-3,
        out=a[:, None], save_mean=b[:1], save_invstd=c,
    ),
    "rrelu": lambda x, y, zero, two, a, b, c: aten.rrelu_with_noise.out(
        x, y, 0.25, 0.5, False, out=a
    ),
    "sgd": lambda x, y, zero, two, a, b, c: aten._fused_sgd.out([x], [y], [], **SGD, out=[a]),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE_OUT)
def test_other_arguments_that_are_written(name: str) -> None:
    """PyTorch's trace writes one result into another's place, or crashes."""
    function = BESIDE_OUT[name]
    torch._dynamo.reset()
    found = []
    for run, device in ((function, "cpu"), (torch.compile(function, backend="tenon"), "tenon")):
        numbers = torch.tensor([1.0, -2.0, 3.0, -4.0])
        rows = [numbers, numbers * 0.5, numbers[:1] * 0, numbers[:1] * 2, *[numbers + 7] * 2]
        given = [x.clone().to(device) for x in (*rows, numbers[:1])]
        for _ in range(2):
            run(*given)
        found.append(given)
    assert_same(found[1], found[0])
    torch._dynamo.reset()


# Of floats (2, 4) and two of what is written (2, 4), of another dtype: `out=` of other names.
OTHER_NAMES: dict[str, Callable[..., Any]] = {
    "replication_pad1d_backward": lambda x, a, b: aten.replication_pad1d_backward.grad_input(
        x, x.double(), [0, 0], grad_input=x.clone()
    ),
    "log_sigmoid": lambda x, a, b: aten.log_sigmoid_forward.output(x, output=a, buffer=b),
    "sort": lambda x, a, b: aten.sort.values(x, 1, values=a, indices=b.long()),
    "sort, packet": lambda x, a, b: aten.sort(x, 1, values=a, indices=b.long()),
    "kthvalue": lambda x, a, b: aten.kthvalue.values(
        x, 1, 1, True, values=a[:, :1], indices=b[:, :1].long()
    ),
    "frexp": lambda x, a, b: aten.frexp.Tensor_out(x, mantissa=a, exponent=b.int()),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("name", OTHER_NAMES)
def test_results_of_another_dtype_by_other_names(name: str, dtype: torch.dtype) -> None:
    """What PyTorch's kernel refuses, a graph refuses."""
    function = OTHER_NAMES[name]
    torch._dynamo.reset()
    for run, device in ((function, "cpu"), (torch.compile(function, backend="tenon"), "tenon")):
        x = torch.ones(2, 4, device=device)
        with pytest.raises(RuntimeError):
            run(x, *(torch.ones_like(x, dtype=dtype) for _ in range(2)))
    torch._dynamo.reset()


# Of floats (2, 3) and what is written, of other sizes.
RESIZED: dict[str, Callable[..., Any]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "add, overload": lambda x, out: aten.add.out(x, x, out=out),
    "copy": lambda x, out: aten.copy.out(x, x, out=out),
    "clone": lambda x, out: aten.clone.out(x, out=out),
    "list": lambda x, out: aten._foreach_erf.out([x], out=[out]),
    "list of two": lambda x, out: aten._foreach_add.List_out(
        [x, x[0]], [x, x[1]], out=[torch.empty_like(x), out]
    ),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty_like(x, dtype=torch.long))),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "pad": lambda x, out: aten.constant_pad_nd.out(x, [1, 1], 2.0, out=out),
    "arange": lambda x, out: torch.arange(0, 4, out=out),
    "full": lambda x, out: torch.full((3, 2), 7.0, out=out),
}


@pytest.mark.parametrize("shape", [(0,), (2, 3, 1)])
@pytest.mark.parametrize("name", RESIZED)
def test_results_that_are_resized(name: str, shape: tuple[int, ...]) -> None:
    """Dynamo does not see it of a tensor in a list of lists, and PyTorch's trace fails."""

    def function(given: list[list[torch.Tensor]]) -> list[Any]:
        return [RESIZED[name](*x) for x in given]

    torch._dynamo.reset()
    found = []
    compiled = torch.compile(function, backend="tenon", dynamic=False)
    for run, device in ((function, "cpu"), (compiled, "tenon")):
        given = [torch.linspace(-1, 1, 6).view(2, 3).to(device), torch.zeros(shape, device=device)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run([given])
        found.append(given)
    assert_same(found[1], found[0], rtol=1e-6, atol=1e-6)
    torch._dynamo.reset()
