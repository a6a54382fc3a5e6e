"""Which failures are alike: what their messages have in common beside numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# A number that is no part of a word (`tanh.f32`) and names no line of a source.
_NUMBER = re.compile(
    r"(?<![\w.])(?<!\bline )(?<!\.py:)[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w])",
    re.IGNORECASE,
)
_ABSOLUTE = re.compile(r"absolute difference: ([-+.\w]+)", re.IGNORECASE)
_ELEMENTS = re.compile(r"Mismatched elements: (\d+) / (\d+)")
# What `assert_close` says first, behind where the result stands.
_COMPARED = re.compile(r": (Tensor-likes|Scalars|Booleans|The values)\b.* not (close|equal)")
_WHERE = re.compile(r"\[[^]]*\]")


@dataclass
class Differences:
    """How far results that failed alike are off: the range of their greatest differences."""

    least: float = math.inf
    greatest: float = -math.inf

    def add(self, message: str) -> None:
        """Takes what a message of `assert_close` says; one of another kind says nothing."""
        off = _off(message)
        if off is not None and not math.isnan(off):
            self.least, self.greatest = min(self.least, off), max(self.greatest, off)

    def __str__(self) -> str:
        told = f"greatest difference {self.least:.3g} to {self.greatest:.3g}"
        return told if self.least <= self.greatest else ""


def message_pattern(message: str) -> str:
    """The first line of `message` with its numbers replaced, so that like messages are equal.

    Of values that differ it says which result, whether all its elements do and whether one is no
    number: not where in the result, nor of what shape that is.
    """
    line = next((line for line in message.splitlines() if line.strip()), "")
    if compared := _COMPARED.search(line):
        where = _WHERE.sub("", line[: compared.start()])
        elements = _ELEMENTS.search(line)
        some = elements is not None and elements[1] != elements[2]
        extent = "some elements differ" if some else "all elements differ"
        off = _off(line)
        strange = ", some by NaN" if off is not None and math.isnan(off) else ""
        return f"{_NUMBER.sub('N', where)}: {extent}{strange}"
    return _NUMBER.sub("N", line)[:160]


def _off(message: str) -> float | None:
    found = _ABSOLUTE.search(message)
    return float(found[1]) if found else None
