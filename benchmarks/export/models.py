"""Models of common kinds and sizes, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Case(NamedTuple):
    """A model in evaluation mode, and arguments."""

    model: nn.Module
    args: tuple[Tensor, ...]


class Inverted(nn.Module):
    """MobileNetV2's block: wider, by channel, narrower; added to its input where sizes agree."""

    def __init__(self, before: int, after: int, stride: int, wider: int) -> None:
        super().__init__()
        middle = before * wider
        layers: list[nn.Module] = []
        if wider != 1:
            layers += [nn.Conv2d(before, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU6()]
        layers += [
            nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False),
            *(nn.BatchNorm2d(middle), nn.ReLU6()),
            *(nn.Conv2d(middle, after, 1, bias=False), nn.BatchNorm2d(after)),
        ]
        self.body = nn.Sequential(*layers)
        self.is_added = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.is_added else y


def mobilenet() -> Case:
    """MobileNetV2, 224 x 224."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    rows += [(6, 160, 3, 2), (6, 320, 1, 1)]
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6())
    ]
    before = 32
    for wider, after, count, stride in rows:
        for k in range(count):
            layers.append(Inverted(before, after, stride if k == 0 else 1, wider))
            before = after
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    model = nn.Sequential(*layers).eval()
    # PyTorch's own weights shrink the image to 1e-7, which leaves the last bias alone to compare.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return Case(model, (torch.randn(1, 3, 224, 224),))


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = (
            nn.Identity()
            if stride == 1 and before == after
            else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_one(self.one(x)))
        return F.relu(self.norm_two(self.two(y)) + self.short(x))


def resnet() -> Case:
    """ResNet-18, 224 x 224."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for after in (64, 128, 256, 512):
        stride = 1 if after == 64 else 2
        layers += [Residual(before, after, stride), Residual(after, after, 1)]
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return Case(nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),))


class ViT(nn.Module):
    """A vision transformer, small: 384 wide, 12 layers, patches of 16 x 16."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 197, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.position
        out: Tensor = self.head(self.body(y)[:, 0])
        return out


def vit() -> Case:
    """A small vision transformer, 224 x 224."""
    return Case(ViT().eval(), (torch.randn(1, 3, 224, 224),))


class Bert(nn.Module):
    """An encoder of BERT-base's sizes."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        out: Tensor = self.body(self.norm(x))
        return out


def bert() -> Case:
    """An encoder of BERT-base's sizes, 128 tokens."""
    return Case(Bert().eval(), (torch.randint(0, 30522, (1, 128)),))


class Attention(nn.Module):
    """Causal attention that keeps the keys and values of what it has seen."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        cache = torch.zeros(1, heads, longest, width // heads)
        self.register_buffer("keys", cache, persistent=False)
        self.register_buffer("values", cache.clone(), persistent=False)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            y.view(batch, length, self.heads, -1).transpose(1, 2)
            for y in self.qkv(x).split(width, 2)
        )
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        seen = torch.arange(self.keys.shape[2], device=x.device)[None] <= places[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class GPTBlock(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, longest)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = x + self.attention(self.norm_one(x), places)
        out: Tensor = x + self.mlp(self.norm_two(x))
        return out


class GPT(nn.Module):
    """A decoder of GPT-2's sizes, with a cache of keys and values: prompts and single tokens are
    the same function at other lengths."""

    def __init__(
        self,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        words: int = 50257,
        longest: int = 256,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(GPTBlock(width, heads, longest) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, places)
        out: Tensor = self.head(self.norm(x[:, -1:]))
        return out


def gpt_prefill() -> Case:
    """GPT-2's sizes, a prompt of 64 tokens."""
    return Case(GPT().eval(), (torch.randint(0, 50257, (1, 64)), torch.arange(64)))


def gpt_decode() -> Case:
    """GPT-2's sizes, a token."""
    return Case(GPT().eval(), (torch.randint(0, 50257, (1, 1)), torch.tensor([64])))


class Tagger(nn.Module):
    """Two layers of an LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10000, 256)
        self.lstm = nn.LSTM(256, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 20)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.words(ids))[0])
        return out


def lstm() -> Case:
    """A tagger by a two-layer LSTM, 32 words."""
    return Case(Tagger().eval(), (torch.randint(0, 10000, (1, 32)),))


class Twice(nn.Sequential):
    """Two convolutions of a U-Net."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            *(nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU()),
            *(nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU()),
        )


class UNet(nn.Module):
    """Down three times, and up again, with what was seen on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Twice(3, 32), Twice(32, 64), Twice(64, 128)])
        self.middle = Twice(128, 128)
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(128, 128, 2, 2),
                nn.ConvTranspose2d(64, 64, 2, 2),
                nn.ConvTranspose2d(32, 32, 2, 2),
            ]
        )
        self.join = nn.ModuleList([Twice(256, 64), Twice(128, 32), Twice(64, 32)])
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        out: Tensor = self.last(x)
        return out


def unet() -> Case:
    """A U-Net, 128 x 128."""
    return Case(UNet().eval(), (torch.randn(1, 3, 128, 128),))


class Experts(nn.Module):
    """Feed-forward layers of which each token takes two: all are computed, and weighed."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        first = scores.max(-1, keepdim=True)[0]
        second = scores.masked_fill(scores >= first, 0).max(-1, keepdim=True)[0]
        share = torch.where(scores >= second, scores, 0)
        share = share / share.sum(-1, keepdim=True)
        y = F.silu(torch.einsum("btw,ewh->bteh", x, self.up))
        return torch.einsum("bteh,ehw,bte->btw", y, self.down, share)


class Mixture(nn.Module):
    """A small decoder with experts and rotated positions, as Mixtral has them."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, width)
        self.heads = heads
        self.parts = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_one": nn.RMSNorm(width),
                    "norm_two": nn.RMSNorm(width),
                    "qkv": nn.Linear(width, 3 * width, bias=False),
                    "out": nn.Linear(width, width, bias=False),
                    "experts": Experts(width, 8),
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 8000, bias=False)
        angle = torch.arange(512)[:, None] / 10000 ** (torch.arange(32) / 32)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        batch, length, width = x.shape
        for part in self.parts:
            y = part["qkv"](part["norm_one"](x))
            q, k, v = (
                z.view(batch, length, self.heads, -1).transpose(1, 2) for z in y.chunk(3, -1)
            )
            y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            x = x + part["out"](y.transpose(1, 2).reshape(batch, length, width))
            x = x + part["experts"](part["norm_two"](x))
        out: Tensor = self.head(x)
        return out


def mixture() -> Case:
    """A small mixture of experts, 64 tokens."""
    return Case(Mixture().eval(), (torch.randint(0, 8000, (1, 64)),))


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (mobilenet, resnet, vit, bert, gpt_prefill, gpt_decode, lstm, unet, mixture)
}


def case(name: str) -> Case:
    """A case with the same weights and arguments each time."""
    torch.manual_seed(0)
    return CASES[name]()


def outputs_of(x: Any) -> list[Tensor]:
    """The tensors that a model gives, in order."""
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, Tensor)]
