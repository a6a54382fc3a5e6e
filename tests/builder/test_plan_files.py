"""What one process has learned the next one knows, and what is damaged or foreign is made anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builder.whole_scripts import in_step, run


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that one process has filled."""
    cache = tmp_path_factory.mktemp("learned") / "cache"
    first = run(cache, TENON_BUILDER="thread", WAITS="1")
    assert in_step(first, 0)[2] > 0 and in_step(first, 0)[0] == 0
    return cache


@pytest.fixture
def cache(learned: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(learned, tmp_path / "cache"))


def plans(cache: Path) -> list[Path]:
    return sorted((cache / "plans").glob("*.plan"))


@pytest.mark.slow
def test_the_second_process_runs_by_plan_from_its_second_step_on(cache: Path) -> None:
    second = run(cache, TENON_BUILDER="thread")
    assert in_step(second, 0)[2] == 0
    for step in (1, 2, 3, 4, 5):
        by_plan, by_reference, _ = in_step(second, step)
        assert by_plan > 0 and by_reference == 0


@pytest.mark.slow
def test_the_second_process_knows_sizes_that_the_first_has_not_seen(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(cache, TENON_BUILDER="thread", TENON_PLAN="all", WAITS="1", SIZES="1", STEPS="14")
    assert list((cache / "plans").glob("*.sizes"))
    second = run(cache, TENON_BUILDER="thread", SIZES="2", STEPS="10")
    for step in range(1, 10):
        by_plan, by_reference, first_calls = in_step(second, step)
        assert by_plan > 0 and by_reference == 0 and first_calls == 0


@pytest.mark.slow
def test_complex_factors_are_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(cache, TENON_BUILDER="thread", WAITS="1", COMPLEX="1")
    second = run(cache, TENON_BUILDER="thread", COMPLEX="1")
    assert in_step(second, 0)[2] == 0
    assert in_step(second, 2)[0] > 0


@pytest.mark.slow
def test_nothing_is_made_twice(cache: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in plans(cache)}
    run(cache, TENON_BUILDER="thread", WAITS="1")
    after = {p: p.stat().st_mtime_ns for p in plans(cache)}
    assert before == {p: after[p] for p in before}


def cut_short(data: bytes) -> bytes:
    return data[: len(data) // 2]


def one_bit_other(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def emptied(data: bytes) -> bytes:
    return b""


def of_another_format(data: bytes) -> bytes:
    head, _, rest = data.partition(b"\n")
    return head[:-1] + b"0\n" + rest


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", [cut_short, one_bit_other, emptied, of_another_format])
def test_damaged_files_are_replaced(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    damaged = [*plans(cache), *(cache / "plans").glob("calls-*")]
    assert len(damaged) >= 2
    for path in damaged:
        path.write_bytes(damage(path.read_bytes()))
    first = run(cache, TENON_BUILDER="thread", WAITS="1")
    assert in_step(first, 0)[0] == 0 and in_step(first, 0)[2] > 0
    second = run(cache, TENON_BUILDER="thread")
    assert in_step(second, 1)[0] > 0 and in_step(second, 0)[2] == 0


@pytest.mark.slow
def test_kernels_that_are_gone_or_damaged_are_made_anew(cache: Path) -> None:
    objects = sorted((cache / "kernels").glob("*.so"))
    assert objects
    for k, path in enumerate(objects):
        if k % 2:
            path.unlink()
        else:
            path.write_bytes(one_bit_other(path.read_bytes()))
    run(cache, TENON_BUILDER="thread", WAITS="1")
    second = run(cache, TENON_BUILDER="thread")
    assert in_step(second, 5)[1] == 0


@pytest.mark.slow
def test_files_of_another_compiler_are_not_used(cache: Path) -> None:
    other = run(cache, TENON_BUILDER="thread", TENON_CC="gcc -DOTHER=1")
    assert in_step(other, 0)[0] == 0 and in_step(other, 0)[2] > 0


@pytest.mark.slow
def test_without_files_nothing_is_kept(tmp_path: Path) -> None:
    run(tmp_path / "cache", TENON_BUILDER="thread", TENON_PLAN_FILES="0", WAITS="1")
    assert not (tmp_path / "cache" / "plans").exists()
