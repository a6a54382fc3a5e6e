"""The cpu target's memory and queue."""

import ctypes
from pathlib import Path

import pytest

from torch_tenon.targets.cpu import CpuTarget

ADD = "#include <stdint.h>\nvoid add(int64_t *out, int64_t value) { *out += value; }"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the system has no huge pages")
def test_memory_asks_for_huge_pages():
    target = CpuTarget()
    pointer = target.allocate(4 << 20, 0)
    assert pointer % (2 << 20) == 0
    advised = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name:
            start, end = (int(n, 16) for n in name.split("-"))
        elif name == "VmFlags:" and start <= pointer < end:
            advised.append("hg" in rest)
    assert advised == [True]
    target.free(pointer, 0)


def test_a_command_buffer_runs_when_it_is_committed(cache):
    target, box = CpuTarget(), ctypes.c_int64(0)
    kernel, queue = target.backend.compile_source(ADD, "add"), target.queue(0)
    for value in (1, 2):
        queue.encode(kernel, [ctypes.addressof(box), value])
    assert box.value == 0
    event = queue.commit()
    queue.wait(event)
    assert event.done()
    assert box.value == 3
    queue.commit()  # the next one is empty
    assert box.value == 3
