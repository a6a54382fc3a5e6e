"""The documents are true: their Python blocks run, and an op goes the way that they describe."""

import re
from pathlib import Path

import pytest
from fresh_process import output

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path):
    """Each page's blocks, in order, in one process; one that begins with `# NAME.py` is that file.

    A file that holds a target is the one that the page's other blocks run on.
    """
    code, environment = [], {"TENON_CACHE_DIR": str(tmp_path / "cache")}
    for block in python_blocks(page):
        named = re.match(r"# (\w+\.py)\n", block)
        if not named:
            code.append(block)
            continue
        (tmp_path / named[1]).write_text(block)
        target = re.search(r"^class (\w+)\(\w*Target\):", block, re.MULTILINE)
        if target:
            environment["TENON_TARGET"] = f"{tmp_path / named[1]}:{target[1]}"
    output("\n".join(code), **environment)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_folders_of_the_architecture_page_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    listing = text[text.index("## Folders") : text.index("## One op")]
    folder = ROOT
    for line in listing.splitlines():
        found = re.match(r"( +)(\S+)(?: {2,}\S|$)", line)
        if not found:
            continue
        name, depth = found[2], len(found[1])
        if depth > 6:
            continue  # the line before goes on
        path = ROOT / name if depth == 4 else folder / name
        assert path.exists(), f"the page lists {path.relative_to(ROOT)}"
        if path.is_dir() and depth == 4:
            folder = path


def test_the_way_of_one_op():
    """The example of docs/architecture.md takes the steps that the page says."""
    (example,) = python_blocks(ROOT / "docs" / "architecture.md")
    code = f"""
import torch, torch_tenon
torch_tenon.reset_counters()
{example}
counts = torch_tenon.counters()
assert counts["kernel::aten::empty"] == 1 and counts["kernel::aten::normal_"] == 1, counts
assert counts["lowered::aten::add"] == 1, counts
assert a.t().data_ptr() == a.data_ptr()
assert torch.tenon.memory_allocated() == 2 * 512  # two blocks
assert b.stride() == torch.add(a.cpu().t(), 1).stride()
assert torch.equal(b.cpu(), a.cpu().t() + 1)
recorded = torch_tenon._C.record_counts()[0]
c = torch.add(a.t(), 1)  # the next time
assert torch_tenon._C.record_counts()[0] == recorded + 1
assert torch.equal(c.cpu(), b.cpu())
"""
    output(code)
