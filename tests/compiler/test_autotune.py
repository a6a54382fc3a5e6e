"""Every way to multiply gives the product; the choice is kept, and a damaged one is made anew."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_tenon import _C
from torch_tenon.compiler.cache import Cache
from torch_tenon.targets.cpu.autotune import WAYS, Tuner
from torch_tenon.targets.cpu.compiler import CpuCompiler

# Rounding of a sum of k products, against the sum of their magnitudes.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
SIZES = st.sampled_from([1, 2, 5, 7, 16, 17, 33, 64, 100, 130, 500])


class Fixed(Tuner):
    """Takes one way wherever it can."""

    way = "generated"

    def choose(self, key: tuple[int, ...], trial: object) -> str:
        return self.way if self.serves(self.way, key) else "pytorch"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> CpuCompiler:
    return CpuCompiler(Cache(tmp_path_factory.mktemp("cache") / "kernels"))


@pytest.fixture(autouse=True)
def untuned(no_plan_in_work: None) -> Iterator[None]:
    """A plan in work would ask the test's tuner as well."""
    yield
    _C.set_matmul_tuner(None)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _operand(lead: tuple[int, ...], rows: int, columns: int, form: str, dtype: torch.dtype):
    if form == "transposed":
        return torch.randn(*lead, columns, rows).to(dtype).transpose(-1, -2)
    if form == "stepped":
        return torch.randn(*lead, rows, 2 * columns + 3).to(dtype)[..., 1 : 2 * columns + 1 : 2]
    if form == "expanded" and lead:
        return torch.randn(rows, columns).to(dtype).expand(*lead, rows, columns)
    return torch.randn(*lead, rows, columns).to(dtype)


def _assert_product(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    x, y = x.double(), y.double()
    error = (out.double() - x @ y).abs() / (1e-3 + x.abs() @ y.abs())
    assert error.max() <= ROUNDING[out.dtype]


FORMS = st.sampled_from(["dense", "transposed", "stepped", "expanded"])


@pytest.mark.parametrize("way", WAYS)
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    batch=st.sampled_from([(), (), (1,), (3,)]),
    forms=st.tuples(FORMS, FORMS),
    dtype=st.sampled_from(list(ROUNDING)),
    threads=st.sampled_from([1, 2, 3]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products(way, sizes, batch, forms, dtype, threads, compiler) -> None:
    m, n, k = sizes
    x, y = _operand(batch, m, k, forms[0], dtype), _operand(batch, k, n, forms[1], dtype)
    tuner = Fixed(compiler).install()
    tuner.way = way
    out = torch.full((*batch, m, n), torch.nan, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (torch.ops.tenon.bmm.out if batch else torch.ops.tenon.mm.out)(x, y, out=out)
    finally:
        torch.set_num_threads(before)
    _assert_product(out, x, y)


def test_what_the_generated_kernel_does_not_cover(compiler: CpuCompiler) -> None:
    Fixed(compiler).install()
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    out = torch.empty(5, 3, dtype=torch.float64).t()
    assert torch.equal(torch.ops.tenon.mm.out(x, y, out=out), x @ y)
    empty = torch.full((2, 3), torch.nan)
    torch.ops.tenon.mm.out(torch.empty(2, 0), torch.empty(0, 3), out=empty)
    assert torch.equal(empty, torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match=r"tenon::mm: shapes \[3, 4\] and \[3, 4\]"):
        torch.ops.tenon.mm.out(x, x, out=out)
    square = torch.randn(4, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ops.tenon.mm.out(square, square, out=square)


def test_an_interrupt_waits_until_a_way_is_chosen(compiler: CpuCompiler) -> None:
    class Interrupted(Fixed):
        way = "pytorch"

        def choose(self, key: tuple[int, ...], trial: object) -> str:
            signal.raise_signal(signal.SIGINT)
            return super().choose(key, trial)

    Interrupted(compiler).install()
    x, y, out = torch.randn(130, 70), torch.randn(70, 90), torch.zeros(130, 90)
    with pytest.raises(KeyboardInterrupt):
        torch.ops.tenon.mm.out(x, y, out=out)
    torch.testing.assert_close(out, x @ y)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_deterministic_products_do_not_depend_on_time(
    batch: tuple[int, ...], compiler: CpuCompiler, deterministic: None
) -> None:
    asked: list[tuple[int, ...]] = []

    class Asked(Fixed):
        def choose(self, key: tuple[int, ...], trial: object) -> str:
            asked.append(key)
            return super().choose(key, trial)

    Asked(compiler).install()
    multiply = torch.ops.tenon.bmm.out if batch else torch.ops.tenon.mm.out
    x, y, out = torch.randn(*batch, 130, 1000), torch.randn(*batch, 1000, 70), torch.empty(0)
    assert torch.equal(multiply(x, y, out=out), x @ y)
    assert not asked
    # A choice made outside of the mode does not count within it.
    torch.use_deterministic_algorithms(False)
    multiply(x, y, out=out)
    assert len(asked) == 1
    torch.use_deterministic_algorithms(True)
    assert torch.equal(multiply(x, y, out=out), x @ y)


def test_the_choice_outlives_the_process(tmp_path: Path) -> None:
    x, y, out = torch.randn(64, 48), torch.randn(48, 80), torch.empty(64, 80)
    first, second = (Tuner(CpuCompiler(Cache(tmp_path / "cache"))) for _ in range(2))
    chosen = []
    for tuner in (first, second):
        tuner.install()
        torch.ops.tenon.mm.out(x, y, out=out)
        _assert_product(out, x, y)
        chosen.append([f.read_bytes() for f in (tmp_path / "cache").glob("mm-*.json")])
    assert chosen[0] == chosen[1] and len(chosen[0]) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"body": {"winner": "magic"}, "digest": "0"}'])
def test_a_damaged_choice_is_made_anew(
    damage: bytes, tmp_path: Path, no_plan_in_work: None
) -> None:
    x, y, out = torch.randn(20, 20), torch.randn(20, 20), torch.empty(20, 20)
    for _ in range(2):
        Tuner(CpuCompiler(Cache(tmp_path / "cache"))).install()
        torch.ops.tenon.mm.out(x, y, out=out)
        _assert_product(out, x, y)
        (entry,) = (tmp_path / "cache").glob("mm-*.json")
        good = entry.read_bytes()
        assert good != damage
        entry.write_bytes(damage)


def test_a_tuner_that_fails_leaves_the_library(
    compiler: CpuCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Tuner):
        def choose(self, key: tuple[int, ...], trial: object) -> str:
            raise ValueError("no way")

    Failing(compiler).install()
    x, y, out = torch.randn(8, 8), torch.randn(8, 8), torch.empty(8, 8)
    assert torch.equal(torch.ops.tenon.mm.out(x, y, out=out), x @ y)
    assert "no way" in caplog.text


def test_without_a_compiler_the_libraries_are_left(tmp_path: Path) -> None:
    tuner = Tuner(CpuCompiler(Cache(tmp_path / "cache"), "no-such-compiler")).install()
    x, y, out = torch.randn(40, 40), torch.randn(40, 40), torch.empty(40, 40)
    torch.ops.tenon.mm.out(x, y, out=out)
    _assert_product(out, x, y)
    (entry,) = (f.name for f in (tmp_path / "cache").glob("mm-*.json"))
    assert tuner.compiler.cache.read_json(entry)["winner"] in ("pytorch", "onednn")
