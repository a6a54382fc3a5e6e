"""Exported programs: what they give, what they take, and what they refuse."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.exporting.errors import ExportError
from torch_tenon.runtime.interface import MAGIC
from torch_tenon.runtime.library import ProgramError


def exported(
    folder: Path, model: nn.Module, *args: Any, name: str = "model.tenon", **keywords: Any
) -> Any:
    """The loaded program of a model. It is for this processor alone, which is made sooner."""
    keywords = {"cpu": "native"} | keywords
    torch_tenon.export(model.eval(), args, folder / name, **keywords)
    return torch_tenon.load(folder / name)


class Mixed(nn.Module):
    """A layer of each kind that a Transformer has, and results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: Tensor, shift: Tensor) -> dict[str, Any]:
        y = x + self.two(F.gelu(self.one(self.norm(x)))) * shift
        return {"y": y, "mean": y.mean(0), "seven": 7, "nothing": None, "x": x, "turned": y.t()}


@pytest.mark.slow
def test_results_are_the_models(tmp_path: Path) -> None:
    model = Mixed()
    x, shift = torch.randn(5, 24), torch.tensor(0.5)
    program = exported(tmp_path, model, x, shift)
    expected = model(x, shift)
    y, mean, seven, nothing, same, turned = program(x, shift)
    assert (seven, nothing) == (7, None)
    for got, name in zip((y, mean, same, turned), ("y", "mean", "x", "turned"), strict=True):
        torch.testing.assert_close(got, expected[name])
    assert [o.name for o in program.forward.outputs] == ["y", "mean", "x", "turned"]
    assert program.forward.inputs[0].sizes == (5, 24)


def test_arrays_give_arrays(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    program = exported(tmp_path, model, torch.randn(4, 6))
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    got = program(x)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, model(torch.from_numpy(x)).detach().numpy(), 1e-5, 1e-6)
    np.testing.assert_array_equal(program(x[:, ::-1])[0], program(x[:, ::-1].copy())[0])


@pytest.mark.slow
def test_sizes_within_their_bounds(tmp_path: Path) -> None:
    model = Mixed()
    batch = Dim("batch", min=2, max=64)
    program = exported(
        tmp_path, model, torch.randn(5, 24), torch.tensor(0.5), dynamic_shapes=({0: batch}, None)
    )
    for n in (2, 17, 64):
        x, shift = torch.randn(n, 24), torch.randn(())
        torch.testing.assert_close(program(x, shift)[0], model(x, shift)["y"])
    assert program.forward.inputs[0].sizes == ((2, 64), 24)
    for n in (0, 1, 65):
        with pytest.raises(ProgramError, match=f"'x' has size {n} at dimension 0.*64"):
            program(torch.randn(n, 24), torch.tensor(0.5))
    with pytest.raises(ProgramError, match=r"'x' has size 25 at dimension 1.*24"):
        program(torch.randn(5, 25), torch.tensor(0.5))
    with pytest.raises(ProgramError, match="float32"):
        program(torch.randn(5, 24).double(), torch.tensor(0.5))


class Pairs(nn.Module):
    """Takes rows by twos: what the export was told says nothing of that."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 2, 3).sum(1) + y.sum(0)


@pytest.mark.slow
def test_conditions_that_the_model_sets(tmp_path: Path) -> None:
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO})
    program = exported(
        tmp_path, Pairs(), torch.randn(8, 3), torch.randn(5, 3), dynamic_shapes=shapes
    )
    x, y = torch.randn(12, 3), torch.randn(7, 3)
    torch.testing.assert_close(program(x, y), Pairs()(x, y))
    with pytest.raises(ProgramError, match=r"% 6\) == 0, and not for .* = 9"):
        program(torch.randn(9, 3), y)


class Equal(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def test_sizes_that_are_equal(tmp_path: Path) -> None:
    rows = Dim("rows", min=2, max=100)
    program = exported(
        tmp_path,
        Equal(),
        torch.randn(4, 2),
        torch.randn(4, 2),
        dynamic_shapes=({0: rows}, {0: rows}),
    )
    torch.testing.assert_close(program(torch.ones(9, 2), torch.ones(9, 2)), torch.full((9, 2), 2.0))
    with pytest.raises(ProgramError, match="'y' has size 8 at dimension 0, where 9"):
        program(torch.ones(9, 2), torch.ones(8, 2))


class Backwards(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.flip(0)[None]
        return F.scaled_dot_product_attention(y, y, y)[0]


def test_a_composition_of_what_is_turned(tmp_path: Path) -> None:
    shapes = ({0: Dim.AUTO},)
    program = exported(tmp_path, Backwards(), torch.randn(6, 4), dynamic_shapes=shapes)
    for n in (2, 6, 9):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), Backwards()(x))


class Counter(nn.Module):
    """What it has seen, in a ring; and a count that begins with three."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 3))
        self.register_buffer("count", torch.tensor(3), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.index_copy_(0, self.count.remainder(4).reshape(1), x)
        self.count += 1
        return self.seen.sum(0), self.count.clone()


class Checked(nn.Module):
    """Values that are checked by the model itself, by an op and by a loss."""

    def forward(self, x: Tensor, classes: Tensor, chance: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "x is positive */ everywhere\n, or should be")
        torch._assert_async(x.sum() < 100)
        found = F.one_hot(classes, 5).float() @ x
        return found + F.binary_cross_entropy(chance, torch.ones_like(chance))


def test_values_are_checked(tmp_path: Path) -> None:
    x, classes, chance = torch.rand(5, 3) + 0.1, torch.tensor([1, 4, 0]), torch.rand(4)
    program = exported(tmp_path, Checked(), x, classes, chance)
    torch.testing.assert_close(program(x, classes, chance), Checked()(x, classes, chance))
    for wrong, text in (
        ((x - 1, classes, chance), r"x is positive \* / everywhere , or should be"),
        ((x + 100, classes, chance), "Expected Tensor with single nonzero value"),
        ((x, classes + 1, chance), "Class values must be smaller"),
        ((x, classes - 1, chance), "Class values must be non-negative"),
        ((x, classes, chance + 1), "all elements of input should be between 0 and 1"),
    ):
        with pytest.raises(RuntimeError):
            Checked()(*wrong)
        with pytest.raises(ProgramError, match=f"a value is not what it has to be .*{text}"):
            program(*wrong)
        torch.testing.assert_close(program(x, classes, chance), Checked()(x, classes, chance))


class AllChecked(nn.Module):
    """Truth values that are checked the way PyTorch's documents have it."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0, lambda: "x is positive")
        return x * 2


@pytest.mark.parametrize("sizes", ["fixed", "any"])
def test_truth_values_are_checked(tmp_path: Path, sizes: str) -> None:
    """Of fixed sizes too, where nothing is left to check of sizes."""
    dynamic = None if sizes == "fixed" else ({0: torch.export.Dim("n", min=2, max=64)},)
    x = torch.rand(5) + 0.1
    torch_tenon.export(AllChecked().eval(), (x,), tmp_path / "m.tenon", dynamic_shapes=dynamic)
    program = torch_tenon.load(tmp_path / "m.tenon")
    torch.testing.assert_close(program(x), x * 2)
    with pytest.raises(ProgramError, match="a value is not what it has to be"):
        program(x - 1)


class NumbersChecked(nn.Module):
    """Numbers that are taken out of tensors and checked, each in another way."""

    def forward(self, whole: Tensor, real: Tensor, many: Tensor, x: Tensor) -> Tensor:
        n, (first, second) = whole.item(), many.tolist()
        torch._check(n > 2, lambda: "whole")
        torch._check(n * 2 + 1 <= 41)
        torch._check(n % 3 != 1)
        torch._check(real.item() < 2.5)
        torch._check(first <= second)
        torch._check(second < x.shape[0])
        return x * 2


@pytest.mark.parametrize("device", ["cpu", "tenon"])
@pytest.mark.parametrize("sizes", ["fixed", "any"])
def test_numbers_of_tensors_are_checked(tmp_path: Path, sizes: str, device: str) -> None:
    """They once were not, where all sizes are fixed."""
    model = NumbersChecked().eval()
    dynamic = None if sizes == "fixed" else (None, None, None, {0: torch.export.Dim("n", max=64)})
    right = {
        "whole": torch.tensor([5], dtype=torch.int16),
        "real": torch.tensor(2.25),
        "many": torch.tensor([1, 3]),
        "x": torch.rand(5),
    }
    given = tuple(t.to(device) for t in right.values())
    torch_tenon.export(model, given, tmp_path / "m.tenon", dynamic_shapes=dynamic)
    program = torch_tenon.load(tmp_path / "m.tenon")
    torch.testing.assert_close(program(*right.values()), model(*right.values()))
    for wrong in (
        *({"whole": torch.tensor([n], dtype=torch.int16)} for n in (2, 21, 7, -300)),
        *({"real": torch.tensor(x)} for x in (2.5, math.inf, math.nan)),
        *({"many": torch.tensor(pair)} for pair in ([4, 3], [0, 5])),
    ):
        with pytest.raises(RuntimeError):
            model(*(right | wrong).values())
        with pytest.raises(ProgramError, match="a value is not what it has to be"):
            program(*(right | wrong).values())
    torch.testing.assert_close(program(*right.values()), model(*right.values()))


class SquareChecked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.max().item() ** 2 > 1)
        return x + 1


def test_a_check_that_no_program_makes(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"the model checks .*, which a program cannot"):
        torch_tenon.export(SquareChecked().eval(), (torch.arange(9),), tmp_path / "m.tenon")


def test_buffers_are_state(tmp_path: Path) -> None:
    model = Counter()
    program = exported(tmp_path, model, torch.randn(1, 3))
    for _ in range(2):
        reference = Counter()
        for _ in range(6):
            x = torch.randn(1, 3)
            for got, expected in zip(program(x), reference(x), strict=True):
                torch.testing.assert_close(got, expected)
        program.reset()
    assert model.count == 3  # the model stays as it was


class Decoder(nn.Module):
    """A prompt fills the cache, a token adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.register_buffer("cache", torch.zeros(16, 8), persistent=False)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        self.cache.index_copy_(0, places, self.words(ids))
        return self.cache.sum(0)


def test_state_after_a_call_that_failed(tmp_path: Path) -> None:
    """What the steps behind a check that failed leave in it is no number of the model's."""
    model = Decoder()
    words, places = torch.tensor([3, 49]), torch.tensor([0, 15])
    program = exported(tmp_path, model, words, places)
    for _ in range(2):
        torch.testing.assert_close(program(words, places), model(words, places))
        with pytest.raises(ProgramError, match="size 3"):
            program(torch.arange(3), places)  # before anything runs
        torch.testing.assert_close(program(words, places), model(words, places))
        with pytest.raises(ValueError, match="out of range"):
            program(words + 1, places)
        with pytest.raises(ProgramError, match=r"a call of it failed.*reset it first"):
            program(words, places)
        program.reset()
        model.cache.zero_()


@pytest.mark.slow
def test_methods_share_weights_and_state(tmp_path: Path) -> None:
    model = Decoder().eval()
    prompt, token = (torch.arange(5), torch.arange(5)), (torch.tensor([7]), torch.tensor([5]))
    programs = {
        "prefill": torch.export.export(model, prompt),
        "decode": torch.export.export(model, token),
    }
    made = torch_tenon.export(programs, path=tmp_path / "two.tenon", cpu="native")
    assert made.weight_bytes == 50 * 8 * 4
    program = torch_tenon.load(tmp_path / "two.tenon")
    assert list(program.methods) == ["prefill", "decode"]
    reference = Decoder()
    reference.load_state_dict(model.state_dict())
    torch.testing.assert_close(program.prefill(*prompt), reference(*prompt))
    torch.testing.assert_close(program.decode(*token), reference(*token))
    with pytest.raises(TypeError, match="prefill, decode"):
        program(*token)
    with pytest.raises(AttributeError, match="prefill, decode"):
        _ = program.train


class Tied(nn.Module):
    """Weights of every layout, one of them under two names, and one that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.words.weight
        self.turned = nn.Parameter(torch.randn(8, 6).t())
        self.part = nn.Parameter(torch.randn(40)[3:11])
        self.wide = nn.Parameter(torch.randn(1, 8).expand(6, 8))
        self.unused = nn.Parameter(torch.randn(1000))
        self.channels = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(ids) * self.part + self.turned.t().sum(1) + self.wide[0]
        return self.head(x), self.channels.flatten(1)


@pytest.mark.slow
def test_weights_of_any_layout(tmp_path: Path) -> None:
    model = Tied().eval()
    program = exported(tmp_path, model, torch.arange(6))
    for got, expected in zip(program(torch.arange(6)), model(torch.arange(6)), strict=True):
        torch.testing.assert_close(got, expected)
    assert sum(w[0].startswith(("words", "head")) for w in program.head.weights) == 1
    assert not any(w[0] == "unused" for w in program.head.weights)


@pytest.mark.slow
def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    model = nn.Linear(5, 4)
    x = torch.randn(2, 5)
    program = exported(tmp_path, model, x, weights="apart")
    torch.testing.assert_close(program(x), model(x))
    kept = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(kept["weight"], model.weight.detach())
    # Another program of the same weights has no file of its own.
    file = tmp_path / "model.safetensors"
    other = exported(tmp_path, model, torch.randn(3, 5), name="other.tenon", weights=file)
    torch.testing.assert_close(other(torch.ones(3, 5)), model(torch.ones(3, 5)))
    with pytest.raises(ExportError, match="weight"):
        exported(tmp_path, nn.Linear(5, 4), x, name="third.tenon", weights=file)
    bytes_of = bytearray(file.read_bytes())
    bytes_of[-1] ^= 1
    file.write_bytes(bytes_of)
    with pytest.raises(ProgramError, match=r"checksum|damaged|weights"):
        torch_tenon.load(tmp_path / "model.tenon")
    file.unlink()
    with pytest.raises((ProgramError, OSError), match="safetensors"):
        torch_tenon.load(tmp_path / "model.tenon")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.SiLU()).to(dtype)
    x = torch.randn(3, 16, dtype=dtype)
    tolerance = 4 * torch.finfo(dtype).eps
    got = exported(tmp_path, model, x)(x)
    torch.testing.assert_close(got, model(x), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_threads_run_one_program(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).eval()
    program = exported(tmp_path, model, torch.randn(32, 64))
    given = [torch.randn(32, 64) for _ in range(8)]
    with ThreadPoolExecutor(len(given)) as pool:
        found = list(pool.map(lambda x: [program(x) for _ in range(20)][-1], given))
    for got, x in zip(found, given, strict=True):
        torch.testing.assert_close(got, model(x))


@pytest.mark.slow
def test_without_pytorch(tmp_path: Path) -> None:
    model = Mixed()
    torch_tenon.export(model.eval(), (torch.randn(5, 24), torch.tensor(0.5)), tmp_path / "m.tenon")
    x = torch.randn(5, 24)
    np.save(tmp_path / "x.npy", x.numpy())
    script = """
        import sys
        sys.modules["torch"] = None  # importing it fails
        import numpy as np
        import torch_tenon
        program = torch_tenon.load(sys.argv[1] + "/m.tenon", threads=1)
        y = program(np.load(sys.argv[1] + "/x.npy"), np.float32(0.5))[0]
        np.save(sys.argv[1] + "/y.npy", y)
        assert sys.modules["torch"] is None
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    subprocess.run(command, check=True)
    got = torch.from_numpy(np.load(tmp_path / "y.npy"))
    torch.testing.assert_close(got, model(x, torch.tensor(0.5))["y"].detach())


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.forward = lambda x: torch.linalg.svdvals(x)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x * 2


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x * 2, x.shape[0]


@pytest.mark.parametrize(
    ("model", "words", "keywords"),
    [
        (Sorted(), "svd", {}),
        (Noisy(), r"random numbers:\n  aten\.rand_like\.default, .*forward\n.* as an input", {}),
        (Writes(), "writes its input", {}),
        (Sizes(), "is a size", {"dynamic_shapes": ({0: Dim.AUTO},)}),
    ],
)
def test_what_no_program_can_be(
    tmp_path: Path, model: nn.Module, words: str, keywords: dict[str, Any]
) -> None:
    with pytest.raises(ExportError, match=words):
        exported(tmp_path, model, torch.randn(4, 4), **keywords)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_arguments_that_are_wrong(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 2).eval(), torch.randn(1, 2)
    path = tmp_path / "model.tenon"
    with pytest.raises(ValueError, match="x86-64-v9"):
        torch_tenon.export(model, (x,), path, cpu="x86-64-v9")
    with pytest.raises(ValueError, match="vax"):
        torch_tenon.export(model, (x,), path, machine="vax")
    with pytest.raises(TypeError, match="args"):
        torch_tenon.export(model, path=path)
    with pytest.raises(ValueError, match="safetensors"):
        torch_tenon.export(model, (x,), path, weights="beside")
    with pytest.raises(NotImplementedError, match="npu"):
        torch_tenon.export(model, (x,), path, target="npu")
    program = exported(tmp_path, model, x)
    with pytest.raises(TypeError, match="lacks"):
        program()
    with pytest.raises(TypeError, match="takes 1 input"):
        program(x, x)
    with pytest.raises(TypeError, match="none of its inputs"):
        program(x, z=x)


def test_bytes_in_the_other_order(tmp_path: Path) -> None:
    program = exported(tmp_path, nn.Linear(3, 2), torch.randn(4, 3))
    x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    expected = program(x)
    for order in "<>":
        np.testing.assert_array_equal(program(x.astype(f"{order}f4")), expected)
        np.testing.assert_array_equal(program(np.asfortranarray(x.astype(f"{order}f4"))), expected)


def test_a_program_that_is_closed(tmp_path: Path) -> None:
    program = exported(tmp_path, nn.ReLU(), torch.randn(3))
    method = program.forward
    with program:
        assert method(torch.tensor([1.0, -1.0, 2.0])).tolist() == [1, 0, 2]
    for call in (lambda: method(torch.randn(3)), program.reset, program.report):
        with pytest.raises(ProgramError, match=r"model\.tenon is closed"):
            call()
    program.close()


@pytest.mark.parametrize(
    "head",
    [
        # Texts of negative lengths, which begin again and again.
        b"\x07\x01\x00\x07\x07\x00\x05\x82\x7f",
        b"\x00\x01\x06\xff\xff\x05\x03\x82\x7f\t\xff",
        b"\xff" * 100_000,
    ],
)
def test_a_head_that_is_none_is_refused(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "damaged.tenon"
    path.write_bytes(MAGIC + len(head).to_bytes(8, "little") + bytes(8) + head)
    with pytest.raises(ProgramError, match="is damaged: its head is no head"):
        torch_tenon.load(path)


def test_damage_is_told_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.tenon"
    torch_tenon.export(nn.ReLU(), (torch.randn(3),), path, cpu="native")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ProgramError, match=f"{path}: .* damaged"):
        torch_tenon.load(path)


@pytest.mark.parametrize("facts", [b"[" * 100_000, b"5", b"{}"])
def test_facts_that_are_none_are_refused(tmp_path: Path, facts: bytes) -> None:
    torch_tenon.export(nn.ReLU(), (torch.randn(3),), tmp_path / "model.tenon", cpu="native")
    whole = (tmp_path / "model.tenon").read_bytes()
    start = whole.index(b'{"results"') if b'{"results"' in whole else whole.index(b'{"')
    end = start + json.JSONDecoder().raw_decode(whole[start:].decode("latin-1"))[1]
    length = _number(end - start)
    assert whole[start - len(length) : start] == length
    changed = whole[32 : start - len(length)] + _number(len(facts)) + facts + whole[end:]
    path = tmp_path / "damaged.tenon"
    path.write_bytes(whole[:16] + len(changed).to_bytes(8, "little") + whole[24:32] + changed)
    with pytest.raises(ProgramError, match="is damaged: its head is no head"):
        torch_tenon.load(path)


def _number(x: int) -> bytes:
    left, found = x << 1, []
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def test_a_file_is_what_it_was(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2).eval(), torch.randn(1, 3)
    program = exported(tmp_path, model, x)
    path = tmp_path / "model.tenon"
    from torch_tenon.runtime.program import digest_of

    torch.testing.assert_close(torch_tenon.load(path, digest=digest_of(path))(x), program(x))
    with pytest.raises(ProgramError, match="digest"):
        torch_tenon.load(path, digest="0" * 64)
    data = bytearray(path.read_bytes())
    other = tmp_path / "other.tenon"
    generator = np.random.default_rng(1)
    # The head whole, and some of each of the rest.
    places = [*range(200), *generator.integers(200, len(data), 100), len(data) - 1]
    for at in places:
        changed = bytearray(data)
        changed[at] ^= int(generator.integers(1, 256))
        other.write_bytes(changed)
        with pytest.raises((ProgramError, ValueError, MemoryError)):
            torch_tenon.load(other)
    for length in (0, 10, 31, 100, len(data) - 1):
        other.write_bytes(data[:length])
        with pytest.raises((ProgramError, ValueError)):
            torch_tenon.load(other)
