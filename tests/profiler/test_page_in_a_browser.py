"""The page of `tenon profile` in a headless Chromium: it works, and nothing is in its console."""

import json

import pytest
import torch
from browser import Browser, needs_browser

from torch_tenon.reports.profiler import page

from .clicks import click_through, settle
from .long_run import profile_of

pytestmark = needs_browser
MILLION = 1_000_000


@pytest.fixture(scope="module", params=[100, 3 * MILLION // 2])
def written(request, tmp_path_factory):
    """The page of a profile of so many events, of which at most a million are kept."""
    folder = tmp_path_factory.mktemp("page")
    profile = profile_of(request.param, MILLION)
    (folder / "page.html").write_text(page.render(profile))
    (folder / "page.json").write_text(json.dumps(profile))
    return folder, request.param


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_a_person_clicks_through_it(written, tmp_path, width, dark):
    folder, count = written
    assert (folder / "page.html").stat().st_size < 3_000_000
    with Browser(tmp_path, width, dark=dark) as browser:
        browser.open(folder / "page.html")
        said = browser.evaluate("document.getElementById('run').textContent")
        assert f"{count:,} events" in said
        assert ("spread over the run" in said) == (count > MILLION)
        click_through(browser)
        assert not browser.evaluate("document.documentElement.scrollWidth > innerWidth")
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(18, 22, 27)" if dark else "rgb(255, 255, 255)")
        browser.picture(tmp_path / "page.png", height=1600)
        assert browser.errors == []
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_keyboard_reaches_everything(written, tmp_path):
    folder, _ = written
    with Browser(tmp_path) as browser:
        browser.open(folder / "page.html")
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.className") == "skip"
        browser.press("Enter")
        assert browser.evaluate("location.hash") == "#time"
        stops = set()
        for _ in range(60):
            browser.press("Tab")
            stops.add(browser.evaluate("document.activeElement.tagName"))
        assert {"BUTTON", "CANVAS"} <= stops
        browser.evaluate("document.querySelector('#kernels summary').focus()")
        browser.press("Enter")
        settle(browser)
        assert browser.evaluate("document.querySelector('#kernels details').open")
        assert browser.errors == []


@pytest.mark.slow
def test_an_error_in_a_page_would_be_seen(tmp_path):
    (tmp_path / "page.html").write_text("<script>console.error('a'); throw Error('b')</script>")
    with Browser(tmp_path) as browser:
        browser.open(tmp_path / "page.html")
        assert len(browser.errors) == 2


@pytest.mark.slow
def test_a_profile_that_is_too_large_is_thinned_and_says_so(tmp_path):
    profile = profile_of(30_000, MILLION)
    profile["kernels"] = profile["kernels"] * 20
    for row in profile["kernels"]:
        row["source"] = "float x; " * 4000
    profile["timeline"]["names"] = [name + "x" * 40_000 for name in profile["timeline"]["names"]]
    text = page.render(profile)
    assert len(text) < 3_000_000
    (tmp_path / "page.html").write_text(text)
    with Browser(tmp_path) as browser:
        browser.open(tmp_path / "page.html")
        said = browser.evaluate("document.getElementById('run').textContent")
        assert "leaves out: events of the timeline (" in said and "the code of kernels" in said
        click_through(browser)
        assert browser.errors == []


@pytest.mark.slow
def test_a_run_of_nothing_has_a_page(tmp_path):
    torch.tenon.synchronize()
    profile = profile_of(10, MILLION)
    (tmp_path / "page.html").write_text(page.render(profile))
    with Browser(tmp_path) as browser:
        browser.open(tmp_path / "page.html")
        assert browser.errors == []


@pytest.mark.slow
def test_beside_another_run(written, tmp_path):
    folder, _ = written
    profile = json.loads((folder / "page.json").read_text())
    before = {**profile, "seconds": 2 * profile["seconds"]}
    (tmp_path / "page.html").write_text(page.render(profile, before))
    with Browser(tmp_path) as browser:
        browser.open(tmp_path / "page.html")
        heads = "[...document.querySelectorAll('#time th, #kernels th')].map((h) => h.innerText)"
        assert browser.evaluate(heads).count("before") == 2
        click_through(browser)
        assert browser.errors == []
