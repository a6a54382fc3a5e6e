"""Graphs with ops that have effects: their tokens are no results, and they may have some."""

from __future__ import annotations

import pytest
import torch
from against_cpu import assert_same
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

_seen: list[str] = []
LIBRARY = torch.library.Library("tenon_test_effects", "DEF")
for schema in (
    "one(Tensor x) -> Tensor",
    "two(Tensor x) -> (Tensor, Tensor)",
    "none(Tensor x) -> ()",
):
    LIBRARY.define(schema)


def _one(x):
    _seen.append("one")
    return x * 2


def _two(x):
    _seen.append("two")
    return x + 1, x.sum(0)


def _none(x):
    _seen.append("none")


for name, function in (("one", _one), ("two", _two), ("none", _none)):
    LIBRARY.impl(name, function, "CPU")
    torch.library.register_fake(f"{LIBRARY.ns}::{name}")(function)
    _register_effectful_op(f"{LIBRARY.ns}::{name}", _EffectType.ORDERED)
ops = torch.ops.tenon_test_effects


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(f, *given):
    given = [x.to("tenon").requires_grad_(x.requires_grad) for x in given]
    return torch.compile(f, backend="tenon")(*given)


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_computed_beside_a_view_of_an_argument(grad):
    """The view is made anew by AOTAutograd, which does not count the token of `inv`."""

    def f(x, a):
        inverse = torch.linalg.inv(a)
        return x * 3, x.view(-1), inverse

    x = torch.randn(3, 3, requires_grad=grad)
    a = torch.randn(3, 3) + 4 * torch.eye(3)
    assert_same(_compiled(f, x, a), f(x, a))


def test_views_of_several_arguments_of_which_one_is_written():
    def f(x, y, a):
        inverse = torch.linalg.inv(a)
        x.add_(1)
        return y - 1, x.view(-1), y[1:], inverse

    given = torch.randn(3, 3), torch.randn(3, 3), torch.randn(3, 3) + 4 * torch.eye(3)
    assert_same(_compiled(f, *given), f(*given))


def test_results_of_ops_with_effects():
    def f(x):
        y = ops.one(x)
        ops.none(y)
        z, total = ops.two(y * 3)
        return x.view(-1), z, x + total, y

    x = torch.randn(3, 3)
    want = f(x)
    order = list(_seen)
    compiled = torch.compile(f, backend="tenon")
    compiled(x.to("tenon"))
    _seen.clear()
    assert_same(compiled(x.to("tenon")), want)
    torch.tenon.synchronize()
    assert _seen == order
