"""Training on 2 and 4 ranks gives what ranks of the host give."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, rand
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import training
from tests.distributed.ranks import Ranks, ranks

STEPS = 4


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with ranks(2) as started:
        yield started


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with ranks(4) as started:
        yield started


def halved(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of a user's: it works on the bucket before and after the collective."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * 0.5)


DDP = {
    "unused parameters": {},
    "views of buckets": {"gradient_as_bucket_view": True},
    "a hook": {"hook": halved},
    "a hook that compresses": {"hook": default_hooks.fp16_compress_hook},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", DDP.values(), ids=DDP)
def test_data_parallel(two: Ranks, options: dict[str, Any]) -> None:
    tolerance = 2e-2 if options.get("hook") is default_hooks.fp16_compress_hook else 1e-4
    two.run(_data_parallel, tolerance, options)


def _data_parallel(tolerance: float, options: dict[str, Any]) -> None:
    training.equal_to_the_host(training.ddp, STEPS, tolerance, **options)


@pytest.mark.slow
def test_data_parallel_on_four(four: Ranks) -> None:
    four.run(training.equal_to_the_host, training.ddp, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("train", [training.fsdp, training.fsdp_offloaded])
def test_fully_sharded(two: Ranks, train: Any) -> None:
    two.run(training.equal_to_the_host, train, STEPS)


@pytest.mark.slow
def test_fully_sharded_in_bfloat16(two: Ranks) -> None:
    two.run(training.equal_to_the_host, training.fsdp_mixed, STEPS, 2e-2)


@pytest.mark.slow
def test_fully_sharded_on_four(four: Ranks) -> None:
    four.run(training.equal_to_the_host, training.fsdp, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("train", [training.tensor_parallel, training.sequence_parallel])
def test_tensor_parallel(two: Ranks, train: Any) -> None:
    two.run(training.equal_to_the_host, train, STEPS)


@pytest.mark.slow
def test_tensor_parallel_on_four(four: Ranks) -> None:
    four.run(training.equal_to_the_host, training.tensor_parallel, STEPS)


def batch_norm_and_sparse(device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Embedding(10, 6, sparse=True), nn.Flatten(), nn.BatchNorm1d(18))
    module = module.to(device)
    module[2].running_mean += dist.get_rank()  # rank 0's are everybody's
    parallel = DistributedDataParallel(module)
    optimize = torch.optim.SGD(parallel.parameters(), lr=0.5)
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        parallel(torch.randint(0, 10, (8, 3)).to(device)).pow(2).sum().backward()
        optimize.step()
        optimize.zero_grad()
    return [t.detach().cpu() for t in (*module.parameters(), *module.buffers())]


def _batch_norm_and_sparse() -> None:
    expected, got = batch_norm_and_sparse("cpu"), batch_norm_and_sparse("tenon")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_buffers_and_sparse_gradients(two: Ranks) -> None:
    two.run(_batch_norm_and_sparse)


def statistics() -> dict[str, Any]:
    parallel = DistributedDataParallel(training.model("tenon"), find_unused_parameters=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for step in range(12):
            parallel(training.batch("tenon", step)[0]).sum().backward()
    assert "gloo:all_reduce" in {event.name for event in profile.events()}
    return parallel._get_ddp_logging_data()


@pytest.mark.slow
def test_statistics_of_steps(two: Ranks) -> None:
    """PyTorch says how long a step computes and sends, and how long it does both."""
    for found in two.run(statistics):
        assert (
            0 < found["avg_backward_compute_comm_overlap_time"] <= found["avg_backward_comm_time"]
        )


def sharded_tensors() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("tenon", (2, 2), mesh_dim_names=("rows", "columns"))
    assert mesh.device_type == "tenon" and mesh["columns"].size() == 2
    x = torch.arange(48.0, device="tenon").view(8, 6)
    sharded = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    assert sharded.to_local().shape == (4, 3) and sharded.to_local().is_tenon
    product = (
        sharded @ distribute_tensor(x.t().contiguous(), mesh, [Replicate(), Shard(0)])
    ).relu()
    torch.testing.assert_close(product.full_tensor(), (x @ x.t()).relu())
    again = sharded.redistribute(mesh, [Shard(1), Replicate()])
    assert again.to_local().shape == (8, 3)
    assert torch.equal(again.full_tensor(), x)
    assert sharded.sum().full_tensor().item() == x.sum().item()

    torch.manual_seed(5)
    first = rand(8, 6, device_mesh=mesh, placements=[Shard(0), Replicate()])
    second = rand(8, 6, device_mesh=mesh, placements=[Replicate(), Replicate()])
    local = [torch.empty_like(second.to_local()) for _ in range(4)]
    dist.all_gather(local, second.to_local())
    assert all(torch.equal(t, local[0]) for t in local)  # replicas are the same
    whole = first.full_tensor()
    assert not torch.equal(whole[:4], whole[4:])  # and parts are not
    torch.manual_seed(5)
    assert torch.equal(
        rand(8, 6, device_mesh=mesh, placements=[Shard(0), Replicate()]).full_tensor(), whole
    )
    dropped = nn.functional.dropout(distribute_tensor(x + 1, mesh, [Shard(0), Shard(1)]), 0.5)
    kept = (dropped.full_tensor() != 0).float()
    assert 0 < kept.mean().item() < 1 and dropped.to_local().shape == (4, 3)
    assert rank == mesh.get_rank()


@pytest.mark.slow
def test_sharded_tensors_and_their_random_numbers(four: Ranks) -> None:
    four.run(sharded_tensors)


SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def pipeline(device: str, schedule: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    parts = [training.Block() for _ in range(4)]
    interleaved = schedule == "interleaved"
    own = (
        [parts[rank], parts[rank + size]]
        if interleaved
        else [nn.Sequential(*parts[2 * rank : 2 * rank + 2])]
    )
    modules = [part.to(device) for part in own]
    at = torch.device(device, torch.tenon.current_device() if device == "tenon" else None)
    stages = [
        PipelineStage(module, rank + k * size, size * len(modules), at)
        for k, module in enumerate(modules)
    ]
    runner = SCHEDULES[schedule](
        stages if interleaved else stages[0], 4, loss_fn=nn.functional.mse_loss
    )
    optimizers = [training.optimizer(module) for module in modules]
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 5, training.WIDTH, generator=generator).to(device)
        found: list[torch.Tensor] = []
        if rank == 0:
            runner.step(x)
        elif rank == size - 1:
            runner.step(target=x.flip(0), losses=found)
        else:
            runner.step()
        for optimize in optimizers:
            optimize.step()
            optimize.zero_grad()
        losses += [t.item() for t in found]
    named = {f"{k}.{n}": p for k, m in enumerate(modules) for n, p in m.named_parameters()}
    return losses, {name: training.whole(p) for name, p in named.items()}


def _pipeline(schedule: str) -> None:
    expected, got = pipeline("cpu", schedule), pipeline("tenon", schedule)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(got[0]) == (12 if dist.get_rank() == 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines(two: Ranks, schedule: str) -> None:
    two.run(_pipeline, schedule)
