"""A tensor whose contents are an error stays one until something has really taken their place."""

import re
from collections.abc import Callable

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor
from turns import turns

SIZE = 4
BEYOND = "index .*out of"


@pytest.fixture(params=["auto", "compiled"], autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield


def rows(bad: bool) -> Tensor:
    return torch.tensor([0, 1, SIZE + 1 if bad else 2, 3])


def failed() -> Tensor:
    """What a call has made that fails when it runs."""
    x = torch.randn(SIZE, SIZE).to("tenon")
    for _ in range(2):
        x.index_select(0, rows(bad=False).to("tenon"))
    return x.index_select(0, rows(bad=True).to("tenon"))


def on_device(*sizes: int) -> Tensor:
    return torch.ones(sizes).to("tenon")


# Each raises, now or when the result is read, and writes nothing.
FAILING: dict[str, Callable[[Tensor], object]] = {
    "sizes_of_a_product": lambda y: torch.mm(on_device(4, 3), on_device(5, 4), out=y),
    "sizes_of_a_copy": lambda y: y.copy_(torch.ones(3, 7)),
    "sizes_of_a_sum": lambda y: torch.add(on_device(4, 3), on_device(4, 2), out=y),
    "dtype": lambda y: torch.add(on_device(4, 4), 1j, out=y),
    "numbers": lambda y: torch.take(on_device(2), on_device(4, 4).long() * 9, out=y),
    "a_failed_source": lambda y: y.copy_(failed()),
    "a_failed_number": lambda y: y.fill_(failed()[0, 0]),
    "a_failed_argument": lambda y: torch.linalg.inv(failed(), out=y),
    "the_same_failure": lambda y: torch.index_select(
        on_device(4, 4), 0, rows(bad=True).to("tenon"), out=y
    ),
    "itself": lambda y: torch.add(y, 1, out=y),
    "itself_at_once": lambda y: torch.linalg.inv(y, out=y),
    "itself_transposed": lambda y: torch.linalg.inv(y.t(), out=y),
    "a_part": lambda y: y[1:].zero_(),
    "more_memory": lambda y: y.resize_(9, 9),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_error_stays_where_nothing_took_its_place(name: str) -> None:
    for _ in turns(3):
        y = failed()
        with pytest.raises(IndexError, match=BEYOND):
            y.cpu()
        try:
            FAILING[name](y)
        except (RuntimeError, IndexError) as error:
            assert error.args
        with pytest.raises((RuntimeError, IndexError)) as raised:
            y.cpu()
        assert re.search(BEYOND, str(raised.value))


OVERWRITING: dict[str, Callable[[Tensor], object]] = {
    "zero": lambda y: y.zero_(),
    "fill": lambda y: y.fill_(2.0),
    "copy_of_the_host_s": lambda y: y.copy_(torch.ones(SIZE, SIZE)),
    "copy_that_converts": lambda y: y.copy_(torch.ones(SIZE, SIZE, dtype=torch.float64)),
    "copy": lambda y: y.copy_(torch.ones(SIZE, SIZE).to(y.device)),
    "out": lambda y: torch.mul(torch.ones(SIZE, SIZE).to(y.device), 3, out=y),
    "out_at_once": lambda y: torch.linalg.inv(torch.eye(SIZE).to(y.device), out=y),
    "set": lambda y: y.set_(torch.ones(SIZE, SIZE).to(y.device)),
    "resize": lambda y: y.resize_(0).set_(torch.ones(3).to(y.device)),
}


@pytest.mark.parametrize("name", OVERWRITING)
def test_what_took_its_place_is_good(name: str) -> None:
    expected = torch.zeros(SIZE, SIZE)
    OVERWRITING[name](expected)
    for _ in turns(3):
        y = failed()
        with pytest.raises(IndexError, match=BEYOND):
            y.cpu()
        with pytest.raises(RuntimeError):
            FAILING["sizes_of_a_product"](y)
        OVERWRITING[name](y)
        assert_same(y, expected)
