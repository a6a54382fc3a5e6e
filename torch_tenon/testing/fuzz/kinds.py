"""The kinds of statements beyond plain ones, and how often a program has them. Loads no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What `--kinds` takes."""

    PLAIN = "plain"
    ERRORS = "errors"
    THREADS = "threads"
    STREAMS = "streams"
    DLPACK = "dlpack"
    SETTINGS = "settings"
    INTERRUPTS = "interrupts"
    FORKS = "forks"
    LIMITS = "limits"


@dataclass(frozen=True)
class Share:
    """How many of the programs have a kind, and its weight among their statements: those of the
    plain ones are about 30 together."""

    programs: float
    weight: float


SHARES = {
    Kind.ERRORS: Share(0.4, 5.0),
    Kind.THREADS: Share(0.3, 3.0),
    Kind.STREAMS: Share(0.3, 4.0),
    Kind.DLPACK: Share(0.3, 3.0),
    Kind.SETTINGS: Share(0.4, 5.0),
    Kind.INTERRUPTS: Share(0.2, 3.0),
    Kind.FORKS: Share(0.06, 1.0),
    Kind.LIMITS: Share(0.12, 2.5),
}
