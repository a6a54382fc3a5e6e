"""Groups of every kind serve tensors of the device and of the host, and bad input gets errors."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fresh_process import output, run

from tests.distributed.killed import free_port
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


def test_a_group_that_only_pretends() -> None:
    assert (
        output(
            """
        import torch, torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        x = torch.ones(2, device="tenon")
        dist.all_reduce(x)
        mesh = dist.init_device_mesh("tenon", (4,))
        print(x.tolist(), mesh.size())
        """
        )
        == "[1.0, 1.0] 4"
    )


def test_a_backend_of_somebody_elses_is_left_alone() -> None:
    assert (
        output(
            """
        import datetime, torch, torch.distributed as dist
        made = []
        def make(store, rank, size, timeout):
            made.append(dist.ProcessGroupGloo(store, rank, size, timeout))
            return made[0]
        dist.Backend.register_backend("theirs", make, devices=["tenon", "cpu"])
        dist.init_process_group(
            "theirs", store=dist.HashStore(), rank=0, world_size=1
        )
        print(dist.group.WORLD._get_backend(torch.device("tenon")) is made[0])
        """
        )
        == "True"
    )


def test_a_backend_of_somebody_elses_for_the_host_serves_the_device() -> None:
    assert (
        output(
            """
        import datetime, torch, torch.distributed as dist
        make = lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout)
        dist.Backend.register_backend("theirs", make, devices=["cpu"])
        dist.init_process_group("theirs", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2, device="tenon")
        dist.all_reduce(x)
        print(x.tolist(), type(dist.group.WORLD._get_backend(torch.device("tenon"))).__name__)
        """
        )
        == "[1.0, 1.0] DeviceBackend"
    )


def test_all_ranks_in_one_process() -> None:
    assert (
        output(
            """
        import torch, torch.distributed as dist
        from torch.distributed._local_tensor import LocalTensorMode
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        with LocalTensorMode(2):
            mesh = dist.init_device_mesh("tenon", (2,))
            x = torch.arange(4.0, device="tenon").view(2, 2)
            sharded = distribute_tensor(x, mesh, [Shard(0)])
            print((sharded @ sharded.t()).full_tensor().reconcile().tolist())
        """
        )
        == "[[1.0, 3.0], [3.0, 13.0]]"
    )


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


def other_sizes() -> None:
    dist.all_reduce(torch.ones(4 + 4 * dist.get_rank(), device="tenon"))


def test_sizes_that_differ_are_found(group: Ranks) -> None:
    with ranks(2, TORCH_DISTRIBUTED_DEBUG="DETAIL") as started:
        for returned, error in started.outcomes(other_sizes):
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


def test_a_store_that_nobody_serves() -> None:
    done = run(
        """
        import datetime, torch.distributed as dist
        dist.init_process_group(timeout=datetime.timedelta(seconds=2))
        """,
        RANK="1",
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        timeout=60,
    )
    assert done.returncode == 1
    assert "client socket has timed out after 2000ms" in done.stderr


def late_rank() -> None:
    if dist.get_rank() == 1:
        return
    x = torch.ones(3, device="tenon")
    work = dist.all_reduce(x, async_op=True)
    work.wait(torch.distributed.distributed_c10d.timedelta(seconds=1))


def test_a_rank_that_does_not_come(group: Ranks) -> None:
    outcomes = group.outcomes(late_rank)
    assert outcomes[1][0] and not outcomes[0][0]
    assert "No rank is seen to be gone" in outcomes[0][1]


def dies() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    for device in ("tenon", "tenon"):
        dist.all_reduce(torch.ones(3, device=device))


def test_the_rank_that_died_is_named(group: Ranks) -> None:
    outcomes = group.outcomes(dies)
    assert outcomes[1] == (False, "died")
    assert "DistBackendError" in outcomes[0][1] and "rank 1 is gone" in outcomes[0][1]


BARRIER = """
import datetime, os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group(timeout=datetime.timedelta(seconds=20))
if rank == 1:
    os._exit(3)
dist.barrier()
"""


def test_the_rank_that_died_is_named_where_only_the_host_takes_part() -> None:
    """A barrier is the host's, and its error is Gloo's own."""
    port = str(free_port())
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ThreadPoolExecutor(2) as threads:
        starts = [threads.submit(run, BARRIER, RANK=str(k), **common) for k in range(2)]
        done = [start.result() for start in starts]
    assert [d.returncode for d in done] == [1, 3]
    assert "RuntimeError" in done[0].stderr and "rank 1 is gone" in done[0].stderr
