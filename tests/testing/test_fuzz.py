"""Any program gives on the device what it gives on the CPU, in every execute mode.

A few programs from a random place; `tenon fuzz` runs as many as one likes.
"""

import random
from typing import Any

import pytest
import torch
from fresh_process import REMOTE_TARGET

from torch_tenon.testing.fuzz.choose import Chooser, Nothing
from torch_tenon.testing.fuzz.compare import CPU, difference, expect
from torch_tenon.testing.fuzz.generate import generate
from torch_tenon.testing.fuzz.otherwise import Otherwise
from torch_tenon.testing.fuzz.program import Observation, Program, Statement, run
from torch_tenon.testing.fuzz.worker import check
from torch_tenon.testing.fuzz.workers import Worker, shrink


def test_programs_on_the_device() -> None:
    # The same programs every time: fresh ones are for `tenon fuzz`, where a person sees them.
    for seed in range(6):
        found = check(generate(seed, 16), ["reference", "auto"])
        assert found is None, f"tenon fuzz --seed {seed} --length 16 --programs 1: {found}"


def test_programs_where_the_host_cannot_reach_the_memory() -> None:
    worker = Worker({"TENON_TARGET": REMOTE_TARGET, "TENON_DEVICES": "2"}, 120)
    try:
        for seed in range(12):
            request = {"seed": seed, "length": 25, "modes": ["reference", "auto"]}
            found = worker.ask(request)["failure"]
            assert found is None, f"tenon fuzz --seed {seed} --target {REMOTE_TARGET}: {found}"
    finally:
        worker.stop()


def test_a_seed_tells_the_program() -> None:
    for seed in range(20):
        program = generate(seed, 30)
        assert program.statements == generate(seed, 30).statements
        assert program.statements == Program.from_json(program.to_json()).statements
        compile(program.source(), "<program>", "exec")


@pytest.mark.parametrize(
    "operand", ["__import__('os')", "torch.save", "a1.grad", "(lambda: 1)()", "a1; del a1", "x"]
)
def test_a_program_from_data_is_no_code(operand: str) -> None:
    with pytest.raises(ValueError, match="operand"):
        Program.from_json([["relu", [operand], "a2", False]])


def _sum_beside_zero() -> Program:
    lines = [
        Statement("made", ("1", "(40, 4)", "torch.float32", "D0"), "a0"),
        Statement("sum", ("a0",), "a1"),
        Statement("sub", ("a1", "a1"), "a2"),
        Statement("add", ("a0", "1"), "a3"),
        Statement("gt", ("a0", "0"), "a4"),
    ]
    return Program(lines)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a1", lambda x: x + 1e-3),
        ("a3", lambda x: x.index_fill(0, torch.tensor([7]), torch.nan)),
        ("a3", lambda x: x.double()),
        ("a3", lambda x: x[1:]),
        ("a4", lambda x: ~x),
        ("a4", lambda x: "RuntimeError"),
    ],
)
def test_what_differs_is_found(name: str, change: Any) -> None:
    expected = expect(_sum_beside_zero())
    got = run(_sum_beside_zero(), CPU)
    assert difference(expected, got) is None
    changed = [Observation(o.where, change(o.value) if o.where == name else o.value) for o in got]
    assert str(difference(expected, changed)).startswith(name)


def test_rounding_may_differ_by_what_it_moves() -> None:
    program = Program(
        [
            Statement("made", ("3", "(64,)", "torch.float32", "D0"), "a0"),
            Statement("mul", ("a0", "100000"), "a1"),
            Statement("sin", ("a1",), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    moved = [Observation(o.where, o.value) for o in got]
    moved[2].value = torch.sin(moved[1].value * (1 + 2e-7))
    assert difference(expected, moved) is None
    moved[2].value = torch.sin(moved[1].value * 1.1)
    assert difference(expected, moved) is not None


def test_a_nan_has_no_sign() -> None:
    program = Program(
        [
            Statement("made", ("3", "(8,)", "torch.float32", "D0"), "a0"),
            Statement("sqrt", ("a0",), "a1"),
            Statement("copysign", ("a0", "a1"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    root = got[1].value
    root[root.isnan()] = -root[root.isnan()]
    got[2].value = torch.copysign(got[0].value, root)
    assert root.isnan().any()
    assert difference(expected, got) is None
    got[2].value = torch.copysign(got[0].value, -root)
    assert difference(expected, got) is not None


@pytest.mark.parametrize("operation", ["atan2", "maximum"])  # computed, and exact
def test_which_nan_it_is_is_open(operation: str) -> None:
    program = Program(
        [
            Statement("made", ("800", "(5, 4, 4)", "torch.bfloat16", "D0"), "a0"),
            Statement(operation, ("a0", "a0"), "a1"),
            Statement("view_dtype", ("a1", "torch.uint8"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    number = ~got[1].value.isnan()
    low, high = got[2].value.unflatten(-1, (-1, 2)).unbind(-1)
    assert not number.all()
    low[~number] ^= 255 ^ 192
    assert difference(expected, got) is None
    high[number] ^= 64
    assert difference(expected, got) is not None


def test_a_sum_may_be_nearer_to_the_exact_one() -> None:
    program = Program(
        [
            Statement("empty_fill", ("(816,)", "0.996", "torch.float32", "D0"), "a0"),
            Statement("norm", ("a0", "1", "None"), "a1"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    exact = (816 * got[0].value[0].double()).float()
    assert not torch.allclose(got[1].value, exact, rtol=5e-6)
    got[1].value = exact
    assert difference(expected, got) is None
    got[1].value = exact * 1.01
    assert difference(expected, got) is not None


def test_how_a_reduction_is_taken_may_decide() -> None:
    """The CPU's running mean with an infinity is no number, unless the infinity is last."""
    program = Program(
        [
            Statement("tensor", ("[4, 2, 0, 1]", "torch.float32", "D0"), "a0"),
            Statement("rdiv", ("a0", "1"), "a1"),
            Statement("var_mean", ("a1", "0", "1"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    assert got[2].value.isnan()
    got[2].value = got[1].value.mean()
    assert got[2].value.isinf()
    assert difference(expected, got) is None


def test_the_last_place_of_the_smallest_numbers_is_open() -> None:
    program = Program(
        [
            Statement("empty_fill", ("(8,)", "9e-315", "torch.float64", "D0"), "a0"),
            Statement("sin", ("a0",), "a1"),
            Statement("pow", ("a1", "-0.25"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    moved = got[1].value + 4 * 5e-324
    assert (moved != got[1].value).all()
    got[1].value, got[2].value = moved, moved.pow(-0.25)
    assert difference(expected, got) is None
    got[2].value = got[2].value * 1.001
    assert difference(expected, got) is not None


def test_where_a_function_of_integers_overflows_is_open() -> None:
    program = Program(
        [
            Statement("arange", ("0", "99", "3", "D0"), "a0"),
            Statement("i0", ("a0",), "a1"),
            Statement("div", ("a1", "a1"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    assert got[1].value[30].isinf()
    got[1].value[30], got[2].value[30] = 5.1e37, 1
    assert difference(expected, got) is None
    got[2].value[20] = 2
    assert difference(expected, got) is not None


def test_a_rounding_and_how_the_next_op_is_computed_add_up() -> None:
    """Two numbers of opposite signs cancel in float16, whatever was rounded before; not in
    float32, where both are off by a last place."""
    program = Program(
        [
            Statement("made", ("949", "(33, 2)", "torch.float32", "D0"), "a0"),
            Statement("layer_norm", ("a0",), "a1"),
            Statement("sum_dtype", ("a1", "-1", "torch.float16"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    zero = int((got[2].value == 0).nonzero()[0])
    got[2].value[zero] = 2.4e-7
    assert difference(expected, got) is None
    got[2].value[zero] = 1e-3
    assert difference(expected, got) is not None


@pytest.mark.parametrize(
    ("operation", "operands"),
    [
        ("maximum", ("a1", "a0")),
        ("clamp", ("a1", "0", "1")),
        ("clamp", ("a1", "0", "None")),
        ("clamp_tensor", ("a0", "a1", "a1")),
    ],
)
def test_which_of_two_zeros_it_is_is_open(operation: str, operands: tuple[str, ...]) -> None:
    program = Program(
        [
            Statement("tensor", ("[0.0, 0.0]", "torch.float32", "D0"), "a0"),
            Statement("neg", ("a0",), "a1"),
            Statement(operation, operands, "a2"),
            Statement("atan2", ("a0", "a2"), "a3"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    got[3].value = torch.pi - got[3].value
    assert difference(expected, got) is None
    got[3].value = got[3].value + 100
    assert difference(expected, got) is not None


def test_a_number_has_no_device() -> None:
    """What is made of a tensor of the host and a number read from the device is the host's."""
    chooser = Chooser(random.Random(0), 10)
    chooser.add("made", 1, (3,), "torch.float32", "H", result="a0", place="H")
    chooser.add("made", 1, (3,), "torch.float32", "D0", result="a1", place="D0")
    chooser.add("item_float", "a1", result="a2")
    chooser.add("mul", "a0", "a2", result="a3")
    assert chooser.where["a3"] == "H"


def test_what_a_failing_out_leaves_is_open() -> None:
    """The CPU makes it larger, and then it raises."""
    program = Program(
        [
            Statement("made", ("410", "(0, 16)", "torch.uint8", "D0"), "a0"),
            Statement("cat_out", ("a0", "a0", "1")),
            Statement("made", ("410", "(2,)", "torch.uint8", "D0"), "a1"),
        ]
    )
    seen = run(program, CPU)
    assert [(o.where, o.value) for o in seen[:1]] == [("line 1", "RuntimeError")]
    assert [o.where for o in seen[1:]] == ["a1"]


def test_a_mean_of_equal_numbers_may_be_exact() -> None:
    """Then nothing is left of them, and nothing by nothing is no number."""
    program = Program(
        [
            Statement("empty_fill", ("(2, 1, 7)", "0.1", "torch.float32", "D0"), "a0"),
            Statement("batch_norm", ("a0",), "a1"),
            Statement("div", ("a1", "a1"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    assert (got[2].value == 1).all()
    got[1].value = torch.zeros_like(got[1].value)
    got[2].value = got[1].value / got[1].value
    assert difference(expected, got) is None
    got[1].value = got[1].value + 1
    assert difference(expected, got) is not None


def test_a_fused_loop_need_not_round_to_16_bits() -> None:
    x = torch.tensor([300.0], dtype=torch.bfloat16)
    found = []
    for way in (None, *range(8)):
        with Otherwise(way):
            found.append(float(x + 1 - x))
    assert found[0] == 0 and set(found) == {0, 1}


def test_vectors_and_single_numbers_may_differ() -> None:
    """The remainder of the largest number is NaN for the CPU's vectors."""
    program = Program(
        [
            Statement("empty_fill", ("(32,)", "3.4028234e38", "torch.float32", "D0"), "a0"),
            Statement("fmod", ("a0", "0.7"), "a1"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    assert got[1].value.isnan().all()
    got[1].value = torch.full((32,), 0.116862)
    assert difference(expected, got) is None
    program = Program(
        [
            Statement("empty_fill", ("(32,)", "-0.1", "torch.float64", "D0"), "a0"),
            Statement("F_softshrink", ("a0",), "a1"),
            Statement("atan2", ("a1", "a1"), "a2"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    assert not got[2].value.any()
    got[2].value = got[2].value - torch.pi
    assert difference(expected, got) is None


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


def test_a_worker_that_crashes_is_a_finding() -> None:
    worker = Worker({"TENON_TARGET": "no-such-target"}, 60)
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
