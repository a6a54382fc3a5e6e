"""What `tenon ops` says of an op agrees with PyTorch and with the device."""

import pytest
import torch

from torch_tenon.ops import catalogue, manifest, native
from torch_tenon.ops.manifest import Entry

ENTRIES = {
    "aten::lerp": Entry(("aten::lerp",), overloads={"Scalar": Entry(route="lowered")}),
    "aten::view": Entry(("aten::view",), "kernel", why="views are real"),
}


@pytest.mark.parametrize(
    ("op", "route", "reason"),
    [
        ("aten::view", "kernel", "views are real"),
        ("aten::lerp.Scalar", "lowered", "listed in the manifest"),
        ("aten::lerp_.Scalar", "lowered", "derived from aten::lerp.Scalar"),
        ("aten::lerp.Scalar_out", "lowered", "derived from aten::lerp.Scalar"),
        ("aten::lerp.Tensor_out", "fallback", "not listed, and the CPU has a kernel"),
        # Composed, but only of its own out= variant.
        ("aten::lerp.Tensor", "fallback", "not listed, and the CPU has a kernel"),
        ("aten::linear", "composed", "PyTorch's CompositeImplicitAutograd kernel"),
        ("aten::sparse_mask", "fallback", "a kernel for sparse, sparsecsr tensors"),
        ("aten::_cudnn_rnn", "none", "the CPU has no kernel"),
    ],
)
def test_route(op: str, route: str, reason: str) -> None:
    found, why = catalogue.route(native.load()[op], ENTRIES)
    assert found == route
    assert reason in why


@pytest.mark.parametrize("op", ["convolution", "_convolution", "convolution_backward"])
def test_every_convolution_is_a_library_call(op: str) -> None:
    assert catalogue.compiled(native.load()[f"aten::{op}"]) == "library"


def test_find_takes_names_as_people_write_them() -> None:
    one = [op.name for op in catalogue.find("lerp.Scalar")]
    assert one == ["aten::lerp.Scalar"] == [op.name for op in catalogue.find("aten::lerp.Scalar")]
    assert len(catalogue.find("lerp")) == 6
    assert {op.name for op in catalogue.find("relu")} == {
        "aten::relu",
        "aten::relu_",
        "aten::relu.out",
    }
    assert [op.name for op in catalogue.find("relu_")] == ["aten::relu_"]
    with pytest.raises(catalogue.UnknownOp, match="the nearest is aten::relu"):
        catalogue.find("rellu")


def test_every_op_has_one_route() -> None:
    counts = catalogue.counts(manifest.load())
    assert sum(total for _, total in counts.values()) == len(native.load())
    assert sum(listed for listed, _ in counts.values()) == len(
        list(manifest.routed(manifest.load()))
    )


def test_registered_is_what_the_device_has_of_its_own() -> None:
    pytest.importorskip("torch_tenon._C")
    assert torch.get_device_module("tenon")
    found = catalogue.registered()
    listed = {op for op, e in manifest.routed(manifest.load()) if e.route == "kernel"}
    # A name stands for its overloads.
    names = {op.partition(".")[0] for op in found}
    assert {op for op in listed if "." in op} <= found and listed - found <= names
    assert set(manifest.names_with("at_once")) <= found
    # That runs by reference execution.
    assert "aten::mm.out" not in found and "aten::mm" not in found


def test_cpu_dtypes_are_those_that_the_cpu_runs() -> None:
    pytest.importorskip("expecttest")
    dtypes = catalogue.cpu_dtypes()
    for op, fn in {
        "aten::lerp": lambda x: x.lerp(x, 0.5),
        "aten::linalg_inv": torch.inverse,
    }.items():
        forward, backward = dtypes[op]
        assert set(backward) <= set(forward)
        for dtype in ("float32", "float64", "complex64", "int64", "bool"):
            x = torch.ones(1, 1, dtype=getattr(torch, dtype))
            if dtype in forward:
                fn(x)
            else:
                with pytest.raises(RuntimeError):
                    fn(x)
    assert "int64" not in dtypes["aten::relu"][1] and "int64" in dtypes["aten::relu"][0]
