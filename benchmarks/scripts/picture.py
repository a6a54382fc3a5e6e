"""The picture: steps done over time, for each script and engine, so that one sees who is ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_tenon.reports.pages.picture import legend, line, picture, text

COLOURS = {"eager": 7, "compile": 1, "cold": 5, "second": 0}
COLUMNS, PANEL, HEIGHT, MARGIN, TOP = 4, 230, 150, 34, 60


def draw(found: Mapping[str, Mapping[str, list[dict[str, Any]]]], names: Mapping[str, str]) -> str:
    """A panel for each script: seconds to the right, the share of its steps upwards, of the run in
    the middle of each engine's."""
    rows = -(-len(found) // COLUMNS)
    width, height = COLUMNS * PANEL + MARGIN, TOP + rows * HEIGHT
    parts = legend({name: COLOURS[engine] for engine, name in names.items()}, MARGIN, 180)
    for number, (script, runs) in enumerate(found.items()):
        left = MARGIN + PANEL * (number % COLUMNS)
        bottom = TOP + HEIGHT * (number // COLUMNS + 1) - MARGIN
        parts += _panel(script, runs, left, bottom)
    return picture(width, height, "Steps done over seconds since the start", parts)


def _panel(
    script: str, runs: Mapping[str, list[dict[str, Any]]], left: float, bottom: float
) -> list[str]:
    wide, tall = PANEL - MARGIN, HEIGHT - 2 * MARGIN
    middle = {e: sorted(r, key=lambda one: one["seconds"])[len(r) // 2] for e, r in runs.items()}
    end = max(run["seconds"] for run in middle.values())
    parts = [
        text((left, bottom - tall - 6), script),
        line([(left, bottom - tall), (left, bottom), (left + wide, bottom)], "line"),
        text((left + wide, bottom + 12), f"{end:.1f} s", "end", quiet=True),
    ]
    for engine, run in middle.items():
        steps = run["steps"]
        points = [(0.0, 0.0), (steps[0], 0.0)]
        points += [(t, (k + 1) / len(steps)) for k, t in enumerate(steps)]
        placed = [(left + wide * t / end, bottom - tall * y) for t, y in points]
        tip = f"{script}, {engine}: {run['seconds']:.2f} s"
        parts.append(line(placed, COLOURS[engine], 1.5, tip))
    return parts
