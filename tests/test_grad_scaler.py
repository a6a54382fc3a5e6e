"""`torch.amp.GradScaler()` without a device: for the device, and off where the CPU trains."""

import copy
import pickle
import warnings

import pytest
import torch


def train(device: str, scaler: torch.amp.GradScaler) -> tuple[list[torch.Tensor], float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], scaler.get_scale()


def test_it_scales_for_the_device() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = torch.amp.GradScaler(init_scale=1024.0)
        parameters, scale = train("tenon", scaler)
    assert scaler.is_enabled() and scale == 512.0  # the step of infinities was skipped
    want, want_scale = train("cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert scale == want_scale
    torch.testing.assert_close(parameters, want)


@pytest.mark.parametrize("several", [False, True])
def test_it_is_off_where_the_cpu_trains(several: bool) -> None:
    scaler = torch.amp.GradScaler()
    loss = torch.ones(2)
    with pytest.warns(UserWarning, match="Disabling"):
        scaled = scaler.scale([loss] if several else loss)
    assert (scaled[0] if several else scaled) is loss
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0
    off = torch.amp.GradScaler(enabled=False)
    parameters, scale = train("cpu", scaler)
    want, want_scale = train("cpu", off)
    assert scale == want_scale
    torch.testing.assert_close(parameters, want, equal_nan=True)


def test_a_named_device_is_what_it_was() -> None:
    cpu = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert cpu.scale(torch.ones(1)).item() == 8.0 and cpu.is_enabled()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.amp.GradScaler("cuda").is_enabled()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        assert not torch.amp.GradScaler(device="cuda").is_enabled()
    assert not torch.amp.GradScaler(enabled=False).is_enabled()


def test_it_is_copied_and_kept() -> None:
    scaler = torch.amp.GradScaler(init_scale=4.0)
    for other in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        assert other.scale(torch.ones(1, device="tenon")).item() == 4.0
    assert scaler.scale(torch.ones(1, device="tenon")).item() == 4.0
    again = torch.amp.GradScaler()
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 4.0
