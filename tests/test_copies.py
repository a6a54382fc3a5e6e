"""Copies in every direction, between tensors of any layout and dtype."""

import itertools

import pytest
import torch
from against_cpu import assert_same, executing
from turns import MODES, turns

PLACES = ("cpu", "tenon:0", "tenon:1")
DIRECTIONS = [(a, b) for a, b in itertools.product(PLACES, PLACES) if (a, b) != ("cpu", "cpu")]

# Each makes a 6 by 4 view of a fresh tensor of 10 by 12.
LAYOUTS = {
    "block": lambda x: x[2:8, 3:7],
    "step": lambda x: x[:6, ::3],
    "transposed": lambda x: x[:4, :6].t(),
    "offset": lambda x: x.reshape(-1)[7:31].view(6, 4),
    "as_strided": lambda x: x.as_strided((6, 4), (13, 2), 5),
}


def base(dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
    values = torch.arange(120).reshape(10, 12) - 60
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype).to(device)
    return values.to(dtype).to(device)


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("source", "destination"), DIRECTIONS)
@pytest.mark.parametrize("src_layout", LAYOUTS)
@pytest.mark.parametrize("dst_layout", LAYOUTS)
def test_strided_on_either_side(
    source: str, destination: str, src_layout: str, dst_layout: str
) -> None:
    src_cpu, dst_cpu = base(torch.float32), base(torch.float32) * 100
    src, dst = src_cpu.to(source), dst_cpu.to(destination)
    LAYOUTS[dst_layout](dst_cpu).copy_(LAYOUTS[src_layout](src_cpu))
    LAYOUTS[dst_layout](dst).copy_(LAYOUTS[src_layout](src))
    assert_same(dst, dst_cpu)
    assert_same(src, src_cpu)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("source", "destination"), DIRECTIONS)
@pytest.mark.parametrize("dst_layout", ["block", "transposed"])
def test_broadcast_and_another_dtype(source: str, destination: str, dst_layout: str) -> None:
    for src_dtype, dst_dtype in itertools.product(
        (torch.float32, torch.int8, torch.bool, torch.bfloat16, torch.complex64),
        (torch.float64, torch.int64, torch.bool, torch.float16, torch.complex128),
    ):
        if src_dtype.is_complex and not dst_dtype.is_complex:
            continue
        src_cpu, dst_cpu = base(src_dtype)[:1, :4], base(dst_dtype)
        src, dst = src_cpu.to(source), dst_cpu.to(destination)
        LAYOUTS[dst_layout](dst_cpu).copy_(src_cpu)
        LAYOUTS[dst_layout](dst).copy_(src)
        assert_same(dst, dst_cpu)


@pytest.mark.parametrize(("source", "destination"), DIRECTIONS)
def test_conjugate_and_negative_views(source: str, destination: str) -> None:
    for view in (
        lambda x: x.conj(),
        lambda x: x.conj().t().contiguous().t(),
        lambda x: x.conj()[1:, ::2],
        lambda x: x.conj().imag,  # a negative view
    ):
        cpu = base(torch.complex64)
        there = cpu.to(source)
        assert_same(view(there).to(destination), view(cpu))
        dst_cpu = torch.zeros_like(view(cpu)).resolve_neg()
        dst = dst_cpu.to(destination)
        assert_same(dst.copy_(view(there)), dst_cpu.copy_(view(cpu)))
        target_cpu = cpu.clone()
        target = target_cpu.to(destination)
        value = torch.ones_like(view(cpu)) * 3
        view(target_cpu).copy_(value)
        view(target).copy_(value.to(source))
        assert_same(target, target_cpu)


@pytest.mark.parametrize(("source", "destination"), DIRECTIONS)
def test_non_blocking(source: str, destination: str) -> None:
    x = torch.arange(1000.0)
    there = x.to(source)
    y = there.to(destination, non_blocking=True)
    z = torch.zeros(1000, device=destination).copy_(there, non_blocking=True)
    torch.tenon.synchronize(0)
    torch.tenon.synchronize(1)
    assert_same([y, z], [x, x])


def test_overlapping() -> None:
    cpu = torch.arange(20.0)
    device = cpu.to("tenon")
    # What PyTorch does with memory that a copy both reads and writes is not told; what it says is.
    for x in (cpu, device):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            x[:1].expand(5).copy_(x[5:10])
    assert_same(device, cpu)
    assert_same(device[:5].copy_(device[5:10]), cpu[:5].copy_(cpu[5:10]))
    assert_same(device, cpu)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dtype", "other"),
    [(torch.float32, torch.int32), (torch.int64, torch.float64), (torch.bfloat16, torch.int16)],
)
def test_to_another_dtype_in_the_same_memory(
    dtype: torch.dtype, other: torch.dtype, mode: str
) -> None:
    def compute(device: str) -> list[torch.Tensor]:
        x = (torch.arange(6).view(2, 3) - 2).to(dtype).to(device)
        seen = x.view(other)
        seen.copy_(x)
        whole = seen.clone()
        seen[0].copy_(seen.view(dtype)[0])
        return [whole, seen]

    with executing(mode):
        for _ in range(3):
            assert_same(compute("tenon"), compute("cpu"))


@pytest.mark.parametrize("device", ["tenon:0", "tenon:1"])
def test_to(device: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    y = x.to(device)
    assert y.to(device) is y and y.to(device, copy=True) is not y
    assert y.device == torch.device(device) and y.stride() == x.stride()
    assert_same(y.to(torch.float64), x.to(torch.float64))
    assert_same(y.to("cpu", torch.int32), x.to(torch.int32))
    assert y.to(x).device.type == "cpu" and x.to(y).device == y.device
    assert x.permute(2, 0, 1).to(device).stride() == x.permute(2, 0, 1).stride()
    assert y.cpu().device.type == "cpu" and y.tolist() == x.tolist()


def test_from_python_and_to_python() -> None:
    assert torch.tensor([[1, 2], [3, 4]], device="tenon").tolist() == [[1, 2], [3, 4]]
    x = torch.tensor([1.5, -2.0], device="tenon:1")
    assert x[1].item() == -2.0 and float(x[0]) == 1.5 and int(x[1]) == -2 and bool(x[0])
    assert [float(value) for value in x] == [1.5, -2.0]
    assert torch.tensor(1 + 2j, device="tenon").conj().item() == 1 - 2j
    assert torch.tensor(3, device="tenon").__index__() == 3
    assert f"{torch.tensor(2.5, device='tenon'):.2f}" == "2.50"


def test_between_devices_through_views() -> None:
    x = torch.arange(12.0, device="tenon:0").view(3, 4)
    y = torch.zeros(4, 3, device="tenon:1")
    y.t().copy_(x)
    y[1] = x[:, 2] + 100
    assert_same(y, torch.tensor([[0.0, 4, 8], [102, 106, 110], [2, 6, 10], [3, 7, 11]]))


def test_large() -> None:
    x = torch.arange(3_000_000, dtype=torch.int32)
    y = x.to("tenon:0")
    assert torch.equal(y.to("tenon:1").cpu(), x)
    assert torch.equal(y[::2].cpu(), x[::2])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("source", "destination"), [("tenon:0", "tenon:1"), ("tenon:1", "tenon:0")]
)
def test_what_is_pending_on_either_device_comes_first(
    source: str, destination: str, mode: str
) -> None:
    with executing(mode):
        for turn in turns(5):
            x = torch.rand(6, 4)
            src, dst = x.to(source), x.to(destination)
            src.add_(turn)
            a = src * 2
            dst.mul_(3)
            kept = dst + 1
            dst[2:].copy_(a[2:])  # before this, `kept` and all of `dst`; after it, the rest
            a.zero_()
            moved = src.to(destination)
            src.sub_(1)
            dst[:1].add_(moved[:1])
            dst.mul_(2)
            want = x * 3
            want[2:] = (x[2:] + turn) * 2
            want[:1] += x[:1] + turn
            assert_same(dst, want * 2)
            assert_same([kept, a, moved, src], [x * 3 + 1, x * 0, x + turn, x + turn - 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lazy_clones(layout: str, gone: bool, mode: str) -> None:
    """Each is written for itself, in any order, also the one that is left."""

    def clones(device: str) -> list[torch.Tensor]:
        x = base(torch.float32, device) + 1  # not computed yet
        seen = LAYOUTS[layout](x)
        copy = torch._lazy_clone(seen)
        again = torch._lazy_clone(copy)
        copy.mul_(2)
        found = [copy.clone(), again + seen]
        if gone:
            del x, seen
            again.sub_(3)
        else:
            seen.add_(1)
            found += [x, seen]
        found += [copy + again, torch._lazy_clone(again.t()).zero_(), again]
        return found

    with executing(mode):
        for _ in range(2):
            got, want = clones("tenon"), clones("cpu")
            assert_same(got, want)
            strides = [[t.stride() for t in found] for found in (got, want)]
            assert strides[0] == strides[1]
