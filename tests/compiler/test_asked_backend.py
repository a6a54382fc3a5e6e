"""A backend whose code has a fault: the error says which, of what and where."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.targets.tree import TreeBackend
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.schedule import Group
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.target import BackendFailed


class Faulty(TreeBackend):
    """Answers by what it is given."""

    def __init__(
        self,
        changed: Callable[[Kernel], Any] = lambda kernel: kernel,
        handles: Callable[[list[int]], Any] = lambda numbers: numbers,
    ) -> None:
        self.changed, self.handles = changed, handles

    def kernel(self, group: Group, kept: set[Buffer]) -> Any:
        return self.changed(super().kernel(group, kept))  # type: ignore[no-untyped-call]

    def compile(self, kernels: Sequence[Kernel]) -> Any:
        return self.handles(super().compile(kernels))  # type: ignore[no-untyped-call]

    def files(self, kernels: Sequence[Kernel]) -> None:
        return None


def _unchecked(kernel: Kernel) -> Kernel:
    kernel.checks = []
    return kernel


def _lost(kernel: Kernel) -> Any:
    return {}["a register"]


class Loaded:
    """As a library's kernel is."""

    def address(self) -> int:
        """A number."""
        return 1


FAULTS = {
    r"`kernel` .* for mul, index: KeyError: 'a register' \(test_asked_backend\.py:\d+, in _lost\)":
        Faulty(_lost),
    r"`kernel` .* for mul, index: TypeError: it gave a str and no Kernel":
        Faulty(lambda kernel: kernel.source),
    r"`kernel` .* for mul, index: ValueError: .* leave out 1 calls with an index":
        Faulty(_unchecked),
    r"`compile` .* for mul, index: TypeError: it gave 2 numbers for 1 kernels":
        Faulty(handles=lambda numbers: numbers * 2),
    r"`compile` .* for mul, index: TypeError: it gave a NoneType for a kernel and no number$":
        Faulty(handles=lambda numbers: [None for _ in numbers]),
    r"`compile` .* for mul, index: TypeError: it gave a Loaded .* takes its `address\(\)`":
        Faulty(handles=lambda numbers: [Loaded() for _ in numbers]),
}  # fmt: skip


def _compiled(backend: TreeBackend) -> torch.Tensor:
    x, k = torch.arange(12.0).view(4, 3), torch.tensor([3, 0])
    module = make_fx(lambda x, k: [(x * 2)[k]], decompositions(), tracing_mode="fake")(x, k)
    (found,) = compile_graph(module, [x, k], backend=backend)([x.clone(), k.clone()])
    torch.testing.assert_close(found, (x * 2)[k])
    return found


def test_without_a_fault_it_computes() -> None:
    assert _compiled(Faulty()).shape == (2, 3)


@pytest.mark.parametrize("text", FAULTS)
def test_the_error_names_what_was_asked(text: str) -> None:
    with pytest.raises(BackendFailed) as raised:
        _compiled(FAULTS[text])
    assert re.search(text, str(raised.value)), str(raised.value)
    assert "the backend 'tree'" in str(raised.value)


def test_what_it_may_raise_is_its_own() -> None:
    def refused(kernel: Kernel) -> Any:
        raise NotImplementedError("no such register")

    # The graph runs by reference.
    assert _compiled(Faulty(refused)).shape == (2, 3)
