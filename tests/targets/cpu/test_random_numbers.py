"""The functions that random numbers are made of: the same bits by every compilation, and near to
what they stand for."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable

import pytest
import torch

from torch_tenon.targets.c_family.headers import TEMPLATES

N = 1003
KINDS = {
    ("bits", "i64"): (torch.int64, lambda x, g: x.random_(-(1 << 63), None, generator=g)),
    ("unit", "f32"): (torch.float32, lambda x, g: x.uniform_(generator=g)),
    ("unit", "f64"): (torch.float64, lambda x, g: x.uniform_(generator=g)),
    ("normal", "f32"): (torch.float32, lambda x, g: x.normal_(generator=g)),
    ("normal", "f64"): (torch.float64, lambda x, g: x.normal_(generator=g)),
    ("exponential", "f32"): (torch.float32, lambda x, g: x.exponential_(generator=g)),
    ("exponential", "f64"): (torch.float64, lambda x, g: x.exponential_(generator=g)),
    ("cauchy", "f32"): (torch.float32, lambda x, g: x.cauchy_(generator=g)),
    ("cauchy", "f64"): (torch.float64, lambda x, g: x.cauchy_(generator=g)),
}
FUNCTIONS = {"f32": ("float", "uint32_t"), "f64": ("double", "uint64_t")}

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


def source() -> str:
    text = '#include "random.h"\n'
    for kind, s in KINDS:
        t = {"i64": "int64_t", "f32": "float", "f64": "double"}[s]
        text += f"""
void fill_{kind}_{s}({t} *out, int64_t first, int64_t n) {{
  random_{kind}_fill_{s}(out, 7, 3, first, n);
}}
void each_{kind}_{s}({t} *out, int64_t first, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = random_{kind}_{s}(7, 3, first + i);
}}"""
    for s, (t, bits) in FUNCTIONS.items():
        text += f"""
void log_{s}({t} *out, const {t} *x, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = -random_minus_log_{s}(x[i]);
}}
void exp_{s}({t} *out, const {t} *x, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = random_exp_{s}(x[i]);
}}
void sin_{s}({t} *out, const {bits} *x, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = random_wave_{s}(x[i], 1);
}}
void cos_{s}({t} *out, const {bits} *x, int64_t n) {{
  for (int64_t i = 0; i < n; ++i) out[i] = random_wave_{s}(x[i], 0);
}}"""
    return text


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("random")
    (folder / "random.c").write_text(source())

    def made(flags: str) -> ctypes.CDLL:
        library = folder / f"random{flags.replace(' ', '')}.so"
        if not library.exists():
            exact = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
            command = ["gcc", *flags.split(), *exact, "-w", "-shared", "-fPIC", f"-I{TEMPLATES}"]
            command += [str(folder / "random.c"), "-o", str(library), "-lm"]
            subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))

    return made


def call(library: ctypes.CDLL, name: str, *arguments: torch.Tensor | int) -> None:
    given = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    getattr(library, name)(*map(ctypes.c_int64, given))


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("flags", ["-O0", "-O2", "-O3 -march=native"])
@pytest.mark.parametrize(("kind", "s"), KINDS)
def test_numbers_are_the_devices_by_every_compilation(
    build: Callable[[str], ctypes.CDLL], kind: str, s: str, flags: str
) -> None:
    dtype, draw = KINDS[kind, s]
    generator = torch.Generator("tenon").manual_seed(7)
    generator.set_offset(3)
    want = draw(torch.empty(N, dtype=dtype, device="tenon"), generator).cpu()
    for way in ("fill", "each"):
        for first in (0, 1, 17, 64, 100):
            got = torch.empty(N - first, dtype=dtype)
            call(build(flags), f"{way}_{kind}_{s}", got, first, N - first)
            assert torch.equal(got, want[first:])
    # An element far away has a counter of more than 32 bits.
    far = (1 << 40) + 5
    one, same = torch.empty(1, dtype=dtype), torch.empty(70, dtype=dtype)
    call(build(flags), f"each_{kind}_{s}", one, far + 69, 1)
    call(build(flags), f"fill_{kind}_{s}", same, far, 70)
    assert torch.equal(same[69:], one) and same.unique().numel() > 65


@pytest.mark.parametrize("name", ["log", "exp", "sin", "cos"])
def test_functions(build: Callable[[str], ctypes.CDLL], name: str) -> None:
    """To 4 ULP of what float64's are; sines, of an angle of 52 bits, by their distance."""
    for s, dtype, ulp in (("f32", torch.float32, 2.0**-23), ("f64", torch.float64, 2.0**-52)):
        bits = torch.randint(-(1 << 63), (1 << 63) - 1, (20_000,))
        if name in ("sin", "cos"):
            given = bits >> 12 << 12 if s == "f64" else (bits >> 32).int()
            x = given.double() * (2 * torch.pi * (2.0**-64 if s == "f64" else 2.0**-32))
        else:
            x = torch.rand(20_000, dtype=torch.float64) * (160 if name == "exp" else 1)
            x = given = (x - 80 if name == "exp" else x.clamp_min(2.0**-60)).to(dtype)
        got = torch.empty(20_000, dtype=dtype)
        call(build("-O2"), f"{name}_{s}", got, given, 20_000)
        want = getattr(torch, name)(x.double())
        error = (got.double() - want).abs()
        if name in ("log", "exp"):
            error = error / want.abs()
        assert error.max() < 4 * ulp


def test_the_ends_of_the_exponential(build: Callable[[str], ctypes.CDLL]) -> None:
    for s, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        x = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan, 1e4, -1e4, -100.0], dtype=dtype)
        got = torch.empty_like(x)
        call(build("-O2"), f"exp_{s}", got, x, len(x))
        assert torch.allclose(got, x.exp(), rtol=1e-5, atol=2e-45, equal_nan=True)
