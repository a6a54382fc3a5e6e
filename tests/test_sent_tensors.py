"""Tensors of the device that go through the queues of `torch.multiprocessing`."""

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from fresh_process import output

import torch_tenon

ROOT = Path(__file__).parent.parent
of_host_memory = pytest.mark.skipif(
    not torch_tenon.target().host_memory, reason="the host does not reach the target's memory"
)


def through_a_queue(*tensors: torch.Tensor) -> list[torch.Tensor]:
    queue = mp.get_context("spawn").SimpleQueue()
    queue.put(tensors)
    return list(queue.get())


@of_host_memory
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_what_is_received_has_the_memory_of_what_was_sent(strategy: str) -> None:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        x = torch.arange(12.0, device="tenon").view(3, 4) * 2
        view = x.t()[1:]
        (y,) = through_a_queue(x)
        assert y.device == x.device and torch.equal(y.cpu(), torch.arange(12.0).view(3, 4) * 2)
        x.add_(1)
        y[0, 0] = 50
        assert x[0, 0].item() == 50 and y[2, 3].item() == 23
        assert view.cpu().tolist() == x.cpu().t()[1:].tolist()
        assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        (again,) = through_a_queue(x)
        assert again.data_ptr() == x.data_ptr()
    finally:
        mp.set_sharing_strategy(before)


@of_host_memory
def test_two_views_of_one_storage_stay_views_of_one() -> None:
    x = torch.zeros(6, 5, dtype=torch.bfloat16, device="tenon")
    a, b = through_a_queue(x[1:3], x.t()[::2])
    assert a.stride() == (5, 1) and b.stride() == (2, 5) and b.dtype == torch.bfloat16
    a.fill_(3)
    assert b.cpu()[:, 1:3].tolist() == [[3, 3]] * 3 and b.cpu().sum().item() == 18


@of_host_memory
def test_parameters_and_empty_tensors() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device="tenon"))
    received, nothing = through_a_queue(parameter, torch.empty(0, 4, device="tenon"))
    assert isinstance(received, torch.nn.Parameter) and received.requires_grad
    (received * 2).sum().backward()
    assert received.grad is not None and received.grad.tolist() == [2, 2, 2]
    assert nothing.shape == (0, 4) and nothing.device.type == "tenon"


@of_host_memory
def test_what_was_recorded_before_is_sent_and_training_goes_on() -> None:
    model = torch.nn.Linear(8, 8).to("tenon")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="tenon")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(4):
        step()
    weight, bias = through_a_queue(model.weight, model.bias)
    expected = torch.nn.Linear(8, 8)
    expected.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
    for _ in range(4):
        step()
        expected(torch.ones(4, 8)).square().mean().backward()
        with torch.no_grad():
            for p in expected.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    torch.testing.assert_close(weight.detach().cpu(), expected.weight.detach())
    torch.testing.assert_close(bias.detach().cpu(), expected.bias.detach())


@of_host_memory
def test_memory_that_was_resized_is_sent_anew() -> None:
    x = torch.ones(4, device="tenon")
    through_a_queue(x)
    x.resize_(400).fill_(2)
    (y,) = through_a_queue(x)
    x.add_(1)
    assert y.tolist() == [3.0] * 400


SPAWNED = """
import torch
import torch.multiprocessing as mp

def work(there, back, done):
    x = there.get()
    x.mul_(10)
    back.put((x.sum().item(), torch.arange(3, device="tenon")))
    done.wait(200)

if __name__ == "__main__":
    context = mp.get_context(METHOD)
    there, back, done = context.Queue(), context.Queue(), context.Event()
    process = context.Process(target=work, args=(there, back, done))
    process.start()
    x = torch.ones(1000, device="tenon") + 1
    there.put(x)
    total, made = back.get(timeout=200)
    made += 1
    print(total, x[7].item(), made.tolist(), made.device)
    done.set()
    process.join(200)
    assert process.exitcode == 0
    print(made.tolist(), x.sum().item())
"""


@pytest.mark.slow
@of_host_memory
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_writes_what_it_was_sent(method: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SPAWNED.replace("METHOD", repr(method)))
    code = f"import runpy, sys; sys.argv = [{str(path)!r}]"
    found = output(f"{code}; runpy.run_path(sys.argv[0], run_name='__main__')")
    assert found.splitlines() == ["20000.0 20.0 [1, 2, 3] tenon:0", "[1, 2, 3] 20000.0"]


@pytest.mark.slow
def test_a_target_whose_memory_the_host_does_not_reach_says_so() -> None:
    code = """
        import torch, torch.multiprocessing as mp
        queue = mp.get_context("spawn").SimpleQueue()
        x = torch.ones(3, device="tenon")
        try:
            queue.put(x)
        except RuntimeError as error:
            print(error)
        queue.put(x.cpu())
        print(queue.get().to("tenon").tolist())
    """
    remote = f"{ROOT / 'tests' / 'targets' / 'remote.py'}:RemoteTarget"
    first, second = output(code, TENON_TARGET=remote).splitlines()
    assert first.startswith("a tensor of tenon:0 cannot be sent to another process")
    assert "x.cpu()" in first
    assert second == "[1.0, 1.0, 1.0]"
