"""What a schema says of an op, found once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from torch_tenon.compiler.wire.archive import WireError

Facts = TypeVar("Facts")

# Ops of these do not change while the process lives. Those of other packages may.
_LASTING = ("aten::", "tenon::", "mkldnn::")


def schema_of(name: str, overload: str) -> Any:
    """The schema of an op. Raises WireError where there is none."""
    try:
        return torch._C._get_schema(name, overload)
    except RuntimeError:
        raise WireError(f"there is no op {name!r} with the overload {overload!r}") from None


def if_given(type: Any) -> Any:
    """A type without its `Optional`."""
    return type.getElementType() if type.kind() == "OptionalType" else type


class PerOp(Generic[Facts]):
    """Facts of ops; `find` finds those of a name and an overload."""

    def __init__(self, find: Callable[[str, str], Facts]) -> None:
        self._find = find
        self._lasting: dict[tuple[str, str], Facts] = {}

    def now(self) -> Callable[[str, str], Facts]:
        """A look-up for one plan or window, during which no op becomes another one."""
        own: dict[tuple[str, str], Facts] = {}

        def of(name: str, overload: str) -> Facts:
            known = self._lasting if name.startswith(_LASTING) else own
            found = known.get((name, overload))
            if found is None:
                found = known[name, overload] = self._find(name, overload)
            return found

        return of
