"""What a library launches for an op is in profiles, with the op's name and the device's time."""

import json
import os
import textwrap
from pathlib import Path

from fresh_process import TENON, TESTS, output, python

CLOCKED_TARGET = f"{TESTS / 'targets' / 'launching.py'}:ClockedLaunching"
COMMAND = 1 / 256  # seconds of a launch on that clock, as clocked.py has it

SCRIPT = """\
import torch
a, b = torch.ones(8, 8).to("tenon"), torch.ones(8, 8).to("tenon")
for _ in range(40):
    c = a @ b  # line 4
    assert c[0, 0].item() == 2  # line 5
"""


def test_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    page = tmp_path / "page.html"
    done = python(
        *TENON,
        *("profile", "--output", str(page), str(tmp_path / "script.py")),
        env={**os.environ, "TENON_TARGET": CLOCKED_TARGET},
    )
    assert done.returncode == 0, done.stderr
    profile = json.loads(page.with_suffix(".json").read_text())
    (row,) = (k for k in profile["kernels"] if k["name"] == "aten::mm")
    assert row["kind"] == row["route"] == "library" and row["count"] == 40, row
    assert abs(row["seconds"] - 40 * COMMAND) < COMMAND, row
    assert row["detail"] == "float32[8, 8], float32[8, 8], float32[8, 8]" and row["bytes"] == 768
    assert [Path(line).name for line in row["lines"]] == ["script.py:4"], row
    assert "aten::mm" in json.dumps(profile["timeline"])
    # No line that is told is one of the target's file.
    told = [r["line"] for k in ("waits", "at_once", "copies", "recorded") for r in profile[k]]
    assert told and all("launching.py" not in line for line in told), told
    waits = [r for r in profile["waits"] if r["what"] == "the host reads"]
    assert {Path(r["line"]).name for r in waits} == {"script.py:5"}, waits


def test_of_torch_profiler() -> None:
    code = """
        import torch
        from torch.profiler import ProfilerActivity, profile
        a, b = torch.ones(8, 8).to("tenon"), torch.ones(8, 8).to("tenon")
        (a @ b).cpu()
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with profile(activities=both) as found:
            for _ in range(5):
                (a @ b).cpu()
        rows = [r for r in found.key_averages() if r.key == "aten::mm" and r.cpu_time_total > 0]
        (row,) = rows
        assert row.count == 5, rows
        print(round(row.self_device_time_total))
    """
    microseconds = int(output(code, TENON_TARGET=CLOCKED_TARGET))
    assert abs(microseconds - 5e6 * COMMAND) < 10


def test_of_explain_and_why_windows_ended() -> None:
    code = """
        import torch, torch_tenon
        a, b = torch.ones(8, 8).to("tenon"), torch.ones(8, 8).to("tenon")
        found = torch_tenon.explain(lambda: ((a * 3) @ b).cpu())
        (row,) = (k for k in found.report.kernels if k.op == "aten::mm")
        assert row.calls == 1 and row.seconds > 0
        assert "aten::mm" in str(found).partition("Kernels, ")[2]
        print(found.report.recording.commits)
    """
    found = output(textwrap.dedent(code), TENON_TARGET=CLOCKED_TARGET, TENON_EXECUTE="compiled")
    assert found == "{'a launch': 1}"
