"""OpenCL C to binaries of the driver's, kept between processes, and to kernels of the library's.

Kernels are known by the hash of their source and of all else that their code depends on.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_tenon import _C, config
from torch_tenon.compiler.backend import KernelFile, PackedCode, PackedKernel
from torch_tenon.compiler.bounded import BoundedCache
from torch_tenon.compiler.cache import Cache, digest
from torch_tenon.compiler.handwritten import Code
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.forked import LockOfProcess
from torch_tenon.targets.c_family import headers as shared
from torch_tenon.targets.opencl.handwritten import elements_of
from torch_tenon.targets.target import CompileError

log = logging.getLogger("torch_tenon.code")

TEMPLATES = Path(__file__).parent / "templates"
OPTIONS = ["-w", "-cl-std=CL1.2"]
PRECISE = "-cl-fp32-correctly-rounded-divide-sqrt"  # where the device can: a flag of its own


def headers(source: str) -> list[str]:
    """What belongs before `source`."""
    products = {"product.h": "MULTIPLY(", "tile.h": "MULTIPLY_TILE("}
    return shared.headers(source, TEMPLATES, [f for f, name in products.items() if name in source])


# That are found without a look at the cache on disk. PoCL keeps 2 MB for each kernel: plans own
# theirs, and a builder's go with its plans.
MOST_KERNELS = 256


class Handle(int):
    """What a launch takes a kernel by, while this, or a plan that was made of it, is there."""

    owner: _C.LibraryKernel
    file: KernelFile | None  # where other processes find it

    @classmethod
    def of(cls, owner: _C.LibraryKernel, file: KernelFile | None) -> Handle:
        """That of a kernel."""
        made = cls(owner.address())
        made.owner, made.file = owner, file
        return made


class OpenCLCompiler:
    """Builds programs for the device of a context; raises CompileError with the build log."""

    def __init__(self, cl: Any, context: Any, native: _C.TargetLibrary) -> None:
        self.cl, self.context, self.native = cl, context, native
        self.device = context.devices[0]
        precise = self.device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self.options = [*OPTIONS, *([PRECISE] if precise else [])]
        self._handles = BoundedCache[str, Handle]("compiled kernels", MOST_KERNELS)
        self._by_hand: dict[str, Handle] = {}  # whoever has such a handle keeps nothing else
        self._lock = LockOfProcess()

    @functools.cached_property
    def cache(self) -> Cache:
        """Where binaries are kept."""
        return Cache(Path(config.cache_directory()) / "kernels")

    @functools.cached_property
    def identity(self) -> str:
        """What binaries depend on beside their source."""
        d = self.device
        facts = (d.platform.version, d.name, d.version, d.driver_version, *self.options)
        return "\n".join(facts)

    def name(self, kernel: Kernel) -> str:
        """The function of a kernel, which tells the queue how to launch it."""
        found = digest(kernel.source, *headers(kernel.source), self.identity)
        local = re.search(r"reqd_work_group_size\((\d+)", kernel.source)
        assert local is not None
        return f"k_{found[:24]}_{local[1]}_{len(kernel.checks)}"

    def handles(self, kernels: Sequence[Kernel]) -> list[int]:
        """What the queue launches each kernel by. Those that are new are built as one program:
        reading the headers takes longer than most kernels do."""
        with self._lock:
            names = [self.name(k) for k in kernels]
            missing = {}
            found: dict[str, Handle] = {}
            for name, k in zip(names, kernels, strict=True):
                handle = self._by_hand.get(name) or self._handles.get(name) or self._find(name)
                if handle is not None:
                    found[name] = handle
                elif k.code is None:
                    missing[name] = k.source
                else:  # who wrote it names functions as he likes: a program of its own
                    code = self._compiled_by_hand(k.code, k.source.replace("@NAME@", name))
                    found |= self._keep(code, [name])
                if k.code is not None:
                    self._by_hand[name] = found[name]
            if missing:
                found |= self._build(missing)
            return [found[name] for name in names]

    def files(self, kernels: Sequence[Kernel]) -> list[KernelFile] | None:
        """Where compiled kernels are kept; None if one of them is not."""
        names = [self.name(k) for k in kernels]
        found = [self._by_hand.get(name) or self._handles.get(name) for name in names]
        files = [f.file for f in found if f is not None and f.file is not None]
        return files if len(files) == len(names) else None

    def packed(self, kernels: Sequence[Kernel]) -> tuple[list[PackedCode], list[PackedKernel]]:
        """The kernels as sources, and where in these each of them is."""
        named = {self.name(k): k for k in kernels}
        bodies = {name: k.source.replace("@NAME@", name) for name, k in named.items()}
        generated = [bodies[name] for name, k in named.items() if k.code is None]
        text = "\n".join([*headers("".join(generated)), *generated])
        codes, place = [PackedCode("source", text.encode())] if generated else [], {}
        for name, k in named.items():
            place[name] = 0
            if k.code is not None:
                place[name] = len(codes)
                codes.append(PackedCode("source", bodies[name].encode()))
        return codes, [PackedKernel(place[self.name(k)], self.name(k)) for k in kernels]

    def _find(self, name: str) -> Handle | None:
        """The kernel, if it was built before, and its file is whole and for this device."""
        entry = self.cache.read_json(f"{name}.json")
        if entry is None:
            return None
        file = entry["file"]
        try:
            data = self.cache.read(file)
            if data is None or digest(data) != entry["digest"]:
                raise OSError("it is not there" if data is None else "it is damaged")
            return self._enter(name, data, self._file(name, file, data))
        except (OSError, RuntimeError) as error:
            log.warning("cache entry %s will be rebuilt: %s", file, error)
            return None

    def _build(self, sources: Mapping[str, str]) -> dict[str, Handle]:
        bodies = [source.replace("@NAME@", name) for name, source in sources.items()]
        text = "\n".join([*headers("".join(bodies)), *bodies])
        return self._keep(self._binary(self._compiled(text), text), sources)

    def _keep(self, data: bytes, names: Iterable[str]) -> dict[str, Handle]:
        file = f"{digest(data)}.bin"
        kept = self.cache.write(file, data) is not None
        for name in names if kept else ():
            self.cache.write_json(f"{name}.json", {"file": file, "digest": digest(data)})
        return {
            name: self._enter(name, data, self._file(name, file, data) if kept else None)
            for name in names
        }

    def _compiled_by_hand(self, code: Code, text: str) -> bytes:
        """The binary of one kernel that somebody wrote. Raises CompileError where that points to
        other elements than is declared, which the driver takes for granted."""
        program = self._compiled(text, ["-cl-kernel-arg-info"])
        kernel = self.cl.Kernel(program, code.entry)
        for k, wanted in enumerate(elements_of(code)):
            taken = kernel.get_arg_info(k, self.cl.kernel_arg_info.TYPE_NAME)
            if wanted is not None and taken.replace(" ", "") not in (f"{wanted}*", "void*"):
                raise CompileError(
                    f"argument {k + 1} of {code.entry} is a {taken}, and the declared one "
                    f"{wanted}*",
                    is_of_source=True,
                )
        return self._binary(program, text)

    def _binary(self, program: Any, text: str) -> bytes:
        """What the library loads: the driver's binary or, where it gives none, the text."""
        return program.get_info(self.cl.program_info.BINARIES)[0] or text.encode()

    def _compiled(self, text: str, options: Sequence[str] = ()) -> Any:
        program = self.cl.Program(self.context, text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self.cl.CompilerWarning)
                return program.build([*self.options, *options], cache_dir=False)
        except self.cl.Error as error:
            handle, kept = tempfile.mkstemp(prefix="tenon-failed-", suffix=".cl")
            with os.fdopen(handle, "w") as f:
                f.write(text)
            words = "\n".join(str(error).splitlines()[:20])
            raise CompileError(
                f"the OpenCL compiler of {self.device.name} failed; "
                f"the source is in {kept}\n{words}",
                is_of_source="error:" in words,
            ) from None

    def _enter(self, name: str, data: bytes, file: KernelFile | None) -> Handle:
        made = Handle.of(self.native.load(data, name), file)
        self._handles.put(name, made)
        return made

    def _file(self, name: str, file: str, data: bytes) -> KernelFile:
        return KernelFile(f"{self.cache.directory.name}/{file}", name, _C.checksum(data))
