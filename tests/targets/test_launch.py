"""`torch_tenon.launch`: kernels of a target over tensors, behind what was recorded with them."""

from pathlib import Path

import needs
import pytest
import torch
from fresh_process import ASYNCHRONOUS_TARGET, output

import torch_tenon
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
from torch_tenon.targets.cpu.backend import cpu_backend

ROOT = Path(__file__).parents[2]
ADD = """
#include <stdint.h>
void add(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (y ? y[i] : 1);
}
"""
CODE = """
import torch, torch_tenon
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
tensor = Parameter(torch.float32, True)
code = Code("cpu", {ADD!r}, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
(kernel,) = cpu_backend().compile([kernel_of(code, cpu_backend())])
"""


@pytest.fixture(scope="module")
def kernel() -> int:
    tensor = Parameter(torch.float32, True)
    code = Code("cpu", ADD, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
    return cpu_backend().compile([kernel_of(code, cpu_backend())])[0]


@needs.host_memory
def test_what_was_recorded_runs_before_and_what_comes_later_sees_it(kernel: int) -> None:
    for n in (4, 5, 6, 7):
        x = torch.arange(float(n), device="tenon")
        y = x * 2 + 1
        out = x.new_empty(n - 1)
        torch_tenon.launch(kernel, [out, y[1:], None], [n - 1])
        z = out * 10
        torch_tenon.launch(kernel, [out, out, out], [n - 1])
        assert z.tolist() == [10 * (2 * i + 2) for i in range(1, n)]
        assert out.tolist() == [2 * (2 * i + 2) for i in range(1, n)]


def test_what_has_no_elements_is_nowhere() -> None:
    """Also where it lies behind the last byte of the device's memory."""
    code = (
        CODE.format(ADD=ADD)
        + """
queue = torch_tenon.target().queue(0)
places = []
launch = queue.launch
def noted(launched):
    places.append(launched.places)
    launch(launched)
queue.launch = noted
x = torch.ones(8 << 20, device="tenon") + 1  # all of a segment
torch_tenon.launch(kernel, [x[1:], x, x[x.numel():]], [0])
torch.tenon.synchronize()
print(places[-1][2], x[-1].item())
"""
    )
    assert output(code, TENON_TARGET=ASYNCHRONOUS_TARGET) == "None 2.0"


def test_on_a_target_that_computes_later() -> None:
    code = (
        CODE.format(ADD=ADD)
        + """
x = torch.arange(5.0).to("tenon")
for _ in range(5):
    y = x * 2
    out = torch.empty(5, device="tenon")
    torch_tenon.launch(kernel, [out, y, None], [5])
    z = out * 10
    del y, out
    assert z.tolist() == [10, 30, 50, 70, 90], z.tolist()
"""
    )
    output(code, TENON_TARGET=ASYNCHRONOUS_TARGET)


def test_a_kernel_that_nobody_holds_stays_until_it_has_run() -> None:
    code = (
        CODE.format(ADD=ADD)
        + """
import gc, sys
x, out = torch.arange(5.0).to("tenon"), torch.empty(5, device="tenon")
assert x.sum().item() == 10
torch_tenon.launch(kernel, [out, x, None], [5])
del kernel
gc.collect()
assert out.tolist() == [1, 2, 3, 4, 5], out.tolist()
"""
    )
    late = f"{ROOT / 'tests' / 'targets' / 'late.py'}:LateTarget"
    output(code, TENON_TARGET=late)


GRID_TARGET = """
import torch_tenon
from asynchronous import AsynchronousQueue, AsynchronousTarget
from torch_tenon.ir.index import product
from torch_tenon.targets.cpu.backend import CpuBackend

seen = []

class Queue(AsynchronousQueue):
    def launch(self, launch):
        seen.append(launch)
        super().launch(launch)

class Backend(CpuBackend):
    name = "grids"
    def kernel(self, group, kept):
        kernel = super().kernel(group, kept)
        count = product(s.extent for s in group.outer)
        kernel.grid, kernel.group, kernel.scratch = (count, 2), (32, 1), 8 * count
        return kernel

class Grids(AsynchronousTarget):
    name = "grids"
    def __init__(self):
        super().__init__()
        self.backend = Backend()
    def _make_queue(self, memory):
        return Queue(memory)
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", ["0", "1"])
def test_a_queue_gets_a_launch_as_a_record(files: str, tmp_path: Path) -> None:
    """Of a kernel by hand, of a generated one at sizes of any value, and of a library's."""
    (tmp_path / "grids.py").write_text(GRID_TARGET)
    code = (
        CODE.format(ADD=ADD)
        + """
from torch_tenon import KernelSource, custom_op
seen = type(torch_tenon.target().queue(0)).launch.__globals__["seen"]

out, x = torch.empty(5, device="tenon"), torch.arange(5.0, device="tenon")
torch_tenon.launch(kernel, [out, x[1:], None], [4], grid=[4, 3], group=[2, 1], scratch=64)
assert out[:4].tolist() == [2, 3, 4, 5]
last = seen[-1]
assert last.places[0][0] and last.places[2] is None, last
assert (last.kernel, last.numbers, last.nbytes) == (kernel, [4], [20, 16, 0]), last
assert (last.grid, last.group, last.scratch) == ([4, 3], [2, 1], 64), last
assert (last.status, last.status_words, last.next) == (0, 0, 0), last
for wrong in (
    *({"grid": [4], "group": [2, 1]}, {"group": [2]}, {"scratch": -1}),
    *({"grid": [4, -1]}, {"grid": [4], "group": [0]}),
):
    try:
        torch_tenon.launch(kernel, [out, x, None], [4], **wrong)
    except RuntimeError:
        continue
    raise AssertionError(wrong)

source = "void half(float *out, const float *x, float by, long n) {"
source += " for (long i = 0; i < n; ++i) out[i] = x[i] * by; }"
arguments = ["float32 result", "float32 x", "float32 by", "int64 numel(x)"]
halved = KernelSource("grids", source, "half", arguments, ["numel(x)", "2"], ["32", "1"])
alone = KernelSource("grids", source, "half", arguments, "numel(x)", "32")
assert (alone.global_size, alone.local_size) == (("numel(x)",), ("32",))
half = custom_op("t::half(Tensor x, float by) -> Tensor", kernels=[halved])(
    lambda x, by: torch.empty_like(x))
seen.clear()
for n in (5, 6, 7, 8, 9, 10, 11):
    x = torch.arange(float(n), device="tenon")
    assert half(x, 0.5).tolist() == [k / 2 for k in range(n)]
    by_hand = [s for s in seen if len(s.numbers) == 2 and s.grid]
    assert by_hand[-1].numbers == [0x3F000000, n], seen
    assert (by_hand[-1].grid, by_hand[-1].group, by_hand[-1].scratch) == ([n, 2], [32, 1], 0), seen

for n in (20, 30, 40, 50, 60, 70):
    seen.clear()
    x = torch.arange(float(n), device="tenon")
    for _ in range(3):
        assert (x * 2 + 1).tolist() == [2 * k + 1 for k in range(n)]
    assert seen[-1].grid == [n, 2] and seen[-1].scratch == 8 * n, seen
    assert seen[-1].group == [32, 1] and n not in seen[-1].group, seen
index = torch.tensor([1], device="tenon")
for _ in range(3):
    seen.clear()
    x[index].tolist()
assert seen[-1].status and seen[-1].status_words == 4, seen
"""
    )
    environment = {"TENON_TARGET": f"{tmp_path}/grids.py:Grids", "TENON_PLAN_FILES": files}
    path = f"{ROOT / 'tests' / 'targets'}:{ROOT}"
    output(code, **environment, TENON_EXECUTE="compiled", PYTHONPATH=path)


@pytest.mark.slow
@pytest.mark.parametrize("execute", ["auto", "reference", "compiled", "verify"])
def test_a_kernel_for_the_device_alone_writes_its_arguments(tmp_path: Path, execute: str) -> None:
    """From the first call on, of views too, with and without results."""
    (tmp_path / "grids.py").write_text(GRID_TARGET)
    code = """
import torch
from torch_tenon import KernelSource, custom_op

source = "void count(int *counts, const long *x, long n) {"
source += " for (long i = 0; i < n; ++i) ++counts[x[i]]; }"
arguments = ["int32 counts", "int64 x", "int64 numel(x)"]
kernel = KernelSource("grids", source, "count", arguments)
count = custom_op("t::count(Tensor(a!) counts, Tensor x) -> ()", kernels=[kernel])(
    lambda counts, x: None)

source = "void take(float *result, float *left, const float *x, long n) {"
source += " for (long i = 0; i < n; ++i) result[i] = x[i] * 2, left[i] -= x[i]; }"
arguments = ["float32 result", "float32 left", "float32 x", "int64 numel(x)"]
kernel = KernelSource("grids", source, "take", arguments)
take = custom_op("t::take(Tensor(a!) left, Tensor x) -> Tensor", kernels=[kernel])(
    lambda left, x: torch.empty_like(x))

x = torch.randint(0, 7, (500,))
expected = torch.bincount(x, minlength=7)
for make in (lambda: torch.zeros(7, dtype=torch.int32, device="tenon"),
             lambda: torch.zeros(14, dtype=torch.int32, device="tenon")[::2],
             lambda: torch.zeros(3, 7, dtype=torch.int32, device="tenon")[1]):
    counts = make()
    for k in range(1, 5):
        count(counts, x.to("tenon"))
        assert counts.tolist() == (k * expected).tolist(), k
left, x = torch.ones(4, 5).to("tenon").mT, torch.rand(5, 4)
for k in range(1, 5):
    torch.testing.assert_close(take(left, x.to("tenon")).cpu(), 2 * x)
    torch.testing.assert_close(left.cpu(), 1 - k * x)
print("agrees")
"""
    environment = {"TENON_TARGET": f"{tmp_path}/grids.py:Grids", "TENON_EXECUTE": execute}
    path = f"{ROOT / 'tests' / 'targets'}:{ROOT}"
    assert output(code, **environment, PYTHONPATH=path) == "agrees"


def test_a_queue_that_lacks_something_is_named(tmp_path: Path) -> None:
    """With what it lacks, when the target is made."""
    (tmp_path / "old.py").write_text(
        "from remote import RemoteQueue, RemoteTarget\n"
        "class Queue(RemoteQueue):\n"
        "    def launch(self, kernel, places, numbers, status): ...\n"
        "class Old(RemoteTarget):\n"
        "    name = 'old'\n"
        "    def _make_queue(self, memory):\n"
        "        return Queue(memory)\n"
        "class Bare(Old):\n"
        "    def queue(self, device):\n"
        "        return object()\n"
    )
    code = """
        import os
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        from torch_tenon import targets
        from torch_tenon.targets.target import TargetError
        for name, text in (
            ("Old", "`launch(kernel, places, numbers, status)`, and the core calls `launch(la"),
            ("Bare", "'old' lacks `runs_calls`, `copy`, `commit`, `wait`"),
        ):
            try:
                targets.load(f"old:{name}")
            except TargetError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
    """
    path = f"{tmp_path}:{ROOT / 'tests' / 'targets'}:{ROOT}"
    output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=path)


def test_tensors_of_elsewhere_are_refused(kernel: int) -> None:
    here = torch.ones(2, device="tenon:0")
    for tensors in ([here, torch.ones(2), None], [torch.ones(2)]):
        with pytest.raises(RuntimeError, match="takes strided tensors of 'tenon', not one of cpu"):
            torch_tenon.launch(kernel, tensors, [2])
    with pytest.raises(RuntimeError, match="runs on one device, and was given tensors of tenon:0"):
        torch_tenon.launch(kernel, [here, torch.ones(2, device="tenon:1"), None], [2])
    with pytest.raises(RuntimeError, match="was given none"):
        torch_tenon.launch(kernel, [None], [2])
