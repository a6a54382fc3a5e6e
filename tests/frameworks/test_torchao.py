"""Models that torchao has quantised, as eager code and compiled.

Its tensors of four bits for the CPU refuse any other device; `tests/compiler/test_few_bits.py` has
the product that they are multiplied by.
"""

from __future__ import annotations

import copy
from typing import Any

import needs
import pytest
import torch

from tests.against_cpu import assert_same
from torch_tenon import _C
from torch_tenon.frontends.dynamo import explain_graphs

torchao = pytest.importorskip("torchao", reason="the extra `torchao` installs it")
pytestmark = needs.plans


def _configurations() -> dict[str, Any]:
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
    )

    return {
        "int8 weights": Int8WeightOnlyConfig(),
        "dynamic int8": Int8DynamicActivationInt8WeightConfig(),
        "float8 weights": Float8WeightOnlyConfig(),
    }


def _quantised(kind: str) -> torch.nn.Module:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 192), torch.nn.ReLU(), torch.nn.Linear(192, 128)
    model = torch.nn.Sequential(*layers).bfloat16().eval()
    quantize_(model, _configurations()[kind])
    return model


@pytest.mark.parametrize("kind", ["int8 weights", "dynamic int8", "float8 weights"])
def test_a_model_gives_what_it_gives_on_the_cpu(kind: str, compiled: None) -> None:
    model = _quantised(kind)
    there = copy.deepcopy(model).to("tenon")
    assert all(p.device.type == "tenon" for p in there.parameters())
    torch._dynamo.reset()
    graph = torch.compile(there, backend="tenon", dynamic=False)
    with torch.no_grad():
        for rows in (1, 5, 20):
            x = torch.randn(rows, 256, dtype=torch.bfloat16)
            want = model(x)
            for run in (there, there, there, graph):
                found = run(x.to("tenon"))
                _C.commit_all()
                assert_same(found, want, rtol=2e-2, atol=2e-2 * float(want.abs().max()))


def test_a_token_reads_each_weight_once_as_it_lies() -> None:
    there = _quantised("int8 weights").to("tenon")
    with torch.no_grad():
        (graph,) = explain_graphs(there, torch.randn(1, 256, device="tenon").bfloat16())
    assert (graph.kernels, graph.calls) == (2, 0)
    assert graph.bytes_moved < 1.1 * graph.least_bytes
