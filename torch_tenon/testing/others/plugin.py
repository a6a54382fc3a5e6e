"""Within a process that runs a share of a suite: a plugin of pytest."""

import os
from pathlib import Path

import pytest

from torch_tenon.testing.others.lines import (
    BEGUN,
    FINISHED,
    LINES,
    NODES,
    SHARE,
    SUITE,
    append,
    place,
    read,
)
from torch_tenon.testing.others.suites import suite_of

_suite = suite_of(os.environ[SUITE])
_suite.begin()
_lines = Path(os.environ[LINES])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves this process's share, without what one before it has begun.

    It comes first, since TorchCTS then tries the CPU's kernel for each node that is left.
    """
    _suite.collected(config)
    begun = {line["node"] for line in read(_lines)}
    share, shares, sample = map(int, os.environ[SHARE].split("/"))
    wanted = None
    if NODES in os.environ:
        wanted = set(Path(os.environ[NODES]).read_text(encoding="utf-8").splitlines())
    kept: dict[pytest.Item, str] = {}
    for item in items:
        node = _suite.name_of(item.nodeid)
        if node is None or node in begun or (wanted is not None and node not in wanted):
            continue
        turn, rest = divmod(place(node), sample)
        if rest == 0 and turn % shares == share:
            kept[item] = node
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(kept, key=lambda item: place(kept[item]))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Before a node."""
    append(_lines, _name(nodeid), BEGUN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """After each of a node's three phases: setting up, the call, tearing down."""
    if report.when != "call" and report.passed:
        return
    text = report.longreprtext.strip().splitlines()
    errors = [line[2:] for line in text if line.startswith("E ")] or text[-1:]
    why = "" if report.passed else " ".join(line.strip() for line in errors[:4])
    append(_lines, _name(report.nodeid), report.outcome, why[:600])


def _name(node: str) -> str:
    return _suite.name_of(node) or node


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """After the last node; an interrupt or an error of the collection is no end."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, 5):
        append(_lines, "", FINISHED)
