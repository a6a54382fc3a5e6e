"""Which inputs of a database run, where not all of them do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .placement import tensors_in

Input = TypeVar("Input")


def chosen(
    inputs: Iterable[Input], limit: int, arguments: Callable[[Input], Any] = lambda given: ()
) -> tuple[list[tuple[int, Input]], int]:
    """At most `limit` of the inputs (0: all) with their places, and how many there are.

    The one whose `arguments` have most elements is among them, and the others are spread over the
    rest: the databases begin with the simplest inputs, those of many ops with several scalars.
    """
    found = list(enumerate(inputs))
    if not 0 < limit < len(found):
        return found, len(found)
    largest = max(found, key=lambda pair: (_elements(arguments(pair[1])), -pair[0]))
    rest = [pair for pair in found if pair is not largest]
    # Each from the middle of a part of the rest.
    middles = [(2 * k + 1) * len(rest) // (2 * (limit - 1)) for k in range(limit - 1)]
    taken = [largest, *(rest[middle] for middle in middles)]
    return sorted(taken, key=lambda pair: pair[0]), len(found)


def _elements(arguments: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(arguments))
