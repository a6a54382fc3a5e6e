"""Plans as the C++ core runs them: kernels and calls over slots."""

import ctypes
import json
import threading

import pytest
import torch

from torch_tenon import _C
from torch_tenon.compiler.plan import Plan, native
from torch_tenon.ir.index import Symbol, var
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Layout
from torch_tenon.targets.cpu.backend import cpu_backend

aten = torch.ops.aten
CPU, TENON = torch.device("cpu"), torch.device("tenon", 0)
FLOAT = torch.float32
KERNEL = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_int64),
)
pytestmark = pytest.mark.usefixtures("nothing_leaked")


def call(program, op, arguments, results, into=False, **keywords):
    """A call whose results are dense tensors of these sizes, float32."""
    layouts = [None if r is None else (FLOAT, Layout.contiguous(r)) for r in results]
    return program.call(op, arguments, keywords, layouts, "fallback", into)


def run(program, outputs, tensors, sizes=(), device=CPU):
    """Runs the program on clones of host tensors; they are returned too."""
    program.outputs += outputs
    plan = Plan(program, cpu_backend()).compile()
    # What a plan is made of can be written to a file and read back.
    data = plan.instance(sizes)
    assert json.loads(json.dumps(data)) == data
    inputs = [t.clone().to(device) for t in tensors]
    got = plan.run(inputs, sizes, device)
    assert all(t.device == device for t in got)
    return [t.cpu() for t in got], [t.cpu() for t in inputs]


@pytest.fixture(params=[CPU, TENON], ids=str)
def device(request):
    return request.param


def test_kernels_around_calls(device):
    n = Symbol("n", None, 2)
    program = Program()
    program.sizes.append(n)
    size = var(n)
    x = program.input(FLOAT, Layout.contiguous((size, 3)))
    w = program.constant(torch.randn(3, 4))
    (product,) = call(program, aten.mm, [program.copy(x), w], [(size, 4)], into=True)
    (padded,) = call(
        program, aten.constant_pad_nd.default, [product, [size, 0]], [(size, size + 4)]
    )
    out = program.copy(padded)
    for length in (2, 5):
        t = torch.randn(length, 3)
        (got,), _ = run(program, [out], [t], (length,), device)
        program.outputs.clear()
        expected = torch.constant_pad_nd(t @ w.buffer.storage.tensor, [length, 0])
        torch.testing.assert_close(got, expected)


def test_arguments_of_every_kind(device):
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((2, 3)))
    i = program.input(torch.int64, Layout.contiguous((2,)))
    found = [
        *call(program, aten.cat.default, [[x, x], 1], [(2, 6)]),
        *call(program, aten.index.Tensor, [x, [None, i]], [(2, 2)]),
        *call(program, aten.mul.Tensor, [x, 2.5], [(2, 3)]),
        *call(program, aten.full.default, [[2], float("inf")], [(2,)], dtype=FLOAT, device="cpu"),
        *call(program, aten.split.Tensor, [x, 1], [None, (1, 3)])[1:],
        *call(program, aten.norm.ScalarOpt_dim, [x, None, [1]], [(2,)]),
    ]
    t, j = torch.randn(2, 3), torch.tensor([2, 0])
    got, _ = run(program, found, [t, j], device=device)
    expected = [
        torch.cat([t, t], 1),
        t[:, j],
        t * 2.5,
        torch.full((2,), float("inf")),
        t.split(1)[1],
        t.norm(dim=1),
    ]
    torch.testing.assert_close(got, expected)


def test_a_result_in_an_argument_is_copied(device):
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((2, 3)))
    (row,) = call(program, aten.select.int, [x, 0, 1], [(3,)])
    x = program.write(x, program.constant(torch.zeros(2, 3)))
    t = torch.randn(2, 3)
    (got,), (written,) = run(program, [row], [t], device=device)
    assert torch.equal(got, t[1]) and not written.any()


def test_a_result_with_other_strides_is_copied(device):
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((2, 3)))
    (y,) = program.call(aten.exp.default, [x], {}, [(FLOAT, Layout((2, 3), (1, 2)))], "fallback")
    (z,) = program.call(
        aten.expand.default, [x, [4, 2, 3]], {}, [(FLOAT, Layout((4, 2, 3), (0, 3, 1)))], "fallback"
    )
    t = torch.randn(2, 3)
    (got, expanded), _ = run(program, [y, z], [t], device=device)
    assert torch.equal(got, t.exp()) and got.stride() == (1, 2)
    assert torch.equal(expanded, t.expand(4, 2, 3))


def test_results_that_are_inputs_and_constants(device):
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((2, 3)))
    c = program.constant(torch.randn(3))
    program.outputs += [x, c]
    plan = Plan(program, cpu_backend()).compile()
    t = torch.randn(4, 3, device=device)[1:3]
    got, constant = plan.run([t], (), device)
    assert got.data_ptr() == t.data_ptr() and got.storage_offset() == 3
    assert torch.equal(constant.cpu(), c.buffer.storage.tensor) and constant.device == device


def test_an_op_in_python_raises_its_own_exception(device):
    class Unusual(Exception):
        pass

    def fail(x):
        raise Unusual("on purpose")

    library = torch.library.Library("tenon_test_plan", "FRAGMENT")
    library.define("fail(Tensor x) -> Tensor")
    library.impl("fail", fail, "CPU")
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((1 << 10,)))
    (y,) = call(program, aten.exp.default, [x], [(1 << 10,)])
    (z,) = call(program, torch.ops.tenon_test_plan.fail.default, [y], [(1 << 10,)])
    with pytest.raises(Unusual, match="on purpose"):
        run(program, [z], [torch.randn(1 << 10)], device=device)


def test_a_result_of_other_sizes_than_promised():
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((3,)))
    (y,) = call(program, aten.exp.default, [x], [(4,)])
    with pytest.raises(RuntimeError, match=r"sizes \[3\].*\[4\].* are wanted"):
        run(program, [y], [torch.randn(3)])


def test_what_is_no_op_cannot_be_called():
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((3,)))
    program.outputs += call(program, torch.sin, [x], [(3,)])
    with pytest.raises(NotImplementedError, match="no single op"):
        Plan(program, cpu_backend())


def test_calls_are_counted_by_route():
    program = Program()
    x = program.input(FLOAT, Layout.contiguous((3,)))
    (y,) = call(program, aten.frac.default, [x], [(3,)])
    before = _count("fallback", "aten::frac")
    run(program, [y], [torch.randn(3)])
    assert _count("fallback", "aten::frac") == before + 1


def _count(route, op):
    return sum(c for r, o, c, *_ in _C.counter_values() if (r, o) == (route, op))


# Plans made by hand, with kernels written in Python: they need the interpreter's lock.


def by_hand(slots, steps, functions, results=(), inputs=(), outputs=()):
    """A plan of float32 vectors; a step is a kernel's slots, sizes and checks, or a call."""
    data = {
        "slots": slots,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "results": [vector(k, n) for k, n in results],
        "arena_bytes": 1 << 16,
        "steps": [
            {
                "name": f"step{k}",
                "allocated": list(outputs) if k == 0 else [],
                "released": [],
                "checks": [],
                "call": -1,
                "detail": "",
                "detail_sizes": [],
                "calls": [],
                "bytes": 0,
                "operations": 0,
                **s,
            }
            for k, s in enumerate(steps)
        ],
    }
    addresses = [
        f if isinstance(f, int) else ctypes.cast(f, ctypes.c_void_p).value for f in functions
    ]
    return native(data, addresses, [])


def vector(slot, n):
    return {"slot": slot, "dtype": "float32", "sizes": [n], "strides": [1], "offset": 0}


def exp_step(source, target, n, released=()):
    return {
        "op": "aten::exp",
        "overload": "",
        "route": "fallback",
        "counted": "aten::exp",
        "arguments": {"self": vector(source, n)},
        "results": [vector(target, n)],
        "released": list(released),
    }


def floats(pointer, n):
    return (ctypes.c_float * n).from_address(pointer)


def test_kernels_get_pointers_and_sizes(device):
    @KERNEL
    def add_size(pointers, sizes, status):
        for k in range(4):
            floats(pointers[1], 4)[k] = floats(pointers[0], 4)[k] + sizes[1]

    plan = by_hand(
        [["input", 0], ["temporary", 64], ["output", 16]],
        [{"kernel": 0, "slots": [0, 1], "sizes": [4, 10]}, exp_step(1, 2, 4)],
        [add_size],
        [(2, 4)],
        [0],
        [2],
    )
    t = torch.randn(4)
    (got,) = plan.run([t.to(device)], device)
    torch.testing.assert_close(got.cpu(), (t + 10).exp())
    # The same over memory that the caller has.
    x, out = t.to(device), torch.empty(4, device=device)
    plan.run_in_place([x.data_ptr()], [out.data_ptr()], device)
    torch.testing.assert_close(out.cpu(), (t + 10).exp())


def test_a_block_that_was_released_has_memory_of_its_own_again():
    """What tuning runs: each step has its slots for itself, and others take them in between."""
    others, clashes = [], []

    @KERNEL
    def write(pointers, sizes, status):
        clashes.append(pointers[0] in [t.data_ptr() for t in others])
        others.append(torch.empty(1024, device="tenon"))

    step = {"kernel": 0, "slots": [0], "sizes": [], "allocated": [0], "released": [0]}
    plan = by_hand([["block", 4096]], [{**step} for _ in range(4)], [write])
    plan.run_in_place([], [], torch.device("tenon"))
    assert clashes == [False] * 4


@pytest.mark.parametrize(
    ("check", "value", "kind", "text"),
    [
        (1, 9, IndexError, "index 9 is out of bounds for dimension 0 with size 4"),
        (1, -1, IndexError, "index -5 is out of bounds for dimension 0 with size 4"),
        (2, 9, IndexError, "index out of range in self"),
        (3, 9, RuntimeError, "index 9 is out of bounds for dimension 0 with size 4"),
        (4, 0, RuntimeError, "ZeroDivisionError"),
    ],
)
def test_a_failed_check_raises_what_pytorch_does(check, value, kind, text):
    @KERNEL
    def fail(pointers, sizes, status):
        status[0], status[1], status[2] = check, value, 4

    plan = by_hand(
        [["input", 0], ["external", 0], ["output", 4096]],
        [exp_step(0, 1, 1024), {"kernel": 0, "slots": [1, 2], "sizes": [], "checks": [[-1]]}],
        [fail],
        [(2, 1024)],
        [0],
        [2],
    )
    x = torch.randn(1024, device=TENON)
    torch.tenon.synchronize()  # it has its memory once it is written
    held = torch.tenon.memory_allocated()
    with pytest.raises(kind, match=text + r" \(in the kernel of step1\)") as raised:
        plan.run([x], TENON)
    assert raised.type is kind
    assert torch.tenon.memory_allocated() == held  # the arena, the output, the call's result


@pytest.mark.parametrize("count", [3, 100])
def test_of_several_failed_checks_the_first_raises(count):
    before = []

    @KERNEL
    def fail(pointers, sizes, status):
        before.extend(status[4 * k] for k in range(count))
        for k in (count - 2, count - 1):
            status[4 * k], status[4 * k + 1], status[4 * k + 2] = 1, 10 + k, 4

    step = {"kernel": 0, "slots": [0], "sizes": [], "checks": [[k] for k in range(count)]}
    plan = by_hand([["input", 0]], [step], [fail], inputs=[0])
    with pytest.raises(IndexError, match=f"index {8 + count} is out of bounds"):
        plan.run([torch.zeros(1)], CPU)
    assert before == [0] * count


def test_memory_of_a_call_is_released_after_its_last_use():
    seen = []

    @KERNEL
    def look(pointers, sizes, status):
        seen.append(torch.tenon.memory_allocated())

    step = {"kernel": 0, "slots": [], "sizes": []}
    plan = by_hand(
        [["input", 0], ["external", 0], ["external", 0]],
        [step, exp_step(0, 1, 1 << 12), step, exp_step(1, 2, 1 << 12, [1]), step],
        [look],
        [(2, 1 << 12)],
        [0],
    )
    x = torch.randn(1 << 12)
    (got,) = plan.run([x.to(TENON)], TENON)
    torch.testing.assert_close(got.cpu(), x.exp().exp())
    assert [n - seen[0] for n in seen] == [0, 1 << 14, 1 << 14]


def test_threads_run_one_plan_at_once():
    meeting = threading.Barrier(3, timeout=60)  # breaks, and the test fails, if they do not meet
    lost = []

    @KERNEL
    def meet(pointers, sizes, status):
        value = floats(pointers[0], 1)[0]
        floats(pointers[1], 1)[0] = value
        try:
            meeting.wait()
        except threading.BrokenBarrierError:
            lost.append(value)
        floats(pointers[2], 1)[0] = floats(pointers[1], 1)[0]

    plan = by_hand(
        [["input", 0], ["temporary", 0], ["output", 4]],
        [{"kernel": 0, "slots": [0, 1, 2], "sizes": []}],
        [meet],
        [(2, 1)],
        [0],
        [2],
    )
    got = {}

    def work(k):
        got[k] = [plan.run([torch.full((1,), float(k))], CPU)[0].item() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not lost
    assert got == {k: [float(k)] * 20 for k in range(3)}


# Sets the first number and waits for the second, though not for ever.
WAIT = """
void @NAME@(void *const *a, const int64_t *s, int64_t *status) {
  volatile float *x = a[0];
  x[0] = 1;
  for (int64_t k = 0; k < 3000000000; ++k)
    if (x[1]) return;
  status[0] = 4;
}
"""


def test_the_interpreter_is_free_while_a_plan_runs():
    slots = [["input", 0]]
    steps = [{"kernel": 0, "slots": [0], "sizes": [], "checks": [[-1]]}]
    plan = by_hand(slots, steps, cpu_backend().compiler.functions([WAIT]), inputs=[0])
    x, failed = torch.zeros(2), []

    def work():
        try:
            plan.run([x], CPU)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while x[0] == 0:
        pass
    x[1] = 1
    thread.join()
    assert not failed
