"""What is neutral stays neutral: the stages before a target know no language and no processor.

`ir/`, `compiler/`, `frontends/` and `ops/` serve every target. They import nothing of a particular
one and do not name what only one knows, in code, text or comments. PyTorch's CPU is no target here:
its results are what every target's are held against, so "CPU" is no such name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "torch_tenon"
ROOMS = ("ir", "compiler", "frontends", "ops")
NAMES = {
    "language": r"\bC(?!\+\+)\b(?![.'])|\bOpenCL\b|\bopencl\b|\b[Tt]riton\b|\bCUDA\b|\bcuda\b",
    "processor": r"\bAVX\w*|\bSSE\d*\b|\bNEON\b|\bx86\w*|\bARM\b|\bSIMD\b|\bsimd\b|_for_cpu\b",
    "compiler": r"\bgcc\b|\bclang\b|\bnvcc\b|\bpragma\b",
    "library": r"\bOpenMP\b|\bomp_\w+|\bglibc\b|\bSLEEF\b|\boneDNN\b|\bMKL\b|\bLAPACK\b|\w*BLAS\b",
    "header": r"\b\w+\.h\b",
    "number of threads": r"\bthreads\b|\bnum_threads\b|\bget_num_threads\b",
    "target": r"targets[./]cpu\b|\bCpu[A-Z]\w+|\bcpu_backend\b",
}
# By file and what is found there: why it is right.
EXCEPTIONS = {
    ("compiler/kernel.py", "queue.h"): "the core's, whose words of a status it repeats",
    ("compiler/wire/archive.py", "value.h"): "the core's, whose numbers of kinds it repeats",
    ("compiler/wire/calls.py", "op_sizes.h"): "the core's, whose numbers of kinds it repeats",
    ("compiler/wire/plans.py", "plan.h"): "the core's, whose numbers of kinds it repeats",
    ("compiler/wire/windows.py", "threads"): "a window's own, which whoever plans it sets",
    ("frontends/eager.py", "plan_store.h"): "the core's, whose flag of a place it repeats",
    ("ops/lowerings/linear.py", "_for_cpu"): "a part of an op's name, which PyTorch has given it",
}


def sources() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def names_of_one_target(text: str) -> set[str]:
    return {m.group() for pattern in NAMES.values() for m in re.finditer(pattern, text)}


def imports(text: str) -> set[str]:
    """The modules that a source imports, wherever in it: `from a import b` may be `a.b` too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module} | {f"{module}.{a.name}" for a in node.names}
    return found


def of_one_target(module: str) -> bool:
    parts = module.split(".")
    if module.startswith("."):
        return "targets" in parts
    return parts[:2] == ["torch_tenon", "targets"] and parts[2:3] not in ([], ["target"])


@pytest.mark.slow
def test_the_rooms_know_no_target() -> None:
    found = set()
    for file, text in sources():
        modules = {m for m in imports(text) if of_one_target(m)}
        found |= {(file, name) for name in names_of_one_target(text)}
        # `from torch_tenon.targets.cpu.x import f` is told once, as the module.
        found |= {(file, m) for m in modules if not any(m.startswith(f"{n}.") for n in modules)}
    assert found - set(EXCEPTIONS) == set()
    assert set(EXCEPTIONS) - found == set(), "exceptions that nothing needs any more"


def test_what_is_looked_for_is_found() -> None:
    """The patterns see what they are for, and let pass what looks like it."""
    for text in ("in C, by", "OpenCL", "AVX2", "gcc", "omp_get_max_threads", "scalar.h", "MKL"):
        assert names_of_one_target(text), text
    for text in ("the C++ core", "_C.Plan", "PyTorch's CPU", "torch.device('cpu')", "a thread"):
        assert not names_of_one_target(text), text
    code = (
        "def f():\n  from torch_tenon.targets.cpu import target\n  import torch_tenon.targets.x.y"
    )
    assert {m for m in imports(code) if of_one_target(m)} == {
        "torch_tenon.targets.cpu",
        "torch_tenon.targets.cpu.target",
        "torch_tenon.targets.x.y",
    }
    assert not of_one_target("torch_tenon.targets.target.TargetError")


def test_dialects_of_a_family_are_siblings() -> None:
    """What the cpu and the opencl target both need is in c_family, which knows neither."""
    targets = ROOT / "targets"
    for folder, others in {
        "c_family": {"cpu", "opencl"},
        "cpu": {"opencl"},
        "opencl": {"cpu"},
    }.items():
        for path in (targets / folder).rglob("*.py"):
            found = {m.split(".")[2] for m in imports(path.read_text()) if of_one_target(m)}
            assert not found & others, path
