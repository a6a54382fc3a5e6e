"""Ops with an `out=` whose schemas say that they write other arguments as well: which of these they
do write is the CPU's to say, however they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_tenon.ops import variants

aten = torch.ops.aten
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
Arguments = tuple[list[Any], dict[str, Any]]


def _values(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def _number(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _pair(*numbers: float) -> list[Tensor]:
    return [_values(*numbers), _values(*numbers) * 2]


def _update_scale() -> Arguments:
    given = [_number(8.0), _number(1, torch.int32), _number(0.0), 2.0, 0.5, 2]
    return given, {"out": _number(0.0)}


def _unscale() -> Arguments:
    given = [_pair(1.0, float("inf")), _number(0.0), _number(0.25)]
    return given, {"out": _pair(0.0, 0.0)}


def _step(state: int, steps: bool, lr: Any, **named: Any) -> Arguments:
    given = [_pair(1.0, 2.0), _pair(0.1, 0.2), *(_pair(0.5, 0.5) for _ in range(state))]
    given += [[_number(1.0), _number(1.0)]] if steps else []
    scaling = {"grad_scale": _number(2.0), "found_inf": _number(0.0)}
    common = {"lr": lr, "weight_decay": 0.1, "maximize": False, "out": _pair(0.0, 0.0)}
    return given, common | scaling | named


def _sgd(lr: Any) -> Arguments:
    return _step(1, False, lr, momentum=0.9, dampening=0.1, nesterov=False, is_first_step=False)


def _adam(lr: Any) -> Arguments:
    return _step(3, True, lr, beta1=0.9, beta2=0.99, eps=1e-8, amsgrad=True)


def _adagrad(lr: Any) -> Arguments:
    return _step(1, True, lr, lr_decay=0.1, eps=1e-8)


def _norm(*more: Any, **outs: Tensor) -> Arguments:
    x = torch.arange(12.0).view(4, 3).sin()
    given = [x, None, None, torch.zeros(3), torch.ones(3), *more, 0.1, 1e-5]
    statistics = {"save_mean": torch.zeros(3), "save_invstd": torch.zeros(3)}
    return given, {"out": torch.zeros(4, 3)} | statistics | outs


def _observed() -> Arguments:
    on, x = _values(1, dtype=torch.int64), torch.arange(12.0).view(4, 3)
    range_of = [_values(0.0), _values(1.0), _values(1.0), _values(0, dtype=torch.int32)]
    outs = {"out0": torch.zeros(4, 3), "out1": torch.zeros(4, 3, dtype=torch.bool)}
    return [x, on, on.clone(), *range_of, 0.1, 0, 255, -1], outs


_CALLS: dict[Any, Callable[[], Arguments]] = {
    aten._amp_update_scale.out: _update_scale,
    aten._amp_foreach_non_finite_check_and_unscale.out: _unscale,
    aten._fused_sgd.out: lambda: _sgd(0.1),
    aten._fused_sgd.tensor_lr_out: lambda: _sgd(_number(0.1)),
    aten._fused_adam.out: lambda: _adam(0.1),
    aten._fused_adam.tensor_lr_out: lambda: _adam(_number(0.1)),
    aten._fused_adamw.out: lambda: _adam(0.1),
    aten._fused_adamw.tensor_lr_out: lambda: _adam(_number(0.1)),
    aten._fused_adagrad.out: lambda: _adagrad(0.1),
    aten._fused_adagrad.tensor_lr_out: lambda: _adagrad(_number(0.1)),
    # Between equal bounds it draws one number.
    aten.rrelu_with_noise.out: lambda: (
        [_values(-1.0, 2.0), _values(0.0, 0.0), 0.25, 0.25, True],
        {"out": _values(0.0, 0.0)},
    ),
    aten._native_batch_norm_legit.out: lambda: _norm(True),
    aten._batch_norm_with_update.out: lambda: _norm(reserve=torch.zeros(0, dtype=torch.uint8)),
    aten._fused_moving_avg_obs_fq_helper.out: _observed,
}


def _tensors(of: Any) -> list[Tensor]:
    return [t for t in tree_leaves(of) if isinstance(t, Tensor)]


def test_each_such_op_is_here() -> None:
    """Of PyTorch's ops whose `out=` all are keywords, and that write something beside."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        written = [a for a in schema.arguments if variants.is_written(a)]
        if len({variants.is_out(a) for a in written}) == 2:
            name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            found.add(variants.overload(name))
    assert found == set(_CALLS)


@pytest.mark.parametrize("op", _CALLS, ids=str)
def test_what_is_left_is_known(op: Any) -> None:
    given, outs = _CALLS[op]()
    before = tree_map_only(Tensor, torch.clone, given)
    op(*given, **outs)
    for a, x, old in zip(op._schema.arguments, given, before, strict=False):
        if variants.is_written(a):
            changed = zip(_tensors(x), _tensors(old), strict=True)
            left = all(torch.equal(one, other) for one, other in changed)
            assert variants.is_left(op, a.name) == left, a.name


@pytest.mark.parametrize("mode", ["reference", "compiled"])
@pytest.mark.parametrize("op", _CALLS, ids=str)
def test_an_op_with_out_writes_beside_it_what_the_cpu_does(op: Any, mode: str) -> None:
    def calls(device: str) -> list[Tensor]:
        found = []
        for _ in range(3):  # the first of them runs at once
            given, outs = tree_map_only(Tensor, lambda t: t.to(device).clone(), _CALLS[op]())
            op(*given, **outs)
            found += [t.cpu() for t in _tensors((given, outs))]
        return found

    expected = calls("cpu")
    with executing(mode):
        assert_same(calls("tenon"), expected, **CLOSE)
