"""Process groups: what serves tensors of the host serves those of the device, too.

PyTorch makes a group of one backend for each type of device. Gloo, or MPI, knows tensors of the
host; the device's backend hands it host tensors, over the same memory where there is such
(csrc/pytorch/distributed/device_backend.h). A backend of somebody else's for the device is left
alone.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any

import torch

from torch_tenon import _C
from torch_tenon.distributed.roll_call import RollCall

#: PyTorch's backends that take tensors of the host and none of the device.
_OF_THE_HOST = ("gloo", "mpi", "ucc")

_ranks: RollCall | None = None  # of the default group


def install() -> None:
    """Gives the device a backend in every process group. Called once, at import.

    PyTorch itself imports `torch.distributed`, where it was built with it.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    backends: Any = distributed_c10d.Backend
    backends.default_device_backend_map.setdefault("tenon", backends.GLOO)
    for name in _OF_THE_HOST:
        if "tenon" not in backends.backend_capability[name]:
            backends.backend_capability[name].append("tenon")
    of_pytorch = distributed_c10d._new_process_group_helper
    signature = inspect.signature(of_pytorch)

    @functools.wraps(of_pytorch)
    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        call["backend"] = _for_host_and_device(call["backend"])
        names = distributed_c10d.BackendConfig(call["backend"]).get_device_backend_map()
        if not call["global_ranks_in_group"]:
            call["store"] = _of_this_start(call["store"])
            _begin_roll_call(names, call["store"], call["group_rank"], call["group_size"])
        group, store = of_pytorch(**call)
        if type(group) is distributed_c10d.ProcessGroup:
            _serve_device(group, names)
        return group, store

    distributed_c10d._new_process_group_helper = _new_process_group_helper


def _for_host_and_device(backend: Any) -> Any:
    # Where none is named, PyTorch takes the one of the machine's accelerator and for that alone.
    from torch.distributed.distributed_c10d import Backend

    if backend != Backend.UNDEFINED or torch._C._get_accelerator().type != "tenon":
        return backend
    of_host = Backend.default_device_backend_map["cpu"]
    of_device = Backend.default_device_backend_map["tenon"]
    return Backend(of_host if of_host == of_device else f"cpu:{of_host},tenon:{of_device}")


def _of_this_start(store: Any) -> Any:
    """The store that a default group begins with, without what ranks before a restart left there.

    By default torchrun keeps its store when it starts the ranks of its machine again, and Gloo
    would take the addresses of those that are gone for those of the new ones.
    """
    from torch._C._distributed_c10d import PrefixStore

    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # Several machines may count differently.
    if not kept or count == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return store
    return PrefixStore(f"restart {count}", store)


def _begin_roll_call(names: dict[str, Any], store: Any, rank: int, size: int) -> None:
    from torch._C._distributed_c10d import PrefixStore

    global _ranks
    _ranks = None
    # MPI has no store and tells the rank later, and a group that is a fake has no other ranks.
    if not {"mpi", "fake"} & set(names.values()):
        _ranks = RollCall(PrefixStore("tenon", store), rank, size)
        _explain_what_nobody_catches()


def _explain_what_nobody_catches() -> None:
    """Names the rank that is gone below the traceback of an error of Gloo's own, that a collective
    on tensors of the host ended with, such as a barrier."""
    print_error = sys.excepthook
    if getattr(print_error, "explains_lost_ranks", False):
        return

    @functools.wraps(print_error)
    def explain(kind: Any, error: BaseException, traceback: Any) -> None:
        print_error(kind, error, traceback)
        of_gloo = issubclass(kind, RuntimeError) and "gloo" in str(error)
        if of_gloo and not issubclass(kind, torch.distributed.DistBackendError) and _ranks:
            print(_ranks.explain(), file=sys.stderr)

    explain.explains_lost_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = explain


def _serve_device(group: Any, names: dict[str, Any]) -> None:
    """Has the device served by the host's backend; `names` are the group's, by type of device."""
    from torch.distributed.distributed_c10d import Backend, ProcessGroup

    served_as = "tenon" if "tenon" in names else "cpu"
    if served_as not in names or (served_as == "tenon" and names["tenon"] not in _OF_THE_HOST):
        return
    if _ranks is not None:
        _ranks.meet()
    kinds = ProcessGroup.BackendType
    # A group has one backend of each kind.
    taken = {Backend.backend_type_map[name] for name in names.values()}
    kind = kinds.UNDEFINED if kinds.CUSTOM in taken else kinds.CUSTOM
    of_host = group._get_backend(torch.device(served_as))
    options = getattr(of_host, "options", None)
    if options is not None and not options.global_ranks_in_group:
        # Gloo looks for them when a group is split, and finds none in a second default group.
        options.global_ranks_in_group = list(range(group.size()))
    backend = _C.DeviceBackend(of_host, None if _ranks is None else _ranks.explain)
    name, description = group.group_name, group.group_desc
    group._register_backend(torch.device("tenon"), kind, backend)
    group._set_group_name(name)  # a group has these from one of its backends
    group._set_group_desc(description)
