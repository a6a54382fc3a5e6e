"""16-bit floats as wider ones: a conversion tells which number it was."""

import needs
import pytest
import torch

from torch_tenon import _C

pytestmark = needs.plans


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wider_copy_is_of_the_rounded_number(dtype: torch.dtype, compiled: None) -> None:
    """Registers keep 16-bit numbers wide."""
    x = torch.randn(1000).to(dtype)
    for _ in range(3):
        there = x.to("tenon") * 0.3
        wide = there.float()
        equal, further = wide == there, wide - (x * 0.3).to("tenon").float()
        _C.commit_all()
        assert equal.all() and (further == 0).all()


def test_a_bound_of_another_dtype(compiled: None) -> None:
    x, low = torch.randn(64, 64), torch.tensor(0.37, dtype=torch.bfloat16)

    def compute(x: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        low = low.sigmoid()
        return torch.ne(torch.clamp(x > 5, low, x + 10), low)

    for _ in range(3):
        found = compute(x.to("tenon"), low.to("tenon"))
        _C.commit_all()
        assert torch.equal(found.cpu(), compute(x, low))
