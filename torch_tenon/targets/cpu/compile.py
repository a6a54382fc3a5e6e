"""C to a function of this process, by the system's compiler; kept on disk between processes."""

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch_tenon import config, log
from torch_tenon.targets.target import CompileError, TargetError

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


def compile_c(source: str, entry: str) -> CpuKernel:
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
