"""Dynamo, PyTorch's tracer of Python, is loaded when something is traced.

Loading it takes a second, and PyTorch does so in every script that trains: an optimizer loads it to
tell it where a graph ends, and decompositions and checkpoints to tell it not to look at them. While
it is not there nobody looks, so that there is nobody to tell.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"
# Where PyTorch keeps what it calls in place of a function that Dynamo is not to look at.
_IN_PLACE = "__dynamo_disable"


class _Waiting(ModuleType):
    """Stands for Dynamo until more of it is asked for than to be left alone."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(_NAME)
        # What those ask for who go through all modules.
        attributes = {"__file__": spec.origin, "__spec__": spec, "__loader__": spec.loader}
        self.__dict__.update(attributes, _told=[], _lock=threading.Lock())

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Nothing is traced."""

    def disable(self, function: Callable[..., Any] | None = None, *args: Any, **kw: Any) -> Any:
        """The function as it is, for as long as nothing is traced."""
        if not callable(function):
            return self.__getattr__("disable")(function, *args, **kw)
        self._told.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        # Also `__path__`, by which modules inside of it are found.
        self._give_way()
        return getattr(importlib.import_module(_NAME), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._give_way()
        setattr(importlib.import_module(_NAME), name, value)

    def __delattr__(self, name: str) -> None:
        self._give_way()
        delattr(importlib.import_module(_NAME), name)

    def _give_way(self) -> None:
        with self._lock:
            if sys.modules.get(_NAME) is not self:
                return
            del sys.modules[_NAME]
            vars(torch).pop("_dynamo", None)
        # Each of these is told again, by whoever calls it next.
        for function in self._told:
            vars(function).pop(_IN_PLACE, None)


def install() -> None:
    """Lets Dynamo wait, unless it has been loaded."""
    if _NAME not in sys.modules:
        spec = find_spec(_NAME)
        assert spec is not None
        sys.modules[_NAME] = torch._dynamo = _Waiting(spec)
