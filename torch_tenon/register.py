"""Registers the device `tenon` with PyTorch: here everything is put together.

This module imports the others, and only `loading.py` imports this one. What a lower module needs of
a higher one it is given here.
"""

import os
import threading
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from torch_tenon import _C, config, device, log, targets
from torch_tenon.api import accelerator
from torch_tenon.builder import install as builders
from torch_tenon.builder import standby
from torch_tenon.distributed import process_groups
from torch_tenon.frontends import doors, dynamo_waits
from torch_tenon.ops import register as ops
from torch_tenon.pytorch import accelerator as accelerator_of_pytorch
from torch_tenon.pytorch import (
    data_parallel,
    dlpack,
    grad_scaler,
    printing,
    process,
    quantized,
    settings,
    sharing,
)


def register() -> None:
    """Gives PyTorch the device, with the target that TENON_TARGET names. Once; again is nothing.

    Raises what a wrong setting or a target that cannot be loaded raises.
    """
    if device.is_set():
        return
    log.apply_settings()
    threads = set(threading.enumerate())
    target = targets.load(config.TARGET.read())
    _C.set_target(target)
    own = [f"{os.path.dirname(module)}/" for module in (torch.__file__, __file__)]
    _C.set_skipped_files([*own, *targets.files_of(target)])
    if not threads.issuperset(threading.enumerate()):
        _C.note_queue_in_use()  # a thread of the target's stays with the parent of a fork
    device.set_target(target, targets.host)
    backend_registration.rename_privateuse1_backend("tenon")
    torch._register_device_module("tenon", accelerator)
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    accelerator.apply_settings()
    for name in ("profiler", "nvtx"):
        accelerator.load_later(name, _profiler)
    ops.register_ops(target)
    _C.set_trace_calls(config.TRACE_CALLS.read())
    _C.set_commit_each(config.COMMIT.read() == "each")
    _C.set_begin_trace(_begin_trace)
    builders.install(target)
    _C.set_verify(_verify)
    _C.set_execute_mode(config.EXECUTE_MODES.index(config.EXECUTE.read()))
    data_parallel.install()
    dlpack.install()
    grad_scaler.install()
    accelerator_of_pytorch.install()
    printing.install()
    quantized.install()
    process.install()
    sharing.install()
    settings.install()
    doors.install()
    dynamo_waits.install()
    process_groups.install()
    # The copy has all of the above.
    if (waiting := standby.stand_by(target)) is not None:
        _C.set_standby(waiting)


# Loaded when they are wanted: most programs want none of them.


def _profiler() -> ModuleType:
    from torch_tenon.reports import profiler

    return profiler


def _begin_trace() -> Any:
    from torch_tenon.reports.profiler import kineto

    return kineto.begin()


def _verify(*window: Any) -> None:
    from torch_tenon.testing import verify

    verify.run_twice(*window)
