"""Every rewrite on random trees: the numbers after it are those before it.

    python -m tests.compiler.loops.pipeline --trees 1000

prints how many trees each rewrite changed.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from tests.compiler.loops.programs import Case, cases
from torch_tenon.compiler.loops.addresses import addresses
from torch_tenon.compiler.loops.batch import batched
from torch_tenon.compiler.loops.checks import collect_checks
from torch_tenon.compiler.loops.cut import cut_where_conditions_change
from torch_tenon.compiler.loops.double_buffer import double_buffer
from torch_tenon.compiler.loops.draws import draw_before
from torch_tenon.compiler.loops.fission import fission, scans_apart
from torch_tenon.compiler.loops.interchange import interchange, sink
from torch_tenon.compiler.loops.jam import jam
from torch_tenon.compiler.loops.lower import axes, lower, read_later
from torch_tenon.compiler.loops.neighbours import lanes_of, neighbours
from torch_tenon.compiler.loops.numbers import Numbers, numbers_as_arguments
from torch_tenon.compiler.loops.place import place_inside, place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.share import share_stores
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.side_by_side import side_by_side
from torch_tenon.compiler.loops.split import split_reductions
from torch_tenon.compiler.loops.stage import stage
from torch_tenon.compiler.loops.tile import as_lanes, share_out, tile
from torch_tenon.compiler.loops.transpose import transpose_tiles
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Check,
    For,
    Statement,
    Tree,
    is_innermost,
)
from torch_tenon.compiler.loops.unswitch import unswitch
from torch_tenon.compiler.loops.weave import weave
from torch_tenon.ir.index import Symbol
from torch_tenon.targets.c_family.layout import common_coordinate

Rewrite = tuple[str, Callable[[Tree], Tree]]
WIDTH = 3
LONG = {"exp", "tanh", "sin", "mul"}


def rewrites(case: Case, rng: random.Random) -> Iterator[Rewrite]:
    """Rewrites in an order that makes sense for a group, with small numbers."""
    found = axes(case.group)
    outer, inner = ([found[s] for s in loops] for loops in (case.group.outer, case.group.inner))
    lane = rng.choice([*outer, None])
    across = rng.choice([s for s in outer if s is not lane] or [None])
    if lane is None or inner:
        across = None
    last = [s for s in (across, lane) if s is not None]
    tiles = [Symbol(f"{s.name}_tile", s.extent) for s in last]
    first = [s for s in outer if s not in last]
    rng.shuffle(first)

    def in_pass(loop: For) -> bool:
        return loop.axis in inner or loop.symbol in last

    kept = [b for b in read_later(case.group) if b not in case.kept]
    yield "keep_rows", lambda t: keep_rows(t, kept, inner)
    for s, around in zip(last, tiles, strict=True):
        yield "tile", lambda t, s=s, around=around: tile(t, s, WIDTH, around)
    yield "interchange", lambda t: interchange(t, [*first, *tiles, *last])
    if first and case.seed % 2 == 0:
        few = first.pop()
        yield "weave", lambda t: weave(t, few, 200)
    before = next((s for s in case.group.outer if found[s] is lane), None)
    coordinate = None if before is None else common_coordinate(case.group, before)
    if not inner and case.seed % 3 == 0:
        yield "neighbours", lambda t: neighbours(t, lambda loop: 3 if lanes_of(loop) else 1)
    if lane is not None and coordinate is not None and rng.random() < 0.7:
        yield "share_stores", lambda t: share_stores(t, lane, coordinate, Symbol("shares", lower=1))
    if lane is not None and across is None:
        if rng.random() < 0.7:
            yield "place_inside", lambda t: place_inside(t, lambda loop: loop.symbol is lane)
        yield "sink", lambda t: sink(t, lane, WIDTH)
    count = rng.randint(0, len(first) + len(tiles))
    yield "share_out", lambda t: share_out(t, min(count, nested(t.body)))
    yield "as_lanes", lambda t: as_lanes(t, lambda loop: True)
    yield "place_values", place_values
    numbers = Numbers(2, 3, set(inner), last[-1:] or inner[-1:], {"add", "lt", "ge"}, in_pass)
    yield "numbers_as_arguments", lambda t: numbers_as_arguments(t, numbers)
    if across is not None and lane is not None:
        yield (
            "transpose_tiles",
            lambda t: transpose_tiles(t, across, lane, WIDTH, lambda load: True),
        )
    yield from fast(inner, lane is None, in_pass, rng)


def nested(body: list[Statement]) -> int:
    """How many loops hold nothing but one another."""
    loop = body[0] if len(body) == 1 else None
    return 1 + nested(loop.body) if isinstance(loop, For) else 0


def fast(
    inner: list[Symbol], in_rows: bool, in_pass: Callable[[For], bool], rng: random.Random
) -> Iterator[Rewrite]:
    """The rewrites of innermost loops."""
    if inner:
        block = rng.choice([2, 3, 100])
        alone = len(inner) == 1
        yield "split_reductions", lambda t: split_reductions(t, inner[-1], block, alone)
    if in_rows:
        width = rng.choice([WIDTH, 100])
        dear = rng.choice([lambda s: True, lambda s: isinstance(s, Accumulate)])
        yield "scans_apart", lambda t: scans_apart(t, width, is_innermost, dear)
        yield "side_by_side", lambda t: side_by_side(t, 2, adds_up)
    else:
        yield "jam", lambda t: jam(t, lambda loop: 2 if adds_up_columns(loop) else 1)
    yield "collect_checks", lambda t: collect_checks(t, in_pass)
    yield "draw_before", lambda t: draw_before(t, rng.choice([WIDTH, 100]), is_innermost)
    if not in_rows and not inner and rng.random() < 0.5:
        yield (
            "fission",
            lambda t: fission(t, LONG, WIDTH, in_tile),
        )
    else:
        yield (
            "cut_where_conditions_change",
            lambda t: cut_where_conditions_change(t, 9, is_innermost),
        )
        most = rng.choice([20, 1000])
        yield "unswitch", lambda t: unswitch(t, is_for_either, most)
    room = rng.choice([128, 200, 1000])
    yield "stage", lambda t: staged(t, room)
    yield "double_buffer", double_buffer
    yield "batched", lambda t: batched(t, 2)


def staged(tree: Tree, room: int) -> Tree:
    """A tree whose blocks lie in a scratchpad, where two of each have room."""
    made = stage(tree, "scratch", room)
    assert addresses(made, "scratch")[1] <= room, show(made)
    assert addresses(double_buffer(made), "scratch")[1] <= 2 * room, show(made)
    return made


def is_for_either(loop: For) -> bool:
    """Whether a loop is none that is shared out."""
    return is_innermost(loop) and loop.kind != "grid"


def adds_up(loop: For) -> bool:
    """Whether a loop over lanes does nothing but reduce."""
    found = [s.accumulator for s in loop.body if isinstance(s, Accumulate)]
    plain = not any(isinstance(s, For | Check) for s in loop.body)
    return loop.kind == "lane" and plain and bool(found) and not any(a.running for a in found)


def adds_up_columns(loop: For) -> bool:
    """Whether the rows of a column do nothing but reduce."""
    lanes = loop.body[-1] if loop.body else None
    if loop.kind != "reduce" or not isinstance(lanes, For) or not adds_up(lanes):
        return False
    return not any(isinstance(s, For | Check) for s in loop.body[:-1])


def in_tile(loop: For) -> bool:
    """Whether a loop over lanes is one inside a tile."""
    return loop.kind == "lane" and is_innermost(loop) and loop.starts != (0,)


def check(case: Case, changed: Counter[str]) -> None:
    """Takes the tree of a case through the rewrites and compares the numbers after each."""
    rng = random.Random(case.seed)
    tree = lower(case.group, case.kept)
    want, failed = case.results(tree)
    for name, rewrite in rewrites(case, rng):
        text = show(tree)
        tree = rewrite(tree)
        if show(tree) == text:
            continue
        changed[name] += 1
        runs = 1 if tree.sets is None else 2
        got, found = case.results(tree, runs)
        assert found == failed, f"{case.seed}: {name}: checks {failed}, {found}\n{show(tree)}"
        context = f"{case.seed}: {name}\n{text}\n{show(tree)}"
        for a, b in zip(got, want * runs, strict=True):
            _close(a, b, context)


def _close(got: torch.Tensor, want: torch.Tensor, context: str) -> None:
    torch.testing.assert_close(
        got, want, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m: f"{context}{m}"
    )


def sample(trees: int, first: int = 0) -> Counter[str]:
    """Checks so many random trees; gives how many each rewrite changed."""
    changed: Counter[str] = Counter()
    seed = first
    while changed["trees"] < trees:
        for case in cases(seed):
            check(case, changed)
            changed["trees"] += 1
        seed += 1
    return changed


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first program's seed")
    options = parser.parse_args()
    for name, count in sample(options.trees, options.first).items():
        print(f"{name:28} {count}")


if __name__ == "__main__":
    main()
