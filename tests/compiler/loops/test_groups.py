"""Which loops store and load neighbours in memory, and these under a condition."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.compiler.loops.trees import plain
from torch_tenon.compiler.loops.groups import chooses_in_groups
from torch_tenon.compiler.loops.interchange import interchange
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.tree import For, Tree, is_innermost, walk
from torch_tenon.compiler.loops.weave import weave

randn = torch.randn


def _chooses(tree: Tree) -> bool:
    loops = [s for s in walk(tree.body) if isinstance(s, For) and is_innermost(s)]
    return any(map(chooses_in_groups, loops))


def _woven(function: object, *examples: torch.Tensor) -> Tree:
    tree, (rows, columns), _ = plain(function, *examples)  # type: ignore[arg-type]
    return place_values(weave(interchange(tree, [columns, rows]), columns, 1000))


def test_rows_of_which_some_come_from_elsewhere() -> None:
    assert _chooses(_woven(lambda x: F.pad(x.flip(1), (0, 0, 2, 1)), randn(6, 2)))


def test_columns_from_elsewhere_are_known_once_written_out() -> None:
    assert not _chooses(_woven(lambda x: F.pad(x, (1, 1)), randn(6, 2)))


def test_rows_that_are_all_there() -> None:
    assert not _chooses(_woven(lambda x, w: x.flip(1) * w, randn(6, 2), randn(6, 1)))


def test_one_number_of_each_row() -> None:
    tree, _, _ = plain(lambda x: F.pad(x.flip(1), (0, 0, 2, 1)), randn(6, 2))
    assert not _chooses(tree)
