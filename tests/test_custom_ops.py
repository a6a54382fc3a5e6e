"""Ops that are not PyTorch's: in Python, and in a third party's C++ extension."""

from typing import Any

import pytest
import torch
from against_cpu import assert_same, executing, same_on_both

import torch_tenon


@torch.library.custom_op("tenon_tests::composed", mutates_args=())
def composed(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Made of ATen ops, as most custom ops are."""
    return torch.tanh(x) * factor + x.sum()


@composed.register_fake
def _(x, factor):
    return torch.empty_like(x)


def _composed_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ctx.factor * (1 - torch.tanh(x) ** 2) + grad.sum(), None


composed.register_autograd(
    _composed_backward,
    setup_context=lambda ctx, inputs, output: (
        ctx.save_for_backward(inputs[0]),
        setattr(ctx, "factor", inputs[1]),
    ),
)


@torch.library.custom_op("tenon_tests::write", mutates_args={"out"})
def write(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes to an argument."""
    out.copy_(x * 2)


def test_composed_of_aten_ops() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-1, 1, 6, device=device).requires_grad_()
        y = composed(x, 2.0)
        y.sum().backward()
        out = torch.zeros(12, device=device)
        write(x.detach(), out[::2])
        return [y.detach(), x.grad, out]

    same_on_both(compute, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_opcheck() -> None:
    x = torch.linspace(-1, 1, 6, device="tenon")
    # One more of its checks is written for the CPU, CUDA and XPU only.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(composed, (x.requires_grad_(), 2.0), test_utils=checks)
    out = torch.zeros(6, device="tenon")
    torch.library.opcheck(write, (x.detach(), out), test_utils=checks)


def test_the_public_names_stay_what_they_are() -> None:
    for name in torch_tenon.__all__:
        assert callable(getattr(torch_tenon, name))
        assert getattr(torch_tenon, name) is getattr(torch_tenon, name)


def test_a_kernel_in_python_for_the_device() -> None:
    for name, device_type in (("by_name", "tenon"), ("by_key", None)):
        op = torch.library.custom_op(
            f"tenon_tests::{name}", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        if device_type is not None:
            op.register_kernel(device_type)(lambda x: x + 100)
        else:
            torch.library.impl(f"tenon_tests::{name}", "PrivateUse1")(lambda x: x + 100)
        assert op(torch.ones(2)).tolist() == [2, 2]
        y = op(torch.ones(2, device="tenon:1"))
        assert y.tolist() == [101, 101] and y.device == torch.device("tenon:1")


def test_an_op_for_one_device_type_only() -> None:
    op = torch.library.custom_op(
        "tenon_tests::cpu_only",
        lambda x: torch.from_numpy(x.numpy() * 2),
        mutates_args=(),
        device_types="cpu",
        schema="(Tensor x) -> Tensor",
    )
    torch_tenon.reset_counters()
    y = op(torch.ones(2, device="tenon"))
    assert y.device.type == "tenon" and y.tolist() == [2, 2], "it falls back"
    assert torch_tenon.counters()["fallback::tenon_tests::cpu_only"] == 1


def test_what_a_kernel_gives_in_memory_of_its_own_is_there() -> None:
    with torch.library._scoped_library("tenon_tests_numpy", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
        double = torch.ops.tenon_tests_numpy.double
        y = double(torch.arange(1000.0, device="tenon"))
        y.untyped_storage().resize_(6000)
        assert y.tolist() == list(range(0, 2000, 2))

        def compute(device: torch.device) -> list:
            y = double(torch.arange(1000.0, device=device))
            y[:2] = 7
            found = [y + 1, y * 2]
            del y  # a temporary of the window, but for what was there before
            return found

        with executing("compiled"):
            same_on_both(compute)


def test_a_function_of_one_s_own_overrides_forward_and_backward() -> None:
    with torch.library._scoped_library("tenon_tests_own", "DEF") as library:
        library.define("cube(Tensor x) -> Tensor")
        library.impl("cube", lambda x: x**3, "CompositeExplicitAutograd")

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                with torch._C._AutoDispatchBelowAutograd():
                    return torch.ops.tenon_tests_own.cube(x) + 0.5

            @staticmethod
            def backward(ctx, grad):
                return grad * 7

        library.impl("cube", Cube.apply, "AutogradPrivateUse1")
        x = torch.full((3,), 2.0, device="tenon", requires_grad=True)
        y = torch.ops.tenon_tests_own.cube(x)
        y.sum().backward()
        assert y.tolist() == [8.5] * 3 and x.grad.tolist() == [7] * 3
        assert torch.ops.tenon_tests_own.cube(torch.full((1,), 2.0)).item() == 8


def test_a_function_of_one_s_own_overrides_an_op_of_pytorch() -> None:
    from fresh_process import output

    code = """
        import torch
        library = torch.library.Library("aten", "IMPL")
        class Sinh(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                with torch._C._AutoDispatchBelowAutograd():
                    return torch.sinh(x) + 100
            @staticmethod
            def backward(ctx, grad):
                return grad * 5
        library.impl("sinh", Sinh.apply, "AutogradPrivateUse1")
        x = torch.zeros(1, device="tenon", requires_grad=True)
        y = torch.sinh(x)
        y.backward()
        print(y.item(), x.grad.item(), torch.sinh(torch.zeros(1)).item())
    """
    assert output(code) == "100.0 5.0 0.0"


def test_decomposition_by_a_dispatch_mode() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Names() as names:
        x = torch.ones(3, device="tenon") * 2
        x[1:].add_(1)
    assert "aten.mul.Tensor" in names.seen and "aten.add_.Tensor" in names.seen
    assert x.tolist() == [2, 3, 3]


def test_a_tensor_subclass() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(3, device="tenon").as_subclass(Tagged)
    y = (x * 2)[1:]
    assert type(y) is Tagged and y.device.type == "tenon" and y.tolist() == [2, 2]


@pytest.fixture
def extension(third_party: None) -> Any:
    """A third party's ops."""
    return torch.ops.third_party


def test_an_extension_with_a_kernel_for_the_device(extension: Any) -> None:
    assert extension.triple(torch.ones(2)).tolist() == [3, 3]
    y = extension.triple(torch.ones(2, device="tenon:1"))
    assert y.tolist() == [1003, 1003] and y.device == torch.device("tenon:1")


def test_an_extension_with_a_cpu_kernel(extension: Any) -> None:
    torch_tenon.reset_counters()
    x = torch.arange(6.0).view(2, 3)
    expected = extension.host_only(x.t(), [x.t(), x.t()], 2.0)
    there = x.to("tenon:1").t()
    y = extension.host_only(there, [there, there], 2.0)
    assert y.device == torch.device("tenon:1")
    assert_same(y, expected)
    assert torch_tenon.counters()["fallback::third_party::host_only"] == 1
    assert "third_party::host_only" in str(torch_tenon.report())
    z = torch.arange(4.0, device="tenon")
    extension.host_only_(z[1:3])
    assert z.tolist() == [0, 2, 2, 3]
    with pytest.raises(IndexError, match="host_only_: nothing to write to"):
        extension.host_only_(z[:0])


def test_an_extension_composed_of_aten_ops(extension: Any) -> None:
    x = torch.linspace(0, 1, 5)
    y = x.to("tenon").requires_grad_()
    extension.composed(y).sum().backward()
    assert_same(y.grad, x.cos() - x.sin(), rtol=1e-6, atol=1e-7)


def test_an_extension_without_a_kernel(extension: Any) -> None:
    with pytest.raises(NotImplementedError) as raised:
        extension.nowhere(torch.ones(2, device="tenon"))
    message = str(raised.value)
    assert "third_party::nowhere" in message and "tenon" in message
    assert "PrivateUse1" in message and "docs/adding-an-op.md" in message
