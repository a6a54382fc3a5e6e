"""What is on disk is used when whole, rebuilt when damaged, and done without when impossible."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache, contents, remove_all, trim
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler
from torch_tenon.targets.target import CompileError, CompilerMissing

# What is patched is patched for a plan in work as well.
pytestmark = pytest.mark.usefixtures("no_plan_in_work")


def plan(compiler: CpuCompiler) -> Plan:
    module = make_fx(lambda x: [x * 3 + 1], tracing_mode="fake")(torch.randn(40))
    return Plan(build(module).program, CpuBackend(compiler))


def answer(compiler: CpuCompiler) -> bool:
    x = torch.randn(40)
    return torch.allclose(plan(compiler).compile().run([x])[0], x * 3 + 1)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = (CpuCompiler(Cache(tmp_path / "cache")) for _ in range(2))
    assert answer(first) and first.compiled > 0
    assert answer(second) and second.compiled == 0


@pytest.mark.parametrize("pattern", ["*.so", "*.json"])
def test_damaged_entries_are_rebuilt(tmp_path: Path, pattern: str) -> None:
    cache = Cache(tmp_path / "cache")
    assert answer(CpuCompiler(cache))
    for file in cache.directory.glob(pattern):
        # A new file: the old one may be mapped into this process.
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.unlink()
        file.write_bytes(bytes(data))
    again = CpuCompiler(cache)
    assert answer(again) and again.compiled > 0


def test_an_unusable_directory_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert answer(CpuCompiler(Cache(blocked / "cache")))


def test_a_full_disk_is_gone_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache")

    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torch_tenon.compiler.cache.os.replace", full)
    assert answer(CpuCompiler(cache))
    assert "going on without the cache" in caplog.text and "No space left" in caplog.text
    assert list(cache.directory.iterdir()) == []


def test_a_disk_that_was_full_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, now = Cache(tmp_path / "cache"), 0.0
    tries = 0

    def full(source: str, target: Path) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("torch_tenon.compiler.cache.time.monotonic", lambda: now)
    with monkeypatch.context() as patched:
        patched.setattr("torch_tenon.compiler.cache.os.replace", full)
        for second in range(100):
            now = float(second)
            assert cache.write("a", b"1") is None
    assert 3 <= tries <= 8  # rarer and rarer
    now += 300
    assert cache.write("a", b"1") is not None and cache.write("b", b"2") is not None


def test_a_directory_that_others_write_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "cache"
    open_to_all.mkdir()
    os.chmod(open_to_all, 0o777)
    with pytest.raises(PermissionError, match="must be yours alone"):
        Cache(open_to_all)


def written(path: Path, nbytes: int, age: float) -> Path:
    """A file that was used so many seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(nbytes))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_a_directory_that_holds_too_much_loses_what_was_used_least_recently(tmp_path: Path) -> None:
    days = [written(tmp_path / "kernels" / f"{k}.so", 100, k * 86400.0) for k in range(10)]
    written(tmp_path / "builder-1.lock", 0, 10 * 86400.0)
    assert trim(tmp_path, 1000) == 0
    assert trim(tmp_path, 999) == 300
    assert [path.exists() for path in days] == [True] * 7 + [False] * 3
    assert (tmp_path / "builder-1.lock").exists()


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    gone = [
        written(tmp_path / "kernels" / ".new-abc", 7, 7200.0),
        written(tmp_path / "plans" / "0a.plan.1234.5", 7, 7200.0),
    ]
    stays = [
        written(tmp_path / "kernels" / ".new-abd", 7, 60.0),
        written(tmp_path / "plans" / "0a.plan", 7, 7200.0),
    ]
    assert trim(tmp_path, 1 << 20) == 14
    assert not any(path.exists() for path in gone) and all(path.exists() for path in stays)


def test_files_that_vanish_while_they_are_counted(tmp_path: Path) -> None:
    files = [written(tmp_path / "plans" / f"{k}.plan", 10, 0.0) for k in range(300)]
    remover = threading.Thread(target=lambda: [path.unlink(missing_ok=True) for path in files])
    remover.start()
    while remover.is_alive():
        contents(tmp_path)
        trim(tmp_path, 10)
    remove_all(tmp_path)
    remover.join()
    assert contents(tmp_path) == {}


def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissing, match="apt install gcc"):
        answer(CpuCompiler(Cache(tmp_path / "cache"), "no-such-compiler"))


def test_a_failed_compilation_keeps_its_source(tmp_path: Path) -> None:
    compiler = CpuCompiler(Cache(tmp_path / "cache"))
    with pytest.raises(CompileError, match=r"the source is in (\S+)") as error:
        compiler.functions(["void @NAME@(void) { nonsense }"])
    kept = Path(str(error.value).partition("the source is in ")[2].split()[0])
    assert "nonsense" in kept.read_text()
    kept.unlink()
