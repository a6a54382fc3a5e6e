"""The models of `tests/test_models.py`, exported: their results are the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from against_cpu import assert_same
from test_models import MODELS
from torch import Tensor

import torch_tenon

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Words(torch.nn.Module):
    """A language model as a function of words and which of them count."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        out = self.model(words, attention_mask=mask, labels=words)
        return out.logits, out.loss


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_it_runs_without_pytorch(tmp_path: Path, name: str) -> None:
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    args: tuple[Tensor, ...] = ()
    if sizes is None:
        mask = torch.ones(2, 12, dtype=torch.int64)
        mask[1, 9:] = 0
        model, args = Words(model), (torch.randint(64, (2, 12)), mask)
    else:
        args = (torch.randn(sizes),)
    made = torch_tenon.export(model, args, tmp_path / "m.tenon", cpu="native")
    assert made.calls == ()
    with torch.no_grad():
        assert_same(torch_tenon.load(made.path)(*args), model(*args), rtol=1e-4, atol=1e-5)
