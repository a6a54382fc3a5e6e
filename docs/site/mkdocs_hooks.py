"""What the site has beside docs/: the pages of the repository's root, the reference, and each file
of the sources that a page links to.

Links stay as they are in the repository, where readers follow them too. Here they are turned to
where the site has what they name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
REFERENCE = ROOT / "build" / "reference"

#: Pages of the root, and what the site calls them.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".yaml": "yaml"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"^ *```.*?^ *```|^ {4}.*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that docs/ does not have."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=turned((ROOT / name).read_text(), name)))
    for page in sorted(REFERENCE.glob("*.md")):
        files.append(File.generated(config, f"reference/{page.name}", abs_src_path=str(page)))
    for path in sorted(linked_sources()):
        files.append(File.generated(config, f"source/{path}.md", content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns the links of the pages of docs/."""
    if page.file.generated_by:
        return markdown
    return turned(markdown, f"docs/{page.file.src_uri}")


def turned(markdown: str, name: str) -> str:
    """A page with its links as the site has them. `name` is the page's in the repository."""

    def turn(link: re.Match[str]) -> str:
        to = target(link[1], name)
        if to is None:
            return link[0]
        start = posixpath.dirname(ROOT_PAGES.get(name, name.removeprefix("docs/")))
        return posixpath.relpath(to, start or ".") + (link[2] or "")

    text, end = [], 0
    for code in CODE.finditer(markdown):
        text += [LINK.sub(turn, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*text, LINK.sub(turn, markdown[end:])])


def target(link: str, name: str) -> str | None:
    """Where on the site a link of a page leads; None for one that stays as it is."""
    if re.match(r"\w+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.md" if (ROOT / path).exists() else None


def linked_sources() -> set[str]:
    """The files and folders outside of docs/ to which a page links."""
    found = set()
    for page in [*(ROOT / name for name in ROOT_PAGES), *(ROOT / "docs").glob("*.md")]:
        name = str(page.relative_to(ROOT))
        for link in LINK.finditer(CODE.sub("", page.read_text())):
            to = target(link[1], name)
            if to is not None and to.startswith("source/"):
                found.add(to.removeprefix("source/").removesuffix(".md"))
    return found


def source_page(path: str) -> str:
    """A file of the sources as a page, or what is in a folder."""
    found = ROOT / path
    if found.is_dir():
        listed = sorted(p.name for p in found.iterdir() if not p.name.startswith(("_", ".")))
        return "\n".join([f"# `{path}`", "", *(f"- `{name}`" for name in listed), ""])
    text = found.read_text().rstrip("\n")
    language = LANGUAGES.get(found.suffix, "text")
    return f"# `{path}`\n\n````{language}\n{text}\n````\n"
