"""The log of what the device does: its events, and what they are of."""

import time

import numpy as np
import pytest
import torch
from against_cpu import executing
from fresh_process import ASYNCHRONOUS_TARGET, TESTS, output
from needs import opencl

from torch_tenon import _C
from torch_tenon.reports.profiler import log
from torch_tenon.reports.profiler.log import Subjects

# A plan that is made meanwhile is an event too.
pytestmark = pytest.mark.usefixtures("no_plan_in_work")


def logged(run, most=1 << 16):
    """The events of a run, and a time in nanoseconds before and after it."""
    torch.tenon.synchronize()
    before = time.time_ns()
    found = _C.ProfileLog(most)
    run()
    torch.tenon.synchronize()
    found.stop()
    return log.take(found), before, time.time_ns()


def chain():
    x = torch.full((64, 64), 2.0, device="tenon")
    y = (x * 3 + 1).relu().sum(1)
    return y.cpu()


def test_a_plan_s_kernels_know_the_calls_that_they_compute(compiled):
    chain()
    chain()
    events, before, after = logged(chain)
    subjects = Subjects()
    kernels = log.of(events, "kernel")
    records = {(e["window"], e["call"]): e for e in log.of(events, "record")}
    assert len(kernels) >= 1
    computed = set()
    for e in kernels:
        assert before <= e["begin"] <= e["end"] <= after
        calls = subjects[e["subject"]].calls
        assert calls
        computed |= {subjects[records[e["window"], c]["subject"]].name for c in calls}
    assert {
        "aten::mul.Tensor",
        "aten::add.Tensor",
        "aten::relu",
        "aten::sum.dim_IntList",
    } <= computed
    assert sum(subjects[e["subject"]].bytes for e in kernels) > 0


def test_what_a_product_does_is_told(compiled):
    a, b = (torch.randn(n, device="tenon") for n in ((32, 48), (48, 16)))

    def product():
        return (a @ b).cpu()

    product()
    product()
    events, *_ = logged(product)
    subjects = Subjects()
    steps = [subjects[n] for n in log.of(events, "kernel", "library")["subject"]]
    found = next(s for s in steps if "mm" in s.name)
    assert found.operations >= 2 * 32 * 48 * 16
    assert "32 x 16" in found.detail and "float32" in found.detail


def test_calls_by_reference_are_logged_with_their_bytes():
    chain()
    chain()
    with executing("auto"):
        events, *_ = logged(chain)
    by_reference = log.of(events, "reference", "kernel")
    assert len(by_reference) >= 1
    waits = log.of(events, "wait")
    commits = log.of(events, "commit")
    assert len(commits) >= 1 and len(waits) >= 1
    assert "the host reads" in {Subjects()[n].name for n in commits["subject"]}


def test_own_times_add_up_to_what_is_around_them(compiled):
    chain()
    chain()
    events, *_ = logged(chain)
    assert (events["own"] >= 0).all()
    assert (events["own"] <= events["end"] - events["begin"]).all()
    wait = log.of(events, "wait")
    outer = wait[np.argmax(wait["end"] - wait["begin"])]
    inside = events[
        (events["begin"] >= outer["begin"])
        & (events["end"] <= outer["end"])
        & (events["activity"] != log.ACTIVITIES.index("build"))
    ]
    assert inside["own"].sum() == outer["end"] - outer["begin"]


def test_a_call_that_is_not_recorded_runs_at_once():
    x = torch.ones(5, device="tenon")
    torch.nonzero(x)
    events, *_ = logged(lambda: torch.nonzero(x))
    names = {Subjects()[n].name for n in log.of(events, "at_once")["subject"]}
    assert "aten::nonzero" in names


def test_copies_have_their_bytes():
    x = torch.ones(1000)
    events, *_ = logged(lambda: x.to("tenon").cpu())
    copies = {Subjects()[e["subject"]].name: e["amount"] for e in log.of(events, "copy")}
    assert copies == {"copy, host to device": 4000, "copy, device to host": 4000}


def test_beyond_the_most_events_are_counted():
    found = _C.ProfileLog(3)
    x = torch.ones(5, device="tenon")
    for _ in range(10):
        x = x + 1
    torch.tenon.synchronize()
    found.stop()
    assert len(log.take(found)) == 3
    assert found.lost >= 7


def test_nothing_is_logged_after_the_stop_and_two_logs_have_the_same():
    first, second = _C.ProfileLog(1 << 10), _C.ProfileLog(1 << 10)
    x = torch.ones(5, device="tenon") + 1
    torch.tenon.synchronize()
    first.stop()
    second.stop()
    x = x + 1
    torch.tenon.synchronize()
    one, other = log.take(first), log.take(second)
    assert len(one) > 0 and one.tobytes() == other.tobytes()
    assert len(log.take(first)) == 0


def test_the_names_of_activities_are_the_core_s():
    assert log.EVENT.itemsize == 72
    for name in ("record", "commit"):
        assert name in log.ACTIVITIES


@pytest.mark.slow
def test_times_are_an_asynchronous_device_s():
    code = """
        import time, torch
        from torch_tenon import _C
        from torch_tenon.reports.profiler import log
        x = torch.ones(300, 300, device="tenon")
        for _ in range(3):
            y = (x * 2 + 1).sum().item()
        torch.tenon.synchronize()
        slack = 5_000_000
        for _ in range(50):  # clocks are compared as a log begins: the host may be held up then
            before = time.time_ns()
            found = _C.ProfileLog(1000)
            for _ in range(3):
                y = (x * 2 + 1).sum().item()
            torch.tenon.synchronize()
            after = time.time_ns()
            found.stop()
            events = log.take(found)
            kernels = log.of(events, "kernel", "library", "fallback")
            kernels = kernels[kernels["begin"].argsort()]
            begins, ends = kernels["begin"], kernels["end"]
            waits = log.of(events, "wait")
            assert len(kernels) >= 3 and len(waits) >= 3, (len(kernels), len(waits))
            assert (ends[:-1] <= begins[1:]).all()  # one at a time
            assert (ends - begins).sum() > 0
            if (begins >= before - slack).all() and (ends <= after + slack).all():
                print("fine")
                break
    """
    found = output(code, TENON_TARGET=ASYNCHRONOUS_TARGET, TENON_EXECUTE="compiled")
    assert found.splitlines()[-1] == "fine"


@pytest.mark.slow
def test_each_kernel_has_its_time_on_the_device_s_clock():
    """A command takes 1/256 of a second there, whatever it takes."""
    code = """
        import time, torch
        from torch.profiler import ProfilerActivity, profile
        from torch_tenon import _C
        from torch_tenon.reports.profiler import log
        x = torch.ones(30, 30, device="tenon")
        def step():
            return [(x * 2 + 1).sum().item(), (x @ x).relu().sum().item()]
        for _ in range(4):
            step()
        found = _C.ProfileLog(1000)
        for _ in range(3):
            step()
        torch.tenon.synchronize()
        time.sleep(0.5)  # so long as the device's clock may be ahead
        found.stop()
        events = log.of(log.take(found), *log.ON_DEVICE)
        commands = (events["end"] - events["begin"]) / 1e9 * 256
        assert len(events) >= 12, len(events)
        assert (abs(commands - commands.round()) < 1e-3).all() and (commands > 0.5).all(), commands
        assert (commands < 1.5).sum() >= 9, commands
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as made:
            step()
            time.sleep(0.5)
        times = [e.device_time_total for e in made.events() if e.device_type.name != "CPU"]
        assert sum(abs(one * 256 / 1e6 - 1) < 0.01 for one in times) >= 3, times
        print("fine")
    """
    target = f"{TESTS / 'targets' / 'clocked.py'}:ClockedTarget"
    found = output(code, TENON_TARGET=target, TENON_EXECUTE="compiled")
    assert found.splitlines()[-1] == "fine"


@pytest.mark.slow
@opencl
def test_a_device_that_was_idle_has_the_right_clock():
    """Its last commit is then long ago."""
    code = """
        import time, torch
        from torch_tenon import _C
        from torch_tenon.reports.profiler import log
        x = torch.ones(300, 300, device="tenon")
        def step():
            return (x * 2 + 1).sum().item()
        def by_plan():
            before = sum(w.by_plan for w in _C.window_runs())
            step()
            return sum(w.by_plan for w in _C.window_runs()) - before
        deadline = time.monotonic() + 200
        while by_plan() < 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.5)
        found = _C.ProfileLog(1000)
        before = time.time_ns()
        for _ in range(3):
            step()
        after = time.time_ns()
        found.stop()
        events = log.take(found)
        for kind in ("kernel", "copy"):
            some = log.of(events, kind)
            assert len(some) >= 3 and len(some) % 3 == 0, (kind, len(some))
            assert (some["begin"] < some["end"]).all()
            slack = 1_000_000_000  # less than it was idle
            assert (some["begin"] > before - slack).all() and (some["end"] < after + slack).all()
        print("fine")
    """
    found = output(code, TENON_TARGET="opencl", TENON_EXECUTE="compiled")
    assert found.splitlines()[-1] == "fine"


def test_why_windows_end_is_named_once():
    reasons = _C.commit_reasons()
    assert len(set(reasons)) == len(reasons) == 12
