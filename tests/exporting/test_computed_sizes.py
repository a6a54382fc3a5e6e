"""Programs with sizes that are computed of run-time sizes: what a pool leaves, or what a caller
gives a multiple of."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import torch_tenon
from torch_tenon.exporting.errors import ExportError
from torch_tenon.runtime.library import ProgramError

HEIGHT, WIDTH = Dim("height", min=8, max=64), Dim("width", min=8, max=64)


def exported(folder: Path, model: Any, *args: Any, **keywords: Any) -> Any:
    torch_tenon.export(model, *args, path=folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


def pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def grid_of(x: Tensor) -> Tensor:
    rows, columns = ((n - 1) // 2 + 1 for n in x.shape[2:])
    return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))


def attended(x: Tensor) -> Tensor:
    tokens = pooled(x).flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(tokens, tokens, tokens)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "interpolate": lambda x: F.interpolate(pooled(x), size=x.shape[2:], mode="bilinear"),
    "a half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "one and a half": lambda x: F.interpolate(x, scale_factor=1.5, recompute_scale_factor=True),
    "twice": lambda x: F.interpolate(x, scale_factor=2.0, recompute_scale_factor=True),
    "rounded up": lambda x: x[..., 0] + torch.arange(math.ceil(x.shape[2] / 3)).sum(),
    "bags": lambda x: F.embedding_bag((x[0, 0].abs() * 2).long().clamp(max=4), torch.eye(5)),
    "group norm": lambda x: F.group_norm(pooled(pooled(x)), 2),
    "meshgrid": grid_of,
    "attention": attended,
    "circular": lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "circular and cut": lambda x: F.pad(x[0], (-1, 2), mode="circular"),
    "reflected": lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "a border of a number": lambda x: F.pad(x, (1, -2), value=3.0),
    "powers": lambda x: torch.vander(x[0, :, 0, 0]),
    "slopes that are random in training": lambda x: F.rrelu(x, 0.2, 0.8),
    "spread": lambda x: torch.stack(torch.std_mean(x, [2], True, True)),
    "ranks": lambda x: F.margin_ranking_loss(x, 1 - x, x.sign(), 0.5, reduction="sum"),
    "hinges": lambda x: F.hinge_embedding_loss(x, x.sign(), reduction="none"),
    "layer norm": lambda x: F.layer_norm(pooled(x).permute(0, 2, 3, 1), [4]),
}


def both(x: Tensor) -> Tensor:
    n = torch.sym_min(x.shape[2], x.shape[3])
    return x.sum((2, 3))[..., None] * torch.arange(n) / n


def filled(x: Tensor, **how: Any) -> Tensor:
    rows, columns = (-n % 8 for n in x.shape[2:])
    return F.pad(x, (columns // 2, columns - columns // 2, 0, rows), **how)


# Of sizes that no sum, product or division of the inputs' is.
COMPUTED: dict[str, Callable[[Tensor], Any]] = {
    "the less of two": both,
    "a diagonal": lambda x: x.diagonal(0, 2, 3).cumsum(-1),
    "a diagonal of a product": lambda x: (x @ x.mT[..., 1:]).diagonal(-1, 2, 3).softmax(-1),
    "thirds": lambda x: [part.mean(3) for part in x.chunk(3, 3)],
    "filled up": filled,
    "filled up by numbers": lambda x: filled((x * 9).long(), value=-7),
    "filled up by the last": lambda x: filled(x, mode="replicate"),
    "patches": lambda x: filled(x).unflatten(3, (-1, 8)).mean(-1),
    "1.7": lambda x: F.interpolate(x, scale_factor=1.7),
    "1.1 or as many": lambda x: F.interpolate(x, scale_factor=1.1),
    "2.1 or twice": lambda x: F.interpolate(x, scale_factor=(2.1, 1.05)),
    "2.1 of channels last": lambda x: F.interpolate(
        x.contiguous(memory_format=torch.channels_last), scale_factor=2.1
    ),
    "2.1 of rows": lambda x: F.interpolate(x[0], scale_factor=2.1),
    "2.1 of volumes": lambda x: F.interpolate(x[None], scale_factor=(1.0, 2.1, 2.1)),
    "the middle": lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
    "lines": lambda x: F.interpolate(x, scale_factor=1.1, mode="bilinear"),
    "lines to the corners": lambda x: F.interpolate(
        x, scale_factor=1.3, mode="bilinear", align_corners=True
    ),
    "cubic": lambda x: F.interpolate(x, scale_factor=0.7, mode="bicubic"),
    "a product of as many": lambda x: both(x) @ both(x).mT,
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ops_that_are_composed(name: str, tmp_path: Path) -> None:
    """PyTorch's code of such an op asks whether a size is 1. The bounds tell that it is not, and
    that no product of two sizes is one of them."""
    model = Function(FUNCTIONS[name]).eval()
    shapes = ({2: HEIGHT, 3: WIDTH},)
    program = exported(tmp_path, model, (torch.randn(2, 4, 20, 28),), dynamic_shapes=shapes)
    for height, width in ((20, 28), (8, 8), (17, 33), (64, 9)):
        x = torch.randn(2, 4, height, width)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", COMPUTED)
def test_sizes_that_are_computed(name: str, tmp_path: Path) -> None:
    """They were refused. PyTorch's trace takes some decisions by the example: then a program
    refuses sizes for which they are others."""
    model = Function(COMPUTED[name]).eval()
    shapes = ({2: Dim.AUTO, 3: Dim.AUTO},)
    program = exported(tmp_path, model, (torch.randn(2, 4, 20, 28),), dynamic_shapes=shapes)
    refused = 0
    for height, width in ((20, 28), (15, 30), (17, 33), (9, 9), (8, 8), (64, 9), (9, 64)):
        x = torch.randn(2, 4, height, width)
        try:
            got = program(x)
        except ProgramError as error:
            assert "was exported for sizes" in str(error)
            refused += 1
            continue
        assert_same(tree_leaves(got), tree_leaves(model(x)), rtol=1e-4, atol=1e-5)
    assert refused <= 2


def test_attention_of_patches_that_are_filled_up(tmp_path: Path) -> None:
    """How many there are is a division of the size, which its bounds tell to be none and not 1."""

    def attended(x: Tensor) -> Tensor:
        patches = F.pad(x, (0, -x.shape[2] % 8)).unflatten(2, (-1, 8)).mean(1)
        return F.scaled_dot_product_attention(patches, patches, patches)

    shapes = ({2: Dim.AUTO(min=9, max=4000)},)
    model = Function(attended).eval()
    program = exported(tmp_path, model, (torch.randn(2, 3, 100),), dynamic_shapes=shapes)
    for length in (9, 16, 17, 98, 1001):
        x = torch.randn(2, 3, length)
        torch.testing.assert_close(program(x), attended(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_borders_that_are_computed_compiled(dynamic: bool | None) -> None:
    """They ran as a call of PyTorch's kernel."""
    model = torch.compile(Function(filled), dynamic=dynamic)
    for height, width in ((20, 28), (8, 8), (9, 16), (17, 33)):
        x = torch.randn(2, 4, height, width)
        torch.testing.assert_close(model(x.to("tenon")).cpu(), filled(x))


def test_a_size_that_is_outside_of_what_was_said(tmp_path: Path) -> None:
    """The model says more of a computed size than its inputs do."""

    def some(x: Tensor) -> Tensor:
        n = torch.sym_min(x.shape[2], x.shape[3])
        torch._check(n > 9)
        return x[:, :, :n].softmax(2)

    shapes = ({2: HEIGHT, 3: WIDTH},)
    x = torch.randn(2, 4, 20, 28)
    program = exported(tmp_path, Function(some).eval(), (x,), dynamic_shapes=shapes)
    torch.testing.assert_close(program(x), some(x))
    with pytest.raises(ProgramError, match=r"it was exported for sizes .*min\("):
        program(torch.randn(2, 4, 20, 9))


class Halves(nn.Module):
    """`x` has 2n rows, `y` 3n + 1, and what is returned n and 2n, once as a product's."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = x.view(-1, 2, 4).sum(1)
        return pairs + y[1:].view(-1, 3, 4).sum(1), x.softmax(0), pairs @ y.mT


def test_multiples_of_sizes(tmp_path: Path) -> None:
    """They were refused: no input has the size itself."""
    n = Dim("n", min=2, max=50)
    shapes = ({0: 2 * n}, {0: 3 * n + 1})
    model = Halves().eval()
    given = (torch.randn(8, 4), torch.randn(13, 4))
    program = exported(tmp_path, model, given, dynamic_shapes=shapes)
    assert [x.sizes[0] for x in program.forward.inputs] == [(4, 100), (7, 151)]
    for size in (2, 3, 17, 50):
        x, y = torch.randn(2 * size, 4), torch.randn(3 * size + 1, 4)
        for got, expected in zip(program(x, y), model(x, y), strict=True):
            torch.testing.assert_close(got, expected)
    for rows, others, words in (
        (7, 10, r"where 2\*s\d+ % 2 == 0, and not for 2\*s\d+ = 7"),
        (2, 4, r"'x' has size 2 at dimension 0, where 2\*s\d+ is expected to be at least 4"),
        (102, 154, "at least 4 and at most 100"),
        (8, 14, r"'y' has size 14 at dimension 0, where 13 is expected"),
    ):
        with pytest.raises(ProgramError, match=words):
            program(torch.randn(rows, 4), torch.randn(others, 4))


def test_a_multiple_of_a_size_that_is_1(tmp_path: Path) -> None:
    n = Dim("n", min=1, max=9)
    model = Function(lambda x: x[1:].reshape(-1, 2, 4).softmax(0).amax(1)).eval()
    program = exported(tmp_path, model, (torch.randn(9, 4),), dynamic_shapes=({0: 2 * n + 1},))
    for size in (1, 2, 9):
        x = torch.randn(2 * size + 1, 4)
        torch.testing.assert_close(program(x), model(x))


def test_numbers_that_are_computed_of_sizes(tmp_path: Path) -> None:
    """Roots and divisions, which are no whole numbers."""
    model = Function(
        lambda x: x.sum(-1) / x.shape[2] ** 0.5 * (x.shape[3] / 3 + 1) - 1 / x.shape[2]
    )
    shapes = ({2: HEIGHT, 3: WIDTH},)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        x = torch.randn(2, 1, 20, 28, dtype=dtype)
        program = exported(tmp_path, model.eval(), (x,), dynamic_shapes=shapes)
        for height, width in ((20, 28), (8, 9), (63, 17)):
            x = torch.randn(2, 1, height, width, dtype=dtype)
            torch.testing.assert_close(program(x), model(x), rtol=tolerance, atol=tolerance)


def test_the_error_says_why_an_op_has_no_loops(tmp_path: Path) -> None:
    """Of attention it said that it draws random numbers."""
    model = Function(lambda x: F.scaled_dot_product_attention(*[x * 1j] * 3).real).eval()
    with pytest.raises(ExportError, match=r"scaled_dot_product_attention\.default.*: complex"):
        exported(tmp_path, model, (torch.randn(2, 3, 20, 28),), dynamic_shapes=({2: HEIGHT},))


def test_attention_without_dropout_draws_nothing(tmp_path: Path) -> None:
    """The tensors are the device's, whose graphs take a seed where an op may draw."""
    x = torch.randn(2, 3, 5, 8)
    program = exported(tmp_path, Function(attend).eval(), (x.to("tenon"),))
    torch.testing.assert_close(program(x.to("tenon")).cpu(), attend(x), rtol=1e-5, atol=1e-5)
    model = Function(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)).eval()
    with pytest.raises(ExportError, match=r"random numbers:\n +aten\.scaled_dot_product"):
        exported(tmp_path, model, (x.to("tenon"),))


def attend(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def test_an_upper_bound_that_pytorch_asks_for(tmp_path: Path) -> None:
    """`cdist` of up to 25 points is another function than of more."""
    points = Dim("points", min=2, max=25)
    model = Function(lambda x: torch.cdist(x, x)).eval()
    program = exported(tmp_path, model, (torch.randn(7, 3),), dynamic_shapes=({0: points},))
    for count in (2, 25):
        x = torch.randn(count, 3)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-3)


class Placed(nn.Module):
    """The first rows of a table, which is twice as long as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(16, 8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.table[: x.shape[0]])


def test_a_size_that_is_another_one_in_the_example(tmp_path: Path) -> None:
    """To ask whether the rows are the table turned fixed their number, where they were as many as
    its columns."""
    rows = Dim("rows", min=2, max=16)
    model = Placed().eval()
    program = exported(tmp_path, model, (torch.randn(8, 8),), dynamic_shapes=({0: rows},))
    for count in (8, 2, 5, 16):
        x = torch.randn(count, 8)
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)
