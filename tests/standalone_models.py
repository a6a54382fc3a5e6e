"""Small models, built as the well-known ones are, for what has to serve any of them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def _unit(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 6 * before
        self.adds = stride == 1 and before == after
        self.body = nn.Sequential(
            _unit(before, wide, 1),
            _unit(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet() -> nn.Module:
    return nn.Sequential(
        _unit(3, 8, 3, 2),
        InvertedResidual(8, 12, 2),
        InvertedResidual(12, 12, 1),
        _unit(12, 40, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(40, 10),
    )


class Residual(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.skip = nn.Sequential()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.skip(x))


def resnet18() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


class UNet(nn.Module):
    """Two levels, with transposed convolution and with interpolation on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._pair(3, 8), self._pair(8, 16), self._pair(16, 32)])
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.across = nn.ModuleList([self._pair(32, 16), self._pair(24, 8)])
        self.last = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _pair(before: int, after: int) -> nn.Module:
        def conv(n: int) -> list[nn.Module]:
            return [nn.Conv2d(n, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]

        return nn.Sequential(*conv(before), *conv(after))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](functional.max_pool2d(a, 2))
        c = self.up(self.down[2](functional.avg_pool2d(b, 2)))
        b = self.across[0](torch.cat([b, c], 1))
        b = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.across[1](torch.cat([a, b], 1)))


class ViT(nn.Module):
    """Patches, a class token, and layers of attention that norm first."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


class CachedAttention(nn.Module):
    """One step of a decoder of grouped queries, which keeps keys and values in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 32)
        self.out, self.norm = nn.Linear(32, 32), nn.RMSNorm(32)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 8))
        self.register_buffer("values", torch.zeros(1, 2, 16, 8))

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        x = self.embed(token)
        y = self.norm(x)
        q = self.q(y).view(1, 1, 4, 8).transpose(1, 2)
        k, v = self.kv(y).view(1, 1, 2, 2, 8).unbind(2)
        self.keys[:, :, place] = k.transpose(1, 2)
        self.values[:, :, place] = v.transpose(1, 2)
        seen = torch.arange(16) <= place.unsqueeze(-1)
        y = functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=seen, enable_gqa=True
        )
        return (x + self.out(y.transpose(1, 2).reshape(1, 1, 32))) @ self.embed.weight.t()


class Causal(nn.Module):
    """Causal attention without a mask tensor."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


class Experts(nn.Module):
    """A mixture of experts, of which the two best by a router count, whatever the token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.inner = nn.Parameter(torch.randn(4, 16, 24) / 4)
        self.outer = nn.Parameter(torch.randn(4, 24, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        best = chances.amax(-1, keepdim=True)
        rest = torch.where(chances == best, 0, chances)
        weights = torch.where(chances >= rest.amax(-1, keepdim=True), chances, 0)
        y = functional.silu(torch.einsum("ti,eih->eth", x, self.inner)) @ self.outer
        return torch.einsum("te,eth->th", weights / weights.sum(-1, keepdim=True), y)


class Tagger(nn.Module):
    """Embeddings, of words and of all of them, and a recurrent layer."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.bag = nn.EmbeddingBag(50, 16, mode="mean")
        self.cells = kind(16, 12, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.bag(tokens).unsqueeze(1)
        return self.head(self.cells(x)[0]).log_softmax(-1)


def _image(*sizes: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(sizes),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mobilenet": (mobilenet, _image(1, 3, 64, 64)),
    "resnet18": (resnet18, _image(2, 3, 64, 64)),
    "unet": (UNet, _image(1, 3, 32, 32)),
    "vit": (ViT, _image(2, 3, 32, 32)),
    "cached_attention": (
        CachedAttention,
        lambda: (torch.tensor([[7]]), torch.tensor([3])),
    ),
    "causal_attention": (Causal, lambda: tuple(torch.randn(3, 2, 4, 9, 8).unbind())),
    "experts": (Experts, _image(9, 16)),
    "lstm_tagger": (lambda: Tagger(nn.LSTM), lambda: (torch.randint(0, 50, (3, 4)),)),
    "gru_tagger": (lambda: Tagger(nn.GRU), lambda: (torch.randint(0, 50, (3, 4)),)),
}
