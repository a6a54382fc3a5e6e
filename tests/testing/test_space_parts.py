"""The parts of the argument space: what is drawn, what is equal, how a call is made small."""

import math
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torch_tenon.cli import app
from torch_tenon.testing.fuzz.otherwise import Otherwise
from torch_tenon.testing.space import domains, ops
from torch_tenon.testing.space.case import Case, Data
from torch_tenon.testing.space.judgement import Judge, differing
from torch_tenon.testing.space.running import MODES, Outcome, functions, run
from torch_tenon.testing.space.script import script
from torch_tenon.testing.space.search import calls
from torch_tenon.testing.space.shrinking import shrink
from torch_tenon.testing.space.undefined import evidence, is_pointwise
from torch_tenon.testing.space.worker import Runner

nan, inf = math.nan, math.inf


def test_the_ops_are_those_with_a_lowering_a_composition_or_a_kernel() -> None:
    names = set(ops.names())
    assert {"aten.add.Tensor", "aten.add_.Tensor", "aten.add.out", "aten.full.default"} <= names
    assert {"aten._foreach_add.List", "aten.convolution.default", "aten.view.default"} <= names
    assert not any(name.startswith("aten.set_") for name in names)


@pytest.mark.parametrize("op", ["aten.add.out", "aten.index_put_.default", "aten.cat.default"])
def test_a_number_tells_the_calls(op: str) -> None:
    drawn = calls(op, 3, 20, list(MODES))
    assert drawn == calls(op, 3, 20, list(MODES))
    assert drawn != calls(op, 4, 20, list(MODES))
    for case in drawn:
        compile(script([case]), "<script>", "exec")


@pytest.mark.parametrize(
    ("op", "argument"),
    [("_embedding_bag.default", 2), ("bucketize.Tensor", 1), ("index_copy.default", 2)],
)
def test_numbers_are_in_order_however_they_lie(op: str, argument: int) -> None:
    plain = set()
    for data in calls(f"aten.{op}", 5, 200, ["reference"]):
        given = data["args"][argument]
        if not data["right"] or data["before"] or "tensor" not in given:
            continue
        k, case = given["tensor"], Case(data)
        numbers = functions(case, 0)[0](torch.device("cpu"))[k].reshape(-1).tolist()
        plain.add(case.tensors(0)[k].plain)
        if op.startswith("index_copy"):
            assert len(set(numbers)) == len(numbers)
        else:
            assert numbers == sorted(numbers)
    assert plain == {True, False}


@pytest.mark.slow
def test_a_number_has_its_whole_domain() -> None:
    drawn = calls("aten.mul.Scalar", 0, 1200, ["reference"])
    others = [c["args"][1] for c in drawn]
    assert any(isinstance(x, dict) for x in others)
    assert any(x is True or x is False for x in others)
    found = [x for x in others if isinstance(x, float)]
    assert {inf, -inf} <= set(found)
    assert any(map(math.isnan, found))
    assert any(x == 0 and math.copysign(1, x) < 0 for x in found)
    assert {t["dtype"] for c in drawn for t in c["tensors"]} >= set(domains.DTYPES)
    assert {len(c["tensors"][0]["shape"]) for c in drawn} >= {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_most_calls_of_usual_ops_are_not_refused() -> None:
    for op in ("aten.add.Tensor", "aten.mm.default", "aten.gather.default", "aten.index.Tensor"):
        drawn = [c for c in calls(op, 1, 40, ["reference"]) if c["right"]]
        right = [c for c in drawn if not run(Case(c), "cpu").error]
        assert len(right) > len(drawn) / 3, op


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("got", "want", "ways", "repeats", "right"),
    [
        ([1.0], [1.0], [], [], True),
        ([1.0], [1.0001], [], [], False),
        ([nan], [nan], [], [], True),
        ([nan], [inf], [], [], False),
        ([0.0], [-0.0], [], [], False),
        ([0.0], [-0.0], [[0.0]], [], True),
        ([3.0], [inf], [[3.0]], [], True),
        ([7.0], [1.0], [], [[2.0]], True),
        ([1.001], [1.0], [[1.0005]], [], True),
    ],
)
def test_what_the_cpu_makes_in_some_way_is_right(
    got: list[float], want: list[float], ways: Any, repeats: Any, right: bool
) -> None:
    others = [[numbers(*x) for x in some] for some in (ways, repeats)]
    found = differing(numbers(*got), numbers(*want), others[0], others[1], [], 1.0)
    assert (found is None) == right


def test_zeros_have_no_signs_where_an_op_adds() -> None:
    got, want, way = numbers(-0.0), numbers(nan), numbers(0.0)
    assert differing(got, want, [way], [], [], 1.0, signs=False) is None
    assert differing(got, want, [way], [], [], 1.0, signs=True) is not None


@pytest.mark.parametrize("op", ["sum.default", "mean.default", "std_mean.correction"])
def test_the_rounding_of_a_sum_is_beside_its_terms(op: str) -> None:
    """However little is left of them. A result that is not a sum has no such limit."""
    most = torch.finfo(torch.float32).max
    x = tensor([4], most, -most, 0.0, 1.0)
    got, judge = outcome_of(case_of(f"aten.{op}", [x], [{"tensor": 0}]))
    for off, right in ((1e30, True), (1e33, False)):
        got.results[-1].value = torch.tensor(off)
        assert (judge.find(got) is None) == right
    got, judge = outcome_of(case_of("aten.amin.default", [x], [{"tensor": 0}]))
    got.results[-1].value = torch.tensor(-most * (1 - 1e-5))
    assert judge.find(got) is not None


def test_a_call_of_numbers_is_as_exact_as_the_cpus_worst_element() -> None:
    want, exact = numbers(1.0, 0.004), numbers(1.0 + 1e-7, 0.004)
    for off, right in ((3e-7, True), (1e-5, False)):
        got = numbers(1.0, 0.004 + off)
        found = [differing(got, want, [exact], [], [], 1.0, of_numbers=x) for x in (True, False)]
        assert [x is None for x in found] == [right, False]


def test_what_numbers_alone_make_is_made_in_double_precision() -> None:
    with Otherwise(None):
        got = torch.hann_window(255)
    want = torch.hann_window(255, dtype=torch.float64).float()
    assert torch.equal(got, want)


def test_what_whole_numbers_make_in_an_out_is_made_in_double_precision() -> None:
    x, out = torch.tensor([1, 2, 3]), torch.empty(0)
    with Otherwise(None):
        torch.special.chebyshev_polynomial_v(x // 4, 100, out=out)
    assert torch.equal(out, torch.ones(3))  # 0.99999487 in float32


def test_a_step_is_no_slope() -> None:
    """Noise moves a number that lies at a threshold by a whole one."""
    want, noisy = numbers(3.0), [numbers(2.0), numbers(3.0)]
    assert differing(numbers(2.0), want, [], [], noisy, 3.0) is not None
    want, noisy = numbers(1e-8), [numbers(3e-8), numbers(-2e-8)]
    assert differing(numbers(2e-8), want, [], [], noisy, 1.0) is None


def outcome_of(case: Data) -> tuple[Outcome, Judge]:
    found = Case(case)
    return run(found, "cpu"), Judge(run(found, "cpu"), lambda: evidence(found, 0))


def case_of(op: str, tensors: list[Data], args: list[Any], **kwargs: Any) -> Data:
    given = {"op": op, "mode": "reference", "tensors": tensors, "args": args, "kwargs": kwargs}
    return {**given, "before": None, "right": True}


def tensor(shape: list[int], *palette: Any, dtype: str = "float32", **layout: Any) -> Data:
    return {"shape": shape, "dtype": dtype, "palette": list(palette), **layout}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("dtype", torch.float64, "dtype"),
        ("shape", (3, 2), "shape"),
        ("strides", (1, 2), "strides"),
        ("shares", 0, "shares"),
        ("requires_grad", True, "requires_grad"),
        ("error", "IndexError", "error"),
    ],
)
def test_what_a_person_sees_is_compared(name: str, value: Any, kind: str) -> None:
    got, judge = outcome_of(case_of("aten.neg.default", [tensor([2, 3], 1.0)], [{"tensor": 0}]))
    assert judge.find(got) is None
    setattr(got.results[0], name, value)
    found = judge.find(got)
    assert found is not None and found.kind == kind


def test_errors_and_warnings_are_compared() -> None:
    case = case_of("aten.neg.default", [tensor([2], 1.0)], [{"tensor": 0}])
    got, judge = outcome_of(case)
    judge.want.warnings = ["UserWarning: look"]
    found = judge.find(got)
    assert found is not None and found.kind == "warning"
    judge.want.error = "IndexError"
    found = judge.find(got)
    assert found is not None and found.kind == "no error"
    got.error = "RuntimeError"
    found = judge.find(got)
    assert found is not None and found.kind == "error"


@pytest.mark.slow
def test_failures_of_tracing_are_no_findings() -> None:
    """Neither of the call that is not traced, nor of one that shares a graph with it."""
    two, one = tensor([2, 2], 1.0), tensor([3], 1.0)
    bad = case_of("aten.ones_like.out", [two, one], [{"tensor": 0}], out={"tensor": 1})
    good = case_of("aten.neg.default", [two], [{"tensor": 0}])
    # Its out= has other sizes and another dtype, so that the device has Dynamo's graph run.
    wide = {**one, "dtype": "float64"}
    bounds = [{"tensor": 0}, {"tensor": 0}, -1.0, 1.0]
    worse = case_of(
        "aten.hardtanh_backward.grad_input", [two, wide], bounds, grad_input={"tensor": 1}
    )
    cases = [Case({**data, "mode": "compiled"}) for data in (bad, good, worse)]
    answers = Runner().answer(cases)
    assert [a.failure for a in answers] == [None, None, None]
    assert [a.excused for a in answers] == [True, False, True]


def test_memory_beside_an_argument_is_compared() -> None:
    x = tensor([2], 1.0, 2.0, offset=1, behind=1)
    got, judge = outcome_of(case_of("aten.neg_.default", [x], [{"tensor": 0}]))
    assert judge.find(got) is None
    got.rest[0][0] += 1
    found = judge.find(got)
    assert found is not None and found.kind == "memory"


@pytest.mark.parametrize(
    ("values", "settled"), [((5.0,), True), ((5.0, 6.0), False)], ids=["one", "several"]
)
def test_different_numbers_to_one_place_are_undefined(
    values: tuple[float, ...], settled: bool
) -> None:
    x, out = tensor([2, 2], 0.0), tensor([2, 2], 0.0, overlapping=True)
    index = tensor([2], 0, 1, dtype="int64")
    tensors = [x, index, tensor([2, 2], *values), out]
    args: list[Any] = [{"tensor": 0}, 0, {"tensor": 1}, {"tensor": 2}]
    case = Case(case_of("aten.index_copy.out", tensors, args, out={"tensor": 3}))
    assert not run(case, "cpu").error
    assert evidence(case, 0).undefined != settled


def test_made_small() -> None:
    """What does not matter goes: tensors, sizes, layouts, numbers, arguments."""
    x = tensor([8, 13, 4], 2.0, nan, 7.5, order=[2, 0, 1], step=2, offset=3)
    y = tensor([13, 4], 1.0, 2.0, dtype="float64")
    args: list[Any] = [{"tensor": 0}, {"tensor": 1}]
    case = case_of("aten.add.Tensor", [x, y], args, alpha=7)

    def fails(candidate: Data) -> bool:
        t = candidate["tensors"][0]
        return any(isinstance(v, float) and math.isnan(v) for v in t["palette"])

    small = shrink({**case, "mode": "dynamic", "before": "made"}, fails, 20)
    assert small["mode"] == "reference" and small["before"] is None and not small["kwargs"]
    first = small["tensors"][0]
    assert first["shape"] == [] and len(first["palette"]) == 1
    assert not {"order", "step", "offset"} & set(first)


@pytest.mark.slow
def test_the_command() -> None:
    runner = CliRunner()
    options = ["conformance", "--db", "space", "--jobs", "1"]
    some = ["--op", "neg", "--samples", "6", "--modes", "reference", "--seed", "1"]
    done = runner.invoke(app, [*options, *some])
    assert done.exit_code == 0, done.output
    assert "seed 1, " in done.output and "0 fail" in done.output.replace("\n", " ")
    assert runner.invoke(app, [*options, "--op", "nothing_like_it"]).exit_code == 2
    assert runner.invoke(app, [*options, "--modes", "no_mode"]).exit_code == 2


@pytest.mark.parametrize("bits", ["neg", "conj"])
def test_numbers_that_memory_holds_otherwise_are_resolved_in_every_way(bits: str) -> None:
    """What the CPU's vectors make a zero of decides on which side of a branch cut it lies."""
    x = tensor([9], {"complex": [-1.5, 0.0]}, dtype="complex64", bits=bits)
    found = evidence(Case(case_of("aten.acos.default", [x], [{"tensor": 0}])), 0)
    signs = {bool(o.results[0].value.imag.signbit()[0]) for o in found.ways}
    assert signs == ({True, False} if bits == "neg" else {False})


def test_what_vectors_make_of_few_numbers_is_one_way() -> None:
    """The CPU's vectors have NaN for this gradient, and its single numbers have a factor."""
    case = Case(case_of("aten.selu.default", [tensor([2], nan, grad=True)], [{"tensor": 0}]))
    found = [w.gradients[0].value for w in evidence(case, 0).ways]
    assert {tuple(value.shape) for value in found} == {(2,)}
    assert {bool(value.isnan().all()) for value in found} == {False, True}


@pytest.mark.parametrize("op", ["hardswish_backward.default", "hardswish_backward.out"])
def test_a_gradient_is_pointwise_where_its_function_is(op: str) -> None:
    """The CPU's vectors have NaN for it, and its single numbers the gradient."""
    tensors = [tensor([2], 1.0), tensor([2], nan), tensor([2], 0.0)]
    out = {"out": {"tensor": 2}} if op.endswith("out") else {}
    case = Case(case_of(f"aten.{op}", tensors, [{"tensor": 0}, {"tensor": 1}], **out))
    found = [w.results[0].value for w in evidence(case, 0).ways]
    assert {bool(value.isnan().all()) for value in found} == {False, True}


@pytest.mark.parametrize(("reduction", "pointwise"), [(0, True), (1, False), (2, False)])
def test_a_loss_is_pointwise_where_it_is_not_reduced(reduction: int, pointwise: bool) -> None:
    tensors = [tensor([2], 1.0), tensor([2], nan), tensor([2], 0.5)]
    args: list[Any] = [{"tensor": 0}, {"tensor": 1}, {"tensor": 2}, reduction]
    case = Case(case_of("aten.mse_loss_backward.default", tensors, args))
    assert is_pointwise(case) == pointwise


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_gradient_at_what_is_no_number_is_one_of_the_cpus(dtype: str) -> None:
    x = tensor([3], nan, 1.0, dtype=dtype, grad=True)
    case = case_of("aten.selu.default", [x], [{"tensor": 0}]) | {"mode": "window"}
    (answer,) = Runner().answer([Case(case)])
    assert answer.failure is None, answer.failure


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("aten.arange.start", [-0.0, 2147483647], {"dtype": {"torch": "float32"}}),
        ("aten.linspace.default", [0, 1, 2147483648], {}),
        ("aten.constant_pad_nd.default", [{"tensor": 0}, [2147483647, 0]], {}),
        ("aten.eye.m", [3, 2147483648], {}),
    ],
)
def test_results_that_are_too_large_are_not_made(
    op: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    if "pad" not in op:
        kwargs = kwargs | {"device": {"device": True}}
    (answer,) = Runner().answer([Case(case_of(op, [tensor([1], 1.0)], args, **kwargs))])
    assert answer.failure is None and "too many elements" in answer.refused
    assert not answer.judges


def test_large_numbers_that_make_no_large_result_are_compared() -> None:
    case = case_of("aten.mul.Scalar", [tensor([3], 1.0)], [{"tensor": 0}, 2147483647])
    (answer,) = Runner().answer([Case(case)])
    assert answer.failure is None and not answer.refused and answer.judges
