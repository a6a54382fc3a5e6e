"""No module of the package imports another that imports it, directly or by way of others.

Imports within functions count: they are there to start quickly, and not to hide a circle. Those for
the type checker alone do not, nor does what a program names in an environment variable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torch_tenon"

Graph = dict[str, dict[str, int]]  # by a module, what it imports and on which line


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by their modules' names. A package's `__init__` is named like it."""
    found = {}
    for path in sorted(package.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):  # the second is an extension's
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph(package: Path) -> Graph:
    known = modules(package)
    found: Graph = {}
    for name, path in known.items():
        own = name if path.stem == "__init__" else name.rpartition(".")[0]
        lines: dict[str, int] = {}
        # An extension's stub is for the type checker alone.
        source = "" if path.suffix == ".pyi" else path.read_text()
        for imported, line in imports(ast.parse(source), own):
            for module in loads(imported, known, name):
                lines.setdefault(module, line)
        found[name] = lines
    return found


def imports(node: ast.AST, package: str) -> Iterator[tuple[str, int]]:
    """What a source imports, in full, and where: `a.b` for `from a import b`."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for child in node.orelse:
            yield from imports(child, package)
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = package.split(".")[: 1 - node.level or None] if node.level else []
        origin += [node.module] if node.module else []
        yield from ((".".join([*origin, alias.name]), node.lineno) for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from imports(child, package)


def loads(imported: str, known: dict[str, Path], by: str) -> Iterator[str]:
    """The modules of the package that are run by an import: the one that is named, or the one that
    has the name, and the packages that it lies in. The importer lies in some of these as well."""
    module = imported if imported in known else imported.rpartition(".")[0]
    parts = module.split(".")
    for depth in range(1, len(parts)):
        outer = ".".join(parts[:depth])
        if outer in known and not f"{by}.".startswith(f"{outer}."):
            yield outer
    if module in known:
        yield module


def circle(found: Graph) -> str | None:
    """One circle of imports, a line for each; None where there is none."""
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        path = error.args[1][::-1]
        steps = pairwise(path)
        return "\n".join(f"{a}, line {found[a][b]}, imports {b}" for a, b in steps)
    return None


@pytest.mark.slow
def test_no_circle() -> None:
    found = circle(graph(PACKAGE))
    assert found is None, f"these import one another:\n{found}"


@pytest.mark.slow
def test_one_module_puts_everything_together() -> None:
    found = graph(PACKAGE)
    importers = {name for name, imported in found.items() if "torch_tenon.register" in imported}
    assert importers == {"torch_tenon.loading"}
    assert not found["torch_tenon.device"], "whoever asks for the target would import this as well"


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ("import p.a", "p.a, line 1, imports p.low.b\np.low.b, line 1, imports p.a"),
        ("def f():\n    from p import a", "p.low.b, line 2, imports p.a"),
        ("def f():\n    from .. import a as other", "p.low.b, line 2, imports p.a"),
        ("from ..a import g", "p.low.b, line 1, imports p.a"),
        ("import importlib\nimportlib.import_module('p.a')", "p.low.b, line 2, imports p.a"),
        ("from p import name", "p.low.b, line 1, imports p\n"),
        ("import p", "p.low.b, line 1, imports p\n"),
        ("from . import name", "p.low.b, line 1, imports p.low"),
        ("if TYPE_CHECKING:\n    from p.a import g", None),
        ("import typing\nif typing.TYPE_CHECKING:\n    import p.a", None),
        ("import a, os.path", None),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, planted: str, expected: str | None) -> None:
    package = tmp_path / "p"
    (package / "low").mkdir(parents=True)
    (package / "__init__.py").write_text("def name():\n    from p import a")
    (package / "a.py").write_text("from p.low.b import f")
    (package / "low" / "__init__.py").write_text("from p.low import b")
    (package / "low" / "b.py").write_text(planted)
    found = circle(graph(package))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        # A circle may begin anywhere: each of its lines is looked for.
        assert set(expected.strip().split("\n")) <= set(found.split("\n"))
