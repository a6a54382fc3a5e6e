"""`torch.distributed.checkpoint`: what some ranks saved, others load, as many or fewer."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.distributed import training
from tests.distributed.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with ranks(2) as started:
        yield started


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with ranks(3) as started:
        yield started


def sharded(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    module = training.model(device)
    fully_shard(module, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = training.optimizer(module)
    for step in range(2):
        x, y = training.batch(device, step, rank=0)
        torch.nn.functional.mse_loss(module(x, True), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


def state(device: str) -> tuple[Any, Any, dict[str, Any]]:
    module, optimizer = sharded(device)
    of_module, of_optimizer = get_state_dict(module, optimizer)
    return module, optimizer, {"model": of_module, "optimizer": of_optimizer, "step": 2}


def whole(found: dict[str, Any]) -> dict[str, torch.Tensor]:
    moments = {
        f"{name}.{key}": training.whole(value)
        for name, values in found["optimizer"]["state"].items()
        for key, value in values.items()
    }
    return {**{k: training.whole(v) for k, v in found["model"].items()}, **moments}


def save(path: str, device: str, later: bool) -> dict[str, torch.Tensor]:
    _, _, found = state(device)
    if later:
        checkpoint.async_save(found, checkpoint_id=path).result()
    else:
        checkpoint.save(found, checkpoint_id=path)
    return whole(found)


def load(path: str, device: str) -> dict[str, torch.Tensor]:
    module, optimizer, found = state(device)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    checkpoint.load(found, checkpoint_id=path)
    set_state_dict(
        module,
        optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    assert found["step"] == 2
    of_module, of_optimizer = get_state_dict(module, optimizer)
    return whole({"model": of_module, "optimizer": of_optimizer})


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True], ids=["at once", "asynchronously"])
def test_a_checkpoint_is_loaded_by_other_ranks(
    two: Ranks, three: Ranks, tmp_path: Path, later: bool
) -> None:
    saved = two.run(save, str(tmp_path), "tenon", later)[0]
    for found in (*two.run(load, str(tmp_path), "tenon"), *three.run(load, str(tmp_path), "tenon")):
        assert found.keys() == saved.keys()
        torch.testing.assert_close(found, saved, rtol=0, atol=0)


@pytest.mark.slow
def test_a_checkpoint_of_the_host_is_loaded_by_the_device(two: Ranks, tmp_path: Path) -> None:
    saved = two.run(save, str(tmp_path), "cpu", False)[0]
    for found in two.run(load, str(tmp_path), "tenon"):
        torch.testing.assert_close(found, saved, rtol=0, atol=0)


@pytest.mark.slow
def test_a_checkpoint_without_one_of_its_files(two: Ranks, tmp_path: Path) -> None:
    two.run(save, str(tmp_path), "tenon", False)
    next(iter(tmp_path.glob("__1_*.distcp"))).unlink()
    for returned, error in two.outcomes(load, str(tmp_path), "tenon"):
        assert not returned
        assert "CheckpointException" in error and "__1_0.distcp" in error
    shutil.rmtree(tmp_path)
    for returned, error in two.outcomes(load, str(tmp_path), "tenon"):
        assert not returned
        assert "CheckpointException" in error and ".metadata" in error
