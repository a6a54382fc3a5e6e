"""What depends on the target is asked of its backend, and nothing else decides it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import REMOTE_TARGET, TESTS, output
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon import device
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.plan import Plan
from torch_tenon.compiler.schedule import Member
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.ir.program import Program
from torch_tenon.targets.cpu.backend import CpuBackend, cpu_backend

Function = Callable[..., list[torch.Tensor]]


class Particular(CpuBackend):
    """The cpu target's, with limits and answers that a test gives it."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(cpu_backend().compiler)
        self.asked: list[tuple[int, int, bool]] = []
        self.problem: str | None = None
        self.piece = 0
        for name, answer in answers.items():
            assert hasattr(self, name)
            setattr(self, name, answer)

    def fusion_problem(self, members: Sequence[Member]) -> str | None:
        return self.problem or super().fusion_problem(members)

    def piece_length(self, rows: int, length: int, rows_lie_dense: bool) -> int:
        self.asked.append((rows, length, rows_lie_dense))
        return self.piece


def program(function: Function, *inputs: torch.Tensor) -> Program:
    return build(make_fx(function, decompositions(), tracing_mode="fake")(*inputs)).program


def kernels(backend: Backend, function: Function, *inputs: torch.Tensor) -> int:
    """How many kernels the backend makes of a function; they give what PyTorch gives."""
    plan = Plan(program(function, *inputs), backend).compile()
    torch.testing.assert_close(plan.run(inputs), function(*inputs))
    return len(plan.kernels)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend | None], None]:
    """Makes a backend the target's."""
    return lambda backend: monkeypatch.setattr(device.target(), "backend", backend)


def row_statistics(x: torch.Tensor) -> list[torch.Tensor]:
    return [x - x.amax(1, True), x.sum(1), x.exp()]


def test_how_much_is_one_kernel() -> None:
    x = torch.randn(40, 300)
    assert kernels(Particular(), row_statistics, x) == 1
    assert kernels(Particular(most_members=1), row_statistics, x) == 4
    assert kernels(Particular(most_buffers=2), row_statistics, x) > 1
    unwilling = Particular(problem="not here")
    assert kernels(unwilling, row_statistics, x) == 4
    rejected = Plan(program(row_statistics, x), unwilling).schedule.rejected
    assert {why for *_, why in rejected} >= {"not here"}


def test_when_little_is_shared() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        return [x * s, x.flip(0)[:10] * s]

    x, s = torch.randn(5000), torch.randn(())
    assert kernels(Particular(launch_iterations=0), f, x, s) == 2


def test_reductions_in_pieces(ask: Callable[[Backend | None], None]) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(0), x.sum(1), x.sum()]

    x = torch.randn(60, 500)
    for piece, count in ((0, 1), (1000, 2)):
        backend = Particular(piece=piece)
        ask(backend)
        made = program(lambda x: [x.sum()], x)
        assert len(made.nodes) == count
        torch.testing.assert_close(Plan(made, backend).compile().run([x]), [x.sum()])
        made = program(f, x)
        assert backend.asked[-3:] == [(500, 60, True), (60, 500, False), (1, 30000, False)]
    ask(None)
    assert len(program(lambda x: [x.sum()], x).nodes) == 1


def test_products_of_dtypes_that_it_has(ask: Callable[[Backend | None], None]) -> None:
    x = torch.randn(30, 30)
    for dtypes, kind in ((frozenset({torch.float32}), "matmul"), (frozenset(), "call")):
        backend = Particular(product_dtypes=dtypes)
        ask(backend)
        plan = Plan(program(lambda x: [x @ x], x), backend).compile()
        assert [s.kernel.layout if s.kernel else "call" for s in plan.steps] == [kind]
        torch.testing.assert_close(plan.run([x]), [x @ x])


def test_a_group_that_it_has_no_code_for_runs_by_reference(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Without(Backend):
        name = "without"

    x = torch.randn(3)
    graph = make_fx(lambda x: [x + 1], tracing_mode="fake")(x)
    (got,) = compile_graph(graph, [x], Without())([x])
    assert torch.equal(got, x + 1)
    assert "the target 'without' writes no kernels" in caplog.text


@pytest.mark.slow
def test_a_target_without_a_backend_runs_op_by_op() -> None:
    code = """
        import torch, torch_tenon
        x = torch.randn(4, 5, device="tenon")
        f = torch.compile(lambda x: (x @ x.t()).softmax(-1).sort()[0], backend="tenon")
        same = torch.allclose(f(x).cpu(), (x.cpu() @ x.cpu().t()).softmax(-1).sort()[0])
        host = torch.randn(4)
        run = torch.compile(lambda x: x + 1, backend="tenon")
        print(torch_tenon.target().backend, same, torch.equal(run(host), host + 1))
    """
    assert output(code, TENON_TARGET=REMOTE_TARGET) == "None True True"


@pytest.mark.parametrize(
    "module",
    ["compiler.backend", "targets", "targets.cpu", "targets.cpu.backend",
     "targets.target"],
)  # fmt: skip
def test_modules_that_are_imported_before_pytorch(module: str) -> None:
    code = f"""
        import torch_tenon.{module}
        import torch
        print(torch.ones(2, device="tenon").sum().item())
    """
    assert output(code) == "2.0"


def test_making_a_backend_costs_nothing() -> None:
    code = """
        import sys, torch
        stages = ("torch_tenon.ir", "torch_tenon.compiler", "torch_tenon.targets.cpu.compiler")
        loaded = {m for m in sys.modules if m.startswith(stages)}
        print(*sorted(loaded))
    """
    light = ["", ".backend", ".capabilities", ".memory", ".sources"]
    assert output(code).split() == [f"torch_tenon.compiler{name}" for name in light]


def test_attention_is_one_op_of_the_library() -> None:
    q = torch.randn(2, 3, 20, 8, device="tenon", requires_grad=True)

    def f(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True) * 2

    compiled = torch.compile(f, backend="tenon")
    (grad,) = torch.autograd.grad(compiled(q).sin().sum(), q)
    host = q.detach().cpu().requires_grad_()
    (want,) = torch.autograd.grad(f(host).sin().sum(), host)
    torch.testing.assert_close(grad.cpu(), want)


POOR = """
    from asynchronous import AsynchronousTarget
    from torch_tenon.targets.cpu.backend import CpuBackend

    class Poor(CpuBackend):
        library = frozenset()

    class Target(AsynchronousTarget):
        def __init__(self):
            super().__init__()
            self.backend = Poor()
"""


@pytest.mark.slow
def test_attention_without_a_library_is_products_and_a_softmax(tmp_path: Path) -> None:
    (tmp_path / "poor.py").write_text(textwrap.dedent(POOR))
    code = """
        import torch, torch_tenon
        q = torch.randn(2, 3, 20, 8, device="tenon")
        got, host = torch.nn.functional.scaled_dot_product_attention(q, q, q), q.cpu()
        want = torch.nn.functional.scaled_dot_product_attention(host, host, host)
        torch.testing.assert_close(got.cpu(), want)
        ops = {c.op.partition(".")[0] for c in torch_tenon.report().counts}
        print("aten::bmm" in ops, any("flash" in op for op in ops))
    """
    folders = [str(TESTS / "targets"), str(TESTS.parent)]
    found = output(
        code, TENON_TARGET=f"{tmp_path / 'poor.py'}:Target", PYTHONPATH=":".join(folders)
    )
    assert found == "True False"


FEW = """
import torch
from asynchronous import AsynchronousTarget
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.targets.cpu.backend import CpuBackend

FEW = frozenset((torch.float32, torch.int64, torch.bool))
seen = set()

class FewBackend(CpuBackend):
    name = "few"
    capabilities = Capabilities(FEW | {torch.bfloat16}, FEW)

    def kernel(self, group, kept):
        for m in group.members:
            seen.update((m.node.buffer.dtype, *(s.dtype for s in m.node.trace)))
        return super().kernel(group, kept)

class FewTarget(AsynchronousTarget):
    name = "few"

    def __init__(self):
        super().__init__()
        self.backend = FewBackend()
"""


@pytest.mark.slow
def test_what_a_target_cannot_compute_is_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(FEW)
    code = """
        import torch, torch_tenon
        seen = type(torch_tenon.target().backend).kernel.__globals__["seen"]
        x = torch.randn(40)
        a = x.to("tenon")
        for _ in range(4):
            torch_tenon.reset_counters()
            y = a * 2 + 1
            wide, whole = (y.double() * 3).exp(), (y * 100).to(torch.int16) // 3
            short = (y.bfloat16() * 2).float() - a
            want = x * 2 + 1
            torch.testing.assert_close(wide.cpu(), (want.double() * 3).exp())
            assert torch.equal(whole.cpu(), (want * 100).to(torch.int16) // 3)
            torch.testing.assert_close(short.cpu(), (want.bfloat16() * 2).float() - x)
        counts = torch_tenon.counters()
        assert counts["fallback::tenon::host_kernel"] >= 1, counts
        assert torch.float32 in seen and not seen & {torch.float64, torch.int16}, seen
        print(any(b'"kernels"' in w.facts for w in torch_tenon._C.window_runs() if w.facts))
    """
    environment = {"TENON_TARGET": f"{tmp_path}/few.py:FewTarget", "TENON_EXECUTE": "compiled"}
    path = f"{TESTS / 'targets'}:{TESTS.parent}"
    assert output(code, **environment, PYTHONPATH=path) == "True"
