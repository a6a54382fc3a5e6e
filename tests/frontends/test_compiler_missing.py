"""Where the machine compiles nothing, torch.compile works all the same, and says why it is slow."""

import os
import sys

import pytest
from fresh_process import run

SCRIPT = """
    import torch
    x = torch.randn(4, 5)
    got = torch.compile(lambda x: x.exp().sum(0) + 1, backend="tenon")(x.to("tenon"))
    torch.testing.assert_close(got.cpu(), x.exp().sum(0) + 1)
    print("right")
"""


def run_script(before="", **environment):
    done = run(before + SCRIPT, **environment)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr
    return done.stderr


@pytest.mark.slow
def test_without_a_compiler_graphs_run_by_reference(tmp_path):
    path = os.path.dirname(sys.executable)  # where no compiler is
    errors = run_script(
        "\n    import sys; sys.modules['ziglang'] = None",
        PATH=path,
        TENON_CC=None,
        TENON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert "runs by reference: no C compiler" in errors and "apt install gcc" in errors


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_its_source(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho cannot go on >&2\nexit 3\n")
    broken.chmod(0o755)
    errors = run_script(TENON_CC=str(broken), TENON_CACHE_DIR=str(tmp_path / "cache"))
    assert "runs by reference" in errors and "cannot go on" in errors
    kept = errors.partition("the source is in ")[2].split()[0]
    with open(kept) as source:
        assert "exp" in source.read()
