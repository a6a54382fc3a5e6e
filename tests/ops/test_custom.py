"""Custom ops with kernels in source, as steps of windows and graphs."""

import re
from pathlib import Path

import needs
import pytest
import torch
from fresh_process import ASYNCHRONOUS_TARGET, TESTS, output

import torch_tenon
from torch_tenon import KernelSource, custom_op
from torch_tenon.builder.counts import plan_counts
from torch_tenon.ops.declarations import DeclarationError
from torch_tenon.targets.target import CompileError, TargetError

SCALE = """
#include <stdint.h>
void scale(float *out, const float *x, double factor, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}
"""
SCALE_ARGUMENTS = ["float32 result", "float32 x", "float64 factor", "int64 numel(x)"]
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
ROW_SUMS = """
#include <stdint.h>
void row_sums(float *out, const float *x, int64_t rows, int32_t columns, float start, _Bool twice) {
    for (int64_t r = 0; r < rows; ++r) {
        float sum = start;
        for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c];
        out[r] = twice ? 2 * sum : sum;
    }
}
"""
AFTER = """
#include <stdint.h>
void after(float *result, const float *x, int32_t next, int64_t n) {
    for (int64_t i = 0; i < n; ++i) result[i] = next;
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
        kernels=[KernelSource("host", SCALE, "scale", SCALE_ARGUMENTS)],
        setup_context=keep,
        backward=backward,
    )(_dense)


@pytest.fixture(scope="module")
def after():
    kernel = KernelSource(
        "host", AFTER, "after", ["float32 result", "float32 x", "int32 next", "int64 numel(x)"]
    )
    return custom_op("tenon_test::after(Tensor x) -> Tensor", kernels=[kernel])(_dense)


@pytest.fixture
def compiled():
    """Windows wait for their plans."""
    before = torch_tenon._C.execute_mode()
    torch_tenon._C.set_execute_mode(torch_tenon.config.EXECUTE_MODES.index("compiled"))
    yield
    torch_tenon._C.set_execute_mode(before)


def test_values_strides_and_defaults(scale):
    x = torch.randn(5, 7)
    on_device = x.to("tenon")
    torch.testing.assert_close(scale(on_device.t(), 3.0).cpu(), 3 * x.t())
    torch.testing.assert_close(scale(on_device[1:, ::2]).cpu(), 2 * x[1:, ::2])
    assert scale(on_device).device == on_device.device
    torch.testing.assert_close(scale(x, 3.0), 3 * x)
    assert scale(on_device[:0]).shape == (0, 7)


@needs.plans
def test_is_a_step_between_generated_ones(scale, compiled):
    x = torch.randn(6, 4).to("tenon")
    for _ in range(3):  # the first calls run at once
        y = scale((x * 2).t(), 3.0)[1:] + 1
        y.cpu()
    torch_tenon.reset_counters()
    before = plan_counts()["hits"]
    torch.testing.assert_close(
        (scale((x * 2).t(), 3.0)[1:] + 1).cpu(), x.cpu().t()[1:] * 6 + 1, rtol=1e-6, atol=1e-6
    )
    assert plan_counts()["hits"] == before + 1, "the window ran by its plan"
    assert torch_tenon.counters()["kernel::tenon_test::scale"] == 1
    assert not any(name.startswith("fallback") for name in torch_tenon.counters())


@pytest.mark.slow
@needs.plans
def test_is_a_step_of_a_compiled_graph(scale):
    def compute(x, n):
        return scale(x[n:] + 1, 0.5).sum(0) * n

    x = torch.randn(9, 5)
    graph = torch.compile(compute, backend="tenon", dynamic=True)
    for n in (2, 3, 4):
        torch.testing.assert_close(
            graph(x.to("tenon"), n).cpu(), (x[n:] * 0.5 + 0.5).sum(0) * n, rtol=1e-5, atol=1e-5
        )
    page = str(torch_tenon.explain(torch.compile(compute, backend="tenon"), x.to("tenon"), 2))
    assert re.search(r"kernel by hand scale: tenon_test::scale", page), page


@needs.plans
def test_kernels_know_what_comes_next(after, compiled):
    x = torch.ones(3, device="tenon")
    for _ in range(3):
        last, between = after(x), after(x) * 1
        last.cpu(), between.cpu()
    assert after(x).tolist() == [0] * 3, "the last step of its plan"
    assert (after(x) * 1).tolist() == [1] * 3, "the same target is next"
    y, order = after(x), torch.tensor([2.0, 0, 1], device="tenon").sort()[1]
    order.cpu()
    assert y.tolist()[0] in (0, 2)


def test_what_runs_by_itself_is_for_the_host(after):
    assert after(torch.ones(2)).tolist() == [2, 2]


def test_gradient(scale):
    x = torch.randn(4, device="tenon", requires_grad=True)
    scale(x, 5.0).sum().backward()
    assert x.grad.tolist() == [5.0] * 4


@needs.plans
def test_a_step_of_training_runs_by_plan(scale, compiled):
    """Backward computes without grad mode, in the same window."""

    def step():
        x = torch.arange(12.0, device="tenon", requires_grad=True)
        y = scale(x * 2, 3.0) + 1
        y.sum().backward()
        with torch.no_grad():
            scale(y, 2.0).sum().item()
        return x.grad.cpu()

    for _ in range(3):
        wanted = step()
    hits, windows = plan_counts()["hits"], sum(torch_tenon._C.record_counts()[1])
    assert torch.equal(step(), wanted)
    windows = sum(torch_tenon._C.record_counts()[1]) - windows
    assert plan_counts()["hits"] - hits == windows > 0


def test_gradient_by_an_expression():
    op = custom_op(
        "tenon_test::cubed(Tensor x, float factor, Tensor y) -> Tensor",
        kernels=[
            KernelSource(
                "host",
                SCALE.replace("* factor", "* x[i] * x[i] * factor").replace("scale", "cubed"),
                "cubed",
                SCALE_ARGUMENTS,
            )
        ],
        backward={"x": "grad * aten::pow(x, 2) * (3 * factor)"},
    )(_dense)
    x = torch.tensor([1.0, 2.0], device="tenon", requires_grad=True)
    y = torch.ones(2, device="tenon", requires_grad=True)
    op(x, 2.0, y).sum().backward()
    assert x.grad.tolist() == [6, 24] and y.grad is None


@needs.plans
def test_counts_as_kernel(scale):
    before = torch_tenon.counters().get("kernel::tenon_test::scale", 0)
    scale(torch.ones(2, device="tenon"))
    assert torch_tenon.counters()["kernel::tenon_test::scale"] == before + 1


@pytest.mark.slow
def test_can_be_traced(scale):
    meta = scale(torch.ones(3, 2, device="meta"))
    assert meta.shape == (3, 2) and meta.device.type == "meta"
    x = torch.randn(3, device="tenon", requires_grad=True)
    torch.library.opcheck(
        scale, (x, 3.0), test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    )


def test_writes_an_argument_through_a_view():
    kernel = KernelSource(
        "host", ADD_TO, "add_to", ["float32 x", "float32 y", "int64 times", "int64 numel(x)"]
    )
    add_to = custom_op(
        "tenon_test::add_to(Tensor(a!) x, Tensor? y, int times) -> ()", kernels=[kernel]
    )(lambda x, y, times: None)
    x = torch.zeros(3, 4, device="tenon")
    for _ in range(3):
        x.zero_()
        add_to(x[:, 1], torch.arange(3.0, device="tenon"), 10)
        add_to(x[0], None, 1)
        assert x.tolist() == [[1, 1, 1, 1], [0, 10, 0, 0], [0, 20, 0, 0]]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("zeros", lambda x: torch.zeros_like(x)),
        ("filled", lambda x: torch.empty_like(x).fill_(1)),
        ("copied", lambda x: x.clone()),
        ("view", lambda x: torch.zeros(2, *x.shape, device=x.device)[1]),
    ],
)
def test_results_have_no_values_before_the_kernel(name, make):
    kernel = KernelSource("host", SCALE, "scale", SCALE_ARGUMENTS)
    op = custom_op(f"tenon_test::{name}(Tensor x, float factor) -> Tensor", kernels=[kernel])(
        lambda x, factor: make(x)
    )
    x = torch.ones(3, device="tenon")
    for _ in range(2):
        with pytest.raises(DeclarationError, match=r"gives a result values \(aten::\w+"):
            op(x, 2.0)
    # A program may never call it in eager code.
    other = custom_op(f"tenon_test::c_{name}(Tensor x, float factor) -> Tensor", kernels=[kernel])(
        lambda x, factor: make(x)
    )
    with pytest.raises(Exception, match=r"gives a result values \(aten::\w+"):
        torch.compile(lambda x: other(x, 2.0) + 1, backend="tenon")(x)
    views = custom_op(f"tenon_test::of_{name}(Tensor x, float factor) -> Tensor", kernels=[kernel])(
        lambda x, factor: torch.empty(2, *x.shape, device=x.device)[1].view(x.shape)
    )
    for _ in range(3):
        assert views(x, 2.0).tolist() == [2, 2, 2]


def test_several_results():
    both = custom_op(
        "tenon_test::both(Tensor x) -> (Tensor twice, Tensor square)",
        kernels=[
            KernelSource(
                "host", BOTH, "both", ["int64 twice", "int64 square", "int64 x", "int64 numel(x)"]
            )
        ],
    )(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    for _ in range(4):
        twice, square = both(torch.arange(4, device="tenon"))
        assert twice.tolist() == [0, 2, 4, 6] and square.tolist() == [0, 1, 4, 9]


def test_numbers_of_every_kind():
    op = custom_op(
        "tenon_test::row_sums(Tensor x, float start, bool twice) -> Tensor",
        kernels=[
            KernelSource(
                "host",
                ROW_SUMS,
                "row_sums",
                [
                    "float32 result",
                    "float32 x",
                    "int64 size(x, 0)",
                    "int32 size(x, -1)",
                    "float32 start",
                    "bool twice",
                ],
            )
        ],
    )(lambda x, start, twice: x.new_empty(x.shape[0]))
    x = torch.arange(6.0).view(2, 3)
    for start, twice in ((0.5, False), (-1.25, True), (0.5, False)):
        want = (x.sum(1) + start) * (2 if twice else 1)
        assert op(x.to("tenon"), start, twice).tolist() == want.tolist()


def test_tensors_of_other_dtypes():
    kernel = KernelSource("host", SCALE, "scale", SCALE_ARGUMENTS)
    alone = custom_op("tenon_test::f32(Tensor x, float factor) -> Tensor", kernels=[kernel])(_dense)
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(TargetError, match=r"x: float64.*runs nowhere here.*cpu \(float32\)"):
        alone(x, 3.0)
    with pytest.raises(TargetError, match="x: float64"):
        alone(x.to("tenon"), 3.0).cpu()
    wider = KernelSource(
        "host",
        SCALE.replace("float ", "double "),
        "scale",
        [a.replace("float32", "float64") for a in SCALE_ARGUMENTS],
    )
    each = custom_op("tenon_test::each(Tensor x, float factor) -> Tensor", kernels=[kernel, wider])
    each = each(_dense)
    other = custom_op(
        "tenon_test::other(Tensor x, float factor) -> Tensor",
        kernels=[kernel],
        decomposition=lambda x, factor: x * factor,
    )(_dense)
    for op in (each, other):
        for dtype in (torch.float32, torch.float64):
            for _ in range(3):
                y = op(x.to("tenon", dtype), 3.0)
                assert y.dtype is dtype and y.tolist() == [3, 3]


def test_no_kernel_here(caplog):
    kernel = KernelSource("opencl", "", "f", ["float32 result", "float32 x"])
    op = custom_op("tenon_test::elsewhere(Tensor x) -> Tensor", kernels=[kernel])(_dense)
    if torch.tenon.target_name() == "opencl":
        return
    assert "tenon_test::elsewhere: it has no kernel for the target" in caplog.text
    with pytest.raises(TargetError, match=r"tenon_test::elsewhere.*opencl \(float32\)"):
        op(torch.ones(1, device="tenon")).cpu()
    composed = custom_op(
        "tenon_test::composed(Tensor x) -> Tensor",
        kernels=[kernel],
        decomposition=lambda x: x * 3,
    )(_dense)
    for _ in range(4):
        assert composed(torch.ones(2, device="tenon")).tolist() == [3, 3]
    assert "tenon_test::composed: it has no kernel for the target" in caplog.text


def _error_of(text, arguments, name):
    """Of an op whose source is built when it is declared, or, for the host beside another target,
    when it is called."""
    kernel = KernelSource("host", text, "scale", arguments, file="scale.src", line=7)
    with pytest.raises(CompileError, match=r"scale\.src:7: the kernel scale") as raised:
        op = custom_op(f"tenon_test::{name}(Tensor x, float factor) -> Tensor", kernels=[kernel])
        dtype = torch.float64 if "float64 x" in arguments else torch.float32
        op(_dense)(torch.ones(1, dtype=dtype), 2.0)
    Path(re.search(r"the source is in (\S+)", str(raised.value))[1]).unlink()
    return str(raised.value)


def test_source_that_does_not_compile():
    assert "scale.src:8:" in _error_of("\nvoid scale( {", SCALE_ARGUMENTS, "broken")
    assert torch.ones(2, device="tenon").sum().item() == 2  # the device works on


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("wider", ["float64 result", "float64 x", *SCALE_ARGUMENTS[2:]], "incompatible pointer"),
        ("shorter", SCALE_ARGUMENTS[:3], "too few arguments"),
        ("longer", [*SCALE_ARGUMENTS, "int64 1"], "too many arguments"),
        ("mixed", ["float32 result", "int64 1", "float64 factor", "float32 x"], "without a cast"),
    ],
)
def test_source_that_takes_something_else(name, arguments, problem):
    text = _error_of(SCALE, arguments, name)
    assert problem in text and "the declared arguments of scale" in text


@pytest.mark.parametrize(
    ("schema", "arguments", "problem"),
    [
        ("bad(Tensor x) -> Tensor", [], "has no namespace"),
        ("t::bad(Tensor x -> Tensor", [], "is no schema"),
        ("t::bad(Tensor x, int[] sizes) -> Tensor", [], "cannot take sizes, a List"),
        ("t::bad(Tensor x, *, int n) -> Tensor", [], "cannot take n, keyword-only"),
        ("t::bad(Tensor x) -> int", [], "a result is a new tensor"),
        ("t::bad(Tensor x) -> Tensor", ["float32 x"], "takes no result, which it has to write"),
        ("t::bad(Tensor x) -> Tensor", ["float33 result"], "is no argument.*nearest is float32"),
        ("t::bad(Tensor x) -> Tensor", ["float32 result", "int32 y"], "there is no y here"),
        ("t::bad(Tensor x) -> Tensor", ["float32 result", "int32 numel(y)"], "there is no y here"),
        ("t::bad(Tensor x) -> Tensor", ["float32 result", "float32 y"], "y is no name"),
        (
            "t::bad(Tensor x, float a) -> Tensor",
            ["float32 result", "int32 a"],
            "takes a as a float",
        ),
        ("t::bad(Tensor x) -> Tensor", ["float32 result", "int32 x.f()"], "is no size"),
    ],
)
def test_what_does_not_fit_together(schema, arguments, problem):
    with pytest.raises(DeclarationError, match=problem):
        custom_op(schema, kernels=[KernelSource("host", "", "f", arguments)])(_dense)


def test_what_has_nothing_that_runs_it():
    with pytest.raises(DeclarationError, match="without `kernels` or `decomposition`"):
        custom_op("t::nothing(Tensor x) -> Tensor")(_dense)
    with pytest.raises(DeclarationError, match="a function or an expression of ops, not 3"):
        custom_op("t::three(Tensor x) -> Tensor", decomposition=3)(_dense)


def test_a_decomposition_is_an_expression_of_ops():
    op = custom_op("t::more(Tensor x, float a) -> Tensor", decomposition="aten::relu(x) * a + 1")
    op = op(_dense)
    for _ in range(3):
        assert op(torch.tensor([-2.0, 3.0], device="tenon"), 2.0).tolist() == [1, 7]
    with pytest.raises(DeclarationError, match="there is no y here, only x"):
        custom_op("t::less(Tensor x) -> Tensor", decomposition="x - y")(_dense)


def test_an_entry_that_the_source_does_not_have():
    kernel = KernelSource("host", SCALE, "scaled", SCALE_ARGUMENTS, file="scale.src", line=7)
    expected = r"scale\.src:7: `entry` is scaled, a name that .* not have; the nearest is scale"
    with pytest.raises(CompileError, match=expected):
        op = custom_op("t::scaled(Tensor x, float factor) -> Tensor", kernels=[kernel])(_dense)
        op(torch.ones(1), 2.0)


def test_a_device_that_is_none():
    kernel = KernelSource("opncl", "", "f", ["float32 result"])
    with pytest.raises(DeclarationError, match="no device 'opncl'; the nearest is opencl"):
        custom_op("t::none(Tensor x) -> Tensor", kernels=[kernel])(_dense)


OTHER_TARGET = """
from asynchronous import AsynchronousQueue, AsynchronousTarget
from torch_tenon.targets.cpu.backend import CpuBackend

told = []

class OtherQueue(AsynchronousQueue):
    def launch(self, launch):
        told.append(launch.next)
        super().launch(launch)

class OtherBackend(CpuBackend):
    name = "other"

class OtherTarget(AsynchronousTarget):
    name = "other"
    def __init__(self):
        super().__init__()
        self.backend = OtherBackend()
    def _make_queue(self, memory):
        return OtherQueue(memory)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled", "reference"])
def test_a_kernel_for_a_target_out_of_reach_alone(mode, tmp_path):
    """Reference execution runs it on the device, on copies; plans launch it, and the queue is told
    what comes next."""
    (tmp_path / "other.py").write_text(OTHER_TARGET)
    code = f"""
        import sys, torch, torch_tenon
        from torch_tenon import KernelSource, custom_op
        kernel = KernelSource("other", {SCALE!r}, "scale", {SCALE_ARGUMENTS!r})
        op = custom_op("t::scale(Tensor x, float factor) -> Tensor", kernels=[kernel])(
            lambda x, factor: torch.empty_like(x, memory_format=torch.contiguous_format))
        x = torch.randn(4, 6)
        for _ in range(4):
            y = op(x.to("tenon").t() + 1, 2.0) + 1
            assert torch.allclose(y.cpu(), x.t() * 2 + 3)
        told = type(torch_tenon.target().queue(0)).launch.__globals__["told"]
        if {mode!r} == "compiled":
            assert told[-3:] == [1, 1, 0], told
        print(torch.tenon.target_name(), op(x, 2.0).equal(x * 2))
    """
    environment = {"TENON_TARGET": f"{tmp_path}/other.py:OtherTarget", "TENON_EXECUTE": mode}
    path = f"{TESTS / 'targets'}:{TESTS.parent}"
    assert output(code, **environment, PYTHONPATH=path) == "other True"


def test_a_target_whose_memory_is_out_of_reach_has_the_kernel_for_the_host():
    code = f"""
        import torch, torch_tenon
        from torch_tenon import KernelSource, custom_op
        kernel = KernelSource("host", {SCALE!r}, "scale", {SCALE_ARGUMENTS!r})
        op = custom_op("t::scale(Tensor x, float factor) -> Tensor", kernels=[kernel])(
            lambda x, factor: torch.empty_like(x))
        for _ in range(4):
            y = op(torch.ones(3, device="tenon") + 1, 2.0) + 1
            assert y.tolist() == [5, 5, 5]
    """
    output(code, TENON_TARGET=ASYNCHRONOUS_TARGET)
