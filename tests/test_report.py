"""Counters by op and route, and the report of what fell back."""

import torch
from fresh_process import output

import torch_tenon


def test_counts_by_route():
    torch_tenon.reset_counters()
    x = torch.empty(3, device="tenon").normal_()
    (x + x).t()
    counts = torch_tenon.counters()
    assert counts["kernel::aten::normal_"] == 1
    assert counts["lowered::aten::add"] == 1
    assert counts["kernel::aten::empty"] >= 1


def test_report_lists_the_most_expensive_fallback_first():
    torch_tenon.reset_counters()
    x = torch.randn(300, 300, device="tenon")
    for _ in range(30):
        torch.histc(x)
    torch.unique(x[0, :2])
    report = torch_tenon.report()
    names = [count.op for count in report.fallbacks]
    assert names[0] == "aten::histc" and "aten::_unique2" in names
    assert report.calls_by_route["fallback"] == sum(c.calls for c in report.fallbacks)
    text = str(report)
    assert text.index("aten::histc") < text.index("aten::_unique2")


def test_nothing_has_run():
    torch_tenon.reset_counters()
    assert str(torch_tenon.report()) == "No op has run on tenon."
    assert torch_tenon.counters() == {}


def test_warns_once_for_each_op_where_asked():
    code = """
        import warnings, torch
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(2, device="tenon")
            for _ in range(3):
                x.abs()
        print(sum("aten::abs" in str(w.message) and "falls back" in str(w.message) for w in caught))
    """
    assert output(code, TENON_WARN_FALLBACK="1") == "1"
    assert output(code, TENON_WARN_FALLBACK="0") == "0"
