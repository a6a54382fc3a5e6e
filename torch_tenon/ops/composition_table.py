"""The table of compositions: ops of plans as other ops. Each entry is where its subject is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COMPOSITIONS: dict[Any, Callable[..., Any]] = {}
"""Overload -> the function that computes it; NotImplemented of it makes the op a call."""


def composition(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function for each of some overloads."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            COMPOSITIONS[op] = function
        return function

    return enter
