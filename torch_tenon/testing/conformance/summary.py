"""Counts over results, and the tables in which the terminal shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .alike import Differences, message_pattern
from .baseline import Changes
from .case import Case, CaseResult, Status
from .route import Maker

COLOURS = {
    Status.PASS: "green",
    Status.FAIL: "red",
    Status.CRASH: "bold magenta",
    Status.HANG: "bold yellow",
    Status.NOT_APPLICABLE: "dim",
}


MOST_NAMES = 6  # of entries beside a reason


@dataclass
class Failure:
    """Cases that failed alike, and how far their results are off."""

    reason: str
    pattern: str
    differences: Differences = field(default_factory=Differences)
    cases: list[str] = field(default_factory=list)
    checks: Counter[str] = field(default_factory=Counter)

    @property
    def message(self) -> str:
        """What the cases' messages have in common."""
        return "; ".join(filter(None, (self.pattern, str(self.differences))))


def counts_by_kind(results: Sequence[CaseResult]) -> dict[str, Counter[Status]]:
    """How many cases of each kind ended how."""
    counts: dict[str, Counter[Status]] = defaultdict(Counter)
    for result in results:
        counts[result.case.kind][result.status] += 1
    return dict(counts)


def made_by(results: Sequence[CaseResult]) -> dict[str, int]:
    """How many results that were compared each maker computed; empty where nobody counted."""
    made: Counter[str] = sum((Counter(result.made) for result in results), Counter())
    return {str(maker): made[maker] for maker in Maker} if made else {}


def reasons(results: Sequence[CaseResult]) -> list[tuple[str, Counter[str]]]:
    """Why the host computed, with the entries of the database where it did, each with how many
    cases it has, the most frequent first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for why in result.on_host:
            found[why][result.case.name] += 1
    return sorted(found.items(), key=lambda row: -row[1].total())


def command_after_others(result: CaseResult, device: str, target: str | None) -> str:
    """The command that runs a case behind those that its process had run before."""
    return result.case.command(device, target, [Case.from_id(case) for case in result.after])


def pass_rate(counts: Counter[Status]) -> float | None:
    """Passed of those that the CPU can run, in per cent; None if there are none."""
    applicable = counts.total() - counts[Status.NOT_APPLICABLE]
    return 100 * counts[Status.PASS] / applicable if applicable else None


def failures(results: Sequence[CaseResult]) -> list[Failure]:
    """Like failures together, the most frequent first; a case counts once for each like failure."""
    groups: dict[tuple[str, str], Failure] = {}
    for result in results:
        checks = [(n, c) for n, c in result.checks.items() if c.status is Status.FAIL]
        seen = [(name, check.reason, check.message) for name, check in checks]
        if result.status in (Status.CRASH, Status.HANG):
            seen = [(str(result.status), result.reason, result.message)]
        for check, reason, message in seen:
            key = (reason, message_pattern(message))
            group = groups.setdefault(key, Failure(*key))
            group.checks[check] += 1
            group.differences.add(message)
            if not group.cases or group.cases[-1] != result.case.id:
                group.cases.append(result.case.id)
    return sorted(groups.values(), key=lambda group: -len(group.cases))


def show(
    console: Console,
    results: Sequence[CaseResult],
    changes: Changes,
    *,
    device: str,
    target: str | None,
    has_baseline: bool = True,
    most: int = 15,
) -> None:
    """Prints counts by kind, the most frequent failures and the changes against the baseline."""
    table = Table(title="Conformance with the CPU", title_justify="left")
    table.add_column("database")
    for status in Status:
        table.add_column(str(status), justify="right", style=COLOURS[status])
    table.add_column("pass rate", justify="right")
    table.add_column("inputs run", justify="right")
    for kind, counts in counts_by_kind(results).items():
        mine = [result for result in results if result.case.kind == kind]
        rate = pass_rate(counts)
        run, available = (
            sum(getattr(r, n) for r in mine) for n in ("samples", "samples_available")
        )
        table.add_row(
            kind,
            *(str(counts[status]) for status in Status),
            "-" if rate is None else f"{rate:.2f} %",
            f"{run:,} of {available:,}",
        )
    console.print(table)
    made = made_by(results)
    if made:
        by_maker = ", ".join(f"{maker} {n:,}" for maker, n in made.items())
        console.print(f"Results by who computed them: {by_maker}", soft_wrap=True)
    for why, entries in reasons(results)[:most]:
        names = ", ".join([*entries][:MOST_NAMES]) + (", ..." if len(entries) > MOST_NAMES else "")
        cases = entries.total()
        console.print(
            f"  by the host in {cases:,} case{'s'[: cases > 1]}: {escape(why)} "
            f"[dim]({escape(names)})[/]",
            soft_wrap=True,
        )
    errors = [r.checks["errors"].status for r in results if "errors" in r.checks]
    if any(status is not Status.NOT_APPLICABLE for status in errors):
        alike, asked = errors.count(Status.PASS), len(errors) - errors.count(Status.NOT_APPLICABLE)
        console.print(
            f"Bad input raises as on the CPU in {alike} of {asked} ops (not counted above)"
        )
    groups = failures(results)
    if groups:
        console.print("[bold]Failures, the most frequent first[/]")
        for group in groups[:most]:
            # One that came first in its process repeats best.
            members = [result for result in results if result.case.id in group.cases]
            first = min(members, key=lambda result: len(result.after))
            console.print(
                f"[red]{len(group.cases):5}[/]  {escape(group.reason)} "
                f"[dim]({', '.join(group.checks)})[/]: {escape(group.message)}",
                soft_wrap=True,
            )
            command = escape(first.case.command(device, target))
            console.print(f"       [dim]{command}[/]", soft_wrap=True)
            if first.after:
                command = escape(command_after_others(first, device, target))
                console.print(
                    f"       [dim]other cases ran before it in its process; should it pass "
                    f"alone: {command}[/]",
                    soft_wrap=True,
                )
        if len(groups) > most:
            console.print(f"... and {len(groups) - most} other kinds of failure")
    for title, found, colour in (
        ("Better than the baseline", changes.better, "green"),
        ("Worse than the baseline" if has_baseline else "Does not pass", changes.worse, "red"),
    ):
        if found:
            console.print(f"[bold {colour}]{title}: {len(found)}[/]")
            for case_id, text in sorted(found.items())[:200]:
                console.print(f"  [{colour}]{escape(case_id)}[/]  {escape(text)}", soft_wrap=True)


def show_case(console: Console, result: CaseResult) -> None:
    """Prints all that is known of one case, with tracebacks."""
    console.print(
        f"[{COLOURS[result.status]}]{result.status}[/] {escape(result.case.id)} "
        f"({result.samples} of {result.samples_available} inputs, {result.seconds:.2f} s)"
    )
    if result.status in (Status.CRASH, Status.HANG):
        console.print(f"  {result.reason}\n{result.message}", markup=False, highlight=False)
    for name, check in result.checks.items():
        status = f"[{COLOURS[check.status]}]{check.status}[/]"
        makers = "".join(f", {maker} {n}" for maker, n in check.made.items())
        console.print(f"  {status} {name}: {check.compared} compared{makers}", soft_wrap=True)
        for text in (check.reason, check.message, check.sample, check.traceback):
            if text:
                console.print(f"    {text}", markup=False, highlight=False, soft_wrap=True)
    if result.made:
        by_maker = ", ".join(f"{maker} {n}" for maker, n in result.made.items())
        console.print(f"  results by who computed them: {by_maker}", markup=False, soft_wrap=True)
    for why, ops in result.on_host.items():
        text = f"  by the host: {': '.join(filter(None, (', '.join(ops), why)))}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(f"  note: {note}", markup=False, highlight=False, soft_wrap=True)
    for name, count in sorted(result.route.items()):
        console.print(f"  {count} x {name}", markup=False, highlight=False)
