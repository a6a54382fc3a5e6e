"""Checks inside kernels: each tells which recorded calls fail with it, and nothing else suffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.kernel import CHECKS, STATUS_WORDS
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends import eager
from torch_tenon.frontends import graph as graphs
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.ops import variants
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Failed = dict[int, tuple[str, int, int]]  # by recorded call: the check, the value, the size


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> CpuCompiler:
    return CpuCompiler(Cache(tmp_path_factory.mktemp("kernels")))


class Window:
    """Recorded calls, as the core describes them, with the tensors that they read and write."""

    def __init__(self, compiler: CpuCompiler) -> None:
        self.compiler = compiler
        self.calls: list[Any] = []
        self.slots: list[tuple[Any, ...]] = []  # bytes, made here, outlives it, written
        self.memory: list[torch.Tensor] = []  # of the slots

    def given(self, t: torch.Tensor) -> Any:
        """A tensor from before the window."""
        return self._tensor(t.clone(), False, True)

    def call(self, name: str, *given: Any, like: torch.Tensor, alive: bool = True) -> Any:
        """A call with positional arguments; its result is laid out as `like` is."""
        schema = variants.overload(name)._schema.arguments
        rest = [a.default_value for a in schema[len(given) :]]
        arguments = [x if isinstance(x, tuple) else ("constant", x) for x in [*given, *rest]]
        result = self._tensor(torch.full_like(like, -7), True, alive)
        self.calls.append((name, len(self.calls), arguments, [result]))
        return result

    def _tensor(self, t: torch.Tensor, fresh: bool, alive: bool) -> Any:
        self.slots.append((t.nbytes, fresh, alive, fresh))
        self.memory.append(t)
        return ("tensor", len(self.memory) - 1, t.dtype, tuple(t.shape), t.stride(), 0)

    def plan(self) -> Plan:
        """Makes the window's plan, which `run` runs, and whose kernels `launch` runs."""
        self.built = eager.build((0, self.calls, self.slots))
        self.made = Plan(self.built.program, CpuBackend(self.compiler)).compile()
        return self.made

    def checks(self) -> list[list[list[int]]]:
        """For each kernel and each of its checks the calls that fail with it."""
        return [s["checks"] for s in self.made.instance()["steps"] if "kernel" in s]

    def run(self) -> None:
        """Runs the plan; raises what its first failed check does."""
        places = [
            [self.memory[k].data_ptr() for k in numbers]
            for numbers in (self.built.inputs, self.built.outputs)
        ]
        self.made.native(()).run_in_place(*places, torch.device("cpu"))

    def launch(self) -> Failed:
        """Runs the kernels, which use no memory but the window's, and gives what failed."""
        data = self.made.instance()
        slots = dict(zip(data["inputs"], self.built.inputs, strict=True))
        slots |= dict(zip(data["outputs"], self.built.outputs, strict=True))
        failed: Failed = {}
        for step in data["steps"]:
            pointers = [self.memory[slots[k]].data_ptr() for k in step["slots"]]
            status = (ctypes.c_int64 * (STATUS_WORDS * len(step["checks"])))()
            KERNEL(self.made.handles[step["kernel"]])(
                (ctypes.c_void_p * len(pointers))(*pointers),
                (ctypes.c_int64 * len(step["sizes"]))(*step["sizes"]),
                status,
            )
            for k, calls in enumerate(step["checks"]):
                kind, value, size = status[STATUS_WORDS * k : STATUS_WORDS * k + 3]
                if kind:
                    failed |= dict.fromkeys(calls, (_NAMES[kind], value, size))
        return failed

    def result(self, t: Any) -> torch.Tensor:
        return self.memory[t[1]]


_NAMES: Mapping[int, str] = {number: name for name, number in CHECKS.items()}


def indices(count: int, size: int, bad: Mapping[int, int]) -> torch.Tensor:
    found = torch.arange(count) * 7 % size
    for place, value in bad.items():
        found[place] = value
    return found


def test_two_calls_of_one_kernel_fail_and_the_rest_is_right(compiler: CpuCompiler) -> None:
    x = torch.randn(50)
    i, j, k = indices(40, 50, {3: 60}), indices(40, 50, {17: -2}), indices(40, 50, {})
    w = Window(compiler)
    a, p, q, r = w.given(x), w.given(i), w.given(j), w.given(k)
    like = torch.empty(40)
    first = w.call("aten::gather", a, 0, p, like=like)
    second = w.call("aten::gather", a, 0, q, like=like)
    third = w.call("aten::gather", a, 0, r, like=like)
    total = w.call("aten::add.Tensor", first, second, like=like)
    total = w.call("aten::add.Tensor", total, third, like=like)
    twice = w.call("aten::mul.Tensor", p, q, like=i)
    w.plan()
    assert w.checks() == [[[0], [1], [2]]]
    assert w.launch() == {0: ("gather", 60, 50), 1: ("gather", -2, 50)}

    def compare() -> None:
        good_i, good_j = i == i.clamp(0, 49), j == j.clamp(0, 49)
        want = [x[i.clamp(0, 49)], x[j.clamp(0, 49)]]
        torch.testing.assert_close(w.result(first)[good_i], want[0][good_i])
        torch.testing.assert_close(w.result(second)[good_j], want[1][good_j])
        good = good_i & good_j
        torch.testing.assert_close(w.result(total)[good], (want[0] + want[1] + x[k])[good])
        assert torch.equal(w.result(third), x[k])
        assert torch.equal(w.result(twice), i * j)

    compare()
    for t in (first, second, third, total, twice):
        w.result(t).fill_(-7)
    text = "index 60 is out of bounds for dimension 0 with size 50"
    with pytest.raises(RuntimeError, match=text):
        w.run()
    compare()


# What is wrong in each is that of call 1; its result has no memory, and call 2 computes it.
BAD: dict[str, tuple[str, torch.Tensor, list[Any], tuple[str, int, int]]] = {
    "index": (
        "aten::index.Tensor",
        torch.randn(9, 5),
        [[indices(6, 9, {4: -12})]],
        ("index", -3, 9),  # counted from the end
    ),
    "index_select": (
        "aten::index_select",
        torch.randn(5, 9),
        [1, indices(6, 9, {4: 30})],
        ("batch", 30, 9),
    ),
    "embedding": (
        "aten::embedding",
        torch.randn(9, 300),
        [indices(6, 9, {4: -2})],
        ("embedding", -2, 9),
    ),
    "gather": (
        "aten::gather",
        torch.randn(9, 5),
        [0, indices(20, 9, {14: 11}).view(4, 5)],
        ("gather", 11, 9),
    ),
    "floor_divide": (
        "aten::floor_divide",
        torch.arange(5),
        [torch.tensor([2, 1, 0, 3, 1])],
        ("division", -1, 1),
    ),
    "remainder": (
        "aten::remainder.Tensor",
        torch.arange(300).view(3, 100),
        [torch.arange(100) - 70],
        ("division", -1, 1),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_the_call_that_fails_is_told(name: str, compiler: CpuCompiler) -> None:
    op, x, rest, what = BAD[name]
    w = Window(compiler)

    def given(a: Any) -> Any:
        if isinstance(a, list):
            return ("list", [given(b) for b in a])
        return w.given(a) if isinstance(a, torch.Tensor) else a

    like = good_result(op, x, rest)
    before = w.call("aten::neg", w.given(x), like=x, alive=False)
    found = w.call(op, before, *map(given, rest), like=like, alive=False)
    w.call("aten::abs", found, like=like)
    w.plan()
    assert w.checks() == [[[1]]]
    assert w.launch() == {1: what}


def good_result(op: str, x: torch.Tensor, rest: list[Any]) -> torch.Tensor:
    """A result of the sizes that the call with the bad number would have."""

    def good(a: Any) -> Any:
        if isinstance(a, list):
            return [good(b) for b in a]
        return torch.ones_like(a) if isinstance(a, torch.Tensor) else a

    return variants.overload(op)(x, *map(good, rest))


def test_a_check_of_several_calls(compiler: CpuCompiler) -> None:
    """They index tensors of one size by the same numbers, which are looked at once."""
    w = Window(compiler)
    i, like = w.given(indices(40, 50, {3: 60})), torch.empty(40)
    x, y, z = (w.given(torch.randn(n)) for n in (50, 50, 70))
    first = w.call("aten::gather", x, 0, i, like=like)
    second = w.call("aten::gather", y, 0, i, like=like)
    third = w.call("aten::gather", z, 0, i, like=like)
    total = w.call("aten::add.Tensor", first, second, like=like)
    w.call("aten::add.Tensor", total, third, like=like)
    w.plan()
    assert w.checks() == [[[0, 1], [2]]]
    assert w.launch() == {0: ("gather", 60, 50), 1: ("gather", 60, 50)}


def test_every_check_of_one_call(compiler: CpuCompiler) -> None:
    w = Window(compiler)
    x, i, j = torch.randn(50, 8), indices(40, 50, {}), indices(40, 8, {39: 8})
    w.call("aten::index.Tensor", w.given(x), ("list", [w.given(i), w.given(j)]), like=x[:40, 0])
    w.plan()
    assert w.checks() == [[[0], [0]]]
    assert w.launch() == {0: ("index", 8, 8)}


def test_a_scatter(compiler: CpuCompiler) -> None:
    """It writes what was there before, so the failing call is one of several that made it."""
    w = Window(compiler)
    x, source, i = torch.zeros(4), torch.ones(6), indices(6, 4, {5: 9})
    base, source_, i_ = w.given(x), w.given(source), w.given(i)
    twice = w.call("aten::mul.Tensor", source_, source_, like=source)
    w.call("aten::scatter_add", base, 0, i_, twice, like=x)
    w.plan()
    assert [calls for step in w.checks() for calls in step] == [[1]]
    assert w.launch() == {1: ("gather", 9, 4)}
    assert torch.equal(w.result(twice), source)


def test_windows_share_a_kernel(compiler: CpuCompiler) -> None:
    windows = []
    for calls_before in (0, 3):
        w = Window(compiler)
        other = torch.randn(7, 3)
        for _ in range(calls_before):
            w.call("aten::neg", w.given(other), like=other)
        x, i, j = torch.randn(50), indices(40, 50, {}), indices(40, 50, {0: 50})
        a = w.given(x)
        first = w.call("aten::gather", a, 0, w.given(i), like=x[:40])
        second = w.call("aten::gather", a, 0, w.given(j), like=x[:40])
        w.call("aten::mul.Tensor", first, second, like=x[:40])
        w.plan()
        windows.append(w)
    short, long = windows
    assert short.checks() == [[[0], [1]]]
    assert [c for c in long.checks() if c] == [[[3], [4]]]
    assert set(short.made.handles) < set(long.made.handles)
    assert short.launch() == {1: ("gather", 50, 50)}
    assert long.launch() == {4: ("gather", 50, 50)}


def test_equal_kernels_that_run_as_one(compiler: CpuCompiler) -> None:
    w = Window(compiler)
    bad = {3: {1: 77}, 8: {0: -1, 5: 60}}
    made = []
    for k in range(12):
        x, i, j = torch.randn(50, 64), indices(30, 50, bad.get(k, {})), indices(64, 64, {})
        rows = w.call("aten::index_select", w.given(x), 0, w.given(i), like=x[:30], alive=False)
        found = w.call("aten::index_select", rows, 1, w.given(j), like=x[:30])
        made.append((x, i, j, found))
    w.plan()
    assert [s.kernel.sets for s in w.made.steps if s.kernel is not None] == [12]
    assert sorted(c for calls in w.checks()[0] for c in calls) == list(range(24))
    failed = w.launch()
    assert failed.keys() == {6, 16}
    assert failed[6] == ("embedding", 77, 50)
    assert failed[16] in [("embedding", -1, 50), ("embedding", 60, 50)]
    for x, i, j, found in made:
        good = i == i.clamp(0, 49)
        assert torch.equal(w.result(found)[good], x[i[good]][:, j])


def test_an_epilogue_of_a_product(compiler: CpuCompiler) -> None:
    w = Window(compiler)
    a, b, x, i = torch.randn(64, 32), torch.randn(32, 48), torch.randn(50), indices(48, 50, {7: 51})
    product = w.call("aten::mm", w.given(a), w.given(b), like=a @ b, alive=False)
    row = w.call("aten::gather", w.given(x), 0, w.given(i), like=x[:48], alive=False)
    total = w.call("aten::add.Tensor", product, row, like=a @ b)
    w.plan()
    assert [s.kernel.layout for s in w.made.steps if s.kernel is not None] == ["matmul"]
    assert w.checks() == [[[1]]]
    assert w.launch() == {1: ("gather", 51, 50)}
    good = i < 50
    want = (a @ b)[:, good] + x[i[good]]
    torch.testing.assert_close(w.result(total)[:, good], want, rtol=1e-4, atol=1e-4)


def test_calls_inside_a_plan_know_theirs(compiler: CpuCompiler) -> None:
    w = Window(compiler)
    x = torch.randn(6, 6)
    twice = w.call("aten::mul.Tensor", w.given(x), w.given(x), like=x, alive=False)
    folded = w.call("aten::linalg_matrix_exp", twice, like=x, alive=False)
    # It is composed of others, one of which is a call of the library's.
    w.call("aten::logdet", folded, like=x[0, 0])
    w.plan()
    calls = [(s["op"], s["call"]) for s in w.made.instance()["steps"] if "op" in s]
    assert calls == [("aten::linalg_matrix_exp", 1), ("aten::_linalg_slogdet", 2)]


def test_a_compiled_graph_has_no_recorded_calls(compiler: CpuCompiler) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        return [x.gather(0, i).reshape(6, 6).matrix_exp()]

    inputs = [torch.randn(50), indices(36, 50, {})]
    module = make_fx(f, decompositions(), tracing_mode="fake")(*inputs)
    plan = Plan(graphs.build(module).program, CpuBackend(compiler)).compile()
    kernel, call = plan.instance()["steps"]
    assert (kernel["checks"], call["call"]) == ([[-1]], -1)
    torch.testing.assert_close(plan.run(inputs), f(*inputs))
    with pytest.raises(RuntimeError, match="index 80 is out of bounds"):
        plan.run([inputs[0], indices(36, 50, {35: 80})])
