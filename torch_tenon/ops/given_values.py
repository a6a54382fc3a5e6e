"""What a function that makes a custom op's results gives them beside memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_tenon.ops.variants import known_of


class _Watch(TorchDispatchMode):
    """Notes which op has written to a storage last, of those that were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: dict[int, str] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        returned = made if isinstance(made, list | tuple) else [made]
        for r, t in zip(function._schema.returns, returned, strict=False):
            is_view = r.alias_info is not None and not r.alias_info.is_write
            if isinstance(t, torch.Tensor) and not is_view and not known_of(function).uninitialised:
                self.writers[t.untyped_storage()._cdata] = function.name()
        return made


def results_of(make_results: Callable[..., Any], given: Sequence[Any]) -> tuple[Any, str | None]:
    """What the function makes, and the op that gave a result its values; None where none did."""
    with _Watch() as watch:
        made = make_results(*given)
    tensors = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
    writers = (watch.writers.get(t.untyped_storage()._cdata) for t in tensors)
    return made, next(filter(None, writers), None)
