"""Six scripts with one problem each: the first line of advice names it, with the line of code."""

import pytest

from .test_page import profiled

ITEM = """
    import torch
    model = torch.nn.Linear(64, 64).to("tenon")
    x = torch.randn(32, 64, device="tenon")
    total = 0.0
    for _ in range(400):
        x = torch.tanh(model(x)).detach()
        total += x.mean().item()  # the problem
"""
SIZES = """
    import torch
    total = torch.zeros((), device="tenon")
    for n in range(16, 266):
        x = torch.ones(2, n, 64, device="tenon")
        y = torch.fft.fft(x, dim=1)  # the problem
        total += torch.view_as_real(y).sum()
    print(total.item())
"""
FALLBACK = """
    import torch
    x = torch.rand(1, 3, 128, 128, device="tenon")
    total = torch.zeros((), device="tenon")
    how = {"mode": "bicubic", "antialias": True}
    for _ in range(150):
        x = x * 0.99 + 0.01
        y = torch.nn.functional.interpolate(x, (40, 40), **how)  # the problem
        total += y.sum()
    print(total.item())
"""
COPY = """
    import torch
    weight = torch.randn(512, 8, device="tenon")
    data = torch.randn(8192, 512)
    total = torch.zeros((), device="tenon")
    for _ in range(150):
        batch = data.to("tenon")  # the problem
        total += batch[0].sum()
    print(total.item())
"""
TINY = """
    import torch
    x = torch.ones(4, device="tenon")
    for _ in range(20000):
        x = x * 0.5 + 1  # the problem
    print(x.sum().item())
"""
MEMORY = """
    import torch
    torch.tenon.set_memory_limit(600 << 20)
    kept = []
    for _ in range(100):
        kept.append(torch.randn(1024, 1024, device="tenon"))  # the problem
    print(sum(x[0, 0] for x in kept).item())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("wait", ITEM),
        ("sizes", SIZES),
        ("fallback", FALLBACK),
        ("copy", COPY),
        ("tiny", TINY),
        ("memory", MEMORY),
    ],
    ids=lambda x: x if "\n" not in x else "",
)
def test_the_first_advice_is_the_problem(kind, script, tmp_path, monkeypatch):
    if kind == "tiny":  # by reference a busy machine takes long over the tiniest
        monkeypatch.setenv("TENON_EXECUTE", "compiled")
    profile, _ = profiled(tmp_path, script)
    lines = script.splitlines()
    problem = next(k for k, line in enumerate(lines) if "# the problem" in line) + 1
    shown = [(a["kind"], a["line"], round(a["saves"], 3)) for a in profile["advice"]]
    assert shown, profile["time"]
    assert shown[0][0] == kind and shown[0][1].endswith(f"script.py:{problem}"), shown
