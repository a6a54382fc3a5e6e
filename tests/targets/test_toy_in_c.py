"""The toy of docs/target.md in C: by every function of its interface, and by PyTorch."""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
import textwrap
from pathlib import Path

import pytest
from fresh_process import output
from needs import library_targets

sys.path.insert(0, str(Path(__file__).parent))
import through_ctypes
from c_compiler import ROOT, needs_compiler, shared_object
from through_ctypes import Failed, Library

PAGE = ROOT / "docs" / "target.md"
pytestmark = needs_compiler


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_object(ROOT / "examples" / "toy.c", tmp_path_factory.mktemp("toy") / "libtoy.so")


@pytest.fixture(scope="module")
def library(path: Path) -> Library:
    return Library(path)


def test_what_it_brings(library: Library) -> None:
    found = library.functions
    assert (found.name, found.devices, found.host_memory) == (b"toy", 1, 0)
    assert found.size == ctypes.sizeof(found)
    assert library.total_memory() == 1 << 30
    assert [line.split(": ")[0] for line in found.facts.decode().splitlines()] == ["The toy"]
    assert not found.seconds and not found.forget and not found.unload


def test_memory(library: Library) -> None:
    handles = [library.allocate(n) for n in (1, 512, 100_000)]
    assert len(set(handles)) == 3 and 0 not in handles
    for handle in handles:
        library.release(handle)
    with pytest.raises(Failed, match="the toy has 1 GiB") as raised:
        library.allocate(2 << 30)
    assert raised.value.code == through_ctypes.OUT_OF_MEMORY


def test_what_is_enqueued_runs_when_it_is_committed(library: Library) -> None:
    block = library.allocate(512)
    start = library.commit()
    assert library.passed(start) and not library.passed(start + 1)
    library.write(block, b"0123456789")
    assert library.commit() == start + 1
    found = ctypes.create_string_buffer(b"..........", 10)
    library.copy((block, 20), (block, 3), 5)
    library.copy(ctypes.addressof(found), (block, 20), 5)
    assert found.raw == b".........."
    ticket = library.commit()
    library.wait(ticket)
    assert ticket == start + 2 and library.passed(ticket) and found.raw == b"34567....."
    library.release(block)


def test_a_kernel_that_is_found_by_its_name(library: Library) -> None:
    a, b, c = blocks = [library.allocate(512) for _ in range(3)]
    library.write(a, struct.pack("6f", *range(6)))
    library.write(b, struct.pack("4f", 9, 9, 1, 2))  # from the third number on
    library.write(b, struct.pack("8f", 0, 0, 1, 2, 3, 4, 5, 6))
    kernel = library.load(b"", "matmul")
    library.launch(kernel, [(c, 0), (a, 0), (b, 8)], [2, 3, 2])
    library.wait(library.commit())
    want = [sum((3 * i + k) * (1 + 2 * k + j) for k in range(3)) for i in (0, 1) for j in (0, 1)]
    assert list(struct.unpack("4f", library.read(c, 16))) == want
    with pytest.raises(Failed, match="three matrices and three sizes"):
        library.launch(kernel, [(c, 0)], [2, 3, 2])
    with pytest.raises(Failed, match="one kernel, matmul") as raised:
        library.load(b"", "conv2d")
    assert raised.value.code == through_ctypes.UNSUPPORTED
    for block in blocks:
        library.release(block)


def test_the_host_works_on_its_memory(library: Library) -> None:
    block = library.allocate(512)
    library.write(block, b"abcdef")
    given: list[list[int | None]] = []

    def work(addresses: list[int | None]) -> None:
        given.append(addresses)
        assert addresses[0] is not None
        ctypes.memmove(addresses[0], b"XY", 2)

    library.call(work, [(block, 2), (0, 0)])
    assert not given
    assert library.read(block, 6) == b"abXYef" and given[0][1] is None
    library.release(block)


def test_another_version_of_the_interface(path: Path) -> None:
    with pytest.raises(Failed, match="another version of the interface"):
        Library(path, interface=2)


def test_the_page_has_the_file() -> None:
    page = PAGE.read_text()
    (block,) = (part.split("```")[0] for part in page.split("```c\n")[1:])
    assert block == (ROOT / "examples" / "toy.c").read_text()


PROGRAM = """
import torch, torch_tenon

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
there = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
there.load_state_dict(model.state_dict())
there = there.to("tenon")
x = torch.randn(4, 8)
for parameters, net, data in ((model, model, x), (there, there, x.to("tenon"))):
    optimizer = torch.optim.Adam(parameters.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        net(data).square().mean().backward()
        optimizer.step()
for a, b in zip(model.parameters(), there.parameters(), strict=True):
    torch.testing.assert_close(b.cpu(), a)
a, b = torch.randn(3, 5), torch.randn(5, 300)
for _ in range(4):
    torch.testing.assert_close((a.to("tenon") @ b.to("tenon")).cpu(), a @ b)
big = torch.arange(1000.0, device="tenon")[100:200]
assert big.clone().tolist() == [float(k) for k in range(100, 200)]
assert torch.tensor([], device="tenon").cpu().tolist() == []
try:
    torch.empty(1 << 30, dtype=torch.float64, device="tenon").fill_(1)
except torch.OutOfMemoryError:
    print(torch.tenon.target_name(), torch_tenon.counters().get("library::aten::mm", 0))
"""


@pytest.mark.slow
@library_targets
@pytest.mark.parametrize("execute", ["auto", "compiled", "reference"])
def test_pytorch_runs_on_it(path: Path, execute: str) -> None:
    assert output(PROGRAM, TENON_TARGET=str(path), TENON_EXECUTE=execute) == "toy 0"


@library_targets
def test_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch; print(torch.ones(3, device='tenon').sum().item())"
    relative = Path(*itertools.repeat("..", len(Path(__file__).parents[1].parts) - 1))
    relative = relative / path.relative_to("/")
    assert output(code, TENON_TARGET=f"./{relative}") == "3.0"


@pytest.mark.slow
@library_targets
def test_the_class_of_the_page(path: Path) -> None:
    """Its `mm` is the library's kernel."""
    page = PAGE.read_text()
    start = page.index("    # toy_in_c.py\n")
    lines = itertools.takewhile(
        lambda line: not line or line.startswith("    "), page[start:].splitlines()
    )
    file = path.with_name("toy_in_c.py")
    file.write_text(textwrap.dedent("\n".join(lines)))
    assert output(PROGRAM, TENON_TARGET=f"{file}:ToyInC").split()[0] == "toy"
    assert int(output(PROGRAM, TENON_TARGET=f"{file}:ToyInC").split()[1]) >= 4


@pytest.mark.slow
@library_targets
def test_the_doctor_says_what_it_is(path: Path) -> None:
    code = """
        from torch_tenon.cli.installation import examine
        found = {f.name: f.text for f in examine()}
        print(found["Target"], found["The toy"])
    """
    assert output(code, TENON_TARGET=str(path)).startswith(f"{path} one kernel")
