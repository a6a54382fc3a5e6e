"""Which ranks are found to be gone, of this machine and of others."""

import os

import pytest
import torch.distributed as dist

from torch_tenon.distributed.roll_call import RollCall

NO_PROCESS = 1 << 30  # more than the system numbers


class Store:
    """A group's store with records of ranks that are no processes of the test."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        RollCall(self.store, 0, 3)
        self.own = self.store.get("process/0").decode().split()
        for rank in (1, 2):
            self.put(rank)

    def put(self, rank: int, **changed: object) -> None:
        """A record like that of this process, but for what is given."""
        fields = dict(zip(("machine", "host", "started", "pid"), self.own, strict=True))
        record = {**fields, **{name: str(value) for name, value in changed.items()}}
        self.store.set(f"process/{rank}", " ".join(record.values()))

    def explain(self) -> str:
        """What rank 0 finds."""
        ranks = RollCall(self.store, 0, 3)
        ranks.meet()
        return ranks.explain()


@pytest.fixture
def store() -> Store:
    return Store()


def test_nobody_is_gone(store: Store) -> None:
    assert int(store.own[-1]) == os.getpid()
    assert store.explain().startswith("No rank is seen to be gone")


def test_processes_of_this_machine(store: Store) -> None:
    store.put(1, pid=NO_PROCESS)
    store.put(2, started="1")  # another process has its number now
    assert store.explain() == (
        f"rank 1 is gone: its process {NO_PROCESS} has ended; "
        f"rank 2 is gone: its process {os.getpid()} has ended"
    )


@pytest.mark.slow
def test_a_rank_of_another_machine_that_does_not_answer(store: Store) -> None:
    store.put(2, machine="another", host="far")
    assert store.explain() == "rank 2 on far does not answer"


def test_a_rank_of_another_machine_that_answers(store: Store) -> None:
    store.put(2, machine="another", host="far")
    store.store.set(f"answer/{' '.join(store.own)}/2", "here")
    assert store.explain().startswith("No rank is seen to be gone")


def test_the_first_that_is_gone_is_named(store: Store) -> None:
    store.put(1, pid=NO_PROCESS)
    first = store.explain()
    store.put(1)
    store.put(2, pid=NO_PROCESS)  # who found it ends, too
    assert store.explain() == first
