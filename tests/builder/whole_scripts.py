"""A small script in processes of its own, which tells after each step what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

SCRIPT = """
    import json, os, random, sys, time
    import torch
    from torch_tenon.builder.counts import plan_counts
    from torch_tenon.reports.recording import calls_at_once

    def steps(device, count):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        draw = random.Random(os.environ.get("SIZES"))
        for _ in range(count):
            batch = draw.randint(2, 60) if "SIZES" in os.environ else 16
            x, y = torch.randn(batch, 32).to(device), torch.randint(0, 8, (batch,)).to(device)
            if "COMPLEX" in os.environ:
                x = (x * 1j).imag
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()

    def first_calls():
        return sum(n for _, why, n in calls_at_once() if why.startswith("its first call"))

    count = int(os.environ.get("STEPS", 6))
    expected = list(steps("cpu", count))
    found, windows = [], []
    deadline = time.monotonic() + 100
    for loss in steps("tenon", count):
        found.append(loss)
        counts = plan_counts()
        windows.append([counts["hits"], counts["reference"], first_calls()])
        while os.environ.get("WAITS") and plan_counts()["waiting"] and time.monotonic() < deadline:
            time.sleep(0.01)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    print(json.dumps(windows))
"""


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Begins to run it with files under `cache`."""
    env = {**os.environ, "TENON_CACHE_DIR": str(cache), "TENON_PLAN_FILES": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[list[int]]:
    """After each step: windows by plan, by reference, first calls. The losses were the CPU's."""
    out, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    found: list[list[int]] = json.loads(out.splitlines()[-1])
    return found


def run(cache: Path, **environment: str) -> list[list[int]]:
    """Runs it once."""
    return finish(start(cache, **environment))


def in_step(windows: list[list[int]], step: int) -> Any:
    """What one step added: windows by plan, by reference, first calls."""
    before = windows[step - 1] if step else [0, 0, 0]
    return [now - then for now, then in zip(windows[step], before, strict=True)]
