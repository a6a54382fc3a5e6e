"""C becomes functions: compiled once, found by other processes, rebuilt where it does not load."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fresh_process import output

from torch_tenon import config
from torch_tenon.compiler.cache import Cache, digest
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
from torch_tenon.targets.c_family import headers
from torch_tenon.targets.cpu import compiler as cpu_compiler
from torch_tenon.targets.cpu import dialect, toolchain
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler
from torch_tenon.targets.cpu.toolchain import Toolchain
from torch_tenon.targets.target import CompileError, CompilerMissing

SET = "#include <stdint.h>\nvoid set(int64_t *out, int64_t value) { *out = value; }"
GENERATED = "void @NAME@(void *const *a, const int64_t *s, int64_t *status) { *status = s[0]; }"
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
GCC = shutil.which("gcc") or "gcc"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def compiler(folder: Path, command: str = GCC) -> CpuCompiler:
    return CpuCompiler(Cache(folder), command)


def value(made: CpuCompiler, number: int) -> int:
    """What the function written by hand sets."""
    box, sizes = ctypes.c_int64(0), ctypes.c_int64(number)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(box))
    (address,) = CpuBackend(made).compile([kernel_of(by_hand(SET, "set"), CpuBackend(made))])
    KERNEL(address)(pointers, ctypes.byref(sizes), None)
    return box.value


def open_objects(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if str(folder) in line}


def openmp_runtimes() -> set[str]:
    """Those that the process has loaded: libraries of others bring theirs."""
    return {name for name in open_objects(Path("/")) if "omp" in Path(name).name}


def test_an_object_is_closed_with_the_last_function_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_compiler, "MOST_FUNCTIONS", 2)
    made = compiler(folder)

    def source(number: int) -> str:
        return GENERATED.replace("s[0]", f"s[0] + {number}")

    def run(function: int) -> int:
        status, sizes = ctypes.c_int64(0), ctypes.c_int64(100)
        KERNEL(function)(None, ctypes.byref(sizes), ctypes.byref(status))
        return status.value

    (kept,) = made.functions([source(1)])
    for number in range(2, 7):
        (function,) = made.functions([source(number)])
        assert run(function) == 100 + number and run(kept) == 101
    assert len(open_objects(folder)) == 3
    compiled = made.compiled
    (again,) = made.functions([source(2)])  # comes from the cache on disk
    assert run(again) == 102 and made.compiled == compiled
    del kept, again, function
    assert len(open_objects(folder)) == 2
    del made
    assert not open_objects(folder)


def by_hand(text: str, entry: str) -> Code:
    """Code that takes memory of an integer, and an integer."""
    parameters = Parameter(torch.int64, True), Parameter(torch.int64, False)
    return Code("cpu", text, entry, parameters)


def generated_value(made: CpuCompiler, number: int) -> int:
    """What the generated kernel sets."""
    (address,) = made.functions([GENERATED])
    status, sizes = ctypes.c_int64(0), ctypes.c_int64(number)
    KERNEL(address)(None, ctypes.byref(sizes), ctypes.byref(status))
    return status.value


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_both_kinds_are_compiled_and_found_again(folder: Path) -> None:
    first, second = compiler(folder), compiler(folder)
    for made, compiled in ((first, 2), (second, 0)):
        assert (value(made, -7), generated_value(made, 5)) == (-7, 5)
        assert made.compiled == compiled


def test_what_was_set_up_is_not_compiled_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For everybody on the machine, with caches of their own; what is damaged there is not used."""
    monkeypatch.setattr(cpu_compiler, "SET_UP", tmp_path / "set_up")
    place = cpu_compiler.set_up([GENERATED], Toolchain(GCC))
    assert place == tmp_path / "set_up" and place.stat().st_mode & 0o777 == 0o755
    first = compiler(folder)
    assert generated_value(first, 6) == 6 and first.compiled == 0
    shutil.rmtree(place)
    second = compiler(folder)
    assert generated_value(second, 7) == 7 and second.compiled == 0, "the cache has a copy"
    cpu_compiler.set_up([GENERATED], Toolchain(GCC))
    (object_file,) = place.glob("*.so")
    object_file.write_bytes(object_file.read_bytes()[:-1])
    third = compiler(tmp_path / "third")
    assert generated_value(third, 8) == 8 and third.compiled == 1
    other = compiler(tmp_path / "fourth", f"{GCC} -DFOR_TEST")
    assert generated_value(other, 9) == 9 and other.compiled == 1, "another command"


def with_other_object(folder: Path, data: bytes) -> Path:
    """A cache that has other bytes for the one object, with a digest that says that they are whole.

    It lies elsewhere: what a process has loaded from a path it does not load again.
    """
    (entry,) = folder.glob("*.json")
    (found,) = folder.glob("*.so")
    other = Cache(folder.parent / "other")
    other.write(found.name, data)
    other.write_json(entry.name, json.loads(entry.read_text())["body"] | {"digest": digest(data)})
    return other.directory


def other_object(folder: Path, source: str, *flags: str) -> bytes:
    file, made = folder / "other.c", folder / "other.o"
    file.write_text(source)
    subprocess.run([GCC, *flags, "-fPIC", str(file), "-o", str(made)], check=True)
    data = made.read_bytes()
    file.unlink()
    made.unlink()
    return data


FOREIGN = {
    "empty": lambda folder: b"",
    "text": lambda folder: b"not a shared object",
    "an object file": lambda folder: other_object(folder, "int x;", "-c"),
    "other functions": lambda folder: other_object(folder, "int x;", "-shared"),
    "unlinked": lambda folder: other_object(
        folder, "void gone(void); void set(void) { gone(); }", "-shared"
    ),
}


@pytest.mark.parametrize("of", [value, generated_value])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_does_not_load_is_built_again(
    kind: str, of: Callable[[CpuCompiler, int], int], folder: Path
) -> None:
    assert of(compiler(folder), 3) == 3
    elsewhere = with_other_object(folder, FOREIGN[kind](folder))
    again = compiler(elsewhere)
    assert of(again, 4) == 4 and again.compiled == 1
    third = compiler(shutil.copytree(elsewhere, folder.parent / "third"))
    assert of(third, 5) == 5 and third.compiled == 0


def test_a_missing_function_is_named(folder: Path) -> None:
    with pytest.raises(CompileError, match="has made no function missing: define `void") as raised:
        compiler(folder).function(SET, "missing")
    Path(str(raised.value).partition("the source is in ")[2].split()[0]).unlink()


def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(CompilerMissing, match=r"no C compiler: 'gcc -m64'.*apt install gcc"):
        value(compiler(folder, "gcc -m64"), 1)


# The command


def test_a_command_of_several_words(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    launcher = script(tmp_path / "a launcher", f'echo "$@" >> {seen}\nexec "$@"')
    made = compiler(tmp_path / "cache", f"'{launcher}' {GCC} -m64 -DFOR_TEST=3")
    assert value(made, 8) == 8 and generated_value(made, 9) == 9
    version, *builds = seen.read_text().splitlines()
    assert version == f"{GCC} -m64 -DFOR_TEST=3 --version"
    assert all(line.startswith(f"{GCC} -m64 -DFOR_TEST=3 -fopenmp ") for line in builds)


def test_a_link_is_called_by_its_own_name(tmp_path: Path) -> None:
    """As ccache's are: what it runs is in the name."""
    behind = script(tmp_path / "launcher", f'[ "$(basename "$0")" = mygcc ] && exec {GCC} "$@"')
    link = tmp_path / "mygcc"
    link.symlink_to(behind)
    assert value(compiler(tmp_path / "cache", str(link)), 8) == 8


def test_settings_give_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tenon import config

    spaced = script(tmp_path / "my gcc", f'exec {GCC} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for text, words in (
        ("gcc -m64", [GCC, "-m64"]),
        (str(spaced), [str(spaced)]),
        ("'my gcc' -m64", [str(spaced), "-m64"]),
        (f"{GCC} -DA='1 2'", [GCC, "-DA=1 2"]),
    ):
        monkeypatch.setenv("TENON_CC", text)
        command = config.CC.read()
        assert command is not None and Toolchain(command).words == words
    for text in ("no-such-compiler -m64", "gcc '"):
        monkeypatch.setenv("TENON_CC", text)
        with pytest.raises(config.ConfigError, match="TENON_CC"):
            config.CC.read()


# What a kernel is known by


def test_the_key_has_what_code_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = script(tmp_path / "cc", f'exec {GCC} "$@"')
    runtime = tmp_path / "libgomp.so"
    shutil.copyfile(toolchain.openmp_library() or GCC, runtime)

    def keys(command: str = str(wrapper)) -> tuple[str, str]:
        monkeypatch.setattr(toolchain, "openmp_library", lambda: str(runtime))
        made = compiler(tmp_path / "cache", command)
        return made.symbol(GENERATED), made.symbol("special_f32(x)")

    seen = [keys()]
    assert keys() == seen[0]

    def changed() -> None:
        found = keys()
        assert all(found[k] != before[k] for before in seen for k in range(2))
        seen.append(found)

    script(wrapper, f'[ "$1" = --version ] && echo other && exit; exec {GCC} "$@"')
    changed()
    with runtime.open("ab") as file:
        file.write(b"\0")
    changed()
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-O2"))
    changed()
    monkeypatch.setattr(toolchain, "processor", lambda: "another")
    changed()
    seen.append(keys(f"{wrapper} -m64"))
    assert len(set(seen)) == len(seen)


def test_another_compiler_behind_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's own file stays what it was."""
    launcher = script(tmp_path / "launcher", 'exec "$@"')
    path, found = os.environ["PATH"], set()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        script(tmp_path / name / "mycc", f"echo mycc {name}")
        monkeypatch.setenv("PATH", f"{tmp_path / name}:{path}")
        found.add(Toolchain(f"{launcher} mycc").identity)
    assert len(found) == 2


def test_headers_count_by_their_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = compiler(folder)
    special = "special_f32(x)"
    before = one.symbol(GENERATED), one.symbol(special)
    templates = Path(shutil.copytree(headers.TEMPLATES, tmp_path / "templates"))
    monkeypatch.setattr(headers, "TEMPLATES", templates)
    for file, changes in (("special.h", (False, True)), ("scalar.h", (True, True))):
        with (templates / file).open("a") as header:
            header.write("\n")
        headers.template.cache_clear()
        after = one.symbol(GENERATED), one.symbol(special)
        assert tuple(a != b for a, b in zip(after, before, strict=True)) == changes
    headers.template.cache_clear()


def test_identity_is_that_of_the_compiler(folder: Path) -> None:
    backend = CpuBackend(compiler(folder))
    packing = backend.four_bit_block
    assert backend.identity() == f"{backend.compiler.toolchain.identity}\n{packing}"
    assert GCC in backend.identity() and "-O2" in backend.identity()


# Of each thread's share how much there was, and what all of them made.
SHARES = """
#include <stdint.h>
int omp_get_thread_num(void);
void shares(int64_t *out, int64_t n, int64_t some) {
  int64_t *made = out + 16, sum = 0;
#pragma omp parallel for schedule(static) num_threads(3) if (some)
  for (int64_t k = 0; k < n; ++k) made[k] += k, ++out[omp_get_thread_num()];
#pragma omp parallel for schedule(static) num_threads(3) reduction(+ : sum)
  for (int k = (int)n; k > 0; k -= 2) sum += k;
  out[8] = sum;
#pragma omp parallel num_threads(3)
  {
#pragma omp critical
    ++out[9];
#pragma omp barrier
#pragma omp single
    out[10] += out[9];
#pragma omp master
    ++out[11];
#pragma omp for schedule(static) collapse(2)
    for (unsigned a = 0; a < 3; ++a)
      for (uint64_t b = 0; b < (uint64_t)n; ++b) made[a * n + b] += 100;
  }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [GCC, "clang", f"{config.compiler_of_package()}"])
def test_loops_of_threads_by_each_compiler(folder: Path, command: str) -> None:
    """By the OpenMP runtime that PyTorch has loaded, whichever calls the compiler makes."""
    if shutil.which(shlex.split(command)[0]) is None:
        assert command == "clang"
        pytest.skip("there is no clang")
    before = openmp_runtimes()
    made = compiler(folder, command)
    assert value(made, 8) == 8
    parameters = [Parameter(torch.int64, is_tensor) for is_tensor in (True, False, False)]
    code = Code("cpu", SHARES, "shares", tuple(parameters))
    (address,) = CpuBackend(made).compile([kernel_of(code, CpuBackend(made))])
    for n, some in ((0, 1), (1, 1), (7, 1), (64, 1), (64, 0)):
        out = (ctypes.c_int64 * 256)()
        sizes = (ctypes.c_int64 * 2)(n, some)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        KERNEL(address)(pointers, sizes, None)
        shares = [n // 3 + (k < n % 3) for k in range(3)] if some else [n, 0, 0]
        assert list(out[:3]) == shares
        assert out[8] == sum(range(n, 0, -2)) and list(out[9:12]) == [3, 3, 1]
        made_by_all = [(k if k < n else 0) + 100 for k in range(3 * n)]
        assert list(out[16 : 16 + 3 * n]) == made_by_all
    assert openmp_runtimes() == before


# The greatest of what floats convert to, on a stack whose other memory holds large numbers. Where a
# float is not in range the greatest stays, which is a way past the reduction.
GREATEST = """
#include <stdint.h>
#include <string.h>
static __attribute__((noinline)) int64_t greatest(const float *x, int64_t n, int64_t *whole) {
  int64_t found = -1;
#pragma omp simd reduction(max : found)
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = __builtin_fabsf(x[i]) < 0x1p63f ? (int64_t)x[i] : INT64_MIN;
    const int64_t u = t != -100 ? t : 0;
    found = u > found ? u : found;
    whole[i] = (uint64_t)u < 2 ? u : 0;
  }
  return found;
}
void kernel(int64_t *out, int64_t n) {
  volatile char around[1 << 17];
  float x[1 << 10];
  int64_t whole[1 << 10];
  memset((void *)around, 0x3f, sizeof around);
  for (int64_t i = 0; i < n; ++i) x[i] = i & 1;
  *out = greatest(x, n, whole) + (around[n] != 0x3f);
}
"""


def test_a_greatest_number_is_of_the_numbers_alone(folder: Path) -> None:
    """gcc 12 read beyond what was reduced so far, where it went past a reduction (`-fthread-jumps`)
    by AVX-512."""
    made = compiler(folder)
    parameters = (Parameter(torch.int64, True), Parameter(torch.int64, False))
    code = Code("cpu", GREATEST, "kernel", parameters)
    (address,) = CpuBackend(made).compile([kernel_of(code, CpuBackend(made))])
    for n in (64, 1000, 1024):
        out = (ctypes.c_int64 * 1)(-5)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        KERNEL(address)(pointers, (ctypes.c_int64 * 1)(n), None)
        assert out[0] == 1


# Rows that are chosen by an index, as the generator spells them.
ROWS = f"""
void rows(void *const *a, const int64_t *s, int64_t *status) {{
  int64_t *const x0 = a[0];
  float *const x1 = a[1];
  float *const x2 = a[2];
  const int64_t n0 = s[0], n1 = s[1], n2 = s[2];
{dialect.PARALLEL}
  for (int64_t i0 = 0; i0 < n0; ++i0) {{
    const int64_t t0 = x0[i0];
    if (t0 >= n2) report(status, 2, t0, n2);
#pragma omp simd
    for (int64_t i1 = 0; i1 < n1; ++i1) {{
      const float t1 = x1[t0*n1 + i1];
      x2[i0*n1 + i1] = t1 + 1.0f;
    }}
  }}
}}
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86's instructions are looked for")
@pytest.mark.parametrize("command", [GCC, f"{config.compiler_of_package()}"])
def test_neighbours_in_memory_are_loaded_together(tmp_path: Path, command: str) -> None:
    """clang gathered and scattered them: a kernel took two to five times as long as by gcc."""
    source, listing = tmp_path / "rows.c", tmp_path / "rows.s"
    source.write_text("\n".join([*cpu_compiler.headers(ROWS), ROWS]))
    chain = Toolchain(command)
    processor = ["-march=x86-64-v4" if f == "-march=native" else f for f in toolchain.FLAGS]
    flags = chain.spelled([*processor, *chain.openmp])
    words = [*chain.words, *flags, "-S", str(source), "-o", str(listing)]
    kept = {f"ZIG_{name}_CACHE_DIR": str(tmp_path) for name in ("LOCAL", "GLOBAL")}
    subprocess.run(words, check=True, env={**os.environ, **kept})
    text = listing.read_text()
    assert "zmm" in text or "ymm" in text
    assert "gatherq" not in text and "scatterq" not in text


STOPPED = """
    import sys, threading, time
    from pathlib import Path
    import torch
    from torch_tenon.compiler.cache import Cache
    from torch_tenon.compiler.handwritten import Code, kernel_of
    from torch_tenon.targets.cpu.backend import CpuBackend
    from torch_tenon.targets.cpu.compiler import CpuCompiler
    from torch_tenon.targets.target import CompileError

    folder = Path(sys.argv[1])
    backend = CpuBackend(CpuCompiler(Cache(folder / "cache"), str(folder / "cc")))

    def stop():
        started = folder / "started"
        while not (started.exists() and started.read_text()):  # the shell opens it, then writes
            time.sleep(0.01)
        backend.stop()

    threading.Thread(target=stop, daemon=True).start()
    for _ in range(2):  # the second is not started
        try:
            backend.compile([kernel_of(Code("cpu", "void f(void) {}", "f", ()), backend)])
        except CompileError as error:
            print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--version", "-fopenmp"])
def test_a_process_that_ends_stops_its_compilers(asked: str, tmp_path: Path) -> None:
    script(
        tmp_path / "cc",
        f'[ "$1" = {asked} ] || exit 0; echo $$ >> {tmp_path}/started; sleep 1000',
    )
    said = output(STOPPED, str(tmp_path))
    assert said.splitlines() == ["the compiler was stopped: the process ends"] * 2
    (number,) = (tmp_path / "started").read_text().split()
    assert not Path(f"/proc/{number}").exists()


def test_what_a_process_began_is_not_its_child_s(folder: Path) -> None:
    """Both have the kernel in the end, and a child leaves its parent's files alone."""
    source = GENERATED.replace("s[0]", "s[0] + 11")
    parent = compiler(folder)
    parent.begin([source])
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if len(parent.functions([source])) == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(Path(run.folder.name).is_dir() for run in parent._begun)
    assert len(parent.functions([source])) == 1
