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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from torch_tenon.forked import LockOfProcess
from torch_tenon.targets.target import CompileError, CompilerMissing

# What gcc alone is told, because of faults of gcc 12. Where a branch changes nothing in what a loop
# of vectors reduces, gcc may go past the reduction then (it threads jumps). It reads the lane of
# what was reduced so far under a mask, and takes its address for one that moves on with the loop:
# the greatest of many whole numbers became what the stack held.
GCC = ("-fno-thread-jumps",)
# And for x86. `x[j / 16]` in a loop over bytes becomes wrong code where its table for a processor
# says that gathers are fast: the general table says that they are slow. And gcc chooses addresses
# for a stack that the function aligns for long vectors, and then may not align it, if short ones
# are all that is left and the caller has aligned it for those: callers promise less here.
X86_GCC = ("-mtune=generic", "-mincoming-stack-boundary=3")
_IS_X86 = platform.machine() in ("x86_64", "AMD64")
# gcc takes a fifth less time than by `-O3`, and what it makes is as fast. clang has no such model:
# it makes vectors by `-O2` as it does by `-O3`.
VECTORS = "-fvect-cost-model=dynamic"
FLAGS = (
    "-O2",
    "-ftree-vectorize",
    VECTORS,
    *GCC,
    "-march=native",
    *((*X86_GCC, "-mprefer-vector-width=512") if _IS_X86 else ()),
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
# What clang calls for parallel loops.
CLANG = Path(__file__).parent / "templates" / "clang.h"
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
_lock = LockOfProcess()  # a process is started and known, or `stop` comes first


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
                f"no C compiler: {self.command!r} is not on the PATH. Install one (anywhere: pip "
                "install 'torch-tenon[compiler]'; Debian and Ubuntu: apt install gcc; Fedora: dnf "
                "install gcc), or run by reference: TENON_EXECUTE=reference"
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
        runtime = openmp_library()
        parts = [
            *self.words,
            _file_identity(self.words[0]),
            self.version,
            *FLAGS,
            CLANG.read_text() if self.is_clang else "",
            "" if runtime is None else _file_identity(runtime),
            processor(),
        ]
        return "\n".join(parts)

    @functools.cached_property
    def is_clang(self) -> bool:
        """Whether it is clang, by whatever name: zig brings one."""
        return "clang" in self.version

    @property
    def openmp(self) -> list[str]:
        """What a unit's parallel loops are compiled with, to be gcc's calls."""
        clang = "-fopenmp-version=51", "-include", str(CLANG)
        return ["-fopenmp", *(clang if self.is_clang else ())]

    def spelled(self, flags: Iterable[str]) -> list[str]:
        """Flags as this compiler writes them: zig has names of its own for processors, and clang
        needs nothing for gcc's faults."""
        is_zig = Path(self.words[0]).name == "zig"
        found = [f for f in flags if f not in (*GCC, *X86_GCC, VECTORS) or not self.is_clang]
        return [f.replace("x86-64-v", "x86_64_v") if is_zig else f for f in found]

    @functools.cached_property
    def _options(self) -> tuple[list[str], list[str]]:
        """What stands before a source and behind it beside `FLAGS`: OpenMP by the runtime that
        PyTorch has loaded, as a second one would start a second set of threads."""
        runtime = openmp_library()
        if runtime is None:
            return ["-fopenmp"], ["-lm"]
        if not self.is_clang:
            return [*self.openmp, "-nostartfiles"], [runtime, "-lm"]
        # zig would first make the system's libraries: what they have this process has loaded.
        vectors = loaded_library("libm.so.6", "libmvec.so.1")
        before = [*self.openmp, "-nostdlib"]
        if vectors is not None and _IS_X86:
            before.append("-fveclib=libmvec")
        libraries = (loaded_library(name) for name in ("libgcc_s.so.1", "libm.so.6"))
        return before, [path for path in (runtime, vectors, *libraries) if path is not None]

    def compile(
        self, source: Path, target: Path, kernels: int, strict: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts to make a shared object of a C file; one more second for each of its kernels."""
        before, behind = self._options
        flags = [*(flag for flag in FLAGS if flag != "-w"), *STRICT] if strict else FLAGS
        command = [
            *self.words,
            *before,
            *self.spelled(flags),
            str(source),
            "-o",
            str(target),
            *behind,
        ]
        # What zig keeps of a run goes with the source; kernels are kept elsewhere.
        own = {
            "ZIG_LOCAL_CACHE_DIR": str(source.parent),
            "ZIG_GLOBAL_CACHE_DIR": str(source.parent),
        }
        return start(command, self.seconds + kernels, own)


def start(
    command: Sequence[str], seconds: int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a compiler that may take so much processor time, for `end` or `stop` to end; its
    environment is this process's, with `environment` added. An interrupt ends it, or comes when the
    caller has it.

    Raises CompileError once `stop` was called.
    """
    limited = ["/bin/sh", "-c", _LIMITED, str(max(seconds, 1)), *command]
    if threading.current_thread() is not threading.main_thread():
        return _start(limited, environment)
    return _started_by_another(lambda: _start(limited, environment))


def _started_by_another(
    begin: Callable[[], subprocess.Popen[bytes]],
) -> subprocess.Popen[bytes]:
    """What `begin` starts, in a thread of its own, which this one waits for.

    Python interrupts the main thread alone. There, an interrupt between the fork and the
    assignment would leave a compiler that nobody knows. The two threads share lists and one plain
    lock: those of Python classes, as a future's, stay taken by an interrupt on the way out.
    """
    made: list[subprocess.Popen[bytes] | BaseException] = []
    given_up: list[bool] = []
    ended = threading.Lock()  # not of forks: of these two threads alone
    ended.acquire()

    def make() -> None:
        try:
            made.append(begin())
        except BaseException as error:
            made.append(error)
        if given_up:
            _give_up(made)
        ended.release()

    try:
        threading.Thread(target=make, daemon=True).start()
        ended.acquire()
        if isinstance(made[0], BaseException):
            raise made[0]
        return made[0]
    except BaseException:
        given_up.append(True)  # before the look at `made`: one thread sees what the other wrote
        _give_up(made)
        raise


def _give_up(made: Sequence[subprocess.Popen[bytes] | BaseException]) -> None:
    for process in made:
        if not isinstance(process, BaseException):
            end(process)
            process.wait()


def _start(
    limited: Sequence[str], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
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
            env={**os.environ, **(environment or {})},
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


@functools.cache
def loaded_library(name: str, beside: str | None = None) -> str | None:
    """The path of a library that this process has loaded, or of the file `beside` it; None where
    there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name == name and path.is_absolute():
            found = path.with_name(beside or name)
            return str(found) if found.exists() else None
    return None


def _file_identity(path: str) -> str:
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {status.st_mtime_ns}"
