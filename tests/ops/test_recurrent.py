"""torch.nn's recurrent layers (torch_tenon/targets/cpu/csrc/recurrent.cpp) against the CPU's."""

import copy
import itertools
from typing import Any

import needs
import pytest
import torch
from against_cpu import assert_same, executing, same_on_both
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves
from turns import MODES

from torch_tenon import _C

OPTIONS = [
    dict(zip(("bias", "bidirectional", "batch_first", "num_layers"), row, strict=True))
    for row in itertools.product((True, False), (True, False), (True, False), (1, 3))
]


KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, str]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}


def made_of(kind: str, *sizes: int, **options: Any) -> tuple[nn.RNNBase, nn.RNNBase]:
    """Layers on the CPU, and equal ones on the device."""
    layer, more = KINDS[kind]
    cpu = layer(*sizes, **options, **more)
    return cpu, copy.deepcopy(cpu).to("tenon")


def with_gradients(
    module: nn.RNNBase, x: Any, states: list[torch.Tensor], device: str
) -> list[torch.Tensor]:
    """Outputs, last states, and the gradients of all that is given. `x` makes the input of a leaf
    on the device."""
    leaf, given = x(device)
    first = [s.to(device, copy=True).requires_grad_() for s in states]
    y, last = module(given, tuple(first) if len(first) == 2 else first[0])
    y = y.data if isinstance(y, PackedSequence) else y
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).to(device).view(y.shape)
    lasts = last if isinstance(last, tuple) else (last,)
    sum(((t.square() * (k + 1)).sum() for k, t in enumerate(lasts)), (y * weight).sum()).backward()
    grads = [p.grad for p in module.parameters()]
    return [t.cpu() for t in (y, *lasts, leaf.grad, *(s.grad for s in first), *grads)]


def first_states(kind: str, *sizes: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(sizes, dtype=dtype) for _ in range(2 if kind == "lstm" else 1)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers_and_gradients(options: dict, kind: str) -> None:
    cpu, tenon = made_of(kind, 5, 7, dtype=torch.float64, **options)
    count = options["num_layers"] * (2 if options["bidirectional"] else 1)
    data = torch.randn(4, 3, 5, dtype=torch.float64)
    states = first_states(kind, count, 4 if options["batch_first"] else 3, 7)

    def x(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = data.to(device, copy=True).requires_grad_()
        return leaf, leaf

    want, got = (with_gradients(m, x, states, d) for m, d in ((cpu, "cpu"), (tenon, "tenon")))
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w)


LENGTHS = [[4, 4, 4], [6, 3, 1], [1, 5, 2, 5], [3]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_packed_sequences(options: dict, kind: str, lengths: list[int], dtype: torch.dtype) -> None:
    cpu, tenon = made_of(kind, 5, 7, dtype=dtype, **options)
    count = options["num_layers"] * (2 if options["bidirectional"] else 1)
    batch_first = options["batch_first"]
    sizes = (len(lengths), max(lengths)) if batch_first else (max(lengths), len(lengths))
    data = torch.randn(*sizes, 5, dtype=dtype)
    states = first_states(kind, count, len(lengths), 7, dtype=dtype)

    def x(device: str) -> tuple[torch.Tensor, PackedSequence]:
        leaf = data.to(device, copy=True).requires_grad_()
        return leaf, pack_padded_sequence(leaf, torch.tensor(lengths), batch_first, False)

    for mode in MODES:
        with executing(mode):
            want, got = (
                with_gradients(m, x, states, d) for m, d in ((cpu, "cpu"), (tenon, "tenon"))
            )
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        for module in (cpu, tenon):
            module.zero_grad()


@needs.host_memory
def test_steps_are_one_call() -> None:
    names = ("tenon::recurrence", "tenon::recurrence_backward")

    def calls() -> int:
        return sum(
            n
            for how, op, n, *_ in _C.counter_values()
            if op in names and how in ("fallback", "recorded")
        )

    for kind in ("gru", "tanh"):
        module = made_of(kind, 4, 5)[1]
        for lengths in ([5, 5, 5], [5, 4, 1], [3, 3, 2]):
            before = calls()
            data = torch.randn(3, 5, 4, device="tenon")
            packed = pack_padded_sequence(data, torch.tensor(lengths), batch_first=True)
            module(packed)[0].data.sum().backward()
            torch.tenon.synchronize()
            assert calls() == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_packed_gradients(kind: str, reverse: bool) -> None:
    module = made_of(kind, 3, 4, dtype=torch.float64, bidirectional=reverse)[1]
    x = torch.randn(6, 3, dtype=torch.float64).to("tenon").requires_grad_()
    sizes = torch.tensor([3, 2, 1])
    weights = [p.detach().clone().requires_grad_() for p in module.parameters()]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        names = [n for n, _ in module.named_parameters()]
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(module, named, (PackedSequence(x, sizes),))[0].data

    assert torch.autograd.gradgradcheck(run, (x, *weights), nondet_tol=1e-9)


def test_batch_sizes_that_are_none() -> None:
    op = torch.ops.tenon.recurrence
    gates, weight, h = torch.randn(6, 4), torch.randn(4, 4), torch.randn(3, 4)
    for sizes in ([3, 4], [3, 2, 2], [3, 3, 0], [4, 2], [-1, 7], [3]):
        with pytest.raises(RuntimeError, match=r"tenon::recurrence: .* (after|for steps of)"):
            op(gates, weight, None, h, h[:0], torch.tensor(sizes), 0, False, False)


def test_only_some_results_are_used() -> None:
    cpu = nn.LSTM(4, 6)
    tenon = copy.deepcopy(cpu).to("tenon")
    x = torch.randn(5, 2, 4)
    for pick in (lambda r: r[0][0], lambda r: r[1][0], lambda r: r[1][1]):
        grads = []
        for module, device in ((cpu, "cpu"), (tenon, "tenon")):
            module.zero_grad()
            pick(module(x.to(device))).sum().backward()
            grads.append([p.grad.cpu() for p in module.parameters()])
        for want, got in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_gradients_of_gradients() -> None:
    lstm = nn.LSTM(3, 4, dtype=torch.float64).to("tenon")
    x = torch.randn(3, 2, 3, dtype=torch.float64).to("tenon").requires_grad_()
    weights = [p.detach().clone().requires_grad_() for p in lstm.parameters()]

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        names = [n for n, _ in lstm.named_parameters()]
        return torch.func.functional_call(lstm, dict(zip(names, weights, strict=True)), x)[0]

    assert torch.autograd.gradgradcheck(run, (x, *weights), nondet_tol=1e-9)


def test_what_is_not_plain_is_as_on_the_cpu() -> None:
    projected = nn.LSTM(4, 6, proj_size=3)
    x = torch.randn(5, 2, 4)
    want = projected(x)[0]
    torch.testing.assert_close(projected.to("tenon")(x.to("tenon"))[0].cpu(), want)
    lstm = nn.LSTM(4, 6).to("tenon")
    with pytest.raises(RuntimeError):
        lstm(torch.randn(5, 2, 3, device="tenon"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transforms_that_ended_leave_no_trace(dtype: torch.dtype) -> None:
    layers = torch.nn.LSTM(4, 5, dtype=dtype).to("tenon")
    x = torch.rand(3, 2, 4, dtype=dtype)
    torch.func.vmap(torch.sin)(x)
    before = _calls()
    same_on_both(lambda device: layers.to(device)(x.to(device))[0], rtol=1e-5, atol=1e-6)
    assert _calls() > before


def _calls() -> int:
    """Of whole layers, and of single steps where the host does not reach the memory."""
    layers = ("aten::mkldnn_rnn_layer", "tenon::recurrence", "tenon::recurrence_backward")
    names = ("aten::_thnn_fused_lstm_cell", *layers)
    return sum(n for _, op, n, *_ in _C.counter_values() if op in names)


@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_of_gradients_where_the_library_has_none(batch_first: bool) -> None:
    lstm = nn.LSTM(3, 4, bidirectional=True, batch_first=batch_first)
    x = torch.randn(3, 2, 3)

    def found(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        module = copy.deepcopy(lstm).to(device, dtype)
        data = x.to(device, dtype).requires_grad_()
        out = module(data)[0].square().sum()
        (first,) = torch.autograd.grad(out, data, retain_graph=True)
        (again,) = torch.autograd.grad(out, data, create_graph=True)
        second = torch.autograd.grad(again.square().sum(), [data, *module.parameters()])
        return [t.detach().cpu().float() for t in (first, again, *second)]

    for _ in range(3):
        want, got = found("cpu", torch.float64), found("tenon", torch.float32)
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_training_in_a_window_that_began_without_gradients(mode: str) -> None:
    # The library keeps something for backward only where they are on.
    lstm = nn.LSTM(6, 8)
    x = torch.randn(5, 3, 6)

    def found(device: str) -> list[torch.Tensor]:
        module = copy.deepcopy(lstm).to(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        data = x.to(device)
        for _ in range(6):
            module.zero_grad()
            with torch.no_grad():
                batch = data * 2 - 1
            loss = module(batch)[0].square().sum()
            loss.backward()
            optimizer.step()
            loss.item()
        return [p.detach().cpu() for p in module.parameters()]

    with executing(mode):
        for want, got in zip(found("cpu"), found("tenon"), strict=True):
            torch.testing.assert_close(got, want)


LAYERS = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 3, "bias": False, "dropout": 0.0},
    {"bidirectional": True},
    {"proj_size": 3},
]


def _results(module: Any, x: torch.Tensor, how: str) -> list[torch.Tensor]:
    """The outputs and states, and where there are some the gradients."""
    if how == "inference_mode":
        with torch.inference_mode():
            return tree_leaves(module(x.clone()))
    if how == "no_grad":
        with torch.no_grad():
            return tree_leaves(module(x))
    module.zero_grad()
    x = x.detach().requires_grad_()
    found = tree_leaves(module(x))
    sum((y.float() * (k + 1)).square().sum() for k, y in enumerate(found)).backward()
    return [*found, x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.slow
@needs.plans
@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "gradients"])
@pytest.mark.parametrize("batch", [3, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", LAYERS, ids=str)
@torch._dynamo.config.patch(allow_rnn=True)
def test_compiled_layers(options: dict, dtype: torch.dtype, batch: int, how: str) -> None:
    cpu = nn.LSTM(5, 7, dtype=dtype, **options)
    tenon = copy.deepcopy(cpu).to("tenon")
    x = torch.randn(*((batch, 2) if options.get("batch_first") else (2, batch)), 5, dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(tenon, backend="tenon", fullgraph=True)
    limit = 5e-2 if dtype is torch.bfloat16 else 1e-4
    assert_same(_results(compiled, x.to("tenon"), how), _results(cpu, x, how), limit, limit)


@pytest.mark.slow
@needs.plans
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@torch._dynamo.config.patch(allow_rnn=True)
def test_compiled_layers_at_sizes(kind: Any) -> None:
    cpu = kind(5, 7)
    tenon = copy.deepcopy(cpu).to("tenon")
    torch._dynamo.reset()
    compiled = torch.compile(tenon, backend="tenon", dynamic=True)
    for steps, batch in ((2, 3), (2, 6)):
        x = torch.randn(steps, batch, 5)
        for how in ("no_grad", "gradients"):
            want = _results(cpu, x, how)
            assert_same(_results(compiled, x.to("tenon"), how), want, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_batch_of_gradients(layer: type[nn.RNNBase], dtype: torch.dtype) -> None:
    """As `gradcheck` and `torch.autograd.functional.jacobian` ask for by one call."""
    torch.manual_seed(0)
    on_cpu = layer(3, 4, num_layers=2).to(dtype)
    here = copy.deepcopy(on_cpu).to("tenon")
    x, grads = torch.randn(5, 2, 3, dtype=dtype), torch.randn(3, 5, 2, 4, dtype=dtype)
    found = []
    for model, device in ((here, "tenon"), (on_cpu, "cpu")):
        given = x.to(device).requires_grad_()
        outputs = [given, *model.parameters()]
        found.append(
            torch.autograd.grad(model(given)[0], outputs, grads.to(device), is_grads_batched=True)
        )
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_what_is_computed_of_other_inputs(kind: str, dtype: torch.dtype) -> None:
    """The gradients of a layer that went on from its own states: to be differentiated again they
    are those that they are without."""
    cpu, tenon = made_of(kind, 3, 4, dtype=dtype)
    data = torch.randn(4, 2, 3, dtype=dtype)

    def found(module: nn.RNNBase, device: str) -> list[torch.Tensor]:
        x = data.to(device, copy=True).requires_grad_()
        y, states = module(x)
        out = module(y[..., :3] * x, states)[0].square().sum()
        leaves = [x, *module.parameters()]
        first = torch.autograd.grad(out, leaves, retain_graph=True)
        again = torch.autograd.grad(out, leaves, create_graph=True)
        return [t.cpu() for t in (*first, *again)]

    want, got = found(cpu, "cpu"), found(tenon, "tenon")
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    twice = [sum(t.square().sum() for t in x[-5:]) for x in (want, got)]
    second = [
        torch.autograd.grad(t, list(m.parameters()))
        for t, m in zip(twice, (cpu, tenon), strict=True)
    ]
    for w, g in zip(*second, strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_changed_in_place(kind: str) -> None:
    """PyTorch's compositions keep no result for backward."""
    cpu, tenon = made_of(kind, 3, 4, dtype=torch.float64, bidirectional=False)
    data = torch.randn(4, 2, 3, dtype=torch.float64)

    def found(module: nn.RNNBase, device: str) -> list[torch.Tensor]:
        y, states = module(data.to(device))
        for t in (y, *(states if isinstance(states, tuple) else (states,))):
            t.mul_(2)
        y.relu_().sum().backward()
        return [p.grad.cpu() for p in module.parameters()]

    for w, g in zip(found(cpu, "cpu"), found(tenon, "tenon"), strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_transforms_of_functions(options: dict, kind: str) -> None:
    """Of which PyTorch's fused cells have no derivative forwards."""
    cpu, tenon = made_of(kind, 3, 4, dtype=torch.float64, **options)
    data, change = torch.randn(2, 4, 2, 3, dtype=torch.float64)

    def found(module: nn.RNNBase, device: str) -> list[torch.Tensor]:
        x, v = data.to(device), change.to(device)
        named = dict(module.named_parameters())

        def run(x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, named, (x,))[0]

        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, v)
            along = torch.autograd.forward_ad.unpack_dual(run(dual)).tangent
        results = [along, *torch.func.jvp(run, (x,), (v,))]
        results += [torch.func.grad(lambda x: run(x).square().sum())(x)]
        return [t.detach().cpu() for t in results]

    for w, g in zip(found(cpu, "cpu"), found(tenon, "tenon"), strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_cells(cell: type[nn.RNNCellBase], bias: bool) -> None:
    """States that are changed in place before backward, and derivatives forwards."""
    cpu = cell(3, 4, bias=bias, dtype=torch.float64)
    tenon = copy.deepcopy(cpu).to("tenon")
    data = torch.randn(4, 2, 3, dtype=torch.float64)

    def found(module: Any, device: str) -> list[torch.Tensor]:
        states: Any = None
        x = data.to(device)
        for step in x:
            states = module(step, states)
            for t in states if isinstance(states, tuple) else (states,):
                t[0] = 0
        sum(t.square().sum() for t in tree_leaves(states)).backward()

        def run(x: torch.Tensor) -> torch.Tensor:
            return sum(tree_leaves(module(x)))  # type: ignore[return-value]

        along = torch.func.jvp(run, (x[0],), (x[1],))
        return [t.detach().cpu() for t in (*along, *(p.grad for p in module.parameters()))]

    for w, g in zip(found(cpu, "cpu"), found(tenon, "tenon"), strict=True):
        torch.testing.assert_close(g, w)
