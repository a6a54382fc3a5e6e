"""`TENON_EXECUTE=verify` finds the op whose plan is wrong, and keeps a window that shows it."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import executing
from fresh_process import TENON, output, python
from typer.testing import CliRunner

from torch_tenon import _C, cli
from torch_tenon.builder.counts import plan_counts
from torch_tenon.compiler import build
from torch_tenon.frontends import eager
from torch_tenon.testing import window as windows
from torch_tenon.testing.verify import PlanDiffers


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every window runs both ways."""
    monkeypatch.setenv("TENON_CACHE_DIR", str(tmp_path / "cache"))
    with executing("verify"):
        yield


@pytest.fixture
def wrong_cosh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans compute sinh where cosh is asked for."""
    find: Callable[[Any], Any] = build.find

    def found(op: Any, *how: bool) -> Any:
        return find(torch.ops.aten.sinh.default if op is torch.ops.aten.cosh.default else op, *how)

    monkeypatch.setattr(build, "find", found)


def _compute(x: torch.Tensor, size: int) -> list[torch.Tensor]:
    y = x * 2
    z = y.sin() + 1
    c = torch.cosh(z)
    y[:3].mul_(c[:3])
    return [c.softmax(0), y, z.expand(size, -1) @ torch.ones(z.shape[0], 2, device=x.device)]


def _warnings(size: int) -> list[str]:
    """What three runs on vectors of that size warn of; the values are right."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):  # the first call of an op runs at once
            x = torch.rand(size)
            got = _compute(x.to("tenon"), size)
            _C.commit_all()
            for theirs, ours in zip(_compute(x, size), got, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs)
    return [str(w.message) for w in found if w.category is PlanDiffers]


def test_right_plans_pass(verify: None) -> None:
    hits = plan_counts()["hits"]
    assert _warnings(41) == []
    assert plan_counts()["hits"] > hits


@pytest.mark.slow
def test_the_first_wrong_op_is_named(verify: None, wrong_cosh: None) -> None:
    found = _warnings(43)
    assert found, "no plan was found to differ"
    assert all("first in aten::cosh" in text for text in found)
    path = Path(found[0].rpartition("tenon replay ")[2])
    window = windows.load(path)
    # Only what the result needs is kept.
    assert [c[0] for c in window.calls][-1] == "aten::cosh"
    assert "aten::_softmax" not in [c[0] for c in window.calls]
    assert [d.op for d in windows.disagree(window)] == ["aten::cosh"]
    done = CliRunner().invoke(cli.app, ["replay", str(path)])
    assert done.exit_code == 1
    assert "aten::cosh" in done.output


def test_what_a_script_does_once_is_compared_as_well(verify: None, wrong_cosh: None) -> None:
    x = torch.rand(3, 41)
    there = x.to("tenon")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        there[1].copy_(torch.cosh(there[:2])[0])
        x[1].copy_(torch.cosh(x[:2])[0])
        torch.testing.assert_close(there.cpu(), x)
    assert any("first in aten::cosh" in str(w.message) for w in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["asynchronous.py:AsynchronousTarget", "several_queues.py:SeveralQueuesTarget"]
)
def test_a_device_with_memory_of_its_own(target: str, tmp_path: Path) -> None:
    environment = {
        "TENON_TARGET": str(Path(__file__).parents[1] / "targets" / target),
        "TENON_EXECUTE": "verify",
        "TENON_BUILDER": "thread",
        "TENON_CACHE_DIR": str(tmp_path),
    }
    code = """
        import warnings
        import torch
        from torch_tenon.compiler import build
        from torch_tenon.testing import window
        from torch_tenon.testing.verify import PlanDiffers

        find, wrong = build.find, {torch.ops.aten.cosh.default: torch.ops.aten.sinh.default}
        build.find = lambda op, *how: find(wrong.get(op, op), *how)
        x = torch.rand(3, 41)
        there = x.to("tenon")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for factor in (2, 0.5, 0.25):
                for on in (there, x):
                    y = (on * factor).sin()
                    on[1].copy_(torch.cosh(y[:2])[0])
                # What is written in place is written once, and by the reference.
                torch.testing.assert_close(there.cpu(), x)
        texts = [str(w.message) for w in found if w.category is PlanDiffers]
        assert len(texts) == 3, texts
        assert all("first in aten::cosh" in text for text in texts)
        path = texts[0].rpartition("tenon replay ")[2]
        (difference,) = window.disagree(window.load(window.Path(path)))
        assert difference.op == "aten::cosh"
        print(path)
    """
    path = output(code, **environment)
    done = python(*TENON, "replay", path, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agrees" in done.stdout


@pytest.mark.slow
def test_an_interrupt_while_a_new_call_is_learned_is_told() -> None:
    target = Path(__file__).parents[1] / "targets" / "several_queues.py"
    environment = {"TENON_TARGET": f"{target}:SeveralQueuesTarget", "TENON_EXECUTE": "verify"}
    code = """
        import torch
        from torch_tenon.testing.fuzz.surroundings import interrupted
        x = torch.linspace(-1, 2, 16).to("tenon")
        try:
            interrupted(x.square)
        except KeyboardInterrupt:
            print("told")
        torch.testing.assert_close(x.square().cpu(), x.cpu().square())
    """
    assert output(code, **environment) == "told"


def test_a_write_that_is_lost_is_named(verify: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_overlaps", lambda x: False)
    base = torch.zeros(2, device="tenon")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        base[:, None].expand(2, 5).index_fill_(1, torch.tensor([1], device="tenon"), 5.0)
        assert base.tolist() == [5, 5]
    assert any("first in aten::index_fill_" in str(w.message) for w in found)


def test_replay_of_what_is_right_by_now(
    verify: None, wrong_cosh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(_warnings(47)[0].rpartition("tenon replay ")[2])
    monkeypatch.undo()
    done = CliRunner().invoke(cli.app, ["replay", str(path)])
    assert done.exit_code == 0, done.output
    assert "agrees" in done.output


def test_a_wrong_index_is_the_host_s_error(verify: None) -> None:
    x = torch.rand(5, device="tenon")
    for last in (2, 3):
        torch.take(x, torch.tensor([0, last], device="tenon")).sum().cpu()
    bad = torch.take(x, torch.tensor([0, 5], device="tenon")).sum()
    with pytest.raises(IndexError):
        bad.cpu()
    torch.testing.assert_close((x + 1).cpu(), x.cpu() + 1)


def _saved(path: Path) -> dict[str, Any]:
    x = ("tensor", 0, torch.float32, (4,), (1,), 0)
    y = ("tensor", 1, torch.float32, (4,), (1,), 0)
    window = windows.Window(
        [("aten::add.Scalar", 0, [x, ("constant", 1), ("constant", 2.5)], [y])],
        [(16, False, True, False), (16, True, True, True)],
        [torch.arange(4.0).numpy().tobytes(), b""],
        [],
    )
    windows.save(window, path)
    loaded = windows.load(path)
    assert loaded.slots == window.slots and loaded.contents == window.contents
    memory = windows.run_by_reference(loaded)[1].view(torch.float32)
    assert torch.equal(memory, torch.arange(4.0) + 2.5)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["calls", 0, 0], "aten::no_such_op"),
        (["calls", 0, 0], "aten::from_file"),
        (["calls", 0, 2, 0, 5], 1),  # an offset beyond the memory
        (["calls", 0, 2, 0, 3, 0], 1 << 40),
        (["calls", 0, 2, 0, 4, 0], -1),
        (["calls", 0, 2, 0, 1], -1),
        (["calls", 0, 2, 0, 2], {"torch": "save"}),
        (["slots", 0, 0], 1 << 60),
        (["contents", 0], "AAAA"),
        (["format"], "something else"),
    ],
)
def test_a_file_that_is_no_window(place: list[Any], value: Any, tmp_path: Path) -> None:
    path = tmp_path / "window.json"
    data: Any = _saved(path)
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path.write_text(json.dumps(data))
    with pytest.raises(windows.NotAWindow):
        windows.load(path)
    assert CliRunner().invoke(cli.app, ["replay", str(path)]).exit_code == 1


def test_a_sum_in_another_order_is_no_difference(verify: None) -> None:
    """Of numbers that all but cancel, which a device may add in any order."""
    x = torch.randn(96, 64)
    x -= x.mean(1, keepdim=True)
    calls = [("aten::sum.dim_IntList", 0, [("tensor", 0, torch.float32, (96, 64), (64, 1), 0),
              ("constant", [1]), ("constant", False), ("constant", None)],
              [("tensor", 1, torch.float32, (96,), (1,), 0)])]  # fmt: skip
    slots = [(x.nbytes, False, False, False), (96 * 4, True, True, True)]
    window = windows.Window(calls, slots, [x.numpy().tobytes(), b""], [])
    by_reference = windows.run_by_reference(window)

    def differs(sums: torch.Tensor) -> bool:
        by_plan = [by_reference[0], sums.contiguous().view(torch.uint8)]
        return bool(windows.compare(window, by_plan, by_reference))

    one_by_one = torch.stack([x[:, k] for k in range(64)]).cumsum(0)[-1]
    assert not torch.equal(one_by_one, x.sum(1))
    assert not differs(one_by_one)
    assert differs(x[:, :-1].sum(1)) and differs(x.sum(1) + 1e-4)
