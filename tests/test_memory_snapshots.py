"""What the allocator did, in the format that PyTorch's viewer of memory reads."""

import gc
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import executing
from torch.cuda import _memory_viz
from turns import MODES, settle

NBYTES = 3 << 20  # large enough for a segment's large pool


@pytest.fixture(params=MODES)
def history(request: pytest.FixtureRequest) -> Iterator[None]:
    with executing(request.param):
        torch.tenon.memory._record_memory_history(max_entries=1000, clear_history=True)
        yield
        torch.tenon.memory._record_memory_history(None)


def events(action: str) -> list[dict[str, Any]]:
    trace = torch.tenon.memory._snapshot()["device_traces"][0]
    return [event for event in trace if event["action"] == action]


def test_blocks_fill_their_segments(no_plan_in_work: None) -> None:
    gc.collect()  # what other tests left in circles
    kept = [torch.ones(n, device="tenon") for n in (3, 1 << 10, 1 << 20)]
    settle()
    segments = torch.tenon.memory_snapshot()
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    of_0 = [s for s in segments if s["device"] == 0]
    allocated = torch.tenon.memory_allocated()
    assert sum(s["allocated_size"] for s in of_0) == allocated
    del kept
    assert sum(s["allocated_size"] for s in torch.tenon.memory_snapshot()) < allocated


def test_a_tensor_has_the_line_that_made_it(history: None) -> None:
    line = 0
    for _ in range(4):
        x = torch.zeros(NBYTES // 4, device="tenon")
        y = x + 1
        line = sys._getframe().f_lineno - 1
        z = y * 2
        assert z[0].item() == 2
    settle()
    assert y.sum().item() == NBYTES // 4
    blocks = [b for s in torch.tenon.memory_snapshot() for b in s["blocks"]]
    lines = [
        frame["line"]
        for block in blocks
        if block["state"] == "active_allocated" and block["requested_size"] == NBYTES
        for frame in block["frames"]
        if frame["filename"] == __file__
    ]
    assert line in lines
    assert all(frame["name"] for block in blocks for frame in block["frames"])


def test_events_are_in_order_and_the_latest_are_kept(history: None) -> None:
    kept = torch.ones(NBYTES // 4, device="tenon")
    kept.sum().item()
    address = kept.data_ptr()
    del kept
    settle()
    mine = [
        e["action"]
        for e in torch.tenon.memory._snapshot()["device_traces"][0]
        if e.get("addr") == address
    ]
    at = len(mine) - 1 - mine[::-1].index("alloc")
    assert mine[at:][:3] == ["alloc", "free_requested", "free_completed"]
    torch.tenon.memory._record_memory_history(max_entries=5)
    for n in range(1, 20):
        torch.ones(n, device="tenon").sum().item()
    trace = torch.tenon.memory._snapshot()["device_traces"][0]
    assert len(trace) == 5
    times = [event["time_us"] for event in trace]
    assert times == sorted(times)
    torch.tenon.memory._record_memory_history("state")
    assert torch.tenon.memory._snapshot()["device_traces"][0] == []


def test_pytorch_s_viewer_reads_a_file(history: None, tmp_path: Path) -> None:
    kept = torch.ones(NBYTES // 4, device="tenon") + 1
    assert kept[0].item() == 2
    torch.tenon.memory._dump_snapshot(tmp_path / "memory.pickle")
    snapshot = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    assert "3.0MiB" in _memory_viz.trace(snapshot)
    assert "<!DOCTYPE html>" in _memory_viz.trace_plot(snapshot)


def test_out_of_memory_is_an_event(history: None) -> None:
    limit = torch.tenon.memory_allocated()
    torch.tenon.memory.set_memory_limit(limit)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(NBYTES * 100, dtype=torch.uint8, device="tenon")
    finally:
        torch.tenon.memory.set_memory_limit(None)
    assert events("oom")[-1]["size"] == NBYTES * 100


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="enabled"):
        torch.tenon.memory._record_memory_history("some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        torch.tenon.memory._record_memory_history(max_entries=-1)
    with pytest.raises(ValueError, match="one pool"):
        torch.tenon.memory_snapshot((1, 0))
