"""Tensors that are sent to other processes, by `torch.multiprocessing`.

Where the host reaches the device's memory, the storage moves into shared memory of the host, which
PyTorch passes on as it does that of a CPU tensor. Both processes then have one memory: what one
writes the other sees. Calls on it run at once, since nobody knows when the other looks.

On another target a tensor cannot be sent, and the error says what to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef, reduce_storage
from torch.utils.data import get_worker_info

from torch_tenon import _C
from torch_tenon.device import target


class _Pair(NamedTuple):
    """A storage of the device, and the host's in whose memory it lies. Neither is kept alive."""

    device: StorageWeakRef
    host: StorageWeakRef


_pairs: list[_Pair] = []
_lock = threading.Lock()


def install() -> None:
    """Registers how a storage of the device is sent. Called once, at import."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "tenon":
        return reduce_storage(storage)
    try:
        return _shared(storage)
    except Exception as error:
        # A worker of a DataLoader pickles on a thread of its queue, where an error would be printed
        # and the batch dropped, and the loader would wait for it for good. So the error is sent,
        # and raised where the batch is read.
        if get_worker_info() is None:
            raise
        return _raise, (error,)


def _shared(storage: torch.UntypedStorage) -> Any:
    """How a storage is made again elsewhere, as pickle has it; it lies in shared memory then.

    Raises RuntimeError where the host does not reach the memory, and what computing it raises.
    """
    if not target().host_memory:
        raise RuntimeError(
            f"a tensor of {storage.device} cannot be sent to another process: the host does not "
            f"reach the memory of the target {target().name!r}. Send x.cpu() and move it to the "
            "device there."
        )
    if storage.nbytes() == 0:
        return _rebuild_empty, (storage.device.index,)
    with _lock:
        host = _host_of(storage)
        if host is None:
            host = torch.UntypedStorage._new_shared(storage.nbytes(), device="cpu")
            _bytes_of(host).copy_(_bytes_of(storage))
            _put_into(storage, host)
    rebuild, arguments = reduce_storage(host)
    return _rebuild, (storage.device.index, rebuild, arguments)


def _rebuild(index: int, rebuild: Callable[..., torch.UntypedStorage], arguments: Any) -> Any:
    host = rebuild(*arguments)
    with _lock:
        for pair in _alive():
            if pair.host.cdata == host._cdata:
                found = _storage(pair.device)
                if found is not None:
                    return found
        storage = torch.UntypedStorage(host.nbytes(), device=f"tenon:{index}")
        _put_into(storage, host)
        return storage


def _rebuild_empty(index: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(0, device=f"tenon:{index}")


def _put_into(storage: torch.UntypedStorage, host: torch.UntypedStorage) -> None:
    _C.put_into(_bytes_of(storage), _bytes_of(host))
    _pairs.append(_Pair(StorageWeakRef(storage), StorageWeakRef(host)))


def _host_of(storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
    """The shared memory in which a storage lies; None where it lies in none."""
    for pair in _alive():
        if pair.device.cdata == storage._cdata:
            host = _storage(pair.host)
            # After `resize_` it lies elsewhere.
            if host is not None and host.data_ptr() == storage.data_ptr():
                return host
    return None


def _alive() -> list[_Pair]:
    _pairs[:] = [p for p in _pairs if not (p.device.expired() or p.host.expired())]
    return list(_pairs)


def _storage(reference: StorageWeakRef) -> torch.UntypedStorage | None:
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _raise(error: Exception) -> None:
    raise error
