"""Comparing what the device gives with what the CPU gives."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from torch_tenon import _C, config


@contextmanager
def executing(mode: str) -> Iterator[None]:
    """Windows run as `TENON_EXECUTE=mode` has them run."""
    before = _C.execute_mode()
    _C.set_execute_mode(config.EXECUTE_MODES.index(mode))
    try:
        yield
    finally:
        _C.set_execute_mode(before)


def to_cpu(value: Any) -> Any:
    """`value` with every tensor in it, nested however deep, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: to_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_cpu(item) for item in value]
    return value


def assert_same(on_device: Any, on_cpu: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Same values, dtypes, sizes and structure; bit by bit unless a tolerance is given."""
    torch.testing.assert_close(
        to_cpu(on_device), to_cpu(on_cpu), rtol=rtol, atol=atol, equal_nan=True
    )


def assert_on_device(value: Any) -> None:
    """Every tensor in `value` is on a tenon device."""
    if isinstance(value, torch.Tensor):
        assert value.device.type == "tenon", value.device
    elif isinstance(value, Mapping):
        for item in value.values():
            assert_on_device(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            assert_on_device(item)


def same_on_both(
    compute: Callable[[torch.device], Any], rtol: float = 0.0, atol: float = 0.0
) -> None:
    """`compute(device)` gives the same on tenon as on the CPU, and gives it on tenon."""
    expected = compute(torch.device("cpu"))
    actual = compute(torch.device("tenon"))
    assert_on_device(actual)
    assert_same(actual, expected, rtol, atol)


def same_error_on_both(compute: Callable[[torch.device], Any]) -> str:
    """`compute(device)` raises the CPU's exception on tenon, with its message; returns that.

    Where the CPU's message names the CPU, the device's names the device. What is wrong with numbers
    may show when they are read, in a test process that recorded the same call before; the message
    says then which call it was.
    """
    with pytest.raises(Exception) as on_cpu:
        compute(torch.device("cpu"))
    with pytest.raises(Exception) as on_device:
        for x in tree_leaves(compute(torch.device("tenon"))):
            _ = x.cpu() if isinstance(x, torch.Tensor) else x
    assert on_device.type is on_cpu.type
    first_line = str(on_device.value).partition("\n")[0]
    first_line = re.sub(r" \(in ([\w:.]+, recorded before|the kernel of [^()]+)\)$", "", first_line)
    assert first_line.replace("tenon:0", "cpu") == str(on_cpu.value).partition("\n")[0]
    return first_line
