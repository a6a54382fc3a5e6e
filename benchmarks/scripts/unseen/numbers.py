"""Numbers: small systems, moving windows, trees, hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.scripts import Compile, Steps, script


@script
def systems(device: str, compile: Compile) -> Steps:
    """Many small systems at once: curves fitted with weights, and normal equations solved."""
    for _ in range(100):
        x = 2 * torch.rand(2000, 30) - 1
        y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
        x, y = x.to(device), y.to(device)
        powers = torch.stack([x**k for k in range(5)], 2)
        weight = torch.ones_like(x)
        found = torch.zeros(2000, 5, device=device)
        for _ in range(4):
            heavy = powers * weight.unsqueeze(2)
            left = powers.transpose(1, 2) @ heavy + 1e-3 * torch.eye(5, device=device)
            right = (heavy.transpose(1, 2) @ y.unsqueeze(2)).squeeze(2)
            root = torch.linalg.cholesky(left)
            found = torch.cholesky_solve(right.unsqueeze(2), root).squeeze(2)
            rest = y - (powers @ found.unsqueeze(2)).squeeze(2)
            scale = 1.5 * rest.abs().median(1, keepdim=True).values + 1e-6
            weight = 1 / (1 + (rest / scale) ** 2)
            yield rest.abs().mean().item()
        yield torch.linalg.det(left).log().mean().item() + found.norm(dim=1).mean().item()


@script
def indicators(device: str, compile: Compile) -> Steps:
    """Features of many series by moving windows, and a rule that trades by them."""

    def features(price: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        change = price[:, 1:].log() - price[:, :-1].log()
        window = change.unfold(1, 20, 1)
        mean, spread = window.mean(2), window.std(2)
        slow, fast = price.unfold(1, 50, 1).mean(2), price.unfold(1, 10, 1).mean(2)
        up, down = window.clamp(min=0).mean(2), (-window).clamp(min=0).mean(2)
        strength = up / (up + down + 1e-9)
        channel = price.unfold(1, 20, 1)
        place = (channel[:, :, -1] - channel.amin(2)) / (channel.amax(2) - channel.amin(2) + 1e-9)
        return mean / (spread + 1e-9), fast[:, 40:] - slow, strength + place[:, 1:]

    run = compile(features)
    for _ in range(72):
        price = 100 * torch.exp((0.01 * torch.randn(100, 750)).cumsum(1)).to(device)
        score, cross, other = run(price)
        score, other = score[:, -700:], other[:, -700:]
        hold = ((cross[:, -700:] > 0) & (score > 0)) | (other > 1.5)
        gain = price[:, -699:] / price[:, -700:-1] - 1
        earned = (gain * hold[:, :-1]).cumsum(1)
        worst = (earned.cummax(1).values - earned).amax(1)
        ahead = (score[:, :-1] * gain).mean() / (score.std() * gain.std())
        turns = (hold[:, 1:] != hold[:, :-1]).sum().item()
        yield 100 * ahead.item() + worst.mean().item() + turns / 70_000


@script
def stumps(device: str, compile: Compile) -> Steps:
    """Gradients boosted by trees of one split, found from histograms of every column."""
    rows, columns, bins = 50_000, 20, 32
    x = torch.randn(rows, columns)
    y = ((x[:, 0] > 0.3) ^ (x[:, 3] < -0.2)).float() + 0.5 * x[:, 5] + 0.2 * torch.randn(rows)
    x, y = x.to(device), y.to(device)
    edges = torch.linspace(-2, 2, bins - 1, device=device)
    bucket = torch.bucketize(x, edges)
    flat = (bucket + bins * torch.arange(columns, device=device)).flatten()
    count = torch.zeros(columns * bins, device=device).index_add_(
        0, flat, torch.ones(rows * columns, device=device)
    )
    left_count = count.view(columns, bins).cumsum(1)
    guess = torch.full((rows,), y.mean().item(), device=device)
    for _ in range(500):
        rest = y - guess
        total = torch.zeros(columns * bins, device=device).index_add_(
            0, flat, rest.unsqueeze(1).expand(-1, columns).flatten()
        )
        left = total.view(columns, bins).cumsum(1)
        right, right_count = left[:, -1:] - left, rows - left_count
        gain = left**2 / left_count.clamp(min=1) + right**2 / right_count.clamp(min=1)
        at = int(gain.argmax())
        column, cut = at // bins, at % bins
        low = left[column, cut] / left_count[column, cut]
        high = right[column, cut] / right_count[column, cut].clamp(min=1)
        guess += 0.3 * torch.where(bucket[:, column] <= cut, low, high)
        yield (y - guess).square().mean().item()


@script
def hidden(device: str, compile: Compile) -> Steps:
    """A hidden Markov model learned from sequences, forwards and backwards, in logarithms."""
    states, letters, length = 6, 12, 60
    text = (torch.randint(0, letters, (64, 1)) + torch.arange(length) // 5) % letters
    noise = torch.randint(0, letters, (64, length))
    text = torch.where(torch.rand(64, length) < 0.2, noise, text).to(device)
    start = torch.full((states,), 1.0 / states).log().to(device)
    move = torch.rand(states, states).add(torch.eye(states)).log_softmax(1).to(device)
    emit = torch.rand(states, letters).log_softmax(1).to(device)
    ones = torch.nn.functional.one_hot(text, letters).float()
    for _ in range(160):
        each = emit.t()[text]
        forward = [start + each[:, 0]]
        for k in range(1, length):
            before = forward[-1].unsqueeze(2) + move
            forward.append(torch.logsumexp(before, 1) + each[:, k])
        back = [torch.zeros(64, states, device=device)]
        for k in range(length - 1, 0, -1):
            back.append(torch.logsumexp(move + (each[:, k] + back[-1]).unsqueeze(1), 2))
        ahead, behind = torch.stack(forward, 1), torch.stack(back[::-1], 1)
        whole = torch.logsumexp(forward[-1], 1)
        share = (ahead + behind - whole.view(-1, 1, 1)).exp()
        pairs = ahead[:, :-1].unsqueeze(3) + move + (each[:, 1:] + behind[:, 1:]).unsqueeze(2)
        pairs = (pairs - whole.view(-1, 1, 1, 1)).exp().sum((0, 1))
        start = (share[:, 0].mean(0) + 1e-9).log()
        move = (pairs / pairs.sum(1, keepdim=True) + 1e-9).log()
        seen = torch.einsum("bts,btl->sl", share, ones)
        emit = (seen / seen.sum(1, keepdim=True) + 1e-9).log()
        yield whole.mean().item()
