"""What calls of layers, and of ops that create tensors, have to satisfy, as `constraints.py`."""

from __future__ import annotations

from hypothesis import strategies as st

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import UNCHECKED, at, names_of, replaced, rule
from torch_tenon.testing.space.drawing import Drawing, Size

# Layers


@rule("glu", 1, 4)
def _glu(d: Drawing) -> None:
    dim = d.given["dim"] = d.dim()
    d.shape = replaced(d.shape, dim, at(d, dim).with_(lambda n: 2 * n))


@rule("constant_pad_nd", 1, 4)
def _pad(d: Drawing) -> None:
    count = d.whole(0, len(d.shape))
    d.given["pad"] = [d.one((0, 1, 2, -1)) for _ in range(2 * count)]


def _padding(n: int) -> None:
    @rule(f"reflection_pad{n}d replication_pad{n}d", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        d.shape = [d.size(8) for _ in range(n + d.whole(1, 2))]
        d.given["padding"] = [d.one((0, 1, 2, -1)) for _ in range(2 * n)]


def _pools(n: int) -> None:
    @rule(f"avg_pool{n}d max_pool{n}d_with_indices", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        d.shape = [d.size(13 if n == 2 else 7) for _ in range(n + d.whole(1, 2))]
        kernel = d.given["kernel_size"] = [d.whole(1, 3) for _ in range(d.one((n, 1)))]
        d.given["stride"] = d.one(([], [1] * n, [2] * n, [2]))
        d.given["padding"] = [d.whole(0, k // 2) for k in kernel]
        d.given["dilation"] = [d.whole(1, 2)] * n
        d.given["divisor_override"] = d.one((None, 1, 3, -2, 0))


def _adaptive(n: int) -> None:
    @rule(f"_adaptive_avg_pool{n}d adaptive_max_pool{n}d", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        d.shape = [d.size(13 if n == 2 else 7) for _ in range(n + d.whole(1, 2))]
        d.given["output_size"] = [d.whole(0, 5) for _ in range(n)]


def _upsample(n: int, names: str) -> None:
    @rule(names, n + 2, n + 2)
    def entry(d: Drawing) -> None:
        # PyTorch's trace refuses a batch of none, which its kernels take.
        d.shape = [
            Size.of(d.whole(1, 3)),
            d.size(4),
            *(d.size(8 if n < 3 else 5) for _ in range(n)),
        ]
        d.given["output_size"] = [d.size(13).json() for _ in range(n)]
        for name in ("scales", "scales_h", "scales_w", "scales_d"):
            d.given[name] = None if d.chance(2) else d.one((2.0, 0.5, 1.7, 1.0))
        if "scale_factors" in names_of(d):
            d.given["scale_factors"] = None
            if d.chance(2):
                d.given["output_size"] = None
                d.given["scale_factors"] = [d.one((2.0, 0.5, 1.7, 1)) for _ in range(n)]


for _n in (1, 2, 3):
    _padding(_n)
for _n in (2, 3):
    _pools(_n)
    _adaptive(_n)
_upsample(1, "upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d")
_upsample(2, "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d")
_upsample(3, "upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d")


@rule("_softmax _log_softmax _safe_softmax")
def _softmax(d: Drawing) -> None:
    d.given["dim"] = d.dim()
    d.given["half_to_float"] = False


@rule("native_layer_norm _fused_rms_norm", 1, 4)
def _layer_norm(d: Drawing) -> None:
    tail = d.shape[d.whole(0, len(d.shape) - 1) :]
    d.given["normalized_shape"] = [n.json() for n in tail]
    for name in ("weight", "bias"):
        d.given[name] = None if d.chance(3) else d.tensor(tail)


def grouped(d: Drawing) -> tuple[int, Size, Size]:
    """Draws the shape of a group norm's input; gives the groups, the batch and the channels."""
    groups, each = d.whole(1, 3), d.whole(1, 3)
    n, inner = d.size(4), d.size(8)
    channels = Size((groups * each,) * 3)
    d.shape = [n, channels, inner]
    d.given |= {"N": n.json(), "C": channels.json(), "HxW": inner.json(), "group": groups}
    return groups, n, channels


@rule("native_group_norm", 3, 3)
def _group_norm(d: Drawing) -> None:
    """The CPU's kernel takes weights for elements in a row, whatever their strides."""
    _, _, channels = grouped(d)
    for name in ("weight", "bias"):
        d.given[name] = None if d.chance(3) else d.tensor([channels], expanded=[])


@rule("_weight_norm_interface _weight_norm_interface_backward", 1, 4)
def _weight_norm(d: Drawing) -> None:
    """The CPU's kernels take memory in order, whatever the strides, and add squares up."""
    dim = d.given["dim"] = d.one((0, len(d.shape) - 1))
    norms = replaced([Size.of(1)] * len(d.shape), dim, d.shape[dim])
    moderate = d.some(domains.is_moderate)
    for name in ("v", "grad_w", "saved_v", "g", "saved_g", "saved_norms"):
        if name in names_of(d):
            shape = norms if name in ("g", "saved_g", "saved_norms") else d.shape
            d.given[name] = d.tensor(shape, None, moderate, expanded=[])


_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_native_batch_norm_legit_functional _batch_norm_with_update_functional "
    "_batch_norm_with_update _batch_norm_no_update"
)


@rule(_BATCH_NORMS, 2, 4)
def _batch_norm(d: Drawing) -> None:
    """The CPU's kernels take what is there for a number of each channel."""
    d.given["input"] = d.tensor(d.shape)
    for name in ("weight", "bias", "running_mean", "running_var"):
        if name in names_of(d):
            d.given[name] = d.tensor(d.shape[1:2])


UNCHECKED.update(_BATCH_NORMS.split())


@rule("convolution _convolution", 3, 4)
def _convolution(d: Drawing) -> None:
    n = d.whole(1, 2)
    groups = d.whole(1, 2)
    batch, inner, outer = d.size(3), d.whole(1, 3) * groups, d.whole(1, 3) * groups
    transposed = d.given["transposed"] = d.chance(3)
    d.given["input"] = d.tensor([batch, Size((inner,) * 3), *(d.size(13) for _ in range(n))])
    sides = (inner, outer // groups) if transposed else (outer, inner // groups)
    kernel = [Size((d.whole(1, 3),) * 3) for _ in range(n)]
    d.given["weight"] = d.tensor([*(Size((k,) * 3) for k in sides), *kernel])
    d.given["bias"] = None if d.chance(2) else d.tensor([Size((outer,) * 3)])
    d.given["stride"] = [d.whole(1, 2) for _ in range(n)]
    d.given["padding"] = [d.whole(0, 2) for _ in range(n)]
    d.given["dilation"] = [d.whole(1, 2) for _ in range(n)]
    d.given["output_padding"] = [0] * n
    d.given["groups"] = groups


@rule("nll_loss_forward", 2, 2)
def _nll(d: Drawing) -> None:
    n, c = d.size(8), d.size(8)
    d.shape = [n, c]
    d.given["self"] = d.tensor(d.shape)
    d.given["target"] = d.index([n], c[0])
    d.given["weight"] = None if d.chance(2) else d.tensor([c])
    d.given["ignore_index"] = d.one((-100, 0, 1))


# Creation


@rule("arange")
def _arange(d: Drawing) -> None:
    ends = (0, 1, 2, 5, 17, -3, 2.5, 7.0, 64, 1e-3, True, 2**45)
    for name in ("start", "end"):
        d.given[name] = d.one(ends[:-1] if d.right else (*ends, domains.inf, domains.nan))
    d.given["step"] = d.one((1, 2, 0.5, -1, 3, -0.25) if d.right else (0, domains.nan, -1, 1e30))


@rule("native_dropout")
def _dropout(d: Drawing) -> None:
    """Of nothing the CPU's mask has the input's dtype."""
    d.given["input"] = d.tensor([n.with_(lambda k: max(k, 1)) for n in d.shape])


UNCHECKED.add("native_dropout")


@rule("threshold_backward log_sigmoid_backward")
def _of_one_dtype(d: Drawing) -> None:
    """PyTorch's traces mix dtypes in another way than its kernels."""
    for name in ("grad_output", "self", "buffer"):
        if name in names_of(d):
            d.given[name] = d.tensor(d.shape)


UNCHECKED.update(("threshold_backward", "log_sigmoid_backward"))


@rule("linspace logspace")
def _linspace(d: Drawing) -> None:
    d.given["steps"] = d.one((0, 1, 2, 3, 5, 17, 64) if d.right else (-1, 2**45, 3))
    if d.name == "logspace":  # PyTorch's traces refuse a negative base
        d.given["base"] = d.one((10, 2, 2.5, 0, 1, domains.inf, domains.nan))
    for a in d.schema.arguments:
        if a.name in ("start", "end") and str(a.type) == "Tensor":
            d.given[a.name] = d.tensor([])


@rule("eye tril_indices triu_indices randperm hann_window")
def _counts(d: Drawing) -> None:
    for name in ("n", "m", "row", "col", "window_length"):
        d.given[name] = d.one((3, 0, 1, 2, 5, 17) if d.right else (-1, 2, 3))
    d.given["offset"] = d.one((0, 1, -1, 100, -100, 2**31))


@rule("empty_permuted")
def _permuted(d: Drawing) -> None:
    d.given["size"] = [n.json() for n in d.shape]
    d.given["physical_layout"] = list(d.draw(st.permutations(range(len(d.shape)))))


@rule("empty_strided new_empty_strided")
def _strided(d: Drawing) -> None:
    shape = d.some_shape(0, 3, 64)
    d.given["size"] = [n[0] for n in shape]
    d.given["stride"] = [d.one((1, 2, 0, 5)) for _ in shape]


@rule("randint randint_like random")
def _randint(d: Drawing) -> None:
    d.given["low"] = d.given["from"] = d.one((0, -5, 1, -(2**40)))
    d.given["high"] = d.given["to"] = d.one((1, 2, 10, 100, 2**20 + 1, 2**40, 0))
