"""Results of compiled graphs that are views of one memory, as in eager code."""

import pytest
import torch
from against_cpu import assert_same
from torch.utils._pytree import tree_leaves

import torch_tenon

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_views_of_equal_layout_are_tensors_of_their_own():
    """What is changed of one is its own: shape, and whether it needs gradients."""

    def f(x):
        y = x + 1
        return y, y.view(-1), y.detach(), y[:]

    x = torch.randn(6)
    got, want = torch.compile(f, backend="tenon")(x.to("tenon")), f(x)
    for y, flat, detached, _ in (got, want):
        flat.resize_(3)
        detached.requires_grad_()
        y.unsqueeze_(0)
    assert_same(got, want)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
    assert len({t.untyped_storage().data_ptr() for t in got}) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_views_share_memory_by_whatever_ops_they_are_made(dynamic):
    """Another dtype, sizes that only a run knows, parts of complex numbers."""

    def f(x):
        y = x + 1
        image = y.reshape(1, 2, 2, -1)
        pairs = torch.view_as_complex(y.reshape(2, -1, 2))
        parts = pairs.real, pairs.conj().imag, pairs.conj().conj()
        return y, image, image[0], y.view(torch.int32)[1:], y.view(torch.int16), pairs, *parts

    x = torch.randn(4, 6)
    got, want = torch.compile(f, backend="tenon", dynamic=dynamic)(x.to("tenon")), f(x)
    assert_same(got, want)
    shared = [t.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr() for t in got]
    assert all(shared)
    for y in (got[0], want[0]):
        y.mul_(-2)
    assert_same(got, want)


# Results whose numbers lie in the argument, in some order, before anything is computed.
COPIES = {
    "turned": lambda x: x.flip(0),
    "of one": lambda x: torch.cat([x]),
    "whole": lambda x: x.long().floor(),
    "rolled by nothing": lambda x: x.roll(0, 0),
    "repeated once": lambda x: x.repeat(1, 1),
    "a part": lambda x: torch.ops.aten.slice_copy(x, 0, 0, 4),
    "transposed": lambda x: torch.ops.aten.permute_copy(x, [0, 1]),
}


@pytest.mark.parametrize("name", COPIES)
def test_views_of_a_copy_of_an_argument_share_its_memory(name):
    def f(x):
        y = COPIES[name](x)
        return y, y[1:], y.diagonal(), y

    x = torch.arange(24.0).view(4, 6)
    if name == "whole":
        x = x.long()
    given = x.to("tenon")
    got, want = torch.compile(f, backend="tenon")(given), f(x)
    assert_same(got, want)
    (memory,) = {t.untyped_storage().data_ptr() for t in got}
    assert memory != given.untyped_storage().data_ptr()
    for _, part, diagonal, _ in (got, want):
        part.mul_(-2)
        diagonal.add_(1)
    assert_same(got, want)


@pytest.mark.parametrize("change", ["masked_fill_", "mul_"])
def test_views_of_a_copy_of_an_argument_that_is_overwritten(change):
    """The copy is made before, though it is no result itself."""

    def f(x):
        y = x.flip(0)
        part = y[1:]
        x.mul_(2) if change == "mul_" else x.masked_fill_(x != x.roll(1), -2)
        return part, y.t()

    x = torch.arange(16.0).view(4, 4)
    there = x.to("tenon")
    got, want = torch.compile(f, backend="tenon")(there), f(x)
    assert_same(got, want)
    assert_same(there, x)
    assert len({t.untyped_storage().data_ptr() for t in (there, *got)}) == 2


# Of complex numbers and a number that is known at run time.
OF_ARGUMENTS = {
    "slice": lambda x, n: x[-n:n],
    "conjugate": lambda x, n: x[n:].conj(),
    "its parts": lambda x, n: (x.conj()[n:].imag, x.real[n - 1 :], x.conj().imag[-n:n]),
    "other numbers": lambda x, n: torch.view_as_real(x[n:]).view(torch.int32),
    "windows": lambda x, n: x.unfold(0, n - 3, 2)[-n // 4 :],
    "places": lambda x, n: x.as_strided((n - 3, 2), (1, 2), n - 4),
    "diagonal": lambda x, n: x.view(-1, 2).diagonal(-(n - 4)),
    "one of several": lambda x, n: (
        x.split([x.shape[0] - n, n])[1],
        x[-n],
        x.tensor_split([-n])[1],
    ),
    "written": lambda x, n: (x.add_(1)[-n:n], x[n:].conj(), x * 2),
    "written in part": lambda x, n: (x[n:].mul_(2)[1:], x[-n:n], x.sum()),
}


@pytest.mark.parametrize("lies", ["dense", "within", "with gaps"])
@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_views_of_arguments_by_run_time_numbers(name, lies):
    """AOTAutograd makes them anew by what the graph gives: offset, dtype and lazy conjugation."""

    def f(x, n):
        return OF_ARGUMENTS[name](x, n)

    def given(size, device):
        x = torch.complex(torch.arange(2.0 * size), torch.arange(2.0 * size) + 20).to(device)
        return {"dense": x[:size], "within": x[1 : size + 1], "with gaps": x[::2]}[lies]

    compiled = torch.compile(f, backend="tenon", dynamic=True)
    for size, n in ((8, 5), (10, 6), (10, 7)):
        x, y = given(size, "cpu"), given(size, "tenon")
        try:
            want = f(x, n)
        except RuntimeError:
            pytest.skip("no view of memory with gaps")
        got = compiled(y, n)
        want, got = ([t] if isinstance(t, torch.Tensor) else t for t in (want, got))
        assert_same([t.resolve_conj().resolve_neg() for t in got], list(want))
        assert_same(y, x)
        for a, b in zip(got, want, strict=True):
            assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
            assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())


def test_gradients_through_views_by_run_time_numbers():
    def f(x, n):
        return x[-n:n], x[n:].view(torch.int32), x * 2

    compiled = torch.compile(f, backend="tenon", dynamic=True)
    for size, n in ((8, 5), (10, 6)):
        x = torch.arange(float(size), requires_grad=True)
        y = x.detach().to("tenon").requires_grad_()
        want, got = f(x, n), compiled(y, n)
        assert_same(got, want)
        for part, _, whole in (want, got):
            (part.square().sum() + whole.sum()).backward()
        assert_same(y.grad, x.grad)


# Of complex numbers that the graph makes.
OF_RESULTS = {
    "conjugates": lambda y, n: (y, y[n:].conj(), y[-n:n].conj()),
    "conjugates alone": lambda y, n: (y[n:].conj(), y[-n:n].conj()),
    "parts": lambda y, n: (y, y.conj()[n:].imag, y.real[-n:n]),
    "other numbers": lambda y, n: (y, torch.view_as_real(y[n:]).view(torch.int32), y[-n:n]),
    "written": lambda y, n: (y.mul_(2)[-n:n], y[n:].conj(), y),
    "detached": lambda y, n: (y.detach()[-n:n], y[n:].conj(), y.detach().conj()),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OF_RESULTS)
def test_lazy_views_of_results(name, dynamic, grad):
    """They share memory, and gradients go through them."""

    def f(x, n):
        return OF_RESULTS[name](x + 1, n)

    compiled = torch.compile(f, backend="tenon", dynamic=dynamic)
    for size, n in ((8, 5), (10, 6)):
        x = torch.complex(torch.arange(float(size)), torch.arange(float(size)) + 20)
        y = x.to("tenon").requires_grad_(grad)
        want, got = f(x.requires_grad_(grad), n), compiled(y, n)
        for a, b in zip(got, want, strict=True):
            assert_same(a.detach().resolve_conj().resolve_neg(), b.detach())
            assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
            assert a.requires_grad == b.requires_grad
        assert len({t.untyped_storage().data_ptr() for t in got}) == 1
        if grad:
            for results in (want, got):
                sum(t.abs().square().sum() for t in results if t.requires_grad).backward()
            assert_same(y.grad, x.grad, rtol=1e-6)


VIEWED = {
    "flat": lambda x: x.view(-1),
    "other dimensions": lambda x: x.unflatten(0, (2, 3)).movedim(1, 3),
    "windows without overlap": lambda x: x.unfold(-1, 2, 2),
    "its bits": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("name", VIEWED)
def test_a_view_as_a_result_is_computed_with_what_it_is_of(name):
    """Not once more in the shape of the view, beside the loop that gives the other results."""

    def f(x):
        values, indices = torch.nn.functional.max_pool1d(x, 2, return_indices=True)
        return -values, VIEWED[name](values * 2), indices.view(-1, 2)

    x = torch.randn(6, 4, 8)
    compiled = torch.compile(f, backend="tenon")
    found = torch_tenon.explain(compiled, x.to("tenon"))
    (graph,) = found.graphs
    assert (graph.kernels, graph.calls) == (1, 0)
    assert_same(compiled(x.to("tenon")), f(x))


def fused_step(op, p, g, m, v, step):
    return op(
        [p], [g], [m], [v], [], [step], lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip


COPIED = {
    "adam": lambda x, n: fused_step(aten._fused_adam.default, x * 1, x, x, x.abs(), n),
    "adamw": lambda x, n: fused_step(aten._fused_adamw.default, x, x * 1, x, x.abs(), n),
    "sgd": lambda x, n: aten._fused_sgd.default(
        [x * 1],
        [x],
        [x * 2],
        weight_decay=0.0,
        momentum=0.9,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    ),
    "dropout": lambda x, n: aten.native_dropout.default(x, 0.5, False),
    "native shuffle": lambda x, n: aten.native_channel_shuffle.default(x.view(1, -1, 1, 1), 1),
    "shuffle": lambda x, n: aten.channel_shuffle.default(x.view(1, -1, 1, 1), 1),
}


@pytest.mark.parametrize("name", COPIED)
def test_results_that_eager_code_copies_are_copies(name):
    """Gradients that nothing scales, channels of one group: writing the one leaves the other."""

    def f(x, n):
        return COPIED[name](x, n)

    x, n = torch.randn(6), torch.tensor(1.0)
    found = []
    for function, device in ((f, "cpu"), (torch.compile(f, backend="tenon"), "tenon")):
        given, step = x.to(device, copy=True), n.to(device)
        got = [t for t in tree_leaves(function(given, step)) if t.numel()]
        for k, t in enumerate(got):
            t.fill_(k)
        found.append([given, *got])
    assert_same(found[1], found[0])
