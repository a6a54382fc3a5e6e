"""Exported programs that call ops: those that the runtime has, and PyTorch's."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim
from typer.testing import CliRunner

import torch_tenon
from torch_tenon.cli import app
from torch_tenon.compiler.backend import KernelFile
from torch_tenon.compiler.wire.archive import Writer
from torch_tenon.exporting.errors import ExportError
from torch_tenon.exporting.program_file import ProgramFile
from torch_tenon.runtime.library import ProgramError, library

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def exported(folder: Path, model: nn.Module, args: tuple[Any, ...], **keywords: Any) -> Any:
    """The loaded program of a model, for this processor alone."""
    keywords = {"cpu": "native", "host": "torch"} | keywords
    torch_tenon.export(model.eval(), args, folder / "model.tenon", **keywords)
    return torch_tenon.load(folder / "model.tenon")


class Solve(nn.Module):
    """Kernels before a call, between two and after them; a weight goes into one as it lies."""

    def __init__(self, n: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, 4))

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
        positive = a @ a.mT + a.shape[-1] * torch.eye(a.shape[-1])
        x = torch.linalg.solve(positive, self.weight)
        return x.relu() + self.weight, torch.fft.rfft(x * 2, dim=-1).abs()


class Views(nn.Module):
    """Parts of what calls make, turned, and a result that is one."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q, r = torch.linalg.qr(x)
        spectrum = torch.fft.fft2(x)
        return r.mT[1:], q[:, ::2] + 1, spectrum, spectrum.real[1:, 2:], torch.linalg.qr(q.mT).R


class Statistics(nn.Module):
    """Results that are kept in part, and integers beside real numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        middle, place = x.median(1)
        return middle, place, x.mode(0).values, x.kthvalue(2, dim=0).indices, x.cummax(1).values


class Wide(nn.Module):
    """Numbers of other dtypes."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        whole = (x * 10).long()
        wide = torch.linalg.eigvalsh((x @ x.mT).double())
        return torch.fft.ifft(torch.fft.fft(wide)).real.float(), whole.mode(1).values


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "solve": (Solve, (6, 6), {"linalg_solve"}),
    "views": (Views, (5, 7), {"linalg_qr"}),
    "wide": (Wide, (4, 5), {"linalg_eig", "fft", "mode"}),
    "statistics": (Statistics, (6, 9), {"mode"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_models(tmp_path: Path, name: str) -> None:
    make, sizes, calls = MODELS[name]
    model = make()
    program = exported(tmp_path, model, (torch.randn(sizes),))
    assert all(any(name in call for call in program.head.calls) for name in calls)
    for _ in range(3):
        x = torch.randn(sizes)
        with torch.no_grad():
            assert_same(program(x), model(x), rtol=1e-4, atol=1e-4)
    (array, *_) = program(x.numpy())
    np.testing.assert_allclose(array, program(x)[0].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "views"])
def test_any_sizes(tmp_path: Path, name: str) -> None:
    make, sizes, _ = MODELS[name]
    model = make()
    shapes = ({0: Dim.AUTO, 1: Dim.AUTO},) if name != "solve" else ({0: Dim.AUTO},)
    if name == "solve":  # the weight says how many rows there are
        sizes = (3, *sizes)
    program = exported(tmp_path, model, (torch.randn(sizes),), dynamic_shapes=shapes)
    for n in (2, 5, 11):
        x = torch.randn(n, *sizes[1:]) if name == "solve" else torch.randn(n + 3, n + 5)
        with torch.no_grad():
            assert_same(program(x), model(x), rtol=1e-4, atol=1e-4)


class Histogram(nn.Module):
    """A size as an argument of a call, also one below zero."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        return torch.histc(x, 4, -n, n)


def test_sizes_are_arguments(tmp_path: Path) -> None:
    shapes = ({0: Dim("n", min=2, max=100)},)
    program = exported(tmp_path, Histogram(), (torch.randn(8),), dynamic_shapes=shapes)
    for n in (3, 50):
        x = torch.randn(n) * n
        assert_same(program(x), Histogram()(x))


class Kept(nn.Module):
    """A matrix that runs change, and what a call makes of it; the call's result is kept as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("covariance", torch.eye(4))
        self.register_buffer("root", torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.covariance.mul_(0.9).add_(x.mT @ x, alpha=0.1)
        self.root.copy_(torch.linalg.cholesky(self.covariance))
        return torch.linalg.solve_triangular(self.root, x.mT, upper=False)


class Whiten(nn.Module):
    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(self.kept.root + torch.eye(4)) @ x.mT


@pytest.mark.slow
def test_methods_and_state(tmp_path: Path) -> None:
    model = Kept().eval()
    x, path = torch.randn(5, 4), tmp_path / "two.tenon"
    methods = {
        "update": torch.export.export(model, (x,)),
        "whiten": torch.export.export(Whiten(model), (x,)),
    }
    made = torch_tenon.export(methods, path=path, cpu="native", host="torch")
    assert any("cholesky" in call for call in made.calls)
    program = torch_tenon.load(path)
    for _ in range(2):
        reference = Kept()
        for _ in range(3):
            x = torch.randn(5, 4)
            assert_same(program.update(x), reference(x), rtol=1e-4, atol=1e-4)
            assert_same(program.whiten(x), Whiten(reference)(x), rtol=1e-4, atol=1e-4)
        program.reset()


@pytest.mark.slow
def test_threads_run_one_program(tmp_path: Path) -> None:
    model = Solve(24)
    program = exported(tmp_path, model, (torch.randn(24, 24),))
    given = [torch.randn(24, 24) for _ in range(8)]
    with ThreadPoolExecutor(len(given)) as pool:
        found = list(pool.map(lambda x: [program(x) for _ in range(20)][-1], given))
    for got, x in zip(found, given, strict=True):
        with torch.no_grad():
            assert_same(got, model(x), rtol=1e-4, atol=1e-4)


def test_what_the_caller_is_about_does_not_matter(tmp_path: Path) -> None:
    model = Solve()
    program = exported(tmp_path, model, (torch.randn(6, 6),))
    x = torch.randn(6, 6, requires_grad=True)
    with torch.no_grad():
        expected = model(x)
    with torch.inference_mode():
        assert_same(program(x), expected, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(program(x), expected, rtol=1e-4, atol=1e-4)
    got = program(x)
    assert not got[0].requires_grad


def test_an_error_of_a_call_is_told(tmp_path: Path) -> None:
    class Inverse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv(x)

    program = exported(tmp_path, Inverse(), (torch.eye(3),))
    with pytest.raises(ProgramError, match=r"linalg\.inv: .*singular") as told:
        program(torch.zeros(3, 3))
    assert "frame #" not in str(told.value)
    x = torch.randn(3, 3)
    assert_same(program(x), torch.linalg.inv(x), rtol=1e-4, atol=1e-4)


class Ordered(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        best, places = (x * 2).topk(2, dim=0)
        least = x.topk(1, largest=False).values
        return (
            *x.sort(0, descending=True),
            torch.argsort(x, dim=1, stable=True),
            best,
            places,
            least,
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.float64])
def test_the_runtime_sorts(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes = ({0: Dim.AUTO, 1: Dim.AUTO},)
    x = torch.randn(6, 9).to(dtype)
    program = exported(tmp_path, Ordered(), (x,), host="runtime", dynamic_shapes=shapes)
    assert program.head.calls == []
    for n, m in [(4, 9), (20, 12)]:
        # No two numbers are equal, of which anyone may be the greatest.
        x = (torch.randperm(n * m) - 20).view(n, m).to(dtype)
        assert_same(program(x), Ordered()(x))


@pytest.mark.slow
def test_without_pytorch_it_says_what_is_missing(tmp_path: Path) -> None:
    exported(tmp_path, Solve(), (torch.randn(6, 6),))
    path = tmp_path / "model.tenon"
    with pytest.raises(ProgramError, match=r"forward calls .*linalg_solve.*PyTorch"):
        library().tenon_open_program(str(path).encode(), None, byref(c_void_p()))
    script = """
        import sys
        sys.modules["torch"] = None  # importing it fails
        import torch_tenon
        try:
            torch_tenon.load(sys.argv[1])
        except torch_tenon.runtime.library.ProgramError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "calls aten::_linalg_check_errors, aten::_linalg_solve_ex of Py" in said


@pytest.mark.slow
def test_loading_it_loads_pytorch(tmp_path: Path) -> None:
    model = Solve()
    exported(tmp_path, model, (torch.randn(6, 6),))
    x = torch.randn(6, 6)
    np.save(tmp_path / "x.npy", x.numpy())
    script = """
        import sys
        import numpy as np
        import torch_tenon
        program = torch_tenon.load(sys.argv[1] + "/model.tenon")
        assert "torch" in sys.modules
        np.save(sys.argv[1] + "/y.npy", program(np.load(sys.argv[1] + "/x.npy"))[0])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True)
    got = torch.from_numpy(np.load(tmp_path / "y.npy"))
    with torch.no_grad():
        assert_same(got, model(x)[0], rtol=1e-4, atol=1e-4)


# What no program can be


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@torch.library.custom_op("tests_calls::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def negated_if_any(x: Tensor) -> Tensor:
    return -x if (x > 0).any() else x


def branches(x: Tensor) -> Tensor:
    found: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
    return found


def times(x: Tensor) -> Any:
    return torch._higher_order_ops.map(lambda row: row.sin().sum(), x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.nonzero, r"aten\.nonzero\.default gives a tensor whose sizes depend on .*forward"),
        (lambda x: x[x > 0] + 1, r"aten\.index\.Tensor gives a tensor whose sizes .*torch\.where"),
        (
            lambda x: torch.arange(int(x.sum())),
            r"test_calls.py:\d+, `.*` needs a number of a tensor",
        ),
        (negated_if_any, r"test_calls.py:\d+, `return -x if .*` needs a number .*torch\.where"),
        (lambda x: x * x[0, 0].item(), r"aten\.item.*depend on data(.|\n)*give it as an argument"),
        (lambda x: x.unique(), r"aten\._unique2.*sizes depend on data"),
        (torch.poisson, r"aten\.poisson\.default, .*: it draws random numbers"),
        (twice, r"tests_calls\.twice.*no op of PyTorch's own"),
        (branches, "cond runs parts of the model, and a program has no branches"),
        (times, "map_impl runs parts of the model"),
    ],
)
def test_what_no_program_can_be(tmp_path: Path, function: Callable[..., Any], words: str) -> None:
    for host in ("torch", "runtime"):
        with pytest.raises(ExportError, match=words):
            exported(tmp_path, Function(function), (torch.rand(4, 4),), host=host)
    assert not list(tmp_path.iterdir())


def test_the_error_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r'linalg_solve(.|\n)*host="torch"'):
        exported(tmp_path, Solve(), (torch.randn(6, 6),), host="runtime")
    with pytest.raises(ValueError, match="'numpy' is neither 'runtime' nor 'torch'"):
        exported(tmp_path, Solve(), (torch.randn(6, 6),), host="numpy")


@pytest.mark.slow
def test_what_no_file_can_say_is_refused(tmp_path: Path) -> None:
    many = torch.randn(*[1] * 17)
    with pytest.raises(ExportError, match="'x' has 17 dimensions"):
        exported(tmp_path, Function(torch.relu), (many,))
    with torch.device("meta"):
        kept = Kept()
        given = torch.randn(5, 4)
    with pytest.raises(ExportError, match="has no value"):
        exported(tmp_path, kept, (given,))


# The command line


MODEL = """
    import torch
    from torch import nn

    class Solve(nn.Module):
        def forward(self, x):
            return torch.linalg.solve(x @ x.mT + 5 * torch.eye(3), x).relu()

    def model():
        return Solve(), (torch.ones(3, 3),)
"""


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    path = str(tmp_path / "m.tenon")
    command = ["export", f"{tmp_path}/model.py:model", "-o", path, "--cpu", "native"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert 'host="torch"' in refused.output
    made = CliRunner().invoke(app, [*command, "--host", "torch"])
    assert made.exit_code == 0, made.output
    assert "calls aten::_linalg_check_errors, aten::_linalg_solve_ex of PyTorch's" in made.output
    told = CliRunner().invoke(app, ["info", path]).output
    assert "It needs PyTorch, and calls aten::_linalg_check_errors, aten::_linalg_solve_ex." in told
    found = json.loads(CliRunner().invoke(app, ["info", path, "--json"]).output)
    assert found["methods"][0]["facts"]["calls"] == [
        "aten::_linalg_check_errors",
        "aten::_linalg_solve_ex",
    ]
    run = CliRunner().invoke(app, ["run", path])
    assert run.exit_code == 0, run.output
    assert "float32[3, 3]" in run.output


# Files that somebody changed


def text(of: str) -> bytes:
    writer = Writer()
    writer.text(of)
    return bytes(writer.bytes)


class CallsAlone(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.solve(x, y)


@pytest.mark.slow
def test_a_changed_call_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, path = (torch.randn(4, 4), torch.randn(4, 4)), tmp_path / "model.tenon"
    files: list[ProgramFile] = []
    with monkeypatch.context() as patched:
        patched.setattr(ProgramFile, "write", lambda file, path: files.append(file))
        torch_tenon.export(CallsAlone(), given, path, cpu="native", host="torch")
    (file,) = files
    method, kernels = file.methods[0]
    whole = method.plan.sized_bytes([KernelFile("", k.symbol, 0) for k in kernels])

    def outcome(plan: bytes) -> str:
        monkeypatch.setattr(method.plan, "sized_bytes", lambda files: plan)
        file.write(path)
        try:
            torch_tenon.load(path)(*given)
        except (ProgramError, ValueError, MemoryError) as error:
            return str(error)
        return ""

    assert outcome(whole) == ""
    op = text("aten::_linalg_solve_ex\n")
    assert whole.count(op) == 1
    for name, words in [
        ("tenon::host_kernel\n", "is no op of PyTorch's"),
        ("aten::from_file\n", "opens a file"),
        ("aten::no_such_op\n", "no_such_op"),
        ("aten::add\nno_such_overload", "no_such_overload"),
        ("aten::relu\n", "arguments of aten::relu"),
        ("aten", "is no op of PyTorch's"),
        ("aten::relu", "no name of an op"),
    ]:
        assert words in outcome(whole.replace(op, text(name))), name
    others = [
        f"{schema.name}\n{schema.overload_name}"
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and len(schema.arguments) == 4
    ]
    refused = [bool(outcome(whole.replace(op, text(name)))) for name in others]
    assert len(others) > 100
    assert sum(refused) > len(others) * 0.9
    generator = np.random.default_rng(1)
    start = whole.index(op) + len(op)
    for _ in range(300):
        changed = bytearray(whole)
        changed[int(generator.integers(start, len(whole)))] ^= int(generator.integers(1, 256))
        outcome(bytes(changed))
