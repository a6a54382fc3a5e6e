"""Running Python in a process of its own, with an environment of its own."""

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
from pathlib import Path

TESTS = Path(__file__).parent
REMOTE_TARGET = f"{TESTS / 'targets' / 'remote.py'}:RemoteTarget"
ASYNCHRONOUS_TARGET = f"{TESTS / 'targets' / 'asynchronous.py'}:AsynchronousTarget"


def run(
    code: str,
    *arguments: str,
    timeout: float = 120,
    imports: bool = False,
    **environment: str | None,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` and returns what it did; a variable given as None is unset.

    PyTorch is there from the start, as its import takes most of the time; with `imports`, or with
    variables that PyTorch reads, the code imports it itself.
    Kills it, and raises subprocess.TimeoutExpired, when it hangs.
    """
    env = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    code = textwrap.dedent(code)
    if not imports and all(name.startswith("TENON_") for name in environment):
        return _fork_server().run(code, arguments, env, timeout)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(code: str, *arguments: str, imports: bool = False, **environment: str | None) -> str:
    """What `code` prints; fails with its errors when it does not exit with 0."""
    done = run(code, *arguments, imports=imports, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


class _ForkServer:
    """A process that forks one child after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(TESTS / "fork_server.py"), str(theirs.fileno())],
                env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, code: str, arguments: tuple[str, ...], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        message = {"code": code, "arguments": arguments, "environment": environment}
        with self._lock, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            files = [out.fileno(), errors.fileno()]
            socket.send_fds(self._connection, [json.dumps(message).encode()], files)
            pid = self._number(None)
            try:
                status: int | None = self._number(timeout)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._number(None)
                status = None
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        command = [sys.executable, "-c", code, *arguments]
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout, *texts)
        return subprocess.CompletedProcess(command, status, *texts)

    def _number(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        return int(self._connection.recv(64))


_fork_server = functools.cache(_ForkServer)
