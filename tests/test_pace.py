"""How many threads share the loops of a plan: what is fastest, on a machine made up here."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from fresh_process import output
from plans import plans_made
from turns import settle

from torch_tenon import _C


def run(pace: _C.Pace, threads: int, seconds: Callable[[int], float], runs: int) -> list[int]:
    """The threads of each run; one with so many takes so many seconds."""
    chosen = []
    for _ in range(runs):
        halvings = pace.halvings(threads)
        chosen.append(max(1, threads >> halvings))
        pace.note(halvings, seconds(chosen[-1]), 1.0)
    return chosen


def alone(threads: int) -> float:
    return 1e-4 / threads


def crowded(threads: int) -> float:
    return 1e-4 if threads == 1 else 1e-2


def test_a_machine_of_its_own_is_used_whole() -> None:
    chosen = run(_C.Pace(), 4, alone, 20_000)
    assert chosen[:3] == [4] * 3
    assert 2 in chosen[:8] and 1 in chosen[:40], "a trial has half of them, or one"
    assert chosen.count(4) / len(chosen) > 0.997, "and is rare where it does not pay"


def test_loops_that_take_longer_with_more_threads_get_one() -> None:
    chosen = run(_C.Pace(), 4, crowded, 2000)
    assert chosen[40:].count(1) / len(chosen[40:]) > 0.95


def test_first_runs_that_take_long_are_no_reason_for_fewer_threads() -> None:
    pace, chosen = _C.Pace(), []
    for k in range(40):
        halvings = pace.halvings(2)
        chosen.append(2 >> halvings)
        pace.note(halvings, (10 if k == 0 else 1) * alone(chosen[-1]), 1.0)
    assert chosen[10:].count(2) > 26


def test_the_threads_come_back_when_the_machine_is_free() -> None:
    pace = _C.Pace()
    run(pace, 2, crowded, 3000)
    chosen = run(pace, 2, alone, 6000)
    assert chosen[-100:].count(2) > 90


def test_who_comes_later_is_noticed_at_once() -> None:
    pace = _C.Pace()
    run(pace, 2, alone, 20_000)
    chosen = run(pace, 2, crowded, 60)
    assert chosen[-20:] == [1] * 20


def test_who_comes_and_goes_does_not_hold_up_many_runs() -> None:
    pace, spent = _C.Pace(), 0.0
    for k in range(4000):
        halvings = pace.halvings(2)
        threads = 2 >> halvings
        seconds = crowded(threads) if k // 20 % 2 else alone(threads)
        pace.note(halvings, seconds, 1.0)
        spent += seconds
    with_one, with_two = 4000 * alone(1), 2000 * (alone(2) + crowded(2))
    assert spent < 2 * with_one < with_two / 10, spent


def test_what_stays_slow_is_no_reason_for_trials_without_end() -> None:
    pace = _C.Pace()
    run(pace, 2, alone, 5000)
    chosen = run(pace, 2, lambda threads: 3 * alone(threads), 20_000)
    assert chosen.count(2) / len(chosen) > 0.997


def test_one_thread_has_no_trials() -> None:
    assert run(_C.Pace(), 1, alone, 5000) == [1] * 5000


def test_fewer_threads_than_before() -> None:
    pace = _C.Pace()
    run(pace, 8, crowded, 500)
    assert set(run(pace, 1, alone, 100)) == {1}


def sized_run(seconds: Callable[[float, int], float], runs: int) -> list[int]:
    """The threads of each run of a plan for any sizes, of two."""
    pace, chosen, sizes = _C.Pace(sized=True), [], random.Random(0)
    for _ in range(runs):
        size = float(sizes.randint(1, 32)) * 4096
        halvings = pace.halvings(2)
        chosen.append(2 >> halvings)
        pace.note(halvings, seconds(size, chosen[-1]), size)
    return chosen


def test_runs_of_many_sizes_are_compared_with_those_of_their_size() -> None:
    """Also where small ones take as long as larger ones, and the first of a size far longer."""
    seen: set[float] = set()

    def seconds(size: float, threads: int) -> float:
        first = size not in seen
        seen.add(size)
        return 2e-4 + size * 1e-8 / threads + 2e-3 * first

    chosen = sized_run(seconds, 5000)
    assert chosen.count(2) / len(chosen) > 0.98 and chosen[-1] == 2


def test_runs_of_many_sizes_that_take_longer_with_more_threads_get_one() -> None:
    chosen = sized_run(lambda size, threads: 2e-4 + size * 1e-8 * threads, 2000)
    assert chosen[200:].count(1) / len(chosen[200:]) > 0.95


@pytest.mark.slow
def test_a_trial_asks_for_no_other_way_to_multiply() -> None:
    """Timing the ways takes long, and they round differently: they are chosen for all threads."""
    code = """
        import torch
        from torch_tenon import _C
        from torch_tenon.builder.counts import plan_counts
        torch.set_num_threads(2)
        a, b = (torch.randn(128, 128, device="tenon") for _ in range(2))
        for number in range(30):
            (a @ b).relu().cpu()
            if number == 3:
                before = _C.matmul_choices()
        after = _C.matmul_choices()
        assert plan_counts()["hits"] > 20 and after[2] > before[2], (plan_counts(), before, after)
        print(before[0], before[3] == after[3])
    """
    assert output(code, TENON_EXECUTE="compiled", TENON_BUILDER="thread") == "1 True"


def test_results_are_the_same_with_fewer_threads(compiled: None) -> None:
    """A plan's pieces are its own: threads only share them out."""
    x = torch.randn(300, 700, device="tenon")
    results = []
    for _ in range(40):  # trials among them
        y = (x * 2).tanh().sum(1) + x.amax(1)
        results.append(y.cpu())
        settle()
    assert plans_made() > 0
    assert all(torch.equal(results[-1], result) for result in results[4:])
