"""Channels-last, complex, quantised, sparse and nested tensors."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import assert_on_device, assert_same, same_error_on_both, same_on_both

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of")

# Channels last


def test_channels_last() -> None:
    def compute(device: torch.device) -> list:
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        pool = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        model = torch.nn.Sequential(conv, pool).to(device, memory_format=torch.channels_last)
        x = torch.linspace(-1, 1, 384, device=device).view(2, 3, 8, 8)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        y = model(x)
        y.pow(2).sum().backward()
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert y.is_contiguous(memory_format=torch.channels_last)
        return [y.detach(), x.grad, model[0].weight.grad]

    same_on_both(compute, rtol=1e-4, atol=1e-5)


def test_memory_formats() -> None:
    for made in (
        lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last),
        lambda d: torch.empty(2, 3, 4, 5, 6, device=d, memory_format=torch.channels_last_3d),
        lambda d: torch.ones(2, 3, 4, 5, device=d).contiguous(memory_format=torch.channels_last),
        lambda d: torch.empty_like(torch.ones(2, 3, 4, device=d).transpose(0, 2)),
        lambda d: torch.ones(2, 3, 4, device=d).transpose(0, 1).clone(),
        lambda d: torch.ones(2, 3, 4, device=d).transpose(0, 1) + 1,
        lambda d: torch.nn.functional.relu(
            torch.ones(2, 3, 4, 5, device=d).to(memory_format=torch.channels_last)
        ),
        lambda d: torch.empty_strided((2, 3), (1, 5), device=d),
    ):
        assert made("tenon").stride() == made("cpu").stride()


# Complex


def test_complex() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-1, 1, 16, device=device).view(4, 4)
        z = torch.complex(x, x.t().contiguous()).requires_grad_()
        y = (z @ z.mH + z.conj() * 2j).exp()
        y.abs().sum().backward()
        f = torch.fft.fft2(z)
        return [
            *(y.detach(), z.grad, f.detach(), torch.fft.ifft2(f).detach().angle()),
            *(torch.polar(x.abs(), x), z.detach().conj().resolve_conj(), z.detach().sgn()),
            torch.linalg.eigvals(z.detach()).abs().sort().values,
        ]

    same_on_both(compute, rtol=1e-4, atol=1e-4)


def test_complex_numbers_of_halves_are_said_to_be_experimental() -> None:
    makers: list[Callable[[dict[str, Any]], torch.Tensor]] = [
        lambda options: torch.empty(3, **options),
        lambda options: torch.empty_strided((3,), (1,), **options),
        lambda options: torch.randn(3, **options),
        lambda options: torch.ones(3, **options),
        lambda options: torch.zeros(3, **options),
    ]
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for make in makers:
            for device in ("cpu", "tenon"):
                with pytest.warns(UserWarning, match="ComplexHalf support") as given:
                    make({"dtype": torch.complex32, "device": device})
                assert len(given) == 1
    finally:
        torch.set_warn_always(before)


# Quantised


def test_quantize_per_tensor_and_channel() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-3, 3, 12, device=device).view(3, 4)
        q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
        scales = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, device=device)
        zeros = torch.tensor([0, 1, 2], device=device)
        c = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
        assert (q.q_scale(), q.q_zero_point(), q.qscheme()) == (0.1, 10, torch.per_tensor_affine)
        assert c.q_per_channel_axis() == 0
        return [
            *(q.dequantize(), q.int_repr(), c.dequantize(), c.int_repr()),
            *(c.q_per_channel_scales(), q[1:].dequantize(), q.view(12).int_repr(), q.clone()),
            *(torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), q.t().dequantize()),
        ]

    same_on_both(compute)


def test_quantised_tensors_move() -> None:
    q = torch.quantize_per_tensor(torch.linspace(-1, 1, 6), 0.05, 3, torch.qint8)
    there = q.to("tenon")
    assert there.is_quantized and there.device.type == "tenon"
    assert there.cpu().device.type == "cpu" and there.detach().clone().device == there.device
    assert there.to("tenon:1").device == torch.device("tenon:1")
    assert_same(there.to("tenon:1").int_repr(), q.int_repr())
    assert_same(there.cpu().int_repr(), q.int_repr())
    assert "size=(6,)" in repr(there) and "device='tenon:0'" in repr(there)


@pytest.mark.parametrize("by_channel", [False, True])
def test_quantised_tensors_are_saved_and_copied(by_channel: bool) -> None:
    x = torch.randn(3, 4)
    if by_channel:
        scales, zeros = torch.rand(3, dtype=torch.float64) + 0.01, torch.tensor([0, 1, 2])
        q = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    else:
        q = torch.quantize_per_tensor(x, 0.05, 3, torch.quint8)
    there = q.to("tenon:1")
    part = (lambda x: x) if by_channel else (lambda x: x[1:].t())  # those have no views
    file = io.BytesIO()
    torch.save([there, part(there)], file)
    loaded, viewed = torch.load(io.BytesIO(file.getvalue()))
    copies = (loaded, pickle.loads(pickle.dumps(there)), copy.deepcopy(there))
    for found in copies:
        assert found.device == there.device and found.qscheme() == q.qscheme()
        assert_same([found.int_repr(), found.dequantize()], [q.int_repr(), q.dequantize()])
    assert_same(viewed.dequantize(), part(q).dequantize())
    assert viewed.untyped_storage().data_ptr() == loaded.untyped_storage().data_ptr()
    moved, _ = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert moved.device.type == "cpu" and torch.equal(moved.int_repr(), q.int_repr())


def test_a_quantised_linear() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-1, 1, 12, device=device).view(3, 4)
        q = torch.quantize_per_tensor(x, 0.02, 64, torch.quint8)
        w = torch.quantize_per_tensor(
            torch.linspace(-1, 1, 8, device=device).view(2, 4), 0.01, 0, torch.qint8
        )
        bias = torch.tensor([0.5, -0.5], device=device)
        return [torch.nn.functional.linear(q.dequantize(), w.dequantize(), bias)]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


# Sparse


def dense(device: torch.device) -> torch.Tensor:
    x = torch.zeros(6, 4, device=device)
    x[0, 1], x[2, 3], x[2, 0], x[5, 2] = 1.0, 2.0, 3.0, 4.0
    return x


def make(layout: torch.layout, device: torch.device) -> torch.Tensor:
    size = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return dense(device).to_sparse(layout=layout, blocksize=size)


LAYOUTS = (
    *(torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr),
    torch.sparse_bsc,
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sparse_round_trip(layout: torch.layout) -> None:
    x = make(layout, torch.device("tenon"))
    assert x.layout == layout and x.device.type == "tenon"
    assert_same(x.to_dense(), dense(torch.device("cpu")))
    assert_same(x.cpu(), make(layout, torch.device("cpu")))
    assert_same(make(layout, torch.device("cpu")).to("tenon"), x)
    if layout != torch.sparse_coo:  # PyTorch's own copy leaves its indices behind
        assert_same(x.to("tenon:1"), x)
        assert x.to("tenon:1").values().device == torch.device("tenon:1")
    assert_on_device([x.values(), x.clone(), x.detach(), torch.empty_like(x)])
    assert "device='tenon:0'" in repr(x)
    y = x.clone()
    y.values().mul_(2)
    assert_same(y.to_dense(), dense(torch.device("cpu")) * 2)


@pytest.mark.parametrize("layout", LAYOUTS[:3], ids=str)
def test_sparse_arithmetic(layout: torch.layout) -> None:
    def compute(device: torch.device) -> list:
        x = make(layout, device)
        y = torch.linspace(-1, 1, 12, device=device).view(4, 3)
        return [
            *(x @ y, (x * 2).to_dense(), torch.sparse.sum(x) if layout == LAYOUTS[0] else x @ y),
            *((x + x).to_dense(), torch.relu(x).to_dense(), (-x).to_dense(), x.sum()),
            x @ y[:, 0],
        ]

    same_on_both(compute, rtol=1e-6, atol=1e-7)


def test_sparse_coo() -> None:
    def compute(device: torch.device) -> list:
        indices = torch.tensor([[0, 2, 0], [1, 0, 1]], device=device)
        values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
        x = torch.sparse_coo_tensor(indices, values, (3, 2))
        assert not x.is_coalesced() and x._nnz() == 3
        y = x.coalesce()
        out = torch.sparse.mm(y, torch.eye(2, device=device) * 3)
        (out.sum() + y.to_dense().pow(2).sum()).backward()
        hybrid = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3)).to(device)
        return [
            *(y.indices(), y.values().detach(), y.to_dense().detach(), values.grad),
            *(torch.sparse.softmax(y.detach(), 1).to_dense(), y.detach().t().to_dense()),
            *(hybrid.to_dense(), (y.detach() * 2 + y.detach()).to_dense(), out.detach()),
            *(y.detach().sqrt().to_dense(), y.detach().index_select(0, indices[0]).to_dense()),
            *(
                torch.cat([y.detach(), y.detach()]).to_dense(),
                dense(device).sparse_mask(make(torch.sparse_coo, device)).to_dense(),
            ),
        ]

    same_on_both(compute, rtol=1e-6, atol=1e-7)
    same_error_on_both(
        lambda d: torch.sparse_coo_tensor(
            torch.tensor([[5]], device=d), torch.ones(1, device=d), (3,), check_invariants=True
        )
    )


def test_sparse_compressed_parts() -> None:
    def compute(device: torch.device) -> list:
        x = torch.sparse_csr_tensor(
            torch.tensor([0, 1, 1, 3], device=device),
            torch.tensor([1, 0, 2], device=device),
            torch.tensor([1.0, 2.0, 3.0], device=device),
            (3, 3),
        )
        return [
            *(x.crow_indices(), x.col_indices(), x.values(), x.to_dense()),
            *((x @ x.to_dense()), x.to_sparse_coo().to_dense(), x.t().to_dense()),
        ]

    same_on_both(compute)


def test_gradients_through_sparse_matrices() -> None:
    def compute(device: torch.device) -> list:
        x = dense(device).to_sparse_csr().requires_grad_()
        y = torch.linspace(-1, 1, 12, device=device).view(4, 3).requires_grad_()
        torch.sparse.mm(x, y).pow(2).sum().backward()
        a = dense(device).requires_grad_()
        (a.to_sparse().coalesce().values() * 2).sum().backward()
        return [y.grad, x.grad.to_dense(), a.grad.to_dense()]

    same_on_both(compute, rtol=1e-6, atol=1e-7)


# Nested


def parts(device: torch.device) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 20, device=device)
    return [x[:8].view(2, 4), x[8:20].view(3, 4)]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested(layout: torch.layout) -> None:
    def compute(device: torch.device) -> list:
        x = torch.nested.nested_tensor(parts(device), layout=layout, requires_grad=True)
        assert x.is_nested and x.device.type == device.type
        weight = torch.linspace(0, 1, 12, device=device).view(3, 4).requires_grad_()
        y = torch.nn.functional.linear(x, weight)
        z = (y * 2).relu() + y
        padded = torch.nested.to_padded_tensor(z, -5.0)
        padded.clamp(min=0).sum().backward()
        return [
            *(padded.detach(), weight.grad),
            *(part.detach() for part in z.unbind()),
            *(part for part in x.grad.unbind()),
            *(p for p in x.detach().softmax(-1).unbind()),
        ]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_moves(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor(parts(torch.device("cpu")), layout=layout)
    there = x.to("tenon")
    assert there.is_nested and there.device == torch.device("tenon:0")
    assert_same(list(there.unbind()), list(x.unbind()))
    assert_same(list(there.cpu().unbind()), list(x.unbind()))
    assert "device='tenon:0'" in repr(there) or "tenon" in repr(there)


def test_nested_attention() -> None:
    def compute(device: torch.device) -> list:
        x = torch.nested.nested_tensor(parts(device), layout=torch.jagged)
        q = x.unflatten(-1, [2, 2]).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return [part.transpose(0, 1) for part in out.transpose(1, 2).unbind()]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("values", [(3,), (3, 2)])
def test_a_sparse_tensor_that_is_said_to_be_coalesced_is_looked_at(values: tuple[int, ...]) -> None:
    x, size = torch.randn(values), (3, 4, *values[1:])
    for indices in ([[0, 1, 2], [3, 0, 1]], [[2, 1, 0], [0, 1, 2]], [[1, 1, 1], [2, 2, 3]]):
        found: list[object] = []
        for device in ("cpu", "tenon"):
            at = torch.tensor(indices, device=device)
            try:
                made = torch.sparse_coo_tensor(
                    at, x.to(device), size, is_coalesced=True, check_invariants=True
                )
                found.append(made.to_dense().tolist())
            except RuntimeError as error:
                found.append(str(error))
        assert found[0] == found[1]
