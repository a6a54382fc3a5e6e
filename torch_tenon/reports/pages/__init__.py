"""The look of the project's pages and pictures: one style, in light and dark.

A page is one HTML file that needs no network: a body, data that its script reads, and the script,
after `elements.js`, which makes tables and figures. `picture.py` draws the pictures.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def render(title: str, folder: Path, data: Mapping[str, Any], scripts: tuple[str, ...]) -> str:
    """The page whose parts are in a folder: `page.html` (its body), `page.css` where there is one,
    and the scripts. `data` has what the scripts read as `embedded(name)`."""
    styles = [_HERE / "colours.css", _HERE / "style.css", folder / "page.css"]
    files = [_HERE / "elements.js", *(folder / name for name in scripts)]
    parts = {
        "TITLE": html.escape(title),
        "STYLE": "".join(p.read_text() for p in styles if p.exists()),
        "BODY": (folder / "page.html").read_text(),
        "DATA": "\n".join(_element(name, value) for name, value in data.items()),
        "SCRIPT": "\n".join(path.read_text() for path in files),
    }
    # In one pass: what looks like a part's name within another part stays as it is.
    return re.sub(
        "@(" + "|".join(parts) + ")@", lambda m: parts[m[1]], (_HERE / "page.html").read_text()
    )


def _element(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{as_json(value)}</script>'


def as_json(value: Any) -> str:
    """JSON that may stand within a script element: nothing in it ends that."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
