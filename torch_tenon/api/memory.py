"""Memory of the device: what tensors hold, what the allocator holds, limits, and text of both."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from typing_extensions import deprecated

from torch_tenon import _C
from torch_tenon.api.indices import Device, index_of
from torch_tenon.api.memory_snapshots import (
    _dump_snapshot as _dump_snapshot,
)
from torch_tenon.api.memory_snapshots import (
    _record_memory_history as _record_memory_history,
)
from torch_tenon.api.memory_snapshots import (
    _snapshot as _snapshot,
)
from torch_tenon.api.memory_snapshots import memory_snapshot
from torch_tenon.device import target

__all__ = [
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "current_allocated_memory",
    "driver_allocated_memory",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "recommended_max_memory",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_memory_limit",
    "set_per_process_memory_fraction",
]


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """The caching allocator's statistics, as `torch.accelerator.memory_stats` has them."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: Device = None) -> int:
    """The bytes that tensors hold now."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors held at once since the last peak reset."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """The bytes that the allocator holds from the target, cached ones included."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the allocator held at once since the last peak reset."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets the peaks to what is in use now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the sums of all allocations and frees to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Gives memory that no tensor holds back to the target, on every device."""
    torch.accelerator.empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """The free and the total bytes of a device, within its limit."""
    index = index_of(device)
    limit = _C.memory_limit(index)
    return max(0, limit - memory_reserved(index)), limit


def set_memory_limit(nbytes: int | None, device: Device = None) -> None:
    """The most bytes that the allocator may hold; None for all that the target has.

    Beyond it an allocation raises torch.OutOfMemoryError. TENON_MEMORY_LIMIT sets it at start.
    Raises ValueError for a negative limit.
    """
    if nbytes is not None and nbytes < 0:
        raise ValueError(f"a memory limit cannot be negative, this one is {nbytes}")
    _C.set_memory_limit(index_of(device), nbytes)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The limit as a fraction, 0 to 1, of the memory that the target has."""
    index = index_of(device)
    return min(1.0, _C.memory_limit(index) / target().total_memory(index))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the allocator to a fraction, 0 to 1, of the memory that the target has.

    Raises ValueError for another number.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = index_of(device)
    set_memory_limit(int(target().total_memory(index) * fraction), index)


# Names of torch.mps


def current_allocated_memory() -> int:
    """The bytes that tensors of the current device hold now."""
    return memory_allocated()


def driver_allocated_memory() -> int:
    """The bytes that the allocator holds from the target on the current device."""
    return memory_reserved()


def recommended_max_memory() -> int:
    """The most bytes that the current device may hold: its limit, or what the target has."""
    return _C.memory_limit(_C.current_device())


# Names that torch.cuda keeps for older programs


@deprecated("`memory_cached` has been renamed to `memory_reserved`", category=FutureWarning)
def memory_cached(device: Device = None) -> int:
    """As `memory_reserved`."""
    return memory_reserved(device)


@deprecated("`max_memory_cached` has been renamed to `max_memory_reserved`", category=FutureWarning)
def max_memory_cached(device: Device = None) -> int:
    """As `max_memory_reserved`."""
    return max_memory_reserved(device)


@deprecated("use `reset_peak_memory_stats`, which resets all peaks", category=FutureWarning)
def reset_max_memory_allocated(device: Device = None) -> None:
    """As `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


@deprecated("use `reset_peak_memory_stats`, which resets all peaks", category=FutureWarning)
def reset_max_memory_cached(device: Device = None) -> None:
    """As `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


# The allocator


def get_allocator_backend() -> str:
    """The allocator's kind, as `torch.cuda` names it: there is one, of torch-tenon's own."""
    return "native"


_raw_blocks: dict[int, torch.Tensor] = {}


def caching_allocator_alloc(
    size: int, device: Device = None, stream: torch.Stream | int | None = None
) -> int:
    """Memory of `size` bytes, for code that is not PyTorch's; returns its address on the device.

    `stream` changes nothing, since a device has one queue. `caching_allocator_delete` frees it.
    Raises ValueError for a size below 1, torch.OutOfMemoryError beyond the limit.
    """
    if size < 1:
        raise ValueError(f"a block of memory has at least 1 byte, not {size}")
    block = torch.empty(size, dtype=torch.uint8, device=f"tenon:{index_of(device)}")
    _C.share_memory(block)  # an address without memory behind it is of no use
    address = block.data_ptr()
    _raw_blocks[address] = block
    return address


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what `caching_allocator_alloc` returned. Raises ValueError for another address."""
    if _raw_blocks.pop(mem_ptr, None) is None:
        raise ValueError(f"no memory was allocated by caching_allocator_alloc at {mem_ptr:#x}")


# Statistics as text


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """`memory_stats`, with a dictionary for each part of a name between its dots."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *groups, last = name.split(".")
        group = nested
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = value
    return nested


_ROWS = {  # what the table calls a statistic
    "allocated_bytes": "allocated memory",
    "active_bytes": "active memory",
    "requested_bytes": "requested memory",
    "reserved_bytes": "reserved memory",
    "inactive_split_bytes": "cached memory",
    "allocation": "allocations",
    "active": "active allocations",
    "segment": "reserved segments",
    "inactive_split": "cached blocks",
}
_ROWS_WITHOUT_POOLS = {
    "oversize_allocations": "oversize allocations",
    "oversize_segments": "oversize segments",
}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The statistics of a device as a table: what is in use, the peak, and the sums of what was
    allocated and freed; `abbreviated` leaves out the pools of large and of small blocks."""
    from torch_tenon.compiler.explain import format_bytes  # loaded when somebody asks for text

    index = index_of(device)
    stats = memory_stats(index)
    heads = "".join(f"{head:>13}" for head in ("now", "peak", "allocated", "freed"))
    lines = [
        f"memory of tenon:{index}, limit {format_bytes(_C.memory_limit(index))}, "
        f"out of memory {stats['num_ooms']} times, retried {stats['num_alloc_retries']} times",
        f"{'':24}{heads}",
    ]

    def add(statistic: str, title: str) -> None:
        text = format_bytes if "bytes" in statistic else str
        figures = (stats[f"{statistic}.{x}"] for x in ("current", "peak", "allocated", "freed"))
        lines.append(f"{title:24}" + "".join(f"{text(figure):>13}" for figure in figures))

    for name, title in _ROWS.items():
        add(f"{name}.all", title)
        if not abbreviated:
            add(f"{name}.large_pool", "  large pool")
            add(f"{name}.small_pool", "  small pool")
    for name, title in _ROWS_WITHOUT_POOLS.items():
        add(name, title)
    return "\n".join([*lines, ""])
