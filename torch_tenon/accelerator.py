"""`torch.tenon`: devices, streams, events, memory, random numbers, autocast.

The names are those of `torch.cuda`; `torch.accelerator` reaches the same through PyTorch.
`device` is an index, "tenon:1", a torch.device or None for the current one. A device that does not
exist raises RuntimeError.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch

from torch_tenon import _C, config

Device = int | str | torch.device | None


def __getattr__(name: str) -> Any:
    if name == "profiler":  # loaded when somebody asks for it
        return importlib.import_module("torch_tenon.profiler")
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


def _index(device: Device = None) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        return _C.check_index(device)
    device = torch.device(device)
    if device.type != "tenon":
        raise ValueError(f"Expected a tenon device, but got: {device}")
    return _C.check_index(-1 if device.index is None else device.index)


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
    # A forked child can use the device: see `_after_fork` in torch_tenon/__init__.py.
    return False


def device_count() -> int:
    """The number of devices that the target has."""
    return _C.device_count()


def current_device() -> int:
    """The index of this thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes a device the current one of this thread."""
    _C.exchange_device(_index(device))


def _exchange_device(device: int) -> int:
    return _C.exchange_device(device)


def _maybe_exchange_device(device: int) -> int:
    return _C.exchange_device(device)


class device:
    """Context manager: another current device for a while."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device)
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
    index = _index(device)
    return f"{target_name()}:{index}" if device_count() > 1 else target_name()


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, target and memory of a device."""
    return DeviceProperties(get_device_name(device), target_name(), mem_get_info(device)[1])


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """The dtypes that the device supports: all of PyTorch's."""
    _index(device)
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": dtypes}


def target_name() -> str:
    """The name of the target behind the device."""
    from torch_tenon.device import target

    return target().name


def synchronize(device: Device = None) -> None:
    """Waits for everything that the device was given to do."""
    _C.synchronize(_index(device))


class blocking:
    """Context manager: each op runs at once and is waited for, for a debugger or to see which line
    fails. For all threads; nothing is recorded and nothing fuses."""

    def __enter__(self) -> None:
        self._before = _C.execute_mode()
        _C.set_execute_mode(config.EXECUTE_MODES.index("reference"))

    def __exit__(self, *exc_info: object) -> None:
        _C.set_execute_mode(self._before)


# Streams and events


class _OfTenon(type):
    """Counts PyTorch's own streams and events of a tenon device as instances.

    PyTorch's functions return those, and take no subclass of its event.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        plain = torch.Stream if issubclass(cls, torch.Stream) else torch.Event
        return isinstance(instance, plain) and instance.device.type == "tenon"


class Stream(torch.Stream, metaclass=_OfTenon):
    """A stream of a tenon device.

    A target has one in-order queue per device: streams order work as it was enqueued, which is
    stronger than what streams promise.
    """

    def __new__(  # type: ignore[misc]
        cls, device: Device = None, priority: int = 0, **kwargs: Any
    ) -> torch.Stream:
        if kwargs:  # stream_id, device_index, device_type: an existing stream
            return torch.Stream(priority=priority, **kwargs)
        return torch.Stream(f"tenon:{_index(device)}", priority=priority)


class Event(torch.Event, metaclass=_OfTenon):
    """An event of a tenon device; `enable_timing` lets `elapsed_time` tell milliseconds."""

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            "tenon",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


class StreamContext:
    """Context manager: another current stream, on its device, for a while."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.previous_device = _C.exchange_device(self.stream.device.index)
            self.previous = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        if self.stream is not None:
            set_stream(self.previous)
            _C.exchange_device(self.previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that selects a stream; None selects nothing."""
    return StreamContext(stream)


def current_stream(device: Device = None) -> torch.Stream:
    """The current stream of a device, on this thread."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that is current where no other was selected."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=_DEVICE_TYPE)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of its device, on this thread. The device stays."""
    previous = _C.current_device()
    torch.accelerator.set_stream(stream)
    _C.exchange_device(previous)


# Memory


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """The caching allocator's statistics, as `torch.accelerator.memory_stats` has them."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device: Device = None) -> int:
    """The bytes that tensors hold now."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors held at once since the last peak reset."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Device = None) -> int:
    """The bytes that the allocator holds from the target, cached ones included."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the allocator held at once since the last peak reset."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets the peaks to what is in use now."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the sums of all allocations and frees to zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Gives memory that no tensor holds back to the target, on every device."""
    torch.accelerator.empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """The free and the total bytes of a device, within its limit."""
    index = _index(device)
    limit = _C.memory_limit(index)
    return max(0, limit - memory_reserved(index)), limit


def set_memory_limit(nbytes: int | None, device: Device = None) -> None:
    """The most bytes that the allocator may hold; None for all that the target has.

    Beyond it an allocation raises torch.OutOfMemoryError. TENON_MEMORY_LIMIT sets it at start.
    """
    if nbytes is not None and nbytes < 0:
        raise ValueError(f"a memory limit cannot be negative, this one is {nbytes}")
    _C.set_memory_limit(_index(device), nbytes)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The limit as a fraction, 0 to 1, of the memory that the target has."""
    from torch_tenon.device import target

    index = _index(device)
    return min(1.0, _C.memory_limit(index) / target().total_memory(index))


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits the allocator to a fraction, 0 to 1, of the memory that the target has."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    from torch_tenon.device import target

    index = _index(device)
    set_memory_limit(int(target().total_memory(index) * fraction), index)


# Random numbers


def _generator(device: Device = None) -> torch.Generator:
    return _C.default_generator(_index(device))


class _DefaultGenerators:
    """The default generator of each device, by index."""

    def __getitem__(self, index: int) -> torch.Generator:
        return _generator(index)

    def __len__(self) -> int:
        return device_count()


default_generators = _DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator; `torch.manual_seed` does so too."""
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's generator from the system, and returns the seed."""
    return _generator().seed()


def seed_all() -> None:
    """Seeds every device's generator with one random number."""
    value = _generator(0).seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Device = "tenon") -> torch.Tensor:
    """The state of a device's generator: 16 bytes on the host, seed and offset."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tenon") -> None:
    """Sets what `get_rng_state` returned."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets what `get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Autocast


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("tenon")` takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """bfloat16 works on every target."""
    return True


class amp:
    """As `torch.cuda.amp`: `autocast` and `GradScaler` with the device filled in."""

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
