"""Small trees to rewrite and to print."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.loops.interchange import sink
from torch_tenon.compiler.loops.lower import axes, lower
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.tile import tile
from torch_tenon.compiler.loops.tree import Tree
from torch_tenon.compiler.schedule import Group, schedule
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.ir.index import Symbol
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.cpu.backend import cpu_backend


def groups_of(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> list[tuple[Group, set[Buffer]]]:
    """The groups that a function becomes, each with the buffers that others need."""
    module = make_fx(lambda *a: [function(*a)], decompositions(), tracing_mode="fake")(*inputs)
    program = build(module).program
    results = {o.buffer for o in program.outputs}
    groups = schedule(program, cpu_backend()).groups
    return [
        (g, results if len(groups) == 1 else {b for n in g.nodes() for b in n.outputs})
        for g in groups
    ]


def group_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Group, set[Buffer]]:
    """The one group that a function becomes, and its results."""
    (found,) = groups_of(function, *inputs)
    return found


def plain(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[Tree, list[Symbol], list[Symbol]]:
    """The plain tree of a function, and its loops over results and over what is reduced."""
    group, kept = group_of(function, *inputs)
    found = axes(group)
    return (
        lower(group, kept),
        [found[s] for s in group.outer],
        [found[s] for s in group.inner],
    )


def prints(tree: Tree, text: str) -> None:
    """Asserts how a tree is printed."""
    assert show(tree) == textwrap.dedent(text).lstrip("\n")


def column() -> tuple[Tree, Symbol, Symbol]:
    """Column sums of 5 rows in tiles of 4 columns, with the lane and the reduced loop."""
    tree, (lane,), (rows,) = plain(lambda x: x.sum(0), torch.randn(5, 6))
    return sink(tile(tree, lane, 4, Symbol("tile", 6)), lane, 4), lane, rows
