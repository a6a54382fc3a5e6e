"""`tenon profile`: the page, its data, and what to change."""

import json
import re
import textwrap

import pytest
from fresh_process import TENON, python

from torch_tenon.reports.profiler import page
from torch_tenon.reports.profiler.advice import FIRST_CALL, advise
from torch_tenon.reports.profiler.run import NotAProfile, load


def profiled(folder, script, *options, arguments=(), status=0):
    """The profile of a script, and what the command said."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    command = [*TENON, "profile", "--output", str(folder / "page.html"), *options]
    done = python(*command, "script.py", *arguments, cwd=folder, timeout=200)
    assert done.returncode == status, done.stderr
    return json.loads((folder / "page.json").read_text()), done.stderr


WORK = """
    import sys, torch
    x = torch.ones(300, 300, device="tenon")
    total = 0.0
    for k in range(int(sys.argv[1])):
        y = (x @ x + k).relu()
        total += y.sum().item()
    print(total)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    profile, said = profiled(folder, WORK, arguments=["40"])
    return folder, profile, said


@pytest.mark.slow
def test_the_time_is_all_of_the_run(found):
    _, profile, _ = found
    total = sum(part["seconds"] for part in profile["time"])
    assert total == pytest.approx(profile["seconds"], rel=0.02)
    assert all(part["seconds"] >= 0 for part in profile["time"])
    assert profile["script"] == ["script.py", "40"] and profile["status"] == 0


def test_lines_that_wait_and_kernels_with_their_lines(found):
    _, profile, _ = found
    wait = profile["waits"][0]
    assert wait["line"].endswith("script.py:7") and wait["count"] >= 38
    lines = {line for k in profile["kernels"] for line in k["lines"]}
    assert any(line.endswith("script.py:6") for line in lines)
    assert {w["why"] for w in profile["windows"]} >= {"the host reads"}
    assert profile["memory"]["peak"] > 0 and profile["timeline"]["shown"] > 0


def test_the_page_is_one_file_without_a_network(found):
    folder, profile, said = found
    text = (folder / "page.html").read_text()
    assert len(text) < 3_000_000
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text) and "@PROFILE@" not in text
    assert "default-src 'none'" in text
    assert str(folder / "page.html") in said
    data = re.search(r'id="profile">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data[1]) == profile


def test_a_script_s_text_cannot_end_the_page_s_data():
    profile = {"script": ["</script><script>alert(1)</script>", "@DATA@"], "x": "<!-- @SCRIPT@"}
    text = page.render(profile)
    assert "<script>alert" not in text and "<!--" not in text.removeprefix("<!doctype")


@pytest.mark.slow
def test_a_script_that_fails_keeps_its_profile(tmp_path):
    script = """
        import torch
        x = torch.ones(10, device="tenon") + 1
        print(x.sum().item())
        raise ValueError("on purpose")
    """
    profile, said = profiled(tmp_path, script, status=1)
    assert profile["status"] == 1 and profile["error"] == "ValueError: on purpose"
    assert 'raise ValueError("on purpose")' in said
    assert profile["at_once"]


@pytest.mark.slow
def test_an_exit_status_is_the_script_s(tmp_path):
    profile, _ = profiled(tmp_path, "import sys; sys.exit(7)", status=7)
    assert profile["status"] == 7 and not profile["kernels"]


@pytest.mark.slow
def test_two_runs_side_by_side(found, tmp_path):
    folder, profile, _ = found
    profiled(tmp_path, WORK, "--against", str(folder / "page.json"), arguments=["5"])
    text = (tmp_path / "page.html").read_text()
    data = re.search(r'id="before">(.*?)</script>', text, re.DOTALL)
    before = json.loads(data[1])
    assert before["time"] == profile["time"] and len(before["kernels"]) == len(profile["kernels"])
    assert "timeline" not in before


@pytest.mark.parametrize("text", ["", "{}", '{"format": "another"}', "[1, 2]", "\x00"])
def test_what_is_no_profile_is_told_before_the_script_runs(text, tmp_path):
    (tmp_path / "before.json").write_text(text)
    with pytest.raises(NotAProfile, match=r"before.json is no profile"):
        load(tmp_path / "before.json")


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_told_before_the_script_runs(tmp_path):
    (tmp_path / "script.py").write_text("print('it ran')")
    command = *TENON, "profile", "--output", "/proc/no/page.html", "script.py"
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 1 and "error:" in done.stderr and "it ran" not in done.stdout


# Advice, of profiles made by hand


def made(**changes):
    parts = ["computing by a plan", "computing by reference", "copying", "waiting", "recording"]
    parts += ["looking up plans", "handing windows over", "Python and the rest"]
    empty = {
        "seconds": 10.0,
        "time": [{"name": name, "seconds": 1.25} for name in parts],
        "memory": {"peak": 0, "limit": 1 << 30, "owners": {}},
    }
    lists = ["waits", "windows", "kernels", "plans", "copies", "recorded", "at_once"]
    return {**empty, **{name: [] for name in lists}, **changes}


def kernel(**changes):
    facts = {"name": "aten::mm", "kind": "at_once", "route": "library", "detail": ""}
    return {**facts, "count": 500, "seconds": 2.0, "lines": ["a.py:7"], **changes}


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        (
            "wait",
            made(
                waits=[{"line": "a.py:7", "what": "the host reads", "count": 900, "seconds": 3.0}],
                windows=[{"count": 1000}],
            ),
        ),
        ("sizes", made(kernels=[kernel(detail=FIRST_CALL)])),
        ("fallback", made(kernels=[kernel(kind="fallback", route="fallback")])),
        (
            "copy",
            made(
                copies=[
                    {
                        "line": "a.py:7",
                        "what": "copy, host to device",
                        "count": 100,
                        "seconds": 1.0,
                        "bytes": 1 << 30,
                    }
                ]
            ),
        ),
        (
            "tiny",
            made(
                recorded=[
                    {"line": "a.py:7", "count": 10**6, "bytes": 0, "most": 0, "op": "aten::add"}
                ]
            ),
        ),
        (
            "memory",
            made(
                memory={"peak": 1 << 29, "limit": 1 << 30, "owners": {"other tensors": 1 << 29}},
                recorded=[
                    {"line": "a.py:7", "count": 9, "bytes": 1 << 32, "most": 1 << 28, "op": "mul"}
                ],
            ),
        ),
    ],
)
def test_each_problem_is_named_with_its_line(kind, profile):
    first = advise(profile)[0]
    assert first["kind"] == kind and first["line"] == "a.py:7" and "a.py:7" in first["text"]
    assert first["saves"] > 0


def test_advice_is_in_the_order_of_what_it_saves():
    both = made(
        kernels=[kernel(kind="fallback", route="fallback"), kernel(detail=FIRST_CALL, seconds=5.0)]
    )
    kinds = [a["kind"] for a in advise(both)]
    assert kinds == ["sizes", "fallback"]
    assert advise(made()) == []
    (much,) = advise(made(kernels=[kernel(kind="fallback", route="fallback", seconds=50.0)]))
    assert much["saves"] == 10.0, "no more than the run took"
