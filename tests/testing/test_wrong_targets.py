"""What `tenon conformance` says of targets that are wrong, each in a way of its own."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from fresh_process import ROOT, TENON, python

HERE = Path(__file__).parent
# A target that is not built in runs by plans, unless this is set.
BY_DEFAULT = {k: v for k, v in os.environ.items() if k != "TENON_EXECUTE"}

FAULTS = {
    "Toy": ("pass", "", ""),
    "WithThread": ("pass", "", ""),
    "ComputesNothing": ("fail", "values differ", r"Greatest absolute difference: \d"),
    "AddsALittle": ("fail", "values differ", r"Greatest absolute difference: 0\.00100"),
    "Faults": ("crash", "crash: SIGSEGV", r"in \w+, sample \d"),
    "Hangs": ("hang", "hang: over 20 s", r"in \w+, sample \d[\s\S]* in run\b"),
    "GeneratorRaises": (
        "fail",
        "no plan, for an error",
        r"`kernel` of the backend 'toy' failed for add: KeyError: 'a register' "
        r"\(wrong_targets\.py:\d+, in kernel\)",
    ),
    "GeneratorGivesNoKernel": ("fail", "no plan, for an error", "gave a str and no Kernel"),
    "CompilerGivesNoNumber": ("fail", "no plan, for an error", "gave a str for a kernel"),
    "CompilerGivesTooFew": ("fail", "no plan, for an error", "gave 0 numbers for 1 kernels"),
    "LosesACopy": ("fail", "values differ", r"Expected .+ but got|Mismatched elements"),
}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTS)
def test_the_report_names_the_fault(name: str, tmp_path: Path) -> None:
    status, reason, words = FAULTS[name]
    target, file = f"{HERE / 'wrong_targets.py'}:{name}", tmp_path / "report.json"
    options = "--db ops --ops add --dtype float32 --samples 6 --jobs 1"
    command = [*TENON, "conformance", *options.split()]
    command += ["--timeout", "20" if status == "hang" else "120"]
    command += ["--target", target, "--json", str(file)]
    done = python(*command, env={**BY_DEFAULT, "PYTHONPATH": str(ROOT)}, timeout=280)
    assert done.returncode == (status != "pass"), done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = json.loads(file.read_text())["results"]
    assert (found["case"], found["status"]) == ("ops/add/float32", status)
    checks = [c for c in found["checks"].values() if c["status"] not in ("pass", "not applicable")]
    told = checks or [found]
    if status != "pass":
        assert reason in {part["reason"] for part in told}, told
        assert any(re.search(words, part["message"]) for part in told), told
        assert f"ops/add/float32  pass -> {status}" in done.stdout
