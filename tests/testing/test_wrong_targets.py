"""What `tenon conformance` says of targets that are wrong, each in a way of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

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


def report(target: str, options: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    """What `tenon conformance` does with a target of wrong_targets.py, and its JSON."""
    file = folder / "report.json"
    command = [*TENON, "conformance", "--db", "ops", "--dtype", "float32", *options.split()]
    command += ["--target", f"{HERE / 'wrong_targets.py'}:{target}", "--json", str(file)]
    done = python(*command, env={**BY_DEFAULT, "PYTHONPATH": str(ROOT)}, timeout=280)
    return done, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTS)
def test_the_report_names_the_fault(name: str, tmp_path: Path) -> None:
    status, reason, words = FAULTS[name]
    patience = "20" if status == "hang" else "120"
    options = f"--ops add --samples 6 --jobs 1 --timeout {patience}"
    done, found = report(name, options, tmp_path)
    assert done.returncode == (status != "pass"), done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = found["results"]
    assert (found["case"], found["status"]) == ("ops/add/float32", status)
    checks = [c for c in found["checks"].values() if c["status"] not in ("pass", "not applicable")]
    told = checks or [found]
    if status != "pass":
        assert reason in {part["reason"] for part in told}, told
        assert any(re.search(words, part["message"]) for part in told), told
        assert f"ops/add/float32  pass -> {status}" in done.stdout
    if reason == "values differ":  # what is wrong has been made by somebody, too
        made = checks[0]["made"]
        assert made.get("the target's kernels") or name == "LosesACopy", made


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "status"), [("Loops", "pass"), ("LoopsComputeNothing", "fail")])
def test_no_earlier_result_passes_for_one(name: str, status: str, tmp_path: Path) -> None:
    """Memory that is handed out again holds the right result, which the first call left there."""
    done, found = report(name, "--ops sum,amax --samples 4 --jobs 2", tmp_path)
    results = found["results"]
    assert len(results) == 2 and {r["status"] for r in results} == {status}, done.stdout[-3000:]
    failed = [c for r in results for c in r["checks"].values() if c["status"] == "fail"]
    assert all("nan" in check["message"] for check in failed), failed


@pytest.mark.slow
def test_no_reduction_passes_that_loses_the_rest(tmp_path: Path) -> None:
    """By inputs of our own: the database has no dimension that is longer than a group of lanes."""
    ops = "sum,mean,amax,prod,argmax,softmax,nn.functional.layer_norm,any"
    options = f"--ops {ops} --samples 1 --jobs 2"
    _, found = report("ReductionsLoseTheRest", options, tmp_path)
    statuses = {result["case"]: result["status"] for result in found["results"]}
    statuses.pop("ops/softmax.with_dtype/float32")  # has no inputs of our own
    assert len(statuses) == 8 and set(statuses.values()) == {"fail"}, statuses
