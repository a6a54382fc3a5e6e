"""The builder's plans are made without Dynamo, and whoever needs it there still gets it."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_decompositions_do_not_load_it() -> None:
    script = """
        import sys, torch
        from torch_tenon.builder import dynamo
        dynamo.leave_out()
        x = torch.randn(8, device="meta")
        torch._decomp.decompositions.leaky_relu_backward(x, x, 0.1, False)
        print("torch._dynamo.eval_frame" in sys.modules)
    """
    assert run(script) == "False"


def test_who_asks_for_more_of_it_gets_it() -> None:
    script = """
        import torch
        from torch_tenon.builder import dynamo
        dynamo.leave_out()
        from torch._dynamo.utils import counters
        import torch._dynamo
        f = torch.compile(lambda x: x + 1, backend="eager")
        print(f(torch.zeros(2)).tolist(), torch._dynamo.config.suppress_errors)
    """
    assert run(script) == "[1.0, 1.0] False"
