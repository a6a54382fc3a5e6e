"""Results of compiled graphs lie in memory as eager code's, so that strides lead to the same
elements."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

IMAGES = torch.channels_last
VOLUMES = torch.channels_last_3d
Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Of x (2, 4, 6, 6) and w (4, 4, 3, 3), or both with a dimension more.
OPS: dict[str, Op] = {
    "plain": lambda x, w: (F.conv2d if x.dim() == 4 else F.conv3d)(x, w),
    "strided": lambda x, w: (F.conv2d if x.dim() == 4 else F.conv3d)(x, w, stride=2, padding=1),
    "bias": lambda x, w: (F.conv2d if x.dim() == 4 else F.conv3d)(x, w, w.flatten(1).sum(1)) + 1,
    "groups": lambda x, w: (F.conv2d if x.dim() == 4 else F.conv3d)(x, w[:, :2], groups=2),
    "transposed": lambda x, w: (F.conv_transpose2d if x.dim() == 4 else F.conv_transpose3d)(x, w),
    "one": lambda x, w: F.conv1d(x.flatten(2), w.flatten(2)[..., :3]),
}


def laid(x: torch.Tensor, by_channel: bool) -> torch.Tensor:
    format = IMAGES if x.dim() == 4 else VOLUMES
    return x.contiguous(memory_format=format) if by_channel else x


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("by_channel", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", OPS)
def test_convolutions_lie_as_eager_code_has_them(
    name: str, dims: int, by_channel: tuple[bool, bool], dynamic: bool | None
) -> None:
    def strided(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = OPS[name](x, w)
        return found, found.as_strided((20,), (1,), 2)

    torch.manual_seed(0)
    x = laid(torch.randn(2, 4, *[6] * dims), by_channel[0])
    w = laid(torch.randn(4, 4, *[3] * dims), by_channel[1])
    torch._dynamo.reset()
    compiled = torch.compile(strided, backend="tenon", dynamic=dynamic)
    got, want = compiled(x.to("tenon"), w.to("tenon")), strided(x, w)
    assert got[0].stride() == want[0].stride()
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)
    # Gradients lie as their tensors' own, whatever the kernels give.
    grads = []
    for run, device in ((compiled, "tenon"), (strided, "cpu")):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, w)]
        run(*leaves)[0].square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*grads, strict=True):
        assert ours is not None and theirs is not None and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_what_pooling_left_lies_as_eager_code_has_it(dims: int, dynamic: bool | None) -> None:
    pool, unpool = (F.max_pool2d, F.max_unpool2d) if dims == 2 else (F.max_pool3d, F.max_unpool3d)

    def function(x: torch.Tensor) -> torch.Tensor:
        return unpool(*pool(x, 2, return_indices=True), 2).as_strided((30,), (1,))

    x = laid(torch.randn(3, 4, *[6] * dims), True)
    torch._dynamo.reset()
    got = torch.compile(function, backend="tenon", dynamic=dynamic)(x.to("tenon"))
    assert torch.equal(got.cpu(), function(x))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["plain", "transposed", "bias"])
@pytest.mark.parametrize("on_host", ["images", "weight"])
def test_convolutions_of_two_devices(name: str, on_host: str) -> None:
    """They are refused, as in eager code, and nothing is copied without a word."""
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3)
    if on_host == "images":
        w = w.to("tenon")
    else:
        x = x.to("tenon")
    with pytest.raises(RuntimeError):
        OPS[name](x, w)
    with pytest.raises(RuntimeError, match="tenon:0"):
        torch.compile(OPS[name], backend="tenon")(x, w)


@pytest.mark.parametrize("gradients", [False, True])
def test_logsigmoid_lies_in_order(gradients: bool) -> None:
    """As its kernel leaves it, whatever it is given."""

    def strided(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = F.logsigmoid(x.transpose(0, 1))
        return found, found.detach().as_strided((7,), (1,), 1)

    x = torch.randn(4, 5).requires_grad_(gradients)
    torch._dynamo.reset()
    there = x.detach().to("tenon").requires_grad_(gradients)
    got, want = torch.compile(strided, backend="tenon")(there), strided(x)
    assert got[0].stride() == want[0].stride()
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def turned(*sizes: int) -> torch.Tensor:
    """Numbers whose first dimension lies closest."""
    return torch.randn(*reversed(sizes)).permute(*reversed(range(len(sizes))))


aten = torch.ops.aten
# Of x (2, 4, 3), whose first dimension lies closest, and y (4, 3), in order.
LYING: dict[str, Op] = {
    "copysign": torch.copysign,
    "copysign, a number": lambda x, y: torch.copysign(x, torch.ones((), device=x.device)),
    "copysign, expanded": lambda x, y: torch.copysign(y.expand(5, 4, 3), -2.0),
    "floor_divide": torch.floor_divide,
    "div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "logical_and": torch.logical_and,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "xlog1py": lambda x, y: torch.special.xlog1py(x, y.abs()),
    "heaviside": torch.heaviside,
    "logaddexp": torch.logaddexp,
    "pow": lambda x, y: 2.0**x,
    "elu_backward": lambda x, y: aten.elu_backward(x, 1.0, 1.0, 1.0, False, y.expand(2, 4, 3)),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y.expand(2, 4, 3), -1.0, 1.0),
    **{
        # Of 16 bits, which a trace converts first: an expanded gradient is in order then.
        name: lambda x, y, name=name: getattr(aten, name)(
            y.sign().half().expand(2, 4, 3), (x * 0).half()
        )
        for name in ("mish_backward", "silu_backward", "tanh_backward", "sigmoid_backward")
    },
    "trilinear": lambda x, y: aten._trilinear(x, y, y, [], [0], [0], [], 1),
    "dropout": lambda x, y: aten.native_dropout_backward(x, x > 0, 2.0),
    "one_hot": lambda x, y: F.one_hot((x > 0).long(), 3),
    "nonzero_static": lambda x, y: torch.nonzero_static(x, size=5),
    "interpolate": lambda x, y: F.interpolate(x, scale_factor=2.0),
    "interpolate, linear": lambda x, y: F.interpolate(x, scale_factor=2.0, mode="linear"),
    "a copy of what is expanded": lambda x, y: aten._to_copy(y[:, :1].expand(4, 3)),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid().expand(2, 4, 3), reduction="none"
    ),
    "channel_shuffle": lambda x, y: aten.native_channel_shuffle(
        x[..., None].expand(2, 4, 3, 3).contiguous(memory_format=torch.channels_last), 2
    ),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "batch_norm, in use": lambda x, y: F.batch_norm(x, y[:, 0], y[:, 1].abs() + 1),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LYING)
def test_results_lie_as_eager_code_has_them(name: str, dynamic: bool | None) -> None:
    """PyTorch's references, which its traces take, have some lie otherwise than its kernels."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = LYING[name](x, y)
        return found, found.as_strided((4,), (1,), 1)

    x, y = turned(2, 4, 3), torch.randn(4, 3)
    torch._dynamo.reset()
    got, want = (
        torch.compile(function, backend="tenon", dynamic=dynamic)(x.to("tenon"), y.to("tenon")),
        function(x, y),
    )
    assert got[0].stride() == want[0].stride()
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("dims", [1, 2])
def test_images_lie_as_eager_code_has_them(dims: int, by_channel: bool, gradients: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shuffled = F.channel_shuffle(x, 3) if x.dim() == 4 else x
        return F.batch_norm(x * 2, None, None, training=True), shuffled * 2

    x = turned(2, 6, *[3] * dims)
    x = (laid(x, by_channel) if dims == 2 else x).requires_grad_(gradients)
    there = x.detach().to("tenon").requires_grad_(gradients)
    torch._dynamo.reset()
    got, want = torch.compile(function, backend="tenon")(there), function(x)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True])
def test_cells_lie_as_eager_code_has_them(dynamic: bool | None) -> None:
    """The CPU has no kernel of a cell: the device's eager code says how it lies."""

    def cell(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = aten._thnn_fused_lstm_cell(*given)
        return found

    bias = torch.randn(8)
    host = torch.randn(2, 8), turned(2, 8), torch.randn(2, 2), bias, bias * 2
    given = [x.to("tenon") for x in host]
    torch._dynamo.reset()
    got, want = torch.compile(cell, backend="tenon", dynamic=dynamic)(*given), cell(*given)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padded_volumes_lie_as_eager_code_has_them(mode: str) -> None:
    volumes = torch.randn(2, 3, 4, 5, 4).to(memory_format=torch.channels_last_3d)
    one = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        return [F.pad(x, [1, 2] * 3, mode=mode) for x in given]

    torch._dynamo.reset()
    got = torch.compile(function, backend="tenon")(volumes.to("tenon"), one.to("tenon"))
    for ours, theirs in zip(got, function(volumes, one), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)
    torch._dynamo.reset()


# Of a gradient g and an input x (2, 4, 6, 8).
GRADIENTS: dict[str, Op] = {
    "glu": lambda g, x: aten.glu_backward(g[:, :2], x, 1),
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardswish": aten.hardswish_backward,
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "log_softmax": lambda g, x: aten._log_softmax_backward_data(g, x, 1, torch.float32),
    "softmax": lambda g, x: aten._softmax_backward_data(g, x, 1, torch.float32),
    "reflection": lambda g, x: aten.reflection_pad2d_backward(F.pad(g, [1] * 4), x, [1] * 4),
    "replication": lambda g, x: aten.replication_pad2d_backward(F.pad(g, [1] * 4), x, [1] * 4),
    "batch_norm": lambda g, x: aten.native_batch_norm_backward(
        g, x, None, None, None, x.mean((0, 2, 3)), x.var((0, 2, 3)), True, 1e-5, [True] * 3
    )[0],
    "cross entropy": lambda g, x: aten.binary_cross_entropy_backward(g, x, x * x, None, 0),
    "mse_loss": lambda g, x: aten.mse_loss_backward(g, x, x * x, 0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_lie_as_eager_code_has_them(name: str) -> None:
    """As the input or in order, however the gradient lies that comes in."""

    def function(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = GRADIENTS[name](g, x)
        return found, found.as_strided((40,), (3,), 1)

    g, x = torch.rand(2, 4, 6, 8), torch.rand(2, 4, 6, 8)
    across = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (g, x)]
    for given in ((g, laid(x, True)), (laid(g, True), x), (laid(g, True), laid(x, True)), across):
        torch._dynamo.reset()
        got = torch.compile(function, backend="tenon")(*(t.to("tenon") for t in given))
        want = function(*given)
        assert got[0].stride() == want[0].stride()
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
