"""PyTorch's device-generic files, by a small one of their kind."""

import textwrap
from pathlib import Path

import pytest

from torch_tenon.testing.others import pytorch
from torch_tenon.testing.others.workers import Runner

FILE = """
    import torch
    from torch.testing._internal.common_device_type import (
        dtypes, instantiate_device_type_tests, onlyCPU, onlyCUDA)
    from torch.testing._internal.common_utils import TestCase

    class TestSome(TestCase):
        @dtypes(torch.float32, torch.int64)
        def test_to_cpu_and_back(self, device, dtype):
            x = torch.arange(3, device=device, dtype=dtype)
            assert torch.equal(x.cpu().to(device) + 1, x + 1)

        def test_passes_on_the_cpu_alone(self, device):
            assert torch.device(device).type == "cpu"

        @onlyCPU
        def test_is_for_the_cpu(self, device):
            pass

        @onlyCUDA
        def test_is_for_another(self, device):
            self.fail()

        def test_fails(self, device):
            self.fail()

    class TestHost(TestCase):
        def test_has_no_device(self):
            self.fail()

    instantiate_device_type_tests(TestSome, globals())
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "test"
    folder.mkdir()
    (folder / "test_torch.py").write_text(textwrap.dedent(FILE))
    (folder / "test_cuda.py").write_text(textwrap.dedent(FILE))
    (folder / "test_other.py").write_text("raise RuntimeError('this has no device')")
    monkeypatch.setenv(pytorch.SOURCES, str(tmp_path))
    return tmp_path / "results"


@pytest.mark.slow
def test_the_same_nodes_run_on_both(sources: Path) -> None:
    on_cpu = Runner("pytorch", sources, processes=1).run("cpu")
    of_class = "test_torch.py::TestSome::test_"
    outcomes = {name.removeprefix(of_class): found.outcome for name, found in on_cpu.items()}
    assert outcomes == {
        "to_cpu_and_back_float32": "passed",
        "to_cpu_and_back_int64": "passed",
        "passes_on_the_cpu_alone": "passed",
        "is_for_the_cpu": "passed",
        "is_for_another": "skipped",
        "fails": "failed",
    }
    held = [name for name, found in on_cpu.items() if found.passed]
    there = Runner("pytorch", sources, processes=1).run("auto", held)
    assert {name.removeprefix(of_class): found.outcome for name, found in there.items()} == {
        "to_cpu_and_back_float32": "passed",
        "to_cpu_and_back_int64": "passed",
        "passes_on_the_cpu_alone": "failed",
        "is_for_the_cpu": "skipped",
    }


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("a.py::TestXCPU::test_add_cpu_float32", "a.py::TestX::test_add_float32"),
        ("a.py::TestXTENON::test_add_tenon_float32", "a.py::TestX::test_add_float32"),
        ("a.py::TestXPRIVATEUSE1::test_to_cpu_tenon", "a.py::TestX::test_to_cpu"),
        ("a.py::TestCPUXCPU::test_to_cpu_cpu", "a.py::TestCPUX::test_to_cpu"),
        ("a.py::TestX::test_add", None),
        ("a.py::TestXCPU::test_add", None),
    ],
)
def test_names_without_the_device(node: str, name: str | None) -> None:
    assert pytorch.name_of(node) == name


def test_sources_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch.SOURCES, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="make test-pytorch PYTORCH_SOURCES="):
        pytorch.prepare()
