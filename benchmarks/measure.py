"""Measuring one case: results compared, engines interleaved, memory counted, ceilings beside it."""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import Case, Work
from benchmarks.engines import ENGINES, Engine

WARM_UP = 3
WARM_UP_SECONDS = 1.0
ROUNDS_AT_LEAST = 3
SECOND_RUN = "second run"


def measure(
    case: Case, engines: Sequence[Engine], scale: float, rounds: int, seconds: float
) -> dict[str, Any]:
    """Everything about a case but first calls, as the JSON file has it.

    Raises AssertionError, naming the engine, when a result is not eager's.
    """
    torch._dynamo.reset()
    eager = ENGINES["eager"].make(case, scale)
    with FlopCounterMode(display=False) as counter:
        first = eager.run()
    expected = [_on_host(first), _on_host(eager.run())]
    found: dict[str, Any] = {
        "bytes": eager.least_bytes(first),
        "flops": counter.get_total_flops(),
        "dtype": str(case.dtype).removeprefix("torch."),
        "engines": {},
    }
    del first
    runs = {}
    for engine in engines:
        work = eager if engine.name == "eager" else engine.make(case, scale)
        before = _requested("current")
        if work is not eager:
            check(case, engine, work, expected)
        runs[engine.name] = run = engine.waiting(work.run)
        end = time.perf_counter() + WARM_UP_SECONDS
        for _ in range(WARM_UP):
            if time.perf_counter() < end:
                run()
        engine.settle(run)
        found["engines"][engine.name] = {"peak_bytes": peak_bytes(engine, work, run, before)}
    times = interleaved(runs, rounds, seconds)
    for name, samples in times.items():
        found["engines"][name]["ms"] = 1000 * statistics.median(samples)
        found["engines"][name]["rounds"] = len(samples)
    return found


def _on_host(results: Any) -> list[torch.Tensor]:
    return [
        t.detach().to("cpu", torch.float64, copy=True)
        for t in tree_leaves(results)
        if isinstance(t, torch.Tensor)
    ]


def check(case: Case, engine: Engine, work: Work, expected: Sequence[list[torch.Tensor]]) -> None:
    """Holds an engine's first results against eager's; errors count relative to the largest
    number of a tensor."""
    for number, want in enumerate(expected):
        for k, (a, b) in enumerate(zip(_on_host(work.run()), want, strict=True)):
            largest = float(b.abs().max()) if b.numel() else 0.0
            error = float((a - b).abs().max()) if b.numel() else 0.0
            if not error <= case.tolerance * max(largest, 1e-3):
                raise AssertionError(
                    f"{case.name}: {engine.name} is wrong: run {number}, result {k}, "
                    f"error {error:.2g} where the largest number is {largest:.2g}"
                )


def peak_bytes(engine: Engine, work: Work, run: Callable[[], Any], before: int) -> int:
    """The most memory of a run in its steady state, beyond what the case was made with.

    Both counts are those of PyTorch's allocators, of the bytes that were asked for, exact and
    repeatable: for tenon the device's own peak (a plan's arena is in it), for CPU tensors every
    allocation that the profiler saw, on top of what earlier runs left behind, such as gradients.
    Neither sees a library's own buffers, nor what an allocator rounds up.
    """
    gc.collect()
    if engine.device == "tenon":
        torch.tenon.reset_peak_memory_stats()
        run()
        return _requested("peak") - before
    # What a run frees of an earlier one is only seen if the profiler saw that too.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        run()
        with record_function(SECOND_RUN):
            run()
    events = traced.profiler.kineto_results.events()
    second = next(e.start_ns() for e in events if e.name() == SECOND_RUN)
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = sum(t.nbytes for t in work.kept())
    for at, change in changes:
        if at >= second:
            held += change
            most = max(most, held)
    return most


def _requested(when: str) -> int:
    return int(torch.tenon.memory_stats()[f"requested_bytes.all.{when}"])


def interleaved(
    runs: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Seconds of each run: one of each engine by turns, until there are `rounds` of them or the
    time is up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    clock = time.perf_counter
    end = clock() + seconds
    for done in range(rounds):
        if done >= ROUNDS_AT_LEAST and clock() > end:
            break
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return times


def ceilings() -> dict[str, float]:
    """What the machine can do, measured now: `copy` in bytes read and written per second, with
    memory that is there already, and per dtype the floating-point operations per second of a
    matrix product, by the fastest library that PyTorch brings."""
    x = torch.randn(16 * 2**20)
    y = torch.empty_like(x)
    found = {"copy": 2 * x.nbytes / _best(lambda: y.copy_(x))}
    n = 1024
    linear = torch.ops.mkldnn._linear_pointwise
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
        seconds = _best(functools.partial(torch.mm, a, b))
        if dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
            onednn = functools.partial(linear, a, b, None, "none", [], "")
            seconds = min(seconds, _best(onednn))
        found[str(dtype).removeprefix("torch.")] = 2 * n**3 / seconds
    return found


def _best(run: Callable[[], Any]) -> float:
    """The least time of up to ten runs, fewer when they take more than two seconds."""
    times: list[float] = []
    while not times or (len(times) < 10 and sum(times) < 2):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def least_seconds(found: Mapping[str, Any], ceiling: Mapping[str, float]) -> tuple[float, str]:
    """The time that a case takes at the ceiling, and which that is: bandwidth or compute."""
    moving = found["bytes"] / ceiling["copy"]
    computing = found["flops"] / ceiling[found["dtype"]]
    return (computing, "compute") if computing > moving else (moving, "bandwidth")
