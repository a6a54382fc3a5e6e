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
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import Output, build
from torch_tenon.targets.c_family.headers import TEMPLATES
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.targets.cpu.compiler import headers
from torch_tenon.targets.cpu.toolchain import FLAGS
from torch_tenon.targets.cpu.toolchain import processor as features

Function = Callable[[torch.Tensor], torch.Tensor]


def averaged(x: torch.Tensor) -> torch.Tensor:
    """A step of Adam in bfloat16, whose numbers are read: `lerp` chooses by a comparison of one."""
    old, gradient, square, state = x.view(torch.bfloat16).view(4, -1).unbind()
    numbers = x.view(torch.float64)[0]
    mean = torch.lerp(old, gradient, 0.1)
    square = square * numbers[0] + 0.001 * gradient * gradient
    return state * numbers[1] + numbers[2] * mean / (square.sqrt() / numbers[3] + 1e-8)


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
    "fmod": lambda x: torch.fmod(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "hypot of float64": lambda x: torch.hypot(x.double(), x.double().flip(0)),
    "the next number": lambda x: torch.nextafter(x, x.flip(0)),
    "a product of complex numbers": lambda x: torch.view_as_real(
        torch.view_as_complex(x.view(4096, 128, 2)) * (2 + 1j)
    ),
    "their copies": lambda x: torch.view_as_complex(x.view(4096, 128, 2)).clone(),
    "their absolute values": lambda x: (torch.view_as_complex(x.view(4096, 128, 2)) * 2j).abs(),
    "remainder": lambda x: torch.remainder(x, x.flip(0)),
    "erfc": torch.erfc,
    "inverse of erf": torch.erfinv,
    "inverse of erf of float64": lambda x: torch.erfinv(x.double()),
    "lgamma": torch.lgamma,
    "normal quantile": torch.special.ndtri,
    "i0": torch.special.i0,
    "i1e": torch.special.i1e,
    "a long integer as float32": lambda x: (x.double() * 1e12).long().float() + 1,
    "a mask that several loops need": lambda x: ((x > 0) * x.exp()).tanh() * (x > 0),
    "a choice that is one for all": averaged,
    "rows turned round": lambda x: x.roll(3, 1),
    "a stencil that turns round": lambda x: x.roll(1, 0) + x.roll(-1, 0) + x.roll((1, 2), (0, 1)),
    "rows beside themselves": lambda x: x.repeat(1, 3),
    "any": lambda x: (x * 10).long().any(1),
    "all finite": lambda x: x.isfinite().all(),
    "the greatest of columns": lambda x: x.amax(0) * 2,
    "the least of columns of float64": lambda x: x.double().amin(0) * 2,
    "softmax of columns": lambda x: x.softmax(0),
    "columns of bfloat16 added up": lambda x: x.view(torch.bfloat16)[:4001].sum(0),
    "columns of bytes added up": lambda x: x.view(torch.uint8)[:4001].float().mean(0),
    "columns with NaN added up": lambda x: x[:4001].nansum(0),
    "the greatest of bools": lambda x: (x > 0).amax(1),
    "hardswish of bfloat16": lambda x: F.hardswish(x.bfloat16()),
    "maximum of bfloat16": lambda x: torch.maximum(x.bfloat16(), x.flip(0).bfloat16()),
    "maximum of float16": lambda x: torch.maximum(x.half(), x.flip(0).half()),
    "numbers for NaN in float16": lambda x: x.half().nan_to_num(),
    "a quotient of integers": lambda x: (x * 1000).int() // x.flip(0).int().abs().add(1),
    "elu": F.elu,
    "logit": torch.logit,
    "cross entropy of shares": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "bfloat16 as int8": lambda x: (x.bfloat16() / 0.1).round().clamp(-128, 127).to(torch.int8),
}
# By the C library's functions over vectors.
OVER_VECTORS: dict[str, Function] = {
    "sine": torch.sin,
    "sine of float64": lambda x: torch.sin(x.double()),
    "exp of float64": lambda x: torch.exp(x.double()),
    "angle": lambda x: torch.atan2(x, x.flip(0)),
    "hyperbolic sine": torch.sinh,
    "trigamma": lambda x: torch.polygamma(1, x),
    "trigamma of float64": lambda x: torch.polygamma(1, x.double()),
    "k0": torch.special.modified_bessel_k0,
    "k1 times exp": torch.special.scaled_modified_bessel_k1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "fmod of float64": lambda x: torch.fmod(x.double(), x.double().flip(0)),
}
# Of processors with shorter vectors, and fewer instructions for them.
PROCESSORS: dict[str, list[str]] = {"this": [], "AVX2": ["-mno-avx512f"]}

FMOD = (TEMPLATES / "fmod.h").read_text()


def scalar_loops(function: Function, folder: Path, processor: str) -> list[str]:
    """The heads of the loops `#pragma omp simd` that did not become vector code."""
    graph = make_fx(lambda x: [function(x)], decomposition_table=decompositions())(
        torch.randn(4096, 256)  # enough for threads, whose loops are functions of their own
    )
    gcc = cpu_backend().compiler.toolchain.words
    found = []
    for number, source in enumerate(Plan(build(graph).program, cpu_backend()).sources):
        file = folder / f"kernel{number}.c"
        head = "\n".join([*headers(source), ""])
        file.write_text(head + source.replace("@NAME@", "kernel"))
        flags = ["-fopenmp", *FLAGS, *PROCESSORS[processor], "-fopt-info-vec-optimized"]
        command = [*gcc, str(file), *flags, "-o", str(folder / "kernel.so"), "-lm"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        vectors = {int(n) for n in re.findall(r"\.c:(\d+):\d+: optimized: loop vectorized", said)}
        lines = file.read_text().splitlines()
        start = head.count("\n")
        # Loops over the lanes of one vector, which nobody has to call.
        if FMOD in head:
            first = head.partition(FMOD)[0].count("\n") + 1
            vectors -= set(range(first, first + FMOD.count("\n")))
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
    if platform.machine() != "x86_64" or "avx2" not in features():
        pytest.skip("only known of AVX2")
    if "Free Software Foundation" not in cpu_backend().compiler.toolchain.version:
        pytest.skip("only gcc says what it does")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", VECTORS)
def test_loops_become_vector_code(name: str, processor: str, tmp_path: Path) -> None:
    assert scalar_loops(VECTORS[name], tmp_path, processor) == []


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", OVER_VECTORS)
def test_functions_over_vectors(name: str, processor: str, tmp_path: Path) -> None:
    kind, version = platform.libc_ver()
    if kind != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("this C library has no functions over vectors")
    assert scalar_loops(OVER_VECTORS[name], tmp_path, processor) == []


def doubled(x: torch.Tensor) -> list[torch.Tensor]:
    y = x + x
    made = torch.softmax(y, 0)
    x.copy_(y)
    return [made]


def test_arrays_on_the_stack_are_aligned() -> None:
    """gcc 12 took the stack for aligned to longer vectors, and did not align it: a crash with
    AVX-512 of four rows of six, where vectors of 16 bytes were all that it used."""
    for rows, columns in [(2, 4), (4, 6), (5, 6), (4, 7), (6, 10), (4, 12)]:
        x = torch.randn(rows, columns)
        module = make_fx(
            torch.func.functionalize(doubled, remove="mutations_and_views"),
            decomposition_table=decompositions(),
            tracing_mode="fake",
        )(x.clone())
        ours, theirs = x.clone(), x.clone()
        built = build(module)
        answers = Plan(built.program, cpu_backend()).compile().run([ours])
        got = [answers[o.number] for o in built.outputs if isinstance(o, Output)]
        torch.testing.assert_close(got, doubled(theirs))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_pieces_of_a_reduction_read_without_a_condition(dtype: torch.dtype) -> None:
    """Where the last piece is shorter the others are read to their end: a load beside a condition
    of each element took three to eleven times as long."""
    x = torch.randn(1048573).to(dtype)
    graph = make_fx(lambda x: [x.sum()], decomposition_table=decompositions())(x)
    first = Plan(build(graph).program, cpu_backend()).sources[0]
    conditions = set(re.findall(r"const bool_t (\w+) = [01];", first))
    found = re.findall(r"(\w+) \? [^:?]*x0\[", first)
    assert found and conditions.issuperset(found)
