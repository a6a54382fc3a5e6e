"""Random groups: fused kernels of random small programs, with memory to run their trees on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiler.loops.evaluate import run
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.tree import Tree
from torch_tenon.compiler.schedule import Group, schedule
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.ir.program import Matmul
from torch_tenon.ir.values import Buffer, Storage
from torch_tenon.targets.cpu.backend import cpu_backend

SIZES = [(4, 6), (6, 4), (6, 1), (1, 4), (12,), (2, 3, 4), (5, 7)]
STEPS = [
    torch.tanh,
    torch.exp,
    torch.relu,
    lambda x: x * 2 - 1,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.sum(0),
    lambda x: x.mean(),
    lambda x: x.amax(0),
    lambda x: x.argmax(-1).float(),
    lambda x: x.var(-1) if x.shape[-1] > 1 else x,
    lambda x: x.prod(-1),
    lambda x: x.cumsum(-1),
    lambda x: x.cumsum(0) * 2,
    lambda x: x.reshape(-1),
    lambda x: x[..., 1:] if x.shape[-1] > 1 else x,
    lambda x: (x > 0).float() + x,
    lambda x: (x > 0).all(-1).float(),
    lambda x: (x.exp() > 1).int().sum(0).float(),
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.bfloat16() * 2,
    lambda x: x * torch.rand_like(x),
    lambda x: (x + torch.randn_like(x)).sum(-1),
    lambda x: (x.bfloat16().exp() - x.bfloat16().exp().sum(-1, keepdim=True)).float(),
]

# Where a result depends on the place, reads across memory, or is used again.
PLACED = [
    lambda x: x.mT + 1 if x.dim() == 2 else x.flip(0),
    lambda x: (x.mT * x.mT.exp()).contiguous() if x.dim() == 2 else x,
    lambda x: torch.cat([x.sin(), x.tanh(), x * 3], -1),
    lambda x: torch.nn.functional.pad(x, (1, 2)).exp(),
    lambda x: torch.where(torch.arange(x.shape[-1]) < 3, x.sin(), x),
    lambda x: torch.where(torch.arange(x.shape[-1]) >= 2, x.exp(), x.tanh()),
    lambda x: torch.softmax(x * 2, -1),
    lambda x: (x.tanh().exp() * x.sin()).sigmoid(),
    lambda x: torch.dropout(x.exp(), 0.3, True) + x,
    lambda x: torch.randn_like(x).tanh() * torch.rand_like(x),
]


def _step(rng: random.Random, x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """A random op on x, with another tensor and indices at hand."""
    kind = rng.random()
    if x.dim() == 0:
        return x * 2
    if kind < 0.25:
        return rng.choice(PLACED)(x)
    if kind < 0.65:
        return rng.choice(STEPS)(x)
    if kind < 0.75:
        table = torch.cat([x.reshape(-1)] * 5)[: 5 * x.numel()].reshape(5, -1)
        return rng.choice(
            [
                lambda: table[i].exp(),
                lambda: table.index_put((i,), table.new_ones(())),
                lambda: table.index_add(0, i, table[: i.numel()] if i.numel() <= 5 else table[i]),
                lambda: table[:, 0].scatter_add(0, i % 5, i.float()),
            ]
        )()
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return x + 1
    return rng.choice([torch.add, torch.mul, torch.maximum])(x, y)


def _program(seed: int) -> Any:
    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        rng = random.Random(seed)
        *tensors, i = inputs
        pool = list(tensors)
        for _ in range(rng.randint(1, 7)):
            made = _step(rng, rng.choice(pool), rng.choice(pool), i)
            if 0 < made.numel() <= 120:
                pool.append(made.float())
        return [t.clone() for t in pool[-rng.randint(1, 3) :]]

    return function


@dataclass
class Case:
    """A group, the buffers that somebody outside needs, and the memory that it begins with."""

    seed: int
    group: Group
    kept: set[Buffer]
    memory: dict[Storage, torch.Tensor]
    sizes: dict[Any, int]

    def results(self, tree: Tree, runs: int = 1) -> tuple[list[torch.Tensor], list[Any]]:
        """What a tree leaves in the kept buffers, run by run, and which checks failed."""
        found = parameters(tree)
        memory = [{s: t.clone() for s, t in self.memory.items()} for _ in range(runs)]
        known = {**self.sizes, **tree.numbers}
        status: list[tuple[int, int, int]] = []
        arrays = [m[s] for m in memory for s in found.storages]
        run(tree, arrays, [known[s] for s in found.sizes], status)
        kept = sorted(self.kept, key=lambda b: b.name)
        failed = {found.failures[k % len(found.failures)] for k, _, _ in status}
        calls = sorted({(f.message, c) for f in failed for c in f.calls})
        return [m[b.storage].view(b.dtype) for m in memory for b in kept], calls


def cases(seed: int) -> Iterator[Case]:
    """The groups of one random program."""
    rng = random.Random(-seed - 1)
    torch.manual_seed(seed)
    inputs = [torch.randn(rng.choice(SIZES)) for _ in range(2)]
    inputs.append(torch.randint(-5, 5, (rng.choice([3, 5]),)))
    module = make_fx(
        torch.func.functionalize(_program(seed), remove="mutations_and_views"),
        decomposition_table=decompositions(),
        tracing_mode="fake",
    )(*inputs)
    built = build(module)
    for group in schedule(built.program, cpu_backend()).groups:
        if group.call is None and not any(isinstance(m.node, Matmul) for m in group.members):
            yield _case(seed, group, rng)


def _case(seed: int, group: Group, rng: random.Random) -> Case:
    read = {b for m in group.members for b, _ in m.loads}
    kept = set()
    for m in group.members:
        b = m.node.buffer
        needed = b not in read or b.previous is not None or b.storage.current is not b
        if needed or rng.random() < 0.3:
            kept.add(b)
    return Case(seed, group, kept, memory_of(group), {})


def memory_of(group: Group) -> dict[Storage, torch.Tensor]:
    """Random contents of what a group touches: indices among them may be out of range."""
    memory: dict[Storage, torch.Tensor] = {}
    for m in group.members:
        for b in (*m.node.reads, m.node.buffer):
            if b.storage in memory:
                continue
            assert isinstance(b.storage.nbytes, int)
            count = b.storage.nbytes // b.dtype.itemsize
            if b.dtype.is_floating_point:
                data = torch.randn(count).to(b.dtype)
            else:
                data = torch.randint(0, 2 if b.dtype is torch.bool else 7, (count,)).to(b.dtype)
            memory[b.storage] = data.view(torch.uint8)
    return memory
