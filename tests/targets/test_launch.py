"""`torch_tenon.launch`: kernels of a target over tensors, behind what was recorded with them."""

import needs
import pytest
import torch
from fresh_process import ASYNCHRONOUS_TARGET, output

import torch_tenon
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
from torch_tenon.targets.cpu.backend import cpu_backend

ADD = """
#include <stdint.h>
void add(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (y ? y[i] : 1);
}
"""
CODE = """
import torch, torch_tenon
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
tensor = Parameter(torch.float32, True)
code = Code("cpu", {ADD!r}, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
(kernel,) = cpu_backend().compile([kernel_of(code, cpu_backend())])
"""


@pytest.fixture(scope="module")
def kernel() -> int:
    tensor = Parameter(torch.float32, True)
    code = Code("cpu", ADD, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
    return cpu_backend().compile([kernel_of(code, cpu_backend())])[0]


@needs.host_memory
def test_what_was_recorded_runs_before_and_what_comes_later_sees_it(kernel: int) -> None:
    for n in (4, 5, 6, 7):
        x = torch.arange(float(n), device="tenon")
        y = x * 2 + 1
        out = x.new_empty(n - 1)
        torch_tenon.launch(kernel, [out, y[1:], None], [n - 1])
        z = out * 10
        torch_tenon.launch(kernel, [out, out, out], [n - 1])
        assert z.tolist() == [10 * (2 * i + 2) for i in range(1, n)]
        assert out.tolist() == [2 * (2 * i + 2) for i in range(1, n)]


def test_on_a_target_that_computes_later() -> None:
    code = (
        CODE.format(ADD=ADD)
        + """
x = torch.arange(5.0).to("tenon")
for _ in range(5):
    y = x * 2
    out = torch.empty(5, device="tenon")
    torch_tenon.launch(kernel, [out, y, None], [5])
    z = out * 10
    del y, out
    assert z.tolist() == [10, 30, 50, 70, 90], z.tolist()
"""
    )
    output(code, TENON_TARGET=ASYNCHRONOUS_TARGET)


def test_tensors_of_elsewhere_are_refused(kernel: int) -> None:
    here = torch.ones(2, device="tenon:0")
    for tensors in ([here, torch.ones(2), None], [torch.ones(2)]):
        with pytest.raises(RuntimeError, match="takes strided tensors of 'tenon', not one of cpu"):
            torch_tenon.launch(kernel, tensors, [2])
    with pytest.raises(RuntimeError, match="runs on one device, and was given tensors of tenon:0"):
        torch_tenon.launch(kernel, [here, torch.ones(2, device="tenon:1"), None], [2])
    with pytest.raises(RuntimeError, match="was given none"):
        torch_tenon.launch(kernel, [None], [2])
