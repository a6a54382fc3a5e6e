"""Pictures as SVG files, in the colours of the pages: light or dark, as the reader has it.

Places and lengths are in pixels from the upper left corner. A colour is a number of the style's
(`--c0` to `--c7` in colours.css) or one of its names ("line", "ink", "bad").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

_STYLE = (
    Path(__file__).with_name("colours.css").read_text()
    + """
text { fill: var(--ink); font: 11px system-ui, sans-serif; }
text.title { font-size: 14px; font-weight: 600; }
text.quiet { fill: var(--quiet); }
rect.ground { fill: var(--ground); }
"""
)
_LEGEND = 34  # where it lies, below the title

Point = tuple[float, float]


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A picture of its parts, with its title at the top."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<rect class="ground" width="100%" height="100%"/>',
            f'<text class="title" x="12" y="20">{escape(title)}</text>',
            *parts,
            "</svg>",
        ]
    )


def legend(names: Mapping[str, int], left: float, apart: float) -> list[str]:
    """What the colours mean, in a row below the title."""
    parts = []
    for k, (name, colour) in enumerate(names.items()):
        at = left + apart * k
        parts += [bar((at, _LEGEND), (10, 10), colour), text((at + 15, _LEGEND + 9), name)]
    return parts


def text(at: Point, words: str, anchor: str = "start", quiet: bool = False) -> str:
    """Words at a point: of its "start", "middle" or "end"."""
    kind = "quiet" if quiet else "plain"
    return (
        f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def bar(at: Point, size: Point, colour: int | str, tip: str = "") -> str:
    """A filled rectangle from its upper left corner; `tip` is shown at the pointer."""
    return (
        f'<rect x="{at[0]:.1f}" y="{at[1]:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" '
        f'fill="{_of(colour)}">{_tip(tip)}</rect>'
    )


def line(points: Sequence[Point], colour: int | str, width: float = 1, tip: str = "") -> str:
    """A line through points."""
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{through}" fill="none" stroke="{_of(colour)}" '
        f'stroke-width="{width:g}">{_tip(tip)}</polyline>'
    )


def _of(colour: int | str) -> str:
    return f"var(--c{colour})" if isinstance(colour, int) else f"var(--{colour})"


def _tip(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
