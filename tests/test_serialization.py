"""Saving, loading, copying and printing tensors of the device."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from against_cpu import assert_same, same_error_on_both
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bool, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("saved_on", "map_location", "loaded_on"),
    [
        ("tenon:0", None, "tenon:0"),
        ("tenon:1", None, "tenon:1"),
        ("tenon:1", "cpu", "cpu"),
        ("cpu", "tenon", "tenon:0"),
        ("cpu", "tenon:1", "tenon:1"),
        ("cpu", torch.device("tenon", 1), "tenon:1"),
        ("tenon:0", {"tenon:0": "tenon:1"}, "tenon:1"),
        ("tenon:1", {"tenon:0": "cpu"}, "tenon:1"),
        ("tenon:1", lambda storage, location: storage, "cpu"),
        ("tenon:1", lambda storage, location: storage.tenon(0), "tenon:0"),
    ],
)
def test_save_and_load(saved_on: str, map_location, loaded_on: str, weights_only: bool) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    x = base.to(saved_on)
    complex_ = torch.view_as_complex(torch.ones(3, 2)).to(saved_on).conj()
    value = {"x": x, "part": x[1:, ::2], "same": x, "complex": complex_}
    loaded = torch.load(saved(value), map_location=map_location, weights_only=weights_only)
    assert all(y.device == torch.device(loaded_on) for y in loaded.values())
    assert_same(loaded, {key: y.cpu() for key, y in value.items()})
    assert loaded["part"].stride() == x[1:, ::2].stride()
    loaded["x"].zero_()
    assert not loaded["same"].any() and not loaded["part"].any(), "storages stay shared"


def test_load_of_a_device_that_is_not_there() -> None:
    data = saved(torch.ones(3, device="tenon:1")).getvalue()
    with pytest.raises(RuntimeError, match=r"tenon:9|map_location"):
        torch.load(io.BytesIO(data.replace(b"tenon:1", b"tenon:9")))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_saved(dtype: torch.dtype) -> None:
    x = torch.arange(4.0).to(dtype)
    loaded = torch.load(saved(x.to("tenon")))
    assert loaded.device.type == "tenon" and loaded.dtype == dtype
    assert torch.equal(loaded.cpu().view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    x = torch.nn.Parameter(torch.arange(6.0, device="tenon:1"), requires_grad=False)
    y = pickle.loads(pickle.dumps(x, protocol))
    assert isinstance(y, torch.nn.Parameter) and y.device == torch.device("tenon:1")
    assert_same(y, x)
    generator = torch.Generator("tenon").manual_seed(3)
    assert pickle.loads(pickle.dumps(generator)).get_state().equal(generator.get_state())
    assert pickle.loads(pickle.dumps(torch.device("tenon", 1))) == torch.device("tenon:1")


def test_deepcopy() -> None:
    x = torch.arange(6.0, device="tenon:1").requires_grad_()
    y = copy.deepcopy(x)
    assert y.device == x.device and y.requires_grad and y.data_ptr() != x.data_ptr()
    assert_same(y, x)
    pair = copy.deepcopy([x.detach(), x.detach()[2:]])
    assert pair[1].data_ptr() == pair[0].data_ptr() + 8
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).to("tenon")
    twin = copy.deepcopy(model)
    assert all(p.device.type == "tenon" for p in twin.parameters())
    assert_same(twin.state_dict(), model.state_dict())
    twin[0].weight.data.zero_()
    assert model[0].weight.any()
    assert copy.copy(x) is not x


def test_model_and_optimizer(tmp_path: Path) -> None:
    def train(device: str, steps: int, path: Path | None = None) -> dict:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 2).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if path is not None:
            state = torch.load(path, map_location=device)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 4, device=device) * step).sum().backward()
            optimizer.step()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    for first, second in (("tenon:0", "cpu"), ("cpu", "tenon:1"), ("tenon:0", "tenon:1")):
        path = tmp_path / "state.pt"
        torch.save(train(first, 3), path)
        state = train(second, 3, path)
        assert state["model"]["weight"].device == torch.device(second)
        assert state["optimizer"]["state"][0]["exp_avg"].device == torch.device(second)
        torch.save(train("cpu", 3), path)
        assert_same(state, train("cpu", 3, path), rtol=1e-6, atol=1e-6)


def test_safetensors(tmp_path: Path) -> None:
    x = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    path = tmp_path / "x.safetensors"
    save_file({key: value.to("tenon:1") for key, value in x.items()}, path)
    assert_same(load_file(path), x)
    # The package knows the devices of its own list by name, any other one by its number.
    loaded = load_file(path, device=1)
    assert all(value.device == torch.device("tenon:1") for value in loaded.values())
    assert_same(loaded, x)


def test_dlpack() -> None:
    x = torch.arange(6.0, device="tenon:1").view(2, 3)
    assert x.__dlpack_device__()[1] == 1
    y = torch.from_dlpack(x)
    assert y.device == x.device and y.data_ptr() == x.data_ptr()
    y.zero_()
    assert not x.any()
    z = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[:, 1:]))
    assert z.device == x.device and z.stride() == (3, 1)
    same_error_on_both(lambda d: torch.ones(2, device=d, requires_grad=True).__dlpack__())
    with pytest.raises((BufferError, RuntimeError)):
        numpy.from_dlpack(x)
    assert torch.ones(2).__dlpack_device__() == (1, 0)


def test_numpy() -> None:
    x = torch.arange(3.0, device="tenon")
    with pytest.raises(TypeError, match=r"can't convert tenon:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy the tensor to host memory"):
        numpy.asarray(x)
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert torch.as_tensor(numpy.arange(3.0), device="tenon").tolist() == [0, 1, 2]
    assert (x * numpy.float32(2)).tolist() == [0, 2, 4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_printing(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    text = repr(x.to("tenon:1"))
    assert "device='tenon:1'" in text
    without = text.replace("device='tenon:1'", "").replace(", ,", ",").replace(" ", "")
    expected = repr(x).replace(" ", "")
    assert without.replace("\n", "").rstrip(",)") == expected.replace("\n", "").rstrip(",)")


@pytest.mark.parametrize("made", [torch.arange(12.0), torch.arange(4.0) > 1, torch.randn(3, 5).t()])
def test_printing_is_one_copy(made: torch.Tensor) -> None:
    """Some twenty small ops would each be read by the host."""

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(x, torch.Tensor) and x.device.type == "tenon" for x in args):
                seen.append(op.overloadpacket)
            return op(*args, **kwargs or {})

    x, seen = made.to("tenon"), list[Any]()
    with Ops():
        repr(x)
    assert set(seen) <= {torch.ops.aten.detach, torch.ops.aten._to_copy}


def test_printing_of_other_things() -> None:
    x = torch.tensor([1.5, float("nan"), -float("inf")], device="tenon", requires_grad=True)
    assert repr(x) == "tensor([1.5000,    nan,   -inf], device='tenon:0', requires_grad=True)"
    assert repr(x.detach()[0]) == "tensor(1.5000, device='tenon:0')"
    assert "grad_fn=<MulBackward0>" in repr(x * 2)
    assert repr(torch.empty(0, 3, device="tenon")) == "tensor([], device='tenon:0', size=(0, 3))"
    assert "..." in repr(torch.zeros(2000, device="tenon"))
    assert repr(torch.ones(2, device="tenon").to_sparse()).startswith("tensor(indices=tensor(")
    assert "Parameter containing:" in repr(torch.nn.Parameter(x.detach()))
    assert "size=(2,)" in str(torch.ones(2, device="meta"))
