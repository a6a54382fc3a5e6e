"""What is kept in memory has a bound, and what was used least recently goes first."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torch_tenon
from torch_tenon import _C
from torch_tenon.compiler import bounded, plan
from torch_tenon.compiler.bounded import BoundedCache, CacheCounts
from torch_tenon.frontends.graph import build
from torch_tenon.ir import index, values
from torch_tenon.ir.index import Symbol, floordiv, mod, var
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Layout
from torch_tenon.targets.cpu.backend import cpu_backend


def counts(name: str) -> CacheCounts:
    (found,) = (c for c in bounded.counts() if c.name == name)
    return found


def test_the_least_recently_used_goes() -> None:
    cache = BoundedCache[str, int]("of a test", 2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.get("b") is None
    assert cache.items() == [("a", 1), ("c", 3)] and len(cache) == 2
    cache.put("a", 4)
    assert cache.items() == [("c", 3), ("a", 4)]
    assert counts("of a test") == CacheCounts("of a test", 2, 2, 1, 1, 1)
    second = BoundedCache[str, int]("of a test", 2)
    second.put("a", 1)
    assert counts("of a test").entries == 3
    del cache, second
    gc.collect()
    assert counts("of a test") == CacheCounts("of a test", 0, 2, 1, 1, 1)


def test_what_runs_inside_of_it_may_use_it() -> None:
    """As the handler of a signal, or what a collection ends."""
    cache = BoundedCache[object, int]("of what runs inside", 2)

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return cache.get("another") is None and self is other

    def work() -> None:
        cache.put(Key(), 1)
        cache.put(Key(), 2)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and len(cache) == 2


def test_any_thread_may_use_it() -> None:
    cache = BoundedCache[int, int]("of threads", 50)

    def work(start: int) -> None:
        for k in range(2000):
            key = (start + k) % 100
            assert cache.get(key) in (None, key)
            cache.put(key, key)

    threads = [threading.Thread(target=work, args=(13 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(cache) == 50
    found = counts("of threads")
    assert found.hits + found.misses == 8000


def test_a_forked_process_may_use_it() -> None:
    held, ready, done = bounded._lock, threading.Event(), threading.Event()

    def hold() -> None:
        with held:
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it where it would wait for good
        cache = BoundedCache[str, int]("of a child", 1)
        cache.put("a", 1)
        os._exit(0 if cache.get("a") == 1 else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_plans_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_SIZES", 3)
    program = Program()
    n = Symbol("n", None, 2)
    program.sizes.append(n)
    x = program.input(torch.float32, Layout.contiguous((var(n),)))
    program.outputs += program.call(
        torch.ops.aten.exp.default, [x], {}, [(torch.float32, x.layout)], "fallback"
    )
    made = plan.Plan(program, cpu_backend()).compile()
    before = counts("plans by size")
    first = made.native((5,))
    for size in (2, 3, 5, 4, 7, 5, 2):
        t = torch.randn(size)
        assert torch.equal(made.run([t], (size,))[0], t.exp())
    assert made.native((5,)) is first
    after = counts("plans by size")
    assert after.evicted - before.evicted == 3 and after.entries - before.entries == 3
    assert after.bound == 3


def _products_of_different_classes() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Operands none of whose sizes are near those of another pair of the same kind."""
    lengths = (1, 3, 9, 27, 81, 243)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for left, right in itertools.product((False, True), repeat=2):
            for batch, m, n, k in itertools.product((1, 3, 9), lengths, lengths, lengths):
                a, b = torch.ones(batch, m, k, dtype=dtype), torch.ones(batch, k, n, dtype=dtype)
                yield a.mT.contiguous().mT if left else a, b.mT.contiguous().mT if right else b


@pytest.mark.slow
def test_ways_to_multiply() -> None:
    """More shapes than the table holds: the one that is used all the time stays."""
    asked: list[tuple[int, ...]] = []

    def choose(key: list[int], trial: object) -> int:
        asked.append(tuple(key))
        return 0

    _C.set_matmul_tuner(choose)
    try:
        kept, bound, found, misses, evicted = _C.matmul_choices()
        assert kept == 0
        always = torch.randn(1, 729), torch.randn(729, 1)
        out = torch.empty(1, 1)
        calls = 0
        for a, b in _products_of_different_classes():
            torch.ops.tenon.bmm.out(a, b, out=a.new_empty(a.shape[0], a.shape[1], b.shape[2]))
            torch.ops.tenon.mm.out(*always, out=out)
            calls += 2
            if len(asked) == bound + 50:
                break
        assert len(asked) == bound + 50 and len(set(asked)) == len(asked)
        after = _C.matmul_choices()
        answered = found + calls - len(asked)
        assert after == (bound, bound, answered, misses + bound + 50, evicted + 50)
        # The first that was used once is gone; those of one row or column come in several layouts.
        early = next(
            p for p in _products_of_different_classes() if 1 not in p[0][0].shape + p[1][0].shape
        )
        torch.ops.tenon.bmm.out(*early, out=torch.empty(1, 3, 3))
        assert len(asked) == bound + 51
    finally:
        _C.set_matmul_tuner(None)


def test_indices_that_nothing_has_are_gone() -> None:
    gc.collect()
    before = len(index._interned), len(values._shared_symbols)
    s = Symbol("i", 1 << 40)
    expression = floordiv(var(s), 7) + mod(var(s), 7)
    again = floordiv(var(s), 7) + mod(var(s), 7)
    assert expression == again and len(index._interned) == before[0] + 2
    # As long as the parts are alive, they are seen to be a whole.
    assert floordiv(var(s), 7) * 7 + mod(var(s), 7) == var(s)
    del expression, again

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.reshape(13, 101, 17).transpose(0, 2).reshape(-1)[5:] * 2]

    module = make_fx(f, tracing_mode="fake")(torch.randn(13 * 101 * 17))
    made = plan.Plan(build(module).program, cpu_backend())
    assert len(index._interned) > before[0] and len(values._shared_symbols) > before[1]
    del made, module
    gc.collect()
    assert (len(index._interned), len(values._shared_symbols)) == before


def test_the_report_counts_them() -> None:
    x = torch.ones(3, device="tenon")
    for _ in range(3):  # a first call runs at once
        (x + 1).sum().item()
    names = {c.name for c in torch_tenon.report().recording.caches}
    assert "ways to multiply" in names
    assert "Kept in memory: ways to multiply: " in str(torch_tenon.report().recording)
