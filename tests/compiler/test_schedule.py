"""What ends up in one kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.ops.lowerings.by_plan import same_at_sizes, same_by_plans
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.ir.program import Program
from torch_tenon.ir.scalar import ops
from torch_tenon.ir.values import Layout, Lazy
from torch_tenon.targets.cpu.backend import cpu_backend


def kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """The sources of the kernels that `function` becomes."""
    module = make_fx(
        lambda *a: [function(*a)] if isinstance(function(*a), torch.Tensor) else function(*a),
        decomposition_table=decompositions(),
        tracing_mode="fake",
    )(*inputs)
    plan = Plan(build(module).program, cpu_backend())
    assert all(s.kernel is not None for s in plan.steps)
    return plan.sources


ONE_KERNEL = {
    "chain": lambda x: torch.sigmoid(torch.tanh(x * 2 + 1).exp()) - x,
    "softmax over rows": lambda x: torch.softmax(x * 2, 1),
    "softmax over columns": lambda x: torch.softmax(x * 2, 0),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x + 1, (256,)),
    "statistics of the same rows": lambda x: [x.mean(1), x.var(1), x.amax(1)],
    "two outputs of one loop": lambda x: [x + 1, x * 2],
    "a value and its row sums": lambda x: [x.exp(), x.exp().sum(1)],
    "a transposed reader": lambda x: x.t() * 2 + 1,
    "the parts of a concatenation": lambda x: torch.cat([x.exp().sigmoid(), x.tanh().exp()], 1),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    assert len(kernels(ONE_KERNEL[name], torch.randn(128, 256))) == 1


# Two dimensions that are read as one: what follows counts both.
JOINED = {
    "heads side by side": lambda x: x.transpose(0, 1).reshape(32, -1) * 2,
    "places of an image as rows": lambda x: x.permute(1, 2, 0).reshape(-1, 16) + 1,
    "pixels side by side": lambda x: torch.pixel_shuffle(x, 4).reshape(-1) + 1,
    "pairs side by side": lambda x: torch.stack([x.exp(), x * 2], -1).flatten(-2) + 1,
    "windows": lambda x: x.view(4, 4, 4, 8, 16).permute(0, 2, 4, 1, 3).reshape(-1, 32) * 2,
    "a softmax of heads": lambda x: x.transpose(0, 1).reshape(32, -1).softmax(1),
    "sums of heads": lambda x: x.transpose(0, 1).reshape(32, -1).sum(0),
    "the norm of heads": lambda x: torch.nn.functional.layer_norm(
        x.transpose(0, 1).reshape(32, -1), (256,)
    ),
    "running sums": lambda x: x.transpose(0, 1).reshape(-1, 16).cumsum(1),
    "the greatest": lambda x: x.transpose(0, 1).reshape(32, -1).argmax(1),
}


@pytest.mark.parametrize("name", JOINED)
def test_no_index_of_a_vector_is_a_quotient(name: str) -> None:
    x = torch.randn(16, 32, 16)
    for source in kernels(JOINED[name], x):
        assert "%" not in source and " / (" not in source
    same_by_plans(JOINED[name], x, rtol=1e-5, atol=1e-5)


# Of windows, pixels and norms the function names the sizes.
ANY_SIZE = [n for n in JOINED if n not in ("windows", "pixels side by side", "the norm of heads")]


@pytest.mark.parametrize("name", ANY_SIZE)
def test_dimensions_of_any_size_are_read_as_one(name: str) -> None:
    def make(n: int) -> list[torch.Tensor]:
        return [torch.randn(n, 32, 16)]

    same_at_sizes(JOINED[name], make, rtol=1e-5, atol=1e-5)


def test_what_crosses_the_rows_of_a_product_has_a_loop_of_its_own() -> None:
    x = torch.randn(128, 128)
    assert len(kernels(lambda x: (x @ x + 1).t().contiguous(), x)) == 2
    assert len(kernels(lambda x: (x @ x + 1) * x, x)) == 1


def test_rows_that_nobody_else_sees_stay_on_the_stack() -> None:
    (source,) = kernels(lambda x: torch.softmax(x, 1), torch.randn(128, 256))
    assert "float row0[256]" in source
    assert source.count("*const x") == 2


@pytest.mark.slow
def test_all_rows_of_a_kernel_take_little_of_the_stack() -> None:
    def centred_again_and_again(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = (x - x.mean(1, keepdim=True)).exp()
        return x

    def declared(n: int) -> list[int]:
        (source,) = kernels(centred_again_and_again, torch.randn(16, n))
        return [int(size) for size in re.findall(r"float row\d+\[(\d+)\]", source)]

    assert declared(1000) == [1000] * 11
    assert 0 < 4 * sum(declared(30_000)) <= 1 << 20
    x = torch.rand(16, 30_000) * 0.1
    (found,) = run_plan(centred_again_and_again, x)
    torch.testing.assert_close(found, centred_again_and_again(x), rtol=1e-4, atol=1e-5)


def run_plan(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the plan of `function` gives."""
    module = make_fx(lambda *a: [function(*a)], decompositions(), tracing_mode="fake")(*inputs)
    return Plan(build(module).program, cpu_backend()).compile().run(list(inputs))


def test_what_reads_old_contents_stands_before_what_replaces_them() -> None:
    """Also where that is computed later, which as one kernel would read what was just written."""
    program = Program()
    x = program.input(torch.float32, Layout.contiguous((64,)))
    late = Lazy(x.sizes, x.dtype, lambda p: x.load([63 - p[0]]), (x,))
    more = Lazy(x.sizes, x.dtype, lambda p: ops.add(x.load(p), 1.0), (x,))
    written = program.write(x, more)
    program.outputs += [program.copy(late), written]
    plan = Plan(program, cpu_backend()).compile()
    given = torch.arange(64.0)
    turned, changed = plan.run([given])
    assert torch.equal(turned, torch.arange(64.0).flip(0))
    assert torch.equal(changed, torch.arange(64.0) + 1)


def test_a_long_reduction_is_split_for_the_threads() -> None:
    assert len(kernels(lambda x: x.sum(), torch.randn(1 << 20))) == 2


def test_tiles_of_a_transposed_reader_are_turned_in_the_cache() -> None:
    (source,) = kernels(lambda x, y: (x.t() + y).contiguous(), *[torch.randn(256, 256)] * 2)
    assert "turn_32(" in source


def test_dead_code_goes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.exp().sum(1)
        return x + 1

    (source,) = kernels(f, torch.randn(64, 64))
    assert "exp" not in source


def test_loops_that_share_only_a_scalar_stay_apart_and_run_as_one_step() -> None:
    def update(step: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [t * step + k for k, t in enumerate(tensors)]

    tensors = [torch.randn(64, 128) for _ in range(10)]
    (source,) = kernels(lambda s, *t: [x * s for x in t], torch.randn(()), *tensors)
    assert "set < 10" in source
    assert source.count("*const x") == 3  # a set's input, the scalar, its output
    assert len(kernels(update, torch.randn(()), *tensors)) == 10  # other code for each


def test_loops_over_other_parts_of_a_buffer_stay_apart() -> None:
    n = 1 << 18
    x, y, s = torch.randn(2 * n + 1), torch.randn(2, n), torch.randn(())

    def parts(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        return [x[:n] * y[0] * s, x[n : 2 * n].exp() + y[1] + s]

    def overlapping(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        return [x[:n] * y[0] * s, x[1 : n + 1].exp() + y[1] + s]

    assert len(kernels(parts, x, y, s)) == 2
    assert len(kernels(overlapping, x, y, s)) == 1


def test_steps_that_need_each_other_stay_apart() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.sum(0, keepdim=True).mT * x
        return x

    sources = kernels(f, torch.randn(64, 64))
    assert len(sources) >= 20
    assert not any("set <" in s for s in sources)


@pytest.mark.parametrize(
    "name", ["chain", "softmax over rows", "layer norm", "two outputs of one loop"]
)
def test_more_rows_run_the_same_code(name: str) -> None:
    few, many = (kernels(ONE_KERNEL[name], torch.randn(n, 256)) for n in (512, 1536))
    assert few == many


def test_where_pieces_end_along_the_lanes_is_known_to_the_compiler() -> None:
    """It splits the loop there: each piece computes its own, not all of them every piece."""
    (source,) = kernels(ONE_KERNEL["the parts of a concatenation"], torch.randn(128, 256))
    assert "INT64_C(256)" in source


def test_a_piece_of_the_innermost_loop_computes_its_own() -> None:
    def gates(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b, c = (x @ w + 1).chunk(3, 1)
        return torch.cat([a.sigmoid(), b.tanh(), c.sigmoid()], 1)

    (source,) = kernels(gates, torch.randn(20, 64), torch.randn(64, 192))
    bounds = ["j < (right < 64 ? right : 64)", "j < (right < 128 ? right : 128)", "j < right"]
    assert all(source.count(bound) == 1 for bound in bounds)
    assert "INT64_C(64)" not in source
    assert "INT64_C(128)" not in source


AT_PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a frame": lambda x: torch.nn.functional.pad(x, (3, 70)).exp(),
    "a band": lambda x: x.triu(-40).tril(90) + 1,
    "up to a column": lambda x: torch.where(torch.arange(x.shape[1]) <= 70, x.sin(), x),
    "beyond a column": lambda x: torch.where(torch.arange(x.shape[1]) > 70, x.sin(), x),
    "from a column on": lambda x: torch.where(torch.arange(x.shape[1]) >= 70, x.sin(), x),
    "nowhere": lambda x: torch.where(torch.arange(x.shape[1]) < -3, x.sin(), x),
    "everywhere": lambda x: torch.where(torch.arange(x.shape[1]) < 1000, x.sin(), x),
    "columns later": lambda x: torch.where(torch.arange(9, 9 + x.shape[1]) < 90, x.sin(), x),
    "from the first on, to a column": lambda x: torch.where(
        (torch.arange(x.shape[1]) >= 0) & (torch.arange(x.shape[1]) < 70), x.sin(), x
    ),
    "before the first, or from a column on": lambda x: torch.where(
        (torch.arange(x.shape[1]) < -3) | (torch.arange(x.shape[1]) > 70), x.sin(), x
    ),
    "many pieces": lambda x: torch.cat([x.split(16, 1)[k] * k for k in range(12)], 1),
    "shifted": lambda x: torch.cat([x[:, 100:].exp(), x[:, :100].sin()], 1),
}


@pytest.mark.parametrize("name", AT_PLACES)
@pytest.mark.parametrize("columns", [191, 192, 1500])
def test_what_depends_on_the_place(name: str, columns: int) -> None:
    function = AT_PLACES[name]
    if name == "many pieces" and columns == 1500:
        columns = 200
    x = torch.randn(7, columns)
    graph = make_fx(lambda x: (function(x),), decomposition_table=decompositions())(x)
    (got,) = compile_graph(graph, [x])([x])
    torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-6)


OTHER_SHAPES: dict[str, tuple[Callable[..., Any], Callable[[int], list[torch.Tensor]]]] = {
    "a cache that grows": (
        lambda kept, new: torch.cat([kept, new], 1) * 2,
        lambda n: [torch.randn(4, n, 32), torch.randn(4, 1, 32)],
    ),
    "a part of longer sequences": (
        lambda x: x[:, 20:, 64:] + 1,
        lambda n: [torch.randn(2, n, 192)],
    ),
    "products of more rows": (
        lambda x, w: torch.relu(x @ w + 1),
        lambda n: [torch.randn(n, 64), torch.randn(64, 128)],
    ),
    "rows of a table": (
        lambda table, i: table[i] * 2,
        lambda n: [torch.randn(n, 64), torch.arange(20)],
    ),
}


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_other_shapes_run_the_same_code(name: str) -> None:
    function, inputs = OTHER_SHAPES[name]
    few, many = (kernels(function, *inputs(n)) for n in (37, 53))
    assert few == many


SCANS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sums": lambda x: x.cumsum(1),
    "products": lambda x: (x / 8).exp().cumprod(1),
    "extremes": lambda x: x.cummax(1),
    "logarithms": lambda x: x.logcumsumexp(1),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("shape", [(4, 6, 8), (2, 3, 5), (20, 16, 24)], ids=str)
def test_a_scan_keeps_its_order_beside_a_reduction(name: str, shape: tuple[int, ...]) -> None:
    """The reduction goes through the same elements in another one."""

    def compute(x: torch.Tensor, scan: Callable[[torch.Tensor], Any] = SCANS[name]) -> Any:
        turned = (x * 2).transpose(1, 2)
        return [turned.sum((1, 2)), scan(x.reshape(x.shape[0], -1))]

    x = torch.randn(shape)
    assert len(kernels(lambda x: compute(x, SCANS["sums"]), x)) == 1
    same_by_plans(compute, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [16, 600])
def test_long_operations_before_the_lanes_of_few_columns(rows: int) -> None:
    """What no lane changes stands before the lanes, in the loop over the columns."""

    def compute(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        y = row.expand(rows, 2, 2, 1)
        return torch.cat([x * y[:, :1].sigmoid(), y[:, 1:].tanh() * x * y[:, :1].exp()], 1)

    same_by_plans(
        compute, torch.randn(rows, 1, 2, 1), torch.randn(1, 2, 2, 1), rtol=1e-5, atol=1e-6
    )
