"""What comes of a window that wants a plan."""

from enum import IntEnum


class Answer(IntEnum):
    """As the core reads it (csrc/pytorch/windows/builder.cpp)."""

    NOTHING = 0  # it may ask again, or somebody else
    KEPT = 1  # a plan, or the reason why there is none, is in a file
    FAILED_FOR_NOW = 2  # it may ask again after a while
