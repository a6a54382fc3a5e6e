"""What multiplies in place of a program's own code: a library that a load asks for."""

from __future__ import annotations

import ctypes
import functools
import json
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from torch_tenon.config import PRODUCTS
from torch_tenon.runtime.interface import INTERFACE
from torch_tenon.runtime.library import Status

OWN = PRODUCTS.default()


class Table(Structure):
    """tenon_products_t of include/tenon.h."""

    _fields_ = [
        ("size", c_size_t),
        ("context", c_void_p),
        ("multiply", c_void_p),
        ("facts", CFUNCTYPE(c_char_p, c_void_p)),
        ("close", CFUNCTYPE(None, c_void_p)),
    ]


class Products:
    """What multiplies for one program. `table` is the address that the program is opened with,
    None where its own code does; `why` says why it does although a library was asked for."""

    def __init__(self, asked: str | None) -> None:
        self.table: int | None = None
        self.why: str | None = None
        self._at: Any = None
        name = asked or PRODUCTS.read()
        if name == OWN:
            return
        found = POINTER(Table)()
        status = Status()
        try:
            opened = _library(_path(name)).tenon_open_products
        except (OSError, AttributeError) as error:
            self.why = str(error)
            return
        if opened(INTERFACE, byref(found), byref(status)) != 0:
            self.why = status.text.decode(errors="replace")
            return
        self._at = found
        self.table = ctypes.cast(found, c_void_p).value

    def facts(self) -> Any:
        """What `Program.report` says of it: None, a text that says why not, or the library's own
        dictionary."""
        if self._at is None:
            return self.why
        table = self._at.contents
        return json.loads(table.facts(table.context))

    def close(self) -> None:
        """The program is closed."""
        if self._at is not None:
            table = self._at.contents
            self._at = self.table = None
            table.close(table.context)


def _path(name: str) -> str:
    """The path of a library: what was given, or this package's own of that name."""
    if name.isidentifier():
        return str(Path(__file__).parents[1] / "targets" / "cpu" / f"libtenon_{name}.so")
    return name


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.tenon_open_products.restype = c_int32
    library.tenon_open_products.argtypes = [ctypes.c_uint32, c_void_p, POINTER(Status)]
    return library
