"""Ops of traced graphs as other ops: PyTorch's decompositions, and ours where it has none.

An entry of ours takes the op's arguments and computes with ops that have lowerings or
decompositions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import (
    _core_aten_decompositions_post_autograd,
    decomposition_table,
    get_decompositions,
)
from torch._decomp import decompositions as composed
from torch._higher_order_ops.out_dtype import out_dtype_fallback
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves, tree_map_only

import torch_tenon.ops.activations
import torch_tenon.ops.antialiased
import torch_tenon.ops.image_grids
import torch_tenon.ops.image_windows
import torch_tenon.ops.losses
import torch_tenon.ops.membership
import torch_tenon.ops.optimizer_steps
import torch_tenon.ops.products
import torch_tenon.ops.progressions
import torch_tenon.ops.recurrent_layers
import torch_tenon.ops.upsampling  # noqa: F401  # the entries of all of them
from torch_tenon.ir.sixteen_bits import rounded_number
from torch_tenon.ops import batch_norms
from torch_tenon.ops.composition_table import COMPOSITIONS, composition
from torch_tenon.ops.decompositions import DECOMPOSITIONS
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import CannotLower, find, fitting
from torch_tenon.ops.manifest import EXPORTED, PYTORCH, load, names_with, of
from torch_tenon.ops.standalone import OF_LIBRARIES, STANDALONE, kernels_are_faster, quantised
from torch_tenon.ops.steps import STEPS, in_steps
from torch_tenon.ops.traced import lies_as_on_the_cpu, stays_whole
from torch_tenon.ops.variants import known_of, overload, refused_dtype

aten = torch.ops.aten
Tensors = Sequence[Tensor]
Ints = Sequence[int]


def decompositions(standalone: bool = False) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions and ours, less those of ops that have a lowering (see `find`)."""
    return _without_lowered(standalone, kernels_are_faster(standalone))


@functools.cache
def _without_lowered(standalone: bool, whole: bool) -> dict[Any, Callable[..., Any]]:
    load_all()
    table = _all() | STANDALONE if standalone else _all()
    if whole:
        table = {op: f for op, f in table.items() if known_of(op).decomposition != EXPORTED}
    return {op: f for op, f in table.items() if find(op, standalone) is None}


@functools.cache
def _all() -> dict[Any, Callable[..., Any]]:
    # The public table adds what a trace decomposes anyhow, at a cost of 0.2 s.
    table: dict[Any, Callable[..., Any]] = dict(_core_aten_decompositions_post_autograd())
    more = (getattr(aten, op.removeprefix("aten::")) for op in names_with("decomposition", PYTORCH))
    table.update(get_decompositions(list(more)))
    for op, function in table.items():
        known = known_of(op)
        if known.decomposition_except:
            table[op] = _not_of(known.decomposition_except, op, function)
        has_mask = any(a.name == "output_mask" for a in op._schema.arguments)
        if known.batch_norm:
            of_the_cpu = (
                batch_norms.gradients_as_on_the_cpu if has_mask else batch_norms.as_on_the_cpu
            )
            table[op] = of_the_cpu(op, function)
        if has_mask:
            table[op] = _as_asked(op, table[op])
    table.update((op, in_steps(op, table[op])) for op in STEPS)
    table.update(COMPOSITIONS)
    fractions = [op for op in table if known_of(op).takes == "fractions"]
    table.update((op, _of_fractions(table[op])) for op in fractions)
    table.update((op, _of_fitting(op, f)) for op, f in table.items() if known_of(op).numbers_fit)
    reduced = [op for op in table if known_of(op).unknown_reduction]
    table.update((op, _of_known_reductions(op, table[op])) for op in reduced)
    chosen = [op for op in table if known_of(op).argument_dtypes]
    table.update((op, _of_taken_dtypes(op, table[op])) for op in chosen)
    in_order = [op for op in table if known_of(op).in_order and not op._schema.is_mutable]
    table.update((op, _in_order(table[op])) for op in in_order)
    table.update((overload(op), f) for op, f in DECOMPOSITIONS.items() if not of(op).at_once)
    return table


def enter_composition(op: Any, function: Callable[..., Any]) -> None:
    """Enters the function that computes an op, after the tables were made."""
    COMPOSITIONS[op] = function
    for standalone in (False, True):
        decompositions(standalone)[op] = function


def composition_of(op: Any, standalone: bool = False) -> Callable[..., Any] | None:
    """The function that computes an op by others, if there is one: an entry, or what PyTorch or an
    extension in C++ registered as implicit composition."""
    if kernels_are_faster(standalone) and known_of(op).decomposition == EXPORTED:
        return None
    found = decompositions(standalone).get(op)
    if found is None and standalone:
        found = quantised(op) or OF_LIBRARIES.get(op.name())
    return op.decompose if found is None and op._can_decompose() else found


def other_way(op: Any) -> Callable[..., Any] | None:
    """How an op of a stand-alone program is composed of others, for arguments that its lowering
    does not take."""
    return (_all() | STANDALONE).get(op) or decomposition_table.get(op)


def _in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """The results' elements in order, whatever the strides of the arguments."""

    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        return tree_map_only(Tensor, Tensor.contiguous, found)

    return run


def _of_fitting(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but where a number is none of the result's dtype."""

    def run(*args: Any, **keywords: Any) -> Any:
        try:
            dtype = _dtype_of_result(op, args, keywords)
            for number in tree_leaves((args, keywords)):
                fitting(number, dtype)
        except CannotLower:
            return NotImplemented
        return function(*args, **keywords)

    return run


def _of_known_reductions(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss, as the CPU's kernel has it for a reduction that is none of PyTorch's."""
    place = [a.name for a in op._schema.arguments].index("reduction")
    is_sum = known_of(op).unknown_reduction == "sum"

    def run(*args: Any, **keywords: Any) -> Any:
        given = args[place] if len(args) > place else keywords.get("reduction", 1)
        if given in (0, 1, 2):
            return function(*args, **keywords)
        if not is_sum:
            return NotImplemented
        if len(args) > place:
            return function(*args[:place], 2, *args[place + 1 :], **keywords)
        return function(*args, **keywords | {"reduction": 2})

    return run


def _of_taken_dtypes(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but for arguments of a dtype that the table of ops does not have for them."""

    def run(*args: Any, **keywords: Any) -> Any:
        refused = refused_dtype(op, args, keywords)
        return NotImplemented if refused else function(*args, **keywords)

    return run


def _as_asked(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients, of which `output_mask` says which ones are asked for. PyTorch's decompositions
    give some that are not, and divide by how many elements there are."""
    names = [a.name for a in op._schema.arguments]

    def run(*args: Any, **keywords: Any) -> Any:
        if batch_norms.is_surely(args[0].numel() == 0):
            return NotImplemented
        found = function(*args, **keywords)
        if found is NotImplemented:
            return found
        mask = (dict(zip(names, args, strict=False)) | keywords)["output_mask"]
        return tuple(g if asked else None for g, asked in zip(found, mask, strict=True))

    return run


def _not_of(names: Sequence[str], op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but for results of these dtypes."""
    dtypes = [getattr(torch, name) for name in names]

    def run(*args: Any, **keywords: Any) -> Any:
        wrong = _dtype_of_result(op, args, keywords) in dtypes
        return NotImplemented if wrong else function(*args, **keywords)

    return run


def _of_fractions(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but for tensors of whole numbers, which the CPU's kernel refuses."""

    def run(*args: Any, **keywords: Any) -> Any:
        tensors = [x for x in tree_leaves((args, keywords)) if isinstance(x, Tensor)]
        if not any(x.dtype.is_floating_point or x.dtype.is_complex for x in tensors):
            return NotImplemented
        return function(*args, **keywords)

    return run


def _dtype_of_result(op: Any, args: Sequence[Any], keywords: dict[str, Any]) -> torch.dtype:
    """The dtype that is asked for, where an op makes a tensor, else that of its first one."""
    if any(a.name == "dtype" for a in op._schema.arguments):
        return keywords.get("dtype") or torch.get_default_dtype()
    first: Tensor = next(x for x in tree_leaves(args) if isinstance(x, Tensor))
    return first.dtype


# Gradients of views. What they are given is broadcast to the part, as by the CPU's copy.


def _are_dimensions(sizes: Ints, *dims: int) -> bool:
    return all(-len(sizes) <= d < len(sizes) for d in dims)


@composition(aten.slice_backward.default)
def slice_backward(g: Tensor, sizes: Ints, dim: int, start: Any, end: Any, step: int = 1) -> Tensor:
    """Zeros of these sizes, with a gradient at a slice."""
    if not _are_dimensions(sizes, dim):
        return NotImplemented
    whole = g.new_zeros(sizes)
    part = aten.slice(whole, dim, start, end, step)
    return aten.slice_scatter(whole, g.expand(part.shape), dim, start, end, step)


@composition(aten.select_backward.default)
def select_backward(g: Tensor, sizes: Ints, dim: int, index: int) -> Tensor:
    """Zeros of these sizes, with a gradient at one place of a dimension."""
    if not _are_dimensions(sizes, dim):
        return NotImplemented
    whole = g.new_zeros(sizes)
    return aten.select_scatter(whole, g.expand(whole.select(dim, index).shape), dim, index)


@composition(aten.diagonal_backward.default)
def diagonal_backward(g: Tensor, sizes: Ints, offset: int, dim1: int, dim2: int) -> Tensor:
    """Zeros of these sizes, with a gradient at a diagonal."""
    # A trace of `diagonal` overflows where the offset times a stride does.
    if not _are_dimensions(sizes, dim1, dim2) or abs(offset) >= 2**31:
        return NotImplemented
    whole = g.new_zeros(sizes)
    part = whole.diagonal(offset, dim1, dim2)
    return aten.diagonal_scatter(whole, g.expand(part.shape), offset, dim1, dim2)


@composition(aten._unsafe_masked_index.default)
def unsafe_masked_index(x: Tensor, mask: Tensor, indices: list[Any], fill: Any) -> Any:
    """x[indices] where the mask is true, and `fill` elsewhere, where indices may be any. PyTorch's
    own takes the first element where the kernel counts from the end."""
    from_front = [
        at if at is None else torch.where(at < 0, at + n, at)
        for at, n in zip(indices, x.shape, strict=False)
    ]
    return composed._unsafe_masked_index(x, mask, from_front, fill)


@composition(aten.native_dropout_backward.default)
def native_dropout_backward(g: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of dropout (any shape). PyTorch's decomposition multiplies the mask, in the
    gradient's dtype, by the scale first: a whole number times 0 gets a sign by that."""
    return g * mask * scale


# Lists of tensors, beside those that `lowerings/lists.py` has.


@composition(aten._foreach_frac.default)
def foreach_frac(tensors: Tensors) -> list[Tensor]:
    """Each tensor less its whole part."""
    return [torch.frac(x) for x in tensors]


@composition(aten._foreach_norm.Scalar)
def foreach_norm(tensors: Tensors, order: Any = 2, dtype: Any = None) -> list[Tensor]:
    """The norm of each tensor."""
    return [torch.linalg.vector_norm(x, order, dtype=dtype) for x in tensors]


@composition(aten.sgn.default)
def sgn(x: Tensor) -> Tensor:
    """The sign of each number (any shape). That of complex ones has a lowering: PyTorch's
    decomposition divides by a complex number, which makes NaN of a part that is 0."""
    return NotImplemented if x.dtype.is_complex else torch.sign(x)


@composition(aten.nan_to_num.default)
def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in the place of NaN and infinities (any shape), also of those among the parts of
    complex numbers. The CPU's kernel makes an infinity of one that the dtype has not, which
    PyTorch's decomposition refuses."""
    if x.dtype.is_complex:
        return torch.complex(*(nan_to_num(p, nan, posinf, neginf) for p in (x.real, x.imag)))
    if not x.dtype.is_floating_point:
        return x.clone()
    most = torch.finfo(x.dtype).max

    def fitting(number: float) -> float:
        return math.copysign(math.inf, number) if abs(number) > most else number

    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    found = torch.where(x == -math.inf, fitting(low), x)
    found = torch.where(x == math.inf, fitting(high), found)
    return torch.where(x.isnan(), fitting(0.0 if nan is None else nan), found)


@composition(aten.hann_window.default, aten.hann_window.periodic)
def hann_window(length: int, periodic: bool = True, *, dtype: Any = None, **how: Any) -> Tensor:
    """Half of what a cosine lacks to 1 (length). 16-bit numbers are rounded after each step, as the
    CPU has them, and so is the angle from one to the next: PyTorch's decomposition for traces
    rounds once, and takes whole numbers."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        return NotImplemented
    if length < 2:
        return torch.ones(length, dtype=dtype, **how)
    count = length + 1 if periodic else length
    step = math.pi * 2 / (count - 1)
    step = rounded_number(step, dtype) if dtype.itemsize == 2 else step
    angles = torch.arange(count, dtype=dtype, **how) * step
    return (angles.cos() * -0.5 + 0.5)[:length]


def _unpooled(op: Any) -> Callable[..., Tensor]:
    """The elements that windows were left with at their places. PyTorch's decomposition counts
    negative places from the end, which its kernel refuses."""
    scattered = decomposition_table[op]

    def unpool(x: Tensor, places: Tensor, output_size: Ints, *how: Ints) -> Tensor:
        if not x.dtype.is_floating_point:
            return NotImplemented
        count = math.prod(output_size)
        if count != 0:  # the kernel looks at no place of an image without any
            are_places = ((places >= 0) & (places < count)).all()
            torch._assert_async(are_places, "found an invalid max index")
        found: Tensor = scattered(x, places, output_size, *how)
        by_channel = x.dim() == 4 and suggest_memory_format(x) is torch.channels_last
        return found.contiguous(memory_format=torch.channels_last) if by_channel else found

    return unpool


composition(aten.max_unpool2d.default)(_unpooled(aten.max_unpool2d.default))
composition(aten.max_unpool3d.default)(_unpooled(aten.max_unpool3d.default))


@composition(torch.ops.higher_order.out_dtype)
def out_dtype(op: Any, dtype: torch.dtype, *args: Any) -> Tensor:
    """An op on whole numbers (matrices, say), computed in a wider dtype than theirs."""
    if op is aten.mm.default and dtype is torch.int32 and _are_bytes(*args):
        return torch._int_mm(*args)
    return out_dtype_fallback(op, dtype, *args)


def _are_bytes(*matrices: Tensor) -> bool:
    return all(x.dtype is torch.int8 for x in matrices)


def _functional_ops() -> Iterator[Any]:
    """The overloads that write nothing of ops whose results lie as the table says."""
    for name, entry in load().items():
        rules = (entry, *entry.overloads.values())
        if any(known.lies_as_on_cpu for known in rules):
            namespace, _, base = name.partition("::")
            packet = getattr(getattr(torch.ops, namespace), base)
            ops = (getattr(packet, k) for k in packet.overloads())
            yield from (op for op in ops if not op._schema.is_mutable and _makes_tensors(op))


def _makes_tensors(op: Any) -> bool:  # and is none of TorchScript's, of numbers
    return any(isinstance(result.type, torch.TensorType) for result in op._schema.returns)


stays_whole(*(overload(op) for op in names_with("traced_whole")))
for _op in _functional_ops():
    if _rule := known_of(_op).lies_as_on_cpu:
        lies_as_on_the_cpu(_op, _rule)


@composition(aten.histc.default)
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """A histogram of whole numbers (any shape), which PyTorch's CPU has not, as eager code counts
    them: in float64."""
    if x.dtype.is_floating_point:
        return NotImplemented
    return aten.histc(x.double(), bins, min, max).to(x.dtype)


# Where a tensor is split is data: the indices go to the host, as in eager code.


def _split_at_host_indices(x: Tensor, at: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    op = aten.tensor_split.tensor_indices_or_sections
    found: tuple[Tensor, ...] = op.py_kernels[DispatchKey.CompositeImplicitAutograd](
        x, at.cpu(), dim
    )
    return found


for _key in (DispatchKey.PrivateUse1, DispatchKey.AutogradPrivateUse1):
    aten.tensor_split.tensor_indices_or_sections.py_impl(_key)(_split_at_host_indices)


# Products and distances


@composition(aten.mv.default)
def mv(x: Tensor, v: Tensor) -> Tensor:
    """x @ v (N), of one dtype: PyTorch's decomposition promotes several, which its kernel
    refuses."""
    if x.dtype is not v.dtype:
        return NotImplemented
    found: Tensor = _core_aten_decompositions_post_autograd()[aten.mv.default](x, v)
    return found


@composition(aten.mvlgamma.default)
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function, 16-bit numbers rounded after each step.
    Raises RuntimeError for p below 1."""
    torch._check(p >= 1, lambda: "p has to be greater than or equal to 1")
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    terms = torch.arange(-p / 2 + 0.5, 0.5, 0.5, dtype=x.dtype, device=x.device)
    return (terms + x.unsqueeze(-1)).lgamma().sum(-1) + p * (p - 1) * math.log(math.pi) / 4


@composition(aten._weight_norm_interface.default)
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """v times g over the norms of its slices, and the norms: of 16-bit numbers all in float32.

    g has a number for each slice. A vector of them counts by slices as well, as in PyTorch's
    kernel, which reads one number after the other.
    """
    if v.dtype in (torch.float16, torch.bfloat16):
        result, norm = weight_norm(v.float(), g.float(), dim)
        return result.to(v.dtype), norm
    others = [d for d in range(v.dim()) if d != dim]
    norm = v.norm(2, others, True) if others else v.abs()  # of no dimensions it would be of all
    return v * (g.reshape(norm.shape) / norm), norm


@composition(aten._pdist_forward.default)
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Distances between the rows of x, each pair once. The greatest difference is NaN if one is,
    which that of `cdist` is not. Powers that `cdist` refuses are the kernel's."""
    if not p >= 0:
        return NotImplemented
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    if p == math.inf and x.shape[1] != 0:
        return (x[i] - x[j]).abs().amax(-1)
    return aten._cdist_forward(x, x, p, None)[i, j]


@composition(aten._pdist_backward.default)
def pdist_backward(g: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of `pdist`."""
    n = x.shape[0]
    i, j = torch.triu_indices(n, n, 1, device=x.device).unbind(0)

    def square(values: Tensor) -> Tensor:
        half = aten.index_put(values.new_zeros(n, n), [i, j], values)
        return half + half.t()

    return aten._cdist_backward(square(g), x, x, p, square(distances))


# Random choices


@composition(aten.randperm.default)
def randperm(n: int, *, dtype: Any = torch.int64, **where: Any) -> Tensor:
    """The order of random keys; that two are equal is as likely as n in 2^31 numbers of 62 bits."""
    device = torch.get_default_device() if (d := where.get("device")) is None else torch.device(d)
    if device.type == "cpu":
        return NotImplemented  # the host's generator gives its own order
    keys = torch.randint(0, 1 << 62, (n,), dtype=torch.int64, device=device)
    return keys.argsort().to(torch.int64 if dtype is None else dtype)


@composition(aten.multinomial.default)
def multinomial(
    weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Places drawn with given weights: the shortest of exponential times, or by the cumulative."""
    few = not replacement and weights.dim() and count > weights.shape[-1]
    if count <= 0 or few or not weights.is_floating_point():
        return NotImplemented  # the CPU refuses it
    if weights.device.type == "cpu":
        return NotImplemented  # the host's generator makes its own choice
    fit = ((weights >= 0) & (weights < math.inf)).all()
    torch._assert_async(fit, "probability tensor contains either `inf`, `nan` or element < 0")
    torch._assert_async(
        (weights > 0).any(-1).all(), "invalid multinomial distribution (sum of probabilities <= 0)"
    )
    wide = weights.float() if weights.dtype != torch.float64 else weights
    if not replacement or count == 1:
        times = aten.exponential(torch.empty_like(wide))
        return (wide / times).topk(count).indices
    total = wide.cumsum(-1)
    draws = torch.rand((*wide.shape[:-1], count), dtype=wide.dtype, device=wide.device)
    # Not draws times the total: rounded, they may be all of it, and choose what has no weight.
    places = torch.searchsorted(total / total[..., -1:], draws, right=True)
    return places.clamp_max(wide.shape[-1] - 1)


@composition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    g: Tensor,
    at: Tensor,
    starts: Tensor,
    bag_of: Tensor,
    sizes: Tensor,
    places: Tensor,
    rows: int,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """The gradient of an embedding bag's table."""
    if sparse:
        return NotImplemented
    if bag_of.shape != at.shape:  # the host's sum keeps none
        numbers = torch.arange(at.shape[0], dtype=starts.dtype, device=at.device)
        bag_of = torch.searchsorted(starts, numbers, right=True) - 1
    return aten._embedding_bag_dense_backward(
        g, at, bag_of, sizes, places, rows, scale_by_frequency, mode, weights, padding
    )
