"""docs/surface.md against `torch.cuda`, `torch.mps` and `torch.tenon`: what is there, and what is
not, with a reason."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "surface.md"

#: PyTorch's modules, and what in `torch.tenon` has their names.
MODULES = {
    "torch.cuda": "torch.tenon",
    "torch.cuda.amp": "torch.tenon.amp",
    "torch.cuda.memory": "torch.tenon.memory",
    "torch.cuda.nvtx": "torch.tenon.nvtx",
    "torch.cuda.profiler": "torch.tenon.profiler",
    "torch.cuda.random": "torch.tenon.random",
    "torch.mps": "torch.tenon",
    "torch.mps.profiler": "torch.tenon.profiler",
}


def named(path: str) -> object:
    found: object = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def public_names(module: ModuleType) -> set[str]:
    """What a module exports, and the functions, classes and errors that it has beside that."""
    names = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
            home = value.__module__
            is_error = inspect.isclass(value) and issubclass(value, Exception)
            if home.startswith(module.__name__) or (home == "torch" and is_error):
                names.add(name)
    return names


def sections() -> dict[str, str]:
    parts = re.split(r"^## `(torch\.\S+)`\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def has(release: str) -> bool:
    """Is the installed PyTorch that release, as in "2.14", or a later one? No release: it is."""
    installed = torch.__version__.split(".")
    return not release or [int(n) for n in release.split(".")] <= [int(n) for n in installed[:2]]


def listed(section: str) -> set[str]:
    """The names of the paragraphs that say what is there, with the installed PyTorch."""
    paragraphs = re.findall(r"^There(?: since ([\d.]+))?: (.*)$", section, re.MULTILINE)
    return {n for since, names in paragraphs if has(since) for n in re.findall(r"`(\w+)`", names)}


def reasons(section: str) -> dict[str, str]:
    """The rows of the table: a reason for each of a row's names."""
    found: dict[str, str] = {}
    for cell, reason in re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE):
        since = re.match(r"since (\d[\d.]*\d)", reason)
        if since and not has(since[1]):
            continue
        for name in re.findall(r"`(\w+)`", cell):
            assert name not in found, f"{name} has two rows"
            found[name] = reason
    return found


def test_the_page_has_a_section_for_each_module() -> None:
    assert list(sections()) == list(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_there_or_has_a_reason(module: str) -> None:
    section = sections()[module]
    names = public_names(named(module))
    there = {name for name in names if hasattr(named(MODULES[module]), name)}
    why = reasons(section)
    assert names - there - set(why) == set(), "neither there nor with a reason"
    assert set(why) - names == set(), "rows of names that PyTorch does not have"
    assert set(why) & there == set(), "rows of names that are there"
    assert listed(section) == there, "what the page says is there"
    assert all(len(reason) > 20 for reason in why.values())


def test_the_names_of_torch_mps_are_those_of_this_machine_too() -> None:
    assert torch.tenon.current_allocated_memory() == torch.tenon.memory_allocated()
    assert torch.tenon.driver_allocated_memory() == torch.tenon.memory_reserved()
    assert torch.tenon.recommended_max_memory() == torch.tenon.mem_get_info()[1]


def test_submodules_have_their_functions() -> None:
    assert torch.tenon.memory.memory_allocated is torch.tenon.memory_allocated
    assert torch.tenon.random.get_rng_state is torch.tenon.get_rng_state
    assert torch.tenon.streams.Stream is torch.tenon.Stream
    assert torch.tenon.nvtx.range_push is torch.tenon.profiler.range_push


def test_errors_are_pytorch_s() -> None:
    assert torch.tenon.OutOfMemoryError is torch.OutOfMemoryError


def test_what_the_device_can_do() -> None:
    assert torch.tenon.has_half is True
    assert torch.tenon.is_tf32_supported() is False
    assert torch.tenon.is_current_stream_capturing() is False
    assert torch.tenon.get_allocator_backend() == "native"
    assert torch.tenon.amp.amp_definitely_not_available() is False


def test_peers_share_the_host_s_memory() -> None:
    import torch_tenon

    host_memory = torch_tenon.target().host_memory
    assert torch.tenon.can_device_access_peer(0, 1) is host_memory
    assert torch.tenon.can_device_access_peer("tenon:1", 1) is False
    with pytest.raises(RuntimeError):
        torch.tenon.can_device_access_peer(0, 77)


def test_custom_functions_under_autocast() -> None:
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.tenon.amp.custom_fwd(cast_inputs=torch.float16)
        def forward(ctx, x):
            seen.append((x.dtype, torch.is_autocast_enabled("tenon")))
            return x * 2

        @staticmethod
        @torch.tenon.amp.custom_bwd
        def backward(ctx, gradient):
            seen.append((gradient.dtype, torch.is_autocast_enabled("tenon")))
            return gradient * 2

    x = torch.ones(3, device="tenon", requires_grad=True)
    with torch.autocast("tenon", dtype=torch.bfloat16):
        y = Double.apply(x)
    y.sum().backward()
    assert seen == [(torch.float16, False), (torch.float16, False)]
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["FloatTensor", "BFloat16Tensor", "LongTensor", "BoolTensor"])
def test_legacy_tensor_types(name: str) -> None:
    kind, of_host = getattr(torch.tenon, name), getattr(torch, name)
    made = kind([0, 1])
    assert isinstance(made, kind) and made.device.type == "tenon"
    assert torch.equal(made.cpu(), of_host([0, 1]))
    assert kind(2, 3).shape == (2, 3)
    assert not isinstance(of_host(2), kind)
    assert not isinstance(made.to(torch.float64), kind)
    assert isinstance(torch.ones(2).type(kind), kind)
    assert made.type() == f"torch.tenon.{name}"
    assert kind(made).data_ptr() == made.data_ptr()
    with pytest.raises(TypeError):
        kind("text")
