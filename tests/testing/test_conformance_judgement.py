"""How `tenon conformance` judges: the CPU against itself passes, and what is wrong is found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import make_tensor

from torch_tenon.testing.conformance.accuracy import as_accurate
from torch_tenon.testing.conformance.case import Case, CaseResult, CheckResult, Status
from torch_tenon.testing.conformance.comparison import Comparison, Mismatch
from torch_tenon.testing.conformance.databases import UnknownName, list_cases
from torch_tenon.testing.conformance.inputs import chosen
from torch_tenon.testing.conformance.op_checks import OpChecks
from torch_tenon.testing.conformance.placement import Placement, spread
from torch_tenon.testing.conformance.randomness import (
    check_distribution,
    critical_value,
    mann_whitney,
)


def run_case(case: Case, device: str, limit: int) -> CaseResult:
    """As the suite runs it, which imports PyTorch's databases for seconds."""
    from torch_tenon.testing.conformance import suite

    return suite.run_case(case, device, limit=limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "dtype", "checks"),
    [
        ("ops", "add", "float32", ["forward", "noncontiguous", "backward", "out", "inplace"]),
        ("ops", "add", "int64", ["forward", "noncontiguous", "out", "inplace"]),
        ("ops", "transpose", "complex64", ["forward", "noncontiguous", "backward", "inplace"]),
        ("ops", "linalg.svd", "float64", ["forward", "noncontiguous", "backward", "out"]),
        ("ops", "nn.functional.dropout", "float32", ["forward", "noncontiguous", "backward"]),
        ("ops", "empty_like", "float32", ["forward", "noncontiguous"]),
        ("ops", "normal.in_place", "float32", ["forward", "noncontiguous"]),
        ("ops", "bernoulli", "bfloat16", ["forward", "out"]),
        ("ops", "sparse.sampled_addmm", "float32", ["forward", "backward"]),
        ("modules", "nn.BatchNorm1d", "float32", ["forward train", "backward eval"]),
        ("modules", "nn.LSTM", "float32", ["forward train", "backward train"]),
        ("optimizers", "Adam", "float32", ["plain", "foreach", "fused"]),
        ("optimizers", "SparseAdam", "float64", ["plain"]),
    ],
)
def test_the_cpu_conforms_to_itself(kind: str, name: str, dtype: str, checks: list[str]) -> None:
    result = run_case(Case(kind, name, dtype), "cpu", limit=4)
    assert result.status is Status.PASS, (result.reason, result.message)
    passed = [name for name, check in result.checks.items() if check.status is Status.PASS]
    assert set(checks) <= set(passed)
    assert 0 < result.samples <= result.samples_available


@pytest.mark.slow
def test_what_the_cpu_cannot_run_is_not_applicable() -> None:
    result = run_case(Case("modules", "nn.AvgPool3d", "float16"), "cpu", limit=2)
    assert result.status is Status.NOT_APPLICABLE
    assert "not implemented for 'Half'" in result.message


def test_a_device_without_values_fails() -> None:
    result = run_case(Case("ops", "add", "float32"), "meta", limit=1)
    assert result.status is Status.FAIL
    assert result.checks["forward"].status is Status.FAIL


class AlternateOp:
    """Right when the CPU calls it; `wrong` when the device does, which is every other call."""

    def __init__(self, wrong: Callable[..., Any]) -> None:
        self.wrong = wrong
        self.calls = 0

    def __call__(self, x: torch.Tensor, **kwargs: Any) -> Any:
        self.calls += 1
        return self.wrong(x, **kwargs) if self.calls % 2 == 0 else torch.mul(x, 2, **kwargs)


def check_op(op: Callable[..., Any], **info: Any) -> dict[str, CheckResult]:
    """The checks of `op` on one input of shape (3, 4), CPU against CPU."""
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

    def samples(info: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
        x = make_tensor((3, 4), device=device, dtype=dtype, requires_grad=requires_grad, low=0.5)
        yield SampleInput(x)

    info = {"supports_out": False, **info}
    op_info = OpInfo(
        "made_up",
        op=op,
        method_variant=None,
        inplace_variant=info.pop("inplace_variant", None),
        operator_variant=None,
        inplace_operator_variant=None,
        dtypes={torch.float32},
        sample_inputs_func=samples,
        **info,
    )
    comparison = Comparison("cpu", torch.testing.assert_close)
    return OpChecks(op_info, torch.float32, "cpu", comparison).run()


def raise_value_error(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda x: torch.mul(x, 2.001), "values differ"),
        (lambda x: torch.mul(x, 2).double(), "dtype differs"),
        (lambda x: torch.mul(x, 2)[:2], "shape differs"),
        (lambda x: torch.mul(x, 2).to("meta"), "device differs"),
        (lambda x: [torch.mul(x, 2)], "structure differs"),
        (lambda x: x.mul_(2), "aliasing differs"),
        (raise_value_error, "raises ValueError"),
    ],
)
def test_a_wrong_answer_fails_forward(wrong: Callable[..., Any], reason: str) -> None:
    check = check_op(AlternateOp(wrong), supports_autograd=False)["forward"]
    assert (check.status, check.reason) == (Status.FAIL, reason)
    assert "size=(3, 4)" in check.sample


def test_a_right_answer_with_other_strides_is_a_note() -> None:
    comparison = Comparison("cpu", torch.testing.assert_close)
    expected = torch.arange(6.0).view(2, 3)
    comparison.results(expected.t().contiguous().t(), expected)
    assert len(comparison.notes) == 1


def test_a_view_must_stay_one() -> None:
    comparison = Comparison("cpu", torch.testing.assert_close)
    mine, cpus = torch.arange(6.0), torch.arange(6.0)
    comparison.results(mine[::2], cpus[::2], actual_inputs=[mine], expected_inputs=[cpus])
    with pytest.raises(Mismatch) as mismatch:
        comparison.results(
            mine[::2].clone(), cpus[::2], actual_inputs=[mine], expected_inputs=[cpus]
        )
    assert mismatch.value.reason == "aliasing differs"


def test_a_missing_error_fails() -> None:
    calls = iter(range(100))

    def raises_on_the_cpu_only(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if next(calls) % 2 else raise_value_error(x)

    check = check_op(raises_on_the_cpu_only, supports_autograd=False)["forward"]
    assert check.reason == "does not raise"


@pytest.mark.slow
def test_bad_input_is_reported_and_does_not_decide() -> None:
    result = run_case(Case("ops", "cat", "float32"), "cpu", limit=1)
    assert result.checks["errors"].status is Status.PASS
    checks = {**result.checks, "errors": CheckResult(Status.FAIL, 1, "does not raise")}
    assert CaseResult.from_checks(result.case, checks).status is Status.PASS


def test_an_error_that_comes_late_says_so() -> None:
    """A call of a device has returned before it has run."""

    class Late(torch.Tensor):
        def detach(self) -> Any:
            raise RuntimeError("the device has lost it")

    wrong = AlternateOp(lambda x: torch.mul(x, 2).add(1).as_subclass(Late))
    check = check_op(wrong, supports_autograd=False)["forward"]
    assert check.reason == "raises RuntimeError when results are read or compared"
    assert "lost it" in check.message and "in detach" in check.traceback


def test_the_same_error_is_not_applicable() -> None:
    check = check_op(raise_value_error, supports_autograd=False)["forward"]
    assert check.status is Status.NOT_APPLICABLE
    assert check.message == "ValueError: no such thing"


def test_a_wrong_gradient_fails_backward_alone() -> None:
    class Doubled(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            Doubled.calls += 1
            return gradient * (2 if Doubled.calls % 2 else 3)

    checks = check_op(Doubled.apply, supports_autograd=True)
    assert checks["forward"].status is Status.PASS
    assert checks["backward"].reason == "values differ"
    assert "gradients" in checks["backward"].message


def test_a_wrong_out_fails_out() -> None:
    def new_tensor(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        result = torch.mul(x, 2)
        return result if out is None else out.copy_(result).clone()

    checks = check_op(AlternateOp(new_tensor), supports_autograd=False, supports_out=True)
    assert checks["forward"].status is Status.PASS
    assert checks["out"].status is Status.FAIL
    assert "returned is out" in checks["out"].message


def test_a_wrong_inplace_fails_inplace() -> None:
    calls = iter(range(100))

    def inplace(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) if next(calls) % 2 == 0 else x * 2

    checks = check_op(lambda x: x * 2, inplace_variant=inplace, supports_autograd=False)
    assert checks["inplace"].status is Status.FAIL


def test_a_write_to_an_input_must_be_the_cpus() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2 - 2

    check = check_op(AlternateOp(write), supports_autograd=False)["forward"]
    assert (check.status, check.reason) == (Status.FAIL, "values differ")
    assert "input 0 after the call" in check.message


def test_another_rounding_is_a_note_and_another_value_fails() -> None:
    """Sums of terms that cancel: float32 is far off, in any order; the judge tells by how much."""

    def sums(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        terms = (x.flatten()[:, None] * torch.tensor([1e3, -1e3, 1.0], dtype=x.dtype)).flatten()
        total = torch.zeros((), dtype=x.dtype)
        for index in order.tolist():
            total = total + terms[index]
        return total

    calls = iter(range(100))

    def in_two_orders(x: torch.Tensor) -> torch.Tensor:
        forwards = torch.arange(3 * x.numel())
        return sums(x, forwards.flip(0) if next(calls) % 2 else forwards)

    assert check_op(in_two_orders, supports_autograd=False)["forward"].status is Status.PASS
    torch.manual_seed(0)
    x = make_tensor((3, 4), device="cpu", dtype=torch.float32, low=0.5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(in_two_orders(x), in_two_orders(x))
    x = torch.tensor([1.0, 1 / 3])
    assert as_accurate({"a": x + 1e-7}, {"a": x}, {"a": x.double() + 5e-8})
    assert not as_accurate({"a": x + 1e-4}, {"a": x}, {"a": x.double() + 5e-8})
    assert not as_accurate({"a": x + 1}, {"a": x}, {"a": x.double() + 1})
    assert not as_accurate([x, 1], [x, 2], [x.double(), 1])
    # The CPU's x * a - y * a is not 0 where x is y: a layer norm of one number has that gradient.
    nothing, rest = torch.zeros(2), torch.tensor([1e-4, 0.0])
    assert as_accurate(nothing, rest, nothing.double() + 1e-13)
    assert not as_accurate(nothing, rest * 10, nothing.double() + 1e-13)
    assert not as_accurate(rest, nothing, nothing.double())
    # 0.2 * 400 * 400 in 16 bits is infinite on its way, and fits at its end.
    x, exact = torch.tensor([2.0, torch.inf]).half(), torch.tensor([2.0, 32000.0]).double()
    assert as_accurate(exact.half(), x, exact)
    assert not as_accurate(exact.half() * 1.1, x, exact)
    assert not as_accurate(exact.half(), x, exact * torch.tensor([1, torch.inf]))
    assert not as_accurate(exact.half() * torch.tensor([1.1, 1]).half(), x, exact)


# Random ops.


def test_the_same_distribution_passes_and_another_fails() -> None:
    torch.manual_seed(0)
    x = torch.ones(40)

    def dropout(p: float) -> Callable[[], torch.Tensor]:
        return lambda: torch.nn.functional.dropout(x, p)

    check_distribution(dropout(0.5), dropout(0.5))
    for other in (dropout(0.2), lambda: dropout(0.5)() + 0.5, lambda: dropout(0.5)() / 0):
        with pytest.raises(Mismatch) as mismatch:
            check_distribution(other, dropout(0.5))
        assert mismatch.value.reason == "distribution differs"
    with pytest.raises(Mismatch) as mismatch:
        check_distribution(lambda: x * 0.99, dropout(0.5))
    assert mismatch.value.reason == "not random"


def test_the_critical_value_is_exact() -> None:
    # Of the 20 orders of 3 and 3, two have min(U, U') = 0 and two more have 1.
    assert critical_value(3, 0.09) == -1
    assert critical_value(3, 0.1) == 0
    assert critical_value(3, 0.2) == 1
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == 0
    assert mann_whitney([1, 2, 4], [3, 5, 6]) == 1


def test_a_random_op_must_obey_the_seed() -> None:
    unseeded = torch.Generator().manual_seed(1)

    def ignores_the_seed(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(x.shape, generator=unseeded) + torch.rand(()) * 0

    check = check_op(ignores_the_seed, supports_autograd=False)["forward"]
    assert check.reason == "seed not obeyed"


def test_a_random_op_may_round_in_another_order() -> None:
    """As when a plan takes over between two runs with one seed."""
    calls = itertools.count()

    def sums(x: torch.Tensor) -> torch.Tensor:
        draws = torch.rand(64) + x.sum()
        return draws.nextafter(draws + 1) if next(calls) % 2 else draws

    assert check_op(sums, supports_autograd=False)["forward"].status is Status.PASS


# Inputs.


def test_a_placement_keeps_strides_sharing_and_bits() -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    complex_base = torch.randn(3, dtype=torch.complex64)
    sample = {
        "view": base[:, ::2, 1:].transpose(0, 2),
        "same storage": base[1],
        "expanded": torch.ones(3, 1).expand(3, 5),
        "conjugated": complex_base.conj(),
        "device": "cpu",
    }
    place = Placement("meta")
    moved = place(sample)
    for name in ("view", "same storage", "expanded", "conjugated"):
        mine, original = moved[name], sample[name]
        assert mine.device.type == "meta"
        assert mine.stride() == original.stride()
        assert mine.storage_offset() == original.storage_offset()
        assert mine.is_conj() == original.is_conj()
    shared = [moved[name].untyped_storage()._cdata for name in ("view", "same storage")]
    assert shared[0] == shared[1]
    assert moved["device"] == torch.device("meta")
    copied = Placement("cpu")(sample)
    assert torch.equal(copied["conjugated"], sample["conjugated"])
    copied["view"].zero_()
    assert base.any()


def test_spread_keeps_values_and_is_not_contiguous() -> None:
    x = torch.arange(6).view(2, 3)
    assert torch.equal(spread(x), x)
    assert not spread(x).is_contiguous()


@pytest.mark.parametrize("limit", [1, 2, 4, 9])
def test_few_inputs_are_the_largest_and_some_from_everywhere(limit: int) -> None:
    """The database begins with scalars; the largest of these is not the last one."""
    inputs = [torch.ones(())] * 4 + [torch.ones(3), torch.ones(5, 5), torch.ones(2, 2)] * 3
    found, available = chosen(inputs, limit, lambda tensor: [tensor])
    places = [place for place, _ in found]
    assert available == len(inputs) and len(found) == limit and places == sorted(set(places))
    assert 5 in places and all(inputs[place] is given for place, given in found)
    gaps = [b - a for a, b in itertools.pairwise([-1, *places, len(inputs)])]
    assert limit < 4 or max(gaps) <= 2 + len(inputs) // (limit - 1)
    assert chosen(inputs, 0)[0] == chosen(inputs, len(inputs))[0] == list(enumerate(inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sum", "all", "add", "exp", "softmax", "nn.functional.layer_norm", "gather", "mm"]
)
def test_inputs_of_our_own_are_long(name: str) -> None:
    from torch_tenon.testing.conformance.databases import op_infos
    from torch_tenon.testing.conformance.long_inputs import long_inputs

    op = op_infos()[name]
    for dtype in op.dtypes:
        samples = long_inputs(op, dtype, requires_grad=dtype in op.supported_backward_dtypes("cpu"))
        assert any(max(sample.input.shape) > 1000 for sample in samples)
        assert any(max(sample.input.shape) in (33, 97) for sample in samples)
        for sample in samples:
            found = op(sample.input, *sample.args, **sample.kwargs)
            if name in ("sum", "all"):  # ... and none of their elements may be left out
                rest = sample.input.detach().clone()
                rest.select(sample.kwargs.get("dim", 0), -1).fill_(name == "all")
                assert not torch.equal(found, op(rest, *sample.args, **sample.kwargs))


# Choice of cases.


def test_cases_are_those_of_the_database() -> None:
    assert Case("ops", "div.no_rounding_mode", "float32") in list_cases(["ops"], ["div"])
    assert {case.dtype for case in list_cases(["ops"], ["add"], ["int64", "bool"])} == {
        "int64",
        "bool",
    }
    assert not any("jiterator" in case.name for case in list_cases(["ops"]))
    case = Case("ops", "nn.functional.gelu", "float32")
    assert Case.from_id(case.id) == case


@pytest.mark.parametrize(("pattern", "nearest"), [("geluu", "nn.functional.gelu"), ("ad", "add")])
def test_an_unknown_name_is_told_the_nearest(pattern: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(nearest)):
        list_cases(["ops"], [pattern])


def test_an_unknown_dtype_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'float32'"):
        list_cases(["ops"], ["add"], ["float31"])
