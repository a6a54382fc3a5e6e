"""Any program gives on the device what it gives on the CPU, in every execute mode.

A few programs from a random place; `tenon fuzz` runs as many as one likes.
"""

import random
import signal
from typing import Any

import pytest
import torch
from fresh_process import REMOTE_TARGET
from programs import lines

from torch_tenon.testing.fuzz.choose import Chooser, Nothing
from torch_tenon.testing.fuzz.compare import CPU, difference, expect
from torch_tenon.testing.fuzz.generate import generate
from torch_tenon.testing.fuzz.kinds import SHARES
from torch_tenon.testing.fuzz.memory import overlaps
from torch_tenon.testing.fuzz.program import Program
from torch_tenon.testing.fuzz.running import judged, run
from torch_tenon.testing.fuzz.surroundings import forked, interrupted
from torch_tenon.testing.fuzz.worker import check
from torch_tenon.testing.fuzz.workers import Worker, shrink


@pytest.mark.slow
def test_programs_on_the_device() -> None:
    # The same programs every time: fresh ones are for `tenon fuzz`, where a person sees them.
    for seed in range(6):
        found = check(generate(seed, 16), ["reference", "auto"])
        assert found is None, f"tenon fuzz --seed {seed} --length 16 --programs 1: {found}"


@pytest.mark.slow
def test_programs_where_the_host_cannot_reach_the_memory() -> None:
    worker = Worker({"TENON_TARGET": REMOTE_TARGET, "TENON_DEVICES": "2"}, 240)
    try:
        for seed in range(12):
            request = {"seed": seed, "length": 25, "modes": ["reference", "auto"]}
            found = worker.ask(request)["failure"]
            assert found is None, f"tenon fuzz --seed {seed} --target {REMOTE_TARGET}: {found}"
    finally:
        worker.stop()


@pytest.mark.slow
def test_programs_of_every_kind_that_run_at_once() -> None:
    worker = Worker({"TENON_EXECUTE": "reference", "TENON_DEVICES": "2"}, 240)
    try:
        for kind in SHARES:
            for seed in range(2):
                request = {"seed": seed, "length": 16, "kinds": [kind], "modes": ["reference"]}
                found = worker.ask(request)["failure"]
                assert found is None, f"tenon fuzz --seed {seed} --kinds {kind}: {found}"
    finally:
        worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [[], list(SHARES)], ids=["plain", "every kind"])
def test_a_seed_tells_the_program(kinds: list[str]) -> None:
    for seed in range(20):
        program = generate(seed, 30, kinds)
        assert program.statements == generate(seed, 30, kinds).statements
        assert program.statements == Program.from_json(program.to_json()).statements
        compile(program.source(), "<program>", "exec")


@pytest.mark.parametrize("kind", SHARES)
def test_a_program_has_the_kind_that_it_is_to_have(kind: str) -> None:
    plain = [s for seed in range(8) for s in generate(seed, 30).statements]
    assert not any(s.around or s.thread for s in plain)
    usual = {s.operation for s in plain}
    found = [s for seed in range(8) for s in generate(seed, 30, [kind]).statements]
    words = ("beyond", "zero", "dlpack", "interrupted", "fork", "limit")
    assert any(
        s.around
        or s.thread
        or (s.operation not in usual and any(word in s.operation for word in words))
        for s in found
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_program_is_a_script(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    program = generate(seed, 25, list(SHARES))
    seen, course = judged(program, CPU)
    raising = [int(o.where[5:]) for o in seen if o.where.startswith("line ")]
    lines = [s for k, s in enumerate(program.statements) if k not in course.left_out]
    assert len(lines) == len(program.statements)
    exec(compile(program.source(("cpu", "cpu", "cpu"), raising), "<script>", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("around", "thread"), [(["open('x')"], ""), ([], "1"), ([], "a.1"), (["mode"], "1.1; x")]
)
def test_what_is_around_a_statement_is_no_code(around: list[str], thread: str) -> None:
    with pytest.raises(ValueError, match=r"no (context|thread):"):
        Program.from_json([["relu", ["a1"], "a2", False, around, thread]])


@pytest.mark.parametrize(
    "operand", ["__import__('os')", "torch.save", "a1.grad", "(lambda: 1)()", "a1; del a1", "x"]
)
def test_a_program_from_data_is_no_code(operand: str) -> None:
    with pytest.raises(ValueError, match="operand"):
        Program.from_json([["relu", [operand], "a2", False]])


class _Fails:
    """Stands for a worker: a program fails as long as it has these statements, in order."""

    def __init__(self, needed: list[int]) -> None:
        self.needed = needed

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """A failure, where it has them."""
        left = iter(request["program"])
        return {"failure": "wrong" if all(n in left for n in self.needed) else None}


def test_shrinking() -> None:
    worker: Any = _Fails([3, 17, 18, 40])
    small, answer = shrink(worker, list(range(50)), ["auto"], 10)
    assert small == [3, 17, 18, 40]
    assert answer["failure"] == "wrong"


def test_a_result_is_on_the_device_of_an_operand() -> None:
    chooser = Chooser(random.Random(3), 25)
    chooser.add("scalar", "True", place="H", result="c")
    chooser.add("made", "1", "(3,)", "torch.float32", "D1", place="D1", result="x")
    chooser.add("where", "c", "x", "c", result="y")
    assert chooser.where["y"] == "D1"


def test_memory_behind_a_result_is_nobodys() -> None:
    """The CPU's mean of squared errors is the first of them, in their memory."""
    chooser = Chooser(random.Random(3), 25)
    loss = torch.nn.functional.mse_loss(torch.ones(9), torch.zeros(9))
    assert loss.untyped_storage().nbytes() > loss.nbytes
    with pytest.raises(Nothing):
        chooser.room(loss.view(1))
    assert chooser.room(torch.ones(9)[2:4]) == 9


@pytest.mark.slow
def test_a_worker_that_crashes_is_a_finding() -> None:
    worker = Worker({"TENON_TARGET": "no-such-target"}, 240)
    answer = worker.ask({"seed": 1, "length": 3, "modes": ["auto"]})
    assert "Failed to load the backend extension" in answer["failure"]
    assert worker.process is None


def test_what_is_repeated_is_where_its_operands_are() -> None:
    """Also when its name has since been given to a tensor of another device."""
    chooser = Chooser(random.Random(3), 25)
    chooser.add("made", "1", "(3,)", "torch.float32", "D1", place="D1", result="x")
    chooser.add("neg", "x", result="y")
    chooser.add("move", "x", "D0", place="D0", result="y")
    chooser.repeat()
    places = {s.operation: chooser.where[s.result or ""] for s in chooser.statements[3:]}
    assert places == {"neg": "D1", "move": "D0"} | ({"made": "D1"} if "made" in places else {})


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (("add", ("a0", "1"), "a1"), ("neg", ("a0",), "a2"), True),
        (("add", ("a0", "1"), "a1"), ("neg", ("a0",), "a1"), False),
        (("add", ("a0", "1"), "a1"), ("neg", ("a1",), "a2"), False),
        (("fill_", ("a0", "1"), None), ("neg", ("a0",), "a2"), False),
        (("neg", ("a9",), "a2"), ("fill_", ("a0", "1"), None), False),
    ],
)
def test_threads_that_disturb_each_other_run_one_by_one(
    first: tuple[Any, ...], second: tuple[Any, ...], together: bool
) -> None:
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("t", ("a0",), "a9"),
        (*first, False, (), "2.1"),
        (*second, False, (), "2.2"),
    )
    course = judged(program, CPU)[1]
    assert course.one_by_one == (set() if together else {"2"})
    assert difference(expect(program), run(program, CPU, course=course)) is None


def test_memory_under_two_names_is_one() -> None:
    x = torch.zeros(4, 3)
    y = torch.from_dlpack(x[1:3])
    assert overlaps(x, y) and overlaps(y, x[2])
    assert not overlaps(y, x[0]) and not overlaps(y, x[3])


def test_memory_that_was_given_away_is_kept() -> None:
    """The CPU would free it, whoever else has it."""
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("dlpack", ("a0",), "a1"),
        ("view_flat", ("a0",), "a2"),
        ("resize_fill", ("a2", "(4000,)", "0")),
        ("cat_out", ("a0", "a1", "0")),
        ("cat", ("a0", "a1", "0"), "a3"),
        ("cat_out", ("a3", "a1", "0")),
        ("set_data", ("a0", "a3")),
    )
    assert judged(program, CPU)[1].left_out == {3, 4, 7}


def test_an_interrupt_comes_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    called = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: called.append(1))
    with pytest.raises(KeyboardInterrupt):
        interrupted(torch.ones(3).tolist)
    with pytest.raises(KeyboardInterrupt):
        interrupted(torch.ones(3).item)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_forked_process_answers() -> None:
    x = torch.arange(3.0)
    assert forked(x) is x
    y = torch.arange(3.0, device="tenon") + 1
    assert torch.equal(forked(y).cpu(), y.cpu())
