"""Arguments of ops as keys."""

import math

import pytest
import torch

from torch_tenon.compiler.composition import as_called
from torch_tenon.ir.arguments import key_of
from torch_tenon.ops.by_hand import Facts

EQUAL_TO_PYTHON = [(0.0, -0.0), (1, 1.0), (1, True), (0, False), (1j, complex(-0.0, 1))]


@pytest.mark.parametrize("pair", EQUAL_TO_PYTHON)
def test_what_an_op_tells_apart_has_keys_of_its_own(pair: tuple[object, object]) -> None:
    one, other = pair
    assert one == other
    for wrap in (lambda x: x, lambda x: [2, x], lambda x: {"a": (x,)}, lambda x: slice(0, x)):
        assert key_of(wrap(one)) != key_of(wrap(other))
        assert key_of(wrap(one)) == key_of(wrap(one))
    assert Facts.of((one,)) != Facts.of((other,))


def test_a_nan_is_the_same_as_another() -> None:
    assert key_of(math.nan) == key_of(float("nan"))
    assert hash(Facts.of((math.nan, torch.float32))) == hash(
        Facts.of((float("nan"), torch.float32))
    )


def test_only_the_default_itself_is_left_out() -> None:
    op = torch.ops.aten.uniform.default
    assert as_called(op, {"self": 1, "from": 0.0, "to": 1.0}) == ([1], {})
    positional, _ = as_called(op, {"self": 1, "from": -0.0, "to": 1.0})
    assert math.copysign(1, positional[1]) == -1
