"""What multiplies in place of a program's own code: a library that a load asks for."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import torch_tenon
from torch_tenon.cli import app
from torch_tenon.runtime.products import Products

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "torch_tenon" / "targets" / "cpu" / "templates"
HAS_ONEDNN = Products("onednn")
needs_onednn = pytest.mark.skipif(
    HAS_ONEDNN.table is None, reason=f"no oneDNN: {HAS_ONEDNN.why} (apt install libdnnl-dev)"
)
HAS_ONEDNN.close()
HAS_BFLOAT16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Builds the library of products.c, with what is defined in it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("products")

    def build(*defined: str) -> str:
        made = folder / f"lib{'_'.join(['products', *defined])}.so"
        source = Path(__file__).with_name("products.c")
        words = [*(f"-D{name}" for name in defined), f"-I{ROOT / 'include'}", f"-I{TEMPLATES}"]
        if not made.exists():
            command = [compiler, "-O1", "-shared", "-fPIC", "-fvisibility=hidden", *words]
            subprocess.run([*command, str(source), "-o", str(made)], check=True)
        return str(made)

    return build


def layers(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 64)).to(dtype).eval()


def exported(folder: Path, model: nn.Module, *args: Tensor, **keywords: Any) -> Path:
    path = folder / "model.tenon"
    torch_tenon.export(model, args, path, **{"cpu": "native"} | keywords)
    return path


def test_its_own_code_multiplies_where_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENON_PRODUCTS", raising=False)
    path = exported(tmp_path, layers(), torch.randn(5, 48))
    for products in (None, "own"):
        with torch_tenon.load(path, products=products) as program:
            program(torch.randn(5, 48))
            assert program.report()["products"] is None


@pytest.mark.parametrize("asked", ["missing", "no_library", "another version", "refuses"])
def test_its_own_code_multiplies_where_the_library_does_not(
    tmp_path: Path, built: Callable[..., str], asked: str
) -> None:
    other = tmp_path / "libother.so"
    shutil.copy(built(), other)
    library, said = {
        "missing": (str(tmp_path / "libnone.so"), "libnone.so"),
        "no_library": ("libc.so.6", "tenon_open_products"),
        "another version": (built("OTHER_VERSION"), "it is for another version"),
        "refuses": (built("REFUSES"), {"done": 0, "refused": 4}),
    }[asked]
    x = torch.randn(5, 48)
    path = exported(tmp_path, layers(), x)
    expected = torch_tenon.load(path)(x)
    program = torch_tenon.load(path, products=library)
    for _ in range(2):
        assert torch.equal(program(x), expected)
    found = program.report()["products"]
    assert found == said if isinstance(said, dict) else said in found


@pytest.mark.parametrize("threads", [1, 3])
def test_a_library_multiplies(
    tmp_path: Path, built: Callable[..., str], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    model, x = layers(), torch.randn(5, 48)
    path = exported(tmp_path, model, x)
    monkeypatch.setenv("TENON_PRODUCTS", built())
    program = torch_tenon.load(path, threads=threads)
    torch.testing.assert_close(program(x), model(x))
    assert program.report()["products"] == {"done": 2, "refused": 0}
    closed = ctypes.c_int.in_dll(ctypes.CDLL(built()), "closed")
    before = closed.value
    program.close()
    program.close()
    assert closed.value == before + 1
    # What a load says goes before what the variable does.
    assert torch_tenon.load(path, products="own").report()["products"] is None


class Images(nn.Module):
    """Convolutions whose images have few channels, in what oneDNN does and what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 40, 7, stride=2, padding=3)
        self.apart = nn.Conv2d(3, 16, 3, padding=2, dilation=2)
        self.uneven = nn.Conv2d(3, 33, (3, 5), stride=(1, 3), padding=(0, 4))
        self.wide = nn.Conv2d(40, 32, 3, padding=1)
        self.one = nn.Conv2d(3, 64, 1)
        self.norm = nn.BatchNorm2d(40)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.norm(self.first(x)).relu()
        apart = self.apart(x)
        return (
            *(self.wide(first) + 1, first.mean((2, 3)), apart, apart * 2),
            *(self.uneven(x).sigmoid(), self.one(x)),
        )


@needs_onednn
@pytest.mark.parametrize("threads", [1, 3])
def test_convolutions_by_onednn(tmp_path: Path, threads: int) -> None:
    torch.manual_seed(0)
    model = Images().eval()
    batch, height = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("height", min=16)
    x = torch.randn(2, 3, 40, 37)
    path = exported(tmp_path, model, x, dynamic_shapes=({0: batch, 2: height},))
    program = torch_tenon.load(path, threads=threads, products="onednn")
    for sizes in ((2, 40), (1, 16), (3, 65), (2, 40)):
        x = torch.randn(sizes[0], 3, sizes[1], 37)
        for found, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    said = program.report()["products"]
    assert said["library"].startswith("oneDNN ")
    mine = [p for p in said["products"] if p["by"] == "own code"]
    whys = {p["why"] for p in mine}
    # Of a few sizes oneDNN wants the weights in another order than they were laid out in.
    whys.discard("oneDNN has no code for it as the weights lie")
    assert whys <= {"many channels", "a kernel of one element", "small"}
    kernels = {p["what"].rpartition(" ")[2] for p in said["products"] if p not in mine}
    assert kernels == {"7x7", "3x3", "3x5"}
    # Weights are laid out once, whatever the sizes; oneDNN fills channels up with zeros.
    least = 4 * sum(c.weight.numel() for c in (model.first, model.apart, model.uneven))
    assert least <= said["laid_out"] <= 8 * least
    known = len(said["products"])
    program(torch.randn(2, 3, 40, 37))
    again = program.report()["products"]
    assert (again["laid_out"], len(again["products"])) == (said["laid_out"], known)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given, self.made = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.given(x).chunk(3, -1))
        scores = (q @ k.mT / 4).softmax(-1)
        return x + self.made((scores @ v).transpose(1, 2).flatten(2))


@needs_onednn
@pytest.mark.parametrize("threads", [1, 3])
def test_products_by_onednn(tmp_path: Path, threads: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 64))
    model = model.bfloat16().eval()
    words = torch.export.Dim("words", min=1, max=300)
    x = torch.randn(2, 33, 64).bfloat16()
    path = exported(tmp_path, model, x, dynamic_shapes=({1: words},))
    own = torch_tenon.load(path, threads=threads)
    program = torch_tenon.load(path, threads=threads, products="onednn")
    for count in (33, 1, 290, 64, 33):
        x = torch.randn(2, count, 64).bfloat16()
        expected = model.float()(x.float())
        model.bfloat16()
        off = (program(x).float() - expected).abs().max()
        # Both round to bfloat16 after every layer, and nowhere else.
        assert off <= 1.5 * (own(x).float() - expected).abs().max() + 2e-2
    said = program.report()["products"]["products"]
    if HAS_BFLOAT16:
        assert all(p["by"] != "own code" or p["why"] in ("small", "few rows") for p in said)
        assert any(" x bfloat16" in p["what"] and not p["why"] for p in said)
    else:
        assert {p["by"] for p in said} == {"own code"}
    assert sum(p["runs"] for p in said) == 6 * 5


SCRIPT = """
import json, sys, torch, torch_tenon
path, x = sys.argv[1], torch.load(sys.argv[2])
program = torch_tenon.load(path, products="onednn")
assert torch.equal(program(x), torch_tenon.load(path)(x))
print(json.dumps(program.report()["products"]))
"""


def in_a_process(path: Path, x: Tensor, **variables: str) -> Any:
    """What a process says that has these variables, and whose own code multiplies."""
    torch.save(x, given := path.with_name("x.pt"))
    command = [sys.executable, "-c", SCRIPT, str(path), str(given)]
    environment = os.environ | variables
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(said.stdout.splitlines()[-1])


@needs_onednn
def test_onednn_of_another_version_is_not_used(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    other = tmp_path / "libother.so"
    source = "const int *dnnl_version(void) { static const int is[12] = {3, 1}; return is; }"
    command = [compiler, "-shared", "-fPIC", "-xc", "-", "-o", str(other)]
    subprocess.run(command, input=source, text=True, check=True)
    x = torch.randn(64, 48)
    said = in_a_process(exported(tmp_path, layers(), x), x, LD_PRELOAD=str(other))
    assert "oneDNN is 3.1 here, and this library was built for 2." in said


@needs_onednn
def test_products_that_onednn_would_emulate_run_by_own_code(tmp_path: Path) -> None:
    x = torch.randn(64, 48).bfloat16()
    path = exported(tmp_path, layers(torch.bfloat16), x)
    said = in_a_process(path, x, ONEDNN_MAX_CPU_ISA="AVX2")
    whys = {p["why"] for p in said["products"]}
    assert whys == {"the processor does not multiply numbers of bfloat16"}


@needs_onednn
def test_several_threads_prepare_and_run_one_program(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Images().eval()
    path = exported(tmp_path, model, torch.randn(2, 3, 40, 37))
    program = torch_tenon.load(path, threads=2, products="onednn")
    inputs = [torch.randn(2, 3, 40, 37) for _ in range(4)]
    found: dict[int, tuple[Tensor, ...]] = {}
    callers = [
        threading.Thread(target=lambda k=k, x=x: found.update({k: program(x)}))
        for k, x in enumerate(inputs)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for k, x in enumerate(inputs):
        for y, expected in zip(found[k], model(x), strict=True):
            torch.testing.assert_close(y, expected, rtol=2e-5, atol=2e-5)


def test_the_command_line_says_what_multiplied(
    tmp_path: Path, built: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENON_PRODUCTS", raising=False)
    path = exported(tmp_path, layers(), torch.randn(5, 48))

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, ["run", str(path), *words])
        assert result.exit_code == 0, result.output
        return result.output

    found = json.loads(said("--json", "--products", built()))
    assert found["products"] == {"done": 2, "refused": 0}
    assert "products: own code\n" in said()
    assert "products: own code (" in said("--products", str(tmp_path / "libnone.so"))


@needs_onednn
def test_the_command_line_says_what_onednn_did(tmp_path: Path) -> None:
    path = exported(tmp_path, Images().eval(), torch.randn(2, 3, 40, 37))
    result = CliRunner().invoke(app, ["run", str(path), "--products", "onednn"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (first,) = (k for k, line in enumerate(lines) if line.startswith("  products: oneDNN "))
    listed = [line for line in lines[first + 1 :] if line.startswith("    ")]
    assert len(listed) == 5
    assert any("kernel 7x7: " in line and "own code" not in line for line in listed)
    assert any(line.endswith("kernel 1x1: own code (a kernel of one element)") for line in listed)
