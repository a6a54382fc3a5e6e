"""The suite again, on a target whose memory the host cannot reach: nothing may rely on that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import REMOTE_TARGET, TESTS, output

FILES = (
    "test_autocast.py",
    "test_autograd.py",
    "test_bad_input.py",
    "test_copies.py",
    "test_jit.py",
    "test_layouts.py",
    "test_memory.py",
    "test_models.py",
    "test_optimizers.py",
    "test_random.py",
    "test_serialization.py",
    "test_views.py",
)


def test_the_host_cannot_reach_the_memory() -> None:
    """Without this, the rest of this file would say nothing."""
    code = """
        import ctypes, os, signal, torch
        x = torch.ones(3, device="tenon")
        child = os.fork()
        if child == 0:
            ctypes.string_at(x.data_ptr(), 1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(torch.tenon.target_name(), os.WTERMSIG(status) == signal.SIGSEGV)
    """
    assert output(code, TENON_TARGET=REMOTE_TARGET) == "remote True"


@pytest.mark.parametrize("file", FILES)
def test_on_a_target_without_host_memory(file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / file)],
        env={**os.environ, "TENON_TARGET": REMOTE_TARGET},
        cwd=Path(TESTS).parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
