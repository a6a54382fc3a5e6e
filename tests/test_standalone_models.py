"""Models as programs without a call of PyTorch's kernels: they give what the module gives."""

import copy
import os

import pytest
import test_models
import torch
from against_cpu import assert_same
from standalone import Standalone
from standalone_models import MODELS

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Recurrent ones are above; PyTorch's export traces no packed sequences, whose lengths are data.
OTHERS = ("transformer_encoder", "multihead_attention", "bert", "gpt2", "llama")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_call_is_left(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().eval()
    args = inputs()
    program = Standalone(copy.deepcopy(model), args)
    assert program.calls == []
    with torch.no_grad():
        expected = model(*args)
    assert_same(program(*args)[-1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_no_call_is_left_of_the_models_that_are_trained(name: str) -> None:
    torch.manual_seed(0)
    make, sizes = test_models.MODELS[name]
    model = make().eval()
    args: tuple[torch.Tensor, ...] = ()
    keywords = {}
    if sizes is None:
        tokens = (torch.arange(24).view(2, 12) * 7) % 64
        keywords = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        keywords |= {} if name == "bert" else {"use_cache": False}
    else:
        args = (torch.linspace(-1, 1, torch.Size(sizes).numel()).view(sizes),)
    program = Standalone(model, args, kwargs=keywords)
    assert program.calls == []
    with torch.no_grad():
        expected = model(*args, **keywords)
    got = program(*args, **keywords)[0]
    assert_same(got, expected.logits if sizes is None else expected, rtol=1e-4, atol=1e-5)
