"""What a suite by others is to the processes that run it."""

import importlib
from pathlib import Path
from typing import Protocol

import pytest


class Suite(Protocol):
    """The module of a suite, whose nodes are pytest's: tests with their parameters."""

    # Of the nodes that pass on the CPU, how many have to pass on the device, by mode.
    BARS: dict[str, float]
    # Whether a node that is skipped on the device is one that does not pass.
    SKIPPED_COUNTS: bool

    def prepare(self) -> None:
        """Makes the suite ready, before processes run it."""

    def environment(self, device: str) -> dict[str, str]:
        """Variables of a process that runs it on `device`, "cpu" or "tenon"."""

    def arguments(self, scratch: Path, device: str, nodes: list[str] | None) -> list[str]:
        """pytest's arguments for these nodes, all by default; the process starts in `scratch`."""

    def begin(self) -> None:
        """Called in such a process before the suite is imported."""

    def collected(self, config: pytest.Config) -> None:
        """Called in such a process once the nodes are known."""

    def name_of(self, node: str) -> str | None:
        """A node's name, the same on each device; None where it is not for any device."""


def suite_of(name: str) -> Suite:
    """The suite of that name, a module of this folder."""
    found: Suite = importlib.import_module(f"torch_tenon.testing.others.{name}")
    return found
