"""A plugin of pytest's that keeps on disk what came of each test, also of one that crashes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

RECORD = "TENON_TEST_RECORD"  # the file to write
ONLY = "TENON_TEST_ONLY"  # a file with the tests to run, if not all


def read(record: Path) -> dict[str, str]:
    """How each test ended, by its id."""
    return dict(json.loads(line) for line in record.read_text().splitlines())


def _write(test: str, outcome: str) -> None:
    with Path(os.environ[RECORD]).open("a") as record:
        record.write(json.dumps([test, outcome]) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has run, in a process that crashed since, and what is not asked for."""
    done = read(Path(os.environ[RECORD]))
    only = os.environ[ONLY] and Path(os.environ[ONLY]).read_text().splitlines()
    chosen = [i for i in items if i.nodeid not in done and (not only or i.nodeid in only)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test counts as crashed until its outcome is written."""
    _write(item.nodeid, "crashed")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes the outcome of a test's body, or what went wrong before and after it."""
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome)
