"""What a profile gets that it cannot use, and what it then says."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from torch_tenon.reports.profiler import run, trace

from .test_page import profiled

profiler = torch.tenon.profiler


def command(folder, *arguments, most_bytes=None):
    """`tenon profile` in a folder, where files may have so many bytes."""

    def limit():
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return subprocess.run(
        [sys.executable, "-c", "from torch_tenon.cli import app; app()", "profile", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.slow
def test_another_run_that_is_no_profile_is_told_before_the_script_runs(tmp_path):
    (tmp_path / "script.py").write_text("print('it ran')")
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": []}))
    done = command(tmp_path, "--against", "trace.json", "script.py")
    assert done.returncode == 1 and "it ran" not in done.stdout
    assert "trace.json is no profile" in done.stderr and "Traceback" not in done.stderr
    done = command(tmp_path, "--against", "nowhere.json", "script.py")
    assert done.returncode == 1 and "nowhere.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("change", ["time", "kernels", "seconds"])
def test_a_profile_without_what_is_compared_is_none(change, tmp_path):
    whole = {"format": run.FORMAT, "script": [], "seconds": 1.0, "time": [], "kernels": []}
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    assert run.load(tmp_path / "whole.json") == whole
    del whole[change]
    (tmp_path / "part.json").write_text(json.dumps(whole))
    with pytest.raises(run.NotAProfile, match=change):
        run.load(tmp_path / "part.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["def f(:\n", "import no_such_module\n", "import torch\ntorch.ones(2) @ None\n"]
)
def test_a_script_that_cannot_go_on_is_told_on_its_page(script, tmp_path):
    found, said = profiled(tmp_path, script, status=1)
    assert found["status"] == 1 and "Error" in found["error"]
    assert found["error"].splitlines()[-1] in said


@pytest.mark.slow
def test_no_space_for_the_page_is_an_error_that_names_it(tmp_path):
    (tmp_path / "script.py").write_text("print('it ran')")
    done = command(tmp_path, "script.py", most_bytes=48_000)
    assert done.returncode == 1 and "it ran" in done.stdout
    assert "File too large" in done.stderr and "tenon-profile.html" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "tenon-profile.json").read_text())["status"] == 0
    assert not list(tmp_path.glob(".*.new"))


def test_no_space_for_a_trace_is_an_error_that_names_it(tmp_path):
    with profiler.profile():
        torch.ones(3, device="tenon").sum().item()
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'") as raised:
        profiler.export_chrome_trace("/dev/full")
    assert raised.value.errno == errno.ENOSPC
    assert os.path.exists("/dev/full")


def test_a_trace_that_was_not_written_whole_does_not_stay(tmp_path, monkeypatch):
    def fails(*_):
        yield {"ph": "M"}
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trace, "_rows", fails)
    with profiler.profile():
        pass
    with pytest.raises(OSError, match=r"No space left on device: .*trace.json"):
        profiler.export_chrome_trace(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_capture_within_a_log_is_an_error_and_the_log_goes_on(tmp_path):
    with profiler.profile():
        with (
            pytest.raises(RuntimeError, match=r"started already"),
            profiler.capture(str(tmp_path / "trace.json")),
        ):
            raise AssertionError("the capture began")
        assert profiler.is_profiling() and not profiler.is_capturing()
        torch.ones(3, device="tenon").sum().item()
    assert profiler.metrics()["seconds"] > 0 and not (tmp_path / "trace.json").exists()


@pytest.mark.slow
def test_profilers_nested_in_a_profiled_script(tmp_path):
    script = """
        import torch
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(50, 50, device="tenon")
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with torch.tenon.profiler.profile(), profile(activities=both) as found:
            for _ in range(5):
                print((x @ x).sum().item())
        found.export_chrome_trace("trace.json")
        assert torch.tenon.profiler.metrics()["wait"] >= 5
    """
    found, _ = profiled(tmp_path, script)
    assert sum(row["count"] for row in found["waits"]) >= 5 and found["status"] == 0
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [r for r in rows if r.get("cat") == "kernel"]


def test_a_profile_of_a_profile_is_an_error(tmp_path):
    (tmp_path / "inner.py").write_text("print('inner')")
    script = textwrap.dedent("""
        from pathlib import Path
        from torch_tenon.reports.profiler.run import run
        run(Path("inner.py"), [], Path("inner.html"))
    """)
    found, said = profiled(tmp_path, script, status=1)
    assert "RuntimeError: tenon profile runs already" in found["error"]
    assert "inner" not in (tmp_path / "page.json").name and "RuntimeError" in said


def test_after_two_of_torch_s_profilers_at_once_the_next_one_is_whole():
    def work():
        return torch.ones(3, device="tenon").sum().item()

    both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    work()
    with profile(activities=both):
        with profile(activities=both):
            work()
        work()
    with profile(activities=both) as last:
        work()
    on_device = [e for e in last.events() if str(e.device_type).endswith("TENON")]
    assert on_device and all(e.time_range.elapsed_us() >= 0 for e in on_device)
