"""Views share memory: every kind reads and writes through, and storages are what they are."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from against_cpu import assert_same, same_error_on_both
from hypothesis import given, settings

View = Callable[[torch.Tensor], torch.Tensor]


def base(device: str) -> torch.Tensor:
    return torch.arange(2 * 4 * 6.0).reshape(2, 4, 6).to(device)


VIEWS: dict[str, View] = {
    "slice": lambda x: x[:, 1:3],
    "step": lambda x: x[:, :, ::2],
    "select": lambda x: x[1],
    "narrow": lambda x: x.narrow(2, 1, 3),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "expand": lambda x: x[:, :1].expand(2, 5, 6),
    "expand_as": lambda x: x[:1].expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x[:, :, :1], (2, 4, 3)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "movedim": lambda x: x.movedim(0, 2),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "t": lambda x: x[1].t(),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (5, 7), 4),
    "view": lambda x: x.view(4, 12),
    "view_as": lambda x: x.view_as(torch.empty(8, 6)),
    "view_dtype_same_size": lambda x: x.view(torch.int32),
    "view_dtype_smaller": lambda x: x.view(torch.int16),
    "view_dtype_larger": lambda x: x.view(torch.float64),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "ravel": lambda x: x.ravel(),
    "reshape": lambda x: x.reshape(8, 6),
    "reshape_of_a_view": lambda x: x[:, ::2].reshape(2, 2, 3, 2),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 3], 1)[1],
    "tensor_split": lambda x: x.tensor_split(4, 2)[2],
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1)[0],
    "hsplit": lambda x: x.hsplit(2)[1],
    "vsplit": lambda x: x.vsplit(2)[1],
    "dsplit": lambda x: x.dsplit(3)[1],
    "unbind": lambda x: x.unbind(1)[3],
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "swapdims": lambda x: x.swapdims(0, 1),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 4, 3, 2)),
    "ellipsis_and_none": lambda x: x[..., None, 2:],
}

COMPLEX_VIEWS: dict[str, View] = {
    "view_as_real": torch.view_as_real,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj": lambda x: x.conj(),
    "conj_twice": lambda x: x.conj().conj(),
    "conj_slice": lambda x: x.conj()[:, 1],
    "adjoint": lambda x: x.adjoint(),
    "mH": lambda x: x.mH,
    "H": lambda x: x[0].H,
    "neg_view": torch._neg_view,
    "imag_of_conj": lambda x: x.conj().imag,
}


def check_view(make: Callable[[str], torch.Tensor], view: View) -> None:
    cpu, device = make("cpu"), make("tenon")
    on_cpu, on_device = view(cpu), view(device)
    assert on_device.device == device.device
    assert on_device.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()
    assert on_device.data_ptr() - device.data_ptr() == on_cpu.data_ptr() - cpu.data_ptr()
    for what in ("shape", "dtype", "is_conj", "is_neg", "storage_offset", "stride", "_is_view"):
        told = [getattr(x, what) for x in (on_device, on_cpu)]
        assert len({str(t() if callable(t) else t) for t in told}) == 1, what
    assert_same(on_device, on_cpu)
    # What is written to the base is read through the view.
    for x in (cpu, device):
        x.mul_(2)
    assert_same(on_device, on_cpu)
    if 0 in on_cpu.stride() or on_cpu.numel() > cpu.numel():
        return  # the CPU does not write where elements meet either
    # What is written through the view is read in the base.
    for x in (on_cpu, on_device):
        x.fill_(7)
        x.view(-1)[:1].add_(1) if x.is_contiguous() else x.select(0, 0).add_(1)
    assert_same(device, cpu)
    value = torch.arange(on_cpu.numel()).reshape(on_cpu.shape).to(on_cpu.dtype)
    on_cpu.copy_(value)
    on_device.copy_(value.to("tenon"))
    assert_same(device, cpu)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("view", VIEWS)
def test_views_read_and_write_through(view: str) -> None:
    check_view(base, VIEWS[view])


@pytest.mark.parametrize("view", COMPLEX_VIEWS)
def test_complex_views_read_and_write_through(view: str) -> None:
    check_view(lambda device: torch.complex(base(device), -base(device)), COMPLEX_VIEWS[view])


def test_views_that_cannot_be_are_errors() -> None:
    for wrong in (
        lambda d: base(d).transpose(0, 2).view(48),
        lambda d: base(d).view(7, 7),
        lambda d: base(d).as_strided((9, 9), (9, 1)),
        lambda d: base(d)[:, :, 1:].view(torch.float64),
        lambda d: torch.view_as_complex(base(d)),
        lambda d: base(d).expand(3, 4, 6),
        lambda d: base(d).narrow(1, 3, 4),
    ):
        same_error_on_both(wrong)


# Programs of views and writes. Each step makes a view of a view, or writes to one; every tensor of
# the program has to be what it is on the CPU.


def draw_view(draw: Callable, x: torch.Tensor) -> View:
    """A view of a tensor like `x`, as a function of it."""
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else None
    kinds = ["unsqueeze", "detach"]
    if dim is not None:
        size = x.size(dim)
        kinds += ["permute", "expand", "flip_dims", "flatten"]
        kinds += ["slice", "select", "chunk", "unfold"] if size > 0 else []
        kinds += ["diagonal"] if x.dim() > 1 else []
        kinds += ["squeeze"] if size == 1 else []
    kinds += ["real", "imag", "conj", "as_real"] if x.is_complex() else []
    if x.dim() and x.dtype == torch.float32 and x.stride(-1) == 1:
        kinds += ["int32", "int16"]
    kind = draw(st.sampled_from(kinds))
    if kind == "slice":
        start = draw(st.integers(0, size - 1))
        stop, step = draw(st.integers(start, size)), draw(st.integers(1, 3))
        return lambda y: y[(slice(None),) * dim + (slice(start, stop, step),)]
    if kind == "select":
        at = draw(st.integers(-size, size - 1))
        return lambda y: y.select(dim, at)
    if kind == "permute":
        order = draw(st.permutations(range(x.dim())))
        return lambda y: y.permute(order)
    if kind == "expand":
        return lambda y: y.unsqueeze(dim).expand(*y.shape[:dim], 2, *y.shape[dim:])
    if kind == "unfold":
        width, step = draw(st.integers(1, size)), draw(st.integers(1, 3))
        return lambda y: y.unfold(dim, width, step)
    if kind == "diagonal":
        offset = draw(st.integers(-1, 1))
        return lambda y: y.diagonal(offset, dim, (dim + 1) % y.dim())
    return {
        "unsqueeze": lambda y: y.unsqueeze(-1),
        "detach": lambda y: y.detach(),
        "flip_dims": lambda y: y.permute(tuple(reversed(range(y.dim())))),
        "flatten": lambda y: y.flatten(),
        "chunk": lambda y: y.chunk(2, dim)[-1],
        "squeeze": lambda y: y.squeeze(dim),
        "real": lambda y: y.real,
        "imag": lambda y: y.imag,
        "conj": lambda y: y.conj(),
        "as_real": lambda y: torch.view_as_real(y.resolve_conj()),
        "int32": lambda y: y.view(torch.int32),
        "int16": lambda y: y.view(torch.int16),
    }[kind]


def has_meeting_elements(x: torch.Tensor) -> bool:
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * stride).reshape(-1)
    return len(places) != len(places.unique())


def draw_write(draw: Callable, x: torch.Tensor, others: list[torch.Tensor]) -> Callable:
    """A write to a tensor like `x`: a function of it and of the list that `others` is."""
    value = draw(st.integers(-5, 5))
    kind = draw(st.sampled_from(["fill", "add", "mul", "copy", "index", "mask", "put", "zero"]))
    same = [i for i, other in enumerate(others) if other.shape == x.shape]
    if kind == "copy":
        which = draw(st.sampled_from(same))
        return lambda y, all_of: y.copy_(all_of[which].clone())
    if kind == "index" and x.dim() and x.size(0):
        at = draw(st.lists(st.integers(0, x.size(0) - 1), max_size=3, unique=True))
        return lambda y, _: y.index_fill_(0, torch.tensor(at, device=y.device, dtype=int), value)
    if kind == "put" and x.dim() and x.size(0):
        at = draw(st.integers(0, x.size(0) - 1))
        return lambda y, _: y.__setitem__(torch.tensor([at], device=y.device), value)
    if kind == "mask" and not x.is_complex():
        return lambda y, _: y.masked_fill_(y > value, value)
    return {
        "add": lambda y, _: y.add_(value),
        "mul": lambda y, _: y.mul_(value),
        "zero": lambda y, _: y.zero_(),
    }.get(kind, lambda y, _: y.fill_(value))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_program_of_views_and_writes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from([torch.float32, torch.complex64, torch.int64]))
    cpu = [torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)]
    device = [cpu[0].to("tenon")]
    for _ in range(data.draw(st.integers(1, 12))):
        which = data.draw(st.integers(0, len(cpu) - 1))
        if data.draw(st.booleans()) or has_meeting_elements(cpu[which]):
            view = draw_view(data.draw, cpu[which])
            cpu.append(view(cpu[which]))
            device.append(view(device[which]))
        else:
            write = draw_write(data.draw, cpu[which], cpu)
            write(cpu[which], cpu)
            write(device[which], device)
            assert_same(device[0], cpu[0])
    for on_device, on_cpu in zip(device, cpu, strict=True):
        assert on_device.stride() == on_cpu.stride()
        assert_same(on_device, on_cpu)


# Storages


def test_resize() -> None:
    for sizes in ((2, 3), (40,), (0,), (5, 5, 2)):
        cpu, device = torch.arange(12.0), torch.arange(12.0, device="tenon")
        cpu.resize_(sizes)
        assert device.resize_(sizes) is device
        kept = min(12, cpu.numel())
        assert device.shape == cpu.shape and device.stride() == cpu.stride()
        assert_same(device.flatten()[:kept], cpu.flatten()[:kept])
        nbytes = [x.untyped_storage().nbytes() for x in (device, cpu)]
        assert nbytes[0] == nbytes[1]
    x = torch.arange(24.0, device="tenon").resize_((1, 2, 3, 4), memory_format=torch.channels_last)
    assert x.stride() == (24, 1, 8, 2)
    y = torch.empty(0, device="tenon:1").resize_as_(torch.empty(3, 4))
    assert y.shape == (3, 4) and y.device == torch.device("tenon:1")
    same_error_on_both(lambda d: torch.ones(2, device=d, requires_grad=True).resize_(3))


def test_resize_of_a_view_keeps_its_storage() -> None:
    x = torch.arange(12.0, device="tenon")
    y = x[4:]
    y.resize_(3)
    y.fill_(-1)
    assert x.tolist() == [0, 1, 2, 3, -1, -1, -1, 7, 8, 9, 10, 11]


def test_set() -> None:
    for device in ("cpu", "tenon"):
        source = torch.arange(12.0, device=device).view(3, 4)
        x = torch.empty(0, device=device)
        x.set_(source)
        assert x.data_ptr() == source.data_ptr() and x.shape == (3, 4)
        x.set_(source.untyped_storage(), 2, (2, 2), (4, 1))
        assert x.tolist() == [[2, 3], [6, 7]]
        x.fill_(0)
        assert source.sum().item() == 66 - 18
        x.set_(source.untyped_storage())
        assert x.shape == (12,)
        x.set_(source, 1, (3,), (4,))
        assert x.tolist() == [1, 5, 9]
        x.set_()
        assert x.shape == (0,) and x.device.type == device
        x.data = source
        assert x.data_ptr() == source.data_ptr()
    with pytest.raises(RuntimeError):
        torch.empty(0, device="tenon").set_(torch.empty(3))


def test_storages() -> None:
    x = torch.arange(6.0, device="tenon:1")
    storage = x.untyped_storage()
    assert storage.device == torch.device("tenon:1") and storage.nbytes() == 24
    assert storage.data_ptr() == x.data_ptr() == x[0].data_ptr() == x[2:].data_ptr() - 8
    assert storage.tolist() == torch.arange(6.0).untyped_storage().tolist()
    copied = storage.clone()
    x.zero_()
    assert copied.data_ptr() != storage.data_ptr() and any(copied.tolist())
    storage.copy_(copied)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert storage.cpu().device.type == "cpu" and storage.cpu().tolist() == copied.tolist()
    assert torch.UntypedStorage(16, device="tenon").nbytes() == 16
    assert torch.arange(6.0).untyped_storage().tenon().device.type == "tenon"


def test_storage_resize_frees_and_grows(nothing_leaked: None) -> None:
    x = torch.arange(300_000.0, device="tenon")
    before = torch.tenon.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.tenon.memory_allocated() <= before - 1_200_000
    assert x.untyped_storage().size() == 0 and x.shape == (300_000,)
    x.untyped_storage().resize_(1_200_000)
    x.copy_(torch.ones(300_000))
    assert x.sum().item() == 300_000


def test_identity_is_kept_by_writes() -> None:
    x = torch.arange(8.0, device="tenon")
    address = x.data_ptr()
    y = x.view(2, 4)
    x.add_(1).mul_(x).clamp_(0, 30)
    torch.sqrt(x, out=x)
    x[2:] = 5
    y.t_()
    assert x.data_ptr() == y.data_ptr() == address
    assert x.tolist() == [1, 2, 5, 5, 5, 5, 5, 5] and y.shape == (4, 2)
    out = torch.empty(0, device="tenon")
    torch.add(x, 1, out=out)
    assert out.tolist() == [2, 3, 6, 6, 6, 6, 6, 6]
