"""Training on several ranks, for tests: each function trains on a device and returns what came of
it, the losses and the whole parameters at the end, as host tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
Outcome = tuple[list[float], dict[str, torch.Tensor]]


class Block(nn.Module):
    """A residual block: (N, T, WIDTH) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Blocks between two layers: (N, T, WIDTH) to (N, T, 8). `aside` is used when asked to."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.last = nn.Linear(WIDTH, 8)
        self.aside = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, aside: bool = False) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(self.aside(x) if aside else x)


def model(device: str) -> Model:
    """The same on each rank and device."""
    torch.manual_seed(7)
    return Model().to(device)


def batch(device: str, step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a step and a rank: (4, 6, WIDTH) and (4, 6, 8)."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, 6, WIDTH, generator=generator)
    return x.to(device), (x[..., :8] * x.mean()).to(device)


def whole(t: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded, on the host."""
    t = t.detach()
    return (t.full_tensor() if isinstance(t, DTensor) else t).cpu()


def outcome(losses: list[torch.Tensor], module: nn.Module) -> Outcome:
    """What a training function returns."""
    return [x.item() for x in losses], {k: whole(p) for k, p in module.named_parameters()}


def optimizer(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """One whose steps do not hang on the last bit of a gradient."""
    return torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4, **options)


def _steps(
    steps: int, module: nn.Module, loss_of: Callable[[int], torch.Tensor], **options: Any
) -> Outcome:
    optimize = optimizer(module, **options)
    losses = []
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        optimize.step()
        optimize.zero_grad()
        losses.append(loss.detach())
    return outcome(losses, module)


def ddp(device: str, steps: int, **options: Any) -> Outcome:
    """DistributedDataParallel in small buckets; every third step adds two batches up by no_sync."""
    options = {"find_unused_parameters": True, "bucket_cap_mb": 0.004, **options}
    hook = options.pop("hook", None)
    parallel = DistributedDataParallel(model(device), **options)
    if hook is not None:
        parallel.register_comm_hook(None, hook)

    def loss_of(step: int) -> torch.Tensor:
        if step % 3 == 2:
            with parallel.no_sync():
                x, y = batch(device, 500 + step)
                nn.functional.mse_loss(parallel(x), y).backward()
        x, y = batch(device, step)
        return nn.functional.mse_loss(parallel(x, step % 2 == 0), y)

    return _steps(steps, parallel, loss_of)


def fsdp(device: str, steps: int, **options: Any) -> Outcome:
    """FSDP2: each block and the whole are sharded."""
    module = model(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in module.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(module, mesh=mesh, **options)

    def loss_of(step: int) -> torch.Tensor:
        x, y = batch(device, step)
        return nn.functional.mse_loss(module(x, True).float(), y)

    return _steps(steps, module, loss_of)


def fsdp_mixed(device: str, steps: int) -> Outcome:
    """FSDP2 that computes in bfloat16 and reduces in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(device, steps, mp_policy=policy)


def fsdp_offloaded(device: str, steps: int) -> Outcome:
    """FSDP2 whose parameters, gradients and optimizer are the host's."""
    return fsdp(device, steps, offload_policy=CPUOffloadPolicy(pin_memory=device != "cpu"))


def tensor_parallel(device: str, steps: int, sequence: bool = False) -> Outcome:
    """Blocks whose inner dimension is sharded."""
    module = model(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in module.blocks:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
                "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
            }
        parallelize_module(block, mesh, plan)

    def loss_of(step: int) -> torch.Tensor:
        x, y = batch(device, step, rank=0)
        out = module(x, True) if not sequence else _whole_sequence(module, x)
        return nn.functional.mse_loss(out, y)

    # PyTorch has no list ops over sharded and other tensors together.
    return _steps(steps, module, loss_of, foreach=False)


def sequence_parallel(device: str, steps: int) -> Outcome:
    """The same with norms that each rank computes of a part of the sequence."""
    return tensor_parallel(device, steps, sequence=True)


def _whole_sequence(module: Model, x: torch.Tensor) -> torch.Tensor:
    x = module.first(x)
    for block in module.blocks:
        x = block(x).full_tensor()
    return module.last(module.aside(x))


def equal_to_the_host(
    train: Callable[..., Outcome], steps: int, tolerance: float = 1e-4, **options: Any
) -> float:
    """Holds the device's outcome against the host's; returns the greatest relative difference."""
    expected, got = (train(device, steps, **options) for device in ("cpu", "tenon"))
    torch.testing.assert_close(got[0], expected[0], rtol=tolerance, atol=1e-6)
    torch.testing.assert_close(got[1], expected[1], rtol=tolerance, atol=1e-5)
    assert len(got[0]) == steps and got[0][0] != got[0][-1]
    a, b = torch.tensor(got[0]), torch.tensor(expected[0])
    return float(((a - b).abs() / b.abs()).max())
