"""Ops of stand-alone programs against PyTorch's CPU, on random arguments."""

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import assert_same
from standalone import Standalone
from torch.export import Dim
from torch.nn import functional

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def check(function: Callable[..., Any], *args: torch.Tensor, **how: Any) -> Standalone:
    """The function needs no call, and gives what PyTorch's CPU gives."""
    program = Standalone(Function(function), args, **how)
    assert program.calls == []
    compare(program, function, *args)
    return program


def compare(program: Standalone, function: Callable[..., Any], *args: torch.Tensor) -> None:
    """On these arguments the program gives what PyTorch's CPU gives."""
    expected = function(*args)
    each = list(expected) if isinstance(expected, tuple | list) else [expected]
    for got, one in zip(program(*args), each, strict=True):
        limit = TOLERANCE.get(one.dtype, 0)
        assert_same(got, one, rtol=limit, atol=limit)


def numbers(sizes: Any, dtype: torch.dtype) -> torch.Tensor:
    """Small numbers, of which the sum of a few is exact enough in 16 bits."""
    if dtype.is_floating_point:
        return (torch.randn(sizes) / 2).to(dtype)
    return torch.randint(-4, 5, sizes, dtype=dtype)


def drawn_convolution(seed: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A convolution, and images, weights and perhaps a bias for it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    rank = draw.choice((1, 2, 2, 2, 3))
    dtype = draw.choice((torch.float32,) * 5 + (torch.float64, torch.bfloat16, torch.float16))
    transposed = draw.random() < 0.3
    groups = draw.choice((1, 1, 1, 2, 3))
    ins, outs = draw.choice((1, 2, 5, 16)), draw.choice((1, 3, 4, 17))
    if draw.random() < 0.25:  # depthwise
        groups, ins, outs = draw.choice((4, 6)), 1, draw.choice((1, 2))
    kernel = [draw.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    stride = [draw.choice((1, 1, 2, 3)) for _ in range(rank)]
    dilation = [draw.choice((1, 1, 2)) for _ in range(rank)]
    padding = [draw.randrange(k) for k in kernel]
    long = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    sizes = [n + draw.choice((0, 1, 4, 9, 20 if rank < 3 else 2)) for n in long]
    how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    weights = numbers((groups * outs, ins, *kernel), dtype)
    if transposed:
        weights = numbers((groups * ins, outs, *kernel), dtype)
        how["output_padding"] = [
            draw.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)
        ]
    name = f"conv{'_transpose' if transposed else ''}{rank}d"
    images = numbers((draw.choice((1, 2)), groups * ins, *sizes), dtype)
    if rank == 2 and draw.random() < 0.2:
        images = images.contiguous(memory_format=torch.channels_last)
    args = [images, weights]
    if draw.random() < 0.7:
        args.append(numbers(groups * outs, dtype))
    function = getattr(functional, name)
    return lambda *given: function(*given, groups=groups, **how), args


@pytest.mark.parametrize("first", [0, 6, 12])
def test_convolutions(first: int) -> None:
    """Six of them in one program, which takes less time than six programs."""
    drawn = [drawn_convolution(first + k) for k in range(6)]

    def every(*args: torch.Tensor) -> list[torch.Tensor]:
        left = list(args)
        return [f(*[left.pop(0) for _ in given]) for f, given in drawn]

    check(every, *[x for _, given in drawn for x in given])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.float64])
def test_products_of_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y, c = numbers((5, 7), dtype), numbers((7, 3), dtype), numbers((5, 3), dtype)
    check(lambda x, y, c: (x @ y, torch.addmm(c, x, y, beta=2)), x, y, c)
    check(torch.bmm, numbers((2, 3, 4), dtype), numbers((2, 4, 5), dtype))
    check(
        lambda x, y: functional.conv2d(x, y),
        numbers((1, 2, 5, 5), dtype),
        numbers((3, 2, 2, 2), dtype),
    )


def test_sizes_that_are_known_at_run_time() -> None:
    """Batch and image sizes are symbols; one program serves all."""
    torch.manual_seed(0)
    weights = [torch.randn(8, 3, 3, 3) / 5, torch.randn(8, 1, 3, 3), torch.randn(6, 8, 1, 1)]
    up = torch.randn(6, 4, 2, 2) / 2

    def network(x: torch.Tensor) -> torch.Tensor:
        x = functional.conv2d(x, weights[0], padding=1, stride=2).relu()
        x = functional.conv2d(x, weights[1], padding=1, groups=8)
        x = functional.conv2d(x, weights[2])
        x = functional.conv_transpose2d(x, up, stride=2)
        return functional.adaptive_avg_pool2d(functional.max_pool2d(x, 3, 2, 1), 3)

    sizes = {0: Dim("n", min=2, max=8), 2: Dim("h", min=16), 3: Dim("w", min=16)}
    program = check(network, torch.randn(2, 3, 32, 40), dynamic_shapes=((sizes,),))
    for shape in ((3, 3, 17, 21), (2, 3, 64, 33), (5, 3, 16, 16)):
        compare(program, network, torch.randn(shape))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("causal", "mask"), [(False, None), (True, None), (False, torch.bool), (False, torch.float32)]
)
def test_attention(causal: bool, mask: torch.dtype | None) -> None:
    torch.manual_seed(0)
    for heads, dtype in ((4, torch.float32), (2, torch.float32), (4, torch.bfloat16)):
        q = torch.randn(2, 4, 7, 8).to(dtype)
        k, v = torch.randn(2, 2, heads, 7, 8).to(dtype)
        m = None if mask is None else torch.rand(2, 1, 7, 7) > 0.4
        if m is not None and mask is not torch.bool:
            m = torch.where(m, 0.0, -torch.inf).to(dtype)
        how = {"is_causal": causal, "enable_gqa": heads < 4, "scale": 0.3}

        def attend(*args: torch.Tensor, how: Any = how) -> torch.Tensor:
            return functional.scaled_dot_product_attention(*args, **how)

        check(attend, q, k, v, *([] if m is None else [m]))


@pytest.mark.slow
def test_windows_of_any_size() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 21, 20)
    x[0, 1, 4, 5] = x[0, 1, 9, 9] = torch.nan
    check(lambda x: functional.avg_pool2d(x, 10, 3, padding=4, count_include_pad=False), x)
    check(lambda x: functional.max_pool2d(x, (9, 10), 4, (3, 2), return_indices=True), x)
    check(lambda x: functional.adaptive_max_pool2d(x, 2, return_indices=True), x)
    check(lambda x: functional.adaptive_avg_pool2d(x, (3, 7)), x)
    check(lambda x: functional.avg_pool1d(x[:, :, 0], 12, 5), x)
    check(lambda x: functional.avg_pool3d(x, (2, 6, 6), 2), x)


@pytest.mark.slow
def test_layers_of_images() -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, 4, 9, 8), torch.rand(2, 5, 6, 2) * 3 - 1.5
    for mode in ("bilinear", "bicubic"):
        check(lambda x, g, m=mode: functional.grid_sample(x, g, m, align_corners=False), x, grid)

    def others(x: torch.Tensor) -> list[torch.Tensor]:
        grown = [
            functional.interpolate(x, scale_factor=1.7, mode=m) for m in ("nearest", "bicubic")
        ]
        normal = [functional.group_norm(x, 2), functional.instance_norm(x)]
        return [*grown, *normal, functional.pad(x, (1, 2, 3, 1), "reflect")]

    check(others, x)


@pytest.mark.slow
def test_sequences() -> None:
    torch.manual_seed(0)
    x, at = torch.randn(6, 5), torch.tensor([1, 0, 5, 3])
    check(lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(1)), x)
    check(lambda x, at: x.index_put((at,), x[:4] * 2, accumulate=True), x, at)
    check(lambda x, at: functional.embedding_bag(at, x, torch.tensor([0, 3]), mode="max"), x, at)


@pytest.mark.slow
def test_products_of_weights_of_few_bits() -> None:
    torch.manual_seed(0)
    w, s = torch.randint(-127, 127, (8, 32)).to(torch.int8), torch.rand(8)
    for rows in (1, 5, 12):
        x = torch.randn(rows, 32)
        check(torch._weight_int8pack_mm, x, w, s)
        check(torch._weight_int8pack_mm, x.bfloat16(), w, s.bfloat16())
    check(torch._int_mm, torch.randint(-127, 127, (32, 32)).to(torch.int8), w.t())


@pytest.mark.slow
def test_grouped_products() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    x, y, z = (torch.randn(sizes).bfloat16() for sizes in ((8, 16), (3, 16, 8), (3, 8, 16)))
    check(torch._grouped_mm, x, y, ends)
    check(torch._grouped_mm, z, x.t(), ends)
    check(torch._grouped_mm, x.t(), x + 1, ends)
    check(torch._grouped_mm, z, y)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms(dtype: torch.dtype) -> None:
    """The edges of the parts are rounded as the CPU rounds them."""
    x = torch.cat([torch.randn(500).to(dtype) * 3, torch.arange(-9, 30).to(dtype) / 10])
    x[:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    for bins, low, high in ((7, 0, 7), (30, -1.3, 2.7), (9, 0.1, 0.3), (1, -5, 5)):
        check(functools.partial(torch.histc, bins=bins, min=low, max=high), x)
    assert Standalone(Function(lambda x: torch.histc(x, 8)), (x,)).calls  # the range is data
    endless = Standalone(Function(lambda x: torch.histc(x, 8, 0, float("inf"))), (x,))
    assert endless.calls  # which PyTorch refuses


@pytest.mark.slow
def test_quantised_graphs() -> None:
    import torch.ao.quantization.fx._decomposed  # enters the ops

    torch.manual_seed(0)
    ops = torch.ops.quantized_decomposed
    x, scales, zeros = torch.randn(4, 6), torch.rand(4) / 8 + 0.01, torch.tensor([0, 3, -2, 1])
    byte = (-128, 127, torch.int8)

    def by_tensor(x: torch.Tensor) -> torch.Tensor:
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.03, 2, *byte), 0.03, 2, *byte)

    def by_channel(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        y = ops.quantize_per_channel(x, scales, zeros, 0, *byte)
        return ops.dequantize_per_channel(y, scales, zeros, 0, *byte)

    def by_values(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        y = ops.quantize_per_tensor.tensor(x, scales[0], zeros[1], *byte)
        return ops.dequantize_per_tensor.tensor(y, scales[0], zeros[1], *byte)

    check(by_tensor, x)
    check(by_channel, x, scales, zeros)
    check(by_values, x, scales, zeros)
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.03, 2, -128, 127), x)
    check(
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -128, 127),
        *(x, scales, zeros.int()),
    )
