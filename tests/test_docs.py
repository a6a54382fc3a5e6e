"""The documents are true: their Python blocks run, and an op goes the way that they describe."""

import re
from pathlib import Path

import pytest
from documents import PAGES
from fresh_process import output

ROOT = Path(__file__).parent.parent


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


FILE = re.compile(r"# (\w+\.py)(, continued)?\n")


def target_of(text: str, targets: set[str]) -> str | None:
    """The last class of a file that is a target, by its bases; it is added to those."""
    found = None
    for name, base in re.findall(r"^class (\w+)\((\w+)\):", text, re.MULTILINE):
        if base in targets:
            targets.add(name)
            found = name
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path):
    """Each page's blocks, in order; one that begins with `# NAME.py` is that file, or more of it.

    What stands between two files runs in one process, on the target that the last file holds.
    """
    files: dict[str, str] = {}
    code: list[str] = []
    targets = {"Target", "CpuTarget"}
    environment = {"TENON_CACHE_DIR": str(tmp_path / "cache")}
    here = f"import os; os.chdir({str(tmp_path)!r})"  # files that a page writes stay there
    for block in [*python_blocks(page), None]:
        named = FILE.match(block or "")
        if block is not None and not named:
            code.append(block)
            continue
        if code:
            output("\n".join([here, *code]), **environment)
            code = []
        if block is None:
            break
        before = files.get(named[1], "") if named[2] else ""
        files[named[1]] = before + block
        path = tmp_path / named[1]
        path.write_text(files[named[1]])
        target = target_of(files[named[1]], targets)
        if target:
            environment["TENON_TARGET"] = f"{path}:{target}"


def test_the_toy_of_the_page_is_the_example():
    pieces = [b for b in python_blocks(ROOT / "docs" / "target.md") if b.startswith("# toy.py")]
    whole = "\n\n".join(piece.partition("\n")[2] for piece in pieces)
    assert whole == (ROOT / "examples" / "toy.py").read_text()
    assert whole.count("\n") <= 150


def test_the_fields_of_loop_trees_are_those_of_the_page():
    """Of each node that a plain tree has, in the tables of docs/generator.md."""
    from torch_tenon.compiler.loops import tree
    from torch_tenon.ir.index import Expr

    text = (ROOT / "docs" / "generator.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]*) \| [^|]* \|$", text, re.MULTILINE)
    found = {names.split("`")[-2]: re.findall(r"`(\w+)`", fields) for names, fields in rows}
    nodes = [getattr(tree, n) for n in ("For", "Let", "Load", "Store", "Declare", "Accumulate")]
    nodes += [tree.Check, tree.If, tree.Constant, tree.Read, tree.Array, tree.Accumulator, Expr]
    for node in nodes:
        known = {f for base in node.__mro__ for f in getattr(base, "__annotations__", ())}
        known |= {f for base in node.__mro__ for f in getattr(base, "__slots__", ())}
        fields = found[node.__name__]
        assert fields and known.issuperset(fields), (node, fields, known)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        to = page.parent / name if name else page
        assert to.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(to), f"{page.name} links to {link}"
    for name in re.findall(r"`((?:csrc|torch_tenon|tests|examples|include)/[\w/.-]+)`", text):
        is_made = name.endswith("built_for.json") or "set_up" in name
        assert is_made or (ROOT / name).exists(), f"{page.name} names {name}"


def anchors(page: Path) -> set[str]:
    """What links may have behind the `#`, as GitHub makes it of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
