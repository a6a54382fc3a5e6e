"""`torch.nn.DataParallel` calls its module where that is, as it does without an accelerator."""

import pytest
import torch
from against_cpu import assert_same


@pytest.mark.parametrize("device", ["cpu", "tenon", "tenon:1"])
def test_a_module_stays_where_it_is(device: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    x = torch.randn(6, 4)
    want = net(x)
    want.sum().backward()
    gradient = net.weight.grad
    net.zero_grad()
    parallel = torch.nn.DataParallel(net.to(device))
    got = parallel(x.to(device))
    assert got.device == next(parallel.parameters()).device == torch.zeros(1, device=device).device
    assert_same(got, want, rtol=1e-5, atol=1e-6)
    got.sum().backward()
    assert_same(net.weight.grad, gradient, rtol=1e-5, atol=1e-6)
