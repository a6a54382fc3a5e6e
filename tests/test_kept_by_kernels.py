"""A CPU kernel that keeps a tensor of its call: what it kept stays what it was."""

from collections.abc import Iterator

import pytest
import torch
from fresh_process import output

MODES = ("reference", "auto", "compiled")  # `turns` would load the device, and ops come before it

SIZES = (40, 25)
kept: dict[str, torch.Tensor] = {}


def keep_result(x: torch.Tensor) -> torch.Tensor:
    """With scratch tensors of the size that the result has, which die here or later."""
    scratch = torch.full_like(x, 7.0)
    kept["result"] = x * 2 + scratch * 0
    torch.empty_like(scratch).fill_(-1)
    return kept["result"]


def keep_argument(x: torch.Tensor) -> torch.Tensor:
    kept["argument"] = x
    scratch = torch.zeros_like(x)
    return x + 1 + scratch


def keep_scratch(x: torch.Tensor) -> torch.Tensor:
    """What it keeps is neither result nor argument."""
    kept["scratch"] = x * 3
    return kept["scratch"] + 1


def keep_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    kept["view"] = y[1:, ::2]
    return y


KERNELS = {
    "result": (keep_result, lambda x: x * 2),
    "argument": (keep_argument, lambda x: x),
    "scratch": (keep_scratch, lambda x: x * 3),
    "view": (keep_view, lambda x: (x * 2)[1:, ::2]),
}


def define() -> torch.library.Library:
    library = torch.library.Library("tenon_keeps", "DEF")
    for name, (kernel, _) in KERNELS.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, "CPU")
        library.impl(name, torch.empty_like, "Meta")
    return library


def check(name: str) -> None:
    """Calls the op in turns, lets its tensors die, and uses the memory again."""
    from against_cpu import assert_same
    from turns import turns

    op, (_, expected) = getattr(torch.ops.tenon_keeps, name), KERNELS[name]
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for turn in turns(5):
        x = torch.rand(SIZES)
        there = x.to("tenon") + turn
        y = op(there)
        z = y * 2
        before = z.cpu()
        found = kept.pop(name)
        assert_same(found, expected(x + turn))
        held.append((found, expected(x + turn)))
        del there, y, z
        reused = [torch.full(SIZES, float(number), device="tenon") * 1 for number in range(12)]
        for now, then in held:
            assert_same(now, then)
        assert_same(reused, [torch.full(SIZES, float(number)) for number in range(12)])
        assert before.shape == SIZES


@pytest.fixture(scope="module")
def library() -> Iterator[None]:
    defined = define()
    yield
    defined._destroy()


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_the_device_learns_of_late(name: str, mode: str) -> None:
    from against_cpu import executing

    with executing(mode):
        check(name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_kernel_that_is_recorded(mode: str) -> None:
    """Ops that were there before the device are recorded like PyTorch's own."""
    code = """
        import test_kept_by_kernels as these
        library = these.define()  # before the device looks
        import torch_tenon
        for name in these.KERNELS:
            these.check(name)
        print("right")
    """
    assert output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", TENON_EXECUTE=mode) == "right"
