"""Results of compiled graphs that are views of one memory, as in eager code."""

import pytest
import torch
from against_cpu import assert_same


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_views_of_equal_layout_are_tensors_of_their_own():
    """What is changed of one is its own: shape, and whether it needs gradients."""

    def f(x):
        y = x + 1
        return y, y.view(-1), y.detach(), y[:]

    x = torch.randn(6)
    got, want = torch.compile(f, backend="tenon")(x.to("tenon")), f(x)
    for y, flat, detached, _ in (got, want):
        flat.resize_(3)
        detached.requires_grad_()
        y.unsqueeze_(0)
    assert_same(got, want)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
    assert len({t.untyped_storage().data_ptr() for t in got}) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_views_share_memory_by_whatever_ops_they_are_made(dynamic):
    """Another dtype, sizes that only a run knows, parts of complex numbers."""

    def f(x):
        y = x + 1
        image = y.reshape(1, 2, 2, -1)
        pairs = torch.view_as_complex(y.reshape(2, -1, 2))
        parts = pairs.real, pairs.conj().imag, pairs.conj().conj()
        return y, image, image[0], y.view(torch.int32)[1:], y.view(torch.int16), pairs, *parts

    x = torch.randn(4, 6)
    got, want = torch.compile(f, backend="tenon", dynamic=dynamic)(x.to("tenon")), f(x)
    assert_same(got, want)
    shared = [t.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr() for t in got]
    assert shared == [True] * 7 + [False, True]  # a plan has no negative views
    for y in (got[0], want[0]):
        y.mul_(-2)
    assert_same(got[:7] + got[8:], want[:7] + want[8:])
