"""Groups of every kind serve tensors of the device and of the host, and bad input gets errors."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.distributed.killed import Port
from tests.distributed.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def group() -> Iterator[Ranks]:
    with ranks(2) as started:
        yield started


def both_kinds() -> None:
    for device in ("cpu", "tenon"):
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 3


def default_group() -> None:
    both_kinds()
    assert dist.get_backend() == "gloo"
    assert dist.get_default_backend_for_device("tenon") == "gloo"
    assert "tenon:gloo" in dist.get_backend_config()


def test_no_backend_is_named(group: Ranks) -> None:
    group.run(default_group)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,tenon:gloo"])
def test_a_backend_is_named(backend: str) -> None:
    with ranks(2, backend) as started:
        started.run(both_kinds)


def group_for_a_device(path: str) -> None:
    dist.destroy_process_group()
    rank = int(torch.tenon.current_device())
    dist.init_process_group(
        init_method=f"file://{path}",
        rank=rank,
        world_size=2,
        device_id=torch.device("tenon", rank),
    )
    both_kinds()
    dist.barrier()
    part = dist.split_group(split_ranks=[[0], [1]])
    x = torch.ones(3, device="tenon")
    dist.all_reduce(x, group=part)
    assert x.tolist() == [1.0] * 3
    mesh = dist.init_device_mesh("tenon", (1, 2), mesh_dim_names=("rows", "columns"))
    dist.all_reduce(x, group=mesh.get_group("columns"))
    assert x.tolist() == [2.0] * 3


def test_a_group_is_bound_to_a_device(tmp_path: Path) -> None:
    with ranks(2) as started:
        started.run(group_for_a_device, str(tmp_path / "store"))


# Other kinds, each as the default group of a process that had another


def a_fake() -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    x = torch.ones(2, device="tenon")
    dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0]
    assert dist.init_device_mesh("tenon", (4,)).size() == 4


def all_ranks_in_one_process() -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with LocalTensorMode(2):
        mesh = dist.init_device_mesh("tenon", (2,))
        x = torch.arange(4.0, device="tenon").view(2, 2)
        sharded = distribute_tensor(x, mesh, [Shard(0)])
        product = (sharded @ sharded.t()).full_tensor().reconcile()
    assert product.tolist() == [[1.0, 3.0], [3.0, 13.0]]


def somebody_elses(devices: list[str], left_alone: bool) -> None:
    made: list[object] = []

    def make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> object:
        made.append(dist.ProcessGroupGloo(store, rank, size, timeout))
        return made[0]

    dist.destroy_process_group()
    dist.Backend.register_backend("theirs", make, devices=devices)
    dist.init_process_group("theirs", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    found = dist.group.WORLD._get_backend(torch.device("tenon"))
    assert (found is made[0]) == left_alone
    if not left_alone:
        x = torch.ones(2, device="tenon")
        dist.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (a_fake, ()),
        (all_ranks_in_one_process, ()),
        pytest.param(somebody_elses, (["cpu", "tenon"], True), id="for the device"),
        pytest.param(somebody_elses, (["cpu"], False), id="for the host"),
    ],
)
def test_other_groups(check: Callable[..., None], arguments: tuple[object, ...]) -> None:
    with ranks(1) as started:
        started.run(check, *arguments)


# Bad input


def mixed_devices() -> list[str]:
    found = []
    x, other, host = (torch.ones(2, device=d) for d in ("tenon:0", "tenon:1", "cpu"))
    for outputs, given in (([x, other], x), ([x, host], x), ([x, x], other), ([host, host], x)):
        try:
            dist.all_gather(outputs, given)
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_tensors_on_different_devices(group: Ranks) -> None:
    for errors in group.run(mixed_devices):
        assert len(errors) == 4
        for error in errors:
            assert "Expected all tensors to be on the same device" in error
            assert "tenon:0" in error and "all_gather" in error


def other_sizes(path: str) -> None:
    rank = dist.get_rank()
    dist.destroy_process_group()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group(init_method=f"file://{path}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4 + 4 * rank, device="tenon"))


@pytest.mark.slow
def test_sizes_that_differ_are_found(tmp_path: Path) -> None:
    with ranks(2) as started:
        for returned, error in started.outcomes(other_sizes, str(tmp_path / "store")):
            assert not returned
            assert "Detected mismatch between collectives on ranks" in error
            assert "Rank 0" in error and "Rank 1" in error and "TensorShape=[8]" in error


def a_mesh_that_is_too_large() -> str:
    try:
        dist.init_device_mesh("tenon", (2, 2))
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_mesh_larger_than_the_world(group: Ranks) -> None:
    for error in group.run(a_mesh_that_is_too_large):
        assert "Mesh should not be bigger than default world size 2, but found 4" in error


def a_store_that_nobody_serves(port: int) -> str:
    dist.destroy_process_group()
    try:
        dist.init_process_group(
            init_method=f"tcp://127.0.0.1:{port}",
            rank=1,
            world_size=2,
            timeout=timedelta(seconds=1),
        )
    except dist.DistNetworkError as error:
        return str(error)
    return ""


def test_a_store_that_nobody_serves() -> None:
    port = Port()
    with ranks(1) as started:
        (error,) = started.run(a_store_that_nobody_serves, port.number)
        assert "client socket has timed out after 1000ms" in error


def late_rank() -> None:
    if dist.get_rank() == 1:
        return
    x = torch.ones(3, device="tenon")
    work = dist.all_reduce(x, async_op=True)
    work.wait(timedelta(seconds=1))


def test_a_rank_that_does_not_come(group: Ranks) -> None:
    outcomes = group.outcomes(late_rank)
    assert outcomes[1][0] and not outcomes[0][0]
    assert "No rank is seen to be gone" in outcomes[0][1]


def dies() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    for device in ("tenon", "tenon"):
        dist.all_reduce(torch.ones(3, device=device))


@pytest.mark.slow
def test_the_rank_that_died_is_named(group: Ranks) -> None:
    outcomes = group.outcomes(dies)
    assert outcomes[1] == (False, "died")
    assert "DistBackendError" in outcomes[0][1] and "rank 1 is gone" in outcomes[0][1]


def dies_before_a_barrier() -> str:
    if dist.get_rank() == 1:
        os._exit(3)
    try:
        dist.barrier()
    except RuntimeError as error:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            sys.excepthook(type(error), error, error.__traceback__)  # as nobody had caught it
        return printed.getvalue()
    return ""


def test_the_rank_that_died_is_named_where_only_the_host_takes_part(group: Ranks) -> None:
    """A barrier is the host's, and its error is Gloo's own."""
    outcomes = group.outcomes(dies_before_a_barrier)
    assert outcomes[1] == (False, "died")
    assert "RuntimeError" in outcomes[0][1] and "rank 1 is gone" in outcomes[0][1]
