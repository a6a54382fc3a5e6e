"""The family of an op, for a summary of thousands: by its name, and by PyTorch's tags."""

from torch_tenon.ops.native import NativeOp

_BY_START = {
    "lists of tensors": ("_foreach_", "_fused_", "_amp_"),
    "linear algebra": ("linalg_", "_linalg_"),
    "special functions": ("special_", "_special_"),
    "Fourier transforms": ("fft_", "_fft_"),
    "sparse, quantized": (
        *("sparse", "_sparse", "to_sparse", "_to_sparse", "coalesce", "_coalesce", "_nested"),
        *("quantize", "_quantize", "dequantize", "fake_quant", "_fake_quant", "q_", "fbgemm"),
    ),
    "of other libraries": ("cudnn", "_cudnn", "miopen", "_miopen", "mkldnn", "_mkldnn", "_mps"),
}
_BY_PART = {
    "losses": ("_loss",),
    "networks": (
        *("conv", "pool", "_norm", "upsample", "_pad", "embedding", "lstm", "gru", "rnn"),
        *("attention", "softmax", "dropout"),
    ),
}
_BY_TAG = {"pointwise": "pointwise", "reduction": "reductions", "nondeterministic_seeded": "random"}
OTHERS = "others"
FAMILIES = (
    *_BY_TAG.values(),
    *("views", "creation", "backward"),
    *_BY_PART,
    *_BY_START,
    OTHERS,
)


def family(op: NativeOp, functional: NativeOp) -> str:
    """One of FAMILIES; `functional` is the op's functional variant, or itself."""
    name = op.name.partition("::")[2].partition(".")[0]
    for found, starts in _BY_START.items():
        if name.startswith(starts):
            return found
    if "backward" in name:
        return "backward"
    for found, parts in _BY_PART.items():
        if any(part in name for part in parts):
            return found
    for tag, found in _BY_TAG.items():
        if tag in functional.tags:
            return found
    if functional.makes_views or "view_copy" in functional.tags:
        return "views"
    return "creation" if functional.takes_device else OTHERS
