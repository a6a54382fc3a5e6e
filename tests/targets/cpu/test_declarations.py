"""Headers cut to what a kernel names."""

import subprocess
from pathlib import Path

import pytest

from torch_tenon.compiler.cache import Cache
from torch_tenon.targets.cpu.compiler import CpuCompiler, headers
from torch_tenon.targets.cpu.declarations import Declarations, names_of, pieces_of
from torch_tenon.targets.cpu.toolchain import FLAGS, Toolchain

LOOP = """void kernel(void *const *a, const int64_t *s, int64_t *status) {
  float *const x = a[0];
  double *const y = a[1];
#pragma omp simd
  for (int64_t k = 0; k < s[0]; ++k) BODY
}
"""
BODIES = {
    "a copy": "x[k] = 1.0f;",
    "a macro": "x[k] = x[k] > 0 ? INFINITY : NAN;",
    "a function of functions": "x[k] = pow_f32(x[k], tanh_f32(x[k]));",
    "of vectors in the C library": "y[k] = exp_f64(y[k]) + sin(y[k]);",
    "of vectors in a header": "y[k] = fmod_f64(y[k], 3.0 + x[k]);",
    "a check": "if (!((uint64_t)x[k] < (uint64_t)(s[1]))) report(status, 1, x[k], s[1]);",
    "integers": "x[k] = (float)floor_div_i32((int32_t)x[k], (int32_t)INT64_C(7));",
    "random numbers": "x[k] = random_unit_f32(s[1], s[2], k);",
    "special functions": "x[k] = special_bessel_j0_f32(lgamma_f32(x[k]));",
}
GREATEST = """void kernel(void *const *a, const int64_t *s, int64_t *status) {
  float *const x = a[0], most = -INFINITY;
#pragma omp simd reduction(max_f32:most)
  for (int64_t k = 0; k < s[0]; ++k) most = maximum_f32(x[k], most);
  x[0] = most;
}
"""
TEXT = """typedef struct { int a; } pair_t;
extern double sin (double __x) __attribute__ ((__nothrow__));
#pragma omp declare simd notinbranch
double sin(double);
static inline __attribute__((always_inline)) float twice(float x) { if (x) { return x; } return 2; }
#pragma omp declare reduction(most : float : omp_out = twice(omp_in)) initializer(omp_priv = 0)
void seen(void) { }
static int last;
"""


def test_pieces_and_their_names() -> None:
    found = list(pieces_of(TEXT))
    assert "\n".join(found) + "\n" == TEXT
    names = [{"a", "pair_t"}, {"sin"}, {"sin"}, {"twice"}, {"most"}, {"seen", "*"}, {"last"}]
    assert [names_of(piece) for piece in found] == names


def test_what_is_named_by_what_is_named() -> None:
    declared = Declarations.of(TEXT, "#define A(x) B + x\n#define B twice(1)\n#define C 1\n")
    before = declared.before("float f(float x) { return A(x); }")
    assert before is not None
    assert "twice" in before and "#define A(x) B + x" in before and "#define B twice(1)" in before
    assert "pair_t" not in before and "#define C" not in before and "sin" not in before
    assert "void seen" in before  # by whatever name
    assert declared.before("#include <math.h>\n") is None
    assert "declare simd" in (declared.before("sin(x)") or "")


def assembly(text: str, folder: Path) -> list[str]:
    """The instructions, without labels, which have the numbers of all that was read."""
    file = folder / "kernel.c"
    file.write_text(text)
    command = [*Toolchain().words, "-fopenmp", *FLAGS, "-S", str(file), "-o", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if ".L" not in line and ".file" not in line]


@pytest.mark.parametrize("name", [*BODIES, "a reduction"])
def test_code_is_the_same(name: str, tmp_path: Path) -> None:
    source = LOOP.replace("BODY", BODIES[name]) if name in BODIES else GREATEST
    head = "\n".join(headers(source))
    compiler = CpuCompiler(Cache(tmp_path / "cache"))
    cut = compiler._cut(head, source)
    assert cut is not None and len(cut) < len(head) / 2
    assert assembly(cut + source, tmp_path) == assembly(f"{head}\n{source}", tmp_path)


def test_the_table_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "\n".join(headers(GREATEST))
    before = CpuCompiler(Cache(tmp_path))._cut(head, GREATEST)
    monkeypatch.setattr(Toolchain, "preprocessed", None)
    assert CpuCompiler(Cache(tmp_path))._cut(head, GREATEST) == before


@pytest.mark.parametrize("table", [None, Declarations([], {})])
def test_whole_headers_where_cut_ones_do_not_do(
    table: Declarations | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = CpuCompiler(Cache(tmp_path))
    monkeypatch.setattr(compiler, "_declared", lambda head: table)
    compiler.functions([GREATEST.replace("kernel", "@NAME@")])
    assert compiler.compiled == 1


def test_comments_do_not_count(tmp_path: Path) -> None:
    compiler = CpuCompiler(Cache(tmp_path))
    names = {compiler.symbol(f"/* {origin} */\n{GREATEST}") for origin in ("add", "mul, add")}
    assert len(names) == 1
