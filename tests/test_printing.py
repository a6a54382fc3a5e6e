"""Printing that raises: of what a failed call made, and when an interrupt comes."""

from collections.abc import Callable

import pytest
import torch
from against_cpu import executing
from torch import _tensor_str


def print_what_failed() -> None:
    """Its index is out of bounds, and the error shows when the result is read."""
    x = torch.rand(4, device="tenon")
    with executing("auto"):
        for index in (0, 0, 9):  # the first call of its kind runs at once
            results = x.gather(0, torch.tensor([index], device="tenon"))
        str(results)


def print_when_interrupted() -> None:
    def interrupted(*args: object, **kwargs: object) -> str:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensor_str, "_tensor_str", interrupted)
        str(torch.rand(4, device="tenon"))


RAISING = [print_what_failed, print_when_interrupted]


def error_of(raising: Callable[[], None]) -> BaseException:
    with pytest.raises((RuntimeError, KeyboardInterrupt)) as raised:
        raising()
    return raised.value


def assert_functorch_works() -> None:
    x = torch.rand(3, 2)
    grad = torch.func.vmap(torch.func.grad(lambda row: row.square().sum()))(x)
    assert grad.tolist() == (2 * x).tolist()


@pytest.mark.parametrize("raising", RAISING)
def test_functorch_works_while_the_error_is_kept(raising: Callable[[], None]) -> None:
    error = error_of(raising)
    assert_functorch_works()
    assert error.__traceback__ is not None


@pytest.mark.parametrize("raising", RAISING)
def test_functorch_works_whichever_error_ends_first(raising: Callable[[], None]) -> None:
    first = error_of(raising)
    second = error_of(raising)
    del first
    del second
    assert_functorch_works()
