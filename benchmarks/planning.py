"""What the compiler itself costs, without compiling kernels: program, schedule and code, by node.

python -m benchmarks.planning [--nodes 1000 4000] [--only NAME ...] [--rounds N]

Graphs of four shapes at each size; processor time, the median of the rounds. The last column is how
the time grew against the size before: 4 times the nodes may cost 5 times the time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon import device
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import build

Body = Callable[[list[torch.Tensor], int], list[torch.Tensor]]
PARTS = ("program", "schedule", "code")
SIDE = 64


def chain(inputs: list[torch.Tensor], nodes: int) -> list[torch.Tensor]:
    """Each op reads the one before."""
    x = inputs[0]
    for k in range(nodes // 3):
        x = torch.tanh(x * 1.5 + k)
    return [x]


def wide(inputs: list[torch.Tensor], nodes: int) -> list[torch.Tensor]:
    """Many short branches from one input, added up in pairs."""
    found = [torch.exp(inputs[0] * k) for k in range(1, nodes // 3 + 1)]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [a + b for a, b in pairs] + ([found[-1]] if len(found) % 2 else [])
    return found


def optimizer(inputs: list[torch.Tensor], nodes: int) -> list[torch.Tensor]:
    """Tensors that have nothing to do with each other but a step, written in place."""
    step = inputs[0][0, 0] + 1
    for p, g in zip(inputs[2::2], inputs[3::2], strict=False):
        m = torch.lerp(p, g, 0.1)
        v = (p * 0.999).addcmul(g, g, value=0.001)
        p.copy_(p - m / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
        g.copy_(v)
    return [step]


def transformer(inputs: list[torch.Tensor], nodes: int) -> list[torch.Tensor]:
    """Norms, matrix products, softmax and gelu, with residuals."""
    x, w = inputs[:2]
    for _ in range(nodes // 30):
        y = torch.nn.functional.layer_norm(x, x.shape[-1:])
        y = torch.softmax(y @ w, -1) @ w
        x = x + y
        x = x + torch.nn.functional.gelu(x @ w) @ w
    return [x]


SHAPES: dict[str, Body] = {f.__name__: f for f in (chain, wide, optimizer, transformer)}


def graph(body: Body, nodes: int) -> GraphModule:
    """The graph of a body with about that many ops."""
    count = 2 + (nodes // 14 * 2 if body is optimizer else 0)
    with FakeTensorMode():
        examples = [torch.empty(SIDE, SIDE) for _ in range(count)]
        return make_fx(lambda *inputs: tuple(body(list(inputs), nodes)), decompositions())(
            *examples
        )


def seconds(module: GraphModule) -> dict[str, float]:
    """Processor seconds of each part of the way from a graph to its kernels' sources."""
    # What was there before is not looked through again: that would be a cost of PyTorch's size.
    gc.collect()
    gc.freeze()
    backend = device.backend()
    assert backend is not None, "the target plans nothing"
    start = time.process_time()
    program = build(module).program
    built = time.process_time()
    plan = Plan(program, backend)
    total = time.process_time() - built
    wall = plan.seconds["schedule"] + plan.seconds["code"]
    share = plan.seconds["schedule"] / wall
    return {"program": built - start, "schedule": total * share, "code": total * (1 - share)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[250, 1000, 4000])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    table = Table()
    for head in ("graph", "ops", *(f"{p} ms" for p in PARTS), "ms an op", "growth"):
        table.add_column(head, justify="right")
    for name, body in SHAPES.items():
        if options.only and name not in options.only:
            continue
        before: tuple[float, int] | None = None
        for nodes in options.nodes:
            module = graph(body, nodes)
            count = sum(n.op == "call_function" for n in module.graph.nodes)
            rounds = [seconds(module) for _ in range(options.rounds)]
            parts = {p: statistics.median(r[p] for r in rounds) for p in PARTS}
            total = sum(parts.values())
            growth = (
                "" if before is None else f"{total / before[0]:.2f} for {count / before[1]:.2f}"
            )
            table.add_row(
                name, str(count), *(f"{1000 * s:.0f}" for s in parts.values()),
                f"{1000 * total / count:.3f}", growth,
            )  # fmt: skip
            before = total, count
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
