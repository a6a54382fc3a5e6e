"""Models: speech, many small nets, signs for weights, half precision, masks, ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.scripts import Compile, Steps, script


@script
def speech(device: str, compile: Compile) -> Steps:
    """Letters of a sound by convolutions and the CTC loss, read off greedily."""
    sounds = torch.randn(28, 40)
    model = nn.Sequential(
        nn.Conv1d(40, 96, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(96),
        nn.Conv1d(96, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 28, 1),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    run = compile(model)
    for step in range(150):
        text = torch.randint(1, 28, (16, 12))
        sound = sounds[text].repeat_interleave(6, 1) + 0.5 * torch.randn(16, 72, 40)
        scores = run(sound.transpose(1, 2).to(device)).permute(2, 0, 1).log_softmax(2)
        longs = torch.full((16,), 72), torch.full((16,), 12)
        loss = F.ctc_loss(scores, text.to(device), *longs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        if step % 25 == 24:
            path = scores.argmax(2).t().cpu()
            right = 0
            for line, truth in zip(path, text, strict=True):
                short = torch.unique_consecutive(line)
                short = short[short != 0][:12]
                right += int((short == truth[: len(short)]).sum())
            yield right / text.numel()


@script
def sweep(device: str, compile: Compile) -> Steps:
    """A search at random over depth, width, rate and kind; the five best are trained on."""
    x = 4 * torch.rand(1024, 3) - 2
    y = (torch.sin(2 * x[:, :1]) * x[:, 1:2] + x[:, 2:].abs()).to(device)
    x = x.to(device)
    kinds = [nn.ReLU, nn.Tanh, nn.SiLU, nn.ELU]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
        run = compile(model)
        for _ in range(steps):
            loss = F.smooth_l1_loss(run(x[:768]), y[:768])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            return F.mse_loss(model(x[768:]), y[768:]).item()

    tried: list[tuple[float, int, nn.Module, torch.optim.Optimizer]] = []
    for number in range(24):
        depth, width = int(torch.randint(1, 4, ())), int(torch.randint(4, 12, ())) * 8
        kind = kinds[int(torch.randint(0, 4, ()))]
        layers: list[nn.Module] = [nn.Linear(3, width), kind()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), kind()]
        model = nn.Sequential(*layers, nn.Linear(width, 1)).to(device)
        rate = 10 ** (-3.5 + 1.5 * torch.rand(()).item())
        make: Any = torch.optim.Adam if number % 2 else torch.optim.RMSprop
        optimizer = make(model.parameters(), rate)
        tried.append((train(model, optimizer, 50), number, model, optimizer))
        yield tried[-1][0]
    for _, _, model, optimizer in sorted(tried, key=lambda t: t[:2])[:5]:
        yield train(model, optimizer, 100)


class Sign(torch.autograd.Function):
    """The sign going forward; going back the gradient passes where the input is small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Minus one and one."""
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Tensor:
        """The gradient, cut."""
        (x,) = ctx.saved_tensors
        return above[0] * (x.abs() <= 1)


class Signed(nn.Linear):
    """A linear layer that computes with the signs of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """The product, scaled by the weights' mean size."""
        return F.linear(x, Sign.apply(self.weight) * self.weight.abs().mean(), self.bias)


@script
def signs(device: str, compile: Compile) -> Steps:
    """A net whose weights and activations are signs, by a gradient of its own."""
    kinds = torch.randint(0, 10, (6400,))
    x = (torch.randn(10, 256)[kinds] + 2 * torch.randn(6400, 256)).to(device)
    y = kinds.to(device)
    first, second, last = Signed(256, 256), Signed(256, 256), nn.Linear(256, 10)
    norms = nn.BatchNorm1d(256), nn.BatchNorm1d(256)
    model = nn.ModuleList([first, second, last, *norms]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)

    def forward(x: Tensor) -> Tensor:
        x = Sign.apply(norms[0](first(x)))
        return last(F.hardtanh(norms[1](second(x))))

    run = compile(forward)
    for step in range(400):
        k = 64 * step % len(x)
        scores = run(x[k : k + 64])
        loss = F.multi_margin_loss(scores, y[k : k + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            first.weight.clamp_(-1, 1)
            second.weight.clamp_(-1, 1)
        if step % 5 == 4:
            yield loss.item()


@script
def halves(device: str, compile: Compile) -> Steps:
    """Weights in bfloat16 with copies in float32, a scaled loss, and statistics in float64."""
    x = torch.randn(4096, 128)
    y = torch.tanh(x @ torch.randn(128, 16) / 11).to(device)
    x = x.to(device)
    model = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 16))
    model = model.to(torch.bfloat16).to(device)
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.2, momentum=0.9)
    total = torch.zeros(16, dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.int64, device=device)
    run = compile(model)
    scale = 128.0
    for step in range(1000):
        k = 128 * step % len(x)
        out = run(x[k : k + 128].bfloat16()).float()
        loss = F.mse_loss(out, y[k : k + 128])
        (loss * scale).backward()
        finite = True
        for p, copy in zip(model.parameters(), copies, strict=True):
            copy.grad = p.grad.float() / scale
            p.grad = None
        if step % 25 == 24:
            finite = all(bool(torch.isfinite(c.grad).all()) for c in copies if c.grad is not None)
        if finite:
            optimizer.step()
            with torch.no_grad():
                for p, copy in zip(model.parameters(), copies, strict=True):
                    p.copy_(copy)
        with torch.no_grad():
            total += (out - y[k : k + 128]).double().square().sum(0)
            count += len(out)
        if step % 5 == 4:
            yield loss.item()
    yield (total / count).mean().item()


@script
def shapes(device: str, compile: Compile) -> Steps:
    """Discs found in pictures, pixel by pixel, by the Dice loss; the overlap is measured."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(24, 1, 3, padding=1),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
    run = compile(model)
    line = torch.arange(48.0)
    for step in range(120):
        middle, size = 12 + 24 * torch.rand(8, 2, 1, 1), 4 + 6 * torch.rand(8, 1, 1)
        far = (line.view(1, 48, 1) - middle[:, 0]) ** 2 + (line.view(1, 1, 48) - middle[:, 1]) ** 2
        truth = (far < size**2).float().unsqueeze(1)
        picture = (truth + 0.7 * torch.randn_like(truth)).to(device)
        truth = truth.to(device)
        chance = torch.sigmoid(run(picture))
        both = 2 * (chance * truth).sum((1, 2, 3)) + 1
        dice = 1 - both / (chance.sum((1, 2, 3)) + truth.sum((1, 2, 3)) + 1)
        loss = dice.mean() + F.binary_cross_entropy(chance, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()
        if step % 20 == 19:
            guess, real = chance.detach() > 0.5, truth > 0.5
            overlap = (guess & real).sum((1, 2, 3)) / (guess | real).sum((1, 2, 3)).clamp(min=1)
            yield overlap[real.flatten(1).any(1)].mean().item()


@script
def ranking(device: str, compile: Compile) -> Steps:
    """Lists of answers put in order, padded to one length, with gains that fall by rank."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.0), nn.Linear(64, 1))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    truth = torch.randn(32)

    def loss_of(x: Tensor, grade: Tensor, real: Tensor) -> Tensor:
        score = model(x).squeeze(2).masked_fill(~real, -1e4)
        apart = score.unsqueeze(2) - score.unsqueeze(1)
        better = (grade.unsqueeze(2) > grade.unsqueeze(1)) & real.unsqueeze(1) & real.unsqueeze(2)
        pairs = (F.softplus(-apart) * better).sum() / better.sum()
        target = F.softmax(grade.masked_fill(~real, -1e4), 1)
        return pairs - (target * F.log_softmax(score, 1)).sum(1).mean()

    run = compile(loss_of)
    for step in range(720):
        x = torch.randn(24, 40, 32)
        real = torch.arange(40) < torch.randint(10, 41, (24, 1))
        grade = ((x @ truth) / 4 + 2).clamp(0, 4).round() * real
        x, grade, real = x.to(device), grade.to(device), real.to(device)
        loss = run(x, grade, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            yield loss.item()
        if step % 60 == 59:
            with torch.no_grad():
                score = model(x).squeeze(2).masked_fill(~real, -1e4)
                gain = 2**grade - 1
                falls = 1 / torch.log2(torch.arange(2.0, 12.0, device=device))
                found = (gain.gather(1, score.topk(10, 1).indices) * falls).sum(1)
                best = (gain.topk(10, 1).values * falls).sum(1)
                yield (found / best.clamp(min=1e-6)).mean().item()
