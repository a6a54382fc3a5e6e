"""What a process keeps of windows: so many structures, with their plans and the plans' kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_process import output

CODE = """
    import itertools, sys, torch, torch_tenon
    from pathlib import Path
    from torch_tenon import _C

    MOST, CACHE = int(sys.argv[1]), sys.argv[2]
    OPS = [torch.sin, torch.cos, torch.tanh, torch.exp]
    STRUCTURES = list(itertools.product(OPS, OPS, OPS))[: int(sys.argv[3])]

    def mapped():
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if CACHE in line and ".so" in line}

    def objects():
        return len(list(Path(CACHE, "kernels").glob("*.so")))

    x = torch.linspace(-1, 1, 24)
    there = x.to("tenon")
    made = []
    for turn in range(3):
        for structure in STRUCTURES:
            want, got = x, there
            for op in structure:
                want, got = op(want), op(got)
            torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-6)
            entries, bound, *_ = _C.structure_counts()
            assert entries <= bound == MOST, entries
            assert len(mapped()) <= MOST + 1, mapped()
        made.append(objects())
    # Those that went come back from their files.
    assert made[1] == made[2], made
    entries, _, hits, misses, evicted = _C.structure_counts()
    assert evicted > len(STRUCTURES) and misses == entries + evicted
    runs = _C.window_runs()
    assert runs[0].number == -1 and len(runs) == 1 + entries
    assert runs[0].by_plan > len(STRUCTURES)
    page = str(torch_tenon.report())
    assert "structures of windows: 4 (at most 4 each)" in page, page
    print("right")
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_those_go_that_were_used_least_recently(tmp_path: Path) -> None:
    settings = {
        "TENON_CACHE_DIR": str(tmp_path),
        "TENON_STRUCTURES": "4",
        "TENON_EXECUTE": "compiled",
        "TENON_PLAN_FILES": "1",
        "TENON_BUILDER": "process",
        "TENON_PLAN": "all",
    }
    assert output(CODE, "4", str(tmp_path), "9", **settings) == "right"
