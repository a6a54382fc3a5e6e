"""Launches are ordered by the device's queue: the host waits for none, whatever tensors they share.

What one of them fails with reaches who reads what depends on it.
"""

import textwrap
from pathlib import Path

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, TESTS, output

TARGETS = TESTS / "targets"
FAULTY_TARGET = f"{TARGETS / 'faulty.py'}:FaultyTarget"
LATE_TARGET = f"{TARGETS / 'late.py'}:LateTarget"
SEVERAL_QUEUES_TARGET = f"{TARGETS / 'several_queues.py'}:SeveralQueuesTarget"

ADD = """
import torch, torch_tenon
from torch_tenon.targets.cpu.backend import cpu_backend
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of

SOURCE = '''
#include <stdint.h>
void add(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (y ? y[i] : 1);
}
'''

def made():
    tensor = Parameter(torch.float32, True)
    code = Code("cpu", SOURCE, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
    return cpu_backend().compile([kernel_of(code, cpu_backend())])[0]

def add(kernel, out, x, y=None, **more):
    torch_tenon.launch(kernel, [out, x, y], [out.numel()], **more)
    return out

def waits():
    return {k: n for k, n in torch_tenon.counters().items() if k.startswith("wait")}
"""

# A target whose library has an op that launches the kernel above.
WITH_LAUNCHES = """
from MODULE import CLASS

class Launching(CLASS):
    name = "launching"
    kernel = None

    @staticmethod
    def sum_of(x, y):
        if Launching.kernel is None:
            Launching.kernel = made()
        return add(Launching.kernel, torch.empty_like(x), x.contiguous(), y.contiguous())

    library = {"aten::mm": sum_of.__func__}
"""


def launching(folder: Path, module: str, cls: str) -> dict[str, str]:
    """The settings of such a target, which is written there."""
    text = ADD + WITH_LAUNCHES.replace("MODULE", module).replace("CLASS", cls)
    (folder / "launching.py").write_text(text)
    return {
        "TENON_TARGET": f"{folder / 'launching.py'}:Launching",
        "PYTHONPATH": f"{TARGETS}:{TESTS.parent}",
    }


def there(code: str, target: str, **settings: str) -> str:
    return output(ADD + textwrap.dedent(code), TENON_TARGET=target, **settings)


SHARED = """
    kernel = made()
    a, b = torch.arange(6.0).to("tenon"), torch.ones(6).to("tenon")
    for _ in range(3):  # the first call runs at once
        assert (a * 2).tolist() == [0, 2, 4, 6, 8, 10]
    before, results = waits(), []
    for _ in range(10):
        results.append(add(kernel, torch.empty(6, device="tenon"), a, b))
    for _ in range(5):  # each reads what the one before makes, and one writes it again
        results.append(add(kernel, torch.empty(6, device="tenon"), results[-1], b))
        add(kernel, results[-1], results[-1], a)
        results.append(add(kernel, torch.empty(6, device="tenon"), results[-1] * 2))
    assert waits() == before, (before, waits())
    on_cpu = [torch.arange(6.0) + 1] * 10
    for _ in range(5):
        on_cpu.append(on_cpu[-1] + 1 + torch.arange(6.0))
        on_cpu.append(on_cpu[-1] * 2 + 1)
    for found, wanted in zip(results, on_cpu, strict=True):
        assert torch.equal(found.cpu(), wanted), (found, wanted)
"""


@pytest.mark.parametrize("target", [LATE_TARGET, ASYNCHRONOUS_TARGET])
def test_launches_that_share_tensors_wait_for_nothing(target: str) -> None:
    there(SHARED, target, TENON_EXECUTE="compiled")


def test_the_host_s_copies_are_ordered_with_launches() -> None:
    """Also those of a queue beside that of kernels."""
    code = """
        kernel, n = made(), 1 << 15  # beyond what is copied beside the kernels
        for k in range(20):
            a = torch.full((n,), float(k)).to("tenon")
            b = add(kernel, torch.empty(n, device="tenon"), a)
            a.copy_(torch.full((n,), -1.0))  # what the launch reads is written behind it
            c = add(kernel, torch.empty(n, device="tenon"), b, a)
            for found, wanted in ((b, k + 1), (c, k), (a, -1)):
                assert found.cpu().eq(wanted).all(), (k, wanted)
    """
    there(code, SEVERAL_QUEUES_TARGET)


def test_memory_that_is_let_go_of_in_flight_is_used_again() -> None:
    code = """
        kernel, n = made(), 1 << 18
        x = torch.zeros(n).to("tenon")
        torch.tenon.synchronize()
        torch.tenon.reset_peak_memory_stats()
        start = torch.tenon.memory_allocated()
        for _ in range(50):
            x = add(kernel, torch.empty(n, device="tenon"), x)
        assert torch.tenon.max_memory_allocated() - start <= 2 * 4 * n
        assert x.eq(50).all().item()
    """
    for target in (LATE_TARGET, ASYNCHRONOUS_TARGET):
        there(code, target)


FAILS = """
    import pytest
    kernel, queue = made(), torch_tenon.target().queue(0)
    weight = torch.ones(4).to("tenon")
    for _ in range(3):  # the first call runs at once
        assert (weight * 2).tolist() == [2] * 4
    for turn in range(4):
        x, fine = (torch.arange(4.0).to("tenon") for _ in range(2))
        torch.tenon.synchronize()
        queue.loses, queue.pause = ("wait", "done")[turn % 2], 0.02 * (turn // 2)
        lost = add(kernel, torch.empty(4, device="tenon"), x, weight, {writes})
        after = add(kernel, torch.empty(4, device="tenon"), lost, weight, {writes})
        behind = add(kernel, torch.empty(4, device="tenon"), after * 2, {writes})
        apart = add(kernel, torch.empty(4, device="tenon"), fine, {writes})
        for each in (lost, after, behind, after * 2) + {also}:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="lost its power"):
                    each.cpu()
        assert apart.tolist() == fine.add(1).tolist() == [1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="lost its power"):  # somebody has seen it
            add(kernel, torch.empty(4, device="tenon"), lost)
        queue.pause = 0
        weight = torch.ones(4).to("tenon")
"""


def test_what_an_earlier_launch_failed_with_is_the_error_of_what_depends_on_it() -> None:
    """Of what is only read, where that is said; else of all tensors of the launch."""
    there(FAILS.format(writes="writes=[0]", also="()"), FAULTY_TARGET)
    there(FAILS.format(writes="", also="(x, weight)"), FAULTY_TARGET)


def test_what_a_launch_only_reads_is_read_beside_it() -> None:
    code = """
        kernel = made()
        x, y = torch.arange(4.0).to("tenon"), torch.ones(4).to("tenon")
        torch.tenon.synchronize()
        before = waits()
        out = add(kernel, torch.empty(4, device="tenon"), x, y, writes=[0])
        assert x.tolist() == [0, 1, 2, 3] and y.tolist() == [1, 1, 1, 1]
        assert "wait::the host reads" not in {k for k, n in waits().items() if n > before.get(k, 0)}
        for wrong in ([3], [-1], [2]):  # no tensor of that number
            try:
                add(kernel, out, x, writes=wrong)
            except RuntimeError as error:
                assert "writes" in str(error), error
            else:
                raise AssertionError(wrong)
        y.add_(1)
        torch_tenon.commit()
        assert out.tolist() == [1, 2, 3, 4] and y.tolist() == [2, 2, 2, 2]
    """
    there(code, LATE_TARGET)


def test_an_op_of_the_library_only_reads_its_arguments(tmp_path: Path) -> None:
    """So that a fault of one product is not the weight's."""
    code = """
        import pytest
        queue = torch_tenon.target().queue(0)
        x, weight = torch.eye(3).to("tenon"), torch.ones(3, 3).to("tenon")
        for turn in range(3):
            torch.tenon.synchronize()
            before = waits()
            queue.loses = "wait"
            lost = x @ weight
            after = lost @ weight
            fine = weight @ x
            assert waits() == before
            for each in (lost, after):
                with pytest.raises(RuntimeError, match="lost its power"):
                    each.cpu()
            assert fine.tolist() == (torch.eye(3) + 1).tolist() and weight.tolist() == [[1] * 3] * 3
    """
    output(ADD + textwrap.dedent(code), **launching(tmp_path, "faulty", "FaultyTarget"))
