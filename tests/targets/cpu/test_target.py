"""The cpu target's memory."""

from pathlib import Path

import pytest

from torch_tenon.targets.cpu import CpuTarget

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
