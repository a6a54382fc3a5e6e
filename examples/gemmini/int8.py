"""Layers of bytes for the array, as modules that compile and export.

The product is an op of its own, `gemmini::int8_mm`, whose kernel is the array's. Tensors of the
host go there as copies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_tenon import KernelSource, custom_op

ARGUMENTS = [
    *("int32 result", "int8 x", "int8 y"),
    *("int64 size(x, 0)", "int64 size(y, 1)", "int64 size(x, 1)"),  # m, n, k
    *("int64 size(x, 1)", "int64 1", "int64 size(y, 1)", "int64 1"),  # strides
]


@custom_op(
    "gemmini::int8_mm(Tensor x, Tensor y) -> Tensor",
    kernels=[KernelSource("gemmini", "int8_product", "int8_product", ARGUMENTS)],
)
def int8_mm(x: Tensor, y: Tensor) -> Tensor:
    """The product of (M, K) and (K, N), in 32 bits."""
    return x.new_empty(x.shape[0], y.shape[1], dtype=torch.int32)


def quantized(x: Tensor, scale: Tensor) -> Tensor:
    """The nearest multiples of a scale, as bytes."""
    return (x / scale).round().clamp(-127, 127).to(torch.int8)


class Int8Linear(nn.Module):
    """A linear layer whose inputs and weights are bytes times a scale each."""

    weight: Tensor
    scale: Tensor
    input_scale: Tensor

    def __init__(self, linear: nn.Linear, largest: float) -> None:
        """`largest` is the greatest absolute value of an input."""
        super().__init__()
        w = linear.weight.detach()
        self.register_buffer("scale", w.abs().amax() / 127)
        self.register_buffer("input_scale", torch.tensor(largest / 127))
        self.register_buffer("weight", quantized(w, self.scale).t().contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """The layer over the last dimension."""
        sums = int8_mm(quantized(x.flatten(0, -2), self.input_scale), self.weight)
        return (sums * (self.scale * self.input_scale) + self.bias).unflatten(0, x.shape[:-1])
