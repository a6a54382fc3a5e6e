"""Which loops gcc makes vector code of: the cast of a comparison, once, kept it from that."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions, default_compiler
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.compiler import FLAGS, HEADER, processor

Function = Callable[[torch.Tensor], torch.Tensor]

VECTORS: dict[str, Function] = {
    "a sum": lambda x: x + 1,
    "a mask as float32": lambda x: (x > 0).float(),
    "a mask as float64": lambda x: (x > 0).double(),
    "a mask times a number": lambda x: x * (x > 0),
    "a share": lambda x: (x > 0).float().mean(1),
    "a random number": lambda x: torch.rand_like(x),
    "exp": torch.exp,
    "power": lambda x: torch.pow(x, x.flip(0)),
    "tanh": torch.tanh,
    "gelu": F.gelu,
}
# By the C library's functions over vectors.
OVER_VECTORS: dict[str, Function] = {
    "sine": torch.sin,
    "sine of float64": lambda x: torch.sin(x.double()),
    "exp of float64": lambda x: torch.exp(x.double()),
    "angle": lambda x: torch.atan2(x, x.flip(0)),
    "hyperbolic sine": torch.sinh,
}


def scalar_loops(function: Function, folder: Path) -> list[str]:
    """The heads of the loops `#pragma omp simd` that did not become vector code."""
    graph = make_fx(lambda x: [function(x)], decomposition_table=decompositions())(
        torch.randn(64, 256)
    )
    head = HEADER.read_text()
    gcc = default_compiler().version.partition(" ")[0]
    found = []
    for number, source in enumerate(Plan(build(graph).program).sources):
        file = folder / f"kernel{number}.c"
        file.write_text(head + source.replace("@NAME@", "kernel"))
        flags = [*FLAGS, "-fopt-info-vec-optimized", "-o", str(folder / "kernel.so"), "-lm"]
        command = [gcc, str(file), *flags]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        vectors = {int(n) for n in re.findall(r"\.c:(\d+):\d+: optimized: loop vectorized", said)}
        lines = file.read_text().splitlines()
        start = head.count("\n")
        scalar = []
        for k in range(start, len(lines)):
            if lines[k].strip().startswith("#pragma omp simd"):
                depth, end = 0, k + 1
                while end == k + 1 or depth:
                    depth += lines[end].count("{") - lines[end].count("}")
                    end += 1
                if not vectors & set(range(k + 1, end + 1)):
                    scalar.append(lines[k + 1].strip())
        # A loop may be known by the line of a function that it calls, which is a loop itself.
        found += scalar[len([n for n in vectors if n <= start]) :]
    return found


@pytest.fixture(autouse=True)
def gcc_with_vectors() -> None:
    if platform.machine() != "x86_64" or "avx2" not in processor():
        pytest.skip("only known of AVX2")
    if "gcc" not in default_compiler().version:
        pytest.skip("only gcc says what it does")


@pytest.mark.parametrize("name", VECTORS)
def test_loops_become_vector_code(name: str, tmp_path: Path) -> None:
    assert scalar_loops(VECTORS[name], tmp_path) == []


@pytest.mark.parametrize("name", OVER_VECTORS)
def test_functions_over_vectors(name: str, tmp_path: Path) -> None:
    kind, version = platform.libc_ver()
    if kind != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("this C library has no functions over vectors")
    assert scalar_loops(OVER_VECTORS[name], tmp_path) == []
