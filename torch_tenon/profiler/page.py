"""The page of a profile: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

_TEMPLATE = Path(__file__).with_name("page.html")
_SCRIPT = Path(__file__).with_name("page.js")
_STYLE = Path(__file__).with_name("page.css")


def render(profile: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """The page of a profile, beside that of another run where `before` is given."""
    parts = {
        "@TITLE@": html.escape(" ".join(profile["script"])),
        "@STYLE@": _STYLE.read_text(),
        "@PROFILE@": _in_script(profile),
        "@BEFORE@": _in_script(before),
        "@SCRIPT@": _SCRIPT.read_text(),
    }
    text = _TEMPLATE.read_text()
    for name, part in parts.items():
        text = text.replace(name, part, 1)
    return text


def _in_script(data: Any) -> str:
    """JSON that may stand within a script element: nothing in it ends that."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
