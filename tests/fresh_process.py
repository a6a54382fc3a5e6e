"""Running Python in a process of its own, with an environment of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parent
REMOTE_TARGET = f"{TESTS / 'targets' / 'remote.py'}:RemoteTarget"
ASYNCHRONOUS_TARGET = f"{TESTS / 'targets' / 'asynchronous.py'}:AsynchronousTarget"


def run(
    code: str, *arguments: str, timeout: float = 120, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs `code` and returns what it did; a variable given as None is unset.

    Kills it, and raises subprocess.TimeoutExpired, when it hangs.
    """
    env = dict(os.environ)
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=env,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(code: str, *arguments: str, **environment: str | None) -> str:
    """What `code` prints; fails with its errors when it does not exit with 0."""
    done = run(code, *arguments, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()
