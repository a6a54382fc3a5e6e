"""A target's library by ctypes: every function of `include/tenon.h`, without the core."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

INTERFACE = 1
OK, ERROR, OUT_OF_MEMORY, UNSUPPORTED, DEVICE_LOST, DAMAGED, OUT_OF_RANGE = range(7)


class Status(ctypes.Structure):
    _fields_ = [("code", c_int32), ("text", ctypes.c_char * 1020)]


class Place(ctypes.Structure):
    _fields_ = [("handle", c_uint64), ("offset", c_uint64)]


class End(ctypes.Structure):
    _fields_ = [("host", c_void_p), ("place", Place)]


class Launch(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kernel", c_uint64),
        ("places", ctypes.POINTER(Place)),
        ("place_count", c_size_t),
        ("numbers", ctypes.POINTER(c_int64)),
        ("number_count", c_size_t),
        ("status", ctypes.POINTER(c_int64)),
        ("status_count", c_size_t),
        ("next", c_int32),
        ("grid", ctypes.POINTER(c_int64)),
        ("grid_count", c_size_t),
        ("group", ctypes.POINTER(c_int64)),
        ("group_count", c_size_t),
        ("scratch", c_uint64),
        ("nbytes", ctypes.POINTER(c_size_t)),
    ]


Work = ctypes.CFUNCTYPE(None, c_void_p, ctypes.POINTER(c_void_p))


def _function(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, c_void_p, *arguments)


_status = ctypes.POINTER(Status)
_number = ctypes.POINTER(c_uint64)
_places = ctypes.POINTER(Place)
_end = ctypes.POINTER(End)

FIELDS: list[tuple[str, Any]] = [
    ("size", c_size_t),
    ("name", c_char_p),
    ("facts", c_char_p),
    ("context", c_void_p),
    ("devices", c_int32),
    ("host_memory", c_int32),
    ("total_memory", _function(c_uint64, c_int32)),
    ("allocate", _function(c_int32, c_int32, c_uint64, _number, _status)),
    ("release", _function(None, c_int32, c_uint64)),
    ("copy", _function(c_int32, c_int32, _end, _end, c_uint64, _status)),
    ("commit", _function(c_int32, c_int32, _number, _status)),
    ("passed", _function(c_int32, c_int32, c_uint64)),
    ("wait", _function(c_int32, c_int32, c_uint64, _status)),
    ("seconds", _function(c_double, c_int32, c_uint64)),
    ("forget", _function(None, c_int32, c_uint64)),
    ("launch", _function(c_int32, c_int32, ctypes.POINTER(Launch), _status)),
    ("load", _function(c_int32, c_void_p, c_uint64, c_char_p, _number, _status)),
    ("unload", _function(None, c_uint64)),
    ("call", _function(c_int32, c_int32, Work, c_void_p, _places, c_size_t, _status)),
    ("copy_queues", c_int32),
    ("copy_on", _function(c_int32, c_int32, c_int32, _end, _end, c_uint64, _status)),
    ("commit_on", _function(c_int32, c_int32, c_int32, _number, _status)),
    ("after", _function(c_int32, c_int32, c_int32, c_uint64, _status)),
    ("started", _function(c_double, c_int32, c_uint64)),
    ("begin_recording", _function(c_int32, c_int32, _number, _status)),
    ("end_recording", _function(c_int32, c_int32, c_uint64, _status)),
    ("replay", _function(c_int32, c_int32, c_uint64, _status)),
    ("free_recording", _function(None, c_int32, c_uint64)),
    ("copy_from", _function(c_int32, c_int32, Place, c_int32, Place, c_uint64, _status)),
]


class Functions(ctypes.Structure):
    _fields_ = FIELDS


class Failed(Exception):
    """What a function failed with."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.text.decode())
        self.code = status.code


class Library:
    """A library that is open; its functions raise Failed."""

    def __init__(self, path: Path | str, interface: int = INTERFACE) -> None:
        self.shared = ctypes.CDLL(str(path))
        self.shared.tenon_target.restype = ctypes.POINTER(Functions)
        self.shared.tenon_target.argtypes = [c_uint32, _status]
        status = Status()
        found = self.shared.tenon_target(interface, status)
        if not found:
            raise Failed(status)
        self.functions: Functions = found.contents
        self.context = self.functions.context
        self._kept: list[Any] = []  # what the library may still call or read

    def _checked(self, name: str, *arguments: Any) -> None:
        status = Status()
        code = getattr(self.functions, name)(self.context, *arguments, status)
        if code != OK:
            assert code == status.code
            raise Failed(status)

    def total_memory(self, device: int = 0) -> int:
        return self.functions.total_memory(self.context, device)

    def allocate(self, nbytes: int, device: int = 0) -> int:
        handle = c_uint64()
        self._checked("allocate", device, nbytes, handle)
        return handle.value

    def release(self, handle: int, device: int = 0) -> None:
        self.functions.release(self.context, device, handle)

    def copy(
        self,
        to: int | tuple[int, int],
        source: int | tuple[int, int],
        nbytes: int,
        device: int = 0,
        queue: int = 0,
    ) -> None:
        """Of a place, which is a pair, or of an address of the host."""
        ends = [
            End(None, Place(*end)) if isinstance(end, tuple) else End(end, Place())
            for end in (to, source)
        ]
        if queue == 0:
            self._checked("copy", device, *ends, nbytes)
        else:
            self._checked("copy_on", device, queue, *ends, nbytes)

    def commit(self, device: int = 0, queue: int = 0) -> int:
        ticket = c_uint64()
        if queue == 0:
            self._checked("commit", device, ticket)
        else:
            self._checked("commit_on", device, queue, ticket)
        return ticket.value

    def after(self, ticket: int, device: int = 0, queue: int = 0) -> None:
        self._checked("after", device, queue, ticket)

    def started(self, ticket: int, device: int = 0) -> float:
        return self.functions.started(self.context, device, ticket)

    def passed(self, ticket: int, device: int = 0) -> bool:
        return self.functions.passed(self.context, device, ticket) != 0

    def wait(self, ticket: int, device: int = 0) -> None:
        self._checked("wait", device, ticket)

    def seconds(self, ticket: int, device: int = 0) -> float:
        return self.functions.seconds(self.context, device, ticket)

    def forget(self, ticket: int, device: int = 0) -> None:
        self.functions.forget(self.context, device, ticket)

    def launch(
        self,
        kernel: int,
        places: Sequence[tuple[int, int]],
        numbers: Sequence[int],
        status: Any = None,
        device: int = 0,
    ) -> None:
        """`status` is an array of ctypes', where the kernel has checks."""
        launch = Launch(ctypes.sizeof(Launch), kernel)
        launch.places = (Place * len(places))(*(Place(*p) for p in places))
        launch.numbers = (c_int64 * len(numbers))(*numbers)
        launch.place_count, launch.number_count = len(places), len(numbers)
        if status is not None:
            launch.status = ctypes.cast(status, ctypes.POINTER(c_int64))
            launch.status_count = len(status)
        self._checked("launch", device, launch)

    def begin_recording(self, device: int = 0) -> int:
        recording = c_uint64()
        self._checked("begin_recording", device, recording)
        return recording.value

    def end_recording(self, recording: int, device: int = 0) -> None:
        self._checked("end_recording", device, recording)

    def replay(self, recording: int, device: int = 0) -> None:
        self._checked("replay", device, recording)

    def free_recording(self, recording: int, device: int = 0) -> None:
        self.functions.free_recording(self.context, device, recording)

    def load(self, code: bytes, entry: str) -> int:
        kernel = c_uint64()
        self._checked("load", code, len(code), entry.encode(), kernel)
        return kernel.value

    def unload(self, kernel: int) -> None:
        self.functions.unload(self.context, kernel)

    def call(
        self,
        work: Callable[[list[int | None]], None],
        places: Sequence[tuple[int, int]],
        device: int = 0,
    ) -> None:
        function = Work(lambda data, addresses: work([addresses[k] for k in range(len(places))]))
        self._kept.append(function)
        array = (Place * len(places))(*(Place(*p) for p in places))
        self._checked("call", device, function, None, array, len(places))

    def write(self, handle: int, data: bytes, device: int = 0) -> None:
        """Copies bytes to the start of a block, and waits."""
        self.copy((handle, 0), ctypes.cast(c_char_p(data), c_void_p).value or 0, len(data), device)
        self.wait(self.commit(device), device)

    def read(self, handle: int, nbytes: int, offset: int = 0, device: int = 0) -> bytes:
        """The bytes of a block, once all that is enqueued has run."""
        found = ctypes.create_string_buffer(nbytes)
        self.copy(ctypes.addressof(found), (handle, offset), nbytes, device)
        self.wait(self.commit(device), device)
        return found.raw
