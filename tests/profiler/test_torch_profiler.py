"""`torch.profiler` with `ProfilerActivity.PrivateUse1`."""

import itertools
import json

import pytest
import torch
from against_cpu import executing
from needs import plans
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.profiler import tensorboard_trace_handler as to_tensorboard

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


class Training:
    """A small model, and its steps."""

    def __init__(self):
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        ).to("tenon")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.randn(8, 16, device="tenon")

    def step(self):
        with record_function("forward"):
            loss = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@pytest.fixture
def training(compiled):
    made = Training()
    for _ in range(4):
        made.step()
    return made


def trace_of(found, path):
    found.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def of(trace, category):
    return [e for e in trace if e.get("cat") == category and e["ph"] == "X"]


@pytest.mark.slow
def test_every_kernel_has_an_arrow_from_an_op_and_a_backward_op_too(training, tmp_path):
    with profile(activities=BOTH) as found:
        for _ in range(2):
            training.step()
    trace = trace_of(found, tmp_path / "trace.json")
    kernels = of(trace, "kernel")
    assert len(kernels) >= 4
    starts = {e["id"]: e for e in trace if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends: dict = {}
    for e in trace:
        if e.get("cat") == "ac2g" and e["ph"] == "f":
            ends.setdefault((e["pid"], e["tid"]), []).append(e)
    ops = of(trace, "cpu_op")
    from_ops = set()
    for kernel in kernels:
        begin, end = kernel["ts"], kernel["ts"] + kernel["dur"]
        inside = [e for e in ends[kernel["pid"], kernel["tid"]] if begin <= e["ts"] <= end + 0.002]
        assert inside, kernel
        for e in inside:
            start = starts[e["id"]]
            around = [
                op["name"]
                for op in ops
                if op["tid"] == start["tid"] and op["ts"] <= start["ts"] <= op["ts"] + op["dur"]
            ]
            assert around, (kernel["name"], start)
            from_ops |= set(around)
    assert any("Backward" in name for name in from_ops)
    parts = of(trace, "privateuse1_runtime")
    assert {"aten::gelu"} <= {e.get("args", {}).get("op") for e in parts}


@plans
def test_a_fused_kernel_has_an_arrow_from_each_of_its_ops(training, tmp_path):
    torch.tenon.synchronize()  # what was recorded before runs before
    with profile(activities=BOTH) as found:
        training.step()
        torch.tenon.synchronize()
    trace = trace_of(found, tmp_path / "trace.json")
    recorded = {
        e["args"]["correlation"]: e["args"]["op"]
        for e in of(trace, "privateuse1_runtime")
        if e["name"].startswith("tenon::record") and "correlation" in e["args"]
    }
    arrows = [e for e in trace if e.get("cat") == "ac2g" and e["ph"] == "f"]
    computed = [
        {recorded.get(e["id"]) for e in arrows if k["ts"] <= e["ts"] <= k["ts"] + k["dur"]}
        for k in of(trace, "kernel")
        if "gelu" in k["name"] and "addmm" in k["name"]
    ]
    assert any({"aten::addmm", "aten::gelu"} <= ops for ops in computed), computed


@plans
def test_kernels_tell_their_sizes_bytes_operations_and_share_of_the_peak(training, tmp_path):
    with profile(activities=BOTH) as found:
        training.step()
    products = [
        k["args"] for k in of(trace_of(found, tmp_path / "t.json"), "kernel") if "mm" in k["name"]
    ]
    assert products
    for facts in products:
        assert facts["operations"] > 0 and facts["bytes"] > 0 and facts["% of peak"] > 0
        assert "float32" in facts["tensors"] and facts["kind"] in (
            "generated kernel",
            "library call",
        )


def test_tracks_have_names(training, tmp_path):
    with profile(activities=BOTH) as found:
        training.step()
    trace = trace_of(found, tmp_path / "trace.json")
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    tracks = {names.get((e["pid"], e["tid"])) for e in of(trace, "privateuse1_runtime")}
    assert "tenon: commits" in tracks
    kernel = of(trace, "kernel")[0]
    assert names[kernel["pid"], kernel["tid"]] == "queue 0"
    devices = {
        e["pid"]: e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == "process_name"
    }
    assert devices[kernel["pid"]] == "tenon:0"


@plans
def test_ranges_are_around_the_device_s_work(training, tmp_path):
    with profile(activities=BOTH) as found:
        training.step()
    trace = trace_of(found, tmp_path / "trace.json")
    ranges = {e["name"]: e for e in of(trace, "gpu_user_annotation")}
    forward = ranges["forward"]
    within = [
        k
        for k in of(trace, "kernel")
        if forward["ts"] - 0.01 <= k["ts"] and k["ts"] + k["dur"] <= forward["ts"] + forward["dur"]
    ]
    assert any("gelu" in k["name"] for k in within)


def contained(inner, outer):
    return (
        outer["ts"] <= inner["ts"] + 0.002
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.002
    )


@pytest.mark.parametrize("execute", ["compiled", "reference"])
def test_ranges_within_ranges_are_so_on_the_device(execute, tmp_path):
    x = torch.randn(200, 200, device="tenon")

    def work():
        with record_function("whole"):
            with record_function("first"):
                y = x @ x
                torch.tenon.synchronize()
            with record_function("second"), record_function("inside"):
                y = y @ x
                torch.tenon.synchronize()
        return y.sum().item()

    with executing(execute):
        for _ in range(3):
            work()
        with profile(activities=BOTH) as found:
            work()
    trace = trace_of(found, tmp_path / "trace.json")
    rows = of(trace, "gpu_user_annotation")
    ranges = {e["name"]: e for e in rows}
    assert len(rows) == len(ranges) == 4
    whole, first, second, inside = (ranges[n] for n in ("whole", "first", "second", "inside"))
    assert all(contained(one, whole) for one in (first, second, inside))
    assert contained(inside, second) and first["ts"] + first["dur"] <= second["ts"] + 0.002
    assert len({(e["pid"], e["tid"]) for e in rows}) == 1, "nested, on one track"
    products = [k for k in of(trace, "kernel") if "mm" in k["name"]]
    assert len(products) == 2
    assert contained(products[0], first) and contained(products[1], inside)


@plans
def test_a_kernel_for_two_ranges_is_in_both(tmp_path, compiled):
    def work():
        x = torch.ones(200, 200, device="tenon")
        with record_function("whole"):
            with record_function("first"):
                y = x * 2 + 1
            with record_function("second"):
                y = (y * 3).relu()
        return y.sum().item()

    for _ in range(3):
        work()
    with profile(activities=BOTH) as found:
        work()
    trace = trace_of(found, tmp_path / "trace.json")
    rows = of(trace, "gpu_user_annotation")
    ranges = {e["name"]: e for e in rows}
    (fused,) = (k for k in of(trace, "kernel") if "relu" in k["name"])
    assert all(contained(fused, ranges[name]) for name in ("whole", "first", "second"))
    assert ranges["first"]["tid"] == ranges["whole"]["tid"] != ranges["second"]["tid"]
    names = {
        e["args"]["name"]
        for e in trace
        if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == fused["pid"]
    }
    assert {"queue 0", "record_function", "record_function 2"} <= names


def test_averages_have_device_time_and_memory(training):
    with profile(activities=BOTH, profile_memory=True) as found:
        training.step()
    rows = found.key_averages()
    kernels = [r for r in rows if str(r.device_type).endswith("TENON") and not r.is_user_annotation]
    ops = [r for r in rows if r.key.startswith("aten::") and str(r.device_type).endswith("CPU")]
    total = sum(r.self_device_time_total for r in kernels)
    assert total > 0
    assert sum(r.self_device_time_total for r in ops) == pytest.approx(total, rel=0.05)
    assert next(r for r in ops if r.key == "aten::addmm").device_time_total > 0
    assert any(r.device_memory_usage > 0 for r in rows)
    table = rows.table(sort_by="self_device_time_total")
    assert "Self TENON" in table and "TENON Mem" in table


def test_the_kernels_time_and_the_gaps_are_the_step_s(training, tmp_path):
    with profile(activities=BOTH) as found, record_function("measured"):
        for _ in range(3):
            training.step()
        torch.tenon.synchronize()
    trace = trace_of(found, tmp_path / "trace.json")
    measured = next(e for e in of(trace, "user_annotation") if e["name"] == "measured")
    kernels = sorted(of(trace, "kernel"), key=lambda e: e["ts"])
    for before, after in itertools.pairwise(kernels):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.002  # none overlap
    assert measured["ts"] <= kernels[0]["ts"] + 1
    assert kernels[-1]["ts"] + kernels[-1]["dur"] <= measured["ts"] + measured["dur"] + 1


def test_a_schedule_writes_what_tensorboard_reads(training, tmp_path):
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=to_tensorboard(str(tmp_path)),
    ) as found:
        for _ in range(8):
            training.step()
            found.step()
    files = sorted(tmp_path.glob("*.pt.trace.json"))
    assert len(files) == 2
    for file in files:
        trace = json.loads(file.read_text())["traceEvents"]
        assert len(of(trace, "kernel")) >= 2
        assert {e["name"] for e in of(trace, "gpu_user_annotation")} >= {"forward"}


def test_without_the_device_s_activity_there_is_nothing_of_it(training, tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        training.step()
    trace = trace_of(found, tmp_path / "trace.json")
    assert not of(trace, "kernel") and not of(trace, "privateuse1_runtime")


@plans
def test_a_compiled_graph_s_kernels_have_arrows(tmp_path):
    function = torch.compile(lambda x: (x * 2).relu() + 1, backend="tenon")
    x = torch.randn(64, 64, device="tenon")
    function(x)
    with profile(activities=BOTH) as found:
        function(x).cpu()
    trace = trace_of(found, tmp_path / "trace.json")
    kernels = of(trace, "kernel")
    ends = [e["ts"] for e in trace if e.get("cat") == "ac2g" and e["ph"] == "f"]
    assert kernels and all(any(abs(k["ts"] - at) < 0.01 for at in ends) for k in kernels)


def test_profilers_may_be_nested_in_the_device_s_own(training, tmp_path):
    with torch.tenon.profiler.profile(), profile(activities=BOTH) as found:
        training.step()
    assert torch.tenon.profiler.metrics()["device_seconds"] > 0
    assert len(of(trace_of(found, tmp_path / "trace.json"), "kernel")) >= 2


def test_the_older_profiler_times_each_op(capfd):
    """`torch.autograd.profiler`: an event before and after each op."""
    x = torch.ones(64, 64, device="tenon")
    with torch.autograd.profiler.profile(use_device="tenon") as found:
        for _ in range(3):
            y = (x @ x).relu()
        total = y.sum().item()
    assert total == 64**3
    rows = {row.key: row for row in found.key_averages()}
    assert min(rows["aten::mm"].count, rows["aten::relu"].count) >= 3
    assert 0 < rows["aten::mm"].device_time_total < 1e9
    assert "aten::mm" in found.table(sort_by="self_device_time_total")
    assert "INTERNAL ASSERT" not in capfd.readouterr().err
