"""Blocks that live at the same time never share memory, and the arena is not wasteful."""

from __future__ import annotations

import random

from torch_tenon.compiler.memory import aligned, place


def test_no_overlap_in_time_and_space() -> None:
    rng = random.Random(1)
    for _ in range(50):
        blocks = []
        for _ in range(60):
            first = rng.randint(0, 40)
            blocks.append((rng.randint(0, 5000), first, first + rng.randint(0, 10)))
        offsets, total = place(blocks)
        for a in range(len(blocks)):
            assert offsets[a] + aligned(blocks[a][0]) <= total
            for b in range(a):
                apart_in_time = blocks[a][2] < blocks[b][1] or blocks[b][2] < blocks[a][1]
                apart_in_space = (
                    offsets[a] + aligned(blocks[a][0]) <= offsets[b]
                    or offsets[b] + aligned(blocks[b][0]) <= offsets[a]
                )
                assert apart_in_time or apart_in_space
        busiest = max(
            sum(aligned(n) for n, first, last in blocks if first <= t <= last) for t in range(60)
        )
        assert total <= 2 * busiest


def test_a_chain_needs_two_blocks() -> None:
    assert place([(1000, k, k + 1) for k in range(100)])[1] == 2 * aligned(1000)
