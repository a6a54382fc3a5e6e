"""Counters by op and route, and the report of what fell back."""

import json
import textwrap

import pytest
import torch
from fresh_process import TENON, output, python, run

import torch_tenon
from torch_tenon.compiler.explain import format_bytes


def test_counts_by_route():
    torch_tenon.reset_counters()
    x = torch.empty(3, device="tenon").normal_()
    (x + x).t()
    counts = torch_tenon.counters()
    assert counts["kernel::aten::normal_"] == 1
    assert counts["lowered::aten::add"] == 1
    assert counts["kernel::aten::empty"] >= 1


def test_report_lists_the_most_expensive_fallback_first():
    torch_tenon.reset_counters()
    x = torch.randn(300, 300, device="tenon")
    for _ in range(30):
        torch.unique(x)
    torch.unique_consecutive(x[0, :2])
    report = torch_tenon.report()
    names = [count.op for count in report.fallbacks]
    assert names[0] == "aten::_unique2" and "aten::unique_consecutive" in names
    assert report.calls_by_route["fallback"] == sum(c.calls for c in report.fallbacks)
    text = str(report)
    assert text.index("aten::_unique2") < text.index("aten::unique_consecutive")


def test_the_report_is_a_sequence_and_converts_to_json():
    torch_tenon.reset_counters()
    x = torch.randn(300, 300, device="tenon")
    for _ in range(3):
        torch.unique(x * 2)
    report = torch_tenon.report()
    assert len(report) == len(report.counts) > 2
    seconds = [count.seconds for count in report]
    assert seconds == sorted(seconds, reverse=True) and report[:2] == [report[0], report[1]]
    found = json.loads(report.as_json())
    assert found["calls_by_route"] == report.calls_by_route
    assert [row["op"] for row in found["counts"]] == [count.op for count in report.counts]
    assert found["recording"]["calls"] == report.recording.calls


def test_windows_that_no_plan_may_run_are_told_with_the_reason():
    x = torch.randn(5, device="tenon")
    torch.use_deterministic_algorithms(True)
    try:
        (x + 1).sum().item()  # calls of a new kind may run at once
        before = torch_tenon.report().recording
        for _ in range(2):
            (x + 1).sum().item()
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        y = x * 2
    (y + 1).sum().item()
    since = torch_tenon.report().recording.since(before)
    assert since.never_by_plan == {"deterministic algorithms are asked for": 2}
    assert since.by_plan + since.by_reference == sum(since.commits.values())
    assert "always op by op: 2 windows, deterministic algorithms" in str(since)


def test_nothing_has_run():
    torch_tenon.reset_counters()
    assert str(torch_tenon.report()) == "No op has run on tenon."
    assert torch_tenon.counters() == {}


@pytest.mark.slow
def test_warns_once_for_each_op_where_asked():
    code = """
        import warnings, torch
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(2, device="tenon")
            for _ in range(3):
                x.abs()
        print(sum("aten::abs" in str(w.message) and "falls back" in str(w.message) for w in caught))
    """
    assert output(code, TENON_WARN_FALLBACK="1") == "1"
    assert output(code, TENON_WARN_FALLBACK="0") == "0"


STEPS = """
    import time, torch, torch_tenon
    from torch_tenon import _C
    from torch_tenon.builder.counts import plan_counts
    x = torch.rand(40, 50, device="tenon")
    for _ in range(6):
        y = (x * 2 + 1).exp().sum(1)
        y.cpu()
        while plan_counts()["waiting"]:
            time.sleep(0.01)
"""


@pytest.mark.slow
def test_recording_says_what_windows_did():
    code = f"""{STEPS}
    seen = torch_tenon.report().recording
    assert seen.by_plan >= 3 and seen.by_reference >= 1, seen
    assert seen.commits["the host reads"] >= 4, seen
    (plan,) = seen.plans
    assert plan.kernels == 1 and plan.calls == 0, plan
    # Read x, write y; one by one every op reads and writes all.
    assert plan.bytes_moved == 4 * (40 * 50 + 40), plan
    assert plan.bytes_by_op == 4 * (7 * 40 * 50 + 40), plan
    assert seen.bytes_saved == seen.by_plan * (plan.bytes_by_op - plan.bytes_moved)
    assert ("aten::exp", "its first call with these layouts", 1) in seen.at_once
    assert 0 < seen.share_by_plan < 1 and seen.first_plan > 0, seen
    (of_plan,) = [w for w in seen.windows if w.plan]
    assert of_plan.seconds_by_plan > 0 and of_plan.seconds_by_reference > 0 and of_plan.sizes == 0
    assert of_plan.name == "4 calls, aten::mul to aten::sum", of_plan
    (x[:3] - 1).sum().item()  # at once: their first calls
    (x[:3] - 1).sum().item()
    once = [w for w in torch_tenon.report().recording.windows if w.waits_for]
    assert [w.waits_for for w in once if w.name == "2 calls, aten::sub and aten::sum"] == [
        "it came once"
    ], once
    print(torch_tenon.report().recording)
    """
    done = run(code, TENON_EXECUTE="auto", TENON_LOG="plans")
    assert done.returncode == 0, done.stderr
    assert "by a plan; the first plan: after" in done.stdout and "Fusion saved" in done.stdout
    assert "The builder: a" in done.stdout
    assert "  2 calls, aten::sub and aten::sum: 1 runs, " in done.stdout
    log = [line for line in done.stderr.splitlines() if "4 calls, aten::mul to aten::sum" in line]
    assert [
        part for line in log for part in ("asked for a plan", "has a plan") if part in line
    ] == [
        "asked for a plan",
        "has a plan",
    ], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "said"),
    [("off", "The host computed all that was recorded: no plan ran."), ("thread", "No op fell")],
)
def test_the_report_says_where_no_plan_ran(builder: str, said: str) -> None:
    code = """
    import torch, torch_tenon
    x = torch.randn(8, device="tenon")
    for _ in range(4):
        (x * 2 + 1).sum().item()
    print(torch_tenon.report())
    """
    mode = {"off": "auto", "thread": "compiled"}[builder]
    assert said in output(code, TENON_EXECUTE=mode, TENON_BUILDER=builder)


@pytest.mark.slow
def test_recording_says_how_many_sizes_a_plan_was_for():
    code = """
    import time
    import torch
    import torch_tenon
    from torch_tenon.builder.counts import plan_counts
    for n in range(3, 40):
        torch.ones(n, 8, device="tenon").mul(2).exp().sum(1).cpu()
        while plan_counts()["waiting"]:
            time.sleep(0.01)
    seen = torch_tenon.report().recording
    assert max(w.sizes for w in seen.windows) >= 20, seen
    print(seen)
    """
    text = output(code, TENON_EXECUTE="auto", TENON_PLAN="all")
    assert "Windows whose sizes are symbols:" in text and "by one plan" in text


@pytest.mark.slow
def test_commit_runs_what_was_recorded():
    code = f"""{STEPS}
    before = sum(_C.record_counts()[1])
    y = x * 2 + 1
    torch_tenon.commit()
    assert sum(_C.record_counts()[1]) == before + 1
    torch_tenon.commit("tenon:0")
    assert sum(_C.record_counts()[1]) == before + 1
    print(torch_tenon.report().recording.commits["a request"])
    """
    assert output(code, TENON_EXECUTE="auto") == "1"


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_explain_runs_a_script_and_shows_its_kernels(tmp_path, end, status):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"{STEPS}\n    import sys\n    print(sys.argv[1:])\n    {end}")
    )
    done = python(*TENON, "explain", str(script), "5", "--wide")
    assert done.returncode == status, done.stderr
    assert done.stdout == "['5', '--wide']\n"
    assert ("ZeroDivisionError" in done.stderr) == (status == 1)
    assert "script.py 5 --wide took " in done.stderr and "Plan 1, of a window" in done.stderr
    rows = done.stderr.partition("Kernels, ")[2].splitlines()[2:]
    assert any(row.endswith("  mul, add, exp, sum") for row in rows), done.stderr


def test_bytes_in_words() -> None:
    words = [format_bytes(n) for n in (0, 1023, 1536, -1536, 3 << 30)]
    assert words == ["0 B", "1023 B", "1.5 KiB", "-1.5 KiB", "3.0 GiB"]
