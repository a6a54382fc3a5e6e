"""Random numbers in compiled graphs: whose generator they are of, and that eager code has them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

DEVICE = torch.device("tenon")


@pytest.fixture(autouse=True)
def states():
    torch._dynamo.reset()
    host, device = torch.get_rng_state(), torch.tenon.get_rng_state()
    yield
    torch.set_rng_state(host)
    torch.tenon.set_rng_state(device)
    torch._dynamo.reset()


def drawn(f: Callable[..., object]) -> list[torch.Tensor]:
    """What `f` gives for one state of the generators, and what both of these give after it."""
    host, device = torch.Generator().manual_seed(5).get_state(), torch.tenon.get_rng_state()
    torch.set_rng_state(host)
    torch.tenon.set_rng_state(device)
    x = torch.tensor([0.1, 0.5, 0.9, 0.3], device=DEVICE)
    found = f(x)
    results = list(found) if isinstance(found, tuple) else [found]
    results = [t.cpu() for t in results] + [torch.rand(3), torch.rand(3, device=DEVICE).cpu()]
    torch.tenon.set_rng_state(device)
    return results


def check(f: Callable[..., object]) -> None:
    compiled = torch.compile(f, backend="tenon")
    expected = drawn(f)
    for _ in range(2):
        for got, want in zip(drawn(compiled), expected, strict=True):
            assert torch.equal(got, want)


ON_THE_HOST = {
    "rand": lambda: torch.rand(4),
    "randn": lambda: torch.randn(4),
    "randint": lambda: torch.randint(0, 90, (4,)),
    "randperm": lambda: torch.randperm(4),
    "uniform_": lambda: torch.empty(4).uniform_(2, 3),
    "rand_like": lambda: torch.rand_like(torch.ones(4)),
    "bernoulli": lambda: torch.bernoulli(torch.full((4,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4),
    "poisson": lambda: torch.poisson(torch.full((4,), 3.0)),
    "dropout": lambda: F.dropout(torch.ones(4)),
}


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_the_hosts_numbers(name: str) -> None:
    """They were drawn from the device's generator, and the host's did not move on."""
    check(lambda x: x + ON_THE_HOST[name]().to(x.device))


def test_several_of_the_hosts_numbers_come_in_order() -> None:
    check(
        lambda x: (
            torch.rand(4).to(x.device) * x,
            torch.randn(4, device=x.device) + x,
            torch.randn(4).to(x.device) * 2,
            torch.rand(4),
        )
    )


@pytest.mark.parametrize(
    "draw",
    [
        torch.poisson,
        torch._standard_gamma,
        torch._sample_dirichlet,
        lambda x: torch.binomial(x * 100, x),
        lambda x: x.clone().random_(3, 90),
        lambda x: torch.zeros(3, 4, device=x.device).bernoulli_(x.double()),
    ],
)
def test_what_a_kernel_of_the_host_draws_for_the_device(draw: Callable[..., object]) -> None:
    """It had the host's generator, and the device's did not move on."""
    check(draw)


def test_a_graph_whose_arguments_and_results_are_the_hosts() -> None:
    """It was taken for one of the host, and drew from the host's generator for the device."""
    check(lambda _: (torch.rand(4, device=DEVICE) + torch.rand(4).to(DEVICE)).cpu())


def test_threads_draw_different_numbers() -> None:
    compiled = torch.compile(lambda: torch.rand(2, device=DEVICE), backend="tenon")
    compiled()
    found: list[tuple[float, ...]] = []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        found.extend(tuple(compiled().tolist()) for _ in range(50))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 200
