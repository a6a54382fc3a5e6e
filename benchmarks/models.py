"""The benchmark's models. Those that train give their loss."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


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


class Classifier(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)


def mlp(width: int) -> nn.Module:
    """Three layers."""
    return Classifier(
        nn.Sequential(
            nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)
        )
    )


def convnet() -> nn.Module:
    """Three convolutions, each with batch norm, ReLU and pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for n in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, n, 3, padding=1, bias=False),  # the norm takes a bias away
            nn.BatchNorm2d(n),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = n
    return Classifier(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    )


class Recurrent(nn.Module):
    """An LSTM and a classifier of its mean output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.cells(x)[0].mean(1)), y)


class Logits(nn.Module):
    """A model of transformers from tokens to logits."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=at, **self.options).logits


SIZES = {"vocab_size": 8192, "num_hidden_layers": 2}


def bert() -> nn.Module:
    """With random weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    config = transformers.BertConfig(**SIZES, hidden_size=768, num_attention_heads=12)
    return Logits(transformers.BertForMaskedLM(config))


def llama() -> nn.Module:
    """With random weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    config = transformers.LlamaConfig(
        **SIZES,
        hidden_size=512,
        intermediate_size=1408,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    return Logits(transformers.LlamaForCausalLM(config), use_cache=False)
