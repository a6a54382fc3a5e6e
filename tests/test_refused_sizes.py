"""What the CPU refuses at some sizes is refused at the call, and what it takes at others is taken,
whatever sizes were seen before."""

from __future__ import annotations

from collections.abc import Callable

import needs
import pytest
import torch
from against_cpu import assert_same, executing, same_error_on_both
from test_sizes import CLOSE, lengths
from torch import Tensor
from torch.nn import functional as F

# Calls that the CPU refuses for some sizes, beside ones that it takes.
REFUSED: dict[str, tuple[Callable[[int, torch.device], Tensor], Callable[..., Tensor]]] = {
    "add": (lambda n, d: torch.ones(n, 3).to(d), lambda x: x + x.new_ones(len(x) + 1, 3)),
    "mm": (lambda n, d: torch.ones(n, 4).to(d), lambda x: x @ x.new_ones(5, 2)),
    "cat": (lambda n, d: torch.ones(n, 4).to(d), lambda x: torch.cat([x, x[:, 1:]])),
    "layer_norm": (
        lambda n, d: torch.ones(3, n).to(d),
        lambda x: F.layer_norm(x, (x.size(1) + 1,)),
    ),
    "gather": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: x.gather(1, torch.zeros(len(x) + 2, 1, dtype=torch.long).to(x.device)),
    ),
    "scatter": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: x.scatter(1, torch.zeros(len(x) + 2, 1, dtype=torch.long).to(x.device), 2.0),
    ),
    "scatter_add": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: x.scatter_add(0, torch.zeros(len(x) + 3, 4, dtype=torch.long).to(x.device), x),
    ),
    "index_add": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: x.index_add(0, torch.zeros(len(x) + 1, dtype=torch.long).to(x.device), x),
    ),
    "topk": (lambda n, d: torch.ones(n, 4).to(d), lambda x: x[:2].topk(4, 0).values),
    "mse_loss": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: torch.ops.aten.mse_loss_backward(x, x, x.new_ones(len(x) + 1, 4), 0),
    ),
    "slice_backward": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: torch.ops.aten.slice_backward(x, [len(x) + 3, 4], 0, 1, len(x), 1),
    ),
    "nll_loss": (
        lambda n, d: torch.ones(n, 4).to(d),
        lambda x: F.nll_loss(x, torch.zeros(len(x) + 1, dtype=torch.long).to(x.device)),
    ),
    "baddbmm": (
        lambda n, d: torch.ones(2, n, 4).to(d),
        lambda x: torch.baddbmm(x, x, x.new_ones(2, 5, 4)),
    ),
    "avg_pool_backward": (
        lambda n, d: torch.ones(2, 3, n * n + 2, n + 4).to(d),
        lambda x: torch.ops.aten.avg_pool2d_backward(
            F.pad(F.avg_pool2d(x, 2), (1, 1)), x, [2], [2], [0], False, True, None
        ),
    ),
    "max_pool_backward": (
        lambda n, d: torch.ones(2, 3, n * n + 2, n + 4).to(d),
        lambda x: torch.ops.aten.max_pool2d_with_indices_backward(
            F.pad(F.avg_pool2d(x, 2), (1, 1)),
            x,
            [2],
            [2],
            [0],
            [1],
            False,
            F.pad(F.avg_pool2d(x, 2), (1, 1)).long(),
        ),
    ),
    "convolution_backward": (
        lambda n, d: torch.ones(2, 3, n * n + 2, n + 4).to(d),
        lambda x: convolution_backward(F.pad(F.avg_pool2d(x, 2), (1, 1)), x),
    ),
    "convolution": (
        lambda n, d: torch.ones(2, 4, n + 1).to(d),
        lambda x: F.conv1d(x, x.new_ones(4, 2, x.size(2) + 2), groups=2),
    ),
    "group_norm": (
        lambda n, d: torch.ones(2, 4, n * n, 2 * n + 1).to(d),
        lambda x: torch.native_group_norm(
            x, None, None, 2, x.size(1), x[0, 0].numel() + 1, 2, 1e-5
        )[0],
    ),
    "constant_pad_before": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :4].contiguous(), (-5, 5)),
    ),
    "constant_pad_behind": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :4].contiguous(), (6, -5)),
    ),
    "constant_pad_less": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :4].contiguous(), (-3, -2, 1, 0)),
    ),
    "reflection_pad": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :4], (4, 1), mode="reflect"),
    ),
    "reflection_pad_less": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :5], (-2, -3), mode="reflect"),
    ),
    "replication_pad_less": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: F.pad(x[:, :5], (-2, -3), mode="replicate"),
    ),
    "reflection_pad_backward": (
        lambda n, d: torch.ones(2, n + 5).to(d),
        lambda x: torch.ops.aten.reflection_pad1d_backward(
            F.pad(x[:, :4], (4, 1)), x[:, :4], [4, 1]
        ),
    ),
    "replication_pad_backward": (
        lambda n, d: torch.ones(2, 3, n + 4).to(d),
        lambda x: torch.ops.aten.replication_pad1d_backward(F.pad(x, (3, 1)), x, [2, 1]),
    ),
}


def convolution_backward(grad: Tensor, x: Tensor) -> Tensor:
    weight = x.new_ones(3, 3, 3, 3)
    made = torch.ops.aten.convolution_backward(
        grad, x, weight, [3], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3
    )
    return made[0]  # type: ignore[no-any-return]


def taken(name: str, x: Tensor) -> Tensor:
    """The same call as the CPU takes it."""
    calls: dict[str, Callable[[], Tensor]] = {
        "add": lambda: x + x,
        "mm": lambda: x @ x.new_ones(4, 2),
        "cat": lambda: torch.cat([x, x]),
        "layer_norm": lambda: F.layer_norm(x, (x.size(1),)),
        "gather": lambda: x.gather(1, torch.zeros(len(x), 1, dtype=torch.long).to(x.device)),
        "scatter": lambda: x.scatter(1, torch.zeros(len(x), 1, dtype=torch.long).to(x.device), 2.0),
        "scatter_add": lambda: x.scatter_add(
            0, torch.zeros(len(x), 4, dtype=torch.long).to(x.device), x
        ),
        "index_add": lambda: x.index_add(0, torch.zeros(len(x), dtype=torch.long).to(x.device), x),
        "topk": lambda: torch.cat([x, x]).topk(4, 0).values,
        "mse_loss": lambda: torch.ops.aten.mse_loss_backward(x, x, x * 2, 0),
        "slice_backward": lambda: torch.ops.aten.slice_backward(
            x, [len(x) + 1, 4], 0, 1, len(x) + 1, 1
        ),
        "nll_loss": lambda: F.nll_loss(x, torch.zeros(len(x), dtype=torch.long).to(x.device)),
        "baddbmm": lambda: torch.baddbmm(x, x, x.new_ones(2, 4, 4)),
        "avg_pool_backward": lambda: torch.ops.aten.avg_pool2d_backward(
            F.avg_pool2d(x, 2), x, [2], [2], [0], False, True, None
        ),
        "max_pool_backward": lambda: torch.ops.aten.max_pool2d_with_indices_backward(
            F.avg_pool2d(x, 2),
            x,
            [2],
            [2],
            [0],
            [1],
            False,
            F.max_pool2d(x, 2, None, 0, 1, False, True)[1],
        ),
        "convolution_backward": lambda: convolution_backward(
            F.conv2d(x, x.new_ones(3, 3, 3, 3), None, 2, 1), x
        ),
        "convolution": lambda: F.conv1d(x, x.new_ones(4, 2, (x.size(2) + 3) // 2), groups=2),
        "group_norm": lambda: F.group_norm(x, 2),
        "constant_pad_before": lambda: F.pad(x, (-5, 5)),
        "constant_pad_behind": lambda: F.pad(x, (6, -5)),
        "constant_pad_less": lambda: F.pad(x, (-3, -2, 1, 0)),
        "reflection_pad": lambda: F.pad(x, (4, 1), mode="reflect"),
        "reflection_pad_less": lambda: F.pad(x, (-2, -3), mode="reflect"),
        "replication_pad_less": lambda: F.pad(x, (-2, -3), mode="replicate"),
        "reflection_pad_backward": lambda: torch.ops.aten.reflection_pad1d_backward(
            F.pad(x, (4, 1), mode="reflect"), x, [4, 1]
        ),
        "replication_pad_backward": lambda: torch.ops.aten.replication_pad1d_backward(
            F.pad(x, (2, 1), mode="replicate"), x, [2, 1]
        ),
    }
    return calls[name]()


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused_at_the_call(name: str) -> None:
    make, refused = REFUSED[name]
    for n in lengths(8, seed=7):
        x = make(n, torch.device("cpu"))
        assert_same(taken(name, x.to("tenon")), taken(name, x), **CLOSE)
    for n in lengths(5, seed=8):
        same_error_on_both(lambda device, n=n: refused(make(n, device)))
        with pytest.raises((RuntimeError, ValueError)):  # and not when the result is read
            refused(make(n, torch.device("tenon")))


@needs.plans
def test_an_index_out_of_range_is_found_at_any_length() -> None:
    table = torch.randn(6, 3).to("tenon")
    with executing("compiled"):
        for n in lengths(8, seed=9):
            places = torch.zeros(n, dtype=torch.long)
            assert_same(F.embedding(places.to("tenon"), table) * 2, table.cpu()[places] * 2)
        for n in lengths(4, seed=10):
            places = torch.zeros(n, dtype=torch.long)
            places[n // 2] = 6
            wrong = F.embedding(places.to("tenon"), table) * 2
            with pytest.raises(IndexError):
                wrong.cpu()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_refuses_at_the_call(groups: int) -> None:
    """Whatever batches were seen before."""
    weight = torch.randn(4, 2, 3)
    for n in lengths(6, seed=12):
        x = torch.randn(n, 2 * groups, 5)
        made = F.conv1d(x.to("tenon"), weight.to("tenon"), groups=groups)
        assert_same(made, F.conv1d(x, weight, groups=groups), **CLOSE)
    for n, channels in ((3, 3), (5, 5), (7, 6)):
        with pytest.raises(RuntimeError):
            F.conv1d(torch.randn(n, channels, 5).to("tenon"), weight.to("tenon"), groups=groups)


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 6, 7])
def test_a_list_without_numbers_is_refused_as_the_cpu_refuses_it(place: int) -> None:
    """Strides, paddings and dilations of convolutions, sizes and paddings of pools."""

    def call(device: torch.device) -> Tensor:
        x, weight = torch.ones(2, 1, 6, 6).to(device), torch.ones(1, 1, 3, 3).to(device)
        if place < 5:
            lists = [[] if k == place else [1, 1] for k in range(1, 5)]
            return torch.ops.aten.convolution(x, weight, None, *lists[:3], True, lists[3], 1)
        size, padding, dilation = ([] if k == place else [1, 1] for k in range(5, 8))
        return torch.ops.aten.max_pool2d_with_indices(x, size, [1, 1], padding, dilation)[0]

    same_error_on_both(call)
