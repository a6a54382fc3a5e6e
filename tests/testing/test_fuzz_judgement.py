"""What `tenon fuzz` takes for the same as on the CPU, and what it finds: values and errors."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from programs import lines

from torch_tenon.testing.fuzz.choose import Chooser
from torch_tenon.testing.fuzz.compare import CPU, difference, expect
from torch_tenon.testing.fuzz.failing import Failed
from torch_tenon.testing.fuzz.otherwise import Otherwise
from torch_tenon.testing.fuzz.program import Observation, Program, Statement
from torch_tenon.testing.fuzz.running import judged, run


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
            Statement("empty_fill", ("(8160,)", "0.996", "torch.float32", "D0"), "a0"),
            Statement("norm", ("a0", "1", "None"), "a1"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    exact = (8160 * got[0].value[0].double()).float()
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
    if got[2].value.isnan().all():
        pytest.skip("this processor's mean is exact")
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


@pytest.mark.slow
def test_vectors_and_single_numbers_may_differ() -> None:
    """The remainder of the largest number is NaN for the CPU's vectors, where they are AVX2's."""
    program = Program(
        [
            Statement("empty_fill", ("(32,)", "3.4028234e38", "torch.float32", "D0"), "a0"),
            Statement("fmod", ("a0", "0.7"), "a1"),
        ]
    )
    expected, got = expect(program), run(program, CPU)
    of_vectors = got[1].value.isnan()
    assert of_vectors.all() or not of_vectors.any()
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


def _late() -> Program:
    return lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("select_beyond", ("a0", "0", "3", "(2,)"), "a1"),
        ("add", ("a1", "1"), "a2"),
        ("mul", ("a0", "2"), "a3"),
        ("zeros_like", ("a2",), "a4"),
        ("item", ("a2",), "a5"),
    )


def _changed(seen: Sequence[Observation], **values: Any) -> list[Observation]:
    """The observations with other values; None: nothing is shown there."""
    named = {o.where: o.value for o in seen} | {
        name.replace("_", " "): value for name, value in values.items()
    }
    lines = [Observation(where, value) for where, value in named.items() if value is not None]
    return sorted(lines, key=lambda o: (not o.where.startswith("line"), o.where))


def test_an_error_comes_at_the_call_or_where_it_is_read() -> None:
    expected = expect(_late())
    seen = run(_late(), CPU, course=expected.course)
    assert [o.where for o in seen[:4]] == [f"line {k}" for k in (1, 2, 4, 5)]
    assert seen[0].value == "IndexError"
    assert difference(expected, seen) is None
    late = {"line_1": None, "line_2": None, "line_4": None, "line_5": "IndexError"}
    late |= {"a1": "IndexError", "a2": "IndexError", "a4": torch.zeros(2, 3)}
    assert difference(expected, _changed(seen, **late)) is None


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"a3": "IndexError"}, "a3"),  # has nothing to do with it
        ({"line_3": "IndexError"}, "line 3"),
        ({"line_1": None, "a1": torch.zeros(2, 3)}, "a1"),  # a value of nothing
        ({"line_2": None, "a2": torch.zeros(2, 3)}, "a2"),
        ({"line_1": None, "a1": "RuntimeError"}, "a1"),  # another error
        ({"line_1": "RuntimeError"}, "line 1"),
        ({"line_5": None}, "line 5"),  # a number of nothing
        ({"line_4": None, "a4": torch.ones(2, 3)}, "a4"),
    ],
)
def test_an_error_that_comes_elsewhere_is_found(wrong: dict[str, Any], where: str) -> None:
    expected = expect(_late())
    seen = _changed(run(_late(), CPU, course=expected.course), **wrong)
    assert str(difference(expected, seen)).startswith(f"{where}: ")


def test_what_a_failing_write_leaves_is_open_until_all_is_written() -> None:
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("clone", ("a0",), "a1"),
        ("select", ("a0", "0", "1"), "a2"),
        ("dlpack_slice", ("a0", "2", "", ""), "a3"),
        ("put_beyond_", ("a0", "3", "(2,)", "5")),
        ("neg", ("a2",), "a4"),
        ("fill_", ("a2", "1")),
        ("read", ("a0",)),
        ("fill_", ("a0", "1")),
        ("add", ("a2", "1"), "a5"),
    )
    seen, course = judged(program, CPU)
    assert course.unsure == {4, 5, 6, 7}
    assert {o.where for o in seen if isinstance(o.value, Failed)} == {
        *(f"line {k}" for k in course.unsure),
        "a4",
    }
    shown = run(program, CPU, course=course)
    expected = expect(program)
    anything = _changed(shown, line_4=None, line_7=torch.zeros(4, 3), a4="IndexError")
    assert difference(expected, anything) is None
    assert difference(expected, _changed(shown, a5=torch.zeros(3))) is not None
    assert difference(expected, _changed(shown, a3="IndexError")) is not None


def test_a_write_that_may_fail_is_left_out_beside_gradients() -> None:
    """It counts as a version of the tensor where it is made, and not where it is not."""
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("leaf", ("a0",), "a1"),
        ("mul", ("a1", "a0"), "a2"),
        ("put_beyond_", ("a0", "3", "(2,)", "5")),
        ("backward", ("a2",)),
    )
    seen, course = judged(program, CPU)
    assert course.left_out == {3}
    assert "a1.grad" in [o.where for o in seen]


def test_a_write_of_what_may_be_missing_is_open() -> None:
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("limit", ("64",)),
        ("add", ("a0", "1"), "a1"),
        ("unlimit", ()),
        ("add_", ("a0", "a1")),
    )
    expected = expect(program)
    shown = run(program, CPU, course=expected.course)
    there = {o.where: o.value for o in shown}
    missing = {"line_2": "OutOfMemoryError", "line_4": "NameError", "a1": None}
    missing["a0"] = there["a0"] - there["a1"]
    assert difference(expected, _changed(shown, **missing)) is None


def test_under_a_limit_a_result_is_right_or_there_is_no_memory() -> None:
    program = lines(
        ("made", ("1", "(4, 3)", "torch.float32", "D0"), "a0"),
        ("limit", ("64",)),
        ("add", ("a0", "1"), "a1"),
        ("unlimit", ()),
        ("neg", ("a0",), "a2"),
    )
    expected = expect(program)
    shown = run(program, CPU, course=expected.course)
    assert difference(expected, shown) is None
    for values in ({"a1": None, "line_2": "OutOfMemoryError"}, {"a1": "OutOfMemoryError"}):
        assert difference(expected, _changed(shown, **values)) is None
    for values in ({"a1": torch.zeros(4, 3)}, {"a1": "RuntimeError"}, {"a2": "OutOfMemoryError"}):
        assert difference(expected, _changed(shown, **values)) is not None
