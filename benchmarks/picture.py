"""The picture: how near each engine comes to what the machine can do, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_tenon.reports.pages.picture import bar, legend, line, picture, text

COLOURS = {"eager": 7, "inductor": 1, "tenon": 0, "tenon-eager": 5}
LEFT, RIGHT, TOP, BAR, GAP = 170, 70, 70, 7, 9
WIDTH = 900
LEAST = 0.001  # the left end of the axis, as a share of the ceiling


def draw(cases: Mapping[str, Any], engines: Sequence[str], title: str) -> str:
    """A bar for each case and engine: the share of the ceiling that it reaches, on a logarithmic
    axis, with a line at the ceiling. Each case says whether that is bandwidth or compute."""
    row = BAR * len(engines) + GAP
    height = TOP + row * len(cases) + 40
    most = max(
        (c["least_ms"] / e["ms"] for c in cases.values() for e in c["engines"].values()),
        default=1.0,
    )
    end = max(1.25, 1.1 * most)

    def x(share: float) -> float:
        part = math.log(max(share, LEAST) / LEAST) / math.log(end / LEAST)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    parts = legend({name: COLOURS[name] for name in engines}, LEFT, 120)
    for share in (0.001, 0.01, 0.1, 1.0):
        at, ceiling = x(share), share == 1
        parts.append(line([(at, TOP - 6), (at, height - 30)], "bad" if ceiling else "line"))
        words = "ceiling" if ceiling else f"{100 * share:g} %"
        parts.append(text((at, height - 14), words, "middle", quiet=True))
    for number, (case, found) in enumerate(cases.items()):
        top = TOP + row * number
        middle = top + BAR * len(engines) / 2 + 4
        parts.append(text((LEFT - 8, middle), case, "end"))
        for k, name in enumerate(engines):
            measured = found["engines"].get(name)
            if measured is None:
                continue
            share = found["least_ms"] / measured["ms"]
            tip = (
                f"{case}, {name}: {measured['ms']:.3f} ms, "
                f"{100 * share:.1f} % of {found['ceiling']}"
            )
            size = (x(share) - LEFT, BAR - 1)
            parts.append(bar((LEFT, top + BAR * k), size, COLOURS[name], tip))
        parts.append(text((WIDTH - RIGHT + 8, middle), found["ceiling"], quiet=True))
    return picture(WIDTH, height, title, parts)
