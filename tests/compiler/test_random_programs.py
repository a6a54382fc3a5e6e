"""Any program of these ops gives what PyTorch's CPU gives, its inputs' mutations included."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import Output, build
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler

Tensors = list[torch.Tensor]
SHAPES = [(6, 4), (4, 6), (6, 1), (1, 4), (24,), (2, 3, 4), (48, 40)]

UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.tanh,
    torch.relu,
    lambda x: x * 2 - 1,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.softmax(x, 0),
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.sum(0, keepdim=True),
    lambda x: x.mean(),
    lambda x: x.amax(0),
    lambda x: x.cumsum(-1),
    lambda x: x.cumsum(0),
    lambda x: x.t() if x.dim() == 2 else x.flip(0),
    lambda x: x.reshape(-1),
    lambda x: x.reshape(x.numel() // 2, 2) if x.numel() % 2 == 0 else x,
    lambda x: x[..., 1:] if x.dim() and x.shape[-1] > 1 else x,
    lambda x: x[::2] if x.dim() else x,
    lambda x: x.flip(-1) if x.dim() else x,
    lambda x: torch.cat([x, x * 3], 0) if x.dim() else x,
    lambda x: torch.nn.functional.pad(x, (1, 2)) if x.dim() else x,
    lambda x: (x > 0).to(torch.float32) + x,
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.unsqueeze(0).expand(3, *x.shape),
    lambda x: x.var(-1) if x.dim() and x.shape[-1] > 1 else x,
    lambda x: x.to(torch.bfloat16).to(torch.float32),
    lambda x: x[torch.tensor([0, -1, 0])] if x.dim() else x,
]


def program(seed: int) -> Callable[..., Tensors]:
    """A random function of three tensors; the same seed gives the same function."""

    def run(*inputs: torch.Tensor) -> Tensors:
        rng = random.Random(seed)
        pool = list(inputs)
        for _ in range(rng.randint(3, 14)):
            x = rng.choice(pool)
            kind = rng.random()
            if kind < 0.55 or x.numel() > 20_000:
                made = rng.choice(UNARY)(x)
            elif kind < 0.85:
                y = rng.choice(pool)
                if not _broadcast(x.shape, y.shape):
                    continue
                made = rng.choice([torch.add, torch.mul, torch.maximum])(x, y)
            else:
                target = rng.choice(inputs)
                if not _broadcast(x.shape, target.shape, into=True):
                    continue
                if rng.random() < 0.5:
                    target.add_(x.clone())
                else:
                    target[1:].copy_(target[:-1].clone() * 0.5)
                continue
            if 0 < made.numel() <= 40_000:
                pool.append(made)
        return [t.clone() for t in pool[-rng.randint(1, 3) :]]

    return run


def _broadcast(a: torch.Size, b: torch.Size, into: bool = False) -> bool:
    try:
        shape = torch.broadcast_shapes(a, b)
    except RuntimeError:
        return False
    return shape == b if into else shape.numel() <= 20_000


@pytest.mark.slow
def test_random_programs(tmp_path: Path) -> None:
    backend = CpuBackend(CpuCompiler(Cache(tmp_path / "cache")))
    made = []
    for seed in range(120):
        generator = torch.Generator().manual_seed(seed)
        rng = random.Random(-seed)
        shapes = [rng.choice(SHAPES) for _ in range(3)]
        inputs = [torch.randn(s, generator=generator) for s in shapes]
        function = program(seed)
        module = make_fx(
            torch.func.functionalize(function, remove="mutations_and_views"),
            decomposition_table=decompositions(),
            tracing_mode="fake",
        )(*[t.clone() for t in inputs])
        built = build(module)
        made.append((seed, function, inputs, built, Plan(built.program, backend)))
    backend.compile([k for *_, plan in made for k in plan.kernels])
    for seed, function, inputs, built, plan in made:
        theirs, ours = [t.clone() for t in inputs], [t.clone() for t in inputs]
        want = function(*theirs)
        answers = plan.compile().run(ours)
        got = [answers[o.number] for o in built.outputs if isinstance(o, Output)]
        for a, b in zip([*got, *ours], [*want, *theirs], strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-3, atol=1e-4, msg=lambda m, s=seed: f"seed {s}: {m}"
            )
