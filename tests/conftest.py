"""The device that the suite runs on: two devices, so that no test relies on there being one."""

import os

os.environ.setdefault("TENON_DEVICES", "2")  # Read when PyTorch is imported.

import gc
from collections.abc import Iterator

import pytest
import torch
from against_cpu import executing

from torch_tenon import _C


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


@pytest.fixture
def nothing_leaked() -> Iterator[None]:
    """The test's device memory is free at its end."""

    def allocated() -> list[int]:
        gc.collect()
        _C.commit_all()  # calls that wait keep what they read
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
