"""Models that learn: images, a game, points."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.scripts import Compile, Steps, script


def images(count: int, size: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Pictures of ten kinds, each a pattern with noise."""
    patterns = torch.randn(10, channels, size, size)
    kinds = torch.randint(0, 10, (count,))
    return patterns[kinds] + 0.5 * torch.randn(count, channels, size, size), kinds


@script
def cnn(device: str, compile: Compile) -> Steps:
    """A convnet on pictures of 28x28, three epochs and a last batch that is smaller."""
    x, y = images(4000, 28)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    run = compile(model)
    for _ in range(3):
        order = torch.randperm(len(x))
        for k in range(0, len(x), 64):
            i = order[k : k + 64]
            loss = F.cross_entropy(run(x[i].to(device)), y[i].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()


@script
def mlp(device: str, compile: Compile) -> Steps:
    """A perceptron with dropout on 784 numbers, evaluated after each epoch."""
    x, y = images(10_000, 28)
    x, y = x.flatten(1).to(device), y.to(device)
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    run = compile(model)
    for _ in range(8):
        model.train()
        for k in range(0, len(x), 128):
            loss = F.cross_entropy(run(x[k : k + 128]), y[k : k + 128])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
        model.eval()
        with torch.no_grad():
            yield (run(x).argmax(1) == y).float().mean().item()


@script
def gan(device: str, compile: Compile) -> Steps:
    """A generator and a critic that learn from each other."""
    make = nn.Sequential(nn.Linear(32, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Tanh())
    judge = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    make, judge = make.to(device), judge.to(device)
    of_make = torch.optim.Adam(make.parameters(), 2e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-4, betas=(0.5, 0.999))
    run_make, run_judge = compile(make), compile(judge)
    wave = torch.linspace(0, 2 * math.pi, 64)
    ones, zeros = torch.ones(64, 1, device=device), torch.zeros(64, 1, device=device)
    for _ in range(1500):
        real = torch.sin(wave + 2 * math.pi * torch.rand(64, 1)).to(device)
        fake = run_make(torch.randn(64, 32).to(device))
        against = F.binary_cross_entropy_with_logits
        loss = against(run_judge(real), ones) + against(run_judge(fake.detach()), zeros)
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        trick = against(run_judge(fake), ones)
        of_make.zero_grad()
        trick.backward()
        of_make.step()
        yield loss.item() + trick.item()


@script
def autoencoder(device: str, compile: Compile) -> Steps:
    """A variational autoencoder; its noise is drawn on the host, to be the same everywhere."""
    x = torch.sigmoid(images(8192, 28)[0].flatten(1)).to(device)
    encode = nn.Sequential(nn.Linear(784, 400), nn.SiLU(), nn.Linear(400, 32)).to(device)
    decode = nn.Sequential(nn.Linear(16, 400), nn.SiLU(), nn.Linear(400, 784)).to(device)
    parameters = [*encode.parameters(), *decode.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    run_encode, run_decode = compile(encode), compile(decode)
    for step in range(600):
        k = 128 * step % len(x)
        mean, spread = run_encode(x[k : k + 128]).chunk(2, 1)
        drawn = mean + torch.exp(0.5 * spread) * torch.randn(128, 16).to(device)
        back = F.binary_cross_entropy_with_logits(run_decode(drawn), x[k : k + 128])
        loss = back - 0.001 * (1 + spread - mean**2 - spread.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        yield loss.item()


@script
def policy(device: str, compile: Compile) -> Steps:
    """A pole that is balanced: each move is sampled by the host, each episode is learned from."""
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    run = compile(model)
    for _ in range(400):
        x, v, angle, turn = (0.1 * torch.rand(4) - 0.05).tolist()
        states, moves = [], []
        for _ in range(200):
            state = torch.tensor([[x, v, angle, turn]])
            with torch.no_grad():
                left = torch.softmax(run(state.to(device)), 1)[0, 0].item()
            move = 0 if torch.rand(()).item() < left else 1
            states.append(state)
            moves.append(move)
            force = 10.0 if move else -10.0
            pull = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
            bend = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (
                0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
            )
            push = pull - 0.05 * bend * math.cos(angle) / 1.1
            x, v = x + 0.02 * v, v + 0.02 * push
            angle, turn = angle + 0.02 * turn, turn + 0.02 * bend
            if abs(x) > 2.4 or abs(angle) > 0.21:
                break
        gains = torch.tensor([0.99**k for k in range(len(moves))]).flip(0).cumsum(0).flip(0)
        gains = ((gains - gains.mean()) / (gains.std() + 1e-6)).to(device)
        log = F.log_softmax(run(torch.cat(states).to(device)), 1)
        chosen = log.gather(1, torch.tensor(moves).unsqueeze(1).to(device)).squeeze(1)
        loss = -(chosen * gains).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@script
def many_models(device: str, compile: Compile) -> Steps:
    """Forty small models of different widths, each trained for a hundred steps."""
    x = torch.randn(256, 8).to(device)
    y = (x**2).sum(1, keepdim=True)
    for width in range(8, 48):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1)).to(device)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        run = compile(model)
        for _ in range(100):
            loss = F.mse_loss(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield loss.item()


@script
def batches(device: str, compile: Compile) -> Steps:
    """A trained model that answers requests of all sizes."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 100),
    ).to(device)  # fmt: skip
    run = compile(model.eval())
    sizes = torch.randint(1, 33, (800,)).tolist()
    with torch.no_grad():
        for size in sizes:
            picture = torch.rand(size, 3, 64, 64).to(device)
            yield run((picture - 0.5) / 0.25).softmax(1).max(1).values.sum().item()
