"""The cpu target: the host's processor and memory, kernels in C, compiled by the system's compiler.

A command buffer runs on the thread that commits it. Without a C compiler everything works but
hand-written kernels; `tenon doctor` says which package brings one.
"""

import ctypes
import hashlib
import mmap
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch_tenon import config, log
from torch_tenon.targets.target import CompileError, Event, Kernel, Target, TargetError

_LIBC = ctypes.CDLL(None)
_HUGE_PAGE = ctypes.c_size_t(2 << 20)
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=gnu11")


class CpuKernel:
    """A C function in a shared object."""

    def __init__(self, path: Path, entry: str) -> None:
        self.entry = entry
        self.path = path
        self._library = ctypes.CDLL(str(path))
        try:
            self._function = self._library[entry]
        except AttributeError:
            raise CompileError(
                f"the source of {path} compiles but defines no function {entry!r}; "
                f"define `void {entry}(...)` without `static`"
            ) from None
        self._function.restype = None

    def __call__(self, args: Sequence[int | float | bool]) -> None:
        """Calls it: integers and pointers as 64 bits, floating-point numbers as double."""
        self._function(
            *(
                ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)
                for value in args
            )
        )


class CpuEvent:
    """Passed by the time that `commit` returns."""

    def done(self) -> bool:
        """True."""
        return True


class CpuQueue:
    """Runs a command buffer on the thread that commits it. Each thread fills its own."""

    def __init__(self) -> None:
        self._open = threading.local()

    def encode(self, kernel: Kernel, args: Sequence[int | float | bool]) -> None:
        """Adds a call to the open command buffer of this thread."""
        assert isinstance(kernel, CpuKernel)
        if not hasattr(self._open, "calls"):
            self._open.calls = []
        self._open.calls.append((kernel, tuple(args)))

    def commit(self) -> CpuEvent:
        """Runs the open command buffer of this thread."""
        calls, self._open.calls = getattr(self._open, "calls", []), []
        for kernel, args in calls:
            kernel(args)
        return CpuEvent()

    def wait(self, event: Event) -> None:
        """Nothing to wait for."""


@cache
def compiler_version(compiler: str) -> str:
    """The first line of `compiler --version`. Raises TargetError when it does not run."""
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TargetError(f"the C compiler {compiler} does not run: {error}") from error
    return done.stdout.partition("\n")[0]


@cache
def processor() -> str:
    """What the code of `-march=native` depends on: the processor's model and its features."""
    wanted = ("model name", "flags")
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))


class CpuTarget(Target):
    """The host as a device, or as several of them (TENON_DEVICES)."""

    name = "cpu"
    host_memory = True
    dialect = "c"

    def __init__(self) -> None:
        self._devices = config.DEVICES.read()
        self._queues = [CpuQueue() for _ in range(self._devices)]

    def devices(self) -> int:
        """As many as TENON_DEVICES says."""
        return self._devices

    def total_memory(self, device: int) -> int:
        """The host's memory in bytes."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def allocate(self, nbytes: int, device: int) -> int:
        """Memory of the host in huge pages, where the system has some.

        They take fewer faults and translations, and lie evenly in the caches.
        """
        found = ctypes.c_void_p()
        size = ctypes.c_size_t(nbytes)
        if _LIBC.posix_memalign(ctypes.byref(found), _HUGE_PAGE, size):
            return 0
        if hasattr(mmap, "MADV_HUGEPAGE"):  # advice: what cannot be had is not missed
            _LIBC.madvise(found, size, mmap.MADV_HUGEPAGE)
        return found.value or 0

    def free(self, pointer: int, device: int) -> None:
        """Gives it back to the system."""
        _LIBC.free(ctypes.c_void_p(pointer))

    def compile(self, source: str, entry: str) -> CpuKernel:
        """Compiles C, or finds what an earlier process compiled from the same source.

        The shared object is keyed by source, compiler, flags and processor, and written whole or
        not at all. Raises TargetError without a compiler, CompileError with the compiler's words.
        """
        compiler = config.CC.read()
        if compiler is None:
            raise TargetError(
                f"no C compiler to compile the kernel {entry!r} with: install one "
                "(on Debian: apt-get install gcc) or name one in TENON_CC"
            )
        key = "\0".join((source, compiler_version(compiler), *FLAGS, processor()))
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        directory = Path(config.cache_directory())
        built = directory / f"{digest}.so"
        if built.exists():
            try:
                return CpuKernel(built, entry)
            except OSError:  # a damaged entry is built again
                built.unlink(missing_ok=True)
        # Its source stays beside it: for a debugger, and for who reads the message of a failure.
        written = directory / f"{digest}.c"
        written.write_text(source)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            fresh = Path(scratch) / "kernel.so"
            command = [compiler, *FLAGS, str(written), "-o", str(fresh), "-lm"]
            log.stage("target").debug("compile %s: %s", entry, " ".join(command))
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise CompileError(
                    f"{compiler} cannot compile the kernel {entry!r}; its source is {written}:\n"
                    f"{done.stderr}"
                )
            fresh.rename(built)
        return CpuKernel(built, entry)

    def queue(self, device: int) -> CpuQueue:
        """The device's queue."""
        return self._queues[device]
