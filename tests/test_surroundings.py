"""Settings that change between a call and its run: the call means what it meant when it came."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from against_cpu import assert_same, executing
from fresh_process import output
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from turns import MODES, in_thread, turns

from torch_tenon.pytorch import settings


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest):
    with executing(request.param):
        yield request.param


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_tensor_type(name: str) -> Iterator[None]:
    torch.set_default_tensor_type(name)
    try:
        yield
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fill_uninitialized(value: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = value


def _enable_mkldnn(value: bool) -> None:
    torch.backends.mkldnn.enabled = value


def _decide_mkldnn(value: bool) -> None:
    torch.backends.mkldnn.deterministic = value


# Settings of the process that kernels look at: how to get and set each, and a value that is no
# default.
SETTINGS: dict[str, tuple[Callable[[], object], Callable[..., object], object]] = {
    "precision_of_products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "medium",
    ),
    "precision_of_convolutions": (
        lambda: torch._C._get_fp32_precision_getter("mkldnn", "conv"),
        lambda value: setattr(torch.backends.mkldnn.conv, "fp32_precision", value),
        "bf16",
    ),
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, _enable_mkldnn, False),
    "mkldnn_by_flags": (
        torch._C._get_mkldnn_enabled,
        lambda value: torch.backends.mkldnn.set_flags(value),
        False,
    ),
    "deterministic_mkldnn": (
        lambda: torch.backends.mkldnn.deterministic,
        _decide_mkldnn,
        True,
    ),
    "nnpack": (
        torch._C._get_nnpack_enabled,
        lambda value: torch.backends.nnpack.set_flags(value),
        False,
    ),
    "half_sums": (
        torch._C._get_cpu_allow_fp16_reduced_precision_reduction,
        torch._C._set_cpu_allow_fp16_reduced_precision_reduction,
        True,
    ),
    "filled_memory": (
        torch._C._get_deterministic_fill_uninitialized_memory,
        _fill_uninitialized,
        False,
    ),
}


@contextlib.contextmanager
def setting(name: str) -> Iterator[None]:
    get, change, value = SETTINGS[name]
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Seeing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


class Refusing(TorchDispatchMode):
    """Computing is not for it to see; copies are."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert "copy" in name or name in ("detach", "alias", "empty"), name
        return function(*args, **(kwargs or {}))


class RefusingFunctions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert getattr(function, "__name__", "") in ("cpu", "synchronize", "__get__"), function
        return function(*args, **(kwargs or {}))


def computed(x: torch.Tensor, ints: torch.Tensor) -> list[torch.Tensor]:
    """Results whose dtypes and values hang on settings, and some that do not."""
    y = x.sin() * 2
    y[1:].add_(1)
    mixed = [ints + 1.5, ints / 2, ints.sigmoid(), ints.sqrt(), torch.where(ints > 3, 0.5, ints)]
    product = x @ x.t()
    return [y, product, product.relu().sum(1), torch.softmax(product, 1), *mixed]


def tensors(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(6, 6) + turn, torch.arange(6) + turn


CHANGES: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "default_dtype": lambda: default_dtype(torch.float64),
    "bfloat16_by_default": lambda: default_dtype(torch.bfloat16),
    "default_tensor_type": lambda: default_tensor_type("torch.DoubleTensor"),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("tenon", dtype=torch.bfloat16),
    "autocast_of_the_cpu": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "deterministic": deterministic,
    "one_thread": lambda: threads(1),
    "dispatch_mode": Refusing,
    "function_mode": RefusingFunctions,
    "default_device": lambda: torch.device("meta"),
}
NO_GRAD_MODES = ("no_grad", "inference_mode")


@pytest.mark.slow
@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.*")
@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_that_begins_before_the_run(change: str) -> None:
    for turn in turns(5):
        x, ints = tensors(turn)
        want = computed(x, ints)
        results = computed(x.to("tenon"), ints.to("tenon"))
        with CHANGES[change]():
            torch.tenon.synchronize()
            first = results[0].cpu() if turn % 2 else None
        assert_same(results, want, rtol=1e-5, atol=1e-5)
        if first is not None:
            assert first.device.type == "cpu" and first.dtype == want[0].dtype


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.*")
@pytest.mark.parametrize(
    "change",
    [
        "default_dtype",
        "bfloat16_by_default",
        "default_tensor_type",
        *NO_GRAD_MODES,
        "enable_grad",
        "deterministic",
        "one_thread",
    ],
)
def test_a_setting_that_ends_before_the_run(change: str) -> None:
    for turn in turns(5):
        x, ints = tensors(turn)
        there = x.to("tenon"), ints.to("tenon")
        with CHANGES[change]():
            want = computed(x, ints)
            results = computed(*there)
        assert_same(results, want, rtol=1e-2, atol=1e-2)


def test_a_setting_that_changes_in_the_middle_of_a_window() -> None:
    for turn in turns(5):
        x, ints = tensors(turn)

        def program(x: torch.Tensor, ints: torch.Tensor) -> list[torch.Tensor]:
            results = [ints + 1.5]
            with default_dtype(torch.float64):
                results.append(ints + 1.5)
                with torch.no_grad():
                    results.append(ints / 3)
            results.append(ints / 3)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                results.append(x @ x)
            results.append(x @ x)
            with torch.inference_mode():
                results.append(x * 2)
            return results

        want = program(x, ints)
        results = program(x.to("tenon"), ints.to("tenon"))
        assert [r.dtype for r in results] == [w.dtype for w in want]
        for result, w in zip(results, want, strict=True):
            tolerance = 1e-2 if w.dtype is torch.bfloat16 else 1e-5
            assert_same(result, w, rtol=tolerance, atol=tolerance)


def test_who_looks_just_before_a_setting_changes_sees_that_it_did() -> None:
    seen = []
    change = settings._after_commit("_set_default_dtype", lambda _: seen.append(settings.changes()))
    change(torch.get_default_dtype())
    assert settings.changes() != seen[0]


@pytest.mark.parametrize("tensors", [1, 2])
def test_what_asks_for_inference_mode_finds_it(tensors: int) -> None:
    op = [torch.ops.aten._fw_primal_copy, torch.ops.aten._make_dual_copy][tensors - 1]
    for turn in turns(4):
        with torch.inference_mode():
            x = torch.arange(3.0).to("tenon") + turn
            out = torch.zeros(3).to("tenon")
            copy = op(*[x] * tensors, 0)
            assert op.out(*[x] * tensors, 0, out=out) is out
            x.add_(1)
            assert copy.is_inference()
            assert_same([copy, out], [torch.arange(3.0) + turn] * 2)
    with pytest.raises(RuntimeError, match="inference mode"):
        op(*[torch.ones(3).to("tenon")] * tensors, 0)


def test_a_dispatch_mode_sees_its_own_calls_only() -> None:
    for turn in turns(4):
        x = (torch.rand(5) + turn).to("tenon")
        y = (x * 2).sin()
        with Seeing() as mode:
            z = y + 1
            torch.tenon.synchronize()
        assert mode.seen == ["add"]
        assert_same(z, (x.cpu() * 2).sin() + 1, rtol=1e-6, atol=1e-6)


def test_fake_tensors_while_real_ones_are_computed() -> None:
    for turn in turns(4):
        x = torch.rand(5, 5) + turn
        y = (x.to("tenon") * 2) @ torch.eye(5).to("tenon")
        with FakeTensorMode():
            fake = torch.empty(5, device="tenon") + 1
            torch.tenon.synchronize()
        assert fake.shape == (5,)
        assert_same(y, x * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_functorch_s_levels_while_a_window_runs() -> None:
    for turn in turns(4):
        x = torch.rand(4, 3) + turn
        pending = x.to("tenon") * 2 + 1
        pending[1:].mul_(3)
        want = x * 2 + 1
        want[1:].mul_(3)

        def inner(row: torch.Tensor) -> torch.Tensor:
            torch.tenon.synchronize()
            return (row * row).sum()

        there = x.to("tenon")
        mapped = torch.func.vmap(inner)(there)
        again = there + 1
        gradient = torch.func.grad(lambda t: (inner(t[0]) + t.sum()) * 1)(there)
        beyond = torch.func.vmap(torch.func.grad(inner))(there)
        assert_same(pending, want)
        assert_same(mapped, (x * x).sum(1), rtol=1e-6, atol=1e-5)
        expected = torch.ones(4, 3)
        expected[0] += 2 * x[0]
        assert_same([again, gradient, beyond], [x + 1, expected, 2 * x], rtol=1e-6, atol=1e-6)


def test_what_is_not_deterministic_is_refused_where_the_cpu_refuses_it() -> None:
    """Under the flag the call raises; without it, it stays valid when the flag is set later."""

    def put(x: torch.Tensor) -> torch.Tensor:
        return x.put_(torch.tensor([1, 3], device=x.device), torch.tensor([5.0, 6.0]).to(x))

    for _ in turns(4):
        x = torch.zeros(6)
        there = x.to("tenon") + 0
        put(there)
        with deterministic():
            torch.tenon.synchronize()
            assert there.tolist() == [0, 5, 0, 6, 0, 0]
            with pytest.raises(RuntimeError) as on_cpu:
                put(x)
            with pytest.raises(RuntimeError) as on_device:
                put(there).cpu()
        assert str(on_device.value).partition("\n")[0] == str(on_cpu.value).partition("\n")[0]
        assert there.tolist() == [0, 5, 0, 6, 0, 0]


def test_memory_that_nobody_filled_is_filled_under_the_flag() -> None:
    for _ in turns(3):
        with deterministic():
            x = torch.empty(5, device="tenon")
            y = torch.empty_like(x) + 0
        assert x.isnan().all() and y.isnan().all()


def test_denormal_numbers_are_flushed_where_the_call_was_made_so() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such flag")

    def small(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 + x[:1] @ x[1:2]

    for turn in turns(4):
        x = torch.full((5,), 1e-39) * (turn + 1)
        there = x.to("tenon")
        want = small(x)
        kept = small(there)
        with flushing():
            torch.tenon.synchronize()
            flushed = small(there)
        late = small(there)
        with flushing():
            flushed_late = small(there)
            # Another thread, which does not flush, runs what this one has recorded.
            in_thread(functools.partial(assert_same, [late, flushed_late * 1], [want, want * 0]))
        assert want.all() and not flushed.cpu().any() and not flushed_late.cpu().any()
        assert_same([kept, late], [want, want])


SEEING_KERNEL = """
    import contextlib, torch

    def seen(x):
        flags = [
            torch.get_default_dtype() is torch.float64,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch._C._len_torch_dispatch_stack() > 0,
            *(get() == value for get, _, value in SETTINGS.values()),
            bool((torch.full((1,), 1e-40) * 1 == 0).item()),
        ]
        return torch.tensor(flags).to(x.dtype)

    library = torch.library.Library("surroundings", "DEF")  # before the device looks
    library.define("seen(Tensor x) -> Tensor")
    library.impl("seen", seen, "CPU")
    library.impl("seen", lambda x: x.new_empty(7 + len(SETTINGS)), "Meta")
    import torch_tenon
    from test_surroundings import SETTINGS, Seeing, default_dtype, deterministic, flushing, setting
    from turns import turns

    contexts = {
        "nothing": contextlib.nullcontext,
        "default_dtype": lambda: default_dtype(torch.float64),
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "deterministic": deterministic,
        "all": lambda: everything(),
    }

    @contextlib.contextmanager
    def everything():
        with default_dtype(torch.float64), deterministic(), torch.no_grad():
            yield

    x = torch.zeros(1)
    there = x.to("tenon")
    for turn in turns(5):
        for name, at_the_call in contexts.items():
            for other, at_the_run in contexts.items():
                with at_the_call():
                    want = torch.ops.surroundings.seen(x)
                    got = torch.ops.surroundings.seen(there)
                with at_the_run():
                    torch.tenon.synchronize()
                assert got.tolist() == want.tolist(), (turn, name, other, got, want)
        for name, change in [*((n, lambda: setting(n)) for n in SETTINGS), ("flush", flushing)]:
            want = torch.ops.surroundings.seen(x)
            got = torch.ops.surroundings.seen(there)
            with change():
                other = torch.ops.surroundings.seen(x)
                assert other.tolist() != want.tolist(), name
                changed = torch.ops.surroundings.seen(there)
            assert got.tolist() == want.tolist(), (turn, name, got, want)
            assert changed.tolist() == other.tolist(), (turn, name, changed, other)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pass
        pending = torch.ops.surroundings.seen(there)
        with torch.autocast("cpu", dtype=torch.bfloat16), Seeing():
            torch.tenon.synchronize()
        assert pending.tolist() == torch.ops.surroundings.seen(x).tolist(), turn
    print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_a_kernel_sees_the_settings_of_its_call(mode: str) -> None:
    printed = output(SEEING_KERNEL, TORCH_DEVICE_BACKEND_AUTOLOAD="0", TENON_EXECUTE=mode)
    assert printed == "right"
