"""Random numbers: seeds, states, distributions, and the generator's known answers."""

import math

import pytest
import torch
from philox import philox
from torch.utils.checkpoint import checkpoint

from torch_tenon import _C

N = 40_000


def rand(device: str = "tenon", n: int = 20) -> list[float]:
    return torch.rand(n, device=device).tolist()


def test_seeding() -> None:
    for seed in (
        lambda: torch.manual_seed(5),
        lambda: torch.tenon.manual_seed(5),
        lambda: torch.tenon.manual_seed_all(5),
        lambda: torch.tenon.default_generators[0].manual_seed(5),
    ):
        seed()
        first = rand()
        assert rand() != first
        seed()
        assert rand() == first
        assert torch.tenon.initial_seed() == 5
    torch.manual_seed(5)
    assert rand("tenon:1") == first, "manual_seed seeds every device, and each is its own"
    torch.tenon.manual_seed(6)
    assert rand() != first


def test_seeding_does_not_touch_others() -> None:
    torch.manual_seed(1)
    cpu = torch.rand(3)
    torch.manual_seed(1)
    rand()
    torch.tenon.manual_seed(9)
    torch.randperm(10, device="tenon")
    torch.multinomial(torch.ones(5, device="tenon"), 2)
    torch.poisson(torch.ones(5, device="tenon"))
    assert torch.equal(torch.rand(3), cpu)
    state = torch.tenon.get_rng_state(1)
    torch.tenon.manual_seed(10)
    assert torch.equal(torch.tenon.get_rng_state(1), state)


def test_seeds_from_the_system() -> None:
    torch.tenon.seed()
    first = rand()
    assert torch.tenon.seed() != torch.tenon.seed()
    assert rand() != first
    torch.tenon.seed_all()
    assert torch.tenon.default_generators[1].initial_seed() == torch.tenon.initial_seed()
    torch.seed()
    assert rand() != first


def test_states() -> None:
    torch.manual_seed(3)
    rand()
    state, states = torch.tenon.get_rng_state(), torch.tenon.get_rng_state_all()
    assert state.device.type == "cpu" and state.dtype == torch.uint8 and len(states) == 2
    first = rand()
    torch.tenon.set_rng_state(state)
    assert rand() == first
    torch.tenon.set_rng_state_all(states)
    assert rand() == first
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.tenon.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        torch.tenon.set_rng_state(torch.zeros(16))


def test_fork_rng() -> None:
    torch.manual_seed(3)
    with torch.random.fork_rng(range(2), device_type="tenon"):
        torch.manual_seed(8)
        rand(), rand("tenon:1")
    inside = (rand(), rand("tenon:1"))
    torch.manual_seed(3)
    assert inside == (rand(), rand("tenon:1"))


def test_generators() -> None:
    generator = torch.Generator("tenon").manual_seed(4)
    assert generator.device == torch.device("tenon:0") and generator.initial_seed() == 4
    before = torch.tenon.get_rng_state()
    first = torch.rand(5, generator=generator, device="tenon")
    assert torch.equal(torch.tenon.get_rng_state(), before)
    second = torch.rand(5, generator=generator, device="tenon")
    generator.manual_seed(4)
    assert torch.equal(torch.rand(5, generator=generator, device="tenon"), first)
    assert torch.equal(torch.rand(5, generator=generator, device="tenon"), second)
    twin = torch.Generator("tenon")
    twin.set_state(generator.get_state())
    assert torch.equal(
        torch.randn(5, generator=twin, device="tenon"),
        torch.randn(5, generator=generator, device="tenon"),
    )
    assert torch.equal(generator.clone_state().get_state(), generator.get_state())
    offset = generator.get_offset()
    torch.rand(1, generator=generator, device="tenon")
    assert generator.get_offset() > offset
    order = [torch.randperm(20, generator=generator.manual_seed(1), device="tenon").tolist()] * 2
    assert order[0] == torch.randperm(20, generator=twin.manual_seed(1), device="tenon").tolist()
    with pytest.raises(RuntimeError, match="Expected a 'tenon' device type for generator"):
        torch.rand(3, generator=torch.Generator(), device="tenon")
    for draw in (
        lambda: torch.rand(3, generator=generator),
        lambda: torch.randperm(3, generator=generator),
        lambda: torch.multinomial(torch.ones(3), 2, generator=generator),
        lambda: torch.bernoulli(torch.ones(3), generator=generator),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            draw()


def test_known_answers() -> None:
    """Philox 4x32-10 as its authors give it (Random123's kat_vectors).

    An int64 of `random_` over its full range is two of the four words of a block. Blocks come in
    groups of 16: the first two words of each are 16 elements, the last two the next 16.
    """

    def words(seed: int, offset: int, index: int) -> tuple[int, int]:
        generator = torch.Generator("tenon").manual_seed(seed)
        generator.set_offset(offset)
        x = torch.empty(index + 1, dtype=torch.int64, device="tenon")
        value = x.random_(-(2**63), None, generator=generator)[index].item() % 2**64
        return value % 2**32, value >> 32

    assert words(0, 0, 0) == (0x6627E8D5, 0xE169C58D)
    assert words(0, 0, 16) == (0xBC57AC4C, 0x9B00DBD8)
    # The counter of the vector of ones has 2**64 - 1 as its element, too many to make a tensor of:
    # the rest of the algorithm is held against a second writing of it.
    for index in (3, 31, 1000, 1017):
        first = index // 16 % 2 * 2
        for seed, offset in ((2**64 - 1, 2**64 - 1), (0xA4093822299F31D0, 12)):
            block = philox(seed, index // 32 * 16 + index % 16, offset)
            assert words(seed, offset, index) == block[first : first + 2]
    ones = 2**64 - 1
    assert philox(ones, ones, ones) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(0, 0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def test_drawing_in_place_runs_nothing() -> None:
    """The numbers are drawn when the window runs, whatever else is recorded."""
    draws = (
        lambda t: t.uniform_(),
        lambda t: t.normal_(),
        lambda t: t.log_normal_(),
        lambda t: t.exponential_(),
        lambda t: t.cauchy_(),
        lambda t: t.geometric_(0.5),
        lambda t: t.random_(),
        lambda t: t.random_(10),
        lambda t: t.random_(2, 5),
        lambda t: t.bernoulli_(0.5),
    )

    def all_of_them() -> list[torch.Tensor]:
        x = torch.ones(4, 5, device="tenon")
        return [draw(x * 2) for draw in draws]

    for _ in range(2):
        for drawn in all_of_them():
            drawn.cpu()
    _, before = _C.record_counts()
    found = all_of_them()
    assert _C.record_counts()[1] == before
    assert all(not bool((t == 2).all()) for t in found)


def test_numbers_do_not_depend_on_layout() -> None:
    def draw(x: torch.Tensor) -> list:
        torch.manual_seed(2)
        return x.uniform_().tolist()

    plain = draw(torch.empty(6, 4, device="tenon"))
    assert draw(torch.empty(4, 6, device="tenon").t()) == plain
    assert draw(torch.empty(12, 8, device="tenon")[::2, ::2]) == plain
    assert draw(torch.empty(6, 4, device="tenon:1")) == plain


# Mean and variance of what each op draws; a draw of N numbers has to agree within 6 sigma.
DISTRIBUTIONS = {
    "rand": (lambda d: torch.rand(N, device=d), 0.5, 1 / 12),
    "rand_half": (lambda d: torch.rand(N, device=d, dtype=torch.float16).float(), 0.5, 1 / 12),
    "rand_like": (lambda d: torch.rand_like(torch.empty(N, device=d)), 0.5, 1 / 12),
    "randn": (lambda d: torch.randn(N, device=d), 0.0, 1.0),
    "randn_complex_real": (
        lambda d: torch.randn(N, device=d, dtype=torch.complex64).real,
        *(0.0, 0.5),
    ),
    "randint": (lambda d: torch.randint(3, 9, (N,), device=d).float(), 5.5, 35 / 12),
    "random_to": (lambda d: torch.empty(N, device=d).random_(11), 5.0, 10.0),
    "uniform": (lambda d: torch.empty(N, device=d).uniform_(-2, 4), 1.0, 3.0),
    "normal": (lambda d: torch.empty(N, device=d).normal_(3, 2), 3.0, 4.0),
    "normal_tensors": (
        lambda d: torch.normal(torch.full((N,), 3.0, device=d), torch.full((N,), 2.0, device=d)),
        *(3.0, 4.0),
    ),
    "normal_mean": (lambda d: torch.normal(torch.ones(N, device=d), 2.0), 1.0, 4.0),
    "normal_std": (lambda d: torch.normal(1.0, torch.ones(N, device=d)), 1.0, 1.0),
    "normal_sizes": (lambda d: torch.normal(1.0, 2.0, (N,), device=d), 1.0, 4.0),
    "bernoulli": (lambda d: torch.bernoulli(torch.full((N,), 0.3, device=d)), 0.3, 0.21),
    "bernoulli_float": (lambda d: torch.empty(N, device=d).bernoulli_(0.8), 0.8, 0.16),
    "bernoulli_tensor": (
        lambda d: torch.empty(N, device=d).bernoulli_(torch.full((N,), 0.2, device=d)),
        *(0.2, 0.16),
    ),
    "exponential": (lambda d: torch.empty(N, device=d).exponential_(2), 0.5, 0.25),
    "geometric": (lambda d: torch.empty(N, device=d).geometric_(0.25), 4.0, 12.0),
    "log_normal": (
        lambda d: torch.empty(N, device=d).log_normal_(0, 0.5),
        math.exp(0.125),
        (math.exp(0.25) - 1) * math.exp(0.25),
    ),
    "cauchy": (  # it has no moments: half of it is below the median
        lambda d: (torch.empty(N, device=d).cauchy_(2, 3) < 2).float(),
        *(0.5, 0.25),
    ),
    "poisson": (lambda d: torch.poisson(torch.full((N,), 3.0, device=d)), 3.0, 3.0),
    "binomial": (
        lambda d: torch.binomial(torch.full((N,), 10.0, device=d), torch.full((N,), 0.3, device=d)),
        *(3.0, 2.1),
    ),
    "multinomial": (
        lambda d: torch.multinomial(torch.tensor([1.0, 3.0], device=d), N, True).float(),
        *(0.75, 0.1875),
    ),
    "gamma": (lambda d: torch._standard_gamma(torch.full((N,), 3.0, device=d)), 3.0, 3.0),
    "dirichlet": (
        lambda d: torch._sample_dirichlet(torch.ones(N, 3, device=d))[:, 0],
        *(1 / 3, 1 / 18),
    ),
    "dropout": (lambda d: torch.nn.functional.dropout(torch.ones(N, device=d), 0.25), 1.0, 1 / 3),
    "alpha_dropout": (
        lambda d: torch.nn.functional.alpha_dropout(torch.randn(N, device=d), 0.3, True),
        *(0.0, 1.0),
    ),
    "feature_dropout": (
        lambda d: torch.nn.functional.dropout1d(torch.ones(1, N, 2, device=d), 0.5)[0, :, 0],
        *(1.0, 1.0),
    ),
    "rrelu": (
        lambda d: torch.nn.functional.rrelu(-torch.ones(N, device=d), 0, 1, training=True),
        *(-0.5, 1 / 12),
    ),
    "gumbel_softmax": (
        lambda d: torch.nn.functional.gumbel_softmax(torch.zeros(N, 2, device=d), hard=True)[:, 0],
        *(0.5, 0.25),
    ),
    "trunc_normal": (
        lambda d: torch.nn.init.trunc_normal_(torch.empty(N, device=d), 0, 1, -1, 1),
        *(0.0, 0.2911),
    ),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    draw, mean, variance = DISTRIBUTIONS[name]
    torch.manual_seed(11)
    x = draw("tenon")
    assert x.device.type == "tenon"
    again = draw("tenon")
    assert not torch.equal(x.cpu(), again.cpu())
    torch.manual_seed(11)
    assert torch.equal(draw("tenon").cpu(), x.cpu()), "the seed decides"
    values = x.cpu().double()
    assert abs(values.mean().item() - mean) < 6 * math.sqrt(variance / N)
    # The variance of the variance is left generous: its distribution has heavier tails.
    assert values.var().item() == pytest.approx(variance, rel=0.12)
    lag = values[1:] - values.mean(), values[:-1] - values.mean()
    assert abs((lag[0] * lag[1]).mean().item()) < 6 * variance / math.sqrt(N), "neighbours"


def test_ranges() -> None:
    x = torch.rand(N, device="tenon")
    assert x.min() >= 0 and x.max() < 1 and x.unique().numel() > 0.99 * N
    x = torch.empty(N, device="tenon", dtype=torch.bfloat16).uniform_(0, 1)
    assert x.min() >= 0 and x.max() < 1
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        digits = round(-math.log2(torch.finfo(dtype).eps))
        low = 1 - 2.0 ** (4 - digits)  # so near to 1 that a part of all rounds up to it
        x = torch.empty(N, device="tenon", dtype=dtype).uniform_(low, 1)
        assert x.min() == low and x.max() == 1 - torch.finfo(dtype).eps / 2
        assert (torch.empty(9, device="tenon", dtype=dtype).uniform_(0.5, 0.5) == 0.5).all()
    x = torch.randint(-5, 5, (N,), device="tenon")
    assert (x.min().item(), x.max().item()) == (-5, 4)
    assert torch.empty(N, device="tenon").exponential_().min() > 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.empty(N, device="tenon", dtype=dtype)
        assert x.exponential_().min() > 0
        assert x.exponential_(math.inf).count_nonzero() == 0
        assert x.exponential_(1e-320).isinf().all()
        assert x.exponential_(1e4).max() < 1e-2
    p = torch.randperm(1000, device="tenon")
    assert p.device.type == "tenon" and p.sort().values.tolist() == list(range(1000))
    assert p.tolist() != list(range(1000))
    assert torch.multinomial(torch.ones(10, device="tenon"), 10).unique().numel() == 10
    last = torch.tensor(
        [0, 1e-45, 0, 0], device="tenon"
    )  # times a draw it may be rounded to itself
    for _ in range(3):
        assert torch.multinomial(last, 64, True).tolist() == [1] * 64
    assert torch.empty(N, dtype=torch.uint8, device="tenon").random_().unique().numel() == 256
    assert torch.empty(N, dtype=torch.bool, device="tenon").random_().float().mean() > 0.45


def test_dropout_scales_and_its_backward_uses_the_same_mask() -> None:
    x = torch.ones(1000, device="tenon", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.2)
    assert set(y.tolist()) == {0.0, 1.25}
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(torch.nn.functional.dropout(x, 0.2, training=False), x)
    assert not torch.nn.functional.dropout(x, 1.0).any()
    assert torch.equal(torch.nn.functional.dropout(x, 0.0), x)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_draws_the_same_numbers_again(use_reentrant: bool) -> None:
    x = torch.ones(1000, device="tenon", requires_grad=True)
    y = checkpoint(
        lambda v: torch.nn.functional.dropout(v, 0.5) * v, x, use_reentrant=use_reentrant
    )
    y.sum().backward()
    assert torch.equal(x.grad, 2 * y.detach())
