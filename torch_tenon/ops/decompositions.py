"""Ops that the device runs as other ops: the table, and its entries.

An entry is for an op that PyTorch calls on a private device and that has neither a kernel for the
host nor a decomposition of PyTorch's own: the entry becomes the host's kernel, so that the op is
recorded whole, and a plan is made of its parts. It takes the op's arguments and returns new
tensors, or None where PyTorch's kernel would leave a result undefined.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
"""Qualified op -> the function that computes it with other ops."""

aten = torch.ops.aten


F = TypeVar("F", bound=Callable[..., Any])


def decomposition(op: str) -> Callable[[F], F]:
    """Enters a function in the table for `op`, written as in the manifest."""

    def enter(fn: F) -> F:
        if op in DECOMPOSITIONS:
            raise ValueError(f"{op} has a decomposition already: {DECOMPOSITIONS[op].__qualname__}")
        DECOMPOSITIONS[op] = fn
        return fn

    return enter


for _op in (aten._fw_primal_copy.default, aten._make_dual_copy.default):
    # PyTorch's composition, in the mode that the call was made in.
    decomposition(_op._schema.name)(
        functools.partial(_op._op_dk, torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional)
    )


# Recurrent cells. torch.nn's LSTM and GRU use the fused ops on any device but the CPU, with the two
# matmuls outside: batch N, hidden size H, gates side by side in the second dimension. The forward
# returns a workspace, laid out as PyTorch's fused kernels (RNN.cu in ATen) have it; a GRU's
# backward gets nothing else of it. As there, half precision is computed in float.

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.to(_WIDER.get(t.dtype, t.dtype)) for t in tensors)


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    (gates,) = _wide(gates)
    return gates if bias is None else gates + bias


# In C++, as PyTorch's composition of the op.
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_op = aten._thnn_fused_lstm_cell_backward_impl.default
decomposition(_op._schema.name)(functools.partial(_op._op_dk, _EXPLICIT))


@decomposition("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM, after the matmuls: gates (N, 4H) in the order input, forget, cell,
    output; cx (N, H). Returns hy and cy (N, H) and the workspace (N, 4H): the gates after their
    activations. Sizes that are no numbers C++ does not take.
    """
    op = aten._thnn_fused_lstm_cell.default
    if all(isinstance(n, int) for n in (*input_gates.shape, *cx.shape)):
        found: tuple[Tensor, Tensor, Tensor] = op._op_dk(
            _EXPLICIT, input_gates, hidden_gates, cx, *biases
        )
        return found
    input_bias, hidden_bias = (*biases, None, None)[:2]
    gates = _biased(hidden_gates, hidden_bias) + _biased(input_gates, input_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    (wide_cx,) = _wide(cx)
    cy = f * wide_cx + i * g
    dtype = input_gates.dtype
    return (o * cy.tanh()).to(dtype), cy.to(dtype), torch.cat([i, f, g, o], 1).to(dtype)


@decomposition("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of a GRU, after the matmuls: gates (N, 3H) in the order reset, update, new; hx
    (N, H). Returns hy (N, H) and the workspace (N, 5H): the three gates after their activations,
    hx, and the hidden part of the new gate with its bias.
    """
    ir, iz, i_n = _biased(input_gates, input_bias).chunk(3, 1)
    hr, hz, h_n = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (hr + ir).sigmoid(), (hz + iz).sigmoid()
    n = (i_n + h_n * r).tanh()
    (wide_hx,) = _wide(hx)
    hy = (wide_hx - n) * z + n
    workspace = torch.cat([r, z, n, wide_hx, h_n], 1)
    return hy.to(input_gates.dtype), workspace.to(input_gates.dtype)


@decomposition("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of `gru_cell`: of the input gates (N, 3H), of the hidden gates (N, 3H), of hx as
    far as it does not come through the hidden gates (N, H), and of both biases (3H), or None.
    """
    dtype = workspace.dtype
    grad_hy, workspace = _wide(grad_hy, workspace)
    r, z, n, hx, h_n = workspace.chunk(5, 1)
    grad_z = aten.sigmoid_backward(grad_hy * (hx - n), z)
    grad_n = aten.tanh_backward(grad_hy * (1 - z), n)
    grad_r = aten.sigmoid_backward(grad_n * h_n, r)
    grad_input = torch.cat([grad_r, grad_z, grad_n], 1).to(dtype)
    grad_hidden = torch.cat([grad_r, grad_z, grad_n * r], 1).to(dtype)
    input_bias = grad_input.sum(0) if has_bias else None
    hidden_bias = grad_hidden.sum(0) if has_bias else None
    return grad_input, grad_hidden, (grad_hy * z).to(dtype), input_bias, hidden_bias


@decomposition("aten::equal")
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same sizes and elements; NaN equals nothing."""
    return input.shape == other.shape and bool((input == other).all())


@decomposition("aten::allclose")
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all elements are as near as `isclose` asks."""
    return bool(torch.isclose(input, other, rtol, atol, equal_nan).all())


@decomposition("aten::_pack_padded_sequence")
def pack_padded_sequence(
    input: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """A padded batch (T, N, ...), or (N, T, ...), as the rows that are not padding, step by step.

    `lengths` (N) is on the host and so is the second result, the batch size of each step, on every
    device. The host packs the numbers of the rows, which also checks the arguments in PyTorch's
    words; the device gathers the rows.
    """
    if lengths.device.type != "cpu":
        dtype = lengths.type().rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {lengths.device} {dtype} tensor"
        )
    rows = input.shape[:2] if input.numel() else torch.Size((0, 0))
    numbers = torch.arange(rows.numel(), device="cpu").view(rows)
    order, batch_sizes = aten._pack_padded_sequence(numbers, lengths, batch_first)
    return input.flatten(0, 1).index_select(0, order.to(input.device)), batch_sizes
