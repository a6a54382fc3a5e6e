"""Registers the device `tenon` with PyTorch."""

from typing import Any

import torch
from torch.utils import backend_registration

from torch_tenon import config
from torch_tenon.compiler.backend import Backend
from torch_tenon.targets import host, load
from torch_tenon.targets.target import Target

_target: Target | None = None


def target() -> Target:
    """The target behind the device."""
    assert _target is not None, "the device is registered when torch_tenon is imported"
    return _target


def backend(device: torch.device | None = None) -> Backend | None:
    """The part of the compiler that is the target's, None where it has none or there is no target.

    For a `device` that is not of the target's, the host: what compiles for the host.
    """
    if device is not None and device.type != "tenon":
        return host().backend
    return None if _target is None else _target.backend


def register() -> None:
    """Gives PyTorch the device, with the target that TENON_TARGET names. Once; again is nothing.

    Raises what a wrong setting or a target that cannot be loaded raises.
    """
    global _target
    if _target is not None:
        return
    from torch_tenon import (
        _C,
        accelerator,
        data_parallel,
        dlpack,
        grad_scaler,
        log,
        printing,
        process,
        pytorch_accelerator,
        quantized,
        settings,
    )
    from torch_tenon.builder import install as builders
    from torch_tenon.distributed import process_groups
    from torch_tenon.frontends import doors, dynamo_waits
    from torch_tenon.ops import register as ops

    log.apply_settings()
    found = load(config.TARGET.read())
    _C.set_target(found)
    _target = found
    backend_registration.rename_privateuse1_backend("tenon")
    torch._register_device_module("tenon", accelerator)
    backend_registration.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    accelerator.apply_settings()
    ops.register_ops(found)
    _C.set_trace_calls(config.TRACE_CALLS.read())
    _C.set_commit_each(config.COMMIT.read() == "each")
    _C.set_measure_ceilings(_ceilings)
    builders.install(found)
    _C.set_verify(_verify)
    _C.set_execute_mode(config.EXECUTE_MODES.index(config.EXECUTE.read()))
    data_parallel.install()
    dlpack.install()
    grad_scaler.install()
    pytorch_accelerator.install()
    printing.install()
    quantized.install()
    process.install()
    settings.install()
    doors.install()
    dynamo_waits.install()
    process_groups.install()


def _ceilings() -> tuple[float, float]:
    from torch_tenon.profiler.ceilings import ceilings

    return ceilings()


def _verify(*window: Any) -> None:
    from torch_tenon.testing import verify

    verify.run_twice(*window)
