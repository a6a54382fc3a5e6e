"""Programs without Python: run from C, also for machines that are not this one, under emulation."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_tenon
from torch_tenon import config
from torch_tenon.targets.cpu import packing, toolchain
from torch_tenon.targets.cpu.compiler import default_compiler
from torch_tenon.targets.cpu.toolchain import Toolchain

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROOT = Path(__file__).parent.parent.parent
HOST = ""
WHICH = shutil.which


class Small(nn.Module):
    """Products, a convolution, a softmax, special functions, a scan, and layers that have kernels
    by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 8, 3, padding=1)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        y = F.gelu(self.convolution(x)).transpose(1, 2)
        y = self.lstm(y)[0]
        y = F.scaled_dot_product_attention(y, y, y, is_causal=True)
        image = F.interpolate(x[None], size=(5, 9), mode="bicubic", antialias=True)
        found = self.out(y).log_softmax(-1)[0, ids], y.cumsum(1).to(torch.float16)
        return *found, image, torch.fft.rfft(x).abs()


def test_parts_that_are_kept_are_whole_and_of_this_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENON_CACHE_DIR", str(tmp_path))

    def made() -> bytes:
        return packing._object([("void k_part(void) {}\n", False)], ["-march=native"], Toolchain())

    first = made()
    (part,) = tmp_path.glob("kernels/*.o")
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    part.write_bytes(damaged)
    assert made() == first
    monkeypatch.setattr(toolchain, "processor", lambda: "another one of the same folder")
    assert made() == first
    assert len(list(tmp_path.glob("kernels/*.o"))) == 2


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@functools.cache
def built(machine: str, folder: Path) -> list[str]:
    """The command that runs the C program on that machine."""
    prefix = f"{machine}-" if machine else ""
    compilers = {"CC": tool(f"{prefix}gcc"), "CXX": tool(f"{prefix}g++"), "AR": tool(f"{prefix}ar")}
    emulator = []
    if machine:
        emulator = [tool(f"qemu-{machine.partition('-')[0]}"), "-L", f"/usr/{machine}"]
    library = Path(torch_tenon.__file__).parent / "runtime" / "libtenon_rt.so"
    if machine:
        out = folder / machine
        library = out / "libtenon_rt.a"
        make = ["make", "-s", "-C", str(ROOT / "csrc" / "runtime"), f"OUT={out}", str(library)]
        environment = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"} | compilers
        words = [f"{k}={v}" for k, v in compilers.items()]
        subprocess.run([*make, *words], check=True, env=environment)
    source = Path(__file__).with_name("on_files.c")
    program = folder / f"on_files-{machine}"
    subprocess.run(
        [compilers["CC"], "-O1", f"-I{ROOT / 'include'}", "-c", str(source), "-o", f"{program}.o"],
        check=True,
    )
    subprocess.run(
        [compilers["CXX"], f"{program}.o", str(library), "-o", str(program), "-ldl", "-pthread"],
        check=True,
    )
    return [*emulator, str(program)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the C programs are, which take longer to compile than what they run."""
    return tmp_path_factory.mktemp("on_files")


by_compiler = pytest.mark.parametrize("compiler", ["gcc", "package"])


@by_compiler
def test_on_this_machine(
    tmp_path: Path, folder: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_in_c(HOST, compiler, tmp_path, folder, monkeypatch)


@by_compiler
def test_on_aarch64(
    tmp_path: Path, folder: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_in_c("aarch64-linux-gnu", compiler, tmp_path, folder, monkeypatch)


@by_compiler
def test_on_riscv64(
    tmp_path: Path, folder: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_in_c("riscv64-linux-gnu", compiler, tmp_path, folder, monkeypatch)


def runs_in_c(
    machine: str, compiler: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels by gcc, or by the compiler of a package, which compiles for every machine."""
    command = built(machine, folder)
    if compiler == "package":
        hidden = f"{machine}-gcc"
        monkeypatch.setattr(
            packing.shutil, "which", lambda name: WHICH(name) if name != hidden else None
        )
        if machine == HOST:
            own = Toolchain(config.compiler_of_package() or "")
            monkeypatch.setattr(default_compiler(), "toolchain", own)
    torch.manual_seed(0)
    model = Small().eval()
    x, ids = torch.randn(2, 4, 17), torch.tensor([0, 5, 16])
    path = tmp_path / "m.tenon"
    torch_tenon.export(model, (x, ids), path, machine=machine or None)
    for k, given in enumerate((x, ids)):
        given.numpy().tofile(tmp_path / f"in{k}")
    subprocess.run([*command, str(path), str(tmp_path)], check=True)
    with torch.no_grad():
        expected = model(x, ids)
    for k, wanted in enumerate(expected):
        got = np.fromfile(tmp_path / f"out{k}", wanted.numpy().dtype).reshape(wanted.shape)
        torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=2e-3, atol=1e-4)
    ids[1] = 17  # beyond the end
    ids.numpy().tofile(tmp_path / "in1")
    failed = subprocess.run([*command, str(path), str(tmp_path)], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "17" in failed.stderr
