"""Running Python in a process of its own, with an environment of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# Seconds: a program that compiles takes ten times as long on a busy machine as on an idle one.
TIMEOUT = 240
REMOTE_TARGET = f"{TESTS / 'targets' / 'remote.py'}:RemoteTarget"
ASYNCHRONOUS_TARGET = f"{TESTS / 'targets' / 'asynchronous.py'}:AsynchronousTarget"

#: The command `tenon`, for `python`.
TENON = ("-c", "from torch_tenon.cli import app; app()")

# Variables that the interpreter, the C library, OpenMP or PyTorch reads when it starts, and those
# of them that a forked process reads anew. Libraries that tests import set some others.
_READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_"),
    *("DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_", "NPY_", "NUMPY_"),
)
_READ_LATER = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_TEST_DEVICES")


def run(
    code: str,
    *arguments: str,
    timeout: float = TIMEOUT,
    imports: bool = False,
    **environment: str | None,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in the tests' folder; a variable given as None is unset. As `python`."""
    env = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    command = "-c", textwrap.dedent(code), *arguments
    return python(*command, env=env, cwd=TESTS, timeout=timeout, imports=imports)


def output(code: str, *arguments: str, imports: bool = False, **environment: str | None) -> str:
    """What `code` prints; fails with its errors when it does not exit with 0."""
    done = run(code, *arguments, imports=imports, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def python(
    *command: str,
    cwd: str | Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    imports: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with a command line of its own and returns what it did, as `subprocess.run` does.

    Kills it, and raises subprocess.TimeoutExpired, when it hangs.
    """
    process = start(*command, cwd=cwd, env=env, imports=imports)
    try:
        texts = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        texts = process.communicate()
        raise subprocess.TimeoutExpired([sys.executable, *command], timeout, *texts) from None
    return subprocess.CompletedProcess([sys.executable, *command], process.returncode, *texts)


def start(
    *command: str,
    cwd: str | Path = ROOT,
    env: Mapping[str, str] | None = None,
    imports: bool = False,
) -> Process:
    """Starts Python with a command line of its own: `-c` and code, `-m` and a module, or a script.

    A process that has imported PyTorch already, and hides that, forks it: the import takes most of
    the time. With `imports`, or with variables that an interpreter, PyTorch or OpenMP reads when it
    starts, the process is a new one.
    """
    env = dict(os.environ) if env is None else dict(env)
    if not imports:
        server = _fork_server()
        if server.serves(env):
            return server.start(command, str(cwd), env)
    return subprocess.Popen(
        [sys.executable, *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Forked:
    """A process that the server forked; it has of `subprocess.Popen` what tests use."""

    def __init__(self, answers: socket.socket, outputs: tuple[int, int]) -> None:
        self._answers = answers
        self._outputs = outputs
        self.pid = int(answers.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._wait(0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, once it has ended; raises subprocess.TimeoutExpired."""
        if self._wait(timeout) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired([sys.executable], timeout)
        texts = []
        for file in self._outputs:
            with os.fdopen(file, errors="replace") as written:
                written.seek(0)
                texts.append(written.read())
        return texts[0], texts[1]

    def kill(self) -> None:
        """Ends it, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                status = self._answers.recv(64)
            except (TimeoutError, BlockingIOError):
                return None
            assert status, "the server of forks has ended"
            self.returncode = int(status)
            self._answers.close()
        return self.returncode


Process = subprocess.Popen[str] | Forked


class _ForkServer:
    """A process that forks others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment = dict(os.environ)
        self._connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        env = {**self._environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        env.pop("PYTHONPATH", None)  # which each child has its own of
        code = f"import fork_server; fork_server.main({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=env,
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def serves(self, environment: dict[str, str]) -> bool:
        """Whether what it read of its environment when it started is right for a child."""
        mine = self._environment
        changed = {k for k in mine | environment if mine.get(k) != environment.get(k)}
        return not any(k.startswith(_READ_AT_START) for k in changed.difference(_READ_LATER))

    def start(self, command: tuple[str, ...], folder: str, environment: dict[str, str]) -> Forked:
        """Forks a process that runs the command."""
        message = {"command": command, "folder": folder, "environment": environment}
        outputs = tuple(_unnamed_file() for _ in range(2))
        here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with there, self._lock:
            files = [*outputs, there.fileno()]
            socket.send_fds(self._connection, [json.dumps(message).encode()], files)
        return Forked(here, (outputs[0], outputs[1]))


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_fork_server = functools.cache(_ForkServer)
