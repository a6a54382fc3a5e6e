"""Autocast and gradient scaling."""

import pytest
import torch
from against_cpu import assert_same
from torch.testing._internal.autocast_test_lists import AutocastTestLists

DTYPES = (torch.bfloat16, torch.float16)


def lists() -> AutocastTestLists:
    return AutocastTestLists(torch.device("tenon"))


# Of PyTorch's own lists for CUDA, those that CUDA alone has, and one with operands that do not fit
# its equation, which is tested below.
ONLY_CUDA = {"einsum", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"}


def run_list(cases: list, autocast_dtype: torch.dtype, expected: torch.dtype | None, home) -> None:
    ran = 0
    for name, args, *rest in cases:
        if name in ONLY_CUDA or name.startswith("cudnn_"):
            continue
        kwargs = next((value for value in rest if isinstance(value, dict)), {})
        with torch.autocast("tenon", autocast_dtype):
            function = getattr(home, name, None) or getattr(torch.Tensor, name)
            out = function(*args, **kwargs)
        first = out[0] if isinstance(out, (tuple, list)) else out
        if isinstance(first, torch.Tensor):
            assert first.device.type == "tenon", name
            if expected is not None:
                assert first.dtype == expected, f"{name}: {first.dtype}"
        ran += 1
    assert ran > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists_of_torch(dtype: torch.dtype) -> None:
    case = lists()
    run_list(case.torch_fp16, dtype, dtype, torch)
    run_list(case.torch_fp32, dtype, torch.float32, torch)
    if dtype == torch.float16:  # its inputs are of that dtype, and do not meet bfloat16
        run_list(case.torch_need_autocast_promote, dtype, torch.float32, torch)
    run_list(case.nn_fp16, dtype, dtype, torch._C._nn)
    run_list(case.nn_fp32, dtype, torch.float32, torch._C._nn)


@pytest.mark.parametrize("dtype", DTYPES)
def test_methods(dtype: torch.dtype) -> None:
    x = torch.randn(8, 8, device="tenon")
    with torch.autocast("tenon", dtype):
        assert (x @ x).dtype == dtype and x.mm(x).dtype == dtype
        assert torch.einsum("ij,jk->ik", x, x).dtype == dtype
        assert x.exp().dtype == x.sum().dtype == x.softmax(0).dtype == torch.float32
        assert (x + x).dtype == torch.float32
        assert (x.to(dtype) + x).dtype == torch.float32
        assert torch.cat([x.to(dtype), x]).dtype == torch.float32
        assert x.double().mm(x.double()).dtype == torch.float64


# What PyTorch's kernels compute in float32 and float64 alone, which the CPU's autocast casts.
ALONE_IN_FLOAT32 = {
    "fft": lambda x: torch.fft.fft(x),
    "irfft2": lambda x: torch.fft.irfft2(x),
    "rfftn": lambda x: torch.fft.rfftn(x),
    "polar": lambda x: torch.polar(x, x),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(8, 2)),
    "inverse": lambda x: x.inverse(),
    "solve": lambda x: torch.linalg.solve(x, x),
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "qr": lambda x: torch.linalg.qr(x)[1].abs(),
    "eigh": lambda x: torch.linalg.eigh(x)[0],
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "rank": lambda x: torch.linalg.matrix_rank(x),
    "lstsq": lambda x: torch.linalg.lstsq(x, x)[0],
    "cond": lambda x: torch.linalg.cond(x),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "nanquantile": lambda x: torch.nanquantile(x, 0.3, dim=1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALONE_IN_FLOAT32)
def test_what_no_kernel_computes_in_16_bits(name: str, dtype: torch.dtype) -> None:
    matrix = torch.randn(4, 4)
    matrix = (matrix @ matrix.T + 4 * torch.eye(4)).to(dtype)
    expected = ALONE_IN_FLOAT32[name](matrix.float())
    leaf = matrix.to("tenon").requires_grad_()
    with torch.autocast("tenon", dtype):
        out = ALONE_IN_FLOAT32[name](leaf @ torch.eye(4, device="tenon"))
    assert out.dtype == expected.dtype
    # With gradients LAPACK may take another way to the same numbers.
    torch.testing.assert_close(out.detach().cpu(), expected, rtol=1e-5, atol=1e-5)
    if out.requires_grad:
        (out.abs() if out.is_complex() else out).sum().backward()
        assert leaf.grad is not None and leaf.grad.dtype == dtype


def test_nesting_and_disabling() -> None:
    x = torch.randn(4, 4, device="tenon")
    with torch.autocast("tenon", torch.float16):
        assert torch.is_autocast_enabled("tenon")
        assert torch.get_autocast_dtype("tenon") == torch.float16
        with torch.autocast("tenon", torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float16
        with torch.autocast("tenon", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float16
    assert (x @ x).dtype == torch.float32 and not torch.is_autocast_enabled("tenon")
    with torch.autocast("tenon"):
        assert (x @ x).dtype in DTYPES
    with torch.tenon.amp.autocast(dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
    assert torch.amp.is_autocast_available("tenon")
    with (
        pytest.warns(UserWarning, match="not supported|disabl"),
        torch.autocast("tenon", torch.int32),
    ):
        assert (x @ x).dtype == torch.float32


def test_banned() -> None:
    x = torch.rand(4, device="tenon")
    with (
        torch.autocast("tenon"),
        pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"),
    ):
        torch.nn.functional.binary_cross_entropy(x, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training_is_close_to_float32_and_close_to_the_cpu_s_autocast(dtype: torch.dtype) -> None:
    def loss_and_gradients(device: str, enabled: bool) -> list:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
        ).to(device)
        x = torch.linspace(-1, 1, 40).view(5, 8).to(device)
        with torch.autocast(device, dtype, enabled=enabled):
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out, torch.arange(5, device=device) % 4)
        assert out.dtype == (dtype if enabled else torch.float32) and loss.dtype == torch.float32
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    mixed = loss_and_gradients("tenon", True)
    assert_same(mixed, loss_and_gradients("tenon", False), rtol=0.1, atol=0.02)
    assert_same(mixed, loss_and_gradients("cpu", True), rtol=0.1, atol=0.02)


def test_weights_are_cast_once() -> None:
    weight = torch.randn(4, 4, device="tenon", requires_grad=True)
    x = torch.randn(4, 4, device="tenon")
    with torch.autocast("tenon", torch.float16):
        first, second = x @ weight, x @ weight
    assert torch.equal(first, second)
    (first.sum() + second.sum()).backward()
    assert weight.grad.dtype == torch.float32


def test_gradient_scaling() -> None:
    def train(device: str) -> list:
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        seen = []
        for step in range(6):
            optimizer.zero_grad()
            factor = float("inf") if step == 2 else 1.0 + step
            scaler.scale((weight * factor).sum()).backward()
            if step == 4:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
            scaler.step(optimizer)
            scaler.update()
            seen += [weight.detach().clone(), scaler.get_scale()]
        state = scaler.state_dict()
        other = torch.amp.GradScaler(device)
        other.load_state_dict(state)
        return [*seen, state, other.get_scale()]

    assert_same(train("tenon"), train("cpu"), rtol=1e-6)


def test_scaler_of_tenon_and_a_fused_optimizer() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="tenon"))
    scaler = torch.tenon.amp.GradScaler(init_scale=8.0)
    for fused in (False, True):
        optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
        scaler.scale((weight * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.isfinite(weight).all() and weight.max() < 1


def test_custom_fwd_and_bwd() -> None:
    seen = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tenon", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen["forward"] = (a.dtype, torch.is_autocast_enabled("tenon"))
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="tenon")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen["backward"] = torch.is_autocast_enabled("tenon")
            return grad.mm(b.t()), a.t().mm(grad)

    a = torch.randn(4, 4, device="tenon", dtype=torch.float16, requires_grad=True)
    with torch.autocast("tenon", torch.float16):
        out = Product.apply(a, a)
    assert out.dtype == torch.float32 and seen["forward"] == (torch.float32, False)
    out.sum().backward()
    assert seen["backward"] is False and a.grad.dtype == torch.float16
