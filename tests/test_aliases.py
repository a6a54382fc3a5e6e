"""Memory that somebody else has a pointer into: it has what the tensor has, and what is written
through it is seen."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import needs
import numpy as np
import pytest
import torch
from against_cpu import assert_same, executing
from fresh_process import output
from turns import MODES, turns


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


def data() -> torch.Tensor:
    return torch.arange(6.0)


def by_dlpack(x: torch.Tensor) -> torch.Tensor:
    return torch.from_dlpack(x[1:])


def by_storage(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, device=x.device).set_(x.untyped_storage(), 1, (5,), (1,))


def by_data(x: torch.Tensor) -> torch.Tensor:
    return x.data[1:]


ALIASES = {"dlpack": by_dlpack, "storage": by_storage, "data": by_data}


@pytest.mark.parametrize("alias", ALIASES)
def test_a_write_to_the_tensor_is_seen_through_the_alias(alias: str) -> None:
    for turn in turns():
        x = data().to("tenon") * 2
        z = ALIASES[alias](x)
        x.add_(turn)
        assert_same(z, (data() * 2 + turn)[1:])
        x[2:4] = -1.0
        doubled = z * 2
        x.zero_()
        assert doubled.tolist() == [(2 + turn) * 2, -2, -2, (8 + turn) * 2, (10 + turn) * 2]
        assert_same([x, z], [torch.zeros(6), torch.zeros(5)])


@pytest.mark.parametrize("alias", ALIASES)
def test_a_write_through_the_alias_is_seen_and_overtakes_no_read(alias: str) -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        z = ALIASES[alias](x)
        before = x * 3
        z.mul_(10)
        after = x + 1
        z[0] = 7.0
        want = data() + turn
        assert_same(before, want * 3)
        want[1:] *= 10
        assert_same(after, want + 1)
        want[1] = 7
        assert_same([x, z], [want, want[1:]])


@pytest.mark.slow
@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_outlives_its_tensor(alias: str) -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        z = ALIASES[alias](x)
        x.mul_(2)
        del x
        scratch = [torch.full((6,), -9.0, device="tenon") * 1 for _ in range(8)]
        assert_same(z, ((data() + turn) * 2)[1:])
        assert_same(scratch, [torch.full((6,), -9.0)] * 8)


def test_aliases_of_aliases_and_of_views() -> None:
    for turn in turns():
        x = data().view(2, 3).to("tenon") + turn
        column = torch.from_dlpack(x.t()[1:])
        row = torch.from_dlpack(column[:, 1:])
        x.add_(1)
        column.mul_(2)
        row.sub_(1)
        want = data().view(2, 3) + turn + 1
        want.t()[1:].mul_(2)
        want.t()[1:, 1:].sub_(1)
        assert_same([x, column, row], [want, want.t()[1:], want.t()[1:, 1:]])


def test_a_gradient_is_written_where_the_alias_sees_it() -> None:
    for turn in turns():
        leaf = (data().to("tenon") + turn).requires_grad_()
        leaf.grad = torch.zeros(6, device="tenon")
        seen = torch.from_dlpack(leaf.grad)
        (leaf * leaf).sum().backward()
        assert_same([seen, leaf.grad], [2 * (data() + turn)] * 2)


@pytest.mark.slow
def test_the_bytes_of_a_storage() -> None:
    for turn in turns():
        x = data().to("tenon")
        storage = x.untyped_storage()
        x.add_(turn)
        want = (data() + turn).untyped_storage()
        assert bytes(storage.cpu()) == bytes(want)
        x.mul_(2)
        assert bytes(storage.clone().cpu()) == bytes((data() + turn).mul(2).untyped_storage())
        y = x + 1
        storage.copy_(data().untyped_storage())
        assert_same([y, x], [(data() + turn) * 2 + 1, data()])
        x.add_(1)
        storage.fill_(0)
        assert_same(x, torch.zeros(6))


def test_a_storage_that_is_resized_keeps_its_bytes() -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        x.mul_(2)
        x.untyped_storage().resize_(64)
        x.add_(1)
        assert_same(x, (data() + turn) * 2 + 1)


def at(address: int) -> list[float]:
    return list((ctypes.c_float * 6).from_address(address))


@needs.host_memory
def test_a_pointer_points_to_what_was_recorded() -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        assert at(x.data_ptr()) == (data() + turn).tolist()
        x.add_(1)
        assert at(x.data_ptr()) == (data() + turn + 1).tolist()
        y = x * 2
        assert at(y.data_ptr()) == ((data() + turn + 1) * 2).tolist()
        assert y[2:].data_ptr() == y.data_ptr() + 8
        y.add_(1)
        assert at(y[2:].data_ptr() - 8) == ((data() + turn + 1) * 2 + 1).tolist()
        assert at(y.untyped_storage().data_ptr()) == y.tolist()


@pytest.mark.slow
@needs.host_memory
def test_a_pointer_after_an_op_that_looked_at_the_layout_alone(mode: str) -> None:
    """PyTorch's templates for random numbers ask for the address, and use it for nothing."""
    code = """
        import ctypes, torch
        def at(x):
            return list((ctypes.c_float * 6).from_address(x.data_ptr()))
        for turn in range(4):
            x = torch.empty(6, device="tenon").uniform_()
            assert at(x) == x.tolist()
            x.exponential_()
            assert at(x) == x.tolist()
            y = x + turn
            for wrong in (lambda: y.random_(5, 3), lambda: y.exponential_(-1.0)):
                try:
                    wrong()
                except RuntimeError:
                    pass
                else:
                    raise AssertionError("it takes anything")
                assert at(y) == y.tolist() == (x + turn).tolist()
        print("right")
    """
    assert output(code, TENON_EXECUTE=mode) == "right"


@pytest.mark.slow
@needs.host_memory
def test_a_pointer_is_asked_for_while_another_thread_records(mode: str) -> None:
    """Backward records without the interpreter's lock."""
    code = """
        import ctypes, sys, threading, time, torch
        sys.setswitchinterval(1e-5)
        w = torch.arange(1.0, 7.0).to("tenon").requires_grad_()
        want = w.tolist()
        grad = [3 * k * k for k in want]
        stop = threading.Event()
        errors = []

        def ask(number):
            try:
                while not stop.is_set():
                    address = w.data_ptr() if number else w.untyped_storage().data_ptr()
                    found = list((ctypes.c_float * 6).from_address(address))
                    assert found == want, found
            except BaseException as error:
                errors.append(error)

        def record():
            try:
                while not stop.is_set():
                    (got,) = torch.autograd.grad((w * w * w).sum(), w)
                    assert got.tolist() == grad, got
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
        threads += [threading.Thread(target=record) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        with torch.no_grad():
            w.add_(1)  # the address is asked for anew
        assert list((ctypes.c_float * 6).from_address(w.data_ptr())) == [k + 1 for k in want]
        print("right")
    """
    assert output(code, TENON_EXECUTE=mode) == "right"


def test_memory_that_is_shared_while_another_thread_records() -> None:
    for turn in turns(6):
        x = data().to("tenon") + turn
        start = threading.Barrier(2)

        def record(x: torch.Tensor = x, start: threading.Barrier = start) -> list[torch.Tensor]:
            start.wait()
            return [x + k for k in range(20)]

        with ThreadPoolExecutor(1) as pool:
            recorded = pool.submit(record)
            start.wait()
            alias = torch.from_dlpack(x)
            alias.add_(0)
            made = recorded.result(60)
        x.add_(1)
        assert_same(alias, data() + turn + 1)
        alias.mul_(2)
        assert_same(x, (data() + turn + 1) * 2)
        assert_same(made, [data() + turn + k for k in range(20)])


@needs.host_memory
def test_a_pointer_that_was_taken_before_a_write() -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        address = x.data_ptr()
        x.add_(1)
        torch.tenon.synchronize()
        assert at(address) == (data() + turn + 1).tolist()
        x.mul_(2)
        assert x.data_ptr() == address
        assert at(address) == ((data() + turn + 1) * 2).tolist()


@needs.host_memory
def test_what_is_written_through_a_pointer() -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        memory = (ctypes.c_float * 6).from_address(x.data_ptr())
        memory[0] = 50.0
        y = x + 1
        x.mul_(2)
        torch.tenon.synchronize()
        memory[1] = 60.0
        want = data() + turn
        want[0] = 50
        assert_same(y, want + 1)
        want *= 2
        want[1] = 60
        assert_same([x, x * 2], [want, want * 2])


@pytest.fixture
def extension(third_party: None) -> Any:
    """A third party's kernels."""
    return torch.ops.tenon_aliases


@needs.host_memory
def test_an_extension_that_reads_memory(extension: Any) -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        assert extension.total(x) == 15 + 6 * turn
        x.mul_(2)
        y = x + 1
        assert extension.total(y) == 2 * (15 + 6 * turn) + 6
        assert extension.total(x) == 2 * (15 + 6 * turn)
        x[0] = 100.0
        assert extension.total(x[1:]) == 2 * (15 + 5 * turn)


@needs.host_memory
def test_an_extension_that_writes_memory(extension: Any) -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        before = x * 3
        extension.count_up(x)
        after = x * 3
        extension.count_up(x[3:])
        x.add_(1)
        extension.count_up(x)
        want = data() + turn
        assert_same(before, want * 3)
        assert_same(after, (want + 1) * 3)
        want[3:] += 1
        assert_same(x, want + 3)


@needs.host_memory
def test_an_extension_that_makes_an_alias(extension: Any) -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        z = extension.alias(x[1:])
        assert z.device == x.device
        x.add_(1)
        doubled = z * 2
        z.mul_(10)
        x[5] = 0.0
        tripled = z * 3
        want = data() + turn + 1
        assert_same(doubled, want[1:] * 2)
        want[1:] *= 10
        want[5] = 0
        assert_same([tripled, x, z], [want[1:] * 3, want, want[1:]])


def test_numpy_takes_a_tensor_by_dlpack() -> None:
    for turn in turns():
        x = data().to("tenon") + turn
        seen = np.from_dlpack(x[1:], device="cpu")
        x.zero_()
        assert seen.tolist() == (data() + turn)[1:].tolist()  # it is a copy, as for any device


def test_numpy_gives_an_array_by_dlpack() -> None:
    array = np.arange(6.0, dtype=np.float32)
    x = torch.from_dlpack(array, device="tenon")
    assert x.device.type == "tenon"
    array[:] = 0
    assert_same(x * 2, torch.arange(6.0) * 2)


def test_numpy_refuses_what_would_need_a_copy() -> None:
    x = data().to("tenon")
    with pytest.raises((RuntimeError, BufferError), match="device"):
        np.from_dlpack(x)
    with pytest.raises(ValueError, match="without copying"):
        np.from_dlpack(x, device="cpu", copy=False)


def test_a_result_of_no_elements_goes_into_memory_of_another_owner():
    """That memory cannot grow, and has not to: also where the call is known already."""
    for _ in range(4):
        x = torch.zeros(17, 0, device="tenon")
        out = torch.from_dlpack((x + 1)[8:])
        assert torch.amax(x, 0, out=out).shape == out.shape == (0,)


def test_an_empty_out_takes_the_memory_that_it_is_a_part_of() -> None:
    for _ in turns(4):
        for _ in range(2):  # a call of these sizes is known
            torch.add(data()[:4].to("tenon"), 1, out=torch.empty(0, device="tenon"))
        on_cpu, there = torch.arange(12.0), torch.arange(12.0).to("tenon")
        for x in (on_cpu, there):
            torch.add(x[4:8], 1, out=x[:0])
        assert_same(there, on_cpu)
        assert there.untyped_storage().nbytes() == on_cpu.untyped_storage().nbytes()


@needs.host_memory
def test_what_an_address_shows_and_when() -> None:
    """All that was recorded before it was asked for has run; what came after it has once the device
    is waited for, or the address asked for again."""
    for turn in turns(4):
        x = (data() + turn).to("tenon")
        before = x * 2
        x.add_(1)
        address = x.data_ptr()
        ctypes.memset(address, 0, 8)
        after = x + 1
        torch.tenon.synchronize()
        ctypes.memset(address + 8, 0, 8)
        later = x + 1
        x[5] = 7.0
        assert x.data_ptr() == address
        assert ctypes.c_float.from_address(address + 20).value == 7
        ctypes.memset(address, 1, 16)
        want = data() + turn
        zeros = torch.zeros(2)
        assert_same(before, want * 2)
        assert_same(after, torch.cat([zeros + 1, want[2:] + 2]))
        assert_same(later, torch.cat([torch.ones(4), want[4:] + 2]))
