"""A target in a shared library of its own, behind the C interface of `include/tenon.h`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torch_tenon.targets.target import Target, TargetError

if TYPE_CHECKING:
    from torch_tenon import _C


class LibraryTarget(Target):
    """The devices of a library: their memory, a queue each and, where it has them, kernels.

    The library has no part of the compiler. A subclass may give it a `backend`, whose `compile`
    gets at kernels by `native.load`, and may link ops to its kernels by `library`.
    """

    native: _C.TargetLibrary

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the library, once and for the life of the process.

        Raises TargetError where there is no such file, where it is no library of this interface,
        or with the library's own reason.
        """
        from torch_tenon import _C

        try:
            self.native = _C.open_target_library(str(Path(path).resolve()))
        except RuntimeError as error:
            raise TargetError(str(error)) from error
        self.name, self.host_memory = self.native.name, self.native.host_memory

    def devices(self) -> int:
        """As many as the library says."""
        return self.native.devices

    def total_memory(self, device: int) -> int:
        """What the library says, in bytes."""
        return self.native.total_memory(device)

    def facts(self) -> dict[str, str]:
        """The library's lines."""
        lines = (line.partition(": ") for line in self.native.facts.splitlines())
        return {heading: fact for heading, _, fact in lines if heading}

    def allocate(self, nbytes: int, device: int) -> int:
        """A block of so many bytes, which the core has of the library without asking here."""
        return self.native.allocate(nbytes, device)

    def free(self, handle: int, device: int) -> None:
        """Gives it back."""
        self.native.free(handle, device)
