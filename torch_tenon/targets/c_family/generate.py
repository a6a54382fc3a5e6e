"""The loop tree of a group for a processor: in its layout, and rewritten to be fast."""

from __future__ import annotations

from torch_tenon.compiler.loops.checks import collect_checks
from torch_tenon.compiler.loops.cut import cut_where_conditions_change
from torch_tenon.compiler.loops.divisions import divisions_before
from torch_tenon.compiler.loops.draws import draw_before
from torch_tenon.compiler.loops.fission import fission, scans_apart
from torch_tenon.compiler.loops.interchange import interchange, sink
from torch_tenon.compiler.loops.jam import jam
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.neighbours import neighbours
from torch_tenon.compiler.loops.numbers import numbers_as_arguments
from torch_tenon.compiler.loops.place import place_inside, place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.share import share_stores
from torch_tenon.compiler.loops.side_by_side import side_by_side
from torch_tenon.compiler.loops.split import split_reductions
from torch_tenon.compiler.loops.tile import as_lanes, share_out, tile
from torch_tenon.compiler.loops.transpose import transpose_tiles
from torch_tenon.compiler.loops.tree import Tree, is_innermost
from torch_tenon.compiler.loops.unswitch import unswitch
from torch_tenon.compiler.loops.weave import weave
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Symbol
from torch_tenon.ir.scalar_ops import LONG_OPS
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.c_family import layout as decide
from torch_tenon.targets.c_family.layout import Layout


def loop_tree(group: Group, kept: set[Buffer], layout: Layout) -> Tree:
    """The tree of a group, laid out, and with all that makes it fast on a processor."""
    tree = place_values(divisions_before(_ordered(lower(group, kept), layout)))
    tree = numbers_as_arguments(tree, layout.numbers())
    if layout.across is not None and layout.lane is not None:
        tree = transpose_tiles(
            tree, layout.across, layout.lane, decide.TILE_SIDE, decide.is_transposed
        )
    return _busy(tree, layout)


def _ordered(tree: Tree, layout: Layout) -> Tree:
    """The loops in their order, and what threads share and lanes are marked."""
    lane = layout.lane
    tree = keep_rows(tree, layout.rows, layout.inner)
    inside = [s for s in (layout.across, lane) if s is not None]
    tiles = [Symbol(f"{s.name}_tile", s.extent) for s in inside if layout.lanes]
    for s, t in zip(inside, tiles, strict=False):
        tree = tile(tree, s, layout.lanes, t)
    few = [] if layout.few is None else [layout.few]
    tree = interchange(tree, [*layout.order, *tiles, *few, *inside])
    if layout.few is not None and not layout.fission:
        tree = weave(tree, layout.few, decide.MOST_TOGETHER)
    tree = neighbours(tree, layout.together)
    if layout.coordinate is not None and lane is not None:
        tree = share_stores(tree, lane, layout.coordinate, Symbol("shares", lower=1))
    if lane is not None and layout.kind == "column":
        # What does not change from row to row is computed before the rows.
        tree = place_inside(tree, lambda loop: loop.symbol is lane)
    if lane is not None and layout.kind != "flat":
        tree = sink(tree, lane, layout.lanes)
    tree = share_out(tree, layout.grid(tree))
    return as_lanes(tree, lambda loop: loop.symbol in layout.vectors())


def _busy(tree: Tree, layout: Layout) -> Tree:
    """The tree with innermost loops that keep the processor busy."""
    if layout.inner and layout.kind != "scatter":
        block = decide.BLOCK if layout.kind == "row" else decide.BLOCK // 8
        tree = split_reductions(tree, layout.inner[-1], block, alone=len(layout.inner) == 1)
    if layout.kind == "column" and not layout.runs_on:
        tree = jam(tree, decide.rows_at_once)
    elif layout.kind == "row":
        tree = scans_apart(tree, decide.FISSION, is_innermost, decide.is_dear)
        tree = side_by_side(tree, decide.SIDE_BY_SIDE, layout.is_side_by_side)
    tree = collect_checks(tree, layout.in_pass)
    tree = draw_before(tree, decide.DRAWN, decide.is_drawn_before)
    if layout.fission:
        return fission(
            tree, LONG_OPS, layout.lanes, lambda s: layout.in_pass(s) and is_innermost(s)
        )
    tree = cut_where_conditions_change(tree, decide.MOST_PIECES, decide.is_cut)
    return unswitch(tree, decide.is_unswitched, decide.MOST_SWITCHED)
