"""`torch.tenon.profiler`, `torch.tenon.blocking`, and what TENON_TRACE_CALLS tells."""

import gzip
import json
import threading

import pytest
import torch
from fresh_process import output
from needs import host_memory, plans

from torch_tenon import _C

# Each name of torch.mps.profiler, torch.cuda.profiler and torch.cuda.nvtx, and its like here.
LIKE = {
    "torch.mps.profiler": {
        "start": "start",
        "stop": "stop",
        "profile": "profile",
        "metal_capture": "capture",
        "is_metal_capture_enabled": "is_capture_enabled",
        "is_capturing_metal": "is_capturing",
    },
    "torch.cuda.profiler": {"start": "start", "stop": "stop", "profile": "profile"},
    "torch.cuda.nvtx": {
        "range_push": "range_push",
        "range_pop": "range_pop",
        "range_start": "range_start",
        "range_end": "range_end",
        "mark": "mark",
        "range": "range",
    },
}
profiler = torch.tenon.profiler


@pytest.mark.parametrize("module", LIKE)
def test_every_name_has_its_like(module):
    there = torch
    for part in module.split(".")[1:]:
        there = getattr(there, part)
    assert set(there.__all__) == set(LIKE[module])
    assert set(LIKE[module].values()) <= set(profiler.__all__)
    assert all(callable(getattr(profiler, name)) for name in profiler.__all__)


@pytest.fixture(autouse=True)
def stopped():
    yield
    profiler.stop()


def work():
    x = torch.ones(100, 100, device="tenon")
    return (x * 2 + 1).sum().item()


@plans
def test_metrics_of_a_profile(compiled):
    work()
    work()
    with profiler.profile():
        assert profiler.is_profiling()
        work()
    found = profiler.metrics()
    assert not profiler.is_profiling()
    assert found["kernel"] >= 1 and found["commit"] >= 1 and found["record"] >= 3
    assert 0 < found["kernel_seconds"] <= found["device_seconds"] <= found["seconds"]
    assert found["bytes"] > 0 and found["events_lost"] == 0


def test_metrics_while_it_runs():
    work()
    work()
    profiler.start()
    work()
    first = profiler.metrics()
    work()
    assert profiler.metrics()["record"] > first["record"] > 0


@pytest.mark.parametrize(
    ("mode", "intervals", "events"),
    [("interval", True, False), ("event", False, True), ("Interval, event", True, True)],
)
def test_modes(mode, intervals, events, tmp_path, compiled):
    work()
    work()
    with profiler.profile(mode):
        work()
    profiler.export_chrome_trace(tmp_path / "trace.json")
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [r for r in rows if r.get("cat") == "kernel"]
    assert any(r["ph"] == "X" for r in kernels) == intervals
    assert any(r["ph"] == "i" for r in kernels) == events
    assert any(r["ph"] == "f" for r in rows) == intervals


@plans
def test_wait_until_completed_runs_each_op_by_itself(compiled):
    work()
    before = _C.execute_mode()
    with profiler.profile(wait_until_completed=True):
        work()
    found = profiler.metrics()
    assert found["at_once"] >= 3 and found["kernel"] == 0 and found["record"] == 0
    assert _C.execute_mode() == before


@plans
def test_a_log_whose_end_raises_has_ended(compiled):
    """It was said to run for good, and each op ran by itself."""
    x, place = torch.zeros(3, device="tenon"), torch.tensor([1], device="tenon")
    for _ in range(2):  # the first call of an op runs at once
        x.index_select(0, place).sum().item()
    before = _C.execute_mode()
    with pytest.raises(IndexError, match="out of"), profiler.profile():
        lost = x.index_select(0, place + 6).sum()
    assert not profiler.is_profiling() and profiler.metrics()["seconds"] > 0
    with pytest.raises(IndexError):
        lost.item()
    with profiler.profile(wait_until_completed=True):
        work()
    assert _C.execute_mode() == before


def test_ranges(tmp_path):
    with profiler.profile():
        assert profiler.range_push("outer") == 0
        assert profiler.range_push("inner") == 1
        work()
        assert profiler.range_pop() == 1
        profiler.mark("here")
        assert profiler.range_pop() == 0
        number = profiler.range_start("elsewhere")
        thread = threading.Thread(target=profiler.range_end, args=(number,))
        thread.start()
        thread.join()
        with profiler.range("step {}", 3):
            work()
    assert profiler.range_pop() == -1
    profiler.export_chrome_trace(tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz") as file:
        rows = json.load(file)["traceEvents"]
    ranges = {r["name"]: r for r in rows if r.get("cat") == "user_annotation"}
    assert set(ranges) == {"outer", "inner", "here", "elsewhere", "step 3"}
    outer, inner = ranges["outer"], ranges["inner"]
    assert outer["ts"] <= inner["ts"] and inner["dur"] <= outer["dur"]


def test_ranges_are_torch_profiler_s_too(tmp_path):
    host = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=host) as found, profiler.range("mine"):
        work()
    assert "mine" in {e.name for e in found.events()}


def test_a_capture_is_a_file(tmp_path):
    assert profiler.is_capture_enabled() and not profiler.is_capturing()
    with profiler.capture(str(tmp_path / "trace.json")):
        assert profiler.is_capturing()
        work()
    assert not profiler.is_capturing()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_bad_input():
    with pytest.raises(ValueError, match="'intervals' is none of 'interval', 'event'"):
        profiler.start("intervals")
    with pytest.raises(ValueError, match="no range of the number 99"):
        profiler.range_end(99)
    profiler.start()
    with pytest.raises(RuntimeError, match=r"started already; call torch.tenon.profiler.stop"):
        profiler.start()
    profiler.stop()
    profiler.stop()  # nothing to stop
    with pytest.raises(FileNotFoundError):
        profiler.export_chrome_trace("/nowhere/at/all.json")


def test_nothing_was_logged():
    code = """
        import torch
        try:
            torch.tenon.profiler.metrics()
        except RuntimeError as error:
            print(error)
    """
    assert "call torch.tenon.profiler.start() first" in output(code)


def test_blocking_runs_every_op_at_once():
    x = torch.ones(3, device="tenon")
    with torch.tenon.blocking():
        calls, _ = _C.record_counts()
        with pytest.raises(IndexError):
            x[torch.tensor([7], device="tenon")]
        y = x + 1
        assert _C.record_counts()[0] == calls
    assert (x + y).tolist() == [3.0, 3.0, 3.0]


@pytest.mark.slow
@host_memory
def test_waits_and_calls_at_once_have_their_lines():
    code = """
        import torch, torch_tenon
        x = torch.ones(100, device="tenon")
        for _ in range(4):
            x = x + 1
            x.sum().item()                 # line 6
            torch.nonzero(x)               # line 7
        torch.tenon.synchronize()          # line 8
        rows = torch_tenon.report().recording.lines
        print(sorted({(r.what, r.line) for r in rows}))
        print(sum(r.calls for r in rows if r.line == "<string>:6: the host reads"))
        print("Python lines where the host waited" in str(torch_tenon.report()))
    """
    lines, waits, shown = output(code, TENON_TRACE_CALLS="1").splitlines()[-3:]
    found = {tuple(row) for row in eval(lines)}
    assert ("waits", "<string>:6: the host reads") in found
    assert ("waits", "<string>:8: synchronize") in found
    assert any(
        what == "at once" and line.startswith("<string>:7: aten::nonzero") for what, line in found
    )
    assert int(waits) >= 2 and shown == "True"
    assert output(code, TENON_TRACE_CALLS="0").splitlines()[-3] == "[]"
