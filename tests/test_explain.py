"""`torch_tenon.explain`: what a call does once it is warm."""

import json
import time
from pathlib import Path

import pytest
import torch
from against_cpu import executing
from fresh_process import output
from needs import plans

import torch_tenon
from torch_tenon import _C
from torch_tenon.compiler.explain import GraphSummary, Summary
from torch_tenon.reports import explaining


def work(x, power=2):
    y = (x * 3 + 1).relu() ** power
    return (y @ y.t()).softmax(-1).sum(0).cpu()


@pytest.fixture
def eager(monkeypatch):
    """Also on a busy machine there is time for the plans."""
    monkeypatch.setattr(explaining, "MOST_SECONDS", 200.0)
    with executing("auto"):
        yield


@plans
@pytest.mark.slow
def test_what_is_explained_is_no_run_that_compares(eager, monkeypatch):
    """A window that has run by its plan for a while runs by reference, to compare."""
    x = torch.randn(300, 1000, device="tenon")

    def step():
        y = x
        for k in range(23):
            y = (y * 0.97 - k).relu().sin()
        return y[0, 0].item()

    monkeypatch.setenv("TENON_PLAN", "worthwhile")
    _C.set_plan_all(True)
    try:
        torch_tenon.explain(step)
        _C.set_plan_all(True)  # none of these compares
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            step()
        recorded = torch_tenon.explain(step).report.recording
        assert (recorded.by_plan, recorded.by_reference) == (1, 0)
    finally:
        _C.set_plan_all(True)


@plans
def test_a_call_is_explained_once_its_plans_are_there(eager):
    calls = []

    def counted(x, power):
        calls.append(power)
        return work(x, power)

    found = torch_tenon.explain(counted, torch.ones(32, 32, device="tenon"), power=3)
    assert found.settled and found.calls == len(calls) < explaining.MOST_CALLS
    assert set(calls) == {3}
    recorded = found.report.recording
    assert recorded.by_plan >= 1 and recorded.by_reference == 0
    assert recorded.commits == {"the host reads": 1}
    kernels = found.report.kernels
    assert sum(k.calls for k in kernels) == sum(p.kernels for p in found)
    assert all(k.seconds > 0 for k in kernels) and 0 < found.seconds < 10
    assert all(isinstance(plan, Summary) for plan in found) and len(found[:1]) == 1


@plans
def test_the_page_and_the_data_say_the_same(eager):
    found = torch_tenon.explain(work, torch.ones(32, 32, device="tenon"))
    page, data = str(found), json.loads(found.as_json())
    assert page.startswith("work took ") and "They ended for: the host reads 1" in page
    assert "Kernels, most expensive first" in page
    assert "Plan 1, of a window that ran 1 times by it" in page and "softmax" in page
    rejected = [row for plan in found for row in plan.rejected]
    assert rejected and f"not fused: {rejected[0][0]} with {rejected[0][1]}: " in page
    windows = data["report"]["recording"]["windows"]
    assert [w["plan"]["kernels"] for w in windows] == [plan.kernels for plan in found]
    assert data["settled"] is True and data["calls"] == found.calls


def test_what_ran_before_is_no_part_of_it(eager):
    torch.unique(torch.ones(5, device="tenon"))
    found = torch_tenon.explain(work, torch.ones(16, 16, device="tenon"))
    assert not [c for c in found.report.counts if "unique" in c.op]
    assert sum(c.calls for c in found.report.counts) < 40


def test_sizes_that_change_never_settle(eager, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_CALLS", 4)
    sides = iter(range(2, 100))

    def grows():
        n = next(sides)
        return torch.ones(n, n, device="tenon").nonzero().sum().item()

    found = torch_tenon.explain(grows)
    assert found.calls <= 5 and sum(n for *_, n in found.report.recording.at_once) >= 1


def test_the_time_for_plans_is_bounded(eager, monkeypatch):
    monkeypatch.setattr(explaining, "MOST_SECONDS", 0.0)
    found = torch_tenon.explain(lambda: work(torch.ones(17, 19, device="tenon")))
    assert found.calls == 2 and not found.settled
    assert "Not all of its windows have their plans yet." in str(found)


def test_an_error_is_the_function_s_and_leaves_nothing_switched_on():
    with pytest.raises(ZeroDivisionError):
        torch_tenon.explain(lambda: 1 / 0)
    assert _C.set_timing(False) is False


@plans
def test_of_a_compiled_function_the_graphs_are_there(eager):
    x = torch.ones(4, 8, device="tenon")
    compiled = torch.compile(lambda x: (x.exp() + 1).sum(-1), backend="tenon")
    found = torch_tenon.explain(compiled, x)
    (graph,) = found.graphs
    assert isinstance(found[-1], GraphSummary) and graph.kind == "inference"
    page = str(found)
    assert "inference graph 0" in page and "times the least possible" in page
    again = str(torch_tenon.explain(compiled, x))
    assert "All ops were in graphs." in again and "No op has run" not in again
    assert json.loads(found.as_json())["graphs"][0]["kernels"] == graph.kernels


def test_a_function_of_the_host_alone():
    found = torch_tenon.explain(lambda x: x + 1, torch.ones(3))
    assert list(found) == [] and found.settled
    assert "Nothing was recorded." in str(found) or "No op has run on tenon." in str(found)


@pytest.mark.parametrize("plan", ["worthwhile", "all"])
def test_windows_get_plans_as_before_afterwards(plan):
    code = """
        import torch, torch_tenon
        from torch_tenon.builder.counts import plan_counts
        torch_tenon.explain(lambda: torch.ones(5, device="tenon").mul(2).sum().item())
        asked = lambda: sum(plan_counts()[k] for k in ("ready", "waiting", "failed"))
        before = asked()
        for adds in range(8):
            for _ in range(3):
                x = torch.ones(6, device="tenon").mul(7)
                for _ in range(adds):
                    x = x + 1
                x.sum().item()
        print(asked() - before)
    """
    asked = (int(output(code, TENON_EXECUTE="auto", TENON_PLAN=plan)) for _ in range(10))
    if plan == "all":
        assert next(asked) == 8
    else:  # where a busy machine takes long over one of the windows, a plan for it is worthwhile
        assert any(count < 4 for count in asked)


@plans
def test_of_a_compiled_module_the_graphs_are_there(eager):
    model = torch.compile(torch.nn.Linear(8, 4).to("tenon"), backend="tenon")
    found = torch_tenon.explain(model, torch.ones(2, 8, device="tenon"))
    assert [graph.kind for graph in found.graphs] == ["forward", "backward"]


@pytest.mark.slow
def test_times_of_the_host_are_not_said_to_be_the_device_s():
    target = Path(__file__).parent / "targets" / "asynchronous.py"
    code = """
        import torch, torch_tenon
        print(torch_tenon.explain(lambda: (torch.ones(5, device="tenon") * 2).exp().cpu()))
    """
    page = output(code, TENON_TARGET=f"{target}:AsynchronousTarget", TENON_EXECUTE="compiled")
    assert "Kernels, by the host's time to enqueue them" in page
