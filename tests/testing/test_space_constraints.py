"""Whether the CPU takes calls that are drawn to be right, and what these have in common."""

from __future__ import annotations

import pytest
import torch

from torch_tenon.testing.space.case import Case, Data, at_size
from torch_tenon.testing.space.running import functions, run
from torch_tenon.testing.space.search import calls
from torch_tenon.testing.space.shrinking import shrink

RECURRENT = (
    *("gru.input", "gru.data", "lstm.input", "lstm.data", "rnn_tanh.input", "rnn_tanh.data"),
    *("rnn_relu.input", "rnn_relu.data", "gru_cell.default", "lstm_cell.default"),
    *("rnn_tanh_cell.default", "rnn_relu_cell.default"),
    *("_thnn_fused_gru_cell_backward.default", "_thnn_fused_lstm_cell_backward_impl.default"),
)
FOURIER = ("_fft_c2c.default", "_fft_r2c.default", "_fft_c2r.default", "_fft_c2r.out")
ALGEBRA = (
    *("_linalg_det.default", "_linalg_slogdet.sign", "_linalg_eigh.default", "_linalg_svd.default"),
    *("_linalg_solve_ex.result", "linalg_inv_ex.default", "linalg_eig.out", "linalg_qr.default"),
    *("linalg_lu_solve.default", "linalg_ldl_solve.default", "linalg_lstsq.default"),
    *("linalg_householder_product.default", "ormqr.default", "cholesky.default"),
    *("lu_unpack.default", "triangular_solve.default", "linalg_solve_triangular.default"),
)
OUTS = ("complex.out", "polar.out", "frexp.Tensor_out", "float_power.Scalar_out")


def right_calls(op: str, count: int = 20) -> list[Data]:
    """Calls that the CPU should take, without gradients, which some ops have none of."""
    drawn = [c for c in calls(f"aten.{op}", 1, count, ["sized"]) if c["right"]]
    for case in drawn:
        for t in case["tensors"]:
            t.pop("grad", None)
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("op", (*RECURRENT, *FOURIER, *ALGEBRA))
def test_the_cpu_takes_most_calls_at_each_size(op: str) -> None:
    drawn = right_calls(op)
    for size in range(3):
        taken = [c for c in drawn if not run(Case(c), "cpu", size).error]
        assert len(taken) > len(drawn) / 2, size


def test_layers_have_every_form() -> None:
    drawn = calls("aten.lstm.input", 2, 200, ["reference"])
    forms = {tuple(c["args"][3:]) for c in drawn if c["right"] and len(c["args"]) == 9}
    biases, layers, dropouts, trains, both, first = map(set, zip(*forms, strict=True))
    assert biases == trains == both == first == {True, False}
    assert layers == {1, 2, 3}
    assert 0.0 in dropouts and len(dropouts) > 1
    states = [[at_size(c["tensors"][x["tensor"]]["shape"], 0) for x in c["args"][1]] for c in drawn
              if c["right"]]  # fmt: skip
    assert any(h != c for h, c in states) and any(h == c for h, c in states)


def test_lengths_of_packed_sequences_are_the_hosts() -> None:
    for data in right_calls("gru.data", 10):
        made = functions(Case(data), 0)[0](torch.device("meta"))
        (lengths,) = [x for x in made if x.device.type == "cpu"]
        assert lengths.dtype == torch.int64
        assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)


@pytest.mark.parametrize("op", OUTS)
def test_the_cpu_takes_some_calls_with_an_out(op: str) -> None:
    assert any(not run(Case(c), "cpu").error for c in right_calls(op, 40))


@pytest.mark.parametrize("op", ["_linalg_eigh.default", "linalg_inv_ex.default"])
def test_matrices_have_an_inverse_at_each_size(op: str) -> None:
    for data in right_calls(op):
        for size in range(3):
            case = Case({**data, "before": None})
            x = functions(case, size)[0](torch.device("cpu"))[0]
            if x.dtype not in (torch.float64, torch.complex128) or not x.numel():
                continue
            assert bool((torch.linalg.cond(x) < 1e3).all())
            if op == "_linalg_eigh.default":
                assert torch.equal(x, x.mH)


def test_numbers_of_each_size_are_made_small() -> None:
    found = [c for c in right_calls("linalg_inv_ex.default")
             if isinstance(c["tensors"][0]["palette"], dict)]  # fmt: skip
    small = shrink(found[0], lambda case: not run(Case(case), "cpu").error, 5.0)
    assert len(small["tensors"][0]["palette"]) == 1
