"""Blocks that live at the same time never share memory, and the arena is not wasteful."""

from __future__ import annotations

import random

from torch_tenon.compiler.memory import aligned, overlay, place


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


def test_guests_stay_within_their_rooms_and_apart() -> None:
    rng = random.Random(2)
    for _ in range(50):
        guests, rooms = [], []
        for _ in range(30):
            first = rng.randint(0, 20)
            guests.append((rng.randint(1, 3000), first, first + rng.randint(0, 5)))
        for _ in range(6):
            opened = rng.randint(0, 10)
            rooms.append((rng.randint(1, 6000), opened, opened + rng.randint(-1, 15)))
        found = overlay(guests, rooms)
        for a, place_a in enumerate(found):
            if place_a is None:
                continue
            room, offset = place_a
            size, opened, closed = rooms[room]
            assert offset + guests[a][0] <= size
            assert opened <= guests[a][1] and guests[a][2] <= closed
            for b in range(a):
                if (place_b := found[b]) is None or place_b[0] != room:
                    continue
                apart_in_time = guests[a][2] < guests[b][1] or guests[b][2] < guests[a][1]
                apart_in_space = (
                    offset + guests[a][0] <= place_b[1] or place_b[1] + guests[b][0] <= offset
                )
                assert apart_in_time or apart_in_space


def test_what_is_written_late_lies_over_what_comes_before() -> None:
    assert overlay([(100, 0, 1), (60, 2, 3), (90, 3, 4)], [(128, 0, 3)]) == [(0, 0), (0, 0), None]
