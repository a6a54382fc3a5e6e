"""The tests that `tenon new-target` writes beside a target."""

MEMORY = '''"""Tests of the target @NAME@.

PyTorch's own suite is run by `tenon conformance --target @FILE@:@CLASS@`.
"""

import os
from pathlib import Path

# PyTorch loads the device when it is imported.
os.environ["TENON_TARGET"] = f"{Path(__file__).parent / '@FILE@'}:@CLASS@"

import torch


def test_it_is_the_target():
    assert torch.tenon.target_name() == "@NAME@"


def test_copies_there_and_back():
    x = torch.randn(3, 5)
    assert torch.equal(x.to("tenon").t()[1:].cpu(), x.t()[1:])


def test_memory_is_given_back():
    x = torch.ones(1000, device="tenon").sum()
    assert x.item() == 1000
    before = torch.tenon.memory_allocated()
    y = torch.ones(1000, device="tenon") + 1
    assert y[-1].item() == 2 and torch.tenon.memory_allocated() > before
    del y
    torch.tenon.synchronize()
    assert torch.tenon.memory_allocated() == before


def test_it_trains():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = model.to("tenon")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 8, device="tenon"), torch.randn(32, 1, device="tenon")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
'''

LIBRARY = """

def test_its_own_kernel_multiplies():
    import torch_tenon

    a, b = torch.randn(3, 5), torch.randn(5, 7)
    before = torch_tenon.counters().get("library::aten::mm", 0)
    torch.testing.assert_close((a.to("tenon") @ b.to("tenon")).cpu(), a @ b)
    assert torch_tenon.counters()["library::aten::mm"] == before + 1
    c, d = a.double(), b.double()  # which the host multiplies
    torch.testing.assert_close((c.to("tenon") @ d.to("tenon")).cpu(), c @ d)
    for e in (d, b.t()):  # which no one multiplies
        try:
            torch.mm(a.to("tenon"), e.to("tenon")).cpu()
        except RuntimeError:
            continue
        raise AssertionError("another dtype, and shapes that do not fit, are errors")
    assert torch_tenon.counters()["library::aten::mm"] == before + 1
"""

LOOPS = '''

def by_kernels(function, *given):
    """Runs a function until its kernels run, and holds each result against the CPU's."""
    import torch_tenon

    before = torch_tenon.report()
    for _ in range(4):
        found = function(*(x.to("tenon") for x in given)).cpu()
        torch.testing.assert_close(found, function(*given))
    ran = torch_tenon.report().since(before).recording
    assert ran.by_plan > 0, str(ran)
    assert all(plan.calls == 0 for plan in ran.plans), "the host computes a part"


def test_its_kernels_are_generated():
    import torch_tenon

    torch_tenon._C.set_execute_mode(torch_tenon.config.EXECUTE_MODES.index("compiled"))
    x, index = torch.randn(6, 5), torch.tensor([3, 0])
    by_kernels(lambda x: torch.softmax(x * 2, 1), x)
    by_kernels(lambda x: torch.nn.functional.layer_norm(x, (5,)).sigmoid(), x)
    by_kernels(lambda x: torch.nn.functional.group_norm(x.view(2, 3, 5), 3), x)
    by_kernels(lambda x: x.t().cumsum(0) + 1, x)
    by_kernels(lambda x, index: (x[index].exp() > 1).long().sum(1), x, index)
    by_kernels(lambda x: torch.cat([x, -x], 1).amax(1), x)
    by_kernels(lambda i: (i // 3).remainder(4) + i.bitwise_and(5), torch.arange(-9, 9))
    for _ in range(4):
        try:
            (x.to("tenon").index_select(0, torch.tensor([9], device="tenon")) * 2).cpu()
        except IndexError as error:
            assert "out of range" in str(error)
        else:
            raise AssertionError("an index out of range is an error")


def test_a_kernel_by_hand():
    from torch_tenon import KernelSource, custom_op

    source = """
void twice(void *const *memory, const int64_t *numbers, int64_t *status) {
  for (int64_t k = 0; k < numbers[0]; ++k)
    ((float *)memory[0])[k] = 2 * ((const float *)memory[1])[k];
}"""
    arguments = ["float32 result", "float32 x", "int64 numel(x)"]

    @custom_op(
        "@NAME@::twice(Tensor x) -> Tensor",
        kernels=[KernelSource("@NAME@", source, "twice", arguments)],
        backward={"x": "2 * grad"},
    )
    def twice(x):
        return torch.empty_like(x)

    x = torch.randn(5, 3)
    torch.testing.assert_close(twice(x.to("tenon")).cpu(), 2 * x)
'''
