"""The benchmarks' pictures have the colours of the pages, in light and dark."""

import xml.etree.ElementTree as ElementTree

import pytest
from browser import Browser, needs_browser

from benchmarks import picture
from benchmarks.scripts import picture as scripts_picture

CASES = {
    f"case <{k}>": {
        "least_ms": 1.0,
        "ceiling": "bandwidth" if k % 2 else "compute",
        "engines": {name: {"ms": 1.5 + k + n} for n, name in enumerate(picture.COLOURS)},
    }
    for k in range(6)
}
RUNS = {
    name: {
        engine: [{"seconds": 3.0, "steps": [1.0, 2.0, 3.0]}] for engine in scripts_picture.COLOURS
    }
    for name in ("gpt", "a & b", "lstm", "mlp", "cnn")
}


def drawn(which):
    if which == "bars":
        return picture.draw(CASES, list(picture.COLOURS), "How near & far")
    return scripts_picture.draw(RUNS, {engine: engine for engine in scripts_picture.COLOURS})


@pytest.mark.parametrize("which", ["bars", "lines"])
def test_a_picture_is_one_svg_with_a_tip_for_each_part(which):
    root = ElementTree.fromstring(drawn(which))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg" and root.find(f"{space}title") is not None
    tips = [t.text for t in root.iter(f"{space}title")][1:]
    measured = 6 * len(picture.COLOURS) if which == "bars" else 5 * len(scripts_picture.COLOURS)
    assert len(tips) - tips.count(None) == measured


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("which", ["bars", "lines"])
def test_a_picture_is_dark_where_the_reader_has_it_so(which, tmp_path):
    (tmp_path / "picture.svg").write_text(drawn(which))
    grounds = []
    for dark in (False, True):
        with Browser(tmp_path, dark=dark) as browser:
            browser.open(tmp_path / "picture.svg")
            fill = "getComputedStyle(document.querySelector('{}')).{}"
            grounds.append(browser.evaluate(fill.format("rect.ground", "fill")))
            inks = browser.evaluate(
                "new Set([...document.querySelectorAll('rect, polyline')].map((e) => "
                "[getComputedStyle(e).fill, getComputedStyle(e).stroke].join())).size"
            )
            assert inks >= 4, "the colours of the style are known"
            browser.picture(tmp_path / f"{which}-{dark}.png")
            assert browser.errors == []
    assert grounds == ["rgb(255, 255, 255)", "rgb(18, 22, 27)"]
