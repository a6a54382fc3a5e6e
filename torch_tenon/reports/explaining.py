"""What a call or a script did on the device, in the terminal: `torch_tenon.explain` and
`tenon explain`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, overload

from torch_tenon import _C, config
from torch_tenon.api import accelerator
from torch_tenon.builder.counts import plan_counts
from torch_tenon.compiler.explain import GraphSummary, Summary, format_bytes
from torch_tenon.reports.counting import Report, report
from torch_tenon.reports.recording import WindowRuns
from torch_tenon.reports.running import run_script

MOST_CALLS = 50
MOST_SECONDS = 60.0  # of calls and of waiting for plans
_PAUSE = 0.01  # seconds between two looks whether the plans are there
_MOST_PLANS = 8
_MOST_STEPS = 20
_MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Explanation(Sequence[Summary | GraphSummary]):
    """What a call did; `str` of it is a page to read, and `as_json` the same as data.

    It is the sequence of the plans of its windows, those that ran most first, and then of its
    compiled graphs.
    """

    what: str  # was called
    seconds: float  # of the call that the report is of
    calls: int  # of which that was the last
    settled: bool  # whether no plan is waited for
    report: Report
    graphs: Sequence[GraphSummary] = ()

    @property
    def plans(self) -> list[Summary | GraphSummary]:
        """What this is the sequence of."""
        return [*(w.plan for w in self._windows() if w.plan is not None), *self.graphs]

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, index: int) -> Summary | GraphSummary: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Summary | GraphSummary]: ...
    def __getitem__(
        self, index: int | slice
    ) -> Summary | GraphSummary | Sequence[Summary | GraphSummary]:
        return self.plans[index]

    def as_json(self) -> str:
        """JSON: an object with the fields of this class; `report` is that of
        `torch_tenon.report().as_json()`."""
        return json.dumps(
            {
                "what": self.what,
                "seconds": self.seconds,
                "calls": self.calls,
                "settled": self.settled,
                "report": json.loads(self.report.as_json()),
                "graphs": [asdict(graph) for graph in self.graphs],
            }
        )

    def __str__(self) -> str:
        head = f"{self.what} took {self.seconds * 1e3:.2f} ms"
        head += f", called {self.calls} times." if self.calls > 1 else "."
        if not self.settled:
            head += " Not all of its windows have their plans yet."
        ran = str(self.report)
        if self.graphs and not self.report.counts:
            ran = "All ops were in graphs."
        pages = [head, ran, *self._plan_pages()]
        pages += [f"{graph.kind} graph {k}\n{graph}" for k, graph in enumerate(self.graphs)]
        return "\n\n".join(page for page in pages if page)

    def _windows(self) -> list[WindowRuns]:
        found = self.report.recording
        windows = [] if found is None else found.windows
        return sorted(windows, key=lambda w: -(w.by_plan + w.by_reference))

    def _plan_pages(self) -> list[str]:
        planned = [w for w in self._windows() if w.plan is not None]
        pages = [_plan_page(k, w) for k, w in enumerate(planned[:_MOST_PLANS], 1)]
        hidden = len(planned) - _MOST_PLANS
        return pages + ([f"And {hidden} more plans."] if hidden > 0 else [])


def _plan_page(number: int, window: WindowRuns) -> str:
    plan = window.plan
    assert plan is not None
    lines = [
        f"Plan {number}, of a window that ran {window.by_plan:,} times by it and "
        f"{window.by_reference:,} times by reference: {plan.kernels} kernels, {plan.calls} calls; "
        f"moves {format_bytes(plan.bytes_moved)}, op by op {format_bytes(plan.bytes_by_op)}; "
        f"peak memory {format_bytes(plan.peak_bytes)}"
    ]
    for name, detail, _, code, _ in plan.steps[:_MOST_STEPS]:
        kind = code if code in ("library", "fallback", "kernel") else "kernel"
        lines.append(f"  {kind:8} {shorten(name, 60, placeholder=' ...')}  {detail}")
    hidden = len(plan.steps) - _MOST_STEPS
    lines += [f"  and {hidden} more steps"] if hidden > 0 else []
    lines += [f"  on the host: {op}: {why}" for op, why in plan.fallbacks.items()]
    lines += [f"  not fused: {a} with {b}: {why}" for a, b, why in plan.rejected[:_MOST_REASONS]]
    hidden = len(plan.rejected) - _MOST_REASONS
    lines += [f"  and {hidden} more pairs that were not fused"] if hidden > 0 else []
    return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a call does on the device once it is warm: windows and why they ended, plans, kernels by
    time, what was fused, and what was not, with the reason.

    Calls `function(*args, **kwargs)` until each of its windows has its plan, at most MOST_CALLS
    times and for about MOST_SECONDS, and tells of one call more; a function that changes what it is
    given does so each time. Of a function that torch.compile made, it compiles the original afresh
    as well, for the graphs. `settled` says whether the plans were there.
    """
    graphs: Sequence[GraphSummary] = ()
    original = getattr(function, "_torchdynamo_orig_callable", None)
    if original is not None:
        from torch_tenon.frontends.dynamo import explain_graphs

        graphs = explain_graphs(original, *args, **kwargs)
    calls, settled = _warm_up(lambda: function(*args, **kwargs))
    before = report()
    timed = _C.set_timing(True)
    # A window that has a plan runs by calls now and then, to compare: not in the call that is told.
    _C.set_plan_all(not any(w.shortest_by_plan for w in _C.window_runs()))
    start = time.perf_counter()
    try:
        function(*args, **kwargs)
        _synchronize()
        seconds = time.perf_counter() - start
    finally:
        _C.set_timing(timed)
        _C.set_plan_all(config.PLAN.read() == "all")
    name = getattr(function, "__name__", type(function).__name__)
    return Explanation(name, seconds, calls + 1, settled, report().since(before), graphs)


def _warm_up(call: Callable[[], object]) -> tuple[int, bool]:
    """Calls until no window of the call waits for its plan; how often, and whether that was so."""
    end = time.monotonic() + MOST_SECONDS
    _C.set_plan_all(True)
    try:
        for count in range(1, MOST_CALLS + 1):
            before = _C.window_runs()
            call()
            _synchronize()
            while plan_counts()["waiting"] and time.monotonic() < end:
                time.sleep(_PAUSE)
            # The first call of an op runs at once, and makes no window.
            if count > 1 and not _waits_for_plans(before, _C.window_runs()):
                return count, True
            if time.monotonic() >= end:
                return count, False
        return MOST_CALLS, False
    finally:
        _C.set_plan_all(config.PLAN.read() == "all")


def _waits_for_plans(before: Sequence[_C.WindowRuns], after: Sequence[_C.WindowRuns]) -> bool:
    """Whether a window ran by reference meanwhile that may have a plan yet."""
    was = {runs.number: runs.by_reference for runs in before}
    return any(
        runs.by_reference > was.get(runs.number, 0) and not runs.error
        for runs in after
        if runs.number >= 0
    )


def _synchronize() -> None:
    for index in range(accelerator.device_count()):
        accelerator.synchronize(index)


def explain_script(script: Path, arguments: Sequence[str]) -> tuple[Explanation, int]:
    """Runs a Python file as `python script arguments...` does, with the kernels of its plans timed;
    what it did, and its exit status: 1 where it raised, after its traceback."""
    timed = _C.set_timing(True)
    start = time.perf_counter()
    try:
        status = run_script(script, arguments).status
    finally:
        _C.set_timing(timed)
    found = report()
    seconds = time.perf_counter() - start
    settled = found.recording is None or found.recording.waiting == 0
    what = " ".join([str(script), *arguments])
    return Explanation(what, seconds, 1, settled, found), status
