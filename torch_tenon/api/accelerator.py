"""`torch.tenon`: devices, streams, events, memory, random numbers, autocast.

The names are those of `torch.cuda` and `torch.mps` (docs/surface.md has those that are not here,
with the reason); `torch.accelerator` reaches the same through PyTorch.
`device` is an index, "tenon:1", a torch.device or None for the current one. A device that does not
exist raises RuntimeError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import OutOfMemoryError as OutOfMemoryError

from torch_tenon import _C, config
from torch_tenon.api import legacy_tensors
from torch_tenon.api import memory as memory
from torch_tenon.api import random as random
from torch_tenon.api import streams as streams
from torch_tenon.api.indices import Device, index_of
from torch_tenon.api.memory import *  # noqa: F403
from torch_tenon.api.memory import mem_get_info
from torch_tenon.api.random import *  # noqa: F403
from torch_tenon.api.streams import *  # noqa: F403
from torch_tenon.api.streams import current_stream
from torch_tenon.device import target as _target

_loaded_later: dict[str, Callable[[], ModuleType]] = {}


def load_later(name: str, load: Callable[[], ModuleType]) -> None:
    """Gives `torch.tenon` a module that is loaded when somebody asks for it."""
    _loaded_later[name] = load


def __getattr__(name: str) -> Any:
    if name in _loaded_later:
        return _loaded_later[name]()
    if name in legacy_tensors.NAMES:
        return globals().setdefault(name, legacy_tensors.legacy_tensor_type(name))
    raise AttributeError(f"module 'torch.tenon' has no attribute {name!r}")


class DeviceProperties:
    """What is known of a device: its `name`, `target` and `total_memory` in bytes."""

    def __init__(self, name: str, target: str, total_memory: int) -> None:
        self.name = name
        self.target = target
        self.total_memory = total_memory

    def __repr__(self) -> str:
        return (
            f"DeviceProperties(name={self.name!r}, target={self.target!r}, "
            f"total_memory={self.total_memory >> 20}MiB)"
        )


# Devices


def is_available() -> bool:
    """Is there a device to work with?"""
    return device_count() > 0


_initialized = True  # torch.utils.checkpoint keeps the random state only of a device that is


def is_initialized() -> bool:
    """The device needs no initialisation."""
    return True


def init() -> None:
    """Does nothing: importing torch has made the device ready."""


def _lazy_init() -> None:
    # PyTorch calls it before the program's first tensor of the device. Where nothing is known yet,
    # this starts the builder, which loads the compiler while the program gets ready.
    _C.read_known_calls()


def _is_in_bad_fork() -> bool:
    # A forked child can use the device: see `_after_fork` in torch_tenon/pytorch/process.py.
    return False


def device_count() -> int:
    """The number of devices that the target has."""
    return _C.device_count()


def current_device() -> int:
    """The index of this thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes a device the current one of this thread."""
    _C.exchange_device(index_of(device))


def _exchange_device(device: int) -> int:
    return _C.exchange_device(device)


def _maybe_exchange_device(device: int) -> int:
    return _C.exchange_device(device)


class device:
    """Context manager: another current device for a while."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor as the current one; nothing for other tensors."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "tenon" else None)


def get_device_name(device: Device = None) -> str:
    """The target's name, and the device's number where there are several."""
    index = index_of(device)
    return f"{target_name()}:{index}" if device_count() > 1 else target_name()


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, target and memory of a device."""
    return DeviceProperties(get_device_name(device), target_name(), mem_get_info(device)[1])


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """The dtypes that the device supports: all of PyTorch's."""
    index_of(device)
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": dtypes}


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether kernels of a device reach the memory of another: where it is the host's."""
    return index_of(device) != index_of(peer_device) and _target().host_memory


def target_name() -> str:
    """The name of the target behind the device."""
    return _target().name


def synchronize(device: Device = None) -> None:
    """Waits for everything that the device was given to do."""
    _C.synchronize(index_of(device))


class blocking:
    """Context manager: each op runs at once and is waited for, for a debugger or to see which line
    fails. For all threads; nothing is recorded and nothing fuses."""

    def __enter__(self) -> None:
        self._before = _C.execute_mode()
        _C.set_execute_mode(config.EXECUTE_MODES.index("reference"))

    def __exit__(self, *exc_info: object) -> None:
        _C.set_execute_mode(self._before)


# Graphs


def is_current_stream_capturing() -> bool:
    """Whether this thread captures a graph (`torch.accelerator.Graph`) on its current stream."""
    return current_stream().is_capturing()


# Random numbers


class _DefaultGenerators:
    """The default generator of each device, by index."""

    def __getitem__(self, index: int) -> torch.Generator:
        return _C.default_generator(_C.check_index(index))

    def __len__(self) -> int:
        return device_count()


default_generators = _DefaultGenerators()


# What the device can compute

has_half = True


def is_tf32_supported() -> bool:
    """TensorFloat-32 is a format of CUDA's; products of float32 are computed in float32."""
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("tenon")` takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 works on every target."""
    return True


class amp:
    """As `torch.cuda.amp`: what `torch.amp` has, with the device filled in."""

    custom_fwd = staticmethod(functools.partial(torch.amp.custom_fwd, device_type="tenon"))
    custom_bwd = staticmethod(functools.partial(torch.amp.custom_bwd, device_type="tenon"))

    @staticmethod
    def amp_definitely_not_available() -> bool:
        """Whether autocast has no device to work on."""
        return not is_available()

    class autocast(torch.amp.autocast_mode.autocast):
        """`torch.autocast("tenon", ...)`."""

        def __init__(
            self,
            enabled: bool = True,
            dtype: torch.dtype = torch.bfloat16,
            cache_enabled: bool = True,
        ) -> None:
            super().__init__("tenon", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    class GradScaler(torch.amp.GradScaler):
        """`torch.amp.GradScaler("tenon", ...)`."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__("tenon", **kwargs)


def apply_settings() -> None:
    """Applies what the environment sets for devices (see `torch_tenon.config`)."""
    limit = config.MEMORY_LIMIT.read()
    if limit is not None:
        for index in range(device_count()):
            _C.set_memory_limit(index, limit)
