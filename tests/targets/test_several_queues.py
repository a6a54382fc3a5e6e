"""Copies beside kernels, on a target whose queues are slow by turns: the results are the CPU's.

The functions run in processes that have such a target.
"""

import random
import sys
import threading
from pathlib import Path

import pytest
import torch
from fresh_process import TESTS, output
from turns import settle

import torch_tenon

sys.path.insert(0, str(Path(__file__).parent))
from test_asynchronous import waits, waits_since

TARGETS = {
    name: f"{TESTS / 'targets' / 'several_queues.py'}:{name}"
    for name in ("SeveralQueuesTarget", "BothWaysTarget")
}
SIZES = (150, 120)  # more bytes than copies have that stay with kernels


def queues():
    """The device's queue of kernels, and the first and the last of those for copies."""
    target = torch_tenon.target()
    return target.queue(0), target.copy_queues(0)[0], target.copy_queues(0)[-1]


def batch(seed: int) -> torch.Tensor:
    made = torch.randint(-4, 5, SIZES, generator=torch.Generator().manual_seed(seed))
    return made.float().pin_memory() if seed % 3 else made.float()


def program(seed: int, device: str) -> list[torch.Tensor]:
    """What a random program of copies and ops reads and leaves, of a few tensors.

    Numbers stay whole and small, so that each order of a sum is the same.
    """
    pick = random.Random(seed)
    some = [torch.zeros(SIZES, device=device) for _ in range(4)]
    read = []
    for step in range(30):
        k, j = pick.sample(range(len(some)), 2)
        row = pick.randrange(1, SIZES[0])
        match pick.randrange(9):
            case 0:
                some[k].copy_(batch(step), non_blocking=True)
            case 1:
                some[k] = batch(step).to(device, non_blocking=True)
            case 2:
                some[k][:row].copy_(batch(step)[:row], non_blocking=True)
            case 3:
                read.append(some[k].cpu().clone())
            case 4:
                read.append(some[k][row:].sum().cpu())
            case 5:
                some[k] = (some[k] * 2 + some[j]) % 7
            case 6:
                some[k].add_(some[j]).remainder_(5)
            case 7:
                some[k][row:] = some[j][row:].flip(0) - some[k][row:]
            case 8:
                torch_tenon.commit() if device == "tenon" else None
    return read + [x.cpu().clone() for x in some]


def programs(seeds: int) -> str:
    for seed in range(seeds):
        for found, expected in zip(program(seed, "tenon"), program(seed, "cpu"), strict=True):
            assert torch.equal(found, expected), seed
    assert all(queue.copies > seeds for queue in queues())
    return "right"


long = pytest.mark.long


@pytest.mark.parametrize(
    ("target", "mode"),
    [
        ("SeveralQueuesTarget", "auto"),
        pytest.param("SeveralQueuesTarget", "compiled", marks=long),
        pytest.param("SeveralQueuesTarget", "reference", marks=long),
        pytest.param("BothWaysTarget", "auto", marks=long),
        ("BothWaysTarget", "compiled"),
        ("BothWaysTarget", "reference"),
    ],
)
def test_random_programs(target: str, mode: str) -> None:
    assert run_there("programs(8)", target, TENON_EXECUTE=mode) == "right"


def training_with_batches_on_their_way() -> str:
    """Each batch is copied while the step before computes; losses are read a step later."""

    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(SIZES[1], 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        buffers = [torch.zeros(SIZES, device=device) for _ in range(2)]
        found, last = [], None
        for step in range(16):
            x = buffers[step % 2]
            x.copy_(batch(step), non_blocking=True)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if last is not None:
                found.append(last.item())
            last = loss.detach()
        return found

    torch.testing.assert_close(losses("tenon"), losses("cpu"), rtol=1e-4, atol=1e-5)
    return "right"


@pytest.mark.slow
def test_training_with_batches_on_their_way() -> None:
    assert run_there("training_with_batches_on_their_way()") == "right"


def copies_wait_on_the_device() -> str:
    kernels, copies, _ = queues()
    x, ready = batch(1).to("tenon"), batch(2).to("tenon")
    for _ in range(4):
        settle()
        y = x * 3
        torch_tenon.commit()
        y.cpu()
    torch.tenon.synchronize()
    counted = waits()
    kernels.runs.clear()
    y = x * 3
    torch_tenon.commit()
    assert torch.equal(ready.cpu(), batch(2))  # what was made before is read while it runs
    assert waits_since(counted) in ({}, {"wait::copy": 1})
    counted, passed = waits(), copies.copies
    x.copy_(batch(4), non_blocking=True)  # the kernel still reads it
    y.copy_(batch(5), non_blocking=True)  # ... and has not written this
    z = batch(7).to("tenon", non_blocking=True)
    assert waits_since(counted) == {} and copies.copies == passed + 3
    threading.Timer(0.1, kernels.runs.set).start()
    for found, expected in ((x, batch(4)), (y, batch(5)), (z, batch(7))):
        assert torch.equal(found.cpu(), expected)
    assert torch.equal((x - 1).cpu(), batch(4) - 1)
    return "right"


@pytest.mark.slow
def test_copies_to_memory_in_use_wait_on_the_device() -> None:
    call = "copies_wait_on_the_device()"
    assert run_there(call, TENON_EXECUTE="compiled", TENON_DEVICES="1") == "right"


def run_there(call: str, target: str = "SeveralQueuesTarget", **settings: str) -> str:
    code = f"""
        import sys
        sys.path.insert(0, "targets")
        from test_several_queues import *
        print({call})
    """
    return output(code, TENON_TARGET=TARGETS[target], **settings)
