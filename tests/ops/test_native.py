"""What is read from native_functions.yaml is what the dispatcher does."""

import pytest
import torch

from torch_tenon.ops import manifest, native


@pytest.mark.slow
def test_required_is_what_the_dispatcher_has_no_kernel_for() -> None:
    ours = {op for entry in manifest.read() if entry.route == "decomposed" for op in entry.ops}
    for name, op in native.load().items():
        if name in ours:
            continue
        registered = [
            torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            for key in native.COMPOSITE_KEYS
        ]
        assert any(registered) == (not op.required), name
        if op.composite is not None:
            assert registered[native.COMPOSITE_KEYS.index(op.composite)], name


def test_variants() -> None:
    assert native.variants("aten::lerp_.Scalar") == native.Variants(
        "aten::lerp.Scalar", "aten::lerp_.Scalar", "aten::lerp.Scalar_out", None
    )
    assert native.variants("aten::lerp.Tensor_out").inplace == "aten::lerp_.Tensor"
    assert native.variants("aten::nonzero").inplace is None
    assert native.variants("aten::_native_batch_norm_legit").mutable is not None


def test_arguments() -> None:
    op = native.load()["aten::_fused_adam_.tensor_lr"]
    assert "lr" in op.tensor_arguments and "beta1" not in op.tensor_arguments
    assert "exp_avgs" in op.mutable_arguments and "lr" not in op.mutable_arguments


def test_autograd() -> None:
    ops = native.load()
    expected = {
        "aten::add.Tensor": "formula",
        "aten::abs_": "formula",  # By the functional variant's.
        "aten::abs.out": "none",
        "aten::outer": "composed",
        "aten::nonzero": "not differentiable",
    }
    assert {name: ops[name].autograd for name in expected} == expected
