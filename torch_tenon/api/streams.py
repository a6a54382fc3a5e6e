"""Streams and events of the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon import _C
from torch_tenon.api.indices import Device, index_of

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


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
    stronger than what streams promise. So a priority is kept and changes nothing.
    """

    #: What the stream was made with, the lower the sooner; 0 for one that had none.
    priority: int

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if not kwargs:
            made = super().__new__(cls, f"tenon:{index_of(device)}", priority=priority)
            _priorities[made.device_index, made.stream_id] = priority
        else:  # stream_id, device_index, device_type: an existing stream
            made = super().__new__(cls, **kwargs)
        made.priority = _priorities.get((made.device_index, made.stream_id), 0)
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: 0 and 0, as there is one queue."""
        return 0, 0


_priorities: dict[tuple[int, int], int] = {}  # of streams that were made, by device and id


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


def current_stream(device: Device = None) -> Stream:
    """The current stream of a device, on this thread."""
    index = index_of(device)
    current = torch.accelerator.current_stream(index)
    return Stream(stream_id=current.stream_id, device_index=index, device_type=_DEVICE_TYPE)


def default_stream(device: Device = None) -> Stream:
    """The stream that is current where no other was selected."""
    return Stream(stream_id=0, device_index=index_of(device), device_type=_DEVICE_TYPE)


_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of its device, on this thread. The device stays."""
    previous = _C.current_device()
    torch.accelerator.set_stream(stream)
    _C.exchange_device(previous)
