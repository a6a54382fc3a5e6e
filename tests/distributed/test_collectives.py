"""Collectives on tensors of the device: the same as on tensors of the host, bit for bit."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fresh_process import ASYNCHRONOUS_TARGET, REMOTE_TARGET

from tests.distributed.ranks import Ranks, ranks

SIZE = 2
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
)
TARGETS = {"cpu": "", "remote": REMOTE_TARGET, "asynchronous": ASYNCHRONOUS_TARGET}


@pytest.fixture(scope="module", params=TARGETS)
def group(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    target = TARGETS[request.param]
    with ranks(SIZE, **({"TENON_TARGET": target} if target else {})) as started:
        yield started


def values(device: str, dtype: torch.dtype, *sizes: int, seed: int = 0) -> torch.Tensor:
    """Computed on the device, so that a collective has to wait for them; other ones by rank."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    base = torch.randint(0, 5, sizes, generator=generator).to(dtype).to(device)
    return base if dtype is torch.bool else base + base


def all_reduce(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x, part = values(device, dtype, 4, 5), values(device, dtype, 6, 4, seed=1)
    dist.all_reduce(x)
    dist.all_reduce(part[2:4], op=dist.ReduceOp.MAX)  # and what lies around it stays
    return [x * x, part]


def average(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x = values(device, dtype, 7)
    if dtype.is_floating_point:
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return [x]


def broadcast(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x, fresh = values(device, dtype, 3), torch.empty(3, dtype=dtype, device=device)
    dist.broadcast(x, 1)
    if dist.get_rank() == 0:
        fresh = values(device, dtype, 3, seed=2)
    dist.broadcast(fresh, 0)
    return [x, fresh]


def reduce(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x = values(device, dtype, 2, 3)
    dist.reduce(x, 1)
    return [x] if dist.get_rank() == 1 else []


def all_gather(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x = values(device, dtype, 3, 2)
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    whole = torch.empty(3 * SIZE, 2, dtype=dtype, device=device)
    dist.all_gather_single(whole, x)
    in_place = torch.zeros(3 * SIZE, 2, dtype=dtype, device=device)
    own = in_place.chunk(SIZE)[dist.get_rank()]
    own.copy_(x)
    dist.all_gather_single(in_place, own)
    return [*parts, whole, in_place]


def gather(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x = values(device, dtype, 5)
    parts = [torch.empty_like(x) for _ in range(SIZE)] if dist.get_rank() == 1 else None
    dist.gather(x, parts, 1)
    return parts or []


def scatter(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    parts = list(values(device, dtype, 2 * SIZE).chunk(SIZE)) if dist.get_rank() == 0 else None
    x = torch.empty(2, dtype=dtype, device=device)
    dist.scatter(x, parts, 0)
    return [x]


def reduce_scatter(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    whole = values(device, dtype, 3 * SIZE)
    by_list, by_tensor = (torch.empty(3, dtype=dtype, device=device) for _ in range(2))
    dist.reduce_scatter(by_list, list(whole.chunk(SIZE)))
    dist.reduce_scatter_single(by_tensor, whole)
    return [by_list, by_tensor]


def all_to_all(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    x = values(device, dtype, 3)
    single, split = torch.empty(2, dtype=dtype, device=device), torch.empty_like(x)
    dist.all_to_all_single(single, x[:2].clone())
    rank = dist.get_rank()
    split = torch.empty(2 if rank == 0 else 4, dtype=dtype, device=device)
    dist.all_to_all_single(split, x, [1, 1] if rank == 0 else [2, 2], [1, 2])
    parts = [torch.empty(2, dtype=dtype, device=device) for _ in range(SIZE)]
    dist.all_to_all(parts, list(values(device, dtype, 2 * SIZE, seed=3).chunk(SIZE)))
    return [single, split, *parts]


def point_to_point(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    x, got, batched = (values(device, dtype, 4, seed=k) for k in range(3))
    if rank == 0:
        dist.send(x, other)
        source = dist.recv(got)
    else:
        source = dist.recv(got)
        dist.send(x, other)
    assert source == other
    works = [dist.isend(x + x, other, tag=7), dist.irecv(batched, other, tag=7)]
    for work in works:
        work.wait()
    again = torch.zeros_like(x)
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, again, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [got, batched, again]


def coalesced(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    xs = [values(device, dtype, 2 + k, seed=k) for k in range(3)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    with dist._coalescing_manager(async_ops=True) as works:
        wholes = [torch.empty(SIZE * x.numel(), dtype=dtype, device=device) for x in xs]
        for x, whole in zip(xs, wholes, strict=True):
            dist.all_gather_single(whole, x)
    works.wait()
    with dist._coalescing_manager():
        parts = [torch.empty(x.numel(), dtype=dtype, device=device) for x in xs]
        for part, whole in zip(parts, wholes, strict=True):
            dist.reduce_scatter_single(part, whole)
    return [*xs, *wholes, *parts]


def functional(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    from torch.distributed import _functional_collectives as functions

    x, world = values(device, dtype, 2 * SIZE), dist.group.WORLD
    return [
        functions.all_reduce(x, "sum", world) + x,
        functions.all_gather_tensor(x, 0, world) * 1,
        functions.reduce_scatter_tensor(x, "sum", 0, world) * 1,
        functions.all_to_all_single(x, None, None, world) * 1,
        functions.broadcast(x, 0, world) * 1,
        *(t * 1 for t in functions.all_reduce_coalesced([x, x + x], "max", world)),
    ]


COLLECTIVES = (
    *(all_reduce, average, broadcast, reduce, all_gather, gather, scatter, reduce_scatter),
    *(all_to_all, point_to_point, coalesced, functional),
)


def as_on_the_host(collective: Callable[[str, torch.dtype], list[torch.Tensor]]) -> None:
    for dtype in DTYPES:
        expected = collective("cpu", dtype)
        got = collective("tenon", dtype)
        assert [t.device.type for t in got] == ["tenon"] * len(expected)
        torch.testing.assert_close([t.cpu() for t in got], expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_collective(
    group: Ranks, collective: Callable[[str, torch.dtype], list[torch.Tensor]]
) -> None:
    group.run(as_on_the_host, collective)


def in_order_with_what_is_recorded() -> None:
    x = torch.full((300, 300), 0.5, device="tenon")
    expected = 0.5
    for k in range(20):
        x = x * 2 - (0.25 if k % 3 else 0.0)
        x += 1
        expected = expected * 2 - (0.25 if k % 3 else 0.0) + 1
        work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
        aside = torch.ones(10, device="tenon") * k
        work.wait()
        y = x + aside.sum() - 10 * k
        x = y
        assert x[7, 7].item() == expected


@pytest.mark.slow
def test_what_was_recorded_comes_first(group: Ranks) -> None:
    group.run(in_order_with_what_is_recorded)


def works() -> None:
    rank = dist.get_rank()
    x = torch.full((1000,), rank + 1.0, device="tenon")
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait().cpu(), torch.full((1000,), 6.0))
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.exception() is None
    assert work.result()[0].data_ptr() == x.data_ptr() and future.value()[0].is_tenon
    assert x.tolist() == [3.0] * 1000

    y = torch.full((1000,), rank + 1.0, device="tenon")
    work = dist.all_reduce(y, async_op=True)
    while not work.is_completed():
        pass
    assert y.tolist() == [3.0] * 1000

    dropped = torch.full((1000,), 1.0, device="tenon")
    dist.all_reduce(dropped, async_op=True)
    del dropped  # the memory stays until the collective is over
    parts = [torch.empty(3, device="tenon") for _ in range(SIZE)]
    work = dist.all_gather(parts, torch.full((3,), float(rank), device="tenon"), async_op=True)
    work.get_future().wait()
    assert [p.tolist() for p in parts] == [[0.0] * 3, [1.0] * 3]


def test_work_and_its_future(group: Ranks) -> None:
    group.run(works)


def objects() -> None:
    rank = dist.get_rank()
    everything: list[object] = [None] * SIZE
    dist.all_gather_object(everything, {"rank": rank, "x": torch.ones(2)})
    assert [e["rank"] for e in everything] == [0, 1]  # type: ignore[index]
    given = ["a", 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, 0, device=torch.device("tenon"))
    assert given == ["a", 1]
    out: list[object] = [None]
    dist.scatter_object_list(out, ["x", "y"] if rank == 0 else None, 0)
    assert out == ["xy"[rank]]
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()


@pytest.mark.slow
def test_objects_and_barriers(group: Ranks) -> None:
    group.run(objects)


def sparse() -> None:
    indices = torch.tensor([[0, dist.get_rank() + 1]], device="tenon")
    x = torch.sparse_coo_tensor(indices, torch.ones(2, device="tenon"), (4,))
    dist.all_reduce(x)
    assert x.device.type == "tenon" and x.is_sparse
    assert x.to_dense().tolist() == [2.0, 1.0, 1.0, 0.0]


def test_sparse_tensors_are_added_up(group: Ranks) -> None:
    group.run(sparse)


def groups_of_some() -> None:
    rank = dist.get_rank()
    alone = [dist.new_group([k]) for k in range(SIZE)][rank]
    both = dist.new_group([0, 1], backend="gloo")
    x = torch.ones(3, device="tenon")
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [1.0] * 3
    dist.all_reduce(x, group=both)
    assert x.tolist() == [2.0] * 3
    on_other = torch.ones(3, device="tenon:1")
    dist.all_reduce(on_other)
    assert on_other.tolist() == [2.0] * 3 and on_other.device.index == 1
    dist.destroy_process_group(both)


def test_groups_of_some_ranks(group: Ranks) -> None:
    group.run(groups_of_some)


def with_gaps(device: str) -> list[torch.Tensor]:
    """Columns and the like. Gloo takes elements from a tensor's place on, as if it had no gaps; so
    on the host each goes through a tensor of its own."""
    rank, found = dist.get_rank(), []

    def given(*sizes: int) -> torch.Tensor:
        whole = values(device, torch.float32, *sizes, seed=7)
        found.append(whole)
        return whole

    def by(call: Callable[[torch.Tensor], Any], part: torch.Tensor) -> None:
        whole = part if device == "tenon" else part.contiguous()
        call(whole)
        part.copy_(whole)

    by(dist.all_reduce, given(4, 3)[:, 1])
    by(functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX), given(5, 4)[1:4, ::2])
    by(functools.partial(dist.broadcast, src=1), given(4, 3)[:, 2])
    x = given(4, 3)
    by(functools.partial(dist.reduce, dst=0), x[:, 0])
    if rank == 1:
        x[:, 0] = 0
    parts = list(given(3, 2).t()) if rank == 0 else None
    if parts is not None and device == "cpu":
        parts = [t.contiguous() for t in parts]
    by(lambda out: dist.scatter(out, parts, 0), given(3, 2)[:, 0])
    a, b = given(4, 2).t()
    with dist._coalescing_manager():
        gathered = [t if device == "tenon" else t.contiguous() for t in (a, b)]
        for t in gathered:
            dist.all_reduce(t)
    a.copy_(gathered[0]), b.copy_(gathered[1])
    columns = given(4, 2).t()
    dist.all_gather(list(columns), given(4, 3)[:, 1])
    parts = [torch.empty(4, 3, device=device) for _ in range(SIZE)]
    dist.all_gather(parts, given(1, 3).expand(4, 3))
    found += parts
    return found


def gaps() -> None:
    expected, got = with_gaps("cpu"), with_gaps("tenon")
    torch.testing.assert_close([t.cpu() for t in got], expected, rtol=0, atol=0)
    repeated = torch.ones(1, 3, device="tenon").expand(400, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        dist.all_reduce(repeated)


@pytest.mark.slow
def test_tensors_with_gaps(group: Ranks) -> None:
    group.run(gaps)


def numbers() -> None:
    x = torch.tensor(2.0 + dist.get_rank(), device="tenon")
    dist.all_reduce(x)
    parts = [torch.zeros((), device="tenon") for _ in range(SIZE)]
    dist.all_gather(parts, x + dist.get_rank())
    whole, share = torch.zeros(SIZE, device="tenon"), torch.zeros((), device="tenon")
    dist.all_gather_single(whole, x)
    dist.reduce_scatter_single(share, torch.arange(2.0, device="tenon") + 1)
    assert [x.item(), *(p.item() for p in parts), *whole.tolist()] == [5, 5, 6, 5, 5]
    assert share.item() == 2 * (dist.get_rank() + 1) and share.shape == x.shape == ()


def test_tensors_without_dimensions(group: Ranks) -> None:
    group.run(numbers)


def resized_in_flight() -> None:
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1 << 20, device="tenon")
    x.cpu()
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        x.untyped_storage().resize_(0)
        others = [torch.full((1 << 20,), 7.0, device="tenon") for _ in range(4)]
        assert all(y[0].item() == 7 for y in others)
        store.set("it has no memory", "")
        work.wait()
        assert all(bool((y == 7).all()) for y in others)
    else:
        store.wait(["it has no memory"])
        dist.all_reduce(x)


@pytest.mark.slow
def test_memory_stays_where_a_storage_is_resized(group: Ranks) -> None:
    if group.variables:
        pytest.skip("copies are in flight there")
    group.run(resized_in_flight)


def late_error() -> str:
    x = torch.arange(3.0, device="tenon")
    for k in (0, 1, 5):  # the last is recorded, and found wrong when it runs
        index = torch.tensor([k, 0, 0]).to("tenon")
        taken = x[index] + 1
        try:
            dist.all_reduce(taken)
        except (IndexError, RuntimeError) as error:
            return str(error)
    return ""


def test_an_error_of_what_was_recorded_is_raised(group: Ranks) -> None:
    for text in group.run(late_error):
        assert "index 5 is out of bounds" in text


def refused() -> list[str]:
    """Into results whose contents are an error: a collective that raises, and one that does not."""
    x = torch.arange(3.0, device="tenon")
    for k in (0, 1):
        x[torch.tensor([k, 0, 0]).to("tenon")].cpu()
    taken = x[torch.tensor([5, 0, 0]).to("tenon")]
    found = []
    with pytest.raises(IndexError):
        taken.cpu()
    with pytest.raises(Exception, match=r"type|dtype"):
        dist.all_gather([taken, torch.empty(3, dtype=torch.int64).to("tenon")], x)
    try:
        taken.cpu()
    except IndexError as error:
        found.append(str(error))
    dist.all_gather([taken, torch.empty_like(x)], x)
    assert taken.tolist() == [0, 1, 2]
    return found


@pytest.mark.slow
def test_an_error_stays_where_a_collective_fails(group: Ranks) -> None:
    for errors in group.run(refused):
        assert len(errors) == 1 and "index 5 is out of bounds" in errors[0]
