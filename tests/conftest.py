"""The device that the suite runs on: two devices, so that no test relies on there being one."""

import os

os.environ.setdefault("TENON_DEVICES", "2")  # Read when PyTorch is imported.

import gc
import time
from collections.abc import Iterator

import pytest
import torch
from against_cpu import executing

from torch_tenon import _C
from torch_tenon.frontends.builder import plan_counts


@pytest.fixture(autouse=True)
def same_device_and_seed() -> Iterator[None]:
    """Every test starts on tenon:0 with the same random numbers, whatever the one before did."""
    torch.tenon.set_device(0)
    torch.manual_seed(0)
    yield
    torch.tenon.set_device(0)


@pytest.fixture
def compiled() -> Iterator[None]:
    """Every window runs by a plan, and waits for it."""
    with executing("compiled"):
        yield


def wait_for_plans() -> None:
    _C.commit_all()
    while plan_counts()["waiting"]:
        time.sleep(0.01)


@pytest.fixture
def no_plan_in_work() -> None:
    """What tests before this one asked for is compiled: the background is quiet."""
    wait_for_plans()


@pytest.fixture
def nothing_leaked() -> Iterator[None]:
    """The test's device memory is free at its end."""

    def allocated() -> list[int]:
        gc.collect()
        wait_for_plans()  # to make a plan takes memory for a while; calls that wait keep theirs
        return [torch.tenon.memory_allocated(i) for i in range(torch.tenon.device_count())]

    before = allocated()
    yield
    after = allocated()
    assert after == before, f"bytes allocated by device, before {before}, after {after}"


@pytest.fixture
def memory_limit() -> Iterator[None]:
    """Gives both devices their whole memory back at the end."""
    yield
    for index in range(torch.tenon.device_count()):
        torch.tenon.set_memory_limit(None, index)
