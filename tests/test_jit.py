"""TorchScript on the device: traced and scripted."""

import io
import warnings
from collections.abc import Iterator

import pytest
import torch
from against_cpu import assert_same, same_on_both

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    ).eval()


def test_trace() -> None:
    def compute(device: torch.device) -> list:
        model = net().to(device)
        x = torch.linspace(-1, 1, 72, device=device).view(2, 1, 6, 6)
        traced = torch.jit.trace(model, x)
        return [traced(x * 2).detach(), traced(x[:1]).detach()]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


@torch.jit.script
def collatz(x: torch.Tensor, limit: int) -> tuple[torch.Tensor, int]:
    steps = 0
    while bool(x > 1) and steps < limit:
        if bool(x % 2 == 0):  # noqa: SIM108  (a branch is what this is about)
            x = x // 2
        else:
            x = x * 3 + 1
        steps += 1
    return x, steps


@torch.jit.script
def in_place(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    y = torch.zeros_like(x)
    for row in rows:
        y[row] += x[row]
        y[:, row].mul_(2)
    y.view(-1)[0] = -1.0
    z = torch.ones([2], device=x.device) + torch.arange(2, device=x.device)
    return torch.cat([y.flatten(), z])


def test_script_with_control_flow_and_writes() -> None:
    same_on_both(lambda d: list(collatz(torch.tensor(27, device=d), 1000))[:1])
    assert collatz(torch.tensor(27, device="tenon"), 1000)[1] == 111
    same_on_both(lambda d: in_place(torch.arange(9.0, device=d).view(3, 3), [0, 2, 2]))


@torch.jit.script
def indexed(x: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
    y = x.clone()
    y[y < 5] = 1.0
    y[:, places] += 1.0
    y.index_put_([None, places], y[0, places] * 2, accumulate=True)
    return [y, x[:, places], x[x > 5]]


def test_script_that_indexes_by_tensors() -> None:
    for _ in range(3):
        same_on_both(
            lambda d: indexed(
                torch.arange(12.0, device=d).view(3, 4), torch.tensor([2, 0], device=d)
            )
        )


def test_scripted_training() -> None:
    def compute(device: torch.device) -> list:
        torch.manual_seed(0)
        model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()))
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):  # the profiling executor optimises from the second call on
            optimizer.zero_grad()
            model(torch.linspace(0, 1, 12, device=device).view(3, 4)).pow(2).sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    same_on_both(compute, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("saved_on", "map_location", "loaded_on"),
    [
        ("tenon:0", None, "tenon:0"),
        ("tenon:1", "cpu", "cpu"),
        ("cpu", "tenon:1", "tenon:1"),
        ("tenon:0", "tenon:1", "tenon:1"),
    ],
)
def test_save_and_load(saved_on: str, map_location: str | None, loaded_on: str) -> None:
    x = torch.linspace(-1, 1, 36).view(1, 1, 6, 6)
    expected = net()(x)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(net().to(saved_on)), file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=map_location)
    out = loaded(x.to(loaded_on))
    assert out.device == torch.device(loaded_on)
    assert_same(out, expected, rtol=1e-5, atol=1e-6)


def test_freeze_and_optimise_for_inference() -> None:
    x = torch.linspace(-1, 1, 36, device="tenon").view(1, 1, 6, 6)
    model = net().to("tenon")
    expected = model(x).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frozen = torch.jit.freeze(torch.jit.script(model))
    for _ in range(3):
        assert_same(frozen(x).detach(), expected, rtol=1e-5, atol=1e-6)


def test_fork_and_devices() -> None:
    @torch.jit.script
    def f(x: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(torch.sin, x)
        y = torch.cos(x)
        return torch.jit.wait(future) + y.to("cpu").to(x.device)

    same_on_both(lambda d: f(torch.linspace(0, 1, 5, device=d)), rtol=1e-6)


@pytest.fixture
def without_profiling() -> Iterator[None]:
    """TorchScript's older executor, which libraries choose for inputs of many sizes."""
    mode = torch._C._jit_set_profiling_mode(False)
    executor = torch._C._jit_set_profiling_executor(False)
    yield
    torch._C._jit_set_profiling_executor(executor)
    torch._C._jit_set_profiling_mode(mode)


@pytest.mark.usefixtures("without_profiling")
def test_pointwise_ops_without_the_profiling_executor() -> None:
    @torch.jit.script
    def gated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.device]:
        a, b = x.chunk(2, 1)
        z = torch.tanh(a + y) * torch.sigmoid(b) + 1.0
        if bool(z.sum() > 0):
            z = torch.relu(z) * 2 + y
        return z, z.device

    def compute(device: torch.device) -> list:
        results = []
        for step in range(3):
            x = torch.linspace(-1, 1, 24, device=device).view(6, 4) * (step + 1)
            x.requires_grad_(step > 0)
            z, made_on = gated(x, torch.ones(6, 2, device=device))
            assert made_on == z.device
            assert z.device.type == device.type
            results.append(z.detach())
            if step > 0:
                z.square().sum().backward()
                results.append(x.grad)
        return results

    same_on_both(compute, rtol=1e-5, atol=1e-6)


def test_a_script_s_error_is_the_op_s() -> None:
    @torch.jit.script
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        f(torch.ones(2, 3, device="tenon"))
    assert f(torch.ones(2, 2, device="tenon")).tolist() == [[2, 2], [2, 2]]
