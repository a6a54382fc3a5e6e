"""Models of sequences: text that is learned and written, series, lengths that change."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.scripts import Compile, Steps, script


class Block(nn.Module):
    """Attention and a perceptron, with the keys and values of what came before, if there are."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.take, self.give = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, ...]:
        """The output, and keys and values so far."""
        b, n, width = x.shape
        parts = self.take(self.first(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        x = x + self.give(seen.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(self.second(x)))), key, value


class Writer(nn.Module):
    """A small GPT over characters."""

    def __init__(self, letters: int, width: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, text: Tensor, past: list[tuple[Tensor, Tensor]] | None = None) -> tuple:
        """Scores of the next letters, and the cache."""
        start = 0 if past is None else past[0][0].shape[2]
        places = torch.arange(start, start + text.shape[1], device=text.device)
        x = self.letters(text) + self.places(places)
        kept = []
        for k, block in enumerate(self.blocks):
            x, key, value = block(x, None if past is None else past[k])
            kept.append((key, value))
        return self.last(x) @ self.letters.weight.t(), kept


def sentences(count: int, length: int) -> Tensor:
    """Letters with an order to be learned."""
    start = torch.randint(0, 64, (count, 1))
    step = torch.randint(1, 5, (count, 1))
    return (start + step * torch.arange(length)) % 64


@script
def gpt(device: str, compile: Compile) -> Steps:
    """A small GPT that learns, with a schedule and clipped gradients."""
    model = Writer(64, 128, 4, 4, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    run = compile(model)
    for _ in range(250):
        text = sentences(16, 65).to(device)
        scores, _ = run(text[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


@script
def generation(device: str, compile: Compile) -> Steps:
    """Text from a growing cache: 256 letters, greedily, then sampled by the host's numbers."""
    model = Writer(64, 384, 6, 6, 320).to(device).eval()
    run = compile(model)
    for sampled in (False, True):
        text, past = sentences(1, 16).to(device), None
        for _ in range(256):
            with torch.no_grad():
                scores, past = run(text, past)
            if sampled:
                chance = torch.softmax(scores[:, -1] / 0.8, 1).cumsum(1)
                text = (chance < torch.rand(1, 1).to(device)).sum(1, keepdim=True).clamp(max=63)
            else:
                text = scores[:, -1].argmax(1, keepdim=True)
            yield float(text.item())


@script
def lengths(device: str, compile: Compile) -> Steps:
    """A transformer that learns from sentences whose length changes at every step."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 64), layer, nn.Linear(64, 64)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    run = compile(model)
    for length in torch.randint(8, 129, (500,)).tolist():
        text = sentences(16, length + 1).to(device)
        loss = F.cross_entropy(run(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Series(nn.Module):
    """An LSTM that tells a wave from its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.tell = nn.LSTM(1, 128, batch_first=True), nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The next number after each."""
        return self.tell(self.memory(x)[0])


@script
def lstm(device: str, compile: Compile) -> Steps:
    """A recurrent net on waves."""
    model = Series().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    run = compile(model)
    for _ in range(300):
        start, pace = 2 * math.pi * torch.rand(64, 1), 0.1 + 0.2 * torch.rand(64, 1)
        wave = torch.sin(start + pace * torch.arange(51)).unsqueeze(2).to(device)
        loss = F.mse_loss(run(wave[:, :-1]), wave[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@script
def words(device: str, compile: Compile) -> Steps:
    """Vectors of words, learned from which stand beside each other, by sparse look-ups."""
    inside, outside = nn.Embedding(10_000, 100).to(device), nn.Embedding(10_000, 100).to(device)
    optimizer = torch.optim.Adagrad([*inside.parameters(), *outside.parameters()], 0.1)

    def score(word: Tensor, near: Tensor, other: Tensor) -> Tensor:
        here = inside(word).unsqueeze(1)
        close = F.logsigmoid((here * outside(near).unsqueeze(1)).sum(2)).mean()
        return -close - F.logsigmoid(-(here * outside(other)).sum(2)).mean()

    run = compile(score)
    for _ in range(300):
        word = torch.randint(0, 10_000, (512,))
        near, other = (word + 1) % 10_000, torch.randint(0, 10_000, (512, 5))
        loss = run(word.to(device), near.to(device), other.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
