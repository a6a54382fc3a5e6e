"""The caching allocator: statistics, limits, running out; pinned host memory."""

import ctypes
import gc
import itertools

import hypothesis.strategies as st
import needs
import pytest
import torch
from fresh_process import output
from hypothesis import given, settings

import torch_tenon

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("memory_limit", "no_plan_in_work", "no_circles")


@pytest.fixture
def no_circles() -> None:
    """What other tests left in them is gone: nothing is freed while memory is counted."""
    gc.collect()


def fill(mebibytes: float, device: str = "tenon") -> torch.Tensor:
    """Memory that was written: only then the target gives some."""
    filled = torch.zeros(int(mebibytes * MIB), dtype=torch.uint8, device=device)
    torch.tenon.synchronize(filled.device)
    return filled


def test_allocated_reserved_and_peak(nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    before, reserved = torch.tenon.memory_allocated(), torch.tenon.memory_reserved()
    torch.tenon.reset_peak_memory_stats()
    x = fill(30)
    assert torch.tenon.memory_allocated() == before + 30 * MIB
    assert torch.tenon.memory_reserved() >= reserved + 30 * MIB
    del x
    assert torch.tenon.memory_allocated() == before
    assert torch.tenon.max_memory_allocated() == before + 30 * MIB
    assert torch.tenon.memory_reserved() >= reserved + 30 * MIB, "the allocator caches"
    assert torch.tenon.max_memory_reserved() >= reserved + 30 * MIB
    torch.tenon.reset_peak_memory_stats()
    assert torch.tenon.max_memory_allocated() == before
    torch.tenon.empty_cache()
    assert torch.tenon.memory_reserved() == reserved
    assert torch.tenon.max_memory_reserved() >= reserved + 30 * MIB
    torch.tenon.reset_peak_memory_stats()
    assert torch.tenon.max_memory_reserved() == reserved


def test_the_current_device_goes_by_minus_one() -> None:
    code = """
        import torch
        kept = torch.ones(1 << 20, device="tenon") + 1
        torch.tenon.synchronize()
        before = torch.tenon.memory_allocated()
        torch._C._accelerator_resetPeakStats(-1)
        torch._C._accelerator_resetAccumulatedStats(-1)
        free, total = torch._C._accelerator_getMemoryInfo(-1)
        print(before == torch.tenon.memory_allocated() > 0, 0 < free < total, kept[0].item())
    """
    assert output(code) == "True True 2.0"


def test_devices_are_counted_apart(nothing_leaked: None) -> None:
    before = torch.tenon.memory_allocated(0)
    x = fill(5, "tenon:1")
    assert torch.tenon.memory_allocated(0) == before
    assert torch.tenon.memory_allocated("tenon:1") >= x.nbytes
    with torch.tenon.device(1):
        assert torch.tenon.memory_allocated() == torch.tenon.memory_allocated(1)


def test_statistics_have_the_names_of_cuda() -> None:
    fill(1)
    stats = torch.tenon.memory_stats()
    assert stats == torch.accelerator.memory_stats()
    figures = ("current", "peak", "allocated", "freed")
    counted = (
        *("allocation", "segment", "active", "inactive_split"),
        *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"),
        "requested_bytes",
    )
    for name in counted:
        for pool in ("all", "small_pool", "large_pool"):
            for figure in figures:
                assert stats[f"{name}.{pool}.{figure}"] >= 0
    assert {"num_ooms", "num_alloc_retries"} <= set(stats)
    for pool in ("small_pool", "large_pool"):
        key = f"allocation.{pool}"
        live = stats[f"{key}.allocated"] - stats[f"{key}.freed"]
        assert stats[f"{key}.current"] == live


def test_accumulated_statistics_reset() -> None:
    fill(1)
    assert torch.tenon.memory_stats()["allocation.all.allocated"] > 0
    torch.tenon.reset_accumulated_memory_stats()
    assert torch.tenon.memory_stats()["allocation.all.allocated"] == 0
    assert torch.tenon.memory_stats()["allocation.all.freed"] == 0


def test_statistics_nested() -> None:
    fill(1)
    nested = torch.tenon.memory_stats_as_nested_dict()
    for name, value in torch.tenon.memory_stats().items():
        found = nested
        for part in name.split("."):
            found = found[part]
        assert found == value


def test_the_summary_has_the_figures(nothing_leaked: None) -> None:
    """Those of the second device, where no graph that PyTorch keeps has constants."""
    torch.tenon.empty_cache()
    torch.tenon.reset_peak_memory_stats(1)
    held = fill(4, "tenon:1")
    text = torch.tenon.memory_summary(1)
    allocated = next(line for line in text.splitlines() if line.startswith("allocated memory"))
    assert allocated.split()[2:6] == ["4.0", "MiB", "4.0", "MiB"]
    assert text.count("large pool") == text.count("small pool") == 9
    del held
    text = torch.tenon.memory_summary(1, abbreviated=True)
    allocated = next(line for line in text.splitlines() if line.startswith("allocated memory"))
    assert allocated.split()[2:6] == ["0", "B", "4.0", "MiB"]
    assert "pool" not in text
    assert text.startswith("memory of tenon:1, limit")


def test_memory_for_other_code(nothing_leaked: None) -> None:
    before = torch.tenon.memory_allocated(1)
    address = torch.tenon.caching_allocator_alloc(MIB, device=1, stream=0)
    other = torch.tenon.caching_allocator_alloc(MIB, device=1)
    assert address and other and abs(address - other) >= MIB
    assert torch.tenon.memory_allocated(1) == before + 2 * MIB
    torch.tenon.caching_allocator_delete(address)
    torch.tenon.caching_allocator_delete(other)
    assert torch.tenon.memory_allocated(1) == before
    with pytest.raises(ValueError, match="no memory was allocated"):
        torch.tenon.caching_allocator_delete(address)
    with pytest.raises(ValueError, match="at least 1 byte"):
        torch.tenon.caching_allocator_alloc(0)
    with pytest.raises(torch.tenon.OutOfMemoryError):
        torch.tenon.caching_allocator_alloc(1 << 50)


@needs.host_memory
def test_the_address_is_one_to_write_to() -> None:
    address = torch.tenon.caching_allocator_alloc(64)
    ctypes.memset(address, 7, 64)
    assert bytes((ctypes.c_uint8 * 64).from_address(address)) == b"\x07" * 64
    torch.tenon.caching_allocator_delete(address)


def test_names_of_older_programs_warn() -> None:
    held = fill(1)
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert torch.tenon.memory_cached() == torch.tenon.memory_reserved()
    with pytest.warns(FutureWarning, match="max_memory_reserved"):
        assert torch.tenon.max_memory_cached() == torch.tenon.max_memory_reserved()
    for reset in (torch.tenon.reset_max_memory_allocated, torch.tenon.reset_max_memory_cached):
        more = fill(8)
        del more
        assert torch.tenon.max_memory_allocated() > torch.tenon.memory_allocated()
        with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
            reset()
        assert torch.tenon.max_memory_allocated() == torch.tenon.memory_allocated()
    del held


def test_a_freed_block_is_used_again() -> None:
    x = fill(3)
    address = x.data_ptr()
    del x
    assert fill(3).data_ptr() == address


def test_memory_is_aligned() -> None:
    kept = [torch.empty(n, dtype=torch.uint8, device="tenon") for n in (1, 3, 513, 70_001)]
    assert all(x.data_ptr() % 512 == 0 for x in kept)
    assert torch.empty(0, device="tenon").data_ptr() == 0


def test_free_and_total() -> None:
    free, total = torch.tenon.mem_get_info()
    assert 0 < free <= total == torch.tenon.get_device_properties().total_memory
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + 64 * MIB)
    assert torch.tenon.mem_get_info()[0] == 64 * MIB
    assert torch.accelerator.get_memory_info() == torch.tenon.mem_get_info()


def test_out_of_memory_is_an_error_and_the_device_works_on(nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + 16 * MIB)
    ooms = torch.tenon.memory_stats()["num_ooms"]
    kept = fill(8)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 64.00 MiB. tenon:0"):
        fill(64)
    with pytest.raises(torch.OutOfMemoryError):
        kept.to(torch.float64)
    assert torch.tenon.memory_stats()["num_ooms"] == ooms + 2
    assert (kept.fill_(3)[:10].float() + 1).tolist() == [4.0] * 10
    assert fill(64, "tenon:1").numel() == 64 * MIB, "the other device has a limit of its own"
    torch.tenon.set_memory_limit(None)
    assert fill(64).numel() == 64 * MIB


def test_cached_memory_is_given_up_before_an_allocation_fails(nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + 60 * MIB)
    small = [fill(14) for _ in range(4)]
    del small
    assert fill(55).numel() == 55 * MIB


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x @ x,
        lambda x: torch.cat([x, x]),
        lambda x: x.exp(),
        lambda x: x.sort(),
        lambda x: torch.nn.functional.softmax(x, 0),
        lambda x: torch.randn_like(x),
        lambda x: x.t().contiguous(),
        lambda x: torch.cumsum(x, 1),
    ],
)
def test_out_of_memory_inside_an_op(compute, nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    x = torch.rand(2048, 2048, device="tenon")
    expected = x.cpu()
    torch.tenon.empty_cache()
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + MIB)
    with pytest.raises(torch.OutOfMemoryError, match="tenon out of memory"):
        compute(x)
    assert torch.equal(x.cpu(), expected)
    torch.tenon.set_memory_limit(None)
    compute(x)


@pytest.mark.slow
def test_out_of_memory_leaves_what_a_call_was_to_write(nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    x = torch.rand(2048, 2048, device="tenon")
    for _ in range(2):
        torch.sort(x, out=(torch.empty(0).to(x), torch.empty(0, dtype=torch.long).to(x.device)))
    torch.tenon.empty_cache()
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + 24 * MIB)
    values, places = torch.empty(0).to(x), torch.empty(0, dtype=torch.long).to(x.device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.sort(x, out=(values, places))
    assert values.shape == places.shape == (0,)
    assert values.untyped_storage().nbytes() == places.untyped_storage().nbytes() == 0
    torch.tenon.set_memory_limit(None)
    torch.sort(x, out=(values, places))
    assert torch.equal(values.cpu(), x.cpu().sort()[0])


def test_out_of_memory_in_backward(nothing_leaked: None) -> None:
    torch.tenon.empty_cache()
    x = torch.rand(2048, 2048, device="tenon", requires_grad=True)
    loss = (x.exp() * x).sum()
    torch.tenon.empty_cache()
    torch.tenon.set_memory_limit(torch.tenon.memory_reserved() + MIB)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward(retain_graph=True)
    torch.tenon.set_memory_limit(None)
    x.grad = None
    loss.backward()
    assert torch.isfinite(x.grad).all()


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        torch.tenon.set_memory_limit(-1)
    with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5"):
        torch.tenon.set_per_process_memory_fraction(1.5)
    torch.tenon.set_per_process_memory_fraction(0.5)
    total = torch.tenon.get_device_properties().total_memory
    torch.tenon.set_memory_limit(None)
    assert total == torch.tenon.get_device_properties().total_memory // 2


def test_the_limit_of_the_environment() -> None:
    code = """
        import torch
        assert torch.tenon.mem_get_info(1)[1] == 32 << 20
        try:
            torch.empty(64 << 20, dtype=torch.uint8, device="tenon")
        except torch.OutOfMemoryError as error:
            print(error)
    """
    assert "may hold 32.00 MiB" in output(code, TENON_MEMORY_LIMIT="32MiB")


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 6 * MIB), st.integers(0, 50)),
        max_size=40,
    )
)
def test_any_order_of_allocations_and_frees(steps: list[tuple[bool, int, int]]) -> None:
    """No two live blocks overlap, contents stay, the statistics add up, and all comes back."""
    gc.collect()
    before = torch.tenon.memory_allocated()
    live: list[tuple[torch.Tensor, int]] = []
    for number, (free, nbytes, which) in enumerate(steps):
        if free and live:
            x, value = live.pop(which % len(live))
            assert x.numel() == 0 or (x[0].item(), x[-1].item()) == (value, value)
            x = None
        else:
            x = torch.empty(nbytes, dtype=torch.uint8, device="tenon")
            if nbytes > 0:
                x[0] = x[-1] = number
            live.append((x, number))
        spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x, _ in live if x.numel())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        allocated = torch.tenon.memory_allocated() - before
        least = sum(-(-x.nbytes // 512) * 512 for x, _ in live)
        assert least <= allocated <= least + len(live) * MIB, "what is left over is small"
        stats = torch.tenon.memory_stats()
        inactive = stats["inactive_split_bytes.all.current"]
        assert allocated + before + inactive <= stats["reserved_bytes.all.current"]
    assert all(not x.numel() or (x[0].item(), x[-1].item()) == (v, v) for x, v in live)
    live.clear()
    x = None
    assert torch.tenon.memory_allocated() == before
    torch.tenon.empty_cache()


def test_pinned_memory() -> None:
    x = torch.arange(10).pin_memory()
    assert x.is_pinned() and x.device.type == "cpu" and not torch.arange(10).is_pinned()
    assert x[3:].is_pinned(), "a view of pinned memory"
    y = x.to("tenon", non_blocking=True)
    back = torch.empty(10, dtype=torch.int64, pin_memory=True)
    assert back.is_pinned()
    back.copy_(y, non_blocking=True)
    torch.tenon.synchronize()
    assert back.tolist() == list(range(10))
    assert not y.is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin"):
        y.pin_memory()
    del x
    assert not torch.arange(10).is_pinned()


def test_a_loader_pins_its_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0), torch.arange(12))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    seen = []
    for values, labels in loader:
        assert values.is_pinned() and labels.is_pinned()
        seen += values.to("tenon", non_blocking=True).tolist()
    assert seen == list(map(float, range(12)))


def test_free_memory_is_filled_and_what_is_in_use_is_not():
    """For `tenon conformance`: who writes nothing leaves NaN, and no earlier result."""
    sizes = (3, 1000, 300_000)
    kept, freed = ([torch.full((n,), 3.0).to("tenon") for n in sizes] for _ in range(2))
    between = [tensor + 1 for tensor in kept]
    torch.tenon.synchronize()
    del freed, between
    torch_tenon._C.fill_free_memory(torch.tenon.current_device())
    for n, tensor in zip(sizes, kept, strict=True):
        assert tensor.cpu().eq(3).all()
        assert torch.empty(n, device="tenon").cpu().isnan().all()
