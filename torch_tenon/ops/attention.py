"""The attention ops of a private device as the CPU's, which compiled graphs call.

`scaled_dot_product_attention` on the device asks for the ops that PyTorch keeps free for devices
like this one; their fake kernels promise less than what the host's kernel gives (a log-sum-exp in
float64 for float64, gradients laid out by sequence), so graphs are traced through the host's op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The output and the log-sum-exp; what kernels with random numbers return besides is empty."""
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale
    )
    none = torch.empty(0, dtype=torch.int64, device=query.device)
    return (out, logsumexp, none, none, query.size(2), key.size(2), none, none, none)


def fused_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Gradients of query, key and value. The CPU takes another way where the mask needs one."""
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        dropout_p,
        is_causal,
        attn_mask=attn_bias,
        scale=scale,
    )
    return (*grads, None)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_fused_attention_overrideable.default: fused_attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: (
        fused_attention_backward
    ),
}
