"""What a target's library has kernels for is called by compiled graphs, between their plans."""

import pytest
from fresh_process import TESTS, output

WITH_LIBRARY = f"{TESTS / 'targets' / 'with_library.py'}:WithLibrary"

COMPARE = """
    import torch
    import torch_tenon

    def compare(function, *args, backward=True, calls=(), **options):
        \"\"\"On the CPU and compiled, with the calls of the library that each run makes.\"\"\"
        compiled = torch.compile(function, backend="tenon", **options)
        for run in range(2):
            given = [[x.detach().to(d) if isinstance(x, torch.Tensor) else x for x in args]
                     for d in ("cpu", "tenon")]
            for x, y in zip(args, zip(*given)):
                if isinstance(x, torch.Tensor) and x.requires_grad:
                    y[0].requires_grad_()
                    y[1].requires_grad_()
            torch.tenon.synchronize()
            torch_tenon.reset_counters()
            want, got = function(*given[0]), compiled(*given[1])
            torch.testing.assert_close(got, want, check_device=False)
            if backward and want.requires_grad:
                want.square().sum().backward()
                got.square().sum().backward()
            for x, y in zip(*given):
                if isinstance(x, torch.Tensor):
                    torch.testing.assert_close(y.cpu(), x)
                    if x.grad is not None:
                        torch.testing.assert_close(y.grad.cpu(), x.grad)
            found = {k.partition("aten::")[2]: v for k, v in torch_tenon.counters().items()
                     if k.startswith("library::")}
            assert found == dict(calls), found
            fallbacks = [k for k in torch_tenon.counters() if k.startswith("fallback::")]
            assert not fallbacks, fallbacks
"""


def run(code: str) -> None:
    assert output(COMPARE + code + '\n    print("told")', TENON_TARGET=WITH_LIBRARY) == "told"


@pytest.mark.slow
def test_a_network_and_its_gradients() -> None:
    """`addmm` follows from `mm`. A result that the library lays out in another order of memory is
    put into the order that the parts are compiled for."""
    run("""
    def network(x, w, b, gain, v):
        y = torch.nn.functional.linear(x, w, b).relu()
        y = torch.nn.functional.layer_norm(y, (y.shape[-1],), gain)
        return (y @ v * 0.1).softmax(-1) * 3 + 1

    torch.manual_seed(0)
    shapes = (5, 7), (6, 7), (6,), (6,), (6, 4)
    given = [torch.randn(s, requires_grad=True) for s in shapes]
    compare(network, *given, calls={"mm": 6, "native_layer_norm": 1, "_softmax": 1})
    """)


def test_factors_of_another_kind() -> None:
    """A sum that follows from a product has its dtype: of whole numbers the factor's whole part
    counts, as on the CPU."""
    run("""
    x, y = torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)
    for how in ({"alpha": 2.5}, {"beta": 0.5}, {"alpha": 0.5, "beta": 3.7}, {"beta": 2 + 0j}):
        want, got = (torch.addmm((x @ y).to(d), x.to(d), y.to(d), **how) for d in ("cpu", "tenon"))
        torch.testing.assert_close(got.cpu(), want)
    try:
        torch.addmm((x @ y).to("tenon"), x.to("tenon"), y.to("tenon"), alpha=1j)
    except RuntimeError:
        pass
    else:
        raise AssertionError("nothing was said")
    """)


@pytest.mark.slow
def test_any_sizes() -> None:
    """A part gets the sizes that it needs, also where none of its tensors has them."""
    run("""
    def function(x, y, n):
        z = (x + 1) @ y
        best, at = z.topk(3)
        w = torch.zeros(x.shape[0] * 2, n, device=x.device)
        return z.view(-1)[: n + x.shape[1]].sum() + best.sum() + at.sum() + (w + 2) @ w.mT

    torch.manual_seed(0)
    for n, m in ((4, 5), (6, 7), (9, 8)):
        x, y = torch.randn(n, m), torch.randn(m, 9)
        compare(function, x, y, n + m, dynamic=True, calls={"mm": 2, "topk": 1})
    """)


@pytest.mark.slow
def test_what_is_written_in_place() -> None:
    """A part reads a view of what the last part writes, and both see the same memory."""
    run("""
    def function(x, y):
        row = x[1]
        z = x @ y
        x.add_(z)
        x[0] = row * 2
        return (x.mT @ row).sum() + row, x.mT

    torch.manual_seed(0)
    compare(function, torch.randn(4, 4), torch.randn(4, 4), backward=False, calls={"mm": 1})
    """)


@pytest.mark.slow
def test_random_numbers_are_those_of_eager_code() -> None:
    run("""
    def function(x, y):
        z = torch.nn.functional.dropout(x, 0.3) @ y
        return torch.nn.functional.dropout(z, 0.5) @ y + torch.rand_like(z)

    x, y = torch.randn(16, 8).to("tenon"), torch.randn(8, 8).to("tenon")
    torch.manual_seed(3)
    want = function(x, y).cpu()
    torch.manual_seed(3)
    got = torch.compile(function, backend="tenon")(x, y).cpu()
    torch.testing.assert_close(got, want)
    """)


@pytest.mark.slow
def test_a_kernel_that_gives_something_else() -> None:
    """The error says what was to be made: plans would read memory that is not there."""
    run("""
    from torch_tenon import device

    function = torch.compile(lambda x, y: (x @ y) * 2, backend="tenon")
    x, y = torch.randn(2, 3).to("tenon"), torch.randn(3, 4).to("tenon")
    for wrong in (lambda x: x[:, :2], lambda x: x.double(), lambda x: x[0]):
        made = torch.ops.aten.mm.default
        library = torch.library.Library("aten", "IMPL")
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("mm", lambda x, y: wrong((x.cpu() @ y.cpu()).to(x.device)), "PrivateUse1")
        try:
            function(x, y)
        except RuntimeError as error:
            assert "the library's kernel for aten.mm.default gave" in str(error), error
        else:
            raise AssertionError("nothing was said")
        library._destroy()
    """)


@pytest.mark.slow
def test_an_out_of_another_dtype_is_refused_where_the_cpu_refuses_it() -> None:
    run("""
    from itertools import product

    aten = torch.ops.aten
    kinds = torch.int64, torch.float32, torch.float64, torch.complex64
    # Kernels that take the dtype of the result alone, some of several results.
    calls = {
        "mm": lambda x, new: torch.mm(x.mT, x, out=new()),
        "addmm": lambda x, new: torch.addmm(x[0], x.mT, x, out=new()),
        "matmul": lambda x, new: torch.matmul(x.mT, x, out=new()),
        "softmax": lambda x, new: aten._softmax.out(x, 1, False, out=new()),
        "topk": lambda x, new: torch.topk(x, 2, out=(new(), new(torch.int64)))[0],
        "places": lambda x, new: torch.topk(x, 2, out=(new(x.dtype), new()))[1],
        "norm": lambda x, new: aten.native_layer_norm.out(
            x, [2], None, None, 1e-5, out0=new(), out1=new(x.dtype), out2=new(x.dtype))[0],
    }

    def told(call, device, given, wanted):
        try:
            x = torch.ones(3, 2, dtype=given, device=device)
            made = call(x, lambda dtype=wanted: torch.empty(0, dtype=dtype, device=device))
            return made.cpu().tolist()
        except (RuntimeError, NotImplementedError) as error:
            return str(error).splitlines()[0]

    for (name, call), given, wanted in product(calls.items(), kinds, kinds):
        expected = told(call, "cpu", given, wanted)
        for _ in range(2):
            got = told(call, "tenon", given, wanted)
            # A call with two faults may be refused for either of them.
            same = got == expected or (isinstance(got, str) and "not implemented" in got)
            assert same, (name, given, wanted, got, expected)
            assert isinstance(got, str) == isinstance(expected, str)
    """)
