"""The system's C compiler as a command: which it is, its flags, and a run of it within limits."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_tenon.targets.target import CompileError, CompilerMissing

FLAGS = (
    "-O3",
    "-march=native",
    *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
    "-Werror=implicit-function-declaration",
)
# For what people write, instead of "-w": C converts pointers without a word, and whoever changes a
# function or what is declared of it is to see that they no longer fit.
STRICT = ("-Werror=incompatible-pointer-types", "-Werror=int-conversion")
# Most processor time of a run, in seconds: some loops keep a compiler busy for hours.
SECONDS = 60
_VERSION_SECONDS = 10
_ENDS = "the compiler was stopped: the process ends"
_LIMITED = 'ulimit -S -t "$0"; exec "$@"'

_running: set[subprocess.Popen[bytes]] = set()
_stopped = False
_lock = threading.Lock()  # a process is started and known, or `stop` comes first


class Toolchain:
    """A command line of gcc's or clang's kind, which may begin with a launcher (`ccache gcc -m64`).

    `seconds` is the processor time that a run may take.
    """

    def __init__(self, command: str = "gcc", seconds: int = SECONDS) -> None:
        self.command, self.seconds = command, seconds

    @functools.cached_property
    def words(self) -> list[str]:
        """The command, its program with the path by which it was found.

        A link stays one: ccache knows by its name which compiler it stands for. Raises
        CompilerMissing when there is no such program.
        """
        words = shlex.split(self.command)
        path = shutil.which(words[0]) if words else None
        if path is None:
            raise CompilerMissing(
                f"no C compiler: {self.command!r} is not on the PATH. Install one (Debian and "
                "Ubuntu: apt install gcc; Fedora: dnf install gcc), or run by reference: "
                "TENON_EXECUTE=reference"
            )
        return [path, *words[1:]]

    @functools.cached_property
    def version(self) -> str:
        """What the compiler says of its version; empty where it does not say.

        It is asked even of a program that is known: behind a launcher or a script may be another
        compiler today than yesterday.
        """
        process = start([*self.words, "--version"], min(self.seconds, _VERSION_SECONDS))
        try:
            output = process.communicate()[0]
            require_running(process)
            if process.returncode < 0 and process.returncode != -signal.SIGXCPU:
                raise CompileError(f"{self.command} --version was killed ({process.returncode})")
        finally:
            end(process)
            process.wait()
        return output.decode(errors="replace") if process.returncode == 0 else ""

    @functools.cached_property
    def identity(self) -> str:
        """What compiled code depends on beside its source. Raises CompilerMissing."""
        runtime = self.threads_runtime
        parts = [
            *self.words,
            _file_identity(self.words[0]),
            self.version,
            *FLAGS,
            "" if runtime is None else _file_identity(runtime),
            processor(),
        ]
        return "\n".join(parts)

    @functools.cached_property
    def threads_runtime(self) -> str | None:
        """The OpenMP runtime to link, None for the compiler's own.

        PyTorch has loaded gcc's already, and a second one would start a second set of threads; but
        what clang compiles calls functions that only clang's has.
        """
        return None if "clang" in self.version else openmp_library()

    def compile(
        self, source: Path, target: Path, kernels: int, strict: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts to make a shared object of a C file; one more second for each of its kernels."""
        runtime = self.threads_runtime
        # Compile with OpenMP, link with the runtime that is loaded.
        threads = ["-fopenmp"] if runtime is None else ["-fopenmp", "-nostartfiles"]
        flags = [*(flag for flag in FLAGS if flag != "-w"), *STRICT] if strict else FLAGS
        command = [*self.words, *threads, *flags, str(source), "-o", str(target)]
        command += ["-lm"] if runtime is None else [runtime, "-lm"]
        return start(command, self.seconds + kernels)

    def preprocessed(self, source: Path, macros: bool) -> str:
        """A C file as the compiler reads it, or the macros that are defined at its end. Raises
        CompilerMissing, and CompileError for a preprocessor that fails."""
        what = ["-E", "-P", *(["-dM"] if macros else [])]
        process = start([*self.words, "-fopenmp", *FLAGS, *what, str(source)], self.seconds)
        try:
            output = process.communicate()[0]
            require_running(process)
            if process.returncode != 0:
                raise CompileError(f"{self.command} -E failed ({process.returncode})")
        finally:
            end(process)
            process.wait()
        return output.decode(errors="replace")


def start(command: Sequence[str], seconds: int) -> subprocess.Popen[bytes]:
    """Starts a compiler that may take so much processor time, for `end` or `stop` to end.

    Raises CompileError once `stop` was called.
    """
    limited = ["/bin/sh", "-c", _LIMITED, str(max(seconds, 1)), *command]
    with _lock:
        if _stopped:
            raise CompileError(_ENDS)
        # A group of its own, so that ending it reaches what the compiler starts.
        process = subprocess.Popen(
            limited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        _running.add(process)
    return process


def is_of_source(errors: str) -> bool:
    """Whether a compiler that failed with these words refuses the source, or takes more processor
    time for it than it may: both would happen again. Killed or without disk space it says neither.
    """
    refuses = re.search(r"\.c:\d+(:\d+)?: error: ", errors) is not None
    return refuses or "CPU time limit exceeded" in errors


def require_running(process: subprocess.Popen[bytes]) -> None:
    """Raises CompileError for a compiler that `stop` has ended."""
    if process not in _running:
        raise CompileError(_ENDS)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a compiler, with all that it has started."""
    _running.discard(process)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def stop() -> None:
    """Ends all of them, for a process that ends; none is started any more."""
    global _stopped
    with _lock:
        _stopped = True
    for process in list(_running):
        end(process)


@functools.cache
def processor() -> str:
    """What machine code for this processor depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(s for s in lines[:40] if s.startswith(("flags", "model name", "Features")))


@functools.cache
def openmp_library() -> str | None:
    """The path of PyTorch's own OpenMP runtime, gcc's; None where it brings none."""
    folder = Path(torch.__file__).parent / "lib"
    found = sorted(
        [*folder.glob("libgomp*.so*"), *folder.parent.parent.glob("torch.libs/libgomp*")]
    )
    return str(found[0]) if found else None


def _file_identity(path: str) -> str:
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"
