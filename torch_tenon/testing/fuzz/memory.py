"""Which bytes tensors of the CPU have."""

from __future__ import annotations

import torch


def addresses(t: torch.Tensor) -> set[int] | None:
    """The first bytes of a tensor's elements, counted from its storage's start; None where two
    elements share memory."""
    size = t.element_size()
    found = [int(t.storage_offset()) * size]
    for n, k in zip(t.shape, t.stride(), strict=True):
        found = [a + i * k * size for a in found for i in range(n)]
    unique = set(found)
    return unique if len(unique) == len(found) else None


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of the CPU share a byte."""
    if not (a.numel() and b.numel() and meets(extent(a), extent(b))):
        return False
    places = []
    for t in (a, b):
        size = t.element_size()
        starts = addresses(t)
        if starts is None:
            return True
        first = extent(t)[0]
        places.append({first + s + k for s in starts for k in range(size)})
    return bool(places[0] & places[1])


Extent = tuple[int, int]


def extent(t: torch.Tensor | torch.UntypedStorage) -> Extent:
    """Where a storage begins and ends. Two storages may have bytes in common: see DLPack."""
    storage = t.untyped_storage() if isinstance(t, torch.Tensor) else t
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def meets(a: Extent, b: Extent) -> bool:
    """Whether two extents have a byte in common."""
    return max(a[0], b[0]) < min(a[1], b[1])


def is_whole(t: torch.Tensor) -> bool:
    """Whether a tensor's elements are all of its storage."""
    found = addresses(t)
    return found is not None and len(found) * t.element_size() == t.untyped_storage().nbytes()
