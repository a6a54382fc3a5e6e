"""What PyTorch's kernels refuse, a graph refuses: its trace does not look at every argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten
HALF = torch.float16
REFUSED: dict[str, Callable[[torch.device], Any]] = {
    "hash_tensor": lambda d: torch.hash_tensor(torch.ones(3, device=d), mode=3),
    "gelu_backward": lambda d: aten.gelu_backward(
        torch.ones(3, device=d), torch.ones(3, device=d), approximate="none of them"
    ),
    "_embedding_bag": lambda d: aten._embedding_bag(
        torch.ones(3, 2, device=d), torch.tensor([0, 1], device=d), torch.tensor([0], device=d),
        False, 5,
    ),
    "index_put": lambda d: torch.zeros(3, device=d).index_put(
        (torch.ones(2, device=d),), torch.ones(2, device=d)
    ),
    "index_put, 16 bits": lambda d: torch.zeros(3, device=d).index_put(
        (torch.ones(2, device=d, dtype=torch.int16),), torch.ones(2, device=d)
    ),
    "index_add": lambda d: torch.zeros(3, device=d).index_add(
        0, torch.ones(2, device=d, dtype=torch.uint8), torch.ones(2, device=d)
    ),
    "index_reduce": lambda d: torch.zeros(3, device=d).index_reduce(
        0, torch.ones(2, device=d), torch.ones(2, device=d), "amax"
    ),
    "addmv": lambda d: torch.addmv(
        *(torch.ones(n, device=d, dtype=HALF) for n in ((2,), (2, 3), (3,))), alpha=1e6
    ),
    "addmv, beta": lambda d: torch.addmv(
        *(torch.ones(n, device=d, dtype=HALF) for n in ((2,), (2, 3), (3,))), beta=1e6
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_a_kernel_refuses(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return REFUSED[name](x.device)

    torch._dynamo.reset()
    for run, device in ((function, "cpu"), (torch.compile(function, backend="tenon"), "tenon")):
        with pytest.raises((RuntimeError, IndexError)):
            run(torch.ones(1, device=device))
    torch._dynamo.reset()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["native_batch_norm_backward", "batch_norm_backward"])
def test_gradients_that_nobody_asks_for(name: str, training: bool) -> None:
    """They are None, as those of eager code."""
    op = getattr(aten, name).default
    more = (torch.empty(0, dtype=torch.uint8),) if name == "batch_norm_backward" else ()
    x, ones = torch.randn(2, 3, 4), torch.ones(3)
    for mask in ([False, True, True], [False, False, True], [True, False, False], [False] * 3):

        def function(x: Any, ones: Any, *more: Any, mask: Any = mask) -> Any:
            return op(x, x, ones, ones, ones, ones, ones, training, 1e-5, mask, *more)

        torch._dynamo.reset()
        got = torch.compile(function, backend="tenon")(*(t.to("tenon") for t in (x, ones, *more)))
        assert [g is not None for g in got] == mask
    torch._dynamo.reset()
