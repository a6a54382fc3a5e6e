"""A network in the manner of MobileNetV2 whose activations are a kernel written by hand.

Trains it for a few steps on `tenon`, by eager code and by torch.compile, and on the CPU, and prints
the losses and the milliseconds of a step.

    python examples/softshrink/network.py [--steps N] [--batch N] [--size N]

The op `softshrink::softshrink` and its backward are declared in softshrink.yaml, with a kernel for
the host and one for OpenCL devices. They run wherever the op is called, in one plan with what is
generated around them.
"""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import torch_tenon

OPS = torch_tenon.load_kernels(Path(__file__).parent / "softshrink.yaml")


class Softshrink(nn.Module):
    """The op as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.softshrink.softshrink(x, 0.1)


class InvertedResidual(nn.Module):
    """(N, C, H, W) to (N, out, H / stride, W / stride): widened, filtered by channel, narrowed."""

    def __init__(self, channels: int, out: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = channels * widening
        self.adds = stride == 1 and channels == out
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            Softshrink(),
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            Softshrink(),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class Network(nn.Module):
    """Images (N, 3, H, W) to logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            Softshrink(),
            InvertedResidual(16, 16, stride=1, widening=2),
            InvertedResidual(16, 24, stride=2, widening=4),
            InvertedResidual(24, 24, stride=1, widening=4),
            InvertedResidual(24, 32, stride=2, widening=4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def train(
    device: str, steps: int, batch: int, size: int, compiled: bool = False
) -> tuple[list[float], list[float]]:
    """The loss and the seconds of each step, on images and labels that are always the same."""
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    model = Network().to(device)
    step = torch.compile(model) if compiled else model
    images, labels = images.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(step(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 20,
    batch: Annotated[int, typer.Option(help="Images in a batch.")] = 8,
    size: Annotated[int, typer.Option(help="Height and width of an image.")] = 32,
) -> None:
    """Trains the network in three ways, and prints how it went."""
    ways = (("cpu", "cpu", False), ("tenon", "tenon", False), ("tenon, compiled", "tenon", True))
    for name, device, compiled in ways:
        losses, seconds = train(device, steps, batch, size, compiled)
        typer.echo(
            f"{name:16} loss {losses[0]:.4f} to {losses[-1]:.4f}, "
            f"{1e3 * sorted(seconds)[len(seconds) // 2]:.1f} ms a step"
        )


if __name__ == "__main__":
    typer.run(main)
