"""Fused recurrent cells against torch.nn on the CPU, which does not use them, and packing.

The device computes them with other ops, below PyTorch's own autograd formula for the fused ones.
"""

import copy
import logging

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from torch_tenon.ops import decompositions, manifest
from torch_tenon.testing.fuzz.worker import PlanFailures

aten = torch.ops.aten
N, INPUT, HIDDEN = 3, 5, 4


def _fused(cell: nn.LSTMCell | nn.GRUCell, x: Tensor, hx: Tensor, *cx: Tensor) -> list[Tensor]:
    # What ATen/native/RNN.cpp calls on a device other than the CPU.
    fused = aten._thnn_fused_lstm_cell if cx else aten._thnn_fused_gru_cell
    gates = x @ cell.weight_ih.t(), hx @ cell.weight_hh.t()
    return list(fused(*gates, *(cx or (hx,)), cell.bias_ih, cell.bias_hh)[:-1])


def _compare(
    cell: nn.LSTMCell | nn.GRUCell, use: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    x, *state = (
        torch.randn(N, size, dtype=dtype, requires_grad=True)
        for size in (INPUT, HIDDEN, HIDDEN)[: 3 if isinstance(cell, nn.LSTMCell) else 2]
    )
    leaves = [x, *state, *cell.parameters()]
    there = copy.deepcopy(cell).to("tenon")
    inputs = [t.detach().to("tenon").requires_grad_() for t in (x, *state)]
    leaves_there = [*inputs, *there.parameters()]
    expected = list(cell(x, tuple(state)) if len(state) == 2 else (cell(x, *state),))
    got = _fused(there, *inputs)
    torch.testing.assert_close([t.cpu() for t in got], expected, atol=tolerance, rtol=tolerance)
    assert all(t.dtype == dtype for t in got)

    cotangents = [torch.randn_like(t) for t in expected]

    def gradients(outputs: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
        chosen = [outputs[i] for i in use], [cotangents[i].to(outputs[i].device) for i in use]
        found = torch.autograd.grad(chosen[0], leaves, chosen[1], materialize_grads=True)
        return [t.cpu() for t in found]

    torch.testing.assert_close(
        gradients(got, leaves_there), gradients(expected, leaves), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("use", [[0], [1], [0, 1]], ids=["hy", "cy", "both"])
def test_lstm_cell(bias: bool, use: list[int]) -> None:
    torch.manual_seed(0)
    _compare(nn.LSTMCell(INPUT, HIDDEN, bias), use, torch.float32, 1e-6)
    _compare(nn.LSTMCell(INPUT, HIDDEN, bias).double(), use, torch.float64, 1e-13)


@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell(bias: bool) -> None:
    torch.manual_seed(0)
    _compare(nn.GRUCell(INPUT, HIDDEN, bias), [0], torch.float32, 1e-6)
    _compare(nn.GRUCell(INPUT, HIDDEN, bias).double(), [0], torch.float64, 1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tolerance = 4 * torch.finfo(dtype).eps
    _compare(nn.LSTMCell(INPUT, HIDDEN).to(dtype), [0, 1], dtype, tolerance)
    _compare(nn.GRUCell(INPUT, HIDDEN).to(dtype), [0], dtype, tolerance)


def test_no_gradient_in_gives_none_out() -> None:
    cx = torch.randn(N, HIDDEN, device="tenon")
    workspace = torch.rand(N, 4 * HIDDEN, device="tenon")
    got = aten._thnn_fused_lstm_cell_backward_impl(None, None, cx, cx, workspace, True)
    assert got == (None, None, None)
    got = aten._thnn_fused_lstm_cell_backward_impl(cx, None, cx, cx, workspace, False)
    assert got[0] is not None and got[2] is None


def _double(size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, dtype=torch.double, device="tenon", requires_grad=True)


@pytest.mark.slow
def test_second_derivatives() -> None:
    torch.manual_seed(0)
    sizes = [(N, 4 * HIDDEN)] * 2 + [(N, HIDDEN)] + [(4 * HIDDEN,)] * 2
    inputs = [_double(s) for s in sizes]
    # A call may run by reference first and by a plan later: equal but for the last bits.
    same = {"nondet_tol": 1e-12}
    lstm, gru = aten._thnn_fused_lstm_cell, aten._thnn_fused_gru_cell
    assert torch.autograd.gradgradcheck(lambda *a: lstm(*a)[:2], inputs, **same)
    sizes = [(N, 3 * HIDDEN)] * 2 + [(N, HIDDEN)] + [(3 * HIDDEN,)] * 2
    inputs = [_double(s) for s in sizes]
    assert torch.autograd.gradgradcheck(lambda *a: gru(*a)[0], inputs, **same)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_unrolled_layer(kind: type[nn.LSTM | nn.GRU]) -> None:
    torch.manual_seed(0)
    layer = kind(INPUT, HIDDEN).double()
    cell = (nn.LSTMCell if kind is nn.LSTM else nn.GRUCell)(INPUT, HIDDEN).double().to("tenon")
    for name, parameter in cell.named_parameters():
        parameter.data.copy_(getattr(layer, f"{name}_l0"))
    xs = torch.randn(6, N, INPUT, dtype=torch.double)
    expected = layer(xs)[0]
    zeros = torch.zeros(N, HIDDEN, dtype=torch.double, device="tenon")
    state = [zeros] * (2 if kind is nn.LSTM else 1)
    steps = []
    for x in xs.to("tenon"):
        state = _fused(cell, x, *state)
        steps.append(state[0])
    got = torch.stack(steps)
    torch.testing.assert_close(got.cpu(), expected)
    got.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in cell.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), getattr(layer, f"{name}_l0").grad)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("packed", [False, True])
def test_layers_on_the_device(kind: type[nn.LSTM | nn.GRU], packed: bool) -> None:
    pytest.importorskip("torch_tenon._C")
    torch.manual_seed(0)
    layer = kind(INPUT, HIDDEN, num_layers=2, bidirectional=True)
    there = copy.deepcopy(layer).to("tenon")
    xs = torch.randn(6, N, INPUT)

    def run(layer: nn.LSTM | nn.GRU, xs: Tensor) -> list[Tensor]:
        given = pack_padded_sequence(xs, torch.tensor([6, 4, 2])) if packed else xs
        output, state = layer(given)
        (output.data if packed else output).square().sum().backward()
        results = [output.data if packed else output, *(state if kind is nn.LSTM else [state])]
        return [t.detach().cpu() for t in (*results, *(p.grad for p in layer.parameters()))]

    torch.testing.assert_close(run(there, xs.to("tenon")), run(layer, xs))


@pytest.mark.parametrize("batch_first", [False, True])
def test_pack_padded_sequence(batch_first: bool) -> None:
    xs = torch.randn(3, 5, 2, 4).transpose(1, 2)
    lengths = torch.tensor([2, 2, 1] if batch_first else [3, 1])
    got = decompositions.pack_padded_sequence(xs, lengths, batch_first)
    torch.testing.assert_close(got, aten._pack_padded_sequence(xs, lengths, batch_first))


@pytest.mark.parametrize(
    ("xs", "lengths"),
    [
        (torch.randn(3, 2, 0), torch.tensor([3, 2])),
        (torch.randn(3, 2, 1), torch.tensor([2, 3])),
        (torch.randn(3, 2, 1), torch.tensor([2, 0])),
        (torch.randn(3, 2, 1), torch.tensor([2])),
        (torch.randn(3, 2, 1), torch.tensor([[2, 1]])),
    ],
)
def test_pack_padded_sequence_refuses_as_the_cpu_does(xs: Tensor, lengths: Tensor) -> None:
    with pytest.raises(RuntimeError) as expected:
        aten._pack_padded_sequence(xs, lengths, False)
    with pytest.raises(RuntimeError) as error:
        decompositions.pack_padded_sequence(xs, lengths, False)
    assert str(error.value) == str(expected.value)


def test_lengths_stay_on_the_host() -> None:
    pytest.importorskip("torch_tenon._C")
    with pytest.raises(RuntimeError, match="1D CPU int64 tensor, but got 1D tenon:0 Long tensor"):
        aten._pack_padded_sequence(
            torch.ones(2, 1, 1, device="tenon"), torch.tensor([2], device="tenon"), False
        )


def test_out_variants_are_derived() -> None:
    gates = torch.randn(N, 3 * HIDDEN, device="tenon")
    hx = torch.randn(N, HIDDEN, device="tenon")
    outs = [torch.empty(0, device="tenon") for _ in range(2)]
    named = {f"out{i}": out for i, out in enumerate(outs)}
    aten._thnn_fused_gru_cell.out(gates, gates, hx, **named)
    torch.testing.assert_close(outs, list(aten._thnn_fused_gru_cell(gates, gates, hx)))


def test_the_table_is_the_manifests() -> None:
    listed = set(manifest.names_with("route", "decomposed"))
    assert listed == set(decompositions.DECOMPOSITIONS)


def test_an_op_has_one_decomposition() -> None:
    with pytest.raises(ValueError, match="has a decomposition already: gru_cell"):
        decompositions.decomposition("aten::_thnn_fused_gru_cell")(lambda: None)


def test_a_cell_has_a_plan_for_any_sizes() -> None:
    failures, log = PlanFailures(), logging.getLogger("torch_tenon.program")
    log.addHandler(failures)
    op = torch.ops.aten._thnn_fused_lstm_cell
    with executing("compiled"):
        for batch, size in [(n, n) for n in (2, 4, 7, 9) for _ in range(2)]:
            gates = [torch.randn(batch, 4 * size) for _ in range(2)]
            biases, cx = [torch.randn(4 * size) for _ in range(2)], torch.randn(batch, size)
            for given in ([*gates, cx], [*gates, cx, *biases]):
                found = op(*(x.to("tenon") for x in given))
                assert_same(list(found), list(op(*given)), 1e-5, 1e-6)
    log.removeHandler(failures)
    assert not failures.found
