"""Nodes that compute the same are merged, and no others."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.frontends.common_nodes import merge_equal_nodes


def calls(function, op):
    """How many calls of `op` are left of a trace."""
    module = make_fx(function, tracing_mode="fake")(torch.randn(4, 5), torch.randn(4, 5))
    merge_equal_nodes(module.graph)
    module.recompile()
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    torch.manual_seed(1)
    want = function(x.clone(), y.clone())
    torch.manual_seed(1)
    torch.testing.assert_close(module(x.clone(), y.clone()), want)
    return sum(str(n.target).startswith(f"aten.{op}.") for n in module.graph.nodes)


@pytest.mark.parametrize(
    ("function", "op", "left"),
    [
        (lambda x, y: [x.exp() + 1 + (x.exp() + 1)], "exp", 1),
        (lambda x, y: [(x + y) * (x + y).sum()], "add", 1),
        (lambda x, y: [(x + 1).sum() * (x + 2).sum()], "add", 2),
        (lambda x, y: [torch.add(x, 1) * torch.add(x, True) * torch.add(x, 1.0)], "add", 3),
        (lambda x, y: [(x / 0.0) * (x / -0.0) * (x / 0.0)], "div", 2),
        (lambda x, y: [x.sum(0) * x.sum(0)], "sum", 1),
        (lambda x, y: [torch.rand_like(x) + torch.rand_like(x)], "rand_like", 2),
        (lambda x, y: [x.exp(), x.exp()], "exp", 2),
        (lambda x, y: [x[0].exp() + x[0].exp() + x[1].exp()], "exp", 2),
    ],
)  # fmt: skip
def test_merged(function, op, left):
    assert calls(function, op) == left


def test_nothing_is_merged_across_a_write():
    def f(x, y):
        before = x.exp()
        x.add_(1)
        return [before * 2 + x.exp()]

    assert calls(f, "exp") == 2
