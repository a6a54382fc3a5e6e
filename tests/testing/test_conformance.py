"""What users rely on in `tenon conformance`: isolation, reports, exit status."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from torch_tenon.testing.conformance.alike import message_pattern
from torch_tenon.testing.conformance.baseline import BadBaseline, Baseline, compare
from torch_tenon.testing.conformance.case import (
    Case,
    CaseResult,
    CheckResult,
    Status,
)
from torch_tenon.testing.conformance.command import conformance
from torch_tenon.testing.conformance.comparison import Comparison, Mismatch
from torch_tenon.testing.conformance.pool import Pool, Settings
from torch_tenon.testing.conformance.summary import failures

HERE = Path(__file__).parent
SUITE = "misbehaving_suite"
PATIENCE = 15  # seconds with a case, which a case that does nothing is given also where it waits


@pytest.fixture(autouse=True)
def _workers_find_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import this folder's suite and the package, installed or not."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(HERE)


def command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(conformance)
    return CliRunner().invoke(app, ["--device", "cpu", *arguments])


# Isolation.


@pytest.mark.slow
def test_a_crash_and_a_hang_cost_one_case_each() -> None:
    import misbehaving_suite

    settings = Settings(device="cpu", jobs=2, timeout=PATIENCE, suite=SUITE)
    cases = misbehaving_suite.list_cases(["ops"])
    results = {result.case.name: result for result in Pool(settings).run(cases)}
    assert {name: str(result.status) for name, result in results.items()} == {
        "passes": "pass",
        "crashes": "crash",
        "hangs": "hang",
        "exits": "crash",
        "is_wrong": "fail",
        "passes_too": "pass",
    }
    assert results["crashes"].reason == "crash: SIGSEGV"
    assert "about to crash" in results["crashes"].message
    assert "forward, sample 7" in results["crashes"].message
    assert "run_case" in results["hangs"].message  # the stack of where it hung
    assert results["exits"].reason == "crash: exit status 3"


def processes() -> dict[int, int]:
    """The parent of each process that runs."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(stat.parent.name)] = int(parent)
    return found


def descendants(pid: int, parents: dict[int, int]) -> set[int]:
    children = {child for child, parent in parents.items() if parent == pid}
    return children.union(*(descendants(child, parents) for child in children))


@pytest.mark.slow
def test_nobody_is_left_of_a_report_that_is_killed() -> None:
    code = "from torch_tenon.cli import app; app()"
    options = ["--device", "cpu", "--suite", SUITE, "--ops", "hangs", "--jobs", "1"]
    report = subprocess.Popen([sys.executable, "-c", code, "conformance", *options])
    try:
        deadline = time.monotonic() + 200
        while len(workers := descendants(report.pid, processes())) < 2:
            assert time.monotonic() < deadline, workers
            time.sleep(0.1)
    finally:
        report.kill()
        report.wait()
    while workers & processes().keys():
        assert time.monotonic() < deadline, workers & processes().keys()
        time.sleep(0.1)


# Baseline and exit status.


def result(name: str, status: Status, *failed: str) -> CaseResult:
    checks = {check: CheckResult(Status.FAIL, 1, "values differ", "3 of 4") for check in failed}
    return CaseResult(Case("ops", name, "float32"), status, checks, "values differ", "3 of 4")


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (result("a", Status.PASS), result("a", Status.PASS), None),
        (result("a", Status.PASS), result("a", Status.FAIL, "out"), "worse"),
        (result("a", Status.PASS), result("a", Status.NOT_APPLICABLE), "worse"),
        (result("a", Status.FAIL, "out"), result("a", Status.FAIL, "out"), None),
        (result("a", Status.FAIL, "out"), result("a", Status.FAIL, "out", "forward"), "worse"),
        (result("a", Status.FAIL, "out", "forward"), result("a", Status.FAIL, "out"), "better"),
        (result("a", Status.FAIL, "out"), result("a", Status.CRASH), "worse"),
        (result("a", Status.CRASH), result("a", Status.HANG), "better"),
        (result("a", Status.NOT_APPLICABLE), result("a", Status.PASS), "better"),
    ],
)
def test_what_is_worse_than_the_baseline(
    before: CaseResult, now: CaseResult, change: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    Baseline().updated([before, result("b", Status.PASS)], ["ops"]).write(path)
    changes = compare(Baseline.read(path), [now])
    assert (list(changes.worse) == ["ops/a/float32"]) == (change == "worse")
    assert (list(changes.better) == ["ops/a/float32"]) == (change == "better")


def test_a_partial_run_updates_only_its_cases() -> None:
    assert not compare(None, [result("a", Status.NOT_APPLICABLE)]).worse
    old = Baseline().updated([result("a", Status.FAIL, "out"), result("b", Status.CRASH)], ["ops"])
    new = old.updated([result("a", Status.PASS)], [])
    assert list(new.not_passing) == ["ops/b/float32"]
    assert new.totals == old.totals == {"ops": {"cases": 2, "crash": 1, "fail": 1}}


def test_a_damaged_baseline_is_named(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text('{"totals": {}')
    with pytest.raises(BadBaseline, match=r"baseline\.json.*--update-baseline"):
        Baseline.read(path)


def test_like_messages_are_one() -> None:
    one, other = "3 of 12 differ at 0x7f3a, 1.5e-3 off\nmore", "8 of 9 differ at 0xbeef, 2 off"
    assert message_pattern(one) == message_pattern(other)
    # ... but for what is no number: a part of a word, a line of a source.
    for one, other in (
        ("no opcode tanhh.f32 here", "no opcode tanhh.f64 here"),
        ("KeyError: 'r1' (npu.py:7, in kernel)", "KeyError: 'r1' (npu.py:8, in kernel)"),
        ("error in line 7", "error in line 8"),
    ):
        assert message_pattern(one) == one != message_pattern(other)


def compared(actual: torch.Tensor, expected: torch.Tensor, where: str = "result") -> str:
    comparison = Comparison("cpu", torch.testing.assert_close)
    with pytest.raises(Mismatch) as mismatch:
        comparison.results(actual, expected, where=where)
    return str(mismatch.value)


def test_results_that_are_off_alike_are_one_kind_of_failure() -> None:
    """Whatever their shapes and the checks: a thousandth too much, an edge, nothing at all."""
    x = torch.arange(1.0, 25.0)
    groups = []
    for off in (
        lambda x: x + 1e-3,
        lambda x: torch.where(x > 3, x, 7 * x + 1e6),
        lambda x: x * torch.nan,
    ):
        results = [result(f"op{n}", Status.FAIL, "forward", "out") for n in range(6)]
        shapes = [(24,), (2, 12), (2, 3, 4), (1, 1, 24), (4, 6), (2, 2, 6)]
        for found, shape in zip(results, shapes, strict=True):
            given, where = x.view(shape), "result"
            for check in found.checks.values():
                check.message = compared(off(given), given, where)
                where = "result['out'][0]"
        (group,) = failures(results)
        assert len(group.cases) == 6 and group.checks == {"forward": 6, "out": 6}
        groups.append(group.message)
    assert groups[0] == "result: all elements differ; greatest difference 0.001 to 0.001"
    assert groups[1] == "result: some elements differ; greatest difference 1e+06 to 1e+06"
    assert groups[2] == "result: all elements differ, some by NaN"


class Elements(HTMLParser):
    """Collects what a browser would load from elsewhere, and checks that tags are closed."""

    VOID = frozenset({"meta", "input", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.data: dict[str, str] = {}
        self._script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        addresses = [v or "" for k, v in attrs if k in ("src", "href")]
        self.references += [a for a in addresses if not a.startswith("#")]
        self._script = (dict(attrs).get("id") or "") if tag == "script" else ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data[self._script] = data


@pytest.mark.slow
def test_the_command_reports_and_judges(tmp_path: Path) -> None:
    baseline, page, report = (tmp_path / name for name in ("b.json", "r.html", "r.json"))
    arguments = [
        "--suite",
        SUITE,
        "--jobs",
        "1",
        "--timeout",
        str(PATIENCE),
        "--baseline",
        str(baseline),
    ]
    run = command(*arguments, "--ops", "passes,is_wrong,crashes", "--update-baseline")
    assert run.exit_code == 0, run.output
    assert list(Baseline.read(baseline).not_passing) == [
        "ops/crashes/float32",
        "ops/is_wrong/float32",
    ]
    # The same again is not worse.
    arguments += ["--json", str(report), "--html", str(page)]
    run = command(*arguments, "--ops", "passes,is_wrong")
    assert run.exit_code == 0, run.output
    # What fails may be what an earlier case of the process left.
    after_others = "--ops 'passes,is_wrong' --dtype float32 --jobs 1 -v"
    assert after_others in run.output
    (wrong,) = (r for r in json.loads(report.read_text())["results"] if r["status"] == "fail")
    assert wrong["after"] == ["ops/passes/float32"]
    assert wrong["command_after_others"].endswith(after_others)
    # A case that the baseline does not list is expected to pass.
    run = command(*arguments, "--ops", "passes,is_wrong,hangs")
    assert run.exit_code == 1, run.output
    assert "Worse than the baseline: 1" in run.output
    assert "ops/hangs/float32  pass -> hang" in run.output
    assert "--ops 'is_wrong' --dtype float32 -v" in run.output
    assert after_others not in run.output  # its process is the one after the hang's
    assert "--ops 'passes,hangs' --dtype float32 --jobs 1 -v" in run.output

    written = json.loads(report.read_text())
    assert written["kinds"]["ops"]["cases"] == 3
    assert list(written["worse"]) == ["ops/hangs/float32"]
    restored = [CaseResult.from_json(_without_extras(value)) for value in written["results"]]
    assert [r.case.name for r in restored] == ["passes", "hangs", "is_wrong"]
    parser = Elements()
    parser.feed(page.read_text())
    assert not parser.references
    assert not parser.open
    embedded = json.loads(parser.data["data"])
    assert "</script>" in embedded["results"][2]["c"]["forward"]["message"]


@pytest.mark.slow
def test_without_a_baseline_nothing_is_worse_and_the_line_that_repeats_has_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "torch_tenon.testing.conformance.command"
    monkeypatch.setattr(sys.modules[module], "default_path", lambda *_: tmp_path / "none.json")
    monkeypatch.setenv("TENON_COMMIT", "each")
    monkeypatch.setenv("TENON_CACHE_DIR", str(tmp_path))
    run = command("--suite", SUITE, "--ops", "is_wrong", "--jobs", "1")
    assert run.exit_code == 1 and "no baseline is recorded" in run.output, run.output
    assert "Does not pass: 1" in run.output and "Worse" not in run.output
    assert "TENON_COMMIT=each tenon conformance --device cpu" in run.output
    assert str(tmp_path) not in run.output


def _without_extras(value: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if not k.startswith(("routes", "command"))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ops", "geluu"], "nn.functional.gelu"),
        (["--device", "nosuch"], "nosuch"),
        (["--suite", SUITE, "--baseline", "/nowhere/b.json"], "--update-baseline"),
    ],
)
def test_bad_usage_ends_with_status_2(arguments: list[str], message: str) -> None:
    run = command(*arguments)
    assert run.exit_code == 2
    assert message in run.output


@pytest.mark.slow
def test_verbose_shows_the_checks_of_one_case(tmp_path: Path) -> None:
    run = command("--db", "ops", "--ops", "sinh", "--dtype", "float32", "-v", "--jobs", "1")
    assert run.exit_code == 0, run.output
    assert "pass ops/sinh/float32" in run.output
    assert "backward" in run.output
