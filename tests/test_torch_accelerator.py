"""Each public function of `torch.accelerator` with the device behind it."""

import gc
from collections.abc import Callable

import pytest
import torch
from against_cpu import assert_same
from fresh_process import output

accelerator = torch.accelerator


def devices() -> None:
    assert accelerator.is_available() is True
    assert accelerator.device_count() == torch.tenon.device_count() == 2
    assert accelerator.current_accelerator() == torch.device("tenon")
    assert accelerator.current_accelerator(check_available=True) == torch.device("tenon")


def current_device() -> None:
    before = accelerator.current_device_index()
    try:
        accelerator.set_device_index(1)
        assert accelerator.current_device_index() == torch.tenon.current_device() == 1
        with accelerator.device_index(0):
            assert torch.empty(1, device="tenon").device.index == 0
        assert accelerator.current_device_index() == 1
        with pytest.warns(FutureWarning):
            accelerator.set_device_idx(0)
        with pytest.warns(FutureWarning):
            assert accelerator.current_device_idx() == 0
    finally:
        accelerator.set_device_index(before)


def capability() -> None:
    assert torch.bfloat16 in accelerator.get_device_capability(1)["supported_dtypes"]


def streams() -> None:
    before = accelerator.current_stream()
    other = torch.Stream("tenon")
    try:
        accelerator.set_stream(other)
        assert accelerator.current_stream() == torch.tenon.current_stream() == other
        x = torch.ones(4, device="tenon") + 1
        accelerator.synchronize()
        assert other.query() and x.tolist() == [2] * 4
    finally:
        accelerator.set_stream(before)


def memory() -> None:
    x = torch.ones(1 << 20, device="tenon")
    accelerator.synchronize()
    assert accelerator.memory_allocated() >= 4 << 20
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    peak = accelerator.max_memory_allocated()
    assert peak == accelerator.memory_allocated()
    assert accelerator.max_memory_reserved() == accelerator.memory_reserved()
    assert accelerator.memory_stats()["allocated_bytes.all.peak"] == peak
    free, total = accelerator.get_memory_info()
    assert (free, total) == torch.tenon.mem_get_info()
    del x
    assert accelerator.memory_allocated() < peak
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0
    accelerator.empty_cache()
    assert accelerator.memory_reserved() < total - free + 1


def host_memory() -> None:
    pinned = torch.arange(1000).pin_memory()
    accelerator.empty_host_cache()
    assert pinned.is_pinned() and pinned.sum() == 499500


def graph() -> None:
    x = torch.zeros(4, device="tenon")
    captured = accelerator.Graph()
    with torch.Stream("tenon"), captured:
        x += 1
    captured.replay()
    assert x.tolist() == [1] * 4


@pytest.mark.skipif(not hasattr(accelerator, "random"), reason="this PyTorch has it not yet")
def test_random() -> None:
    assert set(accelerator.random.__all__) == {"initial_seed", "get_rng_state", "get_rng_state_all"}
    torch.manual_seed(5)
    torch.rand(3, device="tenon:1")
    assert accelerator.random.initial_seed(1) == 5
    states = accelerator.random.get_rng_state_all()
    assert_same(states, torch.tenon.get_rng_state_all())
    assert not states[0].equal(states[1])
    assert accelerator.random.get_rng_state().equal(states[0])


#: What calls each of them.
USES: dict[Callable[[], None], str] = {
    devices: "is_available device_count current_accelerator",
    current_device: "set_device_index current_device_index device_index set_device_idx "
    "current_device_idx",
    capability: "get_device_capability",
    streams: "current_stream set_stream synchronize",
    memory: "memory_allocated memory_reserved max_memory_allocated max_memory_reserved "
    "memory_stats reset_peak_memory_stats reset_accumulated_memory_stats get_memory_info "
    "empty_cache",
    host_memory: "empty_host_cache",
    graph: "Graph",
}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_functions(use: Callable[[], None], no_plan_in_work: None) -> None:
    gc.collect()  # what other tests left in circles
    use()


def test_no_function_is_left_out() -> None:
    used = {name for names in USES.values() for name in names.split()}
    assert used == set(accelerator.__all__)


@pytest.mark.slow
def test_the_host_s_cache_may_be_emptied_before_anything_else() -> None:
    assert (
        output("import torch; torch.accelerator.empty_host_cache(); print('on')", imports=True)
        == "on"
    )
