"""A device behind a library that fails, or never comes back.

The user is told what it was at, and Ctrl-C ends a wait.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fresh_process import output

sys.path.insert(0, str(Path(__file__).parent))
from c_compiler import ROOT, needs_compiler, shared_object

pytestmark = needs_compiler

# The toy, whose device is told by the environment to fail or to hang.
CHANGES = (
    ("static int32_t passed(", "static _Atomic uint64_t failed;\nstatic int32_t passed("),
    ("return ticket <= done;", 'return !getenv("TOY_HANGS") && ticket <= done;'),
    (
        "return TENON_OK; /* `commit` has done it all */",
        'while (getenv("TOY_HANGS"))\n    ;\n'
        '  return ticket == failed ? fail(status, TENON_ERROR, "a bus error") : TENON_OK;',
    ),
    (
        "  *ticket = done + (first != NULL);",
        '  if (first && getenv("TOY_FAILS"))\n    failed = done + 1;\n'
        "  *ticket = done + (first != NULL);",
    ),
    ("static _Atomic uint64_t done;", "static _Atomic uint64_t failed, done;"),
    ("static _Atomic uint64_t failed;\n", ""),
)
TARGET = """
import torch, torch_tenon
from torch_tenon.targets.library import LibraryTarget

def mm(a, b):
    out = a.new_empty(a.shape[0], b.shape[1])
    kernel = torch_tenon.target().matmul.address()
    torch_tenon.launch(kernel, [out, a.contiguous(), b.contiguous()], [*a.shape, b.shape[1]])
    return out

class Failing(LibraryTarget):
    library = {"aten::mm": mm}

    def __init__(self):
        super().__init__("LIBRARY")
        self.matmul = self.native.load(b"", "matmul")
"""
START = """
    import os, signal, threading, time
    import pytest, torch, torch_tenon
    x = torch.eye(3).to("tenon")
    assert (x @ x).tolist() == torch.eye(3).tolist()
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("failing")
    text = (ROOT / "examples" / "toy.c").read_text()
    for before, after in CHANGES:
        assert before in text
        text = text.replace(before, after, 1)
    library = shared_object(text, folder / "libfailing.so")
    (folder / "failing.py").write_text(TARGET.replace("LIBRARY", str(library)))
    return f"{folder / 'failing.py'}:Failing"


def test_a_fault_names_the_op(target: str) -> None:
    code = """
    os.environ["TOY_FAILS"] = "1"
    lost = x @ x
    del os.environ["TOY_FAILS"]
    for read in (lambda: lost.cpu(), lambda: (lost @ x).cpu()):
        with pytest.raises(RuntimeError, match="^toy: a bus error .in: aten::mm; 1 launch.$"):
            read()
    os.environ["TOY_FAILS"] = "1"
    y = torch.ones(3).to("tenon")
    del os.environ["TOY_FAILS"]
    with pytest.raises(RuntimeError, match="^toy: a bus error .in: a copy to the device.$"):
        y.cpu()
    # What the driver refuses at once.
    with pytest.raises(RuntimeError, match="takes three matrices.*.in: torch_tenon.launch; 1 l"):
        torch_tenon.launch(torch_tenon.target().matmul.address(), [x], [])
    """
    output(START + code, TENON_TARGET=target)


@pytest.mark.parametrize("read", ["y.cpu()", "y[0, 0].item()", "torch.tenon.synchronize()"])
def test_a_wait_that_hangs_is_interrupted(target: str, read: str) -> None:
    code = f"""
    os.environ["TOY_HANGS"] = "1"
    y = x @ x
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        {read}
    assert 0.1 <= time.monotonic() - start < 10
    del os.environ["TOY_HANGS"]
    assert y.tolist() == torch.eye(3).tolist()
    """
    output(START + code, TENON_TARGET=target)


def test_a_program_ends_while_its_device_hangs(target: str) -> None:
    code = """
    os.environ["TOY_HANGS"] = "1"
    y = x @ x
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        y.cpu()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    assert output(START + code, TENON_TARGET=target) == "interrupted"
