"""A small script in processes of its own, which tells after each step what it did."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import fresh_process

SCRIPT = """
    import json, os, random, sys, time
    import torch
    from torch_tenon.builder.counts import plan_counts
    from torch_tenon.reports.recording import calls_at_once

    given = json.loads(sys.argv[1])

    def steps(device, count):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        draw = random.Random(given.get("SIZES"))
        for _ in range(count):
            batch = draw.randint(2, 60) if "SIZES" in given else 16
            x, y = torch.randn(batch, 32).to(device), torch.randint(0, 8, (batch,)).to(device)
            if "COMPLEX" in given:
                x = (x * 1j).imag
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()

    def first_calls():
        return sum(n for _, why, n in calls_at_once() if why.startswith("its first call"))

    count = int(given.get("STEPS", 6))
    expected = list(steps("cpu", count))
    found, windows = [], []
    deadline = time.monotonic() + 200
    for loss in steps("tenon", count):
        found.append(loss)
        counts = plan_counts()
        windows.append([counts["hits"], counts["reference"], first_calls()])
        while given.get("WAITS") and plan_counts()["waiting"] and time.monotonic() < deadline:
            time.sleep(0.01)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    print(json.dumps(windows))
"""


def start(cache: Path, **given: str) -> fresh_process.Process:
    """Begins to run it with files under `cache`; what is no setting goes to the script."""
    settings = {name: given.pop(name) for name in list(given) if name.startswith("TENON_")}
    env = {**os.environ, "TENON_CACHE_DIR": str(cache), "TENON_PLAN_FILES": "1", **settings}
    return fresh_process.start("-c", textwrap.dedent(SCRIPT), json.dumps(given), env=env)


def finish(process: fresh_process.Process) -> list[list[int]]:
    """After each step: windows by plan, by reference, first calls. The losses were the CPU's."""
    out, errors = process.communicate(timeout=fresh_process.TIMEOUT)
    assert process.returncode == 0, errors
    found: list[list[int]] = json.loads(out.splitlines()[-1])
    return found


def run(cache: Path, **given: str) -> list[list[int]]:
    """Runs it once."""
    return finish(start(cache, **given))


def in_step(windows: list[list[int]], step: int) -> Any:
    """What one step added: windows by plan, by reference, first calls."""
    before = windows[step - 1] if step else [0, 0, 0]
    return [now - then for now, then in zip(windows[step], before, strict=True)]
