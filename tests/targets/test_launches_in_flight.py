"""Launches are ordered by the device's queue: the host waits for none, whatever tensors they share.

What one of them fails with reaches who reads what depends on it.
"""

import textwrap

import pytest
from fresh_process import ASYNCHRONOUS_TARGET, TESTS, output

TARGETS = TESTS / "targets"
FAULTY_TARGET = f"{TARGETS / 'launching.py'}:FaultyLaunching"
LATE_TARGET = f"{TARGETS / 'launching.py'}:LateLaunching"
SEVERAL_QUEUES_TARGET = f"{TARGETS / 'several_queues.py'}:SeveralQueuesTarget"


def there(code: str, target: str, **settings: str) -> str:
    start = """
    import sys
    sys.path.insert(0, "targets")
    import pytest, torch, torch_tenon
    from launching import add, kernel, waits
    """
    return output(textwrap.dedent(start) + textwrap.dedent(code), TENON_TARGET=target, **settings)


SHARED = """
    a, b = torch.arange(6.0).to("tenon"), torch.ones(6).to("tenon")
    for _ in range(3):  # the first call runs at once
        assert (a * 2).tolist() == [0, 2, 4, 6, 8, 10]
    before, results = waits(), []
    for _ in range(10):
        results.append(add(torch.empty(6, device="tenon"), a, b))
    for _ in range(5):  # each reads what the one before makes, and one writes it again
        results.append(add(torch.empty(6, device="tenon"), results[-1], b))
        add(results[-1], results[-1], a)
        results.append(add(torch.empty(6, device="tenon"), results[-1] * 2))
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
    n = 1 << 15  # beyond what is copied beside the kernels
    for k in range(20):
        a = torch.full((n,), float(k)).to("tenon")
        b = add(torch.empty(n, device="tenon"), a)
        a.copy_(torch.full((n,), -1.0))  # what the launch reads is written behind it
        c = add(torch.empty(n, device="tenon"), b, a)
        for found, wanted in ((b, k + 1), (c, k), (a, -1)):
            assert found.cpu().eq(wanted).all(), (k, wanted)
    """
    there(code, SEVERAL_QUEUES_TARGET)


def test_memory_that_is_let_go_of_in_flight_is_used_again() -> None:
    code = """
    n = 1 << 18
    x = torch.zeros(n).to("tenon")
    torch.tenon.synchronize()
    torch.tenon.reset_peak_memory_stats()
    start = torch.tenon.memory_allocated()
    for _ in range(50):
        x = add(torch.empty(n, device="tenon"), x)
    assert torch.tenon.max_memory_allocated() - start <= 2 * 4 * n
    assert x.eq(50).all().item()
    """
    for target in (LATE_TARGET, ASYNCHRONOUS_TARGET):
        there(code, target)


FAILS = """
    queue = torch_tenon.target().queue(0)
    weight = torch.ones(4).to("tenon")
    for _ in range(3):  # the first call runs at once
        assert (weight * 2).tolist() == [2] * 4
    for turn in range(4):
        x, fine = (torch.arange(4.0).to("tenon") for _ in range(2))
        torch.tenon.synchronize()
        queue.loses, queue.pause = ("wait", "done")[turn % 2], 0.02 * (turn // 2)
        lost = add(torch.empty(4, device="tenon"), x, weight, {writes})
        after = add(torch.empty(4, device="tenon"), lost, weight, {writes})
        behind = add(torch.empty(4, device="tenon"), after * 2, {writes})
        apart = add(torch.empty(4, device="tenon"), fine, {writes})
        for each in (lost, after, behind, after * 2) + {also}:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="lost its power"):
                    each.cpu()
        assert apart.tolist() == fine.add(1).tolist() == [1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="lost its power"):  # somebody has seen it
            add(torch.empty(4, device="tenon"), lost)
        queue.pause = 0
        weight = torch.ones(4).to("tenon")
"""


def test_what_an_earlier_launch_failed_with_is_the_error_of_what_depends_on_it() -> None:
    """Of what is only read, where that is said; else of all tensors of the launch."""
    there(FAILS.format(writes="writes=[0]", also="()"), FAULTY_TARGET)
    there(FAILS.format(writes="", also="(x, weight)"), FAULTY_TARGET)


def test_what_a_launch_only_reads_is_read_beside_it() -> None:
    code = """
    x, y = torch.arange(4.0).to("tenon"), torch.ones(4).to("tenon")
    torch.tenon.synchronize()
    before = waits()
    out = add(torch.empty(4, device="tenon"), x, y, writes=[0])
    assert x.tolist() == [0, 1, 2, 3] and y.tolist() == [1, 1, 1, 1]
    assert "wait::the host reads" not in {k for k, n in waits().items() if n > before.get(k, 0)}
    for wrong in ([3], [-1], [2]):  # no tensor of that number
        try:
            add(out, x, writes=wrong)
        except RuntimeError as error:
            assert "writes" in str(error), error
        else:
            raise AssertionError(wrong)
    y.add_(1)
    torch_tenon.commit()
    assert out.tolist() == [1, 2, 3, 4] and y.tolist() == [2, 2, 2, 2]
    """
    there(code, LATE_TARGET)


def test_an_op_of_the_library_only_reads_its_arguments() -> None:
    """So that a fault of one product is not the weight's."""
    code = """
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
    there(code, FAULTY_TARGET)


def test_a_fault_names_the_ops_of_its_window_or_launch() -> None:
    """An error of Python's has them as a note."""
    code = """
    queue = torch_tenon.target().queue(0)
    x = torch.eye(3).to("tenon")
    for _ in range(3):
        assert ((x * 2).relu() + 1).cpu() is not None
    torch.tenon.synchronize()
    for made, wanted in (
        (lambda: (x * 2).relu() + 1, "in: aten::mul.Tensor, aten::relu, aten::add.Tensor; 3 calls"),
        (lambda: x @ x, "in: aten::mm; 1 launch"),
    ):
        queue.loses = "wait"
        lost = made()
        torch_tenon.commit()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="lost its power") as raised:
                lost.cpu()
            assert raised.value.__notes__ == [wanted], raised.value.__notes__
    """
    there(code, FAULTY_TARGET, TENON_EXECUTE="compiled")


def test_where_each_op_is_waited_for_a_launch_is() -> None:
    code = """
    queue = torch_tenon.target().queue(0)
    x = torch.eye(3).to("tenon")
    assert (x @ x).tolist() == (x + x).tolist()
    with torch.tenon.blocking():
        queue.loses = "wait"
        with pytest.raises(RuntimeError, match="lost its power"):
            x @ x
    """
    there(code, FAULTY_TARGET)


def test_what_an_op_writes_against_its_schema_is_written() -> None:
    """By the library's launch, and by the host's kernel in its place."""
    code = """
    norm = torch.ops.aten.native_batch_norm
    x, mean = torch.randn(8, 4).to("tenon"), torch.zeros(4).to("tenon")
    for k in range(1, 5):
        norm(x, None, None, mean, torch.ones(4).to("tenon"), True, 0.1, 1e-5)
        assert mean.tolist() == [k] * 4, (k, mean)
    host = [torch.zeros(4), torch.ones(4)]
    there = [t.to("tenon") for t in host]
    for _ in range(4):
        norm(x.cpu(), torch.ones(4), None, *host, True, 0.1, 1e-5)
        norm(x, torch.ones(4).to("tenon"), None, *there, True, 0.1, 1e-5)
        for found, wanted in zip(there, host, strict=True):
            torch.testing.assert_close(found.cpu(), wanted)
    """
    there(code, LATE_TARGET)
    code = """
    queue = torch_tenon.target().queue(0)
    x, mean, ones = (t.to("tenon") for t in (torch.randn(8, 4), torch.zeros(4), torch.ones(4)))
    torch.tenon.synchronize()
    queue.loses = "wait"
    torch.ops.aten.native_batch_norm(x, None, None, mean, ones, True, 0.1, 1e-5)
    with pytest.raises(RuntimeError, match="lost its power"):
        mean.cpu()
    """
    there(code, FAULTY_TARGET)
