"""Which tests `make test` runs: some of each file with each commit, the whole sample with ten."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TURNS, _in_turn, _sample

# Of each file's tests: how many variations there are, how many are sampled, and is it slow.
FILES = {
    "mixed.py": {"a": (1, None, False), "b": (5, None, False), "c": (9, 3, True)},
    "slow.py": {"a": (4, 4, True)},
    "all_slow.py": dict.fromkeys("abcdefghi", (2, None, True)),
    "quick.py": {"a": (3, 8, False), "b": (2, 1, False)},
}


class Item:
    """What the sample asks of a test."""

    def __init__(self, file: str, test: str, k: int, sampled: int | None, slow: bool) -> None:
        self.nodeid, self.path = f"{file}::test_{test}[{k}]", Path(file)
        self.callspec = SimpleNamespace(params={"x": k}, indices={"x": k})
        marks = {"slow": slow, "sampled": sampled and SimpleNamespace(args=(sampled,))}
        self.get_closest_marker = {name: mark for name, mark in marks.items() if mark}.get


@pytest.fixture(params=[0, 7])
def items(request: pytest.FixtureRequest) -> list[Any]:
    """Those of some files, whose names differ by seed."""
    return [
        Item(f"{request.param}{file}", test, k, sampled, slow)
        for file, tests in FILES.items()
        for test, (variations, sampled, slow) in tests.items()
        for k in range(variations)
    ]


def test_ten_turns_have_the_whole_sample(items: list[Any]) -> None:
    whole = {i.nodeid for i in _sample(items, 0, None)}
    assert len(whole) == 1 + 2 + 3 + 4 + 18 + 3 + 1
    for first in (0, 1, 988):
        runs = [
            {i.nodeid for i in _sample(_in_turn(items, turn), 0, turn)}
            for turn in range(first, first + 2 * TURNS)
        ]
        assert set.union(*runs) == whole
        assert max(map(len, runs)) <= len(whole) / 2


def test_each_turn_has_each_file_and_each_test_that_is_not_slow(items: list[Any]) -> None:
    quick = {i.nodeid.partition("[")[0] for i in items if i.get_closest_marker("slow") is None}
    for turn in range(2 * TURNS):
        run = _sample(_in_turn(items, turn), 0, turn)
        assert {i.path for i in run} == {i.path for i in items}
        assert quick <= {i.nodeid.partition("[")[0] for i in run}
