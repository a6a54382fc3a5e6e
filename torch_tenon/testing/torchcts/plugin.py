"""Within a process that runs a share of the suite: a plugin of pytest."""

import os
from pathlib import Path

import pytest

from torch_tenon.testing.torchcts import suite
from torch_tenon.testing.torchcts.lines import (
    BEGUN,
    FINISHED,
    LINES,
    NODES,
    SHARE,
    append,
    place,
    read,
)

suite.take_newer_for_newest()
suite.look_at_no_stack()

_lines = Path(os.environ[LINES])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves this process's share, without what one before it has begun.

    It comes first, since the suite then tries the CPU's kernel for each node that is left.
    """
    for module in config.pluginmanager.get_plugins():
        # The suite writes all results down after each node.
        if hasattr(module, "flush_results_to_disk"):
            module._ARTIFACT_WRITES_ENABLED = False
    begun = {line["node"] for line in read(_lines)}
    share, shares, sample = map(int, os.environ[SHARE].split("/"))
    wanted = None
    if NODES in os.environ:
        wanted = set(Path(os.environ[NODES]).read_text(encoding="utf-8").splitlines())
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        node = item.nodeid
        turn, rest = divmod(place(node), sample)
        mine = rest == 0 and turn % shares == share and node not in begun
        (kept if mine and (wanted is None or node in wanted) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = sorted(kept, key=lambda item: place(item.nodeid))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Before a node."""
    append(_lines, nodeid, BEGUN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """After each of a node's three phases: setting up, the call, tearing down."""
    if report.when != "call" and report.passed:
        return
    text = report.longreprtext.strip().splitlines()
    errors = [line[2:] for line in text if line.startswith("E ")] or text[-1:]
    why = "" if report.passed else " ".join(line.strip() for line in errors[:4])
    append(_lines, report.nodeid, report.outcome, why[:600])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """After the last node; an interrupt or an error of the collection is no end."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, 5):
        append(_lines, "", FINISHED)
