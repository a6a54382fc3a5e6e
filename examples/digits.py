"""Trains a classifier of handwritten digits on `tenon` and on the CPU, and compares the two.

The data are scikit-learn's: 1,797 scans of 8x8 pixels, shipped with the package.

    python examples/digits.py [--epochs N] [--batch N] [--seed N]
"""

import json
import subprocess
import sys
import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_tenon

console = Console()


def datasets(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Images, (N, 1, 8, 8) float32 in 0 to 1, and labels, (N,) int64: to train on, to test on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        torch.arange(len(labels)), test_size=0.25, random_state=seed, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class Classifier(nn.Module):
    """A small convolutional network with batch norm and dropout: (N, 1, 8, 8) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(64 * 4 * 4, 128),
            nn.GELU(),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        return self.head(self.features(images))


def train(device: str, epochs: int, batch: int, seed: int) -> tuple[float, float]:
    """Trains on `device`; returns the accuracy on the test images and the seconds it took."""
    torch.manual_seed(seed)
    training, testing = datasets(seed)
    loader = DataLoader(training, batch_size=batch, shuffle=True)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs * len(loader))
    columns = (
        TextColumn("{task.description:<6}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
    )
    start = time.perf_counter()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(device, total=epochs * len(loader), loss=float("nan"))
        for _ in range(epochs):
            total = torch.zeros((), device=device)
            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.detach()
                progress.advance(bar)
            progress.update(bar, loss=total.item() / len(loader))
    seconds = time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        images, labels = testing.tensors
        right = model(images.to(device)).argmax(1) == labels.to(device)
    return right.float().mean().item(), seconds


def train_in_a_second_process(epochs: int, batch: int, seed: int) -> tuple[float, float]:
    """Trains on `tenon` in a process that finds the plans of this one; as `train`."""
    options = {"--epochs": epochs, "--batch": batch, "--seed": seed}
    command = [
        sys.executable,
        __file__,
        "--only-train",
        *(str(x) for o in options.items() for x in o),
    ]
    with console.status("the same in a second process, which finds the plans of the first"):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    accuracy, seconds = json.loads(done.stdout.splitlines()[-1])
    return accuracy, seconds


def main(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 10,
    batch: Annotated[int, typer.Option(min=2, help="Images a step.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the weights, the order and the dropout.")] = 0,
    only_train: Annotated[
        bool, typer.Option("--only-train", help="On `tenon`; accuracy and seconds as JSON.")
    ] = False,
) -> None:
    """Trains a classifier of handwritten digits on `tenon`, twice, and on the CPU."""
    if only_train:
        console.quiet = True
        print(json.dumps(train("tenon", epochs, batch, seed)))
        return
    results = {
        "tenon": train("tenon", epochs, batch, seed),
        "tenon, second process": train_in_a_second_process(epochs, batch, seed),
        "cpu": train("cpu", epochs, batch, seed),
    }
    table = Table("device", "accuracy", "seconds", title="Handwritten digits")
    for device, (accuracy, seconds) in results.items():
        table.add_row(device, f"{accuracy:.2%}", f"{seconds:.2f}")
    console.print(table)
    calls = Table("route", "calls", title="Ops on tenon")
    for route, count in torch_tenon.report().calls_by_route.items():
        calls.add_row(route, f"{count:,}")
    console.print(calls)


if __name__ == "__main__":
    typer.run(main)
