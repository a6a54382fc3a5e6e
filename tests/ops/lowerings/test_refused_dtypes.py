"""Dtypes that PyTorch's kernels do not take are refused in graphs, where loops would compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch import Tensor

from tests.ops.lowerings.by_plan import compiled, on_tenon

pytestmark = needs.plans
aten = torch.ops.aten
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.complex64]
LINE, IMAGE, VOLUME = (4, 6), (1, 2, 4, 4), (1, 1, 4, 4, 4)


def _zeros(like: Tensor, *sizes: int) -> Tensor:
    """Indices, or classes."""
    return torch.zeros(sizes, dtype=torch.int64, device=like.device)


def _pad_backward(kind: str, rank: int) -> Callable[..., Any]:
    op = getattr(aten, f"{kind}_pad{rank}d_backward")
    return lambda g, x: op(g, x, [1] * (2 * rank))


PADDED = {1: [(4, 8), LINE], 2: [(1, 2, 6, 6), IMAGE], 3: [(1, 1, 6, 6, 6), VOLUME]}
# What is computed of tensors of a dtype, and their sizes.
OPS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "gelu": (lambda x: aten.gelu(x), [LINE]),
    "gelu, tanh": (lambda x: aten.gelu(x, approximate="tanh"), [LINE]),
    "gelu_backward": (lambda g, x: aten.gelu_backward(g, x), [LINE, LINE]),
    "silu": (lambda x: aten.silu(x), [LINE]),
    "mish": (lambda x: aten.mish(x), [LINE]),
    "hardswish": (lambda x: aten.hardswish(x), [LINE]),
    "elu": (lambda x: aten.elu(x), [LINE]),
    "log_sigmoid": (lambda x: aten.log_sigmoid_forward(x), [LINE]),
    "softplus": (lambda x: aten.softplus(x), [LINE]),
    "fmod": (lambda x, y: aten.fmod(x, y), [LINE, LINE]),
    "remainder": (lambda x, y: aten.remainder(x, y), [LINE, LINE]),
    "logcumsumexp": (lambda x: aten.logcumsumexp(x, 1), [LINE]),
    "adaptive_avg_pool3d_backward": (
        lambda g, x: aten._adaptive_avg_pool3d_backward(g, x),
        [(1, 1, 2, 2, 2), VOLUME],
    ),
    "avg_pool3d": (lambda x: aten.avg_pool3d(x, [2]), [VOLUME]),
    "avg_pool2d_backward": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2], [2], [0], False, True, None),
        [(1, 2, 2, 2), IMAGE],
    ),
    "avg_pool3d_backward": (
        lambda g, x: aten.avg_pool3d_backward(g, x, [2], [2], [0], False, True, None),
        [(1, 1, 2, 2, 2), VOLUME],
    ),
    "max_pool2d_backward": (
        lambda g, x: aten.max_pool2d_with_indices_backward(
            g, x, [2], [2], [0], [1], False, _zeros(x, 1, 2, 2, 2)
        ),
        [(1, 2, 2, 2), IMAGE],
    ),
    "max_pool3d_backward": (
        lambda g, x: aten.max_pool3d_with_indices_backward(
            g, x, [2], [2], [0], [1], False, _zeros(x, 1, 1, 2, 2, 2)
        ),
        [(1, 1, 2, 2, 2), VOLUME],
    ),
    "adaptive_max_pool2d_backward": (
        lambda g, x: aten.adaptive_max_pool2d_backward(g, x, _zeros(x, 1, 2, 2, 2)),
        [(1, 2, 2, 2), IMAGE],
    ),
    "fractional_max_pool2d_backward": (
        lambda g, x: aten.fractional_max_pool2d_backward(
            g, x, [2, 2], [2, 2], _zeros(x, 1, 2, 2, 2)
        ),
        [(1, 2, 2, 2), IMAGE],
    ),
    **{
        f"{kind}_pad{rank}d_backward": (_pad_backward(kind, rank), sizes)
        for kind in ("reflection", "replication")
        for rank, sizes in PADDED.items()
    },
    "cdist": (lambda x, y: aten._cdist_forward(x, y, 2.0, None), [LINE, LINE]),
    "cdist_backward": (
        lambda g, x, y, d: aten._cdist_backward(g, x, y, 2.0, d),
        [(4, 4), LINE, LINE, (4, 4)],
    ),
    "pdist": (lambda x: aten._pdist_forward(x, 2.0), [LINE]),
    "pdist_backward": (lambda g, x, d: aten._pdist_backward(g, x, 2.0, d), [(6,), LINE, (6,)]),
    "prelu": (aten._prelu_kernel, [LINE, (1, 6)]),
    "prelu_backward": (aten._prelu_kernel_backward, [LINE, LINE, (1, 6)]),
    "hardsigmoid_backward": (aten.hardsigmoid_backward, [LINE, LINE]),
    "hardswish_backward": (aten.hardswish_backward, [LINE, LINE]),
    "log_sigmoid_backward": (aten.log_sigmoid_backward, [LINE, LINE, LINE]),
    "silu_backward": (aten.silu_backward, [LINE, LINE]),
    "tanh_backward": (aten.tanh_backward, [LINE, LINE]),
    "sigmoid_backward": (aten.sigmoid_backward, [LINE, LINE]),
    "threshold_backward": (lambda g, x: aten.threshold_backward(g, x, 1), [LINE, LINE]),
    "glu_backward": (lambda g, x: aten.glu_backward(g, x, 1), [(4, 3), LINE]),
    "binary_cross_entropy": (aten.binary_cross_entropy, [LINE, LINE]),
    "binary_cross_entropy_backward": (aten.binary_cross_entropy_backward, [(), LINE, LINE]),
    "soft_margin_loss": (aten.soft_margin_loss, [LINE, LINE]),
    "soft_margin_loss_backward": (
        lambda g, x, y: aten.soft_margin_loss_backward(g, x, y, 1),
        [(), LINE, LINE],
    ),
    "mse_loss": (aten.mse_loss, [LINE, LINE]),
    "smooth_l1_loss": (aten.smooth_l1_loss, [LINE, LINE]),
    "huber_loss": (aten.huber_loss, [LINE, LINE]),
    "huber_loss_backward": (
        lambda g, x, y: aten.huber_loss_backward(g, x, y, 1, 1.0),
        [(), LINE, LINE],
    ),
    "nll_loss": (lambda x: aten.nll_loss_forward(x, _zeros(x, 4), None, 1, -100), [LINE]),
    "nll_loss2d": (
        lambda x: aten.nll_loss2d_forward(x, _zeros(x, 1, 4, 4), None, 1, -100),
        [IMAGE],
    ),
    "multi_margin_loss": (lambda x: aten.multi_margin_loss(x, _zeros(x, 4)), [LINE]),
    "multilabel_margin_loss": (
        lambda x: aten.multilabel_margin_loss_forward(x, _zeros(x, 4, 6), 1),
        [LINE],
    ),
    "batch_norm": (
        lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        [IMAGE],
    ),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", OPS)
def test_what_kernels_refuse_is_refused_in_graphs(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    compute, sizes = OPS[name]
    refused = 0
    for dtype in DTYPES:
        given = [torch.ones(size).to(dtype) for size in sizes]
        try:
            compute(*given)
        except RuntimeError:
            refused += 1
            with pytest.raises(RuntimeError):
                compiled(compute)(*on_tenon(given))
        else:
            compiled(compute)(*on_tenon(given))
    assert 0 < refused < len(DTYPES)
    # A lowering says what it does not cover, and none fails.
    said = [r.getMessage() for r in caplog.records if r.name.startswith("torch_tenon")]
    assert not [text for text in said if "failed" in text]
