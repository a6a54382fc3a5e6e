"""What gradients that take indices or masks have to satisfy, and ops of whole numbers, as
`constraints.py`. The CPU's kernels of these gradients look at few of their sizes."""

from __future__ import annotations

from typing import Any

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import UNCHECKED, names_of, rule
from torch_tenon.testing.space.drawing import Drawing, Size
from torch_tenon.testing.space.image_constraints import pooled
from torch_tenon.testing.space.loss_constraints import fractions


def _fixed(n: int) -> Size:
    return Size((n,) * 3)


@rule("binary_cross_entropy_with_logits", 0, 3)
def _cross_entropy_with_logits(d: Drawing) -> None:
    fractions(d)
    d.given["self"] = d.tensor(d.shape)
    d.given["target"] = d.tensor(d.shape, None, (0.25, 1.0, 0.0, 0.5))
    for name in ("weight", "pos_weight"):
        d.given[name] = None if d.chance(2) else d.tensor(d.shape[d.whole(0, len(d.shape)) :])
    d.given["reduction"] = d.whole(0, 2)


@rule("grid_sampler_2d_backward grid_sampler_3d_backward", 4, 5)
def _grid_backward(d: Drawing) -> None:
    fractions(d)
    n = 3 if d.name == "grid_sampler_3d_backward" else 2
    lead, out = [d.size(3), d.size(3)], [d.size(4) for _ in range(n)]
    d.shape = [*lead, *(Size.of(d.whole(1, 5)) for _ in range(n))]
    moderate = d.some(domains.is_moderate)
    d.given["grad_output"] = d.tensor([*lead, *out], None, moderate)
    d.given["input"] = d.tensor(d.shape, None, d.some(domains.is_moderate))
    places = (0.3, -0.7, 0.0, 1.0, -1.0, 0.95, 1.3, -2.6)
    d.given["grid"] = d.tensor([lead[0], *out, _fixed(n)], None, places)
    d.given["interpolation_mode"] = d.whole(0, 2 if n == 2 else 1)
    d.given["padding_mode"] = d.whole(0, 2)
    d.given["output_mask"] = [d.chance(2), True]


def _max_pool_backward(n: int) -> None:
    @rule(f"max_pool{n}d_with_indices_backward", n + 1, n + 2)
    def entry(d: Drawing) -> None:
        """The kernel writes wherever an index says."""
        fractions(d)
        d.shape = [Size.of(d.whole(1, 8)) for _ in range(n + d.whole(1, 2))]
        kernel = d.given["kernel_size"] = [d.whole(1, 3) for _ in range(n)]
        stride = d.given["stride"] = [d.whole(1, 2) for _ in range(n)]
        padding = d.given["padding"] = [d.whole(0, k // 2) for k in kernel]
        upwards = d.given["ceil_mode"] = d.chance(2)
        d.given["dilation"] = [1] * n
        d.given["self"] = d.tensor(d.shape)
        windows = [
            pooled(x, k, s, p, upwards)
            for x, k, s, p in zip(d.shape[-n:], kernel, stride, padding, strict=True)
        ]
        shape = [*d.shape[:-n], *windows]
        d.given["grad_output"] = d.tensor(shape)
        count = 1
        for x in d.shape[-n:]:
            count *= x[0]
        at = [d.whole(0, count - 1) for _ in range(4)]
        d.given["indices"] = d.tensor(shape, "int64", at, times=1, expanded=[])


_max_pool_backward(2)
_max_pool_backward(3)
_BAGS = (
    "_embedding_bag_backward _embedding_bag_dense_backward "
    "_embedding_bag_per_sample_weights_backward"
)


@rule(_BAGS, 2, 2)
def _bags_backward(d: Drawing) -> None:
    """Which bag an index is in rises with it, as the forward says."""
    if d.dtype not in ("float32", "float64"):
        d.dtype = "float32"
    rows, bags, count = d.whole(1, 9), d.whole(1, 5), d.whole(0, 9)
    width = d.size(8)
    mode = d.given["mode"] = 0 if "weight" in names_of(d) else d.whole(0, 2)
    d.given["num_weights"] = rows
    plain: dict[str, Any] = {"times": 1, "expanded": []}
    moderate = d.some(domains.is_moderate)
    d.given["grad"] = d.tensor([_fixed(bags), width], None, moderate, expanded=[])
    d.given["weight"] = d.tensor([_fixed(rows), width], None, d.some(domains.is_moderate))
    indices = [d.whole(0, rows - 1) for _ in range(max(1, count))]
    d.given["indices"] = d.tensor([_fixed(count)], "int64", indices, **plain)
    bag_of = sorted(d.whole(0, bags - 1) for _ in range(max(1, count)))
    d.given["offset2bag"] = d.tensor([_fixed(count)], "int64", bag_of, **plain)
    starts = [sum(b < k for b in bag_of[:count]) for k in range(bags)]
    d.given["offsets"] = d.tensor([_fixed(bags)], "int64", starts, **plain)
    sizes = [bag_of[:count].count(k) for k in range(bags)]
    d.given["bag_size"] = d.tensor([_fixed(bags)], "int64", sizes, **plain)
    greatest = [_fixed(bags), width] if mode == 2 else [_fixed(0)]
    d.given["maximum_indices"] = d.tensor(greatest, "int64", indices, **plain)
    some = mode == 0 and d.chance(3)
    weights = d.tensor([_fixed(count)], None, d.some(domains.is_moderate), expanded=[])
    d.given["per_sample_weights"] = weights if some else None
    d.given["padding_idx"] = d.whole(-1, rows - 1) if d.chance(2) else -1
    d.given["sparse"] = False


@rule("_scaled_dot_product_flash_attention_for_cpu_backward", 4, 4)
def _attention_backward(d: Drawing) -> None:
    """Sums of exponentials that are those of no forward: the kernel takes any. It takes rows for
    elements in a row, whatever their strides."""
    fractions(d)
    batch, heads, n, m = (Size.of(d.whole(1, k)) for k in (3, 3, 9, 9))
    width = Size.of(d.whole(1, 9))
    moderate = d.some(domains.is_moderate)
    for name, rows in (("grad_out", n), ("query", n), ("key", m), ("value", m), ("out", n)):
        d.given[name] = d.tensor([batch, heads, rows, width], None, moderate, expanded=[])
    wide = "float64" if d.dtype == "float64" else "float32"
    d.given["logsumexp"] = d.tensor([batch, heads, n], wide, (3.0, 5.5, 4.0))
    d.given["dropout_p"] = 0.0
    d.given["attn_mask"] = None
    d.given["is_causal"] = d.chance(3)
    d.given["scale"] = d.one((None, 1.0, 0.5))


@rule("_is_all_true _is_any_true")
def _truth(d: Drawing) -> None:
    d.given["self"] = d.tensor(d.shape, "bool")


@rule("one_hot", 0, 3)
def _one_hot(d: Drawing) -> None:
    classes = d.whole(1, 9)
    d.given["self"] = d.index(d.some_shape(0, 3, 64), classes)
    d.given["num_classes"] = d.one((classes, classes + 3, -1))


@rule("cauchy geometric exponential log_normal", 0, 4)
def _distribution(d: Drawing) -> None:
    fractions(d)
    d.given["self"] = d.tensor(d.shape)
    d.given |= {"sigma": d.one((1.0, 0.5, 100.0)), "std": d.one((1.0, 0.5, 100.0))}
    d.given |= {"p": d.one((0.5, 0.01, 0.99)), "lambd": d.one((1.0, 0.1, 30.0))}


UNCHECKED.update(
    (
        *_BAGS.split(),
        *(f"max_pool{n}d_with_indices_backward" for n in (2, 3)),
        *(f"grid_sampler_{n}d_backward" for n in (2, 3)),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
