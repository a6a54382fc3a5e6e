"""Autograd on the device: hooks, higher order, own functions, threads, transforms."""

import threading
import warnings

import pytest
import torch
from against_cpu import assert_same, same_error_on_both, same_on_both
from torch.utils.checkpoint import checkpoint


def test_double_backward() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-1, 1, 5, device=device).requires_grad_()
        y = (x.sin() * x.exp()).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        second.sum().backward()
        return [first.detach(), second.detach(), x.grad]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


def test_gradients_accumulate_and_stay_where_they_are() -> None:
    x = torch.ones(3, device="tenon", requires_grad=True)
    (x * 2).sum().backward()
    address = x.grad.data_ptr()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 5, 5] and x.grad.data_ptr() == address
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3, 3] and x.grad.device == x.device


def test_hooks_and_retained_gradients() -> None:
    def compute(device: torch.device) -> list:
        seen = []
        x = torch.ones(3, device=device, requires_grad=True)
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda grad: seen.append(grad) or grad * 10)
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        layer = torch.nn.Linear(3, 1).to(device)
        layer.weight.data.fill_(0.5)
        layer.register_full_backward_hook(lambda m, i, o: seen.append(i[0]))
        layer.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
        layer.bias.data.zero_()
        layer(y).sum().backward()
        return [*seen, y.grad, x.grad]

    same_on_both(compute)


def test_views_and_in_place_writes() -> None:
    def compute(device: torch.device) -> list:
        x = torch.arange(6.0, device=device).requires_grad_()
        y = x.clone().view(2, 3)
        y[0].mul_(3)
        y.t()[1] = x[:2] * 5
        y.diagonal().exp_()
        y.sum().backward()
        return [y.detach(), x.grad]

    same_on_both(compute, rtol=1e-6)
    same_error_on_both(lambda d: torch.ones(3, device=d, requires_grad=True).add_(1))

    def modified(device: torch.device) -> None:
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        modified(torch.device("tenon"))


def test_copies_between_devices_are_differentiable() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, device="tenon:1", requires_grad=True)
    z = (x.to("tenon:0") * 2 + y.to("tenon:0") * 3).cpu()
    z.sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [2, 2, 2]
    assert y.grad.device == torch.device("tenon:1") and y.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant: bool) -> None:
    def compute(device: torch.device) -> list:
        torch.manual_seed(1)
        layer = torch.nn.Linear(4, 4).to(device)
        x = torch.ones(2, 4, device=device, requires_grad=True)
        y = checkpoint(lambda v: layer(v).tanh(), x, use_reentrant=use_reentrant)
        y.sum().backward()
        return [y.detach(), x.grad, layer.weight.grad]

    same_on_both(compute, rtol=1e-6, atol=1e-7)


def test_anomaly_mode() -> None:
    x = torch.zeros(2, device="tenon", requires_grad=True)
    with (
        warnings.catch_warnings(),
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match=r"SqrtBackward0.* returned nan"),
    ):
        warnings.simplefilter("ignore")
        (x.sqrt() * 0).sum().backward()


class Scaled(torch.autograd.Function):
    """x * factor, with a gradient that is wrong on purpose so that it can be recognised."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        assert grad.device == ctx.saved_tensors[0].device
        return grad * ctx.factor * 100, None


def test_own_functions() -> None:
    x = torch.ones(3, device="tenon:1", requires_grad=True)
    y = Scaled.apply(x, 2.0)
    y.sum().backward()
    assert y.tolist() == [2, 2, 2] and x.grad.tolist() == [200, 200, 200]


def test_an_error_in_backward_arrives() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise ZeroDivisionError("in backward")

    x = torch.ones(3, device="tenon", requires_grad=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in backward"):
            Wrong.apply(x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


GRADCHECKED = {
    "matmul": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "conv1d": lambda x: torch.nn.functional.conv1d(x[None], x[None, :, :2]),
    "index": lambda x: x[torch.tensor([0, 2, 0], device=x.device)],
    "cumsum": lambda x: x.cumsum(1).prod(0),
    "svd": lambda x: torch.linalg.svdvals(x),
    "gather": lambda x: x.gather(1, torch.zeros(3, 2, dtype=torch.int64, device=x.device)),
    "complex": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=2),
}


@pytest.mark.parametrize("name", GRADCHECKED)
def test_gradcheck(name: str) -> None:
    x = torch.linspace(0.1, 2, 12, dtype=torch.float64).view(3, 4).pow(2).sin()
    x = x.to("tenon").requires_grad_()
    assert torch.autograd.gradcheck(GRADCHECKED[name], x)
    assert torch.autograd.gradgradcheck(GRADCHECKED[name], x)


def test_many_threads() -> None:
    weight = torch.ones(32, 32, device="tenon", requires_grad=True)
    failed = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                x = torch.full((32, 32), float(number), device=f"tenon:{number % 2}")
                y = x.clone().requires_grad_()
                ((y * 3).sum() + (weight.to(x.device) * 0).sum()).backward()
                assert (y.grad == 3).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)


def test_transforms() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(0.5, 2, 6, device=device).view(2, 3)

        def f(v: torch.Tensor) -> torch.Tensor:
            return (v.sin() * v).sum()

        vector = torch.ones_like(x)
        return [
            torch.func.grad(f)(x),
            torch.func.vmap(torch.func.grad(f))(x),
            torch.func.jacrev(torch.tanh)(x[0]),
            torch.func.jacfwd(torch.tanh)(x[0]),
            torch.func.hessian(f)(x[0]),
            torch.func.vmap(lambda a, b: a @ b)(x, x),
            torch.func.vmap(lambda a: torch.linalg.vector_norm(a))(x),
            torch.func.vjp(torch.exp, x)[1](vector)[0],
            torch.func.jvp(torch.exp, (x,), (vector,))[1],
            torch.autograd.functional.jacobian(torch.exp, x[0]),
            torch.func.functional_call(
                torch.nn.Linear(3, 1), {"weight": x[:1], "bias": x[0, :1]}, (x,)
            ),
        ]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


def test_vmap_over_random_numbers() -> None:
    x = torch.zeros(4, 3, device="tenon")
    y = torch.func.vmap(torch.rand_like, randomness="different")(x)
    assert y.device.type == "tenon" and y.unique().numel() == 12
    z = torch.func.vmap(torch.rand_like, randomness="same")(x)
    assert (z == z[0]).all()


def test_forward_mode() -> None:
    def compute(device: torch.device) -> list:
        x, v = torch.ones(3, device=device), torch.arange(3.0, device=device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, v)
            return list(torch.autograd.forward_ad.unpack_dual(dual.exp() * 2))

    same_on_both(compute)


@pytest.mark.parametrize(
    ("here", "there"),
    [("cpu", "tenon:0"), ("tenon:0", "cpu"), ("tenon:0", "tenon:1"), ("tenon:1", "tenon:1")],
)
def test_forward_mode_across_devices(here: str, there: str) -> None:
    x, v = torch.ones(3, device=here), torch.arange(3.0, device=here)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, v)
        for moved in (dual.to(there), dual.to(there, torch.float64), (dual * 1).to(there) * 1):
            primal, tangent = torch.autograd.forward_ad.unpack_dual(moved)
            assert primal.device == tangent.device == torch.device(there)
            assert primal.tolist() == [1, 1, 1] and tangent.tolist() == [0, 1, 2]
        for written in (torch.zeros(3, device=there), torch.zeros(2, 3, device=there)):
            primal, tangent = torch.autograd.forward_ad.unpack_dual(written.copy_(dual))
            assert primal.device == torch.device(there) and primal.eq(1).all()
            assert tangent.cpu().eq(torch.arange(3.0)).all()


def test_no_grad_and_inference_mode() -> None:
    x = torch.ones(3, device="tenon", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    assert y.is_inference() and y.tolist() == [3, 3, 3]
    with pytest.raises(RuntimeError, match="Inference tensors"):
        (y * x).sum().backward()


def test_saved_tensor_hooks() -> None:
    x = torch.ones(3, device="tenon", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.exp() * x).sum()
    y.backward()
    assert_same(x.grad, torch.full((3,), 2 * torch.e), rtol=1e-6)


def test_backward_runs_on_the_thread_that_asks_for_it() -> None:
    def ran_here() -> bool:
        seen: list[int] = []
        x = torch.ones(3, device="tenon", requires_grad=True)
        y = x * 2
        y.register_hook(lambda _: seen.append(threading.get_ident()))
        y.sum().backward()
        return seen == [threading.get_ident()]

    found = [ran_here()]
    another = threading.Thread(target=lambda: found.append(ran_here()))
    another.start()
    another.join()
    with torch.autograd.set_multithreading_enabled(True):
        found.append(ran_here())
    assert found == [True, True, False]


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_between_forward_and_backward_is_an_error(foreach: bool) -> None:
    weight = torch.ones(3, device="tenon", requires_grad=True)
    weight.grad = torch.ones(3, device="tenon")
    for _ in range(3):  # by reference, recorded, by a plan
        loss = (weight * weight).sum()
        torch.optim.SGD([weight], lr=0.1, foreach=foreach).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_write_to_a_list_of_tensors_counts_once() -> None:
    def versions(device: torch.device) -> list[int]:
        written = [torch.ones(2, device=device) for _ in range(2)]
        for _ in range(3):
            torch._foreach_zero_(written)
            torch._foreach_add_(written, written, alpha=2)
            torch._foreach_copy_(written, written[::-1])
            torch._foreach_exp(written)
        return [t._version for t in written]

    assert versions(torch.device("tenon")) == versions(torch.device("cpu"))
