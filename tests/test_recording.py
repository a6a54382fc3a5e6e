"""Calls as the dispatcher makes them, unboxed and boxed: what they give, and what they hold."""

import weakref
from collections.abc import Callable

import fresh_process
import pytest
import torch
from against_cpu import same_on_both
from torch.nn import functional as F

X = torch.randn(4, 6)
INDEX = torch.tensor([[0, 2, 1, 3, 0, 1]])


def _same(made: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    assert made is want
    return made


CALLS: list[Callable[[torch.Tensor], object]] = [
    lambda x: x + x,
    lambda x: torch.add(x, x.t().contiguous().t(), alpha=0.5),
    lambda x: _same(x.mul_(2), x),
    lambda x: _same(torch.mm(x, x.t(), out=(y := x.new_empty(4, 4))), y),
    lambda x: torch.cat([x, x.exp()], 1),
    lambda x: torch.stack([x, x]),
    lambda x: torch.max(x, 1),
    lambda x: torch.topk(x, 2),  # boxed
    lambda x: x[torch.tensor([0, 3], device=x.device), 1:],
    lambda x: torch.gather(x, 0, INDEX.to(x.device)),
    lambda x: torch.clamp(x, None, 0.5),
    lambda x: torch.var(x, (0, 1), correction=0),
    lambda x: F.layer_norm(x, (6,)),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.embedding(INDEX.to(x.device), x),
    lambda x: torch.autograd.grad(F.gelu(y := x.detach().requires_grad_()).sum(), y),
    lambda x: torch._foreach_add([x, x], 1.5),
    lambda x: torch._foreach_lerp_(list(x.unbind()), list(x.unbind()), 0.5),
    lambda x: x.new_empty(0).add_(1),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_gives_what_it_does_on_the_cpu(call: Callable[[torch.Tensor], object]) -> None:
    for _ in range(3):
        same_on_both(lambda device: call(X.to(device, copy=True)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_holds_none_of_its_tensors(call: Callable[[torch.Tensor], object]) -> None:
    for _ in range(3):
        x = X.to("tenon")
        seen = weakref.ref(x)
        call(x)
        del x
        assert seen() is None


@pytest.mark.parametrize(
    "op",
    ["add.Tensor", "mul_.Tensor", "mm.out", "cat", "max.dim", "index.Tensor", "_foreach_add_.List"],
)
def test_usual_signatures_are_called_unboxed(op: str) -> None:
    kernels = torch._C._dispatch_dump(f"aten::{op}").splitlines()
    (ours,) = [k for k in kernels if k.startswith("PrivateUse1:")]
    assert ours.endswith("[ boxed unboxed ]")


@pytest.mark.parametrize("op", ["clamp", "clamp_", "clip", "clip_"])
@pytest.mark.parametrize("mode", ["compiled", "auto"])
def test_a_number_that_was_given_once_is_no_other_argument(op: str, mode: str) -> None:
    """The first number of an op is part of what is known of the call. Later ones are not."""
    code = """
        import sys
        import torch

        x = torch.tensor([-3.0, 0.0, 2.0, 7.0])
        calls = [{"min": k} for k in (4, 4, 5, 6, 7, 8)]
        calls += [{"min": -1, "max": 0.5}, {"max": 3}, {"min": -2, "max": 4}, {"min": 4}]
        for numbers in calls:
            expected, found = (getattr(x.to(d), sys.argv[1])(**numbers) for d in ("cpu", "tenon"))
            assert torch.equal(found.cpu(), expected), (numbers, found)
            x = torch.tensor([-3.0, 0.0, 2.0, 7.0])
    """
    fresh_process.output(code, op, TENON_EXECUTE=mode, TENON_PLAN_FILES="0")
