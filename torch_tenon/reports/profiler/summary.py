"""What a profile tells, as plain data: the JSON that `tenon profile` writes, and its page shows.

Times are seconds from the begin of the run, or lengths in seconds; memory is bytes.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torch_tenon import _C, config
from torch_tenon.api import accelerator
from torch_tenon.compiler.explain import Summary
from torch_tenon.frontends.eager import route_of
from torch_tenon.reports.profiler import timeline
from torch_tenon.reports.profiler.advice import advise
from torch_tenon.reports.profiler.ceilings import Ceilings, ceilings
from torch_tenon.reports.profiler.collect import Collector
from torch_tenon.reports.profiler.log import (
    BY_PLAN,
    BY_REFERENCE,
    Events,
    Subjects,
    of,
)

FORMAT = "torch-tenon profile 1"
MOST_KERNELS = 300
MOST_ROWS = 200
_ANY_SIZES = ""  # in place of a detail
_MOST_LINES = 6  # of a kernel
_MOST_SOURCES = 60  # kernels whose code is there, those that took longest
_MOST_SOURCE = 20_000  # characters of a kernel's code

Profile = dict[str, Any]


def summarise(
    found: Collector, script: Sequence[str], status: int, error: str = "", detail: int = 20_000
) -> Profile:
    """The profile of a run: `status` is its exit status, `error` its traceback's last line, and
    `detail` the most events of the timeline."""
    subjects = Subjects()
    events = found.kept.events()
    most = ceilings()
    made: Profile = {
        "format": FORMAT,
        "script": list(script),
        "status": status,
        "error": error,
        "machine": _machine(most),
        "seconds": found.seconds(),
        "events": {"seen": found.seen, "kept": len(events), "lost": found.lost},
        "time": _time(found),
        "builder": found.total("build").nanoseconds / 1e9,
        "waits": _lines(found, subjects, "wait"),
        "at_once": _lines(found, subjects, "at_once"),
        "copies": _lines(found, subjects, "copy"),
        "kernels": _kernels(found, subjects, events, most),
        "recorded": _recorded(found, subjects),
        "windows": _windows(found, subjects),
        "plans": _plans(),
        "memory": {
            "samples": found.memory.samples,
            "peak": max(accelerator.max_memory_allocated(), found.memory.peak),
            "limit": accelerator.mem_get_info()[1],
            "owners": found.memory.owners,
        },
        "timeline": timeline.make(found, subjects, events, detail),
    }
    made["advice"] = advise(made)
    return made


def _machine(most: Ceilings) -> Profile:
    return {
        "target": accelerator.target_name(),
        "processor": _processor(),
        "bytes_per_second": most.bytes,
        "operations_per_second": most.operations,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _time(found: Collector) -> list[Profile]:
    """How the time of the thread that ran the script was spent; all of it."""
    own = found.own
    parts = [
        ("computing by a plan", sum(own[k] for k in BY_PLAN)),
        ("computing by reference", sum(own[k] for k in BY_REFERENCE)),
        ("copying", own["copy"]),
        ("waiting", own["wait"]),
        ("recording", own["record"]),
        ("looking up plans", own["look_up"]),
        ("handing windows over", own["commit"] + own["reference_run"]),
    ]
    rest = found.seconds() - sum(n for _, n in parts) / 1e9
    return [
        *({"name": name, "seconds": n / 1e9} for name, n in parts),
        {"name": "Python and the rest", "seconds": max(rest, 0.0)},
    ]


def _lines(found: Collector, subjects: Subjects, activity: str) -> list[Profile]:
    """Events of one activity by Python line, those that took longest first."""
    rows: list[Profile] = [
        {
            "line": subjects[line].name,
            "what": subjects[subject].name,
            "count": one.count,
            "seconds": one.nanoseconds / 1e9,
            "bytes": one.amount,
        }
        for (name, subject, line), one in found.sums.items()
        if name == activity
    ]
    return sorted(rows, key=lambda r: -r["seconds"])[:MOST_ROWS]


def _recorded(found: Collector, subjects: Subjects) -> list[Profile]:
    """Recorded calls by Python line, those whose results took most memory first; `seconds` is what
    recording them took."""
    by_line: dict[str, Profile] = {}
    for (name, subject, line), one in found.sums.items():
        if name != "record":
            continue
        where = subjects[line].name
        row = by_line.setdefault(
            where, {"line": where, "count": 0, "seconds": 0.0, "bytes": 0, "most": 0, "op": ""}
        )
        row["count"] += one.count
        row["seconds"] += one.nanoseconds / 1e9
        row["bytes"] += one.amount
        each = one.amount // one.count
        if each >= row["most"]:
            row["most"], row["op"] = each, subjects[subject].name
    rows = sorted(by_line.values(), key=lambda r: -r["bytes"])
    return rows[:MOST_ROWS]


def _kernels(found: Collector, subjects: Subjects, events: Events, most: Ceilings) -> list[Profile]:
    """What the device ran, by the time that it took, beside what this machine can do."""
    codes = _codes()
    lines = _lines_of_kernels(subjects, events)
    rows: list[Profile] = []
    by_subject: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (name, subject, _), one in found.sums.items():
        if name in BY_PLAN or name in BY_REFERENCE:
            sums = by_subject[name, subject]
            sums[0] += one.count
            sums[1] += one.nanoseconds
            sums[2] += one.amount
    for (name, number), (count, nanoseconds, amount) in by_subject.items():
        what = subjects[number]
        nbytes = what.bytes or amount // count
        seconds = nanoseconds / 1e9
        share = _share(nbytes * count, what.operations * count, seconds, most)
        code = codes.get((what.name, what.calls, what.detail), "")
        code = code or codes.get((what.name, what.calls, _ANY_SIZES), "")
        rows.append(
            {
                "name": what.name,
                "kind": name,
                "route": route_of(what.name) if name in BY_REFERENCE else name,
                "detail": what.detail,
                "count": count,
                "seconds": seconds,
                "bytes": nbytes,
                "operations": what.operations,
                "share": share,
                "lines": lines.get((name, number), [])[:_MOST_LINES],
                "code": code,
            }
        )
    rows.sort(key=lambda r: -r["seconds"])
    rows = rows[:MOST_KERNELS]
    for row in rows[:_MOST_SOURCES]:
        row["source"] = _source(str(row["code"]))
    return rows


def _share(nbytes: float, operations: float, seconds: float, most: Ceilings) -> float:
    """Of the machine's peak, from 0 on: of bytes or of operations, whatever is more."""
    if seconds <= 0:
        return 0.0
    return max(nbytes / seconds / most.bytes, operations / seconds / most.operations)


def _lines_of_kernels(subjects: Subjects, events: Events) -> dict[tuple[str, int], list[str]]:
    """The Python lines that each kernel computes, as far as the sample tells."""
    records = of(events, "record")
    line_of = {
        (w, c): n
        for w, c, n in zip(
            records["window"].tolist(),
            records["call"].tolist(),
            records["line"].tolist(),
            strict=True,
        )
    }
    found: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for name in (*BY_PLAN, *BY_REFERENCE):
        chosen = of(events, name)
        columns = (chosen[k].tolist() for k in ("subject", "window", "call", "line"))
        for subject, window, call, line in zip(*columns, strict=True):
            seen[name, subject] += 1
            if seen[name, subject] > 3:
                continue
            calls = [call] if call >= 0 else subjects[subject].calls
            lines = [line_of.get((window, c), 0) for c in calls] or [line]
            found[name, subject] |= {subjects[n].name: None for n in lines if n}
    return {key: list(lines) for key, lines in found.items()}


def _summaries() -> list[tuple[int, int, Summary | None, str]]:
    return [
        (w.by_plan, w.by_reference, Summary.of_json(w.facts), w.error) for w in _C.window_runs()
    ]


def _codes() -> dict[tuple[str, tuple[int, ...], str], str]:
    """The names of kernels' code, by their names, the calls that they compute, and the detail at
    the sizes that they were made for. For other sizes it is the code of all kernels of the name
    that compute these calls, where they have one."""
    found: dict[tuple[str, tuple[int, ...], str], set[str]] = defaultdict(set)
    for *_, summary, _ in _summaries():
        for name, detail, calls, code, _ in summary.steps if summary else ():
            for sizes in (detail, _ANY_SIZES):
                found[name, tuple(calls), sizes].add(code)
    return {who: next(iter(codes)) for who, codes in found.items() if len(codes) == 1}


def _source(code: str) -> str:
    """A kernel's code, if the cache has it."""
    path = Path(config.cache_directory()) / f"{code}.c"
    if not code or not path.exists():
        path = Path(config.cache_directory()) / "kernels" / f"{code}.c"
    return path.read_text()[:_MOST_SOURCE] if code and path.exists() else ""


def _windows(found: Collector, subjects: Subjects) -> list[Profile]:
    """Windows by the reason of their end."""
    rows: list[Profile] = [
        {
            "why": subjects[subject].name,
            "count": one.count,
            "calls": one.amount,
            "seconds": one.nanoseconds / 1e9,
            "own": one.own / 1e9,
        }
        for (name, subject, _), one in found.sums.items()
        if name == "commit"
    ]
    return sorted(rows, key=lambda r: -r["count"])


def _plans() -> list[Profile]:
    """The plans that ran most: their steps as a graph, and what was not fused, with the reason."""
    rows = []
    for by_plan, by_reference, summary, error in _summaries():
        row: Profile = {"runs": by_plan, "by_reference": by_reference, "error": error}
        if summary is not None:
            row |= {
                "kernels": summary.kernels,
                "calls": summary.calls,
                "saved": summary.bytes_by_op - summary.bytes_moved,
                "seconds": sum(summary.seconds.values()),
                "fallbacks": dict(summary.fallbacks),
                "steps": [[s[0], s[1], s[3], s[4]] for s in summary.steps],
                "rejected": [list(r) for r in summary.rejected],
            }
        rows.append(row)
    rows.sort(key=lambda r: -(r["runs"] + r["by_reference"]))
    return rows[:40]


def busy(events: Events) -> float:
    """Seconds in which at least one of the events was in work."""
    if len(events) == 0:
        return 0.0
    order = np.argsort(events["begin"], kind="stable")
    begins, ends = events["begin"][order], events["end"][order]
    reached = np.maximum.accumulate(np.concatenate([begins[:1], ends[:-1]]))
    return float(np.maximum(ends - np.maximum(begins, reached), 0).sum()) / 1e9
