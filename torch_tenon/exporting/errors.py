"""Why a model cannot be exported, with its place in the model."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)
from torch.utils._pytree import tree_leaves

from torch_tenon.exporting.held import Graph, place_of


class ExportError(RuntimeError):
    """A model that cannot be exported: which part of it, why, and what to do."""


_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[1])


def depends_on_data(graph: Graph, reason: str) -> str:
    """Why a graph is no program: the first op whose result's sizes or numbers depend on data;
    `reason` where there is none."""
    for node in graph.module.graph.nodes:
        values = tree_leaves(node.meta.get("val"))
        where = place_of(graph, str(node.target).split(".")[1]) if _of_data(values) else ""
        sizes = [n for v in values if isinstance(v, Tensor) for n in v.shape]
        if _of_data(sizes):
            return (
                f"{node.target} gives a tensor whose sizes depend on data{where}: the sizes in a "
                "program follow from those of its inputs. Compute all elements and leave some out "
                "by torch.where or a factor of 0, or end the model before it"
            )
        if _of_data(values):
            return f"{node.target} gives numbers that depend on data{where}: {reason}"
    return reason


@contextmanager
def decisions_told() -> Iterator[None]:
    """While a model is traced. Raises ExportError where Python decides by a number of a tensor."""
    try:
        yield
    except GuardOnDataDependentSymNode as error:
        lines = [
            f"{frame.filename}:{frame.lineno}, `{frame.line}`"
            for frame in traceback.extract_tb(error.__traceback__)
            if not any(Path(frame.filename).is_relative_to(place) for place in _LIBRARIES)
        ]
        raise ExportError(
            f"{lines[-1] if lines else 'the model'} needs a number of a tensor while the model is "
            "traced, where tensors have none: a program has no branches, and its sizes follow from "
            "those of its inputs. Choose between results by torch.where, or give the number as an "
            "argument"
        ) from error


def _of_data(values: Sequence[object]) -> bool:
    numbers = [n for v in values for n in (v.shape if isinstance(v, Tensor) else [v])]
    symbolic = [n for n in numbers if isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool)]
    return any(free_unbacked_symbols(n) for n in symbolic)
