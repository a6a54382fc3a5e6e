"""safetensors with `device="tenon"`."""

import pytest
import torch
from against_cpu import assert_same
from fresh_process import output

safetensors = pytest.importorskip("safetensors")
from safetensors import torch as safetensors_torch  # noqa: E402

KEPT = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4, dtype=torch.bfloat16)}


@pytest.fixture
def path(tmp_path):
    safetensors_torch.save_file(KEPT, tmp_path / "kept.safetensors")
    return tmp_path / "kept.safetensors"


@pytest.mark.parametrize("device", ["tenon", "tenon:1", torch.device("tenon", 1), "cpu"])
def test_a_file_is_loaded_to_the_device(path, device) -> None:
    loaded = safetensors_torch.load_file(path, device=device)
    place = torch.empty(0, device=device).device
    for name, kept in KEPT.items():
        assert loaded[name].device == place
        assert_same(loaded[name], kept)


def test_tensors_and_slices_of_an_open_file(path) -> None:
    with safetensors.safe_open(path, framework="pt", device="tenon") as file:
        assert sorted(file.keys()) == ["a", "b"]
        assert file.get_tensor("a").device.type == "tenon"
        part = file.get_slice("a")[:, 1:]
        assert part.device.type == "tenon"
        assert_same(part, KEPT["a"][:, 1:])


def test_the_current_device_is_meant(path) -> None:
    with torch.tenon.device(1):
        assert safetensors_torch.load_file(path, device="tenon")["a"].device.index == 1


def test_a_model_goes_to_a_file_and_back(tmp_path) -> None:
    model = torch.nn.Linear(3, 2).to("tenon")
    safetensors_torch.save_model(model, tmp_path / "model.safetensors")
    other = torch.nn.Linear(3, 2).to("tenon")
    safetensors_torch.load_model(other, tmp_path / "model.safetensors", device="tenon")
    assert_same(list(other.parameters()), [p.detach().cpu() for p in model.parameters()])


def test_devices_that_are_not_there(path) -> None:
    with pytest.raises(RuntimeError):
        safetensors_torch.load_file(path, device="tenon:77")
    with pytest.raises(safetensors.SafetensorError, match="nonsense"):
        safetensors_torch.load_file(path, device="nonsense")


@pytest.mark.parametrize(
    "imports", ["import safetensors.torch, torch", "import torch, safetensors.torch"]
)
def test_either_may_be_imported_first(path, imports: str) -> None:
    code = (
        f"{imports}\nprint(safetensors.torch.load_file({str(path)!r}, device='tenon')['a'].sum())"
    )
    assert output(code).startswith("tensor(15., device='tenon:0'")
