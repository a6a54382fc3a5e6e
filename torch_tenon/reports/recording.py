"""What recording did: windows and why they ended, plans, what they cost and what they saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_tenon import _C, config
from torch_tenon import device as devices
from torch_tenon.api import accelerator
from torch_tenon.builder.counts import plan_counts
from torch_tenon.compiler import bounded
from torch_tenon.compiler.bounded import CacheCounts
from torch_tenon.compiler.explain import Summary, format_bytes
from torch_tenon.pytorch import process

REASONS = tuple(_C.commit_reasons())  # why windows end
_MOST_ROWS = 10


@dataclass(frozen=True, slots=True)
class WindowRuns:
    """A window's structure: its runs, and its plan or the reason why it has none."""

    by_plan: int = 0
    by_reference: int = 0
    plan: Summary | None = None
    error: str = ""
    name: str = ""  # its calls in a few words
    seconds_by_plan: float = 0.0  # of the host; an asynchronous device computes after them as well
    seconds_by_reference: float = 0.0
    sizes: int = 0  # how many its plan was for, where they are symbols
    waits_for: str = ""  # why it runs without a plan; empty where it does not, or of an error
    number: int = 0  # of the structure; -1: all those together that are kept no longer

    def since(self, before: WindowRuns) -> WindowRuns:
        """Its runs from another moment to this one."""
        return replace(
            self,
            by_plan=self.by_plan - before.by_plan,
            by_reference=self.by_reference - before.by_reference,
            seconds_by_plan=self.seconds_by_plan - before.seconds_by_plan,
            seconds_by_reference=self.seconds_by_reference - before.seconds_by_reference,
        )

    @classmethod
    def of_core(cls, runs: _C.WindowRuns) -> WindowRuns:
        """What the core knows of it, in words."""
        return cls(
            runs.by_plan,
            runs.by_reference,
            Summary.of_json(runs.facts),
            runs.error,
            runs.name,
            runs.time_by_plan,
            runs.time_by_reference,
            runs.sizes,
            _waits_for(runs),
            runs.number,
        )


@dataclass(frozen=True, slots=True)
class LineCount:
    """What a Python line did that held the host up: `waits`, or `at once`, and why."""

    what: str
    line: str  # "file.py:12: the host reads"
    calls: int
    seconds: float  # of waits


@dataclass(frozen=True, slots=True)
class Recording:
    """What recording did since the process started; `str` of it is a page to read."""

    calls: int  # recorded
    at_once: list[tuple[str, str, int]]  # op, why it was not recorded, calls since `reset_counters`
    commits: dict[str, int]  # windows by reason
    windows: list[WindowRuns]  # by structure
    never_by_plan: dict[str, int]  # windows that no plan may run, by why
    waiting: int  # plans that are not made yet
    peak_bytes: int  # of device memory, all devices together
    caches: list[CacheCounts]  # what is kept in memory for later
    lines: list[LineCount]  # where the host waited and what ran at once, with TENON_TRACE_CALLS
    first_plan: float | None  # seconds from the first window to the first one that ran by a plan
    builder: str  # what it is doing

    @property
    def by_plan(self) -> int:
        """Windows that ran by a plan."""
        return sum(w.by_plan for w in self.windows)

    @property
    def by_reference(self) -> int:
        """Windows that ran op by op."""
        structures = sum(w.by_reference for w in self.windows)
        return structures + sum(self.never_by_plan.values())

    @property
    def plans(self) -> list[Summary]:
        """The plans that were made."""
        return [w.plan for w in self.windows if w.plan is not None]

    def since(self, before: Recording) -> Recording:
        """What recording did from another moment to this one; what is kept is that of now."""
        known = {(op, why): n for op, why, n in before.at_once}
        rows = [(op, why, n - known.get((op, why), 0)) for op, why, n in self.at_once]
        was = {(x.what, x.line): x for x in before.lines}
        none = LineCount("", "", 0, 0.0)
        lines = [
            replace(x, calls=x.calls - b.calls, seconds=x.seconds - b.seconds)
            for x, b in ((x, was.get((x.what, x.line), none)) for x in self.lines)
        ]
        ran = {w.number: w for w in before.windows}
        windows = [w.since(ran.pop(w.number, WindowRuns())) for w in self.windows]
        for gone in ran.values():  # what is left went meanwhile: all that is in the first row
            windows[0] = windows[0].since(gone)
        return replace(
            self,
            calls=self.calls - before.calls,
            at_once=[row for row in rows if row[2] > 0],
            commits=_more(self.commits, before.commits),
            never_by_plan=_more(self.never_by_plan, before.never_by_plan),
            windows=[w for w in windows if w.by_plan + w.by_reference > 0],
            lines=[x for x in lines if x.calls > 0],
        )

    @property
    def bytes_saved(self) -> int:
        """What plans did not read or write, which the same calls one by one would have."""
        return sum(
            w.by_plan * (w.plan.bytes_by_op - w.plan.bytes_moved)
            for w in self.windows
            if w.plan is not None
        )

    @property
    def seconds(self) -> dict[str, float]:
        """What making the plans took, in the background, by stage."""
        total: dict[str, float] = defaultdict(float)
        for plan in self.plans:
            for stage, seconds in plan.seconds.items():
                total[stage] += seconds
        return dict(total)

    @property
    def share_by_plan(self) -> float:
        """Of the time that windows ran, how much was by plans: 0 to 1."""
        by_plan = sum(w.seconds_by_plan for w in self.windows)
        return by_plan / (by_plan + sum(w.seconds_by_reference for w in self.windows) or 1.0)

    def __str__(self) -> str:
        ran = self.by_plan + self.by_reference
        if not ran:
            return "Nothing was recorded."
        reasons = ", ".join(f"{why} {n:,}" for why, n in self.commits.items())
        plans = self.plans
        seconds = ", ".join(f"{stage} {s:.2f}" for stage, s in self.seconds.items()) or "none"
        failed = [w for w in self.windows if w.error]
        time = sum(w.seconds_by_plan + w.seconds_by_reference for w in self.windows)
        first = "none yet" if self.first_plan is None else f"after {self.first_plan:.2f} s"
        lines = [
            f"Recorded {self.calls:,} calls; {sum(n for *_, n in self.at_once):,} ran at once.",
            f"Windows: {ran:,}, {self.by_plan / ran:.1%} by a plan, of "
            f"{len(self.windows):,} structures. They ended for: {reasons}",
            f"They took {time:.2f} s, {self.share_by_plan:.1%} by a plan; the first plan: {first}. "
            f"The builder: {self.builder}",
            f"Plans: {len(plans):,} made, {self.waiting} to come, {len(failed)} failed; "
            f"{sum(p.kernels for p in plans):,} kernels, {sum(p.calls for p in plans):,} calls. "
            f"Seconds in the background: {seconds}",
            f"Fusion saved {format_bytes(self.bytes_saved)} of memory traffic; "
            f"peak memory {format_bytes(self.peak_bytes)}",
        ]
        lines += [f"Kept in memory: {cache}" for cache in self.caches]
        lines += [
            f"  always op by op: {n:,} window{'s'[: n > 1]}, {why}"
            for why, n in self.never_by_plan.items()
        ]
        lines += [f"  no plan for a window: {w.error}" for w in failed[:_MOST_ROWS]]
        lines += self._without_plans() + self._of_many_sizes()
        if self.at_once:
            lines += ["", "Calls that ran at once:"]
            lines += [f"  {op}: {why}, {n:,} calls" for op, why, n in self._most_at_once()]
            hidden = len(self.at_once) - _MOST_ROWS
            lines += [f"  and {hidden} more ops"] if hidden > 0 else []
        if self.lines:
            lines += ["", "Python lines where the host waited, and that ran ops at once:"]
            lines += [
                f"  {n.what:8} {n.calls:>8,} times{n.seconds * 1e3:>12.2f} ms  {n.line}"
                for n in self.lines[: 2 * _MOST_ROWS]
            ]
        return "\n".join(lines)

    def _without_plans(self) -> list[str]:
        rows = [w for w in self.windows if w.waits_for]
        most = sorted(rows, key=lambda w: -w.seconds_by_reference)[:_MOST_ROWS]
        if not most:
            return []
        return ["", "Windows that run without a plan, those that took longest first:"] + [
            f"  {w.name}: {w.by_reference:,} runs, {w.seconds_by_reference * 1e3:.2f} ms; "
            f"{w.waits_for}"
            for w in most
        ]

    def _of_many_sizes(self) -> list[str]:
        rows = sorted((w for w in self.windows if w.sizes > 1), key=lambda w: -w.sizes)
        if not rows:
            return []
        return ["", "Windows whose sizes are symbols:"] + [
            f"  {w.name}: {w.sizes:,} sizes, {w.by_plan:,} runs by one plan, "
            f"{w.by_reference:,} by reference"
            for w in rows[:_MOST_ROWS]
        ]

    def _most_at_once(self) -> Sequence[tuple[str, str, int]]:
        return sorted(self.at_once, key=lambda row: -row[2])[:_MOST_ROWS]


def recording() -> Recording:
    """What recording did so far."""
    _C.commit_all()
    calls, commits = _C.record_counts()
    backend = devices.backend()
    return Recording(
        calls,
        calls_at_once(),
        {why: n for why, n in zip(REASONS, commits, strict=True) if n},
        [WindowRuns.of_core(runs) for runs in _C.window_runs()],
        {why: n for why, n in _C.windows_never_by_plan().items() if n},
        plan_counts()["waiting"],
        sum(accelerator.max_memory_allocated(k) for k in range(accelerator.device_count())),
        [
            _known_calls(calls),
            CacheCounts("structures of windows", *_C.structure_counts()),
            *bounded.counts(),
            *([] if backend is None else backend.caches()),
        ],
        lines_that_wait(),
        _first_plan(),
        _builder(),
    )


def _more(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Counts since others, those that have grown."""
    since = {why: n - before.get(why, 0) for why, n in now.items()}
    return {why: n for why, n in since.items() if n > 0}


def _known_calls(recorded: int) -> CacheCounts:
    known, most, learned, evicted = _C.known_call_counts()
    return CacheCounts("calls by op", known, most, recorded, learned, evicted)


def _first_plan() -> float | None:
    window, by_plan = _C.first_runs()
    return by_plan - window if by_plan else None


def _waits_for(runs: _C.WindowRuns) -> str:
    if runs.shortest_by_plan:
        return (
            f"its plan is used no more: it took {runs.shortest_by_plan * 1e3:.3f} ms at least, and "
            f"the calls one by one {runs.shortest_by_reference * 1e3:.3f}"
        )
    if runs.facts or runs.error or runs.by_plan or runs.number < 0:
        return ""
    if runs.asked_for:
        return f"the builder was asked for it {runs.asked_for:.2f} s ago"
    if runs.by_reference < 2:
        return "it came once"
    return (
        f"a plan might have saved {runs.saving * 1e3:.2f} ms of that, and is asked for at "
        f"{runs.price * 1e3:.2f} ms"
    )


def _builder() -> str:
    if config.BUILDER.read() == "off":
        return "off"
    starts, owes = _C.builder_state()
    thread = process.builder
    if thread is not None and thread.thread is not None:
        who, owes = "a thread", len(thread.waiting)
    elif starts or owes:
        who = "a process"
    else:
        return "not started by this process"
    return f"{who}, {owes} plans to make" if owes else f"{who} with nothing to do"


def lines_that_wait() -> list[LineCount]:
    """The Python lines where the host waited, longest first, and those that ran ops at once, most
    often first: since `reset_counters`, with TENON_TRACE_CALLS."""
    found = [
        LineCount(route.removeprefix("line "), where, n, nanoseconds / 1e9)
        for route, where, n, nanoseconds, _ in _C.counter_values()
        if route.startswith("line ")
    ]
    return sorted(found, key=lambda row: (-row.seconds, -row.calls))


def calls_at_once() -> list[tuple[str, str, int]]:
    """The calls that were not recorded: op, why, how many."""
    rows = ((op, route.partition("at once: "), n) for route, op, n, *_ in _C.counter_values())
    return [(op, why, n) for op, (_, at_once, why), n in rows if at_once]
