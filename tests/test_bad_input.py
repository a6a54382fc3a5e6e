"""What is wrong raises PyTorch's own error at the call; the device works on, nothing is lost."""

import warnings

import pytest
import torch
from against_cpu import same_error_on_both

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def ones(*sizes: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*sizes, device=device, dtype=dtype)


WRONG = {
    "matmul_shapes": lambda d: ones(2, 3, device=d) @ ones(2, 3, device=d),
    "add_shapes": lambda d: ones(2, 3, device=d) + ones(2, 4, device=d),
    "bmm_dims": lambda d: torch.bmm(ones(2, 3, device=d), ones(2, 3, device=d)),
    "cat_shapes": lambda d: torch.cat([ones(2, 3, device=d), ones(3, 4, device=d)]),
    "cat_out_is_an_empty_argument": lambda d: torch.cat(
        [(x := ones(0, 16, device=d)), x], 1, out=x
    ),
    "stack_shapes": lambda d: torch.stack([ones(2, device=d), ones(3, device=d)]),
    "view_shape": lambda d: ones(2, 3, device=d).view(4),
    "reshape_shape": lambda d: ones(2, 3, device=d).reshape(4, -1),
    "conv_channels": lambda d: torch.nn.functional.conv2d(
        ones(1, 3, 8, 8, device=d), ones(4, 2, 3, 3, device=d)
    ),
    "linear_shape": lambda d: torch.nn.functional.linear(
        ones(2, 3, device=d), ones(4, 5, device=d)
    ),
    "batch_norm_shape": lambda d: torch.nn.functional.batch_norm(
        ones(2, 3, device=d), ones(4, device=d), ones(4, device=d)
    ),
    "matmul_dtypes": lambda d: ones(2, 2, device=d) @ ones(2, 2, device=d, dtype=torch.float64),
    "bitwise_of_floats": lambda d: ones(2, device=d) & ones(2, device=d),
    "in_place_dtype": lambda d: ones(2, device=d, dtype=torch.int32).add_(0.5),
    "out_dtype": lambda d: torch.add(
        ones(2, device=d), 0.5, out=ones(2, device=d, dtype=torch.int64)
    ),
    "mean_of_integers": lambda d: ones(2, device=d, dtype=torch.int64).mean(),
    "index_dtype": lambda d: ones(3, device=d)[ones(2, device=d)],
    "gather_dtype": lambda d: ones(3, device=d).gather(0, ones(2, device=d)),
    "grad_of_integers": lambda d: ones(2, device=d, dtype=torch.int64).requires_grad_(),
    "index_beyond": lambda d: ones(3, device=d)[torch.tensor([3], device=d)],
    "index_select_beyond": lambda d: ones(3, device=d).index_select(0, torch.tensor([5], device=d)),
    "gather_beyond": lambda d: ones(3, device=d).gather(0, torch.tensor([7], device=d)),
    "scatter_beyond": lambda d: ones(3, device=d).scatter(0, torch.tensor([7], device=d), 1.0),
    "index_put_beyond": lambda d: ones(3, device=d).index_put_(
        (torch.tensor([-4], device=d),), torch.tensor(1.0, device=d)
    ),
    "embedding_beyond": lambda d: torch.nn.functional.embedding(
        torch.tensor([10], device=d), ones(4, 2, device=d)
    ),
    "label_beyond": lambda d: torch.nn.functional.cross_entropy(
        ones(2, 3, device=d), torch.tensor([0, 3], device=d)
    ),
    "select_beyond": lambda d: ones(3, device=d)[5],
    "dim_beyond": lambda d: ones(3, device=d).sum(2),
    "negative_size": lambda d: torch.empty(-1, device=d),
    "singular": lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
    "not_positive_definite": lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)),
    "dropout_probability": lambda d: torch.nn.functional.dropout(ones(2, device=d), 1.5),
    "bernoulli_probability": lambda d: torch.bernoulli(ones(2, device=d) * 2),
    "uniform_range": lambda d: ones(2, device=d).uniform_(2, 1),
    "normal_std": lambda d: ones(2, device=d).normal_(0, -1),
    "random_range": lambda d: torch.randint(5, 5, (2,), device=d),
    "multinomial_weights": lambda d: torch.multinomial(-ones(3, device=d), 1),
    "item_of_many": lambda d: ones(3, device=d).item(),
    "bool_of_many": lambda d: bool(ones(3, device=d)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", ones(2, 3, device=d), ones(2, 3, device=d)),
    "max_of_nothing": lambda d: torch.empty(0, device=d).max(),
    "backward_of_many": lambda d: ones(3, device=d).requires_grad_().mul(2).backward(),
    "load_state": lambda d: torch.nn.Linear(2, 2).to(d).load_state_dict({"x": ones(2, device=d)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_cpu_s_error(name: str) -> None:
    same_error_on_both(WRONG[name])
    x = torch.arange(4.0, device="tenon")
    assert (x * 2 + 1).tolist() == [1, 3, 5, 7]


MIXED = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "linear": torch.nn.functional.linear,
    "in_place": lambda a, b: a.mul_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "foreach": lambda a, b: torch._foreach_add([a, a], [a, b]),
    "mse_loss": torch.nn.functional.mse_loss,
    "lerp": lambda a, b: torch.lerp(a, a, b),
    "conv": lambda a, b: torch.nn.functional.conv1d(a[None], b[None]),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (3,), b[0], b[0]),
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices(name: str) -> None:
    on = {where: torch.ones(3, 3, device=where) for where in ("tenon:0", "tenon:1", "cpu")}
    for first, second in (("tenon:0", "cpu"), ("cpu", "tenon:0"), ("tenon:0", "tenon:1")):
        with pytest.raises(RuntimeError) as raised:
            MIXED[name](on[first], on[second])
        message = str(raised.value)
        assert "Expected all tensors to be on the same device, but found at least two" in message
        assert "tenon:0" in message and (second if first != "cpu" else "cpu") in message
    assert all(x.eq(1).all() for x in on.values())


INTO_A_SCALAR = {
    "add": lambda x, out: torch.add(x[0], x[0], out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "std": lambda x, out: torch.std(x, 0, out=out),
    "all": lambda x, out: torch.all(x, out=out.bool()),
    "dot": lambda x, out: torch.dot(x, x, out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "median": lambda x, out: torch.median(x, 0, out=(out, out.long())),
    "det": lambda x, out: torch.linalg.det(x.diag(), out=out),
    "nonzero": lambda x, out: torch.nonzero(x, out=out.long()),
    "in_place": lambda x, out: out.add_(x[0]),
}


@pytest.mark.parametrize("name", INTO_A_SCALAR)
def test_a_host_scalar_is_not_written(name: str) -> None:
    x, out = torch.ones(3, device="tenon"), torch.zeros(())
    for _ in range(2):  # the second call would be recorded
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            INTO_A_SCALAR[name](x, out)
    assert out.shape == () and out.item() == 0


@pytest.mark.parametrize(("inputs", "result"), [("tenon:0", "cpu"), ("cpu", "tenon:0")])
def test_a_result_on_another_device(inputs: str, result: str) -> None:
    x = torch.ones(3, 3, device=inputs)
    out = {dtype: torch.zeros(3, 3, dtype=dtype, device=result) for dtype in (None, torch.int64)}
    calls = (
        lambda: torch.sum(x, 0, out=out[None]),
        lambda: torch.sin(x, out=out[None]),
        lambda: torch.mm(x, x, out=out[None]),
        lambda: torch.cat([x, x], out=out[None]),
        lambda: torch.cumsum(x, 0, out=out[None]),
        lambda: torch.where(x > 0, x, x, out=out[None]),
        lambda: torch.linalg.inv(x + x.diag().diag(), out=out[None]),
        lambda: torch.clamp(x, 0, 1, out=out[None]),
        lambda: torch.sort(x, out=(out[None], out[torch.int64])),
        lambda: torch.topk(x, 1, out=(out[None], out[torch.int64])),
    )
    for call in calls:
        with pytest.raises(
            RuntimeError, match="Expected all tensors to be on the same device"
        ) as e:
            call()
        assert "tenon:0" in str(e.value) and "cpu" in str(e.value)
        if inputs != "cpu":
            assert "Expected out tensor to have device tenon:0, but got cpu instead" in str(e.value)
    assert all(not t.any() for t in out.values())


@pytest.mark.slow
def test_a_host_scalar_is_no_mixture() -> None:
    x = torch.ones(3, device="tenon:1")
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert (torch.tensor(2.0) * x).device == x.device
    assert x.add_(torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert torch.where(x > 1, x, torch.tensor(0.0)).tolist() == [2, 2, 2]
    assert x[torch.tensor([0, 2])].tolist() == [2, 2], "indices may be on the host"
    x[torch.tensor([1])] = torch.tensor(9.0)
    assert x.tolist() == [2, 9, 2]
    for value in (4.0, torch.tensor(4.0)):
        for at in (torch.tensor([0, 2]), torch.tensor(2)):
            filled = x.clone().index_fill_(0, at, value)
            assert torch.equal(filled, x.index_fill(0, at.to(x.device), value))
    with pytest.raises(RuntimeError, match=r"same device|indices should be"):
        torch.ones(3)[torch.tensor([0], device="tenon")]


def test_a_kernel_that_raises() -> None:
    with torch.library._scoped_library("tenon_tests_bad", "DEF") as library:
        library.define("fail(Tensor x) -> Tensor")

        def fail(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(1 << 20, device=x.device)
            raise ArithmeticError(f"no luck with {tuple(x.shape)} {y.numel()}")

        library.impl("fail", fail, "PrivateUse1")
        with pytest.raises(ArithmeticError, match=r"no luck with \(3,\)"):
            torch.ops.tenon_tests_bad.fail(torch.ones(3, device="tenon"))
    assert torch.ones(3, device="tenon").sum().item() == 3


def test_a_wrong_write_leaves_the_rest_alone() -> None:
    x = torch.arange(6.0, device="tenon")
    y = x.clone()
    for wrong in (
        lambda: y.copy_(torch.ones(7)),
        lambda: y.index_fill_(0, torch.tensor([9], device="tenon"), 1.0),
        lambda: y.view(2, 3).copy_(torch.ones(3, 2)),
        lambda: y.set_(torch.ones(2)),
        lambda: y.unsqueeze_(5),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            wrong()
        assert torch.equal(x, y)


def test_an_error_in_the_middle_of_backward() -> None:
    x = torch.ones(1000, device="tenon", requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: grad[:10])
    with pytest.raises(RuntimeError, match=r"hook|shape|size"):
        y.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x * 3).sum().backward()
    assert x.grad.unique().tolist() == [3.0]


def test_layouts_that_cannot_be() -> None:
    x = torch.ones(4, 4, device="tenon")
    with pytest.raises((RuntimeError, NotImplementedError)):
        x.to_mkldnn() + x
    assert x.sum().item() == 16
