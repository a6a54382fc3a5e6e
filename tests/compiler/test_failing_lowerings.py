"""A lowering that fails makes its op a call of PyTorch's kernel, and tells of it once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch import Tensor

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import compiled, on_tenon
from torch_tenon import _C
from torch_tenon.compiler import failing
from torch_tenon.ir.values import Lazy
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.scatters import scatter_add
from torch_tenon.ops.lowerings.table import LOWERINGS

pytestmark = needs.plans


def _at_once(b: Any, x: Any) -> Any:
    raise ValueError("of its own")


def _where_it_is_used(b: Any, x: Any) -> Any:
    """Its body fails, which shows when something else is computed of it."""

    def body(p: Any) -> Any:
        raise ValueError("of its own")

    return Lazy(x.sizes, x.dtype, body, (x,))


def _after_a_write(b: Any, x: Any, *rest: Any) -> Any:
    """It has changed its first argument, where that lies, before it fails."""
    scatter_add(b, x, *rest)
    raise ValueError("of its own")


def _failures(op: str) -> int:
    return sum(n for _, name, n, *_ in _C.counter_values() if name == op)


FAILING: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "at once": ("aten.sinh", "aten.sinh.default", _at_once),
    "where it is used": ("aten.sinh", "sinh", _where_it_is_used),
    "after a write": ("aten.scatter_add", "aten.scatter_add.default", _after_a_write),
}


def compute(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    y = (x + 1).sinh() * 2
    z = x.clone()
    z.scatter_add_(0, i, y)
    z.scatter_add_(0, i, x)
    return y.exp2(), z


@pytest.mark.parametrize("way", ["windows", "compiled"])
@pytest.mark.parametrize("name", FAILING)
def test_the_op_becomes_a_call(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_all()
    lowering, op, fails = FAILING[name]
    monkeypatch.setitem(LOWERINGS, lowering, fails)
    monkeypatch.setattr(failing, "_failed", set())
    # Sizes of its own, so that no plan is known.
    n = 11 + 2 * list(FAILING).index(name)
    inputs = torch.rand(n), torch.arange(n) // 2
    before = _failures(op)
    run = compute if way == "windows" else compiled(compute)
    with caplog.at_level(logging.WARNING, "torch_tenon.program"), executing("compiled"):
        for _ in range(3):
            assert_same(run(*on_tenon(inputs)), compute(*inputs), rtol=1e-5)
    (message,) = caplog.messages
    assert op in message and "of its own" in message
    assert _failures(op) > before


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_no_fault_of_a_lowering_s_goes_through(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(b: Any, x: Any) -> Any:
        raise error

    load_all()
    monkeypatch.setitem(LOWERINGS, "aten.sinh", fails)
    with pytest.raises(BaseException) as found:
        compiled(torch.sinh)(torch.rand(3, device="tenon"))
    assert error in (found.type, type(found.value.__cause__), type(found.value.__context__))


def test_a_composition_that_fails() -> None:
    """Of one element PyTorch's composition of batch norm divides by zero, its kernel does not."""

    def norm(x: Tensor) -> tuple[Tensor, ...]:
        running = torch.zeros(2, device=x.device), torch.ones(2, device=x.device)
        y = torch.batch_norm(x, None, None, *running, True, 0.1, 1e-5, False)
        return (y, *running)

    x = torch.tensor([[1.0, 2.0]])
    with executing("compiled"):
        for _ in range(3):
            assert_same(norm(x.to("tenon")), norm(x), rtol=1e-6)
