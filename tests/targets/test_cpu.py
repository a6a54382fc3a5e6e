"""The cpu target's compiler and queue, and how a target is found."""

import ctypes
from pathlib import Path

import pytest

from torch_tenon import targets
from torch_tenon.targets.cpu import CpuTarget
from torch_tenon.targets.target import CompileError, Target, TargetError

SET = "#include <stdint.h>\nvoid set(int64_t *out, int64_t value) { *out = value; }"


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the system has no huge pages")
def test_memory_asks_for_huge_pages():
    target = CpuTarget()
    pointer = target.allocate(4 << 20, 0)
    assert pointer % (2 << 20) == 0
    advised = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name:
            start, end = (int(n, 16) for n in name.split("-"))
        elif name == "VmFlags:" and start <= pointer < end:
            advised.append("hg" in rest)
    assert advised == [True]
    target.free(pointer, 0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("TENON_CACHE_DIR", str(directory))
    return directory


def _run(kernel, value):
    box = ctypes.c_int64(0)
    queue = CpuTarget().queue(0)
    queue.encode(kernel, [ctypes.addressof(box), value])
    assert box.value == 0  # nothing runs before the command buffer is committed
    event = queue.commit()
    queue.wait(event)
    assert event.done()
    return box.value


def test_compiles_and_runs(cache):
    assert _run(CpuTarget().compile(SET, "set"), -7) == -7


def test_second_compile_finds_the_first(cache):
    CpuTarget().compile(SET, "set")
    (built,) = cache.glob("*.so")
    stamp = built.stat().st_mtime_ns
    assert _run(CpuTarget().compile(SET, "set"), 3) == 3
    assert built.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("damage", [b"", b"not a shared object"])
def test_damaged_entry_is_built_again(cache, damage):
    CpuTarget().compile(SET + "/* never loaded */" + "\n" * len(damage), "set")
    (built,) = cache.glob("*.so")
    built.unlink()  # a new file: this process has the old one mapped
    built.write_bytes(damage)
    assert _run(CpuTarget().compile(SET + "/* never loaded */" + "\n" * len(damage), "set"), 5) == 5


def test_missing_function_is_named(cache):
    with pytest.raises(CompileError, match="defines no function 'missing'"):
        CpuTarget().compile(SET, "missing")


def test_without_a_compiler(cache, monkeypatch):
    monkeypatch.delenv("TENON_CC", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(TargetError, match=r"no C compiler.*apt-get install gcc"):
        CpuTarget().compile(SET, "set")


def test_target_by_path_and_by_module(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch_tenon.targets.cpu import CpuTarget\n"
        "class Mine(CpuTarget):\n    name = 'mine'\n"
        "nothing = 3\n"
    )
    assert targets.load(f"{file}:Mine").name == "mine"
    assert targets.load("torch_tenon.targets.cpu:CpuTarget").name == "cpu"
    with pytest.raises(TypeError, match="not a Target"):
        targets.load(f"{file}:nothing")
    with pytest.raises(ValueError, match="has no Missing"):
        targets.load(f"{file}:Missing")
    with pytest.raises(ValueError, match="there is no file"):
        targets.load(f"{tmp_path}/none.py:Mine")
    with pytest.raises(ValueError, match="no such target; there are cpu"):
        targets.load("nowhere")


def test_interface_says_what_is_missing():
    with pytest.raises(NotImplementedError):
        Target().allocate(1, 0)
