"""What the benchmark runs: functions of fresh inputs, each with the bytes it has to move at least.

Sizes come from one scale, so that results can be checked at other shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Case:
    """A workload: `make(scale)` gives a function and its arguments.

    A training case has parameters: its function returns a loss, and a run includes the backward.
    """

    name: str
    make: Callable[[float], tuple[Callable[..., Any], tuple[Any, ...]]]
    training: bool = False


def _side(n: int, scale: float) -> int:
    return max(16, int(n * scale**0.5) // 16 * 16)


def _matrix(scale: float, rows: int = 4096, columns: int = 4096) -> torch.Tensor:
    return torch.randn(_side(rows, scale), _side(columns, scale))


def chain(scale: float) -> Any:
    """Five pointwise ops over one large array."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.tanh(x * 2 + 1).exp()) - x

    return f, (torch.randn(int(16 * 2**20 * scale)),)


def softmax(scale: float) -> Any:
    """Over the rows of a matrix."""
    return lambda x: torch.softmax(x, -1), (_matrix(scale, 8192, 1024),)


def log_softmax(scale: float) -> Any:
    """Over the rows of a matrix."""
    return lambda x: torch.log_softmax(x, -1), (_matrix(scale, 8192, 1024),)


def layer_norm(scale: float) -> Any:
    """With a residual."""
    x = _matrix(scale, 8192, 1024)
    w, b = torch.randn(x.shape[1]), torch.randn(x.shape[1])
    return lambda x, y, w, b: F.layer_norm(x + y, (x.shape[1],), w, b), (x, x + 1, w, b)


def sum_all(scale: float) -> Any:
    """To one number."""
    return lambda x: x.sum(), (_matrix(scale),)


def sum_rows(scale: float) -> Any:
    """Along memory."""
    return lambda x: x.sum(1), (_matrix(scale),)


def sum_columns(scale: float) -> Any:
    """Across memory."""
    return lambda x: x.sum(0), (_matrix(scale),)


def variance(scale: float) -> Any:
    """Of rows."""
    return lambda x: x.var(1), (_matrix(scale),)


def transpose(scale: float) -> Any:
    """Read across, write along."""
    return lambda x: x.t() + 1, (_matrix(scale),)


def sliced(scale: float) -> Any:
    """Every other column, and a shifted window."""
    return lambda x: x[1:-1, ::2] * 2 + x[:-2, ::2] + x[2:, ::2], (_matrix(scale),)


def gather(scale: float) -> Any:
    """Elements of rows by index."""
    x = _matrix(scale)
    return lambda x, i: x.gather(1, i) * 2, (x, torch.randint(0, x.shape[1], x.shape))


def scatter(scale: float) -> Any:
    """Rows added by index."""
    x = _matrix(scale, 8192, 1024)
    i = torch.randint(0, x.shape[0], (x.shape[0],))
    return lambda x, i: torch.zeros_like(x).index_add(0, i, x), (x, i)


def embedding(scale: float) -> Any:
    """Rows of a table, and a sum."""
    table = torch.randn(_side(32000, scale), 512)
    i = torch.randint(0, table.shape[0], (16, _side(512, scale)))
    return lambda t, i: F.embedding(i, t) + 1, (table, i)


def cross_entropy(scale: float) -> Any:
    """Forward and backward over a vocabulary."""
    x = _matrix(scale, 1024, 16384).requires_grad_()
    y = torch.randint(0, x.shape[1], (x.shape[0],))
    return lambda x, y: F.cross_entropy(x, y), (x, y)


def adamw(scale: float) -> Any:
    """One step over 100 tensors."""
    side = _side(256, scale)
    params = [torch.randn(side, side) for _ in range(100)]
    grads = [torch.randn_like(p) for p in params]
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]

    def f(params: Any, grads: Any, first: Any, second: Any, step: torch.Tensor) -> None:
        step.add_(1)
        for p, g, m, v in zip(params, grads, first, second, strict=True):
            p.mul_(1 - 1e-3 * 0.01)
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            size = 1e-3 / (1 - 0.9**step)
            p.sub_(size * m / ((v / (1 - 0.999**step)).sqrt() + 1e-8))

    return f, (params, grads, first, second, torch.zeros(()))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        parts = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small language model."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, at: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.tokens(at) + self.places(torch.arange(at.shape[1], device=at.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def gpt(scale: float) -> Any:
    """Four layers of width 256."""
    length = _side(128, scale)
    model = GPT(4096, 256, 8, 4, length)
    at = torch.randint(0, 4096, (8, length))
    return model, (at, at.roll(-1, 1))


def mlp(scale: float) -> Any:
    """Three layers on small inputs."""
    width = _side(512, scale)
    model = nn.Sequential(
        nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
    )
    y = torch.randint(0, 10, (256,))
    return Loss(model), (torch.randn(256, width), y)


class Loss(nn.Module):
    """A classifier with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)


def convnet(scale: float) -> Any:
    """Convolutions with batch norm and pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for n in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, n, 3, padding=1),
            nn.BatchNorm2d(n),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = n
    side = _side(64, scale)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return Loss(model), (torch.randn(16, 3, side, side), torch.randint(0, 10, (16,)))


CASES = [
    Case("pointwise chain", chain),
    Case("softmax", softmax),
    Case("log_softmax", log_softmax),
    Case("layer norm", layer_norm),
    Case("sum all", sum_all),
    Case("sum rows", sum_rows),
    Case("sum columns", sum_columns),
    Case("variance", variance),
    Case("transpose", transpose),
    Case("slices", sliced),
    Case("gather", gather),
    Case("scatter add", scatter),
    Case("embedding", embedding),
    Case("cross entropy", cross_entropy, True),
    Case("adamw", adamw),
    Case("mlp", mlp, True),
    Case("gpt", gpt, True),
    Case("convnet", convnet, True),
]
