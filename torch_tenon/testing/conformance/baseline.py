"""What did not pass when it was last recorded, and what is worse or better now.

A baseline is small and sorted, so that a change of it can be reviewed: the totals, and of the
cases only those that do not pass, each with its status, its failed checks and the reason.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .alike import message_pattern
from .case import SEVERITY, CaseResult, Status

FOLDER = Path(__file__).parent / "baseline"


class BadBaseline(ValueError):
    """A baseline file that cannot be read; the text names the file and the way out."""


def default_path(device: str, target: str | None) -> Path:
    """The recorded baseline of a device and target in this package.

    A target that is named by where it is (`path/to/file.py:Class`) goes by its last part.
    """
    return FOLDER / (f"{device}-{target.rpartition(':')[2]}.json" if target else f"{device}.json")


@dataclass
class Baseline:
    """`not_passing` maps a case's id to its `status`, failed `checks` and `reason`."""

    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    not_passing: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The baseline in `path`; raises BadBaseline if it is not one."""
        try:
            value = json.loads(path.read_text())
            baseline = cls(value["totals"], value["not_passing"])
            for entry in baseline.not_passing.values():
                Status(entry["status"])
                list(entry["checks"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadBaseline(
                f"{path} is not a baseline ({type(error).__name__}: {error}); "
                "record it anew with --update-baseline"
            ) from error
        return baseline

    def write(self, path: Path) -> None:
        """Writes `path` whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"    {json.dumps(case)}: {json.dumps(self.not_passing[case])}"
            for case in sorted(self.not_passing)
        ]
        entries = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
        totals = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(self.totals.items())]
        text = '{\n  "totals": {\n' + ",\n".join(totals) + "\n  },\n"
        text += f'  "not_passing": {entries}\n}}\n'
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)

    def updated(self, results: Iterable[CaseResult], complete: Iterable[str]) -> Baseline:
        """This baseline with the cases run now in place of what it had for them.

        `complete` are the kinds of which every case was run: their entries and totals are replaced
        whole. The totals of others stay as they were.
        """
        results, complete = list(results), set(complete)
        run = {result.case.id for result in results}
        kept = {
            case: entry
            for case, entry in self.not_passing.items()
            if case not in run and case.split("/", 1)[0] not in complete
        }
        for result in results:
            if result.status is not Status.PASS:
                kept[result.case.id] = {
                    "status": str(result.status),
                    "checks": result.failed_checks,
                    "reason": result.reason,
                    "message": message_pattern(result.message),
                }
        totals = {kind: count for kind, count in self.totals.items() if kind not in complete}
        for kind in complete:
            counts = Counter(str(r.status) for r in results if r.case.kind == kind)
            totals[kind] = {"cases": counts.total(), **dict(sorted(counts.items()))}
        return Baseline(totals, kept)


@dataclass
class Changes:
    """Ids of cases and what happened to them, against a baseline."""

    worse: dict[str, str] = field(default_factory=dict)
    better: dict[str, str] = field(default_factory=dict)


def compare(baseline: Baseline | None, results: Iterable[CaseResult]) -> Changes:
    """What got worse and what got better; a case that the baseline does not list passed in it.

    A case is worse when its status is (pass, not applicable, fail, hang, crash), and also when it
    fails a check that it did not fail before. Where nothing was recorded yet, every case is
    expected to pass that the CPU can run.
    """
    changes = Changes()
    for result in results:
        if baseline is None and result.status is Status.NOT_APPLICABLE:
            continue
        entry = baseline.not_passing.get(result.case.id) if baseline else None
        before = Status(entry["status"]) if entry else Status.PASS
        checks = set(entry["checks"]) if entry else set()
        now_failing = set(result.failed_checks)
        step = SEVERITY[result.status] - SEVERITY[before]
        if result.status is Status.PASS and before is not Status.PASS:
            step = -1
        if result.status is before is Status.FAIL:
            step = len(now_failing - checks) or -len(checks - now_failing)
        if step == 0:
            continue
        text = f"{_describe(before, checks)} -> {_describe(result.status, now_failing)}"
        if result.status is not Status.PASS:
            text += f": {result.reason}"
        (changes.worse if step > 0 else changes.better)[result.case.id] = text
    return changes


def _describe(status: Status, checks: set[str]) -> str:
    return f"{status} ({', '.join(sorted(checks))})" if checks else str(status)
