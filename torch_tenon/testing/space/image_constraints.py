"""What calls of layers on images, and gradients of layers, have to satisfy, as `constraints.py`."""

from __future__ import annotations

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import RULES, UNCHECKED, names_of, rule
from torch_tenon.testing.space.drawing import Drawing, Size
from torch_tenon.testing.space.layer_constraints import grouped
from torch_tenon.testing.space.loss_constraints import fractions

# Layers without gradients of their own here


@rule("grid_sampler_2d grid_sampler_3d", 4, 5)
def _grid(d: Drawing) -> None:
    fractions(d)
    n = 3 if d.name == "grid_sampler_3d" else 2
    batch = d.size(3)
    d.shape = [batch, d.size(3), *(d.size(5) for _ in range(n))]
    d.given["input"] = d.tensor(d.shape)
    grid = [batch, *(d.size(4) for _ in range(n)), Size((n,) * 3)]
    d.given["grid"] = d.tensor(grid, None, (0.3, -0.7, 0.0, 1.0, -1.0, 0.95, 1.3, -2.6))
    d.given["interpolation_mode"] = d.whole(0, 2 if n == 2 else 1)
    d.given["padding_mode"] = d.whole(0, 2)


UNCHECKED.update(("grid_sampler_2d", "grid_sampler_3d"))


@rule("affine_grid_generator", 3, 3)
def _affine(d: Drawing) -> None:
    fractions(d)
    n, batch = d.whole(2, 3), d.size(3)
    d.given["theta"] = d.tensor([batch, Size((n,) * 3), Size((n + 1,) * 3)])
    d.given["size"] = [x.json() for x in (batch, d.size(3), *(d.size(5) for _ in range(n)))]


@rule("im2col col2im", 3, 4)
def _columns(d: Drawing) -> None:
    fractions(d)
    batch = [d.size(3)] if d.chance(2) else []
    kernel, dilation, padding, stride = (
        [d.whole(low, high) for _ in range(2)] for low, high in ((1, 3), (1, 2), (0, 2), (1, 2))
    )
    d.given |= {"kernel_size": kernel, "dilation": dilation}
    d.given |= {"padding": padding, "stride": stride}
    image, channels = [d.size(8), d.size(8)], d.size(3)
    if d.name == "im2col":
        d.given["self"] = d.tensor([*batch, channels, *image])
        return
    blocks = Size.of(1)
    for n, k, s, p, step in zip(image, kernel, dilation, padding, stride, strict=True):
        windows = pooled(n, s * (k - 1) + 1, step, p, upwards=False)
        blocks = blocks.with_(lambda a, b: a * b, windows)
    rows = channels.with_(lambda c: c * kernel[0] * kernel[1])
    d.given["self"] = d.tensor([*batch, rows, blocks])
    d.given["output_size"] = [n.json() for n in image]


@rule("channel_shuffle native_channel_shuffle", 3, 4)
def _shuffle(d: Drawing) -> None:
    groups = d.given["groups"] = d.whole(1, 3)
    d.shape = [d.shape[0], Size((groups * d.whole(1, 3),) * 3), *d.shape[2:]]


@rule("pixel_shuffle pixel_unshuffle", 3, 4)
def _pixels(d: Drawing) -> None:
    r = d.whole(1, 3)
    d.given["upscale_factor"] = d.given["downscale_factor"] = r
    *lead, c, h, w = (d.size(4) for _ in range(d.whole(3, 4)))
    if d.name == "pixel_unshuffle":  # nothing keeps its shape on the CPU, and in no trace
        *lead, c, h, w = (n.with_(lambda k: max(k, 1)) for n in (*lead, c, h, w))
    if d.name == "pixel_shuffle":
        c = c.with_(lambda n: n * r * r)
    else:
        h, w = (x.with_(lambda n: n * r) for x in (h, w))
    d.shape = [*lead, c, h, w]


UNCHECKED.add("pixel_unshuffle")


def _unpool(n: int) -> None:
    @rule(f"max_unpool{n}d", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        d.shape = [d.size(4) for _ in range(n + d.whole(1, 2))]
        sizes = d.given["output_size"] = [d.whole(1, 7) for _ in range(n)]
        total = 1
        for k in sizes:
            total *= k
        d.given["self"] = d.tensor(d.shape)
        # Each place is written once.
        count = 1
        for x in d.shape[-n:]:
            count *= max(1, x[0])
        if count <= total:
            places = list(range(total))
            d.given["indices"] = d.tensor(d.shape, "int64", places, times=1, expanded=[])
        else:
            d.given["indices"] = d.index(d.shape, total)
        d.given["stride"], d.given["padding"] = [2] * n, [0] * n


def _fractional(n: int) -> None:
    @rule(f"fractional_max_pool{n}d", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        batch, channels = d.size(3), d.size(3)
        lead = [batch, channels] if d.chance(2) else [channels]
        d.shape = [*lead, *(d.size(8) for _ in range(n))]
        d.given["self"] = d.tensor(d.shape)
        d.given["kernel_size"] = [d.whole(1, 2) for _ in range(n)]
        d.given["output_size"] = [d.whole(1, 3) for _ in range(n)]
        samples = [batch if len(lead) == 2 else Size.of(1), channels, Size((n,) * 3)]
        d.given["random_samples"] = d.tensor(samples, None, (0.25, 0.0, 0.5, 0.9))


def _antialiased(d: Drawing) -> None:
    d.shape = [d.size(3), d.size(3), d.size(8), d.size(8)]
    d.given["output_size"] = [d.size(8).json() for _ in range(2)]
    for name in ("scales_h", "scales_w"):
        d.given[name] = None if d.chance(2) else d.one((2.0, 0.5, 1.7))
    if "scale_factors" in names_of(d):
        d.given["scale_factors"] = None
        if d.chance(2):
            d.given["output_size"] = None
            d.given["scale_factors"] = [d.one((2.0, 0.5, 1.7)) for _ in range(2)]


rule("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", 4, 4)(_antialiased)


# Gradients


def pooled(n: Size, kernel: int, stride: int, padding: int, upwards: bool) -> Size:
    """How many windows a dimension has."""

    def count(k: int) -> int:
        rest = k + 2 * padding - kernel + (stride - 1 if upwards else 0)
        found = rest // stride + 1
        if upwards and (found - 1) * stride >= k + padding:
            found -= 1
        return max(found, 0)

    return n.with_(count)


def _pool_backward(n: int) -> None:
    @rule(f"avg_pool{n}d_backward", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        d.shape = [d.size(13 if n == 2 else 7) for _ in range(n + d.whole(1, 2))]
        kernel = d.given["kernel_size"] = [d.whole(1, 3) for _ in range(n)]
        stride = d.given["stride"] = [d.whole(1, 2) for _ in range(n)]
        padding = d.given["padding"] = [d.whole(0, k // 2) for k in kernel]
        upwards = d.given["ceil_mode"] = d.chance(2)
        d.given["divisor_override"] = d.one((None, 1, 3, -2))
        d.given["self"] = d.tensor(d.shape)
        windows = [
            pooled(x, k, s, p, upwards)
            for x, k, s, p in zip(d.shape[-n:], kernel, stride, padding, strict=True)
        ]
        d.given["grad_output"] = d.tensor([*d.shape[:-n], *windows])


def _pad_backward(n: int) -> None:
    @rule(f"reflection_pad{n}d_backward replication_pad{n}d_backward", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        d.shape = [d.size(8) for _ in range(n + d.whole(1, 2))]
        # What the forward refuses: as much as there is to reflect, and nothing that is left.
        most = min(x[0] for x in d.shape[-n:]) - 1 if d.name.startswith("reflection") else 2
        least = -1 if min(x[0] for x in d.shape[-n:]) > 2 else 0
        padding = [min(d.one((0, 1, 2, least)), most) for _ in range(2 * n)]
        d.given["padding"] = padding
        d.given["self"] = d.tensor(d.shape)
        padded = list(d.shape)
        for k in range(n):
            by = padding[2 * k] + padding[2 * k + 1]
            padded[-1 - k] = padded[-1 - k].with_(lambda x, by=by: max(0, x + by))
        d.given["grad_output"] = d.tensor(padded)


def _adaptive_backward(n: int) -> None:
    @rule(f"_adaptive_avg_pool{n}d_backward", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        d.shape = [d.size(8) for _ in range(n + d.whole(1, 2))]
        d.given["self"] = d.tensor(d.shape)
        windows = [Size((d.whole(1, 4),) * 3) for _ in range(n)]
        d.given["grad_output"] = d.tensor([*d.shape[:-n], *windows])


def _greatest_backward(n: int) -> None:
    @rule(f"adaptive_max_pool{n}d_backward fractional_max_pool{n}d_backward", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        """The CPU's kernel writes wherever an index says."""
        fractions(d)
        d.shape = [Size.of(d.whole(1, 8)) for _ in range(n + d.whole(1, 2))]
        d.given["self"] = d.tensor(d.shape)
        windows = [d.whole(1, 4) for _ in range(n)]
        shape = [*d.shape[:-n], *(Size((w,) * 3) for w in windows)]
        d.given["grad_output"] = d.tensor(shape)
        count = 1
        for x in d.shape[-n:]:
            count *= x[0]
        at = [d.whole(0, count - 1) for _ in range(4)]
        d.given["indices"] = d.tensor(shape, "int64", at, times=1, expanded=[])
        d.given |= {"kernel_size": [1] * n, "output_size": windows}


def _upsample_backward(n: int, names: str) -> None:
    @rule(names, n + 2, n + 2)
    def entry(d: Drawing) -> None:
        fractions(d)
        d.shape = [d.size(3), d.size(3), *(d.size(8 if n < 3 else 4) for _ in range(n))]
        large = [d.size(8 if n < 3 else 4) for _ in range(n)]
        d.given["input_size"] = [x.json() for x in d.shape]
        d.given["output_size"] = [x.json() for x in large]
        d.given["grad_output"] = d.tensor([*d.shape[:2], *large])
        for name in ("scales", "scales_h", "scales_w", "scales_d"):
            d.given[name] = None if d.chance(2) else d.one((2.0, 0.5, 1.7, 1.0))


for _n in (2, 3):
    _unpool(_n)
    _fractional(_n)
    _pool_backward(_n)
    _adaptive_backward(_n)
    _greatest_backward(_n)
for _n in (1, 2, 3):
    _pad_backward(_n)
_upsample_backward(
    1,
    "upsample_nearest1d_backward _upsample_nearest_exact1d_backward upsample_linear1d_backward",
)
_upsample_backward(
    2,
    "upsample_nearest2d_backward _upsample_nearest_exact2d_backward upsample_bilinear2d_backward "
    "upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward",
)
_upsample_backward(
    3,
    "upsample_nearest3d_backward _upsample_nearest_exact3d_backward upsample_trilinear3d_backward",
)


@rule("glu_backward", 1, 4)
def _glu_backward(d: Drawing) -> None:
    fractions(d)
    dim = d.given["dim"] = d.dim()
    d.given["grad_output"] = d.tensor(d.shape)
    whole = list(d.shape)
    whole[dim] = whole[dim].with_(lambda n: 2 * n)
    d.given["self"] = d.tensor(whole)


@rule("unfold_backward", 1, 3)
def _unfold_backward(d: Drawing) -> None:
    size, step = d.given["size"], d.given["step"] = d.whole(1, 3), d.whole(1, 3)
    dim = d.given["dim"] = d.whole(0, len(d.shape) - 1)
    d.shape[dim] = Size.of(size + d.whole(0, 5))
    d.given["input_sizes"] = [x.json() for x in d.shape]
    windows = list(d.shape)
    windows[dim] = windows[dim].with_(lambda n: (n - size) // step + 1)
    d.given["grad_in"] = d.tensor([*windows, Size((size,) * 3)])


# Where products leave the range, it is a kernel's order of steps that makes infinity, NaN or 0.


@rule("native_layer_norm_backward", 1, 4)
def _layer_norm_backward(d: Drawing) -> None:
    fractions(d)
    at = d.whole(0, len(d.shape) - 1)
    lead, tail = d.shape[:at], d.shape[at:]
    d.given["normalized_shape"] = [n.json() for n in tail]
    for name in ("grad_out", "input"):
        # Read in the order of memory.
        d.given[name] = d.tensor(d.shape, None, d.some(domains.is_moderate), expanded=[])
    kept = [*lead, *[Size.of(1)] * len(tail)]
    d.given["mean"] = d.tensor(kept, None, d.some(domains.is_moderate), expanded=[])
    d.given["rstd"] = d.tensor(kept, None, (1.0, 0.5, 3.0), expanded=[])
    for name in ("weight", "bias"):
        some = d.some(domains.is_moderate)
        d.given[name] = None if d.chance(3) else d.tensor(tail, None, some)


@rule("native_group_norm_backward", 3, 3)
def _group_norm_backward(d: Drawing) -> None:
    fractions(d)
    groups, n, channels = grouped(d)
    for name in ("grad_out", "input"):
        # Read in the order of memory.
        d.given[name] = d.tensor(d.shape, None, d.some(domains.is_moderate), expanded=[])
    statistics = [n, Size((groups,) * 3)]
    some = d.some(domains.is_moderate)
    d.given["mean"] = d.tensor(statistics, None, some, expanded=[])  # read as if they were dense
    d.given["rstd"] = d.tensor(statistics, None, (1.0, 0.5, 3.0), expanded=[])
    some = d.some(domains.is_moderate)
    d.given["weight"] = None if d.chance(3) else d.tensor([channels], None, some)


@rule("native_batch_norm_backward", 2, 4)
def _batch_norm_backward(d: Drawing) -> None:
    fractions(d)
    for name in ("grad_out", "input"):
        # Read in the order of memory.
        d.given[name] = d.tensor(d.shape, None, d.some(domains.is_moderate), expanded=[])
    channels = d.shape[1:2]
    d.given["train"] = d.chance(2)
    some = d.some(domains.is_moderate)
    d.given["weight"] = None if d.chance(3) else d.tensor(channels, None, some)
    for name in ("running_mean", "save_mean"):
        d.given[name] = d.tensor(channels, None, d.some(domains.is_moderate))
    for name in ("running_var", "save_invstd"):
        d.given[name] = d.tensor(channels, None, (1.0, 0.5, 3.0))


@rule("convolution_backward", 3, 4)
def _convolution_backward(d: Drawing) -> None:
    fractions(d)
    n, groups = d.whole(1, 2), d.whole(1, 2)
    batch, inner, outer = d.size(3), d.whole(1, 3) * groups, d.whole(1, 3) * groups
    image = [d.size(8) for _ in range(n)]
    kernel = [d.whole(1, 3) for _ in range(n)]
    stride, padding = ([d.whole(low, 2) for _ in range(n)] for low in (1, 0))
    d.given["input"] = d.tensor([batch, Size((inner,) * 3), *image])
    sides = [Size((k,) * 3) for k in (outer, inner // groups, *kernel)]
    d.given["weight"] = d.tensor(sides)
    windows = [
        pooled(x, k, s, p, False) for x, k, s, p in zip(image, kernel, stride, padding, strict=True)
    ]
    d.given["grad_output"] = d.tensor([batch, Size((outer,) * 3), *windows])
    d.given |= {"stride": stride, "padding": padding, "dilation": [1] * n}
    d.given |= {"transposed": False, "output_padding": [0] * n, "groups": groups}
    d.given["bias_sizes"] = None if d.chance(2) else [outer]


# Gradients' kernels look at few of their sizes and dtypes.
UNCHECKED.update(name for name in RULES if name.endswith("_backward"))
