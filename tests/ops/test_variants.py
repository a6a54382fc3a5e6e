"""Variants: found as PyTorch's code generator groups them, derived as PyTorch's CPU behaves."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_tenon.ops import native, variants

SCHEMAS = (
    "lerp2(Tensor self, Tensor end, Scalar weight=0.5, *, Scalar scale=1) -> Tensor",
    "lerp2_(Tensor(a!) self, Tensor end, Scalar weight=0.25, *, Scalar scale=1) -> Tensor(a!)",
    "lerp2.out(Tensor self, Tensor end, Scalar weight=0.5, *, Scalar scale=1, Tensor(a!) out)"
    " -> Tensor(a!)",
    "divmod(Tensor self, Tensor other) -> (Tensor quotient, Tensor remainder)",
    "divmod.result(Tensor self, Tensor other, *, Tensor(a!) quotient, Tensor(b!) remainder)"
    " -> (Tensor(a!), Tensor(b!))",
    "track_functional(Tensor self, Tensor? state) -> (Tensor, Tensor)",
    "track(Tensor self, Tensor(a!)? state) -> Tensor",
    "each(Tensor[] self, Scalar by) -> Tensor[]",
    "each_(Tensor(a!)[] self, Scalar by) -> ()",
    "each.out(Tensor[] self, Scalar by, *, Tensor(a!)[] out) -> ()",
    "count(int n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,"
    " bool? pin_memory=None) -> Tensor",
    "count.out(int n, *, Tensor(a!) out) -> Tensor(a!)",
    "less(Tensor self, Tensor other) -> Tensor",
    "less_(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    "last(Tensor self) -> Tensor",
    "last.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
)

ops = torch.ops.tenon_variants


def _lerp(self: torch.Tensor, end: torch.Tensor, weight: float, *, scale: float) -> torch.Tensor:
    return scale * torch.lerp(self, end, weight) if self.is_floating_point() else self + end


def _divmod(self: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return self // other, self % other


def _track(
    self: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return self + 1, None if state is None else state + self.sum()


def _each(self: list[torch.Tensor], by: float) -> list[torch.Tensor]:
    return [tensor * by for tensor in self]


def _count(n: int, **options: Any) -> torch.Tensor:
    return torch.arange(n, dtype=options["dtype"], device=options["device"])


def _last(self: torch.Tensor) -> torch.Tensor:
    return (self * 2).to(memory_format=torch.channels_last)


KERNELS: dict[str, Callable[..., Any]] = {
    "tenon_variants::lerp2": _lerp,
    "tenon_variants::divmod": _divmod,
    "tenon_variants::track_functional": _track,
    "tenon_variants::each": _each,
    "tenon_variants::count": _count,
    "tenon_variants::less": lambda self, other: self < other,
    "tenon_variants::last": _last,
}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[dict[str, list[str]]]:
    with torch.library._scoped_library("tenon_variants", "DEF") as made:
        for schema in SCHEMAS:
            made.define(schema)
        # `count` has no tensor argument; its key is chosen as for PyTorch's factories.
        yield {
            name: variants.register_with_variants(
                made, name, fn, "CPU" if name != "tenon_variants::count" else "BackendSelect"
            )
            for name, fn in KERNELS.items()
        }


def test_all_variants_are_registered(library: dict[str, list[str]]) -> None:
    assert library["tenon_variants::lerp2"] == [
        "tenon_variants::lerp2",
        "tenon_variants::lerp2_",
        "tenon_variants::lerp2.out",
    ]
    assert library["tenon_variants::track_functional"][1:] == ["tenon_variants::track"]
    assert sum(map(len, library.values())) == len(SCHEMAS)


@pytest.mark.slow
def test_derive_agrees_with_the_code_generator_for_every_op() -> None:
    groups = 0
    for name, op in native.load().items():
        if name != op.variants.functional:
            continue
        if op.mutable_arguments:
            # Writes to an argument under a functional name (record_stream): nothing to derive.
            with pytest.raises(ValueError, match="not functional"):
                variants.derive(variants.overload(name))
            continue
        derived = variants.derive(variants.overload(name))
        got = tuple(None if variant is None else variant.name() for variant in derived)
        assert got == (op.variants.inplace, op.variants.out, op.variants.mutable), name
        groups += 1
    assert groups > 1600


def test_all_six_of_lerp() -> None:
    for kind in ("Scalar", "Tensor"):
        derived = variants.derive(getattr(torch.ops.aten.lerp, kind))
        assert derived.inplace is getattr(torch.ops.aten.lerp_, kind)
        assert derived.out is getattr(torch.ops.aten.lerp, f"{kind}_out")


def test_derive_refuses_what_is_not_functional() -> None:
    with pytest.raises(ValueError, match=r"aten\.add_\.Tensor is not functional: it writes self"):
        variants.derive(torch.ops.aten.add_.Tensor)


def test_in_place_writes_self_and_takes_its_own_defaults() -> None:
    a, b = torch.randn(2, 3), torch.randn(3)
    x = a.clone()
    assert ops.lerp2_(x, b) is x
    torch.testing.assert_close(x, torch.lerp(a, b, 0.25))
    view = torch.zeros(4, 6)
    ops.lerp2_(view[::2, ::2], b, 1.0, scale=3)
    torch.testing.assert_close(view[::2, ::2], 3 * b.expand(2, 3))
    assert view[1::2].abs().sum() == 0


def test_in_place_casts_and_refuses_as_pytorch_does() -> None:
    # Bool into float is allowed, float into long is not, nor is another shape.
    x, y = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])
    expected = x.clone().lt_(y)
    assert ops.less_(x, y) is x
    torch.testing.assert_close(x, expected)

    long, floats = torch.tensor([1, 2]), torch.tensor([0.5, 0.5])
    wide = torch.ones(3, 2)
    for other in (floats, wide, wide.to(torch.complex64)):
        with pytest.raises(RuntimeError) as expected_error:
            long.clone().add_(other)
        with pytest.raises(RuntimeError) as error:
            ops.lerp2_(long.clone(), other)
        assert str(error.value) == str(expected_error.value)


def test_in_place_refuses_overlapping_memory() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        ops.lerp2_(torch.zeros(1).expand(3), torch.ones(3))


def test_out_is_resized_with_pytorchs_warning() -> None:
    a, b = torch.randn(2, 3), torch.randn(3)
    for empty in (torch.empty(0), torch.empty(2, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ops.lerp2(a, b, out=empty) is empty
        torch.testing.assert_close(empty, torch.lerp(a, b, 0.5))

    def warning_of(call: Callable[[], object]) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        (one,) = caught
        return str(one.message).split(" (Triggered internally", 1)[0]

    out, reference = torch.zeros(7), torch.zeros(7)
    got = warning_of(lambda: ops.lerp2(a, b, out=out))
    assert got == warning_of(lambda: torch.lerp(a, b, 0.5, out=reference))
    torch.testing.assert_close(out, reference)


def test_out_casts_and_refuses_as_pytorch_does() -> None:
    a, b = torch.randn(3), torch.randn(3)
    double = torch.empty(3, dtype=torch.double)
    torch.testing.assert_close(ops.lerp2(a, b, out=double), torch.lerp(a, b, 0.5).double())
    with pytest.raises(RuntimeError) as expected_error:
        torch.add(a, b, out=torch.empty(3, dtype=torch.int64))
    with pytest.raises(RuntimeError) as error:
        ops.lerp2(a, b, out=torch.empty(3, dtype=torch.int64))
    assert str(error.value) == str(expected_error.value)


def test_out_that_is_resized_keeps_the_strides_of_the_result() -> None:
    x = torch.randn(2, 3, 4, 5)
    out = torch.empty(0)
    ops.last(x, out=out)
    assert out.is_contiguous(memory_format=torch.channels_last)
    strided = torch.empty(2, 3, 4, 5)
    ops.last(x, out=strided)
    assert strided.is_contiguous()
    torch.testing.assert_close(out, strided)


def test_several_outputs() -> None:
    a, b = torch.tensor([7, 8]), torch.tensor([2, 3])
    quotient, remainder = torch.empty(0, dtype=torch.int64), torch.empty(2)
    got = ops.divmod.result(a, b, quotient=quotient, remainder=remainder)
    assert got[0] is quotient and got[1] is remainder
    assert quotient.tolist() == [3, 2] and remainder.tolist() == [1.0, 2.0]


def test_mutable_variant_writes_its_argument_and_returns_the_rest() -> None:
    x, state = torch.ones(3), torch.zeros(())
    torch.testing.assert_close(ops.track(x, state), torch.full((3,), 2.0))
    assert state.item() == 3
    torch.testing.assert_close(ops.track(x, None), torch.full((3,), 2.0))


def test_lists_of_tensors() -> None:
    xs = [torch.ones(2), torch.ones(3)]
    assert ops.each_(xs, 3) is None
    assert [x.sum().item() for x in xs] == [6, 9]
    outs = [torch.empty(0), torch.empty(3)]
    assert ops.each(xs, 2, out=outs) is None
    assert [x.sum().item() for x in outs] == [12, 18]


def test_factory_takes_its_options_from_out() -> None:
    out = torch.empty(0, dtype=torch.float16)
    assert ops.count(3, out=out) is out
    assert out.tolist() == [0, 1, 2]


def test_writing_records_no_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    out = torch.empty(3)
    with torch.no_grad():
        ops.lerp2(x, torch.zeros(3), out=out)
    assert not out.requires_grad
