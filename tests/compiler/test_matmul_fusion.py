"""Random pointwise functions of products are fused with them and give what PyTorch's CPU gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon import _C
from torch_tenon.compiler.cache import Cache
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.targets.c_family.fusion import FEW
from torch_tenon.targets.cpu.autotune import WAYS, Tuner
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler

Operand = Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]

# Steps of an epilogue: of the value so far and (bias, residual, column, turned residual).
STEPS: dict[str, Operand] = {
    "bias": lambda v, e: v + e[0],
    "residual": lambda v, e: v + e[1],
    "scale rows": lambda v, e: v * e[2],
    "turned": lambda v, e: v - e[3].transpose(-1, -2),
    "gelu": lambda v, e: F.gelu(v),
    "relu": lambda v, e: torch.relu(v),
    "tanh": lambda v, e: torch.tanh(v),
    "number": lambda v, e: v * 0.5 + 1,
    "narrow": lambda v, e: v.to(torch.bfloat16).to(v.dtype),
    "mask": lambda v, e: torch.where(e[1] > 0, v, 0),
    "pieces": lambda v, e: torch.cat([x.sigmoid() for x in v.split(70, -1)], -1),
}
CLOSE: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> CpuCompiler:
    return CpuCompiler(Cache(tmp_path_factory.mktemp("cache") / "kernels"))


class Fixed(Tuner):
    """Takes one way wherever it can."""

    way = "generated"

    def choose(self, key: tuple[int, ...], trial: object) -> str:
        return self.way if self.serves(self.way, key) else "pytorch"


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    yield
    _C.set_matmul_tuner(None)


def _compiled(function: Callable[..., Any], args: list[torch.Tensor], tuner: Tuner) -> Any:
    graph = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*args)
    run = compile_graph(graph, args, CpuBackend(tuner.compiler))
    tuner.install()
    return run


def _assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, **CLOSE[want.dtype])


@pytest.mark.slow
@given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4),
    sizes=st.tuples(*[st.sampled_from([1, 3, 8, 17, 40, 130])] * 3),
    batch=st.sampled_from([(), (3,)]),
    dtype=st.sampled_from(list(CLOSE)),
    way=st.sampled_from(WAYS),
    both=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_epilogues(steps, sizes, batch, dtype, way, both, compiler) -> None:
    m, n, k = sizes
    shapes = [(*batch, m, k), (*batch, k, n), (n,), (*batch, m, n), (m, 1), (*batch, n, m)]
    # Weights small enough that rounding a product does not flip what follows.
    args = [torch.randn(s).mul_(0.5).to(dtype) for s in shapes]

    def function(x, y, *extra):
        v = product = x @ y
        for s in steps:
            v = STEPS[s](v, list(extra))
        return (v, product) if both else (v,)

    tuner = Fixed(compiler)
    tuner.way = way
    run = _compiled(function, args, tuner)
    kernels = [s.kernel for s in run.compiled.plan.steps]
    crosses = "turned" in steps and prod((*batch, m, n)) > FEW
    apart = crosses or "pieces" in steps  # long ones are kernels of their own
    assert kernels[0].layout == "matmul" and (apart or len(kernels) == 1)
    with torch.no_grad():
        wanted = [t.to(dtype) for t in function(*(a.float() for a in args))]
    # What is narrowed on the way may be rounded to another number: sums differ in their last bits.
    close = torch.bfloat16 if "narrow" in steps else dtype
    for got, want in zip(run(list(args)), wanted, strict=True):
        torch.testing.assert_close(got, want, **CLOSE[close])


@pytest.mark.parametrize("way", WAYS)
def test_slices_of_a_long_sum(way: str, compiler: CpuCompiler) -> None:
    def function(x, y, b):
        return (torch.relu(x @ y + b).sum(0), (x @ y).t() * 2)

    args = [torch.randn(130, 1000) / 30, torch.randn(1000, 70), torch.randn(70)]
    tuner = Fixed(compiler)
    tuner.way = way
    for got, want in zip(
        _compiled(function, args, tuner)(list(args)), function(*args), strict=True
    ):
        _assert_close(got, want)


def test_a_deterministic_product_is_the_library_s(compiler: CpuCompiler) -> None:
    def function(x, y, b):
        product = x @ y
        return (product, torch.relu(product + b))

    args = [torch.randn(130, 1000), torch.randn(1000, 70), torch.randn(70)]
    run = _compiled(function, args, Fixed(compiler))
    assert len(run.compiled.plan.steps) == 1
    run(list(args))  # chooses the generated driver
    torch.use_deterministic_algorithms(True)
    try:
        for got, want in zip(run(list(args)), function(*args), strict=True):
            assert torch.equal(got, want)
    finally:
        torch.use_deterministic_algorithms(False)


def test_rows_in_several_dimensions(compiler: CpuCompiler) -> None:
    # The residual's first two dimensions are no single one in memory.
    def function(x, w, r):
        return (F.linear(x, w) + r.transpose(0, 1),)

    args = [torch.randn(6, 5, 16), torch.randn(24, 16), torch.randn(5, 6, 24)]
    run = _compiled(function, args, Fixed(compiler))
    assert len(run.compiled.plan.steps) == 1
    _assert_close(run(list(args))[0], function(*args)[0])


def test_an_operand_is_not_overwritten_early(compiler: CpuCompiler) -> None:
    # The result replaces what the product reads: it has to wait for the whole product.
    def function(x, w):
        return (x.copy_(torch.relu(x @ w)),)

    x, w = torch.randn(300, 300) / 20, torch.randn(300, 300)
    want = torch.relu(x @ w)
    run = _compiled(function, [x.clone(), w], Fixed(compiler))
    written = x.clone()
    _assert_close(run([written, w])[0], want)
    _assert_close(written, want)


def test_what_the_product_needs_comes_first(compiler: CpuCompiler) -> None:
    def function(x, w):
        y = torch.relu(x)
        return (y, y @ w + x)

    args = [torch.randn(40, 40), torch.randn(40, 40)]
    run = _compiled(function, args, Fixed(compiler))
    for got, want in zip(run(list(args)), function(*args), strict=True):
        _assert_close(got, want)


def test_a_residual_in_place(compiler: CpuCompiler) -> None:
    def function(x, w, r):
        return (r.add_(x @ w),)

    x, w, r = torch.randn(50, 20), torch.randn(20, 30), torch.randn(50, 30)
    run = _compiled(function, [x, w, r.clone()], Tuner(compiler))
    written = r.clone()
    for _ in range(2):  # the first run has to time the ways without adding more than once
        run([x, w, written])
    _assert_close(written, r + 2 * (x @ w))


def test_dynamic_sizes() -> None:
    torch._dynamo.reset()

    def function(x, w, b):
        return F.gelu(F.linear(x, w, b)) + x.sum()

    w, b = torch.randn(40, 24), torch.randn(40)
    run = torch.compile(function, backend="tenon", dynamic=True)
    for rows in (4, 7, 33):
        x = torch.randn(2, rows, 24)
        _assert_close(run(x, w, b), function(x, w, b))


def test_attention_heads(compiler: CpuCompiler) -> None:
    # Views of a product that no loop over its rows and columns can follow stay apart from it.
    def function(x, w):
        return (F.linear(x, w).unflatten(-1, (4, 6)).transpose(1, 2) + 1,)

    args = [torch.randn(2, 5, 24), torch.randn(24, 24)]
    run = _compiled(function, args, Fixed(compiler))
    _assert_close(run(list(args))[0], function(*args)[0])
