"""Dynamo is loaded when something is traced, and whoever needs it then gets it whole."""

from __future__ import annotations

import pytest
from fresh_process import output

TRAIN = """
import sys, torch
m = torch.nn.Linear(4, 4).to("tenon")
o = torch.optim.Adam(m.parameters())
schedule = torch.optim.lr_scheduler.StepLR(o, 2)
def step():
    o.zero_grad()
    m(torch.ones(2, 4, device="tenon")).sum().backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    schedule.step()
    o.load_state_dict(o.state_dict())
    return o.state_dict()["param_groups"][0]["lr"]
def loaded():
    return "torch._dynamo.eval_frame" in sys.modules
"""


def test_training_does_not_load_it() -> None:
    assert output(TRAIN + "step(); step(); print(loaded())").strip() == "False"


def test_decompositions_do_not_load_it() -> None:
    code = """
x = torch.randn(8, device="meta")
torch._decomp.decompositions.leaky_relu_backward(x, x, 0.1, False)
print(loaded())
"""
    assert output(TRAIN + code).strip() == "False"


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "import torch._dynamo",
        "import importlib; importlib.import_module('torch._dynamo')",
        "torch.compiler.list_backends()",
        "from torch._dynamo.utils import counters",
        "import torch._dynamo as d; d.config",
        "torch._dynamo.config.verbose = False",
        "from unittest import mock\nwith mock.patch('torch._dynamo.list_backends'): pass",
    ],
)
def test_who_asks_for_more_of_it_gets_it(asked: str) -> None:
    code = f"""
step()
{asked}
assert loaded()
import types
module = sys.modules["torch._dynamo"]
assert module is torch._dynamo and type(module) is types.ModuleType
step()
print(torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).tolist())
"""
    assert output(TRAIN + code).strip() == "[1.0, 1.0]"


@pytest.mark.slow
def test_a_program_that_imports_it_has_it_before_it_trains() -> None:
    code = "import torch._dynamo; print(loaded()); step(); print(type(torch._dynamo).__name__)"
    assert output(TRAIN + code).split() == ["True", "module"]


def test_who_asks_whether_it_is_loaded_is_not_misled() -> None:
    code = """
step()
print("torch._dynamo" in sys.modules)
torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.distributed.destroy_process_group()
print(loaded())
"""
    assert output(TRAIN + code).split() == ["False", "False"]


@pytest.mark.slow
def test_what_it_is_not_to_look_at_is_hidden_from_it_later() -> None:
    code = """
step()
graphs = []
def keep(module, inputs):
    graphs.append(module)
    return module
compiled = torch.compile(step, backend=keep)
print(compiled() == 0.001 * 0.1)
hidden = torch.optim.Optimizer.state_dict.__wrapped__.__dynamo_disable
print(hidden is not torch.optim.Optimizer.state_dict.__wrapped__, len(graphs) > 0)
"""
    assert output(TRAIN + code).split() == ["True", "True", "True"]


def test_it_is_found_by_those_who_look_at_all_modules() -> None:
    code = """
import inspect
inspect.getmodule(step)
import importlib.util
print(importlib.util.find_spec("torch._dynamo") is not None, torch._dynamo.__file__[-11:], loaded())
"""
    assert output(TRAIN + code).split() == ["True", "__init__.py", "False"]


@pytest.mark.slow
def test_the_builder_loads_what_symbolic_sizes_need_of_it_and_all_when_asked() -> None:
    code = """
import sys, torch
import torch_tenon.builder.work
from torch_tenon.ir.index import Symbol, var
from torch_tenon.ir.symbolic import SymbolicSizes
def double():
    t = SymbolicSizes().tensor([var(Symbol("n", lower=2)), 4], [4, 1], torch.float32)
    return (t + t).shape[1]
print(double(), "torch._dynamo.eval_frame" in sys.modules, "torch._inductor" in sys.modules)
compiled = torch.compile(lambda x: 2 * x, backend="eager")
print(compiled(torch.ones(2)).tolist(), "torch._dynamo.eval_frame" in sys.modules, double())
"""
    assert output(code).splitlines() == ["4 False False", "[2.0, 2.0] True 4"]
