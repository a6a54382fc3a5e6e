"""Trains a classifier of handwritten digits on several ranks, each with a device or a share of one.

    torchrun --nproc-per-node 2 examples/train_ddp.py [--steps N] [--checkpoint PATH]

Every few steps rank 0 writes a checkpoint. When a rank dies the others end with an error that names
it; the same command again goes on where the checkpoint was written, and `torchrun --max-restarts 3`
does so by itself. What comes of it is what a run without any death gives.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def digits() -> TensorDataset:
    """1,797 scans, (1, 8, 8) float32 in 0 to 1, and which digit each is, int64."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(data.target))


def classifier() -> nn.Module:
    """(N, 1, 8, 8) to scores of the ten digits, (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def save(path: Path, **state: Any) -> None:
    """Writes a checkpoint as a whole: whoever is killed meanwhile leaves the one before."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def train(
    steps: Annotated[int, typer.Option(help="steps in all, those before a restart too")] = 300,
    batch: Annotated[int, typer.Option(help="images of one rank in a step")] = 32,
    checkpoint: Annotated[Path, typer.Option(help="where it is written")] = Path("digits.pt"),
    save_every: Annotated[int, typer.Option(help="steps between two checkpoints")] = 20,
    log_every: Annotated[int, typer.Option(help="steps between two lines")] = 20,
    device: Annotated[str, typer.Option(help="tenon or cpu")] = "tenon",
    timeout: Annotated[float, typer.Option(help="seconds to wait for another rank")] = 60,
) -> None:
    """Trains, or goes on from the checkpoint, until so many steps are done."""
    dist.init_process_group(timeout=timedelta(seconds=timeout))
    rank = dist.get_rank()
    if device == "tenon":
        torch.tenon.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.tenon.device_count())

    torch.manual_seed(0)
    model = DistributedDataParallel(classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if rank == 0:
            print(f"goes on after step {step}", flush=True)

    data = digits()
    sampler = DistributedSampler(data, seed=0, drop_last=True)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    while step < steps:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)  # every epoch has an order of its own, the same after a restart
        for k, (images, labels) in enumerate(loader):
            if k < done or step == steps:
                continue
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 0 and (step % save_every == 0 or step == steps):
                save(
                    checkpoint,
                    step=step,
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                )
            if rank == 0 and (step % log_every == 0 or step == steps):
                print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(train)
