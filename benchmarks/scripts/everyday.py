"""What people do around a model: loaders, checkpoints, early stops, folds, teachers, metrics."""

from __future__ import annotations

import io

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from benchmarks.scripts import Compile, Steps, script


@script
def early_stop(device: str, compile: Compile) -> Steps:
    """A classifier from a loader, stopped when its validation loss no longer falls.

    The best weights are saved, and loaded at the end for the test.
    """
    kinds = torch.randint(0, 6, (6000,))
    x = torch.randn(6, 60)[kinds] + 2.0 * torch.randn(6000, 60)
    parts = random_split(TensorDataset(x, kinds), [4000, 1000, 1000])
    train = DataLoader(parts[0], batch_size=64, shuffle=True, drop_last=True)
    valid, test = (DataLoader(p, batch_size=250) for p in parts[1:])
    model = nn.Sequential(
        nn.Linear(60, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, 6),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    run = compile(model)

    def evaluate(loader: DataLoader) -> tuple[float, float]:
        model.eval()
        loss, right, count = 0.0, 0, 0
        with torch.no_grad():
            for a, b in loader:
                a, b = a.to(device), b.to(device)
                scores = run(a)
                loss += F.cross_entropy(scores, b, reduction="sum").item()
                right += int((scores.argmax(1) == b).sum().item())
                count += len(b)
        model.train()
        return loss / count, right / count

    best, waited, saved = float("inf"), 0, io.BytesIO()
    for _ in range(24):
        for a, b in train:
            loss = F.cross_entropy(run(a.to(device)), b.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        now = evaluate(valid)[0]
        schedule.step(now)
        if now < best:
            best, waited, saved = now, 0, io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        else:
            waited += 1
        yield now
        if waited > 8:
            break
    saved.seek(0)
    model.load_state_dict(torch.load(saved, map_location=device)["model"])
    yield evaluate(test)[1]


class Columns(nn.Module):
    """Numbers and kinds of a table's row, the kinds by embeddings."""

    def __init__(self, kinds: list[int], numbers: int) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(k, min(16, k // 2)) for k in kinds)
        self.norm = nn.BatchNorm1d(numbers)
        width = numbers + sum(e.embedding_dim for e in self.kinds)
        self.rest = nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.BatchNorm1d(128), nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        """A score of each row."""
        found = [table(kinds[:, k]) for k, table in enumerate(self.kinds)]
        return self.rest(torch.cat([*found, self.norm(numbers)], 1)).squeeze(1)


@script
def tabular(device: str, compile: Compile) -> Steps:
    """A table with columns of kinds and of numbers: churn, its rate of errors and its AUC."""
    sizes = [7, 12, 31, 50, 200]
    kinds = torch.stack([torch.randint(0, k, (20_000,)) for k in sizes], 1)
    numbers = torch.randn(20_000, 10)
    truth = (numbers[:, 0] + (kinds[:, 3] % 5 - 2) + 0.5 * torch.randn(20_000) > 0).float()
    loader = DataLoader(
        TensorDataset(kinds[:16_000], numbers[:16_000], truth[:16_000]), 256, shuffle=True
    )
    model = Columns(sizes, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8 * len(loader))
    weight = torch.tensor(1.5, device=device)
    run = compile(model)
    held = kinds[16_000:].to(device), numbers[16_000:].to(device), truth[16_000:].to(device)
    seen = 0
    for _ in range(8):
        model.train()
        for a, b, c in loader:
            scores = run(a.to(device), b.to(device))
            loss = F.binary_cross_entropy_with_logits(scores, c.to(device), pos_weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += 1
            if seen % 20 == 0:
                yield loss.item()
        model.eval()
        with torch.no_grad():
            chance = torch.sigmoid(run(held[0], held[1]))
            guess, yes = chance > 0.5, held[2] > 0.5
            exact = (guess & yes).sum() / guess.sum().clamp(min=1)
            found = (guess & yes).sum() / yes.sum()
            order = chance.argsort()
            rank = torch.empty_like(chance)
            rank[order] = torch.arange(1.0, len(chance) + 1, device=device)
            count = yes.sum()
            area = rank[yes].sum() - count * (count + 1) / 2
            area = area / (count * (~yes).sum())
        yield exact.item() + found.item() + area.item()


@script
def folds(device: str, compile: Compile) -> Steps:
    """Ten folds of logistic regression at six strengths of its penalty; the best is kept."""
    x = torch.randn(3000, 40)
    truth = torch.randn(40, 5) * (torch.rand(40, 5) < 0.3)
    y = (x @ truth + torch.randn(3000, 5)).argmax(1)
    x, y = x.to(device), y.to(device)
    order = torch.randperm(3000)
    for penalty in (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        right = []
        for fold in range(10):
            held = order[fold * 300 : fold * 300 + 300].to(device)
            rest = torch.cat([order[: fold * 300], order[fold * 300 + 300 :]]).to(device)
            mean, spread = x[rest].mean(0), x[rest].std(0)
            inside, outside = (x[rest] - mean) / spread, (x[held] - mean) / spread
            weight = torch.zeros(40, 5, device=device, requires_grad=True)
            bias = torch.zeros(5, device=device, requires_grad=True)
            for _ in range(60):
                loss = F.cross_entropy(inside @ weight + bias, y[rest])
                loss = loss + penalty * weight.square().sum()
                loss.backward()
                with torch.no_grad():
                    for p in (weight, bias):
                        p -= 0.5 * p.grad
                        p.grad = None
            guess = (outside @ weight + bias).argmax(1)
            right.append((guess == y[held]).float().mean().item())
            yield right[-1]


@script
def distill(device: str, compile: Compile) -> Steps:
    """A large net teaches a small one; gradients of four batches are added up and clipped."""
    kinds = torch.randint(0, 20, (8192,))
    x = (torch.randn(20, 128)[kinds] + 2.5 * torch.randn(8192, 128)).to(device)
    y = kinds.to(device)

    def net(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(128, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width),
            nn.GELU(), nn.Linear(width, 20),
        ).to(device)  # fmt: skip

    large, small = net(512), net(64)
    run_large, run_small = compile(large), compile(small)
    optimizer = torch.optim.AdamW(large.parameters(), 1e-3)
    for step in range(128):
        k = 128 * step % len(x)
        loss = F.cross_entropy(run_large(x[k : k + 128]), y[k : k + 128], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            yield loss.item()
    large.eval()
    optimizer = torch.optim.AdamW(small.parameters(), 2e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    total = 0.0
    for step in range(800):
        k = 64 * step % len(x)
        with torch.no_grad():
            told = F.softmax(run_large(x[k : k + 64]) / 3, 1)
        scores = run_small(x[k : k + 64])
        soft = F.kl_div(F.log_softmax(scores / 3, 1), told, reduction="batchmean") * 9
        loss = (0.7 * soft + 0.3 * F.cross_entropy(scores, y[k : k + 64])) / 4
        loss.backward()
        if step % 4 == 3:
            nn.utils.clip_grad_norm_(small.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            warm.step()
            total = loss.item() + 0.9 * total
        if step % 40 == 39:
            yield total


@script
def contrastive(device: str, compile: Compile) -> Steps:
    """Two noisy views of each row are drawn together, then rows are told by their neighbours."""
    kinds = torch.randint(0, 8, (4096,))
    x = torch.randn(8, 96)[kinds] + 1.5 * torch.randn(4096, 96)
    encode = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    both = nn.Sequential(encode, head)
    optimizer = torch.optim.SGD(both.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.7)
    run = compile(both)
    same = torch.eye(256, dtype=torch.bool, device=device)
    pairs = torch.arange(256, device=device).roll(128)
    for step in range(400):
        rows = x[torch.randint(0, 4096, (128,))]
        views = [rows * (torch.rand_like(rows) > 0.2) + 0.1 * torch.randn_like(rows) for _ in "ab"]
        found = F.normalize(run(torch.cat(views).to(device)), dim=1)
        alike = (found @ found.t() / 0.2).masked_fill(same, float("-inf"))
        loss = F.cross_entropy(alike, pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 9:
            yield loss.item()
    with torch.no_grad():
        seen = F.normalize(encode(x.to(device)), dim=1)
        near = (seen[:512] @ seen[512:].t()).topk(15, 1).indices
        votes = F.one_hot(kinds.to(device)[512:][near], 8).sum(1)
        yield (votes.argmax(1) == kinds[:512].to(device)).float().mean().item()
