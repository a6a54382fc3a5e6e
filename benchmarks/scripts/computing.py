"""Computing without learning: solvers, stencils, samples."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.scripts import Compile, Steps, script


@script
def heat(device: str, compile: Compile) -> Steps:
    """Heat that spreads over a plate, written in place through slices."""
    plate = torch.zeros(800, 800, device=device)
    plate[0], plate[-1] = 1.0, -1.0

    def steps(t: Tensor) -> Tensor:
        for _ in range(10):
            inside = t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]
            t[1:-1, 1:-1] = 0.25 * inside
        return t

    run = compile(steps)
    for _ in range(300):
        plate = run(plate)
        yield plate.abs().mean().item()


@script
def gradients(device: str, compile: Compile) -> Steps:
    """Linear systems by conjugate gradients, each until it is solved."""
    root = torch.randn(2500, 2500)
    matrix = (root @ root.t() / 2500 + 0.01 * torch.eye(2500)).to(device)
    for _ in range(10):
        right = torch.randn(2500).to(device)
        found = torch.zeros_like(right)
        rest = right - matrix @ found
        way, size = rest.clone(), rest @ rest
        for _ in range(500):
            image = matrix @ way
            length = size / (way @ image)
            found = found + length * way
            rest = rest - length * image
            fresh = rest @ rest
            way, size = rest + (fresh / size) * way, fresh
            error = size.sqrt().item()
            yield error
            if error < 1e-3:
                break


@script
def prices(device: str, compile: Compile) -> Steps:
    """The price of an option by many random walks; the noise comes from the host."""

    def price(noise: Tensor) -> Tensor:
        walk = torch.exp((0.0002 + 0.01 * noise).cumsum(1))
        return torch.relu(walk.mean(1) - 1.0).mean()

    run = compile(price)
    for _ in range(100):
        yield run(torch.randn(20_000, 100).to(device)).item()


@script
def samples(device: str, compile: Compile) -> Steps:
    """Random numbers of the device's own: the share of points in a circle, and a walk."""
    for _ in range(200):
        x, y = torch.rand(500_000, device=device), torch.rand(500_000, device=device)
        inside = (x * x + y * y < 1).float().mean()
        far = torch.randn(1000, 100, device=device).cumsum(1).abs().max(1).values.mean()
        yield (inside + 0.001 * far).item()


@script
def clusters(device: str, compile: Compile) -> Steps:
    """Points put into groups around their means."""
    count_of = 50_000
    points = torch.randn(16, 8)[torch.randint(0, 16, (count_of,))] * 4 + torch.randn(count_of, 8)
    points = points.to(device)
    middles = points[:16].clone()
    ones = torch.ones(count_of, device=device)
    for _ in range(150):
        apart = torch.cdist(points, middles)
        of = apart.argmin(1)
        count = torch.zeros(16, device=device).index_add_(0, of, ones)
        total = torch.zeros(16, 8, device=device).index_add_(0, of, points)
        middles = total / count.clamp(min=1).unsqueeze(1)
        yield apart.min(1).values.mean().item()


@script
def planets(device: str, compile: Compile) -> Steps:
    """Bodies that pull each other."""
    place, speed = torch.randn(300, 3).to(device), torch.zeros(300, 3, device=device)

    def step(place: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        apart = place.unsqueeze(0) - place.unsqueeze(1)
        pull = (apart / (apart.pow(2).sum(2, keepdim=True) + 0.1).pow(1.5)).sum(1)
        speed = speed + 0.0005 * pull
        return place + 0.01 * speed, speed

    run = compile(step)
    for k in range(2000):
        place, speed = run(place, speed)
        if k % 10 == 9:
            yield speed.pow(2).sum().item()


@script
def fractal(device: str, compile: Compile) -> Steps:
    """How soon points leave, on a plane of 600x800."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 600), torch.linspace(-2, 0.6, 800), indexing="ij")
    x, y = x.to(device), y.to(device)
    a, b, count = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for k in range(400):
        a, b = a * a - b * b + x, 2 * a * b + y
        a, b = a.clamp(-4, 4), b.clamp(-4, 4)
        count += (a * a + b * b < 4).float()
        if k % 10 == 9:
            yield count.mean().item()
