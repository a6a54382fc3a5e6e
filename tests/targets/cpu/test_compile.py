"""C is compiled once, and a process finds what another compiled."""

import ctypes

import pytest

from torch_tenon.targets.cpu.compile import CpuKernel, compile_c
from torch_tenon.targets.target import CompileError, TargetError

SET = "#include <stdint.h>\nvoid set(int64_t *out, int64_t value) { *out = value; }"


def _value(kernel: CpuKernel, value: int) -> int:
    box = ctypes.c_int64(0)
    kernel([ctypes.addressof(box), value])
    return box.value


def test_compiles_and_runs(cache):
    assert _value(compile_c(SET, "set"), -7) == -7


def test_second_compile_finds_the_first(cache):
    compile_c(SET, "set")
    (built,) = cache.glob("*.so")
    stamp = built.stat().st_mtime_ns
    assert _value(compile_c(SET, "set"), 3) == 3
    assert built.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("damage", [b"", b"not a shared object"])
def test_damaged_entry_is_built_again(cache, damage):
    compile_c(SET + "/* never loaded */" + "\n" * len(damage), "set")
    (built,) = cache.glob("*.so")
    built.unlink()  # a new file: this process has the old one mapped
    built.write_bytes(damage)
    assert _value(compile_c(SET + "/* never loaded */" + "\n" * len(damage), "set"), 5) == 5


def test_missing_function_is_named(cache):
    with pytest.raises(CompileError, match="defines no function 'missing'"):
        compile_c(SET, "missing")


def test_without_a_compiler(cache, monkeypatch):
    monkeypatch.delenv("TENON_CC", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(TargetError, match=r"no C compiler.*apt-get install gcc"):
        compile_c(SET, "set")
