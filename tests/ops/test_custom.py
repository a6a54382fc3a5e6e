"""Custom ops with a kernel in source for the target."""

import re
from pathlib import Path

import pytest
import torch

import torch_tenon
from torch_tenon.ops.custom import Source, custom_op, load_custom_ops
from torch_tenon.targets.target import CompileError, TargetError

SCALE = """
#include <stdint.h>
void scale(float *out, const float *x, double factor, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}
"""
ADD_TO = """
#include <stdint.h>
void add_to(float *x, const float *y, int64_t times, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] += y ? times * y[i] : times;
}
"""
BOTH = """
#include <stdint.h>
void both(int64_t *twice, int64_t *square, const int64_t *x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) { twice[i] = 2 * x[i]; square[i] = x[i] * x[i]; }
}
"""


def _dense(x, *_):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@pytest.fixture(scope="module")
def scale():
    def keep(ctx, inputs, output):
        ctx.factor = inputs[1]

    def backward(ctx, grad):
        return torch.ops.tenon_test.scale(grad, ctx.factor), None

    return custom_op(
        "tenon_test::scale(Tensor x, float factor=2.0) -> Tensor",
        kernels={"cpu": Source(SCALE, "scale")},
        setup_context=keep,
        backward=backward,
    )(_dense)


def test_values_strides_and_defaults(scale):
    x = torch.randn(5, 7)
    on_device = x.to("tenon")
    torch.testing.assert_close(scale(on_device.t(), 3.0).cpu(), 3 * x.t())
    torch.testing.assert_close(scale(on_device[1:, ::2]).cpu(), 2 * x[1:, ::2])
    assert scale(on_device).device == on_device.device


def test_gradient(scale):
    x = torch.randn(4, device="tenon", requires_grad=True)
    scale(x, 5.0).sum().backward()
    assert x.grad.tolist() == [5.0] * 4


def test_counts_as_kernel(scale):
    before = torch_tenon.counters().get("kernel::tenon_test::scale", 0)
    scale(torch.ones(2, device="tenon"))
    assert torch_tenon.counters()["kernel::tenon_test::scale"] == before + 1


def test_can_be_traced(scale):
    meta = scale(torch.ones(3, 2, device="meta"))
    assert meta.shape == (3, 2) and meta.device.type == "meta"


def test_writes_an_argument_through_a_view():
    add_to = custom_op(
        "tenon_test::add_to(Tensor(a!) x, Tensor? y, int times) -> ()",
        kernels={"cpu": Source(ADD_TO, "add_to")},
    )(lambda x, y, times: None)
    x = torch.zeros(3, 4, device="tenon")
    add_to(x[:, 1], torch.arange(3.0, device="tenon"), 10)
    add_to(x[0], None, 1)
    assert x.tolist() == [[1, 1, 1, 1], [0, 10, 0, 0], [0, 20, 0, 0]]


def test_several_results():
    both = custom_op(
        "tenon_test::both(Tensor x) -> (Tensor, Tensor)", kernels={"cpu": Source(BOTH, "both")}
    )(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    twice, square = both(torch.arange(4, device="tenon"))
    assert twice.tolist() == [0, 2, 4, 6] and square.tolist() == [0, 1, 4, 9]


def test_declared_in_yaml(tmp_path, monkeypatch):
    (tmp_path / "scale.c").write_text(SCALE)
    (tmp_path / "yaml_ops.py").write_text(
        "import torch\ndef like(x, factor):\n    return torch.empty_like(x)\n"
    )
    (tmp_path / "ops.yaml").write_text(
        "- func: tenon_yaml::scale(Tensor x, float factor) -> Tensor\n"
        "  fake: yaml_ops:like\n"
        "  kernels:\n"
        "    - {device: cpu, source: scale.c, entry: scale}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ops = load_custom_ops(tmp_path / "ops.yaml")
    assert ops["tenon_yaml::scale"](torch.ones(2, device="tenon"), 7.0).tolist() == [7, 7]
    (tmp_path / "bad.yaml").write_text("- func: tenon_yaml::x(Tensor x) -> Tensor\n")
    with pytest.raises(ValueError, match=r"tenon_yaml::x.*no `fake`"):
        load_custom_ops(tmp_path / "bad.yaml")


def test_no_kernel_for_the_target():
    op = custom_op("tenon_test::elsewhere(Tensor x) -> Tensor", kernels={"opencl": Source("", "f")})
    with pytest.raises(TargetError, match=r"tenon_test\.elsewhere.*'cpu', only for opencl"):
        op(_dense)(torch.ones(1, device="tenon"))


def test_source_that_does_not_compile():
    op = custom_op(
        "tenon_test::broken(Tensor x) -> Tensor", kernels={"cpu": Source("void f( {", "f")}
    )(_dense)
    for _ in range(2):
        with pytest.raises(CompileError, match="error:") as raised:
            op(torch.ones(1, device="tenon"))
    kept = Path(re.search(r"the source is in (\S+)", str(raised.value))[1])
    assert kept.read_text() == "void f( {"
    kept.unlink()
    assert torch.ones(2, device="tenon").sum().item() == 2  # the device works on


def test_argument_that_no_kernel_takes():
    with pytest.raises(ValueError, match="cannot take sizes, a List"):
        custom_op("tenon_test::bad(Tensor x, int[] sizes) -> Tensor", kernels={})(_dense)
