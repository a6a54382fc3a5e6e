"""The toy accelerator of docs/target.md: what the suite says of it, and what runs where."""

import json
import os
from pathlib import Path

import pytest
from fresh_process import ROOT, TENON, output, python

TOY = f"{ROOT / 'examples' / 'toy.py'}:Toy"


@pytest.mark.slow
def test_conformance_reports_on_it(tmp_path: Path) -> None:
    options = "--db ops --ops add,mul,mm,exp,sum --dtype float32,int64 --samples 2 --jobs 1"
    report = "--target", TOY, "--json", str(tmp_path / "report.json")
    env = {**os.environ, "TENON_EXECUTE": "compiled"}
    done = python(*TENON, "conformance", *options.split(), *report, env=env, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "report.json").read_text())["kinds"]["ops"]
    assert found["cases"] >= 8 and found["pass"] == found["cases"], found


@pytest.mark.slow
def test_the_toy_and_the_host_share_a_plan() -> None:
    code = """
        import torch, torch_tenon
        x, y = torch.randn(6, 100), torch.randn(6, 100)
        a, b = x.to("tenon"), y.to("tenon")
        for _ in range(3):
            torch_tenon.reset_counters()
            product = (a * b + a) * b
            other = product.exp().cumsum(1)
            torch.testing.assert_close(other.cpu(), ((x * y + x) * y).exp().cumsum(1))
            torch.testing.assert_close(product.cpu(), (x * y + x) * y)
        summaries = [w.facts for w in torch_tenon._C.window_runs() if w.facts]
        counts = torch_tenon.counters()
        assert counts["fallback::tenon::host_kernel"] >= 1, counts
        assert any(b'"kernels": 1' in facts for facts in summaries), summaries
        assert not any(w.error for w in torch_tenon._C.window_runs())
        graph = torch.compile(lambda n: torch.arange(n, device="tenon")[None].sin() + a[:, :n])
        for n in (3, 4, 5):
            want = torch.arange(n)[None].sin() + x[:, :n]
            torch.testing.assert_close(graph(n).cpu(), want)
        index = torch.tensor([1, 9], device="tenon")
        try:
            (a[index] * 2).cpu()
        except IndexError as error:
            print(error)
    """
    text = output(code, TENON_TARGET=TOY, TENON_EXECUTE="compiled")
    assert "out of" in text


@pytest.mark.slow
def test_a_graph_calls_the_library() -> None:
    """A product between two plans: nothing of it is the host's."""
    code = """
        import torch, torch_tenon
        a, b = torch.randn(3, 4), torch.randn(4, 5)
        graph = torch.compile(lambda a, b: (a @ b) * 2, backend="tenon")
        torch_tenon.reset_counters()
        for _ in range(2):
            torch.testing.assert_close(graph(a.to("tenon"), b.to("tenon")).cpu(), a @ b * 2)
        counts = [row[:3] for row in torch_tenon._C.counter_values() if row[1] == "aten::mm"]
        assert counts == [("library", "aten::mm", 2)], counts
        page = str(torch_tenon.explain(graph, a.to("tenon"), b.to("tenon")))
        assert "library 1" in page and "No op fell back" in page, page
        print("told")
    """
    assert output(code, TENON_TARGET=TOY) == "told"
