"""What torch.compile offers works on the device: each against eager on the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import assert_on_device, assert_same
from fresh_process import output
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_device(value: Any) -> Any:
    """A copy of everything in `value` on the device."""
    move = lambda t: t.detach().to("tenon").requires_grad_(t.requires_grad)  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, move, value)


def same(function: Callable[..., Any], *args: Any, backward: bool = False, **options: Any) -> Any:
    """Compiled on the device and eager on the CPU: results, arguments afterwards, and gradients of
    the arguments. Gives the compiled function."""
    compiled = torch.compile(function, **{"backend": "tenon", **options})
    theirs, ours = copy.deepcopy(args), on_device(args)
    want, got = function(*theirs), compiled(*ours)
    if backward:
        for result in (want, got):
            sum(t.square().sum() for t in pytree.tree_leaves(result) if t.requires_grad).backward()
        gradients = [
            [t.grad for t in pytree.tree_leaves(a) if isinstance(t, torch.Tensor) and t.is_leaf]
            for a in (ours, theirs)
        ]
        assert any(g is not None for g in gradients[1])
        assert_same(gradients[0], gradients[1], **CLOSE)
    assert_on_device(got)
    assert_same((got, ours), (want, theirs), **CLOSE)
    return compiled


# The doors.


@pytest.mark.slow
def test_no_backend_named_reaches_the_compiler(monkeypatch):
    from torch._inductor import compile_fx

    from torch_tenon.frontends import dynamo

    seen, left_to_inductor = [], []
    monkeypatch.setattr(
        dynamo, "compile_graph", lambda m, i, of=dynamo.compile_graph: seen.append(m) or of(m, i)
    )
    same(
        lambda x: x.exp() + 1,
        torch.randn(5, 7, requires_grad=True),
        backward=True,
        backend="inductor",
    )
    assert len(seen) == 2
    # Which graphs it gets is the question; what it makes of them takes a C++ compiler.
    monkeypatch.setattr(compile_fx, "compile_fx", lambda m, i, **_: left_to_inductor.append(m) or m)
    torch.testing.assert_close(
        torch.compile(lambda x: x.exp() + 1)(torch.ones(3)), torch.ones(3).exp() + 1
    )
    assert len(seen) == 2 and len(left_to_inductor) == 1  # a host's graph is Inductor's own


def test_a_function_that_makes_its_tensors():
    made = torch.compile(lambda: torch.ones(3, device="tenon") * 2)()
    assert made.device.type == "tenon" and made.tolist() == [2, 2, 2]


@pytest.mark.slow
def test_importing_torch_loads_no_compiler():
    loaded = output(
        "import sys, torch; print([m for m in sys.modules if m in "
        "('torch._dynamo.eval_frame', 'torch._inductor', 'sympy', 'torch_tenon.frontends.graph')])"
    )
    assert loaded == "[]"


def test_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    for name in ("tenon", "tenon:1"):
        interface = get_interface_for_device(name)
        assert interface.device_count() == torch.tenon.device_count()
        assert interface.is_available() and interface.is_bf16_supported()
    interface.synchronize()
    with interface.device(1):
        assert interface.current_device() == 1
    assert interface.current_device() == 0


def test_streams_and_devices_inside():
    def f(x):
        with torch.tenon.stream(torch.tenon.Stream()):
            y = x * 2
        torch.tenon.synchronize()
        return y + 1

    x = torch.randn(4)
    assert_same(torch.compile(f, backend="tenon")(x.to("tenon")), x * 2 + 1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("backend", ["tenon", "inductor"])
def test_modes(mode, backend):
    same(lambda x: x.softmax(-1), torch.randn(4, 5), mode=mode, backend=backend)


def test_options():
    from torch_tenon import counters, reset_counters

    reset_counters()
    same(lambda x: x.exp() + 1, torch.randn(4, 5), options={"reference": True})
    assert any(name.endswith("aten::exp") for name in counters()), "no op of its own"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"speed": 9}}, "the backend tenon has no option 'speed': reference"),
        ({"options": {"reference": 1}}, "option 'reference' is a bool, not 1"),
        ({"mode": "fastest"}, "mode='fastest' is none of default, reduce-overhead"),
    ],
)
def test_unknown_modes_and_options(arguments, message):
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend="tenon", **arguments)(torch.ones(2, device="tenon"))


# Autocast.


def test_autocast_inside_and_outside():
    def inside(x, w):
        with torch.autocast("tenon", dtype=torch.bfloat16):
            return x @ w

    x, w = torch.randn(4, 8), torch.randn(8, 3)
    ours = x.to("tenon"), w.to("tenon")
    results = [torch.compile(inside, backend="tenon")(*ours)]
    with torch.autocast("tenon", dtype=torch.bfloat16):
        results.append(torch.compile(lambda x, w: x @ w, backend="tenon")(*ours))
    for got in results:
        assert got.dtype is torch.bfloat16
        torch.testing.assert_close(got.float().cpu(), x @ w, rtol=5e-2, atol=5e-2)


@pytest.mark.slow
def test_autocast_training():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2)).to("tenon")
    compiled = torch.compile(model, backend="tenon")
    x = torch.randn(4, 8)
    with torch.autocast("tenon", dtype=torch.bfloat16):
        compiled(x.to("tenon")).float().square().mean().backward()
    got = [p.grad.clone() for p in model.parameters()]
    assert all(g.dtype is torch.float32 for g in got)
    plain = copy.deepcopy(model).cpu()
    plain.zero_grad()
    plain(x).square().mean().backward()
    want = [p.grad for p in plain.parameters()]
    assert_same(got, want, rtol=0.1, atol=3e-2)


# What Dynamo makes of Python.


def test_graph_breaks():
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y.relu() + 1
        return y - 1

    x = torch.randn(6)
    same(f, x)
    same(f, -x.abs())


def test_fullgraph_names_the_break():
    def f(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="tenon", fullgraph=True)(torch.ones(2, device="tenon"))
    same(lambda x: x.exp().sum(0), torch.randn(3, 4), fullgraph=True)


def test_nested_compile():
    inner = torch.compile(lambda x: x.sin() * 2, backend="tenon")
    same(lambda x: inner(x) + inner(x + 1), torch.randn(5))


def test_a_custom_op():
    @torch.library.custom_op("tenon_test::twice_plus", mutates_args=())
    def twice_plus(x: torch.Tensor, y: float) -> torch.Tensor:
        return x * 2 + y

    @twice_plus.register_fake
    def _(x, y):
        return torch.empty_like(x)

    twice_plus.register_autograd(
        lambda ctx, g: (g * 2, None), setup_context=lambda ctx, inputs, output: None
    )
    same(
        lambda x: twice_plus(x.exp(), 3.0).sum(0),
        torch.randn(3, 4, requires_grad=True),
        backward=True,
    )


def test_a_custom_op_that_writes():
    @torch.library.custom_op("tenon_test::fill_with", mutates_args=("x",))
    def fill_with(x: torch.Tensor, y: float) -> None:
        x.fill_(y)

    @fill_with.register_fake
    def _(x, y):
        return None

    def f(x):
        z = x + 1
        fill_with(z, 3.0)
        fill_with(x, 4.0)
        return z * 2 + x

    same(f, torch.randn(3, 4))


# Sizes.


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_many_sizes(dynamic):
    f = lambda x: (x.softmax(-1) * x.shape[0], x[1:].t().reshape(-1))  # noqa: E731
    compiled = torch.compile(f, backend="tenon", dynamic=dynamic)
    for n in (4, 5, 9, 33):
        x = torch.randn(n, 6)
        assert_same(compiled(x.to("tenon")), f(x), **CLOSE)


def test_a_marked_size_compiles_once():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("tenon")
    compiled = torch.compile(lambda x: x.cumsum(0).sum(1), backend=counter)
    for n in (4, 5, 9):
        x = torch.randn(n, 6)
        ours = x.to("tenon")
        torch._dynamo.mark_dynamic(ours, 0)
        assert_same(compiled(ours), x.cumsum(0).sum(1), **CLOSE)
    assert counter.frame_count == 1


# Mutation and aliasing.


def test_views_written_through():
    def f(x, y):
        part = x[1:, ::2]
        part.mul_(3)
        y.t().add_(1)
        return part, x.t(), y.view(-1)

    same(f, torch.randn(4, 6), torch.randn(3, 3))


def test_two_arguments_share_memory():
    def f(x, y):
        x.add_(1)
        return y * 2

    a, b = torch.zeros(6), torch.zeros(6, device="tenon")
    want, got = f(a[:4], a[2:]), torch.compile(f, backend="tenon")(b[:4], b[2:])
    assert_same((got, b), (want, a))


def test_an_output_twice_and_an_input_back():
    def f(x):
        y = x + 1
        return y, y, x, y[0]

    got = torch.compile(f, backend="tenon")(x := torch.ones(2, 3, device="tenon"))
    assert got[0] is got[1] and got[2] is x
    assert got[3].data_ptr() == got[0].data_ptr()


def test_results_for_the_host():
    compiled = torch.compile(lambda x: (x * 2, (x + 1).cpu(), x.sum()), backend="tenon")
    x = torch.randn(3)
    got = compiled(x.to("tenon"))
    assert [t.device.type for t in got] == ["tenon", "cpu", "tenon"]
    assert_same(got, (x * 2, x + 1, x.sum()), **CLOSE)


# Random numbers.


def test_a_seed_repeats_the_numbers():
    compiled = torch.compile(lambda x: (torch.rand_like(x), F.dropout(x, 0.5)), backend="tenon")
    x = torch.ones(1000, device="tenon")
    torch.manual_seed(7)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first[0], second[0])
    torch.manual_seed(7)
    assert_same(compiled(x), first)
    state = torch.tenon.get_rng_state()
    third = compiled(x)
    torch.tenon.set_rng_state(state)
    assert_same(compiled(x), third)
    torch.manual_seed(-3)
    assert 0.4 < compiled(x)[0].mean() < 0.6


def test_the_generator_advances_by_ops():
    generator = torch.tenon.default_generators[0]
    generator.manual_seed(1)
    torch.compile(lambda x: x + torch.rand_like(x) + torch.randn_like(x), backend="tenon")(
        torch.ones(5, device="tenon")
    )
    assert generator.get_offset() == 2


@pytest.mark.slow
@pytest.mark.parametrize("outside", [False, True])
def test_a_checkpoint_repeats_its_dropout(outside):
    def block(x):
        return F.dropout(x.sin(), 0.5) * x

    def whole(x):
        return checkpoint(block, x, use_reentrant=False)

    x = torch.rand(2000, device="tenon").add_(0.5).requires_grad_()
    if outside:
        y = checkpoint(torch.compile(block, backend="tenon"), x, use_reentrant=False)
    else:
        y = torch.compile(whole, backend="tenon")(x)
    y.sum().backward()
    kept = (y != 0).detach()
    assert 0.4 < kept.float().mean() < 0.6
    a = x.detach()
    want = kept * 2 * (a.sin() + a * a.cos())
    torch.testing.assert_close(x.grad.cpu(), want.cpu(), rtol=1e-4, atol=1e-5)


# Higher-order ops.


def test_cond():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    x = torch.rand(3, 4)
    compiled = same(f, x)
    assert_same(compiled((-x).to("tenon")), f(-x), **CLOSE)


@pytest.mark.slow
def test_cond_with_gradients():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    same(f, torch.rand(3, 4, requires_grad=True), backward=True)


@pytest.mark.slow
def test_while_loop():
    from torch._higher_order_ops import while_loop

    def f(n, x):
        return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 1.5 + 1), (n, x))

    same(f, torch.tensor(4), torch.randn(3, 2))


@pytest.mark.slow
def test_scan():
    from torch._higher_order_ops import scan

    def f(start, x):
        return scan(lambda c, x: (c + x, (c * x).sin()), start, x, dim=0)

    same(f, torch.randn(4), torch.randn(5, 4))


@pytest.mark.slow
def test_associative_scan():
    from torch._higher_order_ops import associative_scan

    same(
        lambda x: associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic"),
        torch.rand(5, 4),
    )


def test_map():
    from torch._higher_order_ops import map as map_

    same(lambda x, y: map_(lambda row, y: (row + y).exp(), x, y), torch.randn(5, 4), torch.randn(4))


def test_checkpoint_computes_again():
    def f(x, w):
        return checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False)

    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    same(f, x, w, backward=True)


def test_products_of_bytes_in_a_wider_dtype():
    """What dynamic quantisation to 8 bits compiles to; also of bytes that are not added up."""
    from torch._higher_order_ops.out_dtype import out_dtype

    def f(x, y):
        product = out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)
        scaled = out_dtype(torch.ops.aten.mul.Tensor, torch.int32, x[0], y[:, 0])
        return product, product.float() * 0.5, scaled

    same(f, *(torch.randint(-128, 128, size, dtype=torch.int8) for size in ((17, 32), (32, 16))))


def test_a_higher_order_op_of_one_tensor():
    """It has no schema: whether it gives a tensor or a list of one, its trace says."""
    from torch._higher_order_ops.out_dtype import out_dtype

    from torch_tenon.frontends import dynamo

    x, y = (torch.randint(-128, 128, (4, 4), dtype=torch.int8) for _ in range(2))

    def f(x, y):
        return [out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)]

    module = make_fx(f, tracing_mode="fake")(x, y)
    (found,) = dynamo.compile_graph(module, (x, y))([x, y])
    assert torch.equal(found, f(x, y)[0])


@pytest.mark.slow
def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(2, 2, 16, 8) for _ in range(3))
    masks = {
        device: create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device=device)
        for device in ("cpu", "tenon")
    }

    def f(q, k, v):
        return flex_attention(
            q,
            k,
            v,
            score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1,
            block_mask=masks[q.device.type],
        )

    same(f, q, k, v)


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda v: v, lambda v: v.add_(1)], ids=["none", "in place"])
def test_derivatives_of_derivatives(change):
    """A trace knows the tensors of each as wrappers, which have no memory of their own."""

    def of_row(x, w):
        return torch.func.hessian(lambda v: (change(v @ w).sin() ** 2).sum())(x[0])

    def twice(x, w):
        once = torch.func.grad(lambda v: (change(v @ w) ** 3).sum())
        return torch.func.grad(lambda v: once(v).sum())(x[0])

    x, w = torch.randn(7, 5), torch.randn(5, 3)
    for function in (of_row, twice):
        torch.testing.assert_close(
            torch.compile(function, backend="tenon")(x.to("tenon"), w.to("tenon")).cpu(),
            function(x, w),
        )


@pytest.mark.slow
def test_quantised_tensors_within_a_graph():
    """A trace takes them for what they are made of."""

    def function(x):
        return torch.quantize_per_tensor(x, 0.1, 3, torch.qint8).dequantize() * 2

    x = torch.randn(4, 5)
    for dynamic in (False, True):
        found = torch.compile(function, backend="tenon", dynamic=dynamic)(x.to("tenon"))
        torch.testing.assert_close(found.cpu(), function(x))


@pytest.mark.slow
def test_numbers_that_a_transform_converts(caplog):
    """The gradient of a batch of losses has numbers where an op takes tensors."""

    def loss(x):
        return F.huber_loss(x, x.flip(0) * 0.3, delta=0.7)

    same(torch.func.vmap(torch.func.grad(loss), in_dims=1), torch.randn(5, 3))
    assert "failed" not in caplog.text


def test_vmap_and_grad():
    def loss(w, x):
        return (x @ w).tanh().square().sum()

    same(lambda w, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x),
         torch.randn(4, 3), torch.randn(5, 2, 4))  # fmt: skip


# Training.


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("arguments", [{}, {"foreach": False}])
def test_optimizers(kind, arguments):
    weights = [torch.randn(4, 3), torch.randn(5)]
    pairs = []
    for device in ("cpu", "tenon"):
        parameters = [nn.Parameter(w.clone().to(device)) for w in weights]
        optimizer = kind(parameters, lr=0.1, **arguments)
        step = (
            torch.compile(optimizer.step, backend="tenon") if device == "tenon" else optimizer.step
        )
        for k in range(3):
            for p in parameters:
                p.grad = torch.linspace(-1, 1, p.numel()).view_as(p).mul(k + 1).to(device)
            step()
        pairs.append([p.detach() for p in parameters])
    assert_same(pairs[1], pairs[0], **CLOSE)


def test_reset_forgets():
    compiled = torch.compile(lambda x: x + 1, backend="tenon")
    x = torch.ones(2, device="tenon")
    assert compiled(x).tolist() == [2, 2]
    torch._dynamo.reset()
    assert compiled(x).tolist() == [2, 2]


def test_inference_mode_and_no_grad():
    model = nn.Linear(4, 3)
    ours = torch.compile(copy.deepcopy(model).to("tenon"), backend="tenon")
    x = torch.randn(2, 4)
    for context in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with context():
            assert_same(ours(x.to("tenon")), model(x), **CLOSE)


# Errors.


def test_a_wrong_shape_is_an_error_at_the_call():
    with pytest.raises(Exception, match=r"size of tensor a|shape"):
        torch.compile(lambda x, y: x + y, backend="tenon")(
            torch.ones(3, device="tenon"), torch.ones(4, device="tenon")
        )


def test_an_index_out_of_range():
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 3"):
        torch.compile(lambda x, i: x[i] + 1, backend="tenon")(
            torch.ones(3, device="tenon"), torch.tensor([1, 9], device="tenon")
        )


def test_a_dtype_without_loops_still_runs():
    x = torch.randn(4, dtype=torch.complex64)
    same(lambda x: (x * x.conj()).real + 1, x)
