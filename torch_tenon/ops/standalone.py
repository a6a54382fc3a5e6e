"""Ops that only stand-alone programs compose of others: elsewhere PyTorch's kernels are faster.

Each entry takes the op's arguments, as those of `compositions.py` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decompositions as composed
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_tenon import device

STANDALONE: dict[Any, Callable[..., Any]] = {}
"""Overload -> the function that computes it."""

aten = torch.ops.aten


def standalone(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function for each of some overloads."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            STANDALONE[op] = function
        return function

    return enter


def kernels_are_faster(standalone: bool = False) -> bool:
    """Whether PyTorch's kernels are there, and reach the device's memory: a target that has its own
    would have to bring tensors to the host."""
    return not standalone and device.target().host_memory


def quantised(op: Any) -> Callable[..., Any] | None:
    """How an op of quantised graphs (`quantized_decomposed`, which PyTorch loads when asked) is
    computed with others: PyTorch has written it so, and keeps it whole in a trace."""
    key = DispatchKey.CompositeExplicitAutograd
    if op.namespace != "quantized_decomposed" or not op.has_kernel_for_dispatch_key(key):
        return None
    if str(op).startswith("quantized_decomposed.quantize_per_tensor.tensor"):
        return quantize_per_tensor
    if str(op).startswith("quantized_decomposed.dequantize_per_tensor.tensor"):
        return dequantize_per_tensor
    return lambda *args, **keywords: op._op_dk(key, *args, **keywords)


def quantize_per_tensor(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: Any, high: Any, dtype: torch.dtype
) -> Tensor:
    """x (any shape) as multiples of a scale: PyTorch's own asks the host for the scale."""
    inverse = (1.0 / scale.double()).float()
    places = torch.round(x.float() * inverse) + zero_point
    return places.clamp(low, high).to(dtype)


def dequantize_per_tensor(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: Any,
    high: Any,
    *how: Any,
    out_dtype: Any = None,
) -> Tensor:
    """The numbers that multiples of a scale stand for."""
    dtype = torch.float32 if out_dtype is None else out_dtype
    return ((x.to(dtype) - zero_point) * scale).to(dtype)


# Single steps of recurrent layers: PyTorch's composition writes parts of what it computes


@standalone(aten.lstm_cell.default)
def lstm_cell(
    x: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell (N, H), of an input (N, I)."""
    gates = torch.nn.functional.linear(x, w_ih, b_ih)
    return composed.lstm_cell(gates, hx[0], hx[1], w_hh, b_hh, None, chunk_dim=1)


@standalone(aten.gru_cell.default)
def gru_cell(
    x: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """The next hidden state (N, H), of an input (N, I)."""
    return composed.gru_cell_data(x, hx, w_ih, b_ih, w_hh, b_hh)


# Others whose compositions write parts of what they compute, or their arguments


@standalone(aten.pad.default)
def pad(x: Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """x with a border: `constant`, or of elements that are reflected or repeated (`reflect`,
    `replicate`), or come from the other end (`circular`). Negative borders cut."""
    if mode == "constant":
        return aten.constant_pad_nd(x, pad, 0.0 if value is None else value)
    rank, rest = divmod(len(pad), 2)
    if value or rest or x.dim() not in (rank + 1, rank + 2) or rank not in (1, 2, 3):
        return NotImplemented  # PyTorch's composition says what is wrong
    if mode != "circular":
        names = {"reflect": "reflection_pad", "replicate": "replication_pad"}
        return getattr(aten, f"{names[mode]}{rank}d")(x, pad) if mode in names else NotImplemented
    for k in range(rank):
        d, before, after = x.dim() - 1 - k, pad[2 * k], pad[2 * k + 1]
        torch._check(
            before <= x.shape[d] and after <= x.shape[d],
            lambda: "Padding value causes wrapping around more than once.",
        )
        low, high = max(-before, 0), max(-after, 0)
        x = x.narrow(d, low, x.shape[d] - low - high)
        n, before, after = x.shape[d], max(before, 0), max(after, 0)
        if before > n or after > n:
            return NotImplemented
        at = torch.arange(-before, n + after, device=x.device)
        x = x.index_select(d, torch.where(at < 0, at + n, torch.where(at >= n, at - n, at)))
    return x


@standalone(aten.vander.default)
def vander(x: Tensor, count: int | None = None, increasing: bool = False) -> Any:
    """Powers of fractions x (N), a row each (N, count)."""
    if not x.is_floating_point() or x.dim() != 1:
        return NotImplemented
    powers = torch.linalg.vander(x, N=count)
    return powers if increasing else powers.flip(-1)


@standalone(aten.rrelu.default)
def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *random: Any
) -> Any:
    """x, times the middle of the slopes where it is not positive; random ones no program draws."""
    return NotImplemented if training else aten.leaky_relu(x, (lower + upper) / 2)


# Elements at a place in the order of size


def _at_place(x: Tensor, dim: int, keepdim: bool, place: Callable[[Tensor], Any]) -> Any:
    """The element at a place in the order of size along a dimension, and its index. NaN is the
    largest. `place` is given the sorted numbers, and has that dimension with a size of 1."""
    if x.dtype is torch.bool:
        return NotImplemented  # PyTorch has no kernel for these
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, indices = aten.sort.stable(x, stable=True, dim=dim)
    at = place(ordered)
    found = ordered.gather(dim, at), indices.gather(dim, at)
    return found if keepdim else tuple(f.squeeze(dim) for f in found)


def _numbers(ordered: Tensor, dim: int) -> Tensor:
    """How many elements along a dimension are not NaN."""
    return (ordered == ordered).sum(dim, keepdim=True)


@standalone(aten.median.dim)
def median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The median along a dimension, the lower of two, and its index; the first NaN if any is."""
    n = x.shape[dim] if x.dim() else 1

    def place(ordered: Tensor) -> Tensor:
        count = _numbers(ordered, dim)
        return torch.where(count < n, count, (n - 1) // 2)

    return _at_place(x, dim, keepdim, place)


@standalone(aten.nanmedian.dim)
def nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The median of those elements along a dimension that are not NaN, the lower of two, and its
    index."""
    return _at_place(
        x, dim, keepdim, lambda ordered: (_numbers(ordered, dim) - 1).clamp_min(0) // 2
    )


def _of_all(x: Tensor, along: Callable[[Tensor, int], Any]) -> Any:
    """The first result of a function along a dimension, of all elements. Of none PyTorch gives NaN
    or 0, which is not written here."""
    if x.dtype is torch.bool or not statically_known_true(x.numel() > 0):
        return NotImplemented
    return along(x.reshape(-1), 0)[0]


@standalone(aten.median.default)
def median_of_all(x: Tensor) -> Any:
    """The median of all elements; NaN if any is."""
    return _of_all(x, median)


@standalone(aten.nanmedian.default)
def nanmedian_of_all(x: Tensor) -> Any:
    """The median of all elements that are not NaN."""
    return _of_all(x, nanmedian)


@standalone(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest element along a dimension, from 1 on, and its index."""
    n = x.shape[dim] if x.dim() else 1
    torch._check(1 <= k <= n, lambda: "kthvalue(): selected number k out of range for dimension")
    return _at_place(
        x,
        dim,
        keepdim,
        lambda ordered: torch.full_like(ordered.narrow(dim, 0, 1), k - 1, dtype=torch.int64),
    )


# Products of weights of few bits


@standalone(aten._int_mm.default)
def int_mm(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices of bytes (M, K) and (K, N), in 32 bits."""
    return x.to(torch.int32) @ y.to(torch.int32)


@standalone(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(x: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
    """x (M, K) times the transpose of bytes (N, K), of which each row has a scale."""
    wide = x.float() @ weights.float().t()
    return (wide * scales.float()).to(x.dtype)


@standalone(aten._grouped_mm.default)
def grouped_mm(
    x: Tensor,
    y: Tensor,
    ends: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """A product for each of G groups. An operand of two dimensions has those of all groups side by
    side, and `ends` (G) says where each ends: rows of x (M, K) by y (G, K, N), columns of y (K, N)
    by x (G, M, K), or what x (M, K) and y (K, N) are summed over, which gives (G, M, N)."""
    if bias is not None:
        return NotImplemented
    dtype, wide_x, wide_y = out_dtype or x.dtype, x.float(), y.float()
    if ends is None:
        return torch.bmm(wide_x, wide_y).to(dtype)
    count = ends.shape[0]
    length = x.shape[0] if x.dim() == 2 and y.dim() == 3 else y.shape[1 if x.dim() == 3 else 0]
    places = torch.arange(length, device=x.device)
    group = (places.unsqueeze(1) >= ends).sum(1)  # whose number what is after the last has, is free
    some = group.clamp_max(count - 1)
    if y.dim() == 3:
        return (wide_x.unsqueeze(2) * wide_y[some]).sum(1).to(dtype)
    if x.dim() == 3:
        return (wide_x[some].permute(1, 2, 0) * wide_y).sum(1).to(dtype)
    of_group = group == torch.arange(count, device=x.device).view(-1, 1)
    products = wide_x.unsqueeze(2) * wide_y
    return torch.where(of_group[:, None, :, None], products, 0).sum(2).to(dtype)


@standalone(aten.histc.default)
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """How many numbers of x (any shape) lie in each of some equal parts of a range; the last part
    has the range's end. Whole numbers are counted in float64, as in eager code."""
    if not (bins > 0 and -math.inf < min < max < math.inf):
        return NotImplemented  # the range is that of the numbers, or PyTorch refuses it
    wide = (x if x.dtype.is_floating_point else x.double()).reshape(-1)
    low, high = wide.new_full((), min), wide.new_full((), max)
    inside = (wide >= low) & (wide <= high)
    part = (wide - low) * wide.new_full((), bins) / (high - low)
    part = torch.where(inside, part, 0).long().clamp_max(bins - 1)
    return wide.new_zeros(bins).index_add(0, part, inside.to(wide.dtype)).to(x.dtype)


def products_of_experts(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Rows of x (M, K), which experts share, by the matrix of theirs, y (G, K, N); `ends` (G) says
    where the rows of each end. Rows after the last give 0."""
    taken = torch.arange(x.shape[0], device=x.device) < ends[-1]
    return torch.where(taken.unsqueeze(1), grouped_mm(x, y, ends), 0)


#: Ops of other libraries, which have no kernel where Python is not: what computes each.
OF_LIBRARIES: dict[str, Callable[..., Any]] = {
    # The experts of transformers' models, where `torch.compile` or `torch.export` traces them.
    "transformers::grouped_mm_fallback": products_of_experts,
}


@standalone(aten._assert_async.default)
def assert_async(x: Tensor) -> None:
    """A check of a value (1 element), with PyTorch's text: its trace drops checks without one."""
    torch._assert_async(x, "Expected Tensor with single nonzero value, but got zero")


@standalone(aten._assert_tensor_metadata.default)
def assert_tensor_metadata(*args: Any, **keywords: Any) -> None:
    """Nothing: a program is made for the dtypes and devices that its trace has seen."""


# Quantisation that is only pretended, as in training for it


def _pretended(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> Any:
    places = torch.round(x.float() * (1.0 / scale)) + zero_point
    mask = (places >= low) & (places <= high)
    return ((places.clamp(low, high) - zero_point) * scale).to(x.dtype), mask


@standalone(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor(
    x: Tensor, scale: float, zero_point: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """x rounded to a multiple of the scale, of which there are `low` to `high`, and where it was
    among them (any shape)."""
    return _pretended(x, torch.full((), scale, device=x.device), zero_point, low, high)


@standalone(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """The same with a scale and a zero for each slice along an axis."""
    sizes = [-1 if d == axis else 1 for d in range(x.dim())]
    return _pretended(x, scale.view(sizes), zero_point.view(sizes), low, high)


MOST_UNKNOWNS = 16  # of a system that is written out


@standalone(aten.linalg_solve_triangular.default)
def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """x of `a x = b`, or of `x a = b`: row after row, of few unknowns."""
    n = a.shape[-1]
    if not isinstance(n, int) or not 0 < n <= MOST_UNKNOWNS or a.dtype.is_complex:
        return NotImplemented
    if not left:
        found = solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular)
        return found.mT
    b = b.expand(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    rows: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        x = b[..., i, :]
        if rows:
            known = torch.stack(list(rows.values()), -2)
            first, last = min(rows), max(rows) + 1
            factors = a[..., i, first:last].flip(-1) if upper else a[..., i, first:last]
            x = x - (factors.unsqueeze(-1) * known).sum(-2)
        rows[i] = x if unitriangular else x / a[..., i, i].unsqueeze(-1)
    return torch.stack([rows[i] for i in range(n)], -2)
