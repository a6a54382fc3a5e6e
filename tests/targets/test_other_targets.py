"""The suite on targets whose memory the host cannot reach: nothing may rely on that.

Here runs a part of it, the same one every time; `make test-targets` runs all.
"""

import os

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, REMOTE_TARGET, output, python

TARGETS = {"remote": REMOTE_TARGET, "asynchronous": ASYNCHRONOUS_TARGET}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_the_host_cannot_reach_the_memory(name: str) -> None:
    """Without this, the rest of this file would say nothing."""
    code = """
        import ctypes, os, signal, torch
        x = torch.ones(3, device="tenon")
        address = x.data_ptr()
        child = os.fork()
        if child == 0:
            ctypes.string_at(address, 1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(torch.tenon.target_name(), os.WTERMSIG(status) == signal.SIGSEGV)
    """
    assert output(code, TENON_TARGET=TARGETS[name]) == f"{name} True"


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.timeout(660)
@pytest.mark.parametrize("name", TARGETS)
def test_a_part_of_the_suite(name: str) -> None:
    command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sample", "1/32"
    done = python(*command, env={**os.environ, "TENON_TARGET": TARGETS[name]}, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
