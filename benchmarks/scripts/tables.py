"""Translation, tags, resampling, recommendation, and a notebook that looks at a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.scripts import Compile, Steps, script


class Translator(nn.Module):
    """Reads a sentence by one LSTM and writes it by another, letter after letter."""

    def __init__(self, letters: int, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.read = nn.LSTM(width, width, batch_first=True)
        self.write, self.tell = nn.LSTMCell(width, width), nn.Linear(width, letters)

    def forward(self, source: Tensor, target: Tensor, forced: list[bool]) -> Tensor:
        """Scores of each letter; the true letter is given next where it is forced."""
        _, (hidden, cell) = self.read(self.letters(source))
        state = hidden[0], cell[0]
        letter, found = torch.zeros_like(target[:, 0]), []
        for k, force in enumerate(forced):
            state = self.write(self.letters(letter), state)
            found.append(self.tell(state[0]))
            letter = target[:, k] if force else found[-1].argmax(1)
        return torch.stack(found, 1)


@script
def translate(device: str, compile: Compile) -> Steps:
    """Sentences written backwards, with teacher forcing that fades."""
    model = Translator(30, 96).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    run = compile(model)
    for step in range(150):
        source = torch.randint(1, 30, (32, 12))
        target = source.flip(1)
        forced = (torch.rand(12) < max(0.3, 1 - step / 150)).tolist()
        scores = run(source.to(device), target.to(device), forced)
        loss = F.cross_entropy(scores.flatten(0, 1), target.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


@script
def tagger(device: str, compile: Compile) -> Steps:
    """Tags of words by a conditional random field; the best tags are found backwards."""
    words, tags, length = 500, 9, 20
    scores = nn.Sequential(
        nn.Embedding(words, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, tags)
    )
    scores = scores.to(device)
    moves = nn.Parameter(0.1 * torch.randn(tags, tags).to(device))
    optimizer = torch.optim.Adam([*scores.parameters(), moves], 1e-2)

    def loss_of(text: Tensor, truth: Tensor, real: Tensor) -> Tensor:
        each = scores(text)
        gold = each[:, 0].gather(1, truth[:, :1]).squeeze(1)
        total = each[:, 0]
        for k in range(1, length):
            here = each[:, k]
            move = moves[truth[:, k - 1], truth[:, k]]
            gold = gold + (move + here.gather(1, truth[:, k : k + 1]).squeeze(1)) * real[:, k]
            fresh = torch.logsumexp(total.unsqueeze(2) + moves, 1) + here
            total = torch.where(real[:, k : k + 1] > 0, fresh, total)
        return (torch.logsumexp(total, 1) - gold).mean()

    def best(text: Tensor) -> Tensor:
        each, back = scores(text), []
        total = each[:, 0]
        for k in range(1, length):
            total, came = (total.unsqueeze(2) + moves).max(1)
            total = total + each[:, k]
            back.append(came)
        path = [total.argmax(1)]
        for came in reversed(back):
            path.append(came.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], 1)

    run = compile(loss_of)
    for step in range(240):
        text = torch.randint(0, words, (32, length))
        truth = (text + text.roll(1, 1)) % tags
        real = (torch.arange(length) < torch.randint(5, length + 1, (32, 1))).float()
        loss = run(text.to(device), truth.to(device), real.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        if step % 20 == 19:
            with torch.no_grad():
                right = best(text.to(device)) == truth.to(device)
                yield right[real.to(device) > 0].float().mean().item()


@script
def bootstrap(device: str, compile: Compile) -> Steps:
    """Intervals of a mean, a median and a correlation by resampling, and a permutation test."""
    a = torch.randn(2000).exp()
    b = 0.3 * a + torch.randn(2000)
    a, b = a.to(device), b.to(device)
    means, medians, together = [], [], []
    for _ in range(240):
        drawn = torch.randint(0, 2000, (100, 2000)).to(device)
        x, y = a[drawn], b[drawn]
        means.append(x.mean(1))
        medians.append(x.median(1).values)
        x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
        together.append((x * y).sum(1) / (x.square().sum(1) * y.square().sum(1)).sqrt())
        yield medians[-1].mean().item()
    limits = torch.tensor([0.025, 0.5, 0.975], device=device)
    for found in (means, medians, together):
        low, middle, high = torch.quantile(torch.cat(found), limits).tolist()
        yield low + middle + high
    apart = a.mean() - b.mean()
    pool, beyond = torch.cat([a, b]), 0
    for _ in range(100):
        order = torch.randperm(4000).to(device)
        mixed = pool[order]
        beyond += int((mixed[:2000].mean() - mixed[2000:].mean()).abs() > apart.abs())
    yield beyond / 100


@script
def recommender(device: str, compile: Compile) -> Steps:
    """Films for people: factors and a bag of what each has seen, the best ten are checked."""
    people, films = 2000, 3000
    seen = [torch.randint(0, films, (int(n),)) for n in torch.randint(5, 40, (people,))]
    taste, genre = nn.Embedding(people, 32), nn.Embedding(films, 32)
    bag, bias = nn.EmbeddingBag(films, 32, mode="mean"), nn.Embedding(films, 1)
    model = nn.ModuleList([taste, genre, bag, bias]).to(device)
    for parameter in model.parameters():
        nn.init.normal_(parameter.data, std=0.05) if device == "cpu" else parameter.data.copy_(
            0.05 * torch.randn(parameter.shape)
        )
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def score(person: Tensor, film: Tensor, history: Tensor, starts: Tensor) -> Tensor:
        mine = taste(person) + bag(history, starts)
        return (mine * genre(film)).sum(1) + bias(film).squeeze(1)

    run = compile(score)
    for step in range(200):
        who = torch.randint(0, people, (256,))
        histories = [seen[int(k)] for k in who]
        starts = torch.tensor([0, *(len(h) for h in histories[:-1])]).cumsum(0)
        liked = torch.stack([h[step % len(h)] for h in histories])
        other = torch.randint(0, films, (256,))
        parts = who.to(device), torch.cat(histories).to(device), starts.to(device)
        better = run(parts[0], liked.to(device), parts[1], parts[2])
        worse = run(parts[0], other.to(device), parts[1], parts[2])
        loss = -F.logsigmoid(better - worse).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            yield loss.item()
        if step % 50 == 49:
            with torch.no_grad():
                every = taste.weight @ genre.weight.t() + bias.weight.t()
                top = every.topk(10, 1).indices.cpu()
            yield sum(int(torch.isin(top[k], seen[k]).sum()) for k in range(200)) / 200


@script
def notebook(device: str, compile: Compile) -> Steps:
    """A table is looked at, cell by cell: heads, means by group, correlations, components."""
    lines: list[str] = []

    def show(*things: object) -> None:
        lines.append(" ".join(str(t) for t in things))

    for month in range(1, 61):
        table = torch.randn(20_000, 12) @ torch.randn(12, 12) + month
        group = torch.randint(0, 8, (20_000,))
        table[torch.rand(20_000, 12) < 0.02] = float("nan")
        table, group = table.to(device), group.to(device)
        show("head", table[:5])
        show(table.shape, table.dtype, "missing", torch.isnan(table).sum(0))
        middle = torch.nanmean(table, 0)
        full = torch.where(torch.isnan(table), middle, table)
        show("mean", full.mean(0), "std", full.std(0), "least", full.min(0).values)
        for k in range(8):
            show("group", k, full[group == k].mean(0)[:3])
        scaled = (full - full.mean(0)) / full.std(0)
        together = scaled.t() @ scaled / (len(scaled) - 1)
        show("correlations", together)
        values, vectors = torch.linalg.eigh(together.cpu())
        parts = scaled @ vectors[:, -2:].to(device)
        show("components", values.flip(0)[:3], parts[:4])
        odd = (scaled.abs() > 3).any(1)
        show("outliers", odd.sum(), full[odd][:3])
        edges = torch.linspace(-3, 3, 13, device=device)
        show("histogram", torch.bincount(torch.bucketize(scaled[:, 0].contiguous(), edges)))
        weight = torch.linalg.lstsq(scaled[:, 1:].cpu(), scaled[:, :1].cpu()).solution.to(device)
        rest = scaled[:, :1] - scaled[:, 1:] @ weight
        show("explained", 1 - rest.square().mean())
        yield rest.square().mean().item()
