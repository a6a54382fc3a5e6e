"""The same calls with other sizes: what is known of some sizes serves all, and the results are
the CPU's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import needs
import pytest
import torch
from against_cpu import assert_same, executing
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import last_plan, plans_made
from torch import Tensor, nn
from torch.nn import functional as F

from torch_tenon.builder.counts import plan_counts
from torch_tenon.ops.standalone import kernels_are_faster
from torch_tenon.reports.recording import calls_at_once

CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def first_calls() -> int:
    """Calls that ran at once because nothing was known of them."""
    return sum(n for _, why, n in calls_at_once() if why.startswith("its first call"))


def lengths(count: int, seed: int = 0) -> list[int]:
    """Different lengths in no order."""
    return random.Random(seed).sample(range(2, 90), count)


def perceptron(x: Tensor) -> Tensor:
    """Products with weights, a norm, a loss of a row each."""
    torch.manual_seed(1)
    up, down = torch.randn(12, 20).to(x.device), torch.randn(20, 7).to(x.device)
    y = F.layer_norm(F.gelu(x @ up), (20,)) @ down
    return F.cross_entropy(y, torch.arange(len(x)).to(x.device) % 7, reduction="none")


def attention(x: Tensor) -> Tensor:
    """Every row looks at every other."""
    y = torch.softmax(x @ x.t() / 4, 1) @ x
    return (y - y.mean(0)) / (y.var(0) + 1)


def joined(x: Tensor) -> Tensor:
    """A cache that grows by one, and what is cut off."""
    grown = torch.cat([x, x[:1] * 2])
    return grown.cumsum(0)[1:-1] + x[1:]


def turned(x: Tensor) -> Tensor:
    """In the other order of memory."""
    return torch.relu(x.t() * 2 - 1).contiguous().sum(1) + x.flip(0).t().sum(1)


def looked_up(x: Tensor) -> Tensor:
    """By numbers that the sizes decide."""
    table = torch.arange(100.0).to(x.device).view(50, 2)
    places = torch.arange(len(x), device=x.device) % 50
    return F.embedding(places, table) + table[places // 2] + x[:, :2]


def in_place(x: Tensor) -> Tensor:
    """Parts of what is there are written."""
    y = x.clone()
    y[1:] += y[:-1] * 0.5
    y.mul_(0.9)
    y[:, 3] = 1.0
    return y


def images(x: Tensor) -> Tensor:
    """A batch of any size."""
    torch.manual_seed(2)
    weight = torch.randn(4, 1, 3, 3).to(x.device)
    y = F.conv2d(x.view(-1, 1, 3, 4), weight, padding=1)
    return F.max_pool2d(torch.relu(y), 2).flatten(1).softmax(1)


def activations(x: Tensor) -> Tensor:
    """And what is left of each."""
    x = x.clone().requires_grad_()
    slope = torch.full((12,), 0.2).to(x.device)
    y = F.leaky_relu(F.elu(x), 0.1) + F.hardswish(x) * F.hardsigmoid(x) + F.hardtanh(x * 2)
    y = y + F.softplus(x) - F.logsigmoid(x) + F.softshrink(x) + F.hardshrink(x) + F.prelu(x, slope)
    y = torch.cat([F.glu(y, 1), y.masked_fill(y > 1, 0.5)], 1)
    y.square().sum().backward()
    return torch.cat([y.detach(), x.grad], 1)


def losses(x: Tensor) -> Tensor:
    """Means over as many numbers as there are, and their gradients."""
    x = x.clone().requires_grad_()
    y = torch.linspace(-1, 1, len(x), device=x.device)[:, None].expand_as(x)
    number = torch.arange(len(x), device=x.device) % 12
    loss = F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y) + F.l1_loss(x, y)
    loss = loss + F.soft_margin_loss(x, y.sign()) + F.multi_margin_loss(x, number)
    (loss + F.binary_cross_entropy_with_logits(x, y.sigmoid()) + x.std()).backward()
    return x.grad


def scattered(x: Tensor) -> Tensor:
    """Rows brought together by number, as of the nodes that edges lead to."""
    x = x.clone().requires_grad_()
    number = torch.arange(len(x), device=x.device) % 5
    wide = number[:, None].expand_as(x)
    y = x.new_zeros(5, 12).index_add(0, number, x) + x.new_zeros(5, 12).scatter_add(0, wide, x * 2)
    y = y / x.new_zeros(5, 1).index_add(0, number, x.new_ones(len(x), 1)).clamp(min=1)
    y = (
        y[number]
        + F.embedding_bag(number, y, torch.arange(len(x), device=x.device))
        + x.new_zeros(5, 12).scatter_reduce(0, wide, x, "amax")[number]
    )
    y = y + x.index_fill(0, number[:2], 0.5) + torch.zeros_like(x).index_copy(0, number[:1], x[:1])
    y = y + x.gather(1, x.argsort(1)) + torch.zeros_like(x).scatter(1, wide[:, :1], 2.0)
    y.square().sum().backward()
    return torch.cat([y.detach(), x.grad], 1)


def chosen(x: Tensor) -> Tensor:
    """The largest, the middle, what has been the most so far, where a number belongs."""
    x = x.clone().requires_grad_()
    least, most = x.aminmax(dim=1)
    y = x.topk(3, 1).values.sum(1) + x.median(1).values + x.cummax(1).values.sum(1) + most - least
    y = y + x.kthvalue(2, 1).values + x.logcumsumexp(1)[:, -1] + x.nansum(1)
    y = y + torch.bucketize(x, torch.arange(-1.0, 1, 0.5).to(x.device)).sum(1)
    y.square().sum().backward()
    return torch.cat([y.detach()[:, None], x.grad], 1)


def pictures(x: Tensor) -> Tensor:
    """Padded, made larger, cut into patches, sampled, pooled."""
    x = x.clone().requires_grad_()
    y = F.pad(x.view(-1, 3, 2, 2), (1, 1, 1, 1), mode="replicate")
    y = F.interpolate(y, scale_factor=2.0) + F.interpolate(y, size=(8, 8), mode="bilinear")
    y = F.unfold(F.pad(y, (0, 1, 0, 1)), 3, stride=2).view(len(x), 27, 4, 4)
    places = torch.linspace(-1, 1, 9 * 2).to(x.device).view(1, 3, 3, 2).expand(len(x), 3, 3, 2)
    y = F.grid_sample(y, places, align_corners=False)
    y = F.pixel_shuffle(F.adaptive_max_pool2d(y, 2)[:, :24], 2)
    y.square().sum().backward()
    return torch.cat([y.detach().flatten(1), x.grad], 1)


def cells(x: Tensor) -> Tensor:
    """A step of recurrent layers."""
    torch.manual_seed(3)
    gru, lstm = nn.GRUCell(12, 5).to(x.device), nn.LSTMCell(12, 5).to(x.device)
    y = torch.cat([gru(x), *lstm(x)], 1)
    y.square().sum().backward()
    return torch.cat([y.detach().flatten(), *(p.grad.flatten() for p in gru.parameters())])


def images_of_any_size(x: Tensor) -> Tensor:
    """Convolved, made smaller and larger again."""
    torch.manual_seed(4)
    net = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.LeakyReLU(0.1), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 5, stride=2, padding=2), nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2)),
        *(nn.ConvTranspose2d(8, 4, 3, stride=2), nn.ReflectionPad2d(1), nn.AvgPool2d(3, 2, 1)),
        nn.Upsample((9, 11), mode="bilinear"),
    ).to(x.device)
    n = len(x) + 8
    picture = torch.linspace(-3, 3, 6 * n * (n + 5)).sin().view(2, 3, n, n + 5)
    picture = picture.to(x.device).requires_grad_()
    y = net(picture)
    y = torch.cat([y.flatten(1), F.adaptive_avg_pool2d(y, 3).flatten(1)], 1)
    y.square().mean().backward()
    weights = [p.grad.flatten() for p in net.parameters()]
    return torch.cat([y.detach().flatten(), picture.grad.flatten(), *weights])


def sounds(x: Tensor) -> Tensor:
    """Of any length, two or more at once."""
    torch.manual_seed(5)
    net = nn.Sequential(
        *(nn.Conv1d(2, 8, 7, stride=3, padding=3, dilation=2), nn.GELU(), nn.MaxPool1d(3, 2)),
        *(nn.Conv1d(8, 6, 3, padding=1, groups=2), nn.GroupNorm(3, 6), nn.AdaptiveAvgPool1d(4)),
    ).to(x.device)
    n = len(x)
    wave = torch.linspace(-9, 9, 2 * n % 5 + 2 * 40 * n).sin()[: 80 * n].view(2, 2, 20 * n)
    y = net(wave.to(x.device))
    y.square().mean().backward()
    return torch.cat([y.detach().flatten(), *(p.grad.flatten() for p in net.parameters())])


FUNCTIONS = [
    *(perceptron, attention, joined, turned, looked_up, in_place, images),
    *(activations, losses, scattered, chosen, pictures, cells, images_of_any_size, sounds),
]


# What images have to have.
LEAST = {images: 1, pictures: 1, sounds: 1}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["auto", "compiled", "verify"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_length_gives_what_the_cpu_gives(
    function: Callable[[Tensor], Tensor], mode: str, recwarn: pytest.WarningsRecorder
) -> None:
    with executing(mode):
        for n in [*lengths(12), 1, 0, 2, *lengths(4, seed=1)]:
            if n < LEAST.get(function, 0):
                continue
            x = torch.randn(n, 12)
            expected = function(x)
            assert_same(function(x.to("tenon")), expected, **CLOSE)
    assert [str(w.message) for w in recwarn.list if "gave other numbers" in str(w.message)] == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_new_lengths_run_nothing_at_once(function: Callable[[Tensor], Tensor]) -> None:
    many = lengths(40)
    for n in many[:20]:
        function(torch.randn(n, 12).to("tenon")).sum().item()
    before = first_calls()
    for n in many[20:]:
        function(torch.randn(n, 12).to("tenon")).sum().item()
    assert first_calls() == before


AT_ANY_SIZE: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "batch norm": (
        lambda x: F.batch_norm(
            x, torch.zeros_like(x[0, :, 0, 0]), x[0, :, 0, 0] + 1, None, None, True
        ),
        (2, 3, 7, 1),
    ),
    "shuffled pixels": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2), (2, 8, 5, 1)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=3), (2, 3, 5, 1)),
    "reflected": (lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect") * 2, (2, 3, 5, 1)),
}

KERNELS = {
    "nearest": {"aten.upsample_nearest2d.default"},
    "reflected": {"aten.reflection_pad2d.default"},
}


@pytest.mark.slow
@needs.plans
@pytest.mark.parametrize("name", AT_ANY_SIZE)
def test_a_plan_for_any_size_has_loops(name: str) -> None:
    """Also where PyTorch's own code computes with the sizes: no decision that holds for some sizes
    alone, and no call of the host's kernel but where that is faster."""
    compute, sizes = AT_ANY_SIZE[name]
    with executing("compiled"):
        for k, n in enumerate(lengths(10, seed=11)):
            if k == 6:
                before = plans_made()
            x = torch.randn(*sizes[:2], sizes[2] + n, sizes[3] * (n + 9))
            assert_same(compute(x.to("tenon") + 1), compute(x + 1), **CLOSE)
        assert plans_made() == before
    assert set(last_plan().fallbacks) == (
        KERNELS.get(name, set()) if kernels_are_faster() else set()
    )


@pytest.mark.slow
@needs.plans
def test_plans_stay_few_however_many_lengths() -> None:
    with executing("compiled"):
        for n in lengths(15):
            attention(torch.randn(n, 11).to("tenon")).sum().item()
        before = plan_counts()
        for n in lengths(60, seed=3):
            attention(torch.randn(n, 11).to("tenon")).sum().item()
        after = plan_counts()
    assert after["ready"] == before["ready"] and after["failed"] == before["failed"]
    assert after["reference"] == before["reference"] and after["hits"] > before["hits"]


class Encoder(nn.Module):
    """A transformer's layer over letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.scores = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, text: Tensor) -> Tensor:
        return self.scores(self.layer(self.letters(text)))


def train(device: str, sizes: list[tuple[int, int]]) -> Iterator[float]:
    """The losses of training with batches of these sizes."""
    torch.manual_seed(0)
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch, length in sizes:
        text = (torch.arange(batch)[:, None] * 3 + torch.arange(length + 1)).to(device) % 30
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_training_at_sizes_that_change(mode: str) -> None:
    draw = random.Random(5)
    sizes = [(draw.randint(1, 9), draw.randint(2, 20)) for _ in range(25)]
    expected = list(train("cpu", sizes))
    with executing(mode):
        assert_same(list(train("tenon", sizes)), expected, **CLOSE)


def grow(device: str) -> Tensor:
    """Rows that come one by one, each with a look at those before."""
    torch.manual_seed(0)
    kept, row = torch.randn(1, 8, device="cpu").to(device), torch.randn(1, 8).to(device)
    for _ in range(30):
        kept = torch.cat([kept, row])
        row = torch.tanh(torch.softmax(row @ kept.t(), 1) @ kept)
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_a_growing_cache(mode: str) -> None:
    with executing(mode):
        assert_same(grow("tenon"), grow("cpu"), **CLOSE)


@pytest.mark.slow
@needs.plans
def test_sizes_that_come_often_have_plans_of_their_own() -> None:
    def run(n: int, m: int) -> None:
        x = torch.randn(n, m)
        assert_same((x.to("tenon").tanh() * 3).sum(1), (x.tanh() * 3).sum(1), **CLOSE)

    with executing("compiled"):
        for n in range(3, 13):
            run(n, 13)
        before = plan_counts()["ready"]
        for _ in range(40):
            run(7, 13)
        assert plan_counts()["ready"] > before


STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: x * y.mean(0, keepdim=True),
    lambda x, y: x - y.sum(1, keepdim=True),
    lambda x, y: torch.cat([x, y])[: len(x)],
    lambda x, y: torch.softmax(x, 1),
    lambda x, y: x.cumsum(0) * 0.1,
    lambda x, y: (x @ y.t()) @ y * 0.01,
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x.t().contiguous().t(),
    lambda x, y: F.pad(x[1:], (0, 0, 0, 1)),
    lambda x, y: x.clamp(-2, 2).square(),
    lambda x, y: x.flip(1) + x.amax(1, keepdim=True),
    lambda x, y: x.reshape(-1)[: x.numel()].view_as(x) * 2,
    lambda x, y: torch.stack([x, y]).mean(0),
]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    chain=st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=8),
    seed=st.integers(0, 10_000),
)
def test_any_chain_at_any_sizes(chain: list[int], seed: int) -> None:
    draw = random.Random(seed)
    with executing("compiled"):
        for _ in range(7):
            n, m = draw.randint(1, 12), draw.randint(1, 12)
            x, y = torch.randn(n, m), torch.randn(n, m)
            on_device, on_cpu = (x.to("tenon"), y.to("tenon")), (x, y)
            for step in chain:
                on_device = STEPS[step](*on_device), on_device[0]
                on_cpu = STEPS[step](*on_cpu), on_cpu[0]
            assert_same(on_device[0], on_cpu[0], rtol=1e-3, atol=1e-3)


Part = tuple[int, int]  # of a vector: where it begins, and its step
Write = Callable[[Tensor, Tensor], object]

WRITES: list[Write] = [
    lambda a, b: a.add_(b),
    lambda a, b: a.copy_(b),
    lambda a, b: a.mul_(0.5),
    lambda a, b: a.copy_(b * 2 + 1),
    lambda a, b: a.sub_(b.sum() * 0.01),
    lambda a, b: a.copy_(b.flip(0)),
    lambda a, b: a[1:].add_(a[:-1].clone()),
    lambda a, b: a.copy_(torch.cat([b[1:], a[:1]])),
]


def write_parts(
    x: Tensor, chain: list[int], parts: list[tuple[Part, Part]], n: int
) -> Iterator[bool]:
    """Writes parts of `x` one after another; says of each whether it was taken."""
    for kind, (written, read) in zip(chain, parts, strict=True):
        a, b = (x[at : at + step * (n - 1) + 1 : step] for at, step in (written, read))
        if written[1] != 1 or read[1] != 1:
            b = b.clone()  # the CPU does not see that these overlap
        try:
            WRITES[kind](a, b)
            yield True
        except RuntimeError:
            yield False


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    chain=st.lists(st.integers(0, len(WRITES) - 1), min_size=1, max_size=5),
    seed=st.integers(0, 10_000),
)
def test_parts_of_one_tensor_written_in_place(chain: list[int], seed: int) -> None:
    """Which parts overlap is another matter at each size."""
    draw = random.Random(seed)
    steps = [(draw.choice((1, 1, 1, 2)), draw.choice((1, 1, 1, 2))) for _ in chain]
    with executing("compiled"):
        for _ in range(9):
            n = draw.randint(2, 12)
            parts = [((draw.randint(0, 14), s), (draw.randint(0, 14), t)) for s, t in steps]
            x = torch.randn(40)
            y = x.to("tenon")
            taken_by_cpu = list(write_parts(x, chain, parts, n))
            assert list(write_parts(y, chain, parts, n)) == taken_by_cpu
            assert_same(y, x, **CLOSE)


# Where a size is rounded, has to be divided, or is none at all.
ROUNDED: dict[str, Callable[[int, torch.device], Tensor]] = {
    "max_pool": lambda n, d: F.max_pool2d(torch.ones(2, 3, n + 4, n + 4).to(d), 4),
    "avg_pool": lambda n, d: F.avg_pool2d(torch.ones(2, 3, n + 2, n).to(d), (2, 1), ceil_mode=True),
    "adaptive": lambda n, d: F.adaptive_avg_pool2d(torch.ones(1, 2, n + 1, n).to(d), (2, 1)),
    "convolution": lambda n, d: F.conv1d(
        torch.ones(2, 3, n + 3).to(d), torch.ones(4, 3, 3).to(d), stride=2
    ),
    "range": lambda n, d: torch.arange(0, n, 4, device=d),
    "range of floats": lambda n, d: torch.arange(0, n / 3, device=d),
    "joined": lambda n, d: torch.cat(
        [torch.ones(k, 3).to(d) for k in ((n, 5, 16 - n) if n < 14 else (n, 3, 7))]
    ),
    "in a window": lambda n, d: torch.arange(n, n + (6 if n < 14 else n % 9 + 2), device=d) * 2,
    "as often as there is room": lambda n, d: (
        torch.ones(n, 2).to(d).repeat(84 // n if 84 % n == 0 else 3, 1)
    ),
    "decimals": lambda n, d: torch.round(torch.ones(n).to(d) / 3, decimals=n % 7),
    "polygamma": lambda n, d: torch.polygamma(n % 5, torch.ones(n).to(d) * 1.5),
    "unfold": lambda n, d: torch.ones(n + 3).to(d).unfold(0, 3, 2) * 2,
    "repeated": lambda n, d: torch.ones(n, 3).to(d).repeat(n % 4 + 1, 2),
    "diagonal": lambda n, d: torch.ones(n, n).to(d).tril(n % 5 - 2) * 2,
    "top": lambda n, d: torch.arange(n + 5).to(d).topk(n % 5 + 1).values,
    "half of a slice's frequencies": lambda n, d: torch.fft.rfft(
        torch.arange(200.0).to(d)[n : n + 4 + n % 2 + (n if n > 12 else 0)]
    ).abs(),
    "frequencies of a column": lambda n, d: torch.fft.rfft(torch.ones(n, 3).to(d), dim=0).abs(),
    "right sides": lambda n, d: torch.linalg.solve(
        (torch.eye(3) * 2).expand((n + 5) % 14 + 2, 3, 3).to(d), torch.arange(9.0).view(3, 3).to(d)
    ),
    "right sides or vectors": lambda n, d: torch.linalg.solve(
        (torch.eye(4) * 2).expand(n, 4, 4).to(d), torch.ones(n if n % 3 == 0 else 4, 4).to(d)
    ),
    # Strides of nothing are as if it were one.
    "nothing is left": lambda n, d: F.pad(torch.ones(3, (n + 3) % 14 + 4).to(d), (-2, -2)),
    "one hot": lambda n, d: F.one_hot(torch.arange(n).to(d) % 3, n % 6 + 3) * 2,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["auto", "compiled"])
@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_that_equal_sizes_do_not_tell(name: str, mode: str) -> None:
    with executing(mode):
        for n in [*range(2, 14), *lengths(6, seed=11)]:
            made, expected = (ROUNDED[name](n, torch.device(d)) for d in ("tenon", "cpu"))
            assert_same(made, expected, **CLOSE)
            assert made.stride() == expected.stride()


DIFFERENCES = {
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "pad by the difference": lambda x: F.pad(x, (2, 2)),
    "pad and crop": lambda x: F.pad(x, (3, -1, 0, 2)),
    "replicate": lambda x: F.pad(x[None], (1, 2, 2, 1), mode="replicate")[0],
    "join": lambda x: torch.cat([x, x[:, :4]], 1),
    "twice": lambda x: torch.cat([x, x], 1),
    "pool": lambda x: F.max_pool2d(x[None], 3, 1)[0],
    "unfold": lambda x: x.unfold(1, 3, 1).clone(),
    "diff": lambda x: x.diff(dim=0),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_that_were_always_the_same_may_change(name: str) -> None:
    for sizes in [(8, 12), (10, 14), (12, 16), (20, 40), (33, 7), (24, 28), (6, 50), (50, 6)]:
        x = torch.arange(float(sizes[0] * sizes[1])).view(sizes)
        given, wanted = DIFFERENCES[name](x.to("tenon")), DIFFERENCES[name](x)
        assert given.shape == wanted.shape
        assert_same(given, wanted)


@needs.plans
def test_numbers_are_drawn_alike_by_plan_and_by_reference() -> None:
    """A range is no size."""

    def drawn(mode: str, high: int, n: int) -> list[int]:
        with executing(mode):
            torch.manual_seed(3)
            return torch.randint(0, high, (n,), device="tenon").tolist()  # type: ignore[no-any-return]

    for high, n in ((10, 5), (1000, 7), (77, 9), (2**21, 11), (2**40, 13), (2**30, 6), (55, 4)):
        assert drawn("compiled", high, n) == drawn("reference", high, n)
