"""The page of `tenon conformance` in a headless Chromium."""

import pytest
from browser import Browser, needs_browser

from torch_tenon.testing.conformance.report import write_html

pytestmark = needs_browser
DTYPES = ["float32", "float64", "int64", "bool"]


def result(name, dtype, status, k):
    failed = {
        "status": "fail",
        "reason": "WrongValue",
        "message": "</script> 1 is not 2",
        "sample": "0",
        "traceback": "",
    }
    return {
        "case": f"ops/{name}/{dtype}",
        "status": status,
        "checks": {"forward": failed if status == "fail" else {"status": status}},
        "seconds": 0.01 * k,
        "samples": k,
        "samples_available": k + 1,
        "routes": ["lowered"],
        "notes": ["a note"],
        "made": {"the target's kernels": k, "the host": 1},
        "reason": "WrongValue" if status == "fail" else "",
        "message": "1 is not 2" if status == "fail" else "",
        "command": f"tenon conformance --ops {name}",
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    statuses = ["pass", "pass", "fail", "not applicable", "hang", "crash", "pass"]
    results = [
        result(f"op{k}", dtype, statuses[(k * 5 + n) % len(statuses)], k)
        for k in range(500)
        for n, dtype in enumerate(DTYPES)
        if (k + n) % 9
    ]
    counts = {s: sum(r["status"] == s for r in results) for s in statuses}
    report = {
        "device": "tenon",
        "target": "cpu",
        "torch": "2.13.0",
        "machine": "x86_64",
        "time": "2026-01-01T00:00:00Z",
        "seconds": 12.0,
        "kinds": {"ops": {**counts, "cases": len(results), "pass rate": 50.0, "made": {}}},
        "worse": {},
        "better": {},
        "failures": [{"cases": ["ops/op1/int64"], "reason": "WrongValue", "message": "1 is not 2"}],
        "results": results,
    }
    path = tmp_path_factory.mktemp("conformance") / "page.html"
    write_html(path, report)
    return path, results


def shown(browser):
    return browser.evaluate("document.getElementById('shown').textContent")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_a_person_clicks_through_it(page, tmp_path, width, dark):
    path, results = page
    with Browser(tmp_path, width, dark=dark) as browser:
        browser.open(path)
        assert browser.evaluate("document.documentElement.dataset.ready") == "true"
        assert browser.evaluate("document.querySelector('h1').textContent") == (
            "Conformance of tenon (cpu)"
        )
        assert shown(browser) == f"{len(results):,} cases, 500 entries"
        browser.click("summary")
        browser.evaluate(
            "document.getElementById('status').value = 'fail';"
            "document.getElementById('status').dispatchEvent(new Event('change'))"
        )
        failing = [r for r in results if r["status"] == "fail"]
        assert shown(browser).startswith(f"{len(failing):,} cases")
        browser.click("button.cell.fail")
        detail = browser.evaluate("document.getElementById('detail').innerText")
        assert "WrongValue" in detail and "</script> 1 is not 2" in detail and "a note" in detail
        assert "results by who computed them: " in detail and "the host 1" in detail
        assert not browser.evaluate("document.documentElement.scrollWidth > innerWidth")
        browser.picture(tmp_path / "page.png")
        browser.click("#close")
        assert browser.evaluate("document.getElementById('detail').hidden")
        assert browser.errors == []


def test_the_keyboard_goes_from_cell_to_cell(page, tmp_path):
    path, _ = page
    with Browser(tmp_path) as browser:
        browser.open(path)
        focused = "document.activeElement.getAttribute('aria-label')"
        assert (
            browser.evaluate("document.querySelectorAll('button.cell[tabindex=\"0\"]').length") == 1
        )
        browser.evaluate("document.querySelector('button.cell[tabindex=\"0\"]').focus()")
        first = browser.evaluate(focused)
        browser.press("ArrowRight")
        beside = browser.evaluate(focused)
        browser.press("ArrowDown")
        below = browser.evaluate(focused)
        assert first.split()[0] == beside.split()[0] and first != beside
        assert below.split()[0] != beside.split()[0] and below.split()[1] == beside.split()[1]
        browser.press("Enter")
        assert not browser.evaluate("document.getElementById('detail').hidden")
        browser.press("Escape")
        assert browser.evaluate("document.getElementById('detail').hidden")
        assert browser.evaluate(focused) == below
        assert browser.errors == []
