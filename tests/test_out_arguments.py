"""`out=`: what a kernel does to it on the way, and what it carries beside its numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import executing, same_on_both

from tests.ops.lowerings.by_plan import same_by_plans

aten = torch.ops.aten

MODES = ("auto", "reference", "compiled")


def losses(device: torch.device) -> dict[str, tuple[Callable[..., torch.Tensor], tuple]]:
    x = torch.tensor([0.1, 0.4, 0.7, 0.2], device=device)
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0], device=device)
    return {
        "mse": (aten.mse_loss.out, (x, x + 1)),
        "huber": (aten.huber_loss.out, (x, x + 1)),
        "smooth_l1": (aten.smooth_l1_loss.out, (x, x + 1)),
        "soft_margin": (aten.soft_margin_loss.out, (x, sign)),
        "binary_cross_entropy": (aten.binary_cross_entropy.out, (x, x.flip(0), None)),
        "multi_margin": (aten.multi_margin_loss.out, (x, torch.tensor(2, device=device), 1, 1.0)),
        "multilabel_margin": (
            aten.multilabel_margin_loss.out,
            (x, torch.tensor([3, 0, -1, 1], device=device)),
        ),
    }


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", losses(torch.device("cpu")))
def test_an_out_that_is_larger_on_the_way(loss: str, mode: str) -> None:
    """Losses first write what they reduce into `out`, and then make it small."""

    def compute(device: torch.device) -> list:
        f, arguments = losses(device)[loss]
        found = []
        for reduction in (1, 2) if loss == "multi_margin" else (0, 1, 2):
            given = (
                (*arguments, None, reduction)
                if loss == "multi_margin"
                else (
                    *arguments,
                    reduction,
                )
            )
            # The second call with an `out` is recorded, the third often runs by a plan.
            for _ in range(3):
                for size in ((0,), ()):
                    out = torch.empty(size, device=device)
                    same = f(*given, out=out)
                    assert same is out
                    found += [out * 2, out]
        return found

    # (Of an empty `out` the kernel of binary_cross_entropy reduces nothing, on the CPU as well.)
    with executing(mode):
        same_on_both(compute, rtol=1e-6, atol=1e-6)


def quantizing() -> dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]]:
    """Calls that write a quantised tensor: of what they are given by tensor, and by channel."""

    def tensor(x: torch.Tensor, *value: float | int) -> torch.Tensor:
        return torch.tensor(*value, device=x.device)

    def channels(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tensor(x, [0.3, 0.7]).double(), tensor(x, [1, 2])

    return {
        "quantize_per_tensor": lambda x, q, c: aten.quantize_per_tensor.out(
            x, 0.2, 5, torch.qint8, out=q
        ),
        "quantize_per_tensor.tensor_qparams": lambda x, q, c: (
            aten.quantize_per_tensor.tensor_qparams_out(
                x, tensor(x, 0.2), tensor(x, 5), torch.qint8, out=q
            )
        ),
        "quantize_per_tensor.tensors": lambda x, q, c: aten.quantize_per_tensor.tensors_out(
            [x], tensor(x, [0.2]), tensor(x, [5]), torch.qint8, out=[q]
        ),
        "quantize_per_tensor_dynamic": lambda x, q, c: aten.quantize_per_tensor_dynamic.out(
            x, torch.qint8, False, out=q
        ),
        "_make_per_tensor": lambda x, q, c: aten._make_per_tensor_quantized_tensor.out(
            (x * 10).to(torch.int8), 0.2, 5, out=q
        ),
        "quantize_per_channel": lambda x, q, c: aten.quantize_per_channel.out(
            x, *channels(x), 0, torch.qint8, out=c
        ),
        "_make_per_channel": lambda x, q, c: aten._make_per_channel_quantized_tensor.out(
            (x * 10).to(torch.int8), *channels(x), 0, out=c
        ),
        "copy_": lambda x, q, c: q.copy_(torch.quantize_per_tensor(x, 0.2, 5, torch.qint8)),
        "copy_ from the host": lambda x, q, c: q.copy_(
            torch.quantize_per_tensor(x.cpu(), 0.2, 5, torch.qint8)
        ),
        "clone": lambda x, q, c: aten.clone.out(
            torch.quantize_per_tensor(x, 0.2, 5, torch.qint8), out=q
        ),
    }


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize("call", quantizing())
def test_a_quantised_out_has_the_scale_of_what_was_written(call: str) -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-2, 3, 6, device=device).view(2, 3)
        found: list[torch.Tensor] = []
        for _ in range(2):
            q = torch.quantize_per_tensor(x, 0.9, 1, torch.qint8)
            scales = torch.tensor([0.9, 0.8], dtype=torch.float64, device=device)
            zeros = torch.tensor([3, 4], device=device)
            c = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
            quantizing()[call](x, q, c)
            assert (q.q_scale() == 0.9) == call.endswith("per_channel")
            found += [q.int_repr(), q.dequantize(), c.int_repr(), c.dequantize()]
            found += [c.q_per_channel_scales(), c.q_per_channel_zero_points()]
            found += [torch.tensor([q.q_scale(), q.q_zero_point()], device=device)]
        return found

    same_on_both(compute)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_an_empty_quantised_tensor_is_where_the_one_that_it_is_like_is() -> None:
    def compute(device: torch.device) -> list:
        x = torch.linspace(-2, 3, 6, device=device)
        q = torch.quantize_per_tensor(x, 0.2, 5, torch.quint8)
        made = [
            torch.empty_quantized([6], q),
            torch.empty_quantized([6], q, device=device),
            torch.empty_quantized(size=[6], qtensor=q, device=None),
            aten.empty_quantized.default([6], q),
        ]
        for m in made:
            assert (m.q_scale(), m.q_zero_point(), m.dtype) == (0.2, 5, torch.quint8)
            m.copy_(q)
        return [m.dequantize() for m in made] + made[:0]

    same_on_both(compute)
    there = torch.quantize_per_tensor(torch.ones(2, device="tenon"), 0.2, 5, torch.quint8)
    assert torch.empty_quantized([2], there, device="cpu").device.type == "cpu"


def test_an_out_of_what_changes_nothing_is_written() -> None:
    """Such a result is the argument, and `out` has other memory."""

    def compute(device: torch.device) -> list[torch.Tensor]:
        def x() -> torch.Tensor:
            return torch.arange(1.0, 7, device=device).view(2, 3)

        def none(*sizes: int) -> torch.Tensor:
            return torch.ones(sizes, device=device)

        def out() -> torch.Tensor:
            return torch.zeros(2, 3, device=device)

        at = torch.zeros(0, dtype=torch.int64, device=device)
        return [
            aten.as_strided_scatter.out(x(), none(7, 0), [7, 0], [0, 0], 0, out=out()),
            aten.as_strided_scatter.out(x(), none(0), [0], [1], 3, out=out()),
            aten.slice_scatter.out(x(), none(0, 3), 0, 1, 1, 1, out=out()),
            aten.diagonal_scatter.out(x(), none(0), 3, 0, 1, out=out()),
            aten.index_put.out(x(), [at], none(0, 3), out=out()),
            aten.index_copy.out(x(), 0, at, none(0, 3), out=out()),
            aten.index_add.out(x(), 0, at, none(0, 3), out=out()),
            aten.scatter.src_out(x(), 0, at.view(0, 3), none(0, 3), out=out()),
            aten.scatter_add.out(x(), 0, at.view(0, 3), none(0, 3), out=out()),
            aten.put.out(x(), at, none(0), out=out()),
            aten.roll.out(x(), [0], [0], out=out()),
            aten.flip.out(x(), [], out=out()),
            aten.constant_pad_nd.out(x(), [0, 0], 0, out=out()),
            aten.pow.Tensor_Scalar_out(x(), 1, out=out()),
            aten.tril.out(x(), 9, out=out()),
        ]

    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            same_on_both(compute)


def test_a_range_fills_an_out_of_other_sizes() -> None:
    """An `out` with as many elements keeps its sizes."""

    def compute(device: torch.device) -> list[torch.Tensor]:
        def out(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        return [
            torch.arange(4, out=out(2, 2)),
            torch.arange(1, 13, out=out(2, 3, 2, dtype=torch.int64)),
            torch.arange(1, 7, out=out(3, 2).t()),
            torch.arange(-1, 0, out=out(dtype=torch.float64)),
            aten.arange.out(True, out=out(dtype=torch.int16)),
        ]

    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            same_on_both(compute)


def test_angles_are_computed_in_their_own_dtype() -> None:
    def compute(device: torch.device) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.int64, torch.float32, torch.float16, torch.bool):
            x = torch.tensor([-2, 1, 0], device=device).to(dtype)
            for wide in (torch.float32, torch.float64):
                found.append(torch.angle(x, out=torch.zeros(3, dtype=wide, device=device)))
        return found

    with executing("compiled"):
        for _ in range(2):
            same_on_both(compute)


LISTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "unbind": lambda x: aten.unbind_copy.int_out(x[:2], 0, out=[x[1], x[0]]),
    "split": lambda x: aten.split_copy.Tensor_out(x[:4], 2, 0, out=[x[2:4], x[:2]]),
    "sizes": lambda x: aten.split_with_sizes_copy.out(x[:3], [1, 2], 0, out=[x[1:2], x[3:5]]),
    "unsafe": lambda x: aten.unsafe_split.Tensor_out(x[1:5], 2, 0, out=[x[3:5], x[:2]]),
    "foreach": lambda x: aten._foreach_add.List_out([x[0], x[1]], [x[1], x[0]], out=[x[1], x[2]]),
    "numbers": lambda x: aten._foreach_mul.Scalar_out([x[0], x[1]], 2.0, out=[x[1], x[0]]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_written_and_read(name: str) -> None:
    """Kernels write one tensor of the list after the other, and read what they have written."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        LISTS[name](x)
        return x

    same_by_plans(compute, torch.randn(5, 3))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_the_extreme_of_nothing_with_an_out(name: str, mode: str) -> None:
    """With an `out` the CPU's kernel gives the neutral number, and raises without one."""

    def compute(device: torch.device) -> list:
        found = []
        for size in ((0,), (2, 0)):
            for _ in range(3):
                out = torch.ones((), device=device)
                getattr(aten, name).unary_out(torch.empty(size, device=device), out=out)
                found.append(out * 2)
        return found

    with executing(mode):
        same_on_both(compute)


def _images(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    at = torch.zeros((1, 2, 1, 1, 1), dtype=torch.int64, device=x.device)
    return x.view(1, 2, 2, 3, 2), x[:2].view(1, 2, 1, 1, 1), at


FLAT: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, out: aten._softmax.out(x.view(2, 12), 1, False, out=out),
    "log_softmax": lambda x, out: aten._log_softmax.out(x.view(2, 12), 0, False, out=out),
    "adaptive_max": lambda x, out: aten.adaptive_max_pool3d_backward.grad_input(
        _images(x)[1], _images(x)[0], _images(x)[2], grad_input=out
    ),
    "avg": lambda x, out: aten.avg_pool3d_backward.grad_input(
        _images(x)[1], _images(x)[0], [2, 3, 2], [2, 3, 2], [0, 0, 0], False, True, None,
        grad_input=out,
    ),
    "fractional": lambda x, out: aten.fractional_max_pool3d_backward.grad_input(
        _images(x)[1], _images(x)[0], [1, 1, 1], [1, 1, 1], _images(x)[2], grad_input=out
    ),
    "bicubic": lambda x, out: aten.upsample_bicubic2d_backward.grad_input(
        x.view(1, 2, 3, 4)[:, :, :1, :2], [1, 2], [1, 2, 3, 4], False, grad_input=out
    ),
}  # fmt: skip
SHAPES = {"softmax": (2, 12), "log_softmax": (2, 12), "bicubic": (1, 2, 3, 4)}


@pytest.mark.parametrize("mode", [*MODES, "graph"])
@pytest.mark.parametrize("name", FLAT)
def test_an_out_whose_memory_a_kernel_fills_in_order(name: str, mode: str) -> None:
    """Whatever its strides: the CPU's kernels do not ask for them, and a plan does the same."""

    def fill(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        FLAT[name](x, out)
        return out

    torch._dynamo.reset()
    run = torch.compile(fill, backend="tenon") if mode == "graph" else fill

    def compute(device: torch.device) -> list:
        found = []
        for _ in range(3):
            x = torch.arange(24.0).remainder(7).to(device)
            shape = SHAPES.get(name, (1, 2, 2, 3, 2))
            out = torch.zeros(shape[::-1], device=device).permute(*range(len(shape))[::-1])
            found.append((fill if device.type == "cpu" else run)(x, out) * 2)
        return found

    with executing("auto" if mode == "graph" else mode):
        same_on_both(compute)
