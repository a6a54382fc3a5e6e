"""The scratchpad of examples/scratchpad: right results, and copies that run behind computation."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest
from fresh_process import output

ROOT = Path(__file__).parents[2]
TARGET = f"{ROOT / 'examples' / 'scratchpad' / 'scratchpad.py'}:Scratchpad"

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("gcc") is None, reason="there is no C compiler"
)

START = """
    import torch, torch_tenon
    import torch.nn.functional as F

    target = torch_tenon.target()
    backend = target.backend
    torch.seed()

    def ran(function, *given, name="", rtol=1e-4, atol=1e-5):
        "What is counted of a compiled function, whose results are the CPU's."
        torch._dynamo.reset()
        graph = torch.compile(function, backend="tenon", dynamic=False)
        moved = [x.to("tenon") for x in given]
        target.counted()
        found, expected = graph(*moved), function(*given)
        counted = target.counted()
        torch.testing.assert_close(
            found.cpu(), expected, rtol=rtol, atol=atol, msg=lambda text: f"{name}: {text}"
        )
        return counted
"""


def _run(*parts: str) -> str:
    code = "".join(map(textwrap.dedent, (START, *parts)))
    return output(code, TENON_TARGET=TARGET, TENON_EXECUTE="compiled")


# Cycles of functions of matrices of 300 x 1000, which README.md has as well: each tile copied, then
# computed, and the next one copied beside.
CYCLES = [
    ("x * y + 1", 333550, 170964),
    ("(x * y).tanh().exp() + x", 371050, 208464),
    ("x.softmax(1)", 344500, 267093),
    ("F.layer_norm(x, (1000,))", 387500, 310838),
    ("x.sum(0)", 121800, 82558),
    ("(x.t() * 2).contiguous()", 213800, 134238),
]


@pytest.mark.slow
def test_copies_run_behind_computation() -> None:
    code = f"""
        import sys
        names = type(backend).kernel.__globals__
        twice = names["double_buffer"]
        x, y = torch.randn(300, 1000), torch.randn(300, 1000)
        for text, *_ in {CYCLES}:
            function = eval("lambda x, y: " + text)
            names["double_buffer"] = lambda tree: tree
            after = ran(function, x, y)
            names["double_buffer"] = twice
            beside = ran(function, x, y)
            assert after.copying == beside.copying and after.alone == beside.alone == 0
            computing = after.cycles - after.waiting
            # Where a tile is waited for at once nothing is hidden. Else nothing is waited for but
            # the first tile, or the engine, where that takes longer than the vector unit.
            assert after.waiting == after.copying + 100 * after.copies, text
            assert computing <= beside.cycles - beside.waiting < 1.002 * computing, text
            first = 32768 / 16 + 200
            assert beside.cycles < max(computing, beside.copying + 100 * beside.copies) + first
            print((text, after.cycles, beside.cycles), end=", ")
    """
    assert _run(code) == "".join(f"{row}, " for row in CYCLES).strip()
    page = (ROOT / "examples" / "scratchpad" / "README.md").read_text()
    for text, after, beside in CYCLES:
        assert f"| `{text}` | {after:,} | {beside:,} |" in page


# Cycles of products, which README.md has as well: each step along the sums copied, then multiplied;
# with the next one copied beside; and that with loops before and after in kernels of their own.
PRODUCTS = [
    ("x @ y", "float32", (256, 256, 256), 162048, 101536, 101536),
    ("x @ y", "float32", (256, 1024, 256), 574464, 307840, 307840),
    ("x @ y", "bfloat16", (256, 1024, 256), 422400, 287184, 287184),
    ("x @ y", "float32", (300, 100, 200), 85264, 65280, 65280),
    ("torch._int_mm(x, y)", "int8", (256, 1024, 256), 162048, 101536, 101536),
    ("torch._int_mm(x, y)", "int8", (300, 100, 200), 39554, 38960, 38960),
    (
        "(torch._int_mm(x, y) * 0.02).to(torch.int8)",
        "int8",
        (256, 1024, 256),
        162048,
        101536,
        128265,
    ),
    ("F.gelu(x @ y + y[0])", "float32", (256, 256, 256), 199440, 138928, 165169),
    ("torch.relu(x) @ y", "float32", (256, 256, 128), 96512, 59624, 81593),
    ("torch.relu((x * 2) @ y + y[0])", "float32", (256, 512, 64), 114036, 68088, 122316),
]


@pytest.mark.slow
def test_a_matrix_unit_multiplies_with_what_is_before_and_after() -> None:
    code = f"""
        from unittest import mock
        from torch_tenon.ops.lowerings import activations
        # As where the host's kernel is a library's, whatever this host has.
        activations._gelu_of_infinity = lambda dtype: float("nan")
        names = type(backend).kernel.__globals__
        twice = names["double_buffer"]
        refuse = lambda *given: "each by itself"
        for text, dtype, (m, k, n), *_ in {PRODUCTS}:
            function = eval("lambda x, y: " + text)
            scale = 8 if dtype == "int8" else 1 / 8
            x, y = torch.randn(m, k) * scale, torch.randn(k, n) * scale
            x, y = x.to(getattr(torch, dtype)), y.to(getattr(torch, dtype))
            most = dict(bfloat16=2e-2, int8=0).get(dtype, 1e-4)
            close = dict(rtol=most, atol=most)
            with mock.patch.dict(names, double_buffer=lambda tree: tree):
                after = ran(function, x, y, **close)
            beside = ran(function, x, y, **close)
            with mock.patch.object(type(backend), "fusion_problem", refuse):
                with mock.patch.object(type(backend), "prologue_problem", refuse):
                    apart = ran(function, x, y, **close)
            tiles = -(-m // 16) * -(-k // (64 if dtype == "int8" else 16)) * -(-n // 16)
            for counted in (after, beside, apart):
                assert counted.multiplying == 16 * tiles and counted.alone == 0, text
            assert after.copying == beside.copying <= apart.copying, text
            assert after.waiting == after.copying + 100 * after.copies, text
            row = text, dtype, (m, k, n), *(c.cycles for c in (after, beside, apart))
            print(row, end=", ")
    """
    assert _run(code) == "".join(f"{row}, " for row in PRODUCTS).strip()
    page = (ROOT / "examples" / "scratchpad" / "README.md").read_text()
    for text, dtype, sizes, *cycles in PRODUCTS:
        row = [f"`{text}`", dtype, " x ".join(map(str, sizes)), *(f"{c:,}" for c in cycles)]
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.slow
def test_products_of_any_shape_agree_with_the_cpu() -> None:
    code = """
        r = lambda *sizes: torch.randn(sizes) / 4
        bytes = torch.arange(80).view(40, 2).to(torch.int8)
        PRODUCTS = {
            "matrices": (lambda x, y: x @ y, r(1, 1), r(1, 1)),
            "a row": (lambda x, y: x @ y, r(1, 300), r(300, 70)),
            "edges": (lambda x, y: torch.relu(x) @ y.exp(), r(33, 47), r(47, 65)),
            "turned": (lambda x, y: (x.t() @ y.t()) * 2, r(47, 33), r(65, 47)),
            "views": (lambda x, y: x[1:, ::2] @ y[3:, 1:], r(20, 40), r(23, 30)),
            "batches": (lambda x, y: torch.baddbmm(x[..., :1], x, y), r(3, 20, 40), r(3, 40, 50)),
            "linear": (lambda x, y: F.linear(x, y, y[:, 0]).tanh() + 1, r(2, 7, 30), r(9, 30)),
            "bytes": (lambda x, y: x @ (y.float() * 0.01), r(30, 40), bytes),
            "images": (lambda x, y: F.conv2d(x, y, padding=1) + 1, r(2, 3, 9, 9), r(5, 3, 3, 3)),
            "attention": (lambda x, y: (x @ y.mT).softmax(-1) @ y, r(2, 20, 24), r(2, 20, 24)),
            "twice": (lambda x, y: torch.relu(x @ y) @ y.t(), r(40, 50), r(50, 60)),
        }
        for name, (function, *given) in PRODUCTS.items():
            counted = ran(function, *given, name=name, rtol=1e-4, atol=1e-4)
            assert counted.multiplying > 0, name
        # What the unit has no numbers for is the host's, as it was.
        for dtype, most in ((torch.float64, 1e-9), (torch.float16, 1e-2)):
            given = r(5, 6).to(dtype), r(6, 7).to(dtype)
            assert ran(lambda x, y: x @ y, *given, rtol=most, atol=most).multiplying == 0
        # One kernel for many sizes.
        graph = torch.compile(lambda x, y: torch.relu(x) @ y + 1, backend="tenon", dynamic=True)
        for m, k, n in ((33, 50, 70), (7, 64, 16), (200, 9, 31)):
            x, y = r(m, k), r(k, n)
            target.counted()
            found = graph(x.to("tenon"), y.to("tenon")).cpu()
            torch.testing.assert_close(found, torch.relu(x) @ y + 1, rtol=1e-4, atol=1e-4)
            assert target.counted().multiplying == -(-m // 16) * -(-k // 16) * -(-n // 16) * 16
        # Gradients are products as well.
        x, w = r(30, 40), r(50, 40)
        def loss(x, w):
            return F.gelu(F.linear(x, w)).square().sum()
        def gradients(function, x, w):
            w = w.clone().requires_grad_()
            function(x, w).backward()
            return w.grad.cpu()
        found = gradients(torch.compile(loss, backend="tenon"), x.to("tenon"), w.to("tenon"))
        torch.testing.assert_close(found, gradients(loss, x, w), rtol=1e-4, atol=1e-4)
        print("agree")
    """
    assert _run(code) == "agree"


@pytest.mark.slow
def test_products_of_bytes_are_the_cpus_to_the_last_bit() -> None:
    code = """
        import random
        from torch._higher_order_ops.out_dtype import out_dtype

        def bytes_of(*sizes):
            x = torch.randint(-128, 128, sizes).to(torch.int8)
            return x if random.random() < 0.5 else x.mT.contiguous().mT

        def layer(x, y):
            sums = torch._int_mm((x * 20).round().clamp(-128, 127).to(torch.int8), y)
            return (torch.relu(sums) * 0.25).round().clamp(-128, 127).to(torch.int8)

        def wide(x, y):
            return out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)

        exact = dict(rtol=0, atol=0)
        for _ in range(4):
            m, k, n = (random.randrange(1, most) for most in (90, 300, 90))
            tiles = -(-m // 16) * -(-k // 64) * -(-n // 16)
            x, y = bytes_of(m, k), bytes_of(k, n)
            for function, *given in (
                (torch._int_mm, x, y),
                (wide, x, y),
                (lambda x, y: torch._int_mm(x.clamp(min=0), y ^ 3) * 3 + 1, x, y),
                (lambda x, y: x @ y, x, y),  # wraps
                (layer, torch.randn(m, k), y),
            ):
                counted = ran(function, *given, name=str((m, k, n)), **exact)
                assert counted.multiplying == 16 * tiles and counted.alone == 0, (m, k, n)
        # Eager code is planned the same.
        for _ in range(3):
            found = torch._int_mm(x.to("tenon"), y.to("tenon")) + 1
            torch.testing.assert_close(found.cpu(), torch._int_mm(x, y) + 1, **exact)
        assert target.counted().multiplying > 0
        print("agree")
    """
    assert _run(code) == "agree"


@pytest.mark.slow
def test_an_operand_without_room_is_computed_before_the_product() -> None:
    code = """
        import dataclasses
        small = {"scratch": 1 << 13, "accumulator": 1 << 13}
        backend.capabilities = dataclasses.replace(backend.capabilities, spaces=small)
        several = lambda y, *x: sum(x[1:], x[0]) @ y
        given = [torch.randn(60, 70) / 8 for _ in range(8)]
        counted = ran(several, torch.randn(70, 50), *given)
        assert counted.multiplying == 16 * 4 * 5 * 4 and counted.alone == 0
        print("agree")
    """
    assert _run(code) == "agree"


@pytest.mark.slow
def test_what_a_prologue_reads_stays_until_the_last_piece() -> None:
    code = """
        write, prologues = backend.kernel, []

        def kernel(group, kept):
            prologues.append(len(group.prologue))
            return write(group, kept)

        backend.kernel = kernel
        functions = [
            lambda x, y: x.add_(torch.relu(x) @ y),
            lambda x, y: x.copy_(torch.relu(x) @ y),
            lambda x, y: x.mul_(2).sub_(torch.relu(x) @ y).mul_(3),
        ]
        for function in functions:
            graph = torch.compile(function, backend="tenon", dynamic=False)
            for run in (function, graph):
                for _ in range(3):
                    x, y = torch.randn(256, 256) / 16, torch.randn(256, 256) / 16
                    moved = x.to("tenon")
                    run(moved, y.to("tenon"))
                    function(x, y)
                    torch.testing.assert_close(moved.cpu(), x, rtol=1e-4, atol=1e-4)
        assert sum(prologues) >= 3, prologues
        print("agree")
    """
    assert _run(code) == "agree"


PROGRAMS = """
    table = lambda *sizes, dtype=torch.float32: (torch.randn(sizes) * 3).to(dtype)
    PROGRAMS = {
        "not divided": (lambda x, y: x.exp() * y, table(10007), table(10007)),
        "three dimensions": (lambda x, y: x[:, 1:] * y[:, None], table(7, 6, 31), table(7, 31)),
        "every third": (lambda x: x[::3, 1::3] + 1, table(100, 301)),
        "backwards": (lambda x: x.flip(0).flip(1) * 2, table(33, 501)),
        "transposed": (lambda x, y: x.t() + y, table(70, 501), table(501, 70)),
        "broadcast": (lambda x, y: x * y + y.amax(), table(50, 333), table(333)),
        "mask": (lambda x, m: x.masked_fill(m, -1.0), table(90, 91), table(90, 91) > 0),
        "where": (lambda x, y: torch.where(x > y, x, y.sin()), table(9000), table(9000)),
        "long sums": (lambda x: x.sum(1), table(3, 20011)),
        "long rows": (lambda x: x.log_softmax(1), table(3, 20011)),
        "short rows": (lambda x: x.softmax(1), table(1001, 3)),
        "columns": (lambda x: x.var(0), table(501, 77)),
        "tall columns": (lambda x: x.amax(0), table(20011, 3)),
        "two reduced": (lambda x: x.sum((0, 2)), table(9, 8, 103)),
        "running": (lambda x: x.cumsum(1), table(5, 10007)),
        "place of the greatest": (lambda x: x.argmax(1), table(50, 403)),
        "norm": (lambda x, w: F.layer_norm(x, (403,), w), table(50, 403), table(403)),
        "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), table(9, 5, 211)),
        "bytes": (lambda x: x * 2 + 1, table(5003, dtype=torch.int8)),
        "whole numbers": (lambda x, y: x // y.abs().add(1), *(table(999, dtype=torch.int64),) * 2),
        "half": (lambda x: (x.float() * 2).sum(1), table(50, 303, dtype=torch.float16)),
        "bfloat16": (lambda x: x * 2, table(50, 303, dtype=torch.bfloat16)),
        "doubles": (lambda x: x.exp().prod(1), table(50, 30, dtype=torch.float64)),
        "looked up": (lambda x, k: x[k] * 2, table(50, 303), torch.randint(0, 50, (9,))),
        "again": (lambda x: x.sigmoid() * x - x.mean(), table(9001)),
    }
    # What is read number by number: a load by a mask, an index that each number has, a scatter.
    ALONE = {
        "one number": (lambda x: x * 2, table(1)),
        "joined": (lambda x, y: torch.cat([x.sin(), y], 1), table(9, 301), table(9, 7)),
        "padded": (lambda x: F.pad(x, (1, 2)).exp(), table(9, 301)),
        "gathered": (lambda x, k: x.gather(1, k), table(9, 301), torch.randint(0, 301, (9, 40))),
        "scattered": (
            lambda x, k, v: x.index_add(0, k, v),
            table(7, 40), torch.randint(0, 7, (90,)), table(90, 40),
        ),
    }
"""


@pytest.mark.slow
@pytest.mark.parametrize("capacity", (1 << 16, 1 << 12))
def test_programs_agree_with_the_cpu(capacity: int) -> None:
    code = f"""
        from torch_tenon.compiler.capabilities import Capabilities
        backend.capabilities = Capabilities(spaces={{"scratch": {capacity}}})
        write, failed = backend.kernel, []

        def kernel(group, kept):
            try:
                return write(group, kept)
            except NotImplementedError as error:
                failed.append(str(error))
                raise

        backend.kernel = kernel
        for name, (function, *given) in (PROGRAMS | ALONE).items():
            counted = ran(function, *given, name=name)
            assert counted.cycles > 0 and not failed, (name, failed)
            assert (name in ALONE or counted.copies > 0), name
            if name in PROGRAMS and name != "looked up":
                assert counted.alone < 100, (name, counted.alone)
        print("agree")
    """
    assert _run(PROGRAMS, code) == "agree"


@pytest.mark.slow
def test_one_kernel_serves_many_sizes() -> None:
    code = """
        functions = {
            "pointwise": lambda x: x.exp() * x + 1,
            "rows": lambda x: x.softmax(1),
            "columns": lambda x: x.sum(0),
            "transposed": lambda x: x.t().contiguous() * 2,
            "a view": lambda x: x[:, 1:] * 2,
        }
        for name, function in functions.items():
            torch._dynamo.reset()
            graph = torch.compile(function, backend="tenon", dynamic=True)
            for rows, columns in ((33, 50), (7, 1003), (90, 9001)):
                x = torch.randn(rows, columns)
                target.counted()
                torch.testing.assert_close(graph(x.to("tenon")).cpu(), function(x))
                counted = target.counted()
                assert counted.copies > 0 and counted.alone == 0, (name, rows, columns)
        print("agree")
    """
    assert _run(code) == "agree"
