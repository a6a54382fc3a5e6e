"""`libtenon_rt`, or the device's core, by ctypes: the second half of include/tenon.h."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from torch_tenon.runtime.interface import MOST_DIMENSIONS, OUT_OF_MEMORY, OUT_OF_RANGE

_ERRORS = {OUT_OF_MEMORY: MemoryError, OUT_OF_RANGE: ValueError}


class ProgramError(RuntimeError):
    """What the runtime says of a file, a call or a device."""


class Status(Structure):
    _fields_ = [("code", c_int32), ("text", c_char * 1020)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("library", c_char_p),
        ("device", c_int32),
        ("threads", c_int32),
        ("weights", c_char_p),
        ("commit_each", c_int32),
        ("unchecked_weights", c_int32),
        ("products", c_void_p),
    ]


class Tensor(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("nbytes", ctypes.c_uint64),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("sizes", c_int64 * MOST_DIMENSIONS),
    ]


class TensorInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("least", c_int64 * MOST_DIMENSIONS),
        ("greatest", c_int64 * MOST_DIMENSIONS),
    ]


_STATUS: list[Any] = [POINTER(Status)]
_TENSORS = POINTER(Tensor)
# Results and arguments; those that give a code take a status as well.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tenon_open_program": (c_int32, [c_char_p, POINTER(Options), POINTER(c_void_p)]),
    "tenon_close_program": (None, [c_void_p]),
    "tenon_method_count": (c_size_t, [c_void_p]),
    "tenon_method_name": (c_char_p, [c_void_p, c_size_t]),
    "tenon_program_inputs": (c_size_t, [c_void_p, c_size_t]),
    "tenon_program_outputs": (c_size_t, [c_void_p, c_size_t]),
    "tenon_describe_input": (c_int32, [c_void_p, c_size_t, c_size_t, POINTER(TensorInfo)]),
    "tenon_describe_output": (c_int32, [c_void_p, c_size_t, c_size_t, POINTER(TensorInfo)]),
    "tenon_output_sizes": (
        c_int32,
        [c_void_p, c_size_t, _TENSORS, c_size_t, _TENSORS, c_size_t],
    ),
    "tenon_run": (c_int32, [c_void_p, c_size_t, _TENSORS, c_size_t, _TENSORS, c_size_t]),
    "tenon_reset": (c_int32, [c_void_p]),
    "tenon_program_json": (c_char_p, [c_void_p]),
}


class Library:
    """The library's functions. One that fails raises ProgramError, MemoryError or ValueError."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype = result
            function.argtypes = arguments if result is not c_int32 else arguments + _STATUS

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if _FUNCTIONS[name][0] is not c_int32:
            call = function
        else:

            def call(*arguments: Any) -> None:
                status = Status()
                code = function(*arguments, byref(status))
                if code != 0:
                    raise _ERRORS.get(code, ProgramError)(status.text.decode(errors="replace"))

        setattr(self, name, call)
        return call


@functools.cache
def library() -> Library:
    """The library of this installation. Raises OSError where it was not built."""
    place = os.environ.get("TENON_RUNTIME")
    return Library(Path(place) if place else Path(__file__).parent / "libtenon_rt.so")


@functools.cache
def library_with_pytorch() -> Library:
    """The runtime within the device's core, whose programs call PyTorch's ops. It loads PyTorch.
    Raises ImportError where that is not possible."""
    from torch_tenon import loading

    loading.register()
    core = importlib.import_module("torch_tenon._C")
    return Library(Path(str(core.__file__)))
