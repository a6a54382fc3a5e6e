"""The examples run, and compute what they say."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import torch
from fresh_process import output, run

import torch_tenon
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


EXPORTED = """
    import sys
    from pathlib import Path
    import torch, torch_tenon
    sys.path.insert(0, sys.argv[1])
    import network

    path, folder = sys.argv[2], Path(torch_tenon.__file__).parent
    library = folder / "targets" / "opencl" / "libtenon_opencl.so"
    model = network.Network()
    for layer in model.modules():  # as if it had learnt something
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    model.eval()
    x = torch.randn(3, 3, 16, 16)
    shapes = ({0: torch.export.Dim("images", min=2, max=16)},)
    is_opencl = torch.tenon.target_name() == "opencl"
    cpu = None if is_opencl else "native"
    torch_tenon.export(model, (x,), path, dynamic_shapes=shapes, cpu=cpu)
    for commit, target in (("adaptive", None), ("each", "opencl"), ("adaptive", str(library))):
        program = torch_tenon.load(path, target=target if is_opencl else None, commit=commit)
        for count in (3, 16, 2):
            x = torch.randn(count, 3, 16, 16)
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
    print(library, float(model(torch.ones(2, 3, 16, 16))[0, 0]))
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_softshrink_is_exported(target, tmp_path):
    """Kernels by hand beside generated ones in one file: from Python, and from C."""
    if not _has(target):
        pytest.skip(f"the target {target} is not here")
    file = tmp_path / "network.tenon"
    text = output(EXPORTED, str(EXAMPLES / "softshrink"), str(file), TENON_TARGET=target)
    library, first = text.split()
    program = tmp_path / "run_program"
    runtime = Path(torch_tenon.__file__).parent / "runtime"
    source = [str(EXAMPLES / "run_program.c"), f"-I{EXAMPLES.parent / 'include'}"]
    linked = [f"-L{runtime}", "-ltenon_rt", f"-Wl,-rpath,{runtime}"]
    subprocess.run(["cc", *source, *linked, "-o", str(program)], check=True)
    command = [str(program), str(file), "1", *([library] if target == "opencl" else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.search(r"output 0 begins with (\S+)", done.stdout)
    assert found and float(found[1]) == pytest.approx(float(first), rel=1e-3, abs=1e-3)


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
