"""Generated C to machine code with the system's compiler, kept on disk between processes.

Kernels are known by the hash of their source. Those of a program that are not yet compiled go into
shared objects together: starting the compiler costs more than most kernels do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_tenon import _C, config
from torch_tenon.compiler.cache import Cache, digest

log = logging.getLogger("torch_tenon.code")

FLAGS = [
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
    "-Werror=implicit-function-declaration",
]
TEMPLATES = Path(__file__).parent / "templates"
# What kernels read beside scalar.h when they name one of its functions, in this order.
BY_NAME = {
    "fmod.h": ("fmod_f64", "remainder_f64"),
    "log.h": ("erfinv_", "lgamma_", "digamma_", "special_"),
    "erf.h": ("erfc_f32", "erfinv_"),
    "gamma.h": ("lgamma_", "digamma_", "special_"),
    "special.h": ("special_",),
}
# Most processor time of a run, in seconds: some loops keep a compiler busy for hours.
SECONDS = 60
_LIMITED = 'ulimit -S -t "$0"; exec "$@"'

_running: set[subprocess.Popen[bytes]] = set()


class CompilerMissing(RuntimeError):
    """There is no C compiler: programs run by reference."""


class CompileError(RuntimeError):
    """The compiler rejected generated source; the message says where the source was kept."""


@functools.cache
def processor() -> str:
    """What machine code for this processor depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(s for s in lines[:40] if s.startswith(("flags", "model name", "Features")))


@functools.cache
def _template(file: str) -> str:
    return (TEMPLATES / file).read_text()


def headers(source: str) -> list[str]:
    """The C that belongs before `source`: scalar.h, and what has the functions that it names."""
    named = [f for f, names in BY_NAME.items() if any(name in source for name in names)]
    return [_template(f) for f in ("scalar.h", *named)]


@functools.cache
def openmp_library() -> str | None:
    """PyTorch's own OpenMP runtime: a second one would start a second set of threads."""
    folder = Path(torch.__file__).parent / "lib"
    found = sorted(
        [*folder.glob("libgomp*.so*"), *folder.parent.parent.glob("torch.libs/libgomp*")]
    )
    return str(found[0]) if found else None


def _open(path: Path) -> ctypes.CDLL:
    """Loads an object; kernels around a product of matrices learn where the target's is."""
    library = ctypes.CDLL(str(path))
    if hasattr(library, "tenon_matmul"):
        ctypes.c_void_p.in_dll(library, "tenon_matmul").value = _C.matmul_entry()
    return library


def stop() -> None:
    """Ends the compilers that run, for a process that ends."""
    for process in list(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    _running.discard(process)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class CpuCompiler:
    """Compiles kernels and finds those compiled before.

    `command` is the compiler (gcc's or clang's command line), `cache` where objects are kept,
    `seconds` the processor time that a run may take, and one more for each of its kernels.
    Raises CompilerMissing when a kernel has to be compiled and the command does not exist.
    """

    def __init__(self, cache: Cache, command: str = "gcc", seconds: int = SECONDS) -> None:
        self.cache, self.command, self.seconds = cache, command, seconds
        self.compiled = 0
        self._functions: dict[str, int] = {}
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def version(self) -> str:
        """The compiler's version, with what its code depends on."""
        path = shutil.which(self.command)
        if path is None:
            raise CompilerMissing(
                f"no C compiler: {self.command!r} is not on the PATH. Install one (Debian and "
                "Ubuntu: apt install gcc; Fedora: dnf install gcc), or run by reference: "
                "TENON_EXECUTE=reference"
            )
        # The binary's own identity: asking it for its version would start a process.
        real = os.path.realpath(path)
        status = os.stat(real)
        return f"{real} {status.st_size} {status.st_mtime_ns} {FLAGS} {processor()}"

    def symbol(self, source: str) -> str:
        """The name of the function that `source` (with `@NAME@` for its name) becomes."""
        return "k_" + digest(source, *headers(source), self.version)[:24]

    def functions(self, sources: Sequence[str]) -> list[int]:
        """The address of each kernel, compiling those that are new."""
        with self._lock:
            names = [self.symbol(s) for s in sources]
            missing: dict[str, str] = {}
            for name, source in zip(names, sources, strict=True):
                if name not in self._functions and not self._find(name):
                    missing[name] = source
            if missing:
                self._build(missing)
            return [self._functions[n] for n in names]

    def _find(self, name: str) -> bool:
        entry = self.cache.read_json(f"{name}.json")
        if entry is None:
            return False
        return self._load(entry["object"], entry["digest"], [name])

    def _load(self, file: str, expected: str, names: Sequence[str]) -> bool:
        library = self._libraries.get(file)
        if library is None:
            data = self.cache.read(file)
            if data is None or digest(data) != expected:
                if data is not None:
                    log.warning("cache entry %s is damaged and will be rebuilt", file)
                return False
            library = self._libraries[file] = _open(self.cache.path(file))
        for name in names:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            assert address is not None
            self._functions[name] = address
        return True

    def _build(self, missing: dict[str, str]) -> None:
        # The compiler is one thread: two units for two processors once there is enough to do.
        units: list[dict[str, str]] = [{}]
        if len(missing) > 3:
            units = [{} for _ in range(min(os.cpu_count() or 1, 8, len(missing) // 2))]
        for name, source in sorted(missing.items(), key=lambda t: -len(t[1])):
            min(units, key=lambda u: sum(map(len, u.values())))[name] = source
        with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
            started = [self._start(Path(folder), k, u) for k, u in enumerate(units)]
            try:
                for unit, (process, target, text) in zip(units, started, strict=True):
                    errors = process.communicate()[1].decode(errors="replace")
                    if process not in _running:
                        raise CompileError(f"{self.command} was stopped: the process ends")
                    if process.returncode != 0:
                        raise self._failure(text, errors, process.returncode)
                    self._keep(unit, target)
            finally:  # also of an interrupt, which the compilers do not see
                for process, _, _ in started:
                    _end(process)
                    process.wait()

    def _start(
        self, folder: Path, number: int, unit: dict[str, str]
    ) -> tuple[subprocess.Popen[bytes], Path, str]:
        bodies = [source.replace("@NAME@", name) for name, source in unit.items()]
        text = "\n".join([*headers("".join(bodies)), *bodies])
        source, target = folder / f"unit{number}.c", folder / f"unit{number}.so"
        source.write_text(text)
        log.debug("%s", "\n".join(bodies))
        flags = [f for f in FLAGS if f != "-fopenmp"]
        runtime = openmp_library()
        command = [self.version.partition(" ")[0], *flags, str(source), "-o", str(target)]
        # Compile with OpenMP, link with the runtime that PyTorch has loaded already.
        command[1:1] = ["-fopenmp"] if runtime is None else ["-fopenmp", "-nostartfiles"]
        command += ["-lm"] if runtime is None else [runtime, "-lm"]
        limited = ["/bin/sh", "-c", _LIMITED, str(self.seconds + len(unit)), *command]
        # A group of its own, so that `stop` reaches what the compiler starts.
        process = subprocess.Popen(
            limited, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
        )
        _running.add(process)
        return process, target, text

    def _keep(self, unit: dict[str, str], target: Path) -> None:
        self.compiled += len(unit)
        data = target.read_bytes()
        check = digest(data)
        file = f"{check}.so"
        if self.cache.write(file, data) is None:
            self._libraries[file] = _open(target)
            self._load(file, check, list(unit))
            return
        for name in unit:
            self.cache.write_json(f"{name}.json", {"object": file, "digest": check})
        if not self._load(file, check, list(unit)):
            raise CompileError(f"{self.cache.path(file)} changed while it was being loaded")

    def _failure(self, text: str, errors: str, code: int) -> CompileError:
        handle, kept = tempfile.mkstemp(prefix="tenon-failed-", suffix=".c")
        with os.fdopen(handle, "w") as f:
            f.write(text)
        first = "\n".join(errors.splitlines()[:20])
        return CompileError(f"{self.command} failed ({code}); the source is in {kept}\n{first}")


@functools.cache
def default_compiler(directory: str | None = None) -> CpuCompiler:
    """The C compiler of the settings, over the user's cache directory."""
    folder = Path(directory or config.cache_directory()) / "kernels"
    return CpuCompiler(Cache(folder), config.CC.read() or "gcc")
