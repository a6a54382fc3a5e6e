"""Tests of the libraries that people train with; each is skipped where its library is not there."""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_state_of_accelerate(monkeypatch: pytest.MonkeyPatch):
    """A test begins and ends without the choices that accelerate keeps for a process."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    _forget()
    yield
    _forget()


def _forget() -> None:
    try:
        from accelerate.state import AcceleratorState, GradientState
    except ImportError:
        return
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def one_batch_after_another() -> torch.utils.data.Dataset:
    """Sixteen inputs of eight numbers, and a class for each."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
