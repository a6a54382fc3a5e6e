"""Dynamo, which the builder does without: loading it takes longer than making a plan.

PyTorch's decompositions load it for nothing but to tell it not to look at them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _NotLoaded(ModuleType):
    """Stands for Dynamo until something else of it is asked for than to be left alone."""

    @staticmethod
    def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """The function as it is: nothing in this process is traced."""
        return function

    def __getattr__(self, name: str) -> Any:
        # Also `__path__`, by which modules inside of it are found.
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            importlib.import_module(_NAME)
        return getattr(sys.modules[_NAME], name)


def leave_out() -> None:
    """Keeps Dynamo from being loaded by those who would only switch it off."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = torch._dynamo = _NotLoaded(_NAME)
