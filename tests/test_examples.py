"""The examples run, and compute what they say."""

import ast
from pathlib import Path

import pytest
import torch
from fresh_process import output, run

from torch_tenon import targets

EXAMPLES = Path(__file__).parents[1] / "examples"
SOFTSHRINK = """
    import sys
    import torch, torch_tenon
    sys.path.insert(0, sys.argv[1])
    import network

    x = torch.randn(3, 8)
    torch.testing.assert_close(
        torch.ops.softshrink.softshrink(x.to("tenon"), 0.3).cpu(),
        torch.nn.functional.softshrink(x, 0.3),
    )
    found = {}
    for name, device, compiled in (
        ("cpu", "cpu", False), ("eager", "tenon", False), ("compiled", "tenon", True)
    ):
        found[name] = network.train(device, steps=4, batch=2, size=16, compiled=compiled)[0]
    counts = torch_tenon.counters()
    print((found, torch.tenon.target_name(), counts))
"""


def _has(target: str) -> bool:
    """Whether the target is here and works on this machine."""
    if target not in targets.known():
        return False
    return (
        run("import torch; torch.ones(1, device='tenon').cpu()", TENON_TARGET=target).returncode
        == 0
    )


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_softshrink(target):
    """Kernels written by hand inside a network: from eager code and from torch.compile, with the
    results of PyTorch's own op on the CPU."""
    if not _has(target):
        pytest.skip(f"the target {target} is not here")
    text = output(SOFTSHRINK, str(EXAMPLES / "softshrink"), TENON_TARGET=target)
    losses, name, counts = ast.literal_eval(text)
    assert name == target
    for way in ("eager", "compiled"):
        torch.testing.assert_close(losses[way], losses["cpu"], rtol=2e-3, atol=2e-3)
    assert losses["cpu"][-1] < losses["cpu"][0], "it learns"
    assert counts["kernel::softshrink::softshrink"] > 0
    assert counts["kernel::softshrink::softshrink_backward"] > 0
    assert not any(key.startswith("fallback::softshrink") for key in counts)


@pytest.mark.slow
def test_an_opencl_kernel_that_takes_something_else():
    if not _has("opencl"):
        pytest.skip("the target opencl is not here")
    code = """
        import torch
        from torch_tenon import KernelSource, custom_op
        from torch_tenon.targets.target import CompileError
        for k, kernel in enumerate((
            "__kernel void g(__global double *r, __global const float *x) {}",
            "__kernel void g(__global float *r, __global const float *x, long n) {}",
            "__kernel void g(",
        )):
            source = KernelSource(
                "opencl", kernel, "g", ["float32 result", "float32 x"], ["numel(x)"], file="g.cl"
            )
            try:
                custom_op(f"t::g{k}(Tensor x) -> Tensor", kernels=[source])(torch.empty_like)
            except CompileError as error:
                print("g.cl:1: the kernel g" in str(error), "error:" in str(error))
    """
    assert output(code, TENON_TARGET="opencl").split() == ["True", "False", *["True"] * 4]
