"""The picture: steps done over time, for each script and engine, so that one sees who is ahead."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

COLOURS = {"eager": "#9aa5b1", "compile": "#e0a030", "cold": "#7fb2f0", "second": "#2f6fde"}
COLUMNS, PANEL, HEIGHT, MARGIN, TOP = 4, 230, 150, 34, 60


def draw(found: Mapping[str, Mapping[str, list[dict[str, Any]]]], names: Mapping[str, str]) -> str:
    """A panel for each script: seconds to the right, the share of its steps upwards, of the run in
    the middle of each engine's."""
    rows = -(-len(found) // COLUMNS)
    width, height = COLUMNS * PANEL + MARGIN, TOP + rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="14">Steps done over seconds since the start</text>',
    ]
    for k, (engine, name) in enumerate(names.items()):
        at = MARGIN + 180 * k
        parts.append(f'<rect x="{at}" y="32" width="10" height="10" fill="{COLOURS[engine]}"/>')
        parts.append(f'<text x="{at + 15}" y="41">{escape(name)}</text>')
    for number, (script, runs) in enumerate(found.items()):
        left = MARGIN + PANEL * (number % COLUMNS)
        bottom = TOP + HEIGHT * (number // COLUMNS + 1) - MARGIN
        parts += _panel(script, runs, left, bottom)
    parts.append("</svg>")
    return "\n".join(parts)


def _panel(
    script: str, runs: Mapping[str, list[dict[str, Any]]], left: float, bottom: float
) -> list[str]:
    wide, tall = PANEL - MARGIN, HEIGHT - 2 * MARGIN
    middle = {e: sorted(r, key=lambda one: one["seconds"])[len(r) // 2] for e, r in runs.items()}
    end = max(run["seconds"] for run in middle.values())
    parts = [
        f'<text x="{left}" y="{bottom - tall - 6:.0f}">{escape(script)}</text>',
        f'<path d="M{left} {bottom - tall:.0f}V{bottom:.0f}H{left + wide}" '
        'stroke="#cccccc" fill="none"/>',
        f'<text x="{left + wide}" y="{bottom + 12:.0f}" text-anchor="end">{end:.1f} s</text>',
    ]
    for engine, run in middle.items():
        steps = run["steps"]
        points = [(0.0, 0.0), (steps[0], 0.0)]
        points += [(t, (k + 1) / len(steps)) for k, t in enumerate(steps)]
        line = " ".join(f"{left + wide * t / end:.1f},{bottom - tall * y:.1f}" for t, y in points)
        parts.append(
            f'<polyline points="{line}" stroke="{COLOURS[engine]}" fill="none" stroke-width="1.5">'
            f"<title>{escape(script)}, {engine}: {run['seconds']:.2f} s</title></polyline>"
        )
    return parts
