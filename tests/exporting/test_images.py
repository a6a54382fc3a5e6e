"""Convolutions of exported programs, which keep images with dense channels inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using padding"),
]


def exported(folder: Path, model: nn.Module, *args: Any, **keywords: Any) -> Any:
    """The loaded program of a model. It is for this processor alone unless `cpu` says otherwise."""
    path = folder / "model.tenon"
    torch_tenon.export(model.eval(), args, path, **{"cpu": "native"} | keywords)
    return torch_tenon.load(path)


def trained(model: nn.Module) -> nn.Module:
    """The model with batch norms that have seen something."""
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0.0, 0.5)
            nn.init.uniform_(m.running_var, 0.5, 2.0)
            if m.affine:
                nn.init.normal_(m.weight)
                nn.init.normal_(m.bias)
    return model


class Layers(nn.Module):
    """Convolutions of every kind, each over the same images."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(
            [
                nn.Conv2d(19, 45, 3, padding=1),
                nn.Conv2d(19, 33, 1, bias=False),
                nn.Conv2d(19, 600, 1),
                nn.Conv2d(19, 8, 1, stride=2),
                nn.Conv2d(19, 70, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
                nn.Conv2d(19, 16, 5, padding="same", dilation=2),
                nn.Conv2d(19, 4, 4, padding="same"),
                nn.Conv2d(19, 7, 3, padding="valid"),
                nn.Conv2d(19, 5, 2, padding=7),
                nn.Conv2d(19, 19, 3, padding=1, groups=19),
                nn.Conv2d(19, 19, (2, 5), stride=2, padding=3, dilation=2, groups=19, bias=False),
                nn.Conv2d(19, 38, 3, padding=1, groups=19),
                nn.ConvTranspose2d(19, 6, 2, 2),
            ]
        )
        self.few = nn.Conv2d(3, 12, 3, 2, 1)
        self.groups = nn.Conv2d(18, 12, 3, 1, 1, groups=3)

    def forward(self, x: Tensor) -> list[Tensor]:
        y = [layer(x) for layer in self.each]
        return [*y, self.few(x[:, 4:7]), self.groups(F.relu(x[:, 1:]))]


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["native", "x86-64-v2", "x86-64-v3"])
def test_convolutions(tmp_path: Path, cpu: str) -> None:
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(2, 19, 13, 17)
    program = exported(tmp_path, model, x, cpu=cpu)
    for _ in range(2):
        x = torch.randn(2, 19, 13, 17)
        for found, expected in zip(program(x), model(x), strict=True):
            assert found.is_contiguous()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_any_number_of_images_of_any_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Layers()
    sizes = {0: Dim("n", min=2, max=9), 2: Dim("h", min=6, max=90), 3: Dim("w", min=6, max=90)}
    program = exported(tmp_path, model, torch.randn(2, 19, 14, 18), dynamic_shapes=(sizes,))
    for n, h, w in ((4, 6, 9), (3, 31, 29), (2, 57, 84)):
        x = torch.randn(n, 19, h, w)
        for found, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Network(nn.Module):
    """What lies between convolutions: norms, residuals, pooling, images joined and made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 20, 3, 2, 1), nn.BatchNorm2d(20), nn.Hardswish())
        self.two = nn.Sequential(nn.Conv2d(20, 20, 3, 1, 1, bias=False), nn.BatchNorm2d(20))
        self.three = nn.Sequential(
            nn.Conv2d(20, 20, 3, 1, 1, groups=20, bias=False),
            nn.BatchNorm2d(20, affine=False),
            nn.ReLU6(),
        )
        self.four = nn.Conv2d(40, 40, 1)
        self.norm, self.last = nn.BatchNorm2d(40), nn.Linear(40, 10)
        self.fifths = nn.Conv2d(20, 30, 3, 2, 1, groups=5)
        self.twice = nn.Conv2d(20, 40, 3, groups=20)
        self.groups, self.plain = nn.GroupNorm(4, 20), nn.GroupNorm(1, 20, affine=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.one(x)
        y = F.relu(self.two(x) + x)
        small = F.max_pool2d(self.three(y), 3, 2, 1)
        small = self.plain(self.groups(small) * 3 + 1)
        large = F.interpolate(F.avg_pool2d(small, 2, 1, 1), size=x.shape[2:], mode="bilinear")
        joined = torch.cat([y, large], 1)
        mixed = self.four(joined)
        # Read before its norm as well, which is no part of the weights then.
        normed = self.norm(mixed) * mixed.sigmoid()
        tokens = normed.flatten(2).transpose(1, 2)
        scores = self.last(normed.mean((2, 3)))
        others = [self.fifths(y).relu(), self.twice(y), mixed.permute(0, 2, 3, 1), small.flatten(1)]
        return scores, self.last(tokens), normed, *others


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 21, 40), (3, 32, 15)])
def test_networks(tmp_path: Path, size: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    n, h, w = size
    model, x = trained(Network()), torch.randn(n, 3, h, w)
    program = exported(tmp_path, model, x)
    x = torch.randn(n, 3, h, w)
    for found, expected in zip(program(x), model(x), strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found, expected.contiguous(), rtol=1e-4, atol=2e-5)


class Pools(nn.Module):
    """Maxima over windows that reach beyond the image, and the numbers of where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 18, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.first(x)
        return (
            *F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool2d(x, (4, 2), (3, 1), (2, 1)),
            F.max_pool2d(x, 3, 2, 1, dilation=2),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        )


def test_maxima_are_the_models(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Pools()
    program = exported(tmp_path, model, torch.randn(2, 3, 14, 17))
    x = torch.randn(2, 3, 14, 17)
    x[0, :, 3, 4] = torch.nan
    x[1, :, :6, :7] = -torch.inf
    for found, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class Heads(nn.Module):
    """One convolution over several images, each with a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(6, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(3)])

    def forward(self, x: Tensor) -> list[Tensor]:
        return [norm(self.one(x + k)) for k, norm in enumerate(self.norms)]


@pytest.mark.slow
def test_weights_of_several_norms_and_methods(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = trained(Heads()).eval()
    examples = {"small": torch.randn(1, 6, 8, 8), "large": torch.randn(2, 6, 16, 12)}
    programs = {name: torch.export.export(model, (x,)) for name, x in examples.items()}
    path = tmp_path / "heads.tenon"
    torch_tenon.export(programs, path=path, cpu="native", weights="apart")
    program = torch_tenon.load(path)
    for name, x in examples.items():
        for found, expected in zip(getattr(program, name)(x), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(load_file(path.with_suffix(".safetensors"))) == 6


@pytest.mark.slow
def test_loops_go_over_channels(tmp_path: Path) -> None:
    """A block of MobileNetV2 has no step that only moves images inside, but for borders."""
    model = nn.Sequential(
        nn.Conv2d(24, 96, 1, bias=False),
        *(nn.BatchNorm2d(96), nn.ReLU6()),
        nn.Conv2d(96, 96, 3, 1, 1, groups=96, bias=False),
        *(nn.BatchNorm2d(96), nn.ReLU6()),
        nn.Conv2d(96, 32, 1, bias=False),
        *(nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    program = exported(tmp_path, trained(model), torch.randn(1, 24, 16, 16))
    steps = program.head.methods[0].facts["steps"]
    # The image by channel, a product, two borders, the loop over channels, a product, the mean.
    assert len(steps) == 7
