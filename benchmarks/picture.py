"""The picture: how near each engine comes to what the machine can do, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

COLOURS = {"eager": "#9aa5b1", "inductor": "#e0a030", "tenon": "#2f6fde", "tenon-eager": "#7fb2f0"}
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

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for k, name in enumerate(engines):
        at = LEFT + 120 * k
        parts.append(f'<rect x="{at}" y="32" width="10" height="10" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{at + 15}" y="41">{name}</text>')
    for share in (0.001, 0.01, 0.1, 1.0):
        style = 'stroke="#c02020"' if share == 1 else 'stroke="#dddddd"'
        at = x(share)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 6}" y2="{height - 30}" {style}/>'
        )
        label = "ceiling" if share == 1 else f"{100 * share:g} %"
        parts.append(f'<text x="{at:.1f}" y="{height - 14}" text-anchor="middle">{label}</text>')
    for number, (case, found) in enumerate(cases.items()):
        top = TOP + row * number
        middle = top + BAR * len(engines) / 2 + 4
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(case)}</text>'
        )
        for k, name in enumerate(engines):
            measured = found["engines"].get(name)
            if measured is None:
                continue
            share = found["least_ms"] / measured["ms"]
            parts.append(
                f'<rect x="{LEFT}" y="{top + BAR * k}" width="{x(share) - LEFT:.1f}" '
                f'height="{BAR - 1}" fill="{COLOURS[name]}"><title>{escape(case)}, {name}: '
                f"{measured['ms']:.3f} ms, {100 * share:.1f} % of {found['ceiling']}</title></rect>"
            )
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{middle:.1f}">{found["ceiling"]}</text>')
    parts.append("</svg>")
    return "\n".join(parts)
