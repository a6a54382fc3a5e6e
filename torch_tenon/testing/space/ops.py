"""Which ops are called: those of which the device knows more than that the CPU has a kernel."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from torch_tenon.ops.variants import is_written

# What a drawn call can have for an argument. Others: names of dimensions, storages, quantizers.
_TYPES = {
    *("Tensor", "Optional[Tensor]", "List[Tensor]", "List[Optional[Tensor]]"),
    *("int", "Optional[int]", "List[int]", "Optional[List[int]]", "float", "Optional[float]"),
    *("List[float]", "Optional[List[float]]", "bool", "Optional[bool]", "List[bool]"),
    *("number", "Optional[number]", "List[number]", "str", "Optional[str]"),
    *("Device", "Optional[Device]", "Optional[Generator]", "Layout", "Optional[Layout]"),
    *("ScalarType", "Optional[ScalarType]", "MemoryFormat", "Optional[MemoryFormat]"),
}
# They change what a tensor is, or what they take is a device's own.
_LEFT_OUT = {
    *("set_", "set", "set_data", "resize_", "resize", "resize_as_", "resize_as", "record_stream"),
    *("_has_compatible_shallow_copy_type", "_copy_from", "_copy_from_and_resize", "_lazy_clone"),
    *("copy_sparse_to_sparse_", "_local_scalar_dense", "resize_as_sparse_", "is_same_size"),
    *("_has_same_storage_numel", "_new_zeros_with_same_feature_meta", "_resize_output_"),
    *("_efficientzerotensor", "_cudnn_init_dropout_state", "_foreach_copy_", "_foreach_copy"),
    # The CPU's vectors do not store 16-bit parameters.
    *("_fused_sgd", "_fused_sgd_"),
    # Its lengths are the host's.
    "_pack_padded_sequence",
}
# Steps of recurrent layers: traces have compositions of them, eager code PyTorch's.
_CELLS = {"rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell"}
_VENDORS = ("cudnn", "miopen", "mkldnn", "mps_", "_mps", "_cudnn", "_miopen", "_sparse", "sparse")


def base_name(op: Any) -> str:
    """`add` for `aten.add_.Tensor`, `aten.add.out` and `aten._foreach_add.List`."""
    name: str = op._schema.name.split("::")[1]
    name = name.removeprefix("_foreach_")
    if name.startswith("__i") and name.endswith("__"):
        return f"__{name[3:]}"
    return name if name.endswith("__") else name.removesuffix("_")


def named(name: str) -> Any:
    """The overload `aten.add.Tensor`."""
    return functools.reduce(getattr, name.split("."), torch.ops)


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all ops under test, in order."""
    from torch_tenon.ops import manifest
    from torch_tenon.ops.compositions import decompositions
    from torch_tenon.ops.lowerings import load_all
    from torch_tenon.ops.lowerings.table import LINKED, LOWERINGS

    load_all()
    known: set[str] = {
        name.split(".")[1] for name in (*LOWERINGS, *LINKED) if name.startswith("aten.")
    }
    known |= {base_name(op) for op in decompositions() if op.namespace == "aten"}
    known |= {
        name.split("::")[1].split(".")[0].removesuffix("_")
        for name, entry in manifest.load().items()
        if name.startswith("aten::") and entry.route != "fallback"
    }
    known = {n.removeprefix("_foreach_") for n in known} | _CELLS
    return tuple(sorted(str(op) for op in _aten() if base_name(op) in known or _pointwise(op)))


def _pointwise(op: Any) -> bool:
    return torch.Tag.pointwise in op.tags


def _aten() -> Iterator[Any]:
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        name, _, suffix = rest.partition(".")
        if space != "aten" or name in _LEFT_OUT or name.startswith(_VENDORS):
            continue
        if name == "randint_like" and suffix.startswith("Tensor"):
            continue  # the bound is the host's, whatever the device
        packet = getattr(torch.ops.aten, name, None)
        op = getattr(packet, suffix or "default", None)
        if op is not None and _callable(op):
            yield op


def _callable(op: Any) -> bool:
    schema = op._schema
    if not any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _KEYS):
        return False
    kinds = [str(a.type) for a in schema.arguments]
    of_tensors = any("Tensor" in kind for kind in kinds) or any("Device" in k for k in kinds)
    gives = any("Tensor" in str(r.type) for r in schema.returns)
    gives = gives or any("Tensor" in str(a.type) and is_written(a) for a in schema.arguments)
    return of_tensors and gives and all(kind in _TYPES for kind in kinds)


_KEYS = (
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
