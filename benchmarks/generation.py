"""Text generation, token by token, by a model of 217 million parameters with random weights.

python -m benchmarks.generation

Eager code in bfloat16, on the CPU and on tenon, and on tenon with weights of 8 and 4 bits. Each
kind has processes of its own. They take turns, and the table has the median time of a token in the
last run of a process. Plans are made in the runs before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, WORDS, LENGTH, GROUP = 12, 1024, 16, 32_000, 128, 128
TOKENS, RUNS, TURNS = 120, 3, 3
KINDS = [("cpu", 16), ("tenon", 16), ("tenon", 8), ("tenon", 4)]  # device, bits of a weight


class Linear(nn.Module):
    """A layer without a bias, whose weights have 16, 8 or 4 bits."""

    weight: Tensor
    scales: Tensor

    def __init__(self, inputs: int, outputs: int, bits: int) -> None:
        super().__init__()
        self.bits = bits
        weight, scales = torch.randn(outputs, inputs) * inputs**-0.5, torch.empty(0)
        if bits == 8:
            scales = weight.abs().amax(1) / 127
            weight = (weight / scales[:, None]).round().to(torch.int8)
        elif bits == 4:
            groups = weight.view(outputs, -1, GROUP)
            scales = groups.abs().amax(2) / 7
            numbers = (groups / scales[..., None]).round().add(8).to(torch.int32)
            weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1), 1)
            scales = torch.stack([scales.t(), torch.zeros_like(scales.t())], 2).contiguous()
        else:
            weight = weight.bfloat16()
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales.bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        if self.bits == 8:
            return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)
        if self.bits == 4:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, GROUP, self.scales)
        return F.linear(x, self.weight)


class Layer(nn.Module):
    """Attention over what came before, whose keys and values are kept, and two linear layers."""

    keys: Tensor
    values: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, dtype=torch.bfloat16) for _ in range(2))
        self.inner = nn.ModuleList(Linear(WIDTH, WIDTH, bits) for _ in range(4))
        self.up, self.down = Linear(WIDTH, 4 * WIDTH, bits), Linear(4 * WIDTH, WIDTH, bits)
        for name in ("keys", "values"):
            kept = torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS, dtype=torch.bfloat16)
            self.register_buffer(name, kept)

    def forward(self, x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        h = self.norms[0](x)
        q, k, v = (f(h).view(1, 1, HEADS, -1).transpose(1, 2) for f in self.inner[:3])
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        found = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.inner[3](found.transpose(1, 2).reshape(1, WIDTH))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """From a token to the next one."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer(bits) for _ in range(LAYERS))
        self.last = Linear(WIDTH, WORDS, bits)

    def forward(self, token: Tensor, at: Tensor) -> Tensor:
        mask = (torch.arange(LENGTH, device=at.device) <= at).view(1, 1, 1, LENGTH)
        x = self.words(token)
        for layer in self.layers:
            x = layer(x, at, mask)
        return self.last(x).argmax()


def generate(device: str, bits: int) -> list[float]:
    """Seconds of each token of the last run."""
    torch.manual_seed(0)
    model = Model(bits).to(device).eval()
    seconds: list[float] = []
    for run in range(RUNS):
        token, seconds = 1, []
        for place in range(TOKENS):
            start = time.perf_counter()
            given = torch.tensor([[token], [place]], device=device)
            token = int(model(given[0], given[1]))
            seconds.append(time.perf_counter() - start)
        if run < RUNS - 1:
            time.sleep(3)  # for plans
    return seconds


def main() -> None:
    found: dict[Any, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(TURNS):
        for device, bits in KINDS:
            command = [sys.executable, "-m", "benchmarks.generation", device, str(bits)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[device, bits] += json.loads(done.stdout.splitlines()[-1])
    table = Table("device", "bits of a weight", "ms for a token", "tokens a second", "times eager")
    middle = {kind: statistics.median(seconds) for kind, seconds in found.items()}
    for (device, bits), seconds in middle.items():
        times = f"{middle[KINDS[0]] / seconds:.2f}"
        table.add_row(device, str(bits), f"{1e3 * seconds:.2f}", f"{1 / seconds:.0f}", times)
    Console().print(table)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        with torch.no_grad():
            print(json.dumps(generate(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
