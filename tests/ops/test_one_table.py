"""What is known of an op stands once: in `ops/manifest.yaml`, and in no other list of names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_tenon
from torch_tenon.ops import manifest

PACKAGE = Path(torch_tenon.__file__).parent
CORE = PACKAGE.parent / "csrc"

# Lists whose words are names of ops as well, and which say nothing of these ops. Of each: why.
OTHERS = {
    # By the name of a scalar op or a reduction of ir/, which a lowering is made of.
    "ops/lowerings/pointwise.py: _UNARY": "lowerings, entered by name",
    "ops/lowerings/pointwise.py: _BINARY": "lowerings, entered by name",
    "ops/lowerings/pointwise.py: _CHEAP": "scalar ops",
    "ops/lowerings/pointwise.py: _ROUNDING": "lowerings, entered by name",
    "ops/lowerings/pointwise.py: _NOT_PREFIXED": "scalar ops",
    "ops/lowerings/scatters.py: _MODES": "an argument's values",
    "ir/complex_numbers.py: _FORMULAS": "scalar ops",
    "exporting/fourier.py: FOURIER": "ops that this file has compositions of",
    "exporting/resampled.py: _BY_FACTORS": "ops that this file has compositions of",
    "ops/antialiased.py: FILTERS": "compositions, with their filters",
    "exporting/graphs.py: _CHECKS": "nodes that an exported program leaves out",
    "exporting/linear.py: _PRODUCTS": "spellings of the product that this file replaces",
    "exporting/numbers.py: ITEMS": "spellings of a number taken out of a tensor",
    "exporting/numbers.py: _OPS": "what Python's operators are called as ops",
    "exporting/recurrent.py: RECURRENT": "layers that this file has compositions of",
    "ir/scalar.py: _COMPARED": "scalar ops",
    "compiler/wire/calls.py: name.startswith('aten::_foreach_')": "a family, named after lists",
}


def _known() -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    known = {s.name.partition("::")[2] for s in schemas if s.name.startswith("aten::")}
    return known | {op.partition("::")[2] for op in manifest.load()}


NAMES = _known()


def _ops_in(words: list[str]) -> list[str]:
    """The ops among some words, as `aten::add.Tensor`, `aten.add`, `add_` or `add` name them."""
    found = []
    for word in words:
        bare = re.sub(r"^(aten|tenon)(::|\.)", "", word).partition(".")[0]
        if (
            bare in NAMES
            or f"{bare}_" in NAMES
            or (bare != word and len(_beginning_with(word)) > 1)
        ):
            found.append(word)
    return found


def _beginning_with(word: str) -> list[str]:
    """The ops that `aten.add` or `aten::add` is how their names begin."""
    bare = re.sub(r"^(aten|tenon)(::|\.)", "", word)
    return [name for name in NAMES if name.startswith(bare)] if bare and bare != word else []


def _is_list_of_ops(words: list[str]) -> bool:
    found = _ops_in(words)
    same = {re.sub(r"^(aten|tenon)(::|\.)", "", word).partition(".")[0] for word in found}
    return len(same) > 1 and len(found) > 0.75 * len(words)


def _is_op(node: ast.Attribute) -> bool:
    """Whether it is `aten.add`, or an overload of such an op."""
    return re.match(r"(torch\.ops\.)?aten\.\w+", ast.unparse(node)) is not None


def _words(node: ast.expr | None) -> list[str]:
    """The strings of a literal, word by word; those that a dictionary has them by."""
    elements: list[ast.expr | None]
    match node:
        case ast.Constant(value=str() as text):
            return text.split() if re.fullmatch(r"[\w.: ]+", text) else []
        case ast.List() | ast.Tuple() | ast.Set():
            elements = [*node.elts]
        case ast.Dict():
            elements = [*node.keys, *node.values]
        case ast.SetComp() | ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            elements = [generator.iter for generator in node.generators]
        case ast.Call():  # frozenset({...}), "...".split()
            elements = [*node.args, *([node.func] if isinstance(node.func, ast.Attribute) else [])]
        case ast.Attribute() if _is_op(node):
            return [ast.unparse(node).removeprefix("torch.ops.")]
        case ast.Attribute() | ast.Starred():
            elements = [node.value]
        case ast.BinOp():
            elements = [node.left, node.right]
        case _:
            return []
    return [word for element in elements for word in _words(element)]


def _lists_in(file: Path) -> Iterator[str]:
    """The names that a module or a class gives to lists of ops, and comparisons with such lists."""
    tree = ast.parse(file.read_text())
    where = file.relative_to(PACKAGE)
    bodies = [tree.body, *(n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
    for statement in (s for body in bodies for s in body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            parts = [statement.value]
            if isinstance(statement.value, ast.Dict):
                parts += statement.value.values  # families of names
            if any(_is_list_of_ops(_words(part)) for part in parts):
                target = (
                    statement.targets[0]
                    if isinstance(statement, ast.Assign)
                    else (statement.target)
                )
                yield f"{where}: {ast.unparse(target)}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            words = [w for side in node.comparators for w in _words(side)]
            if _is_list_of_ops(words) and all(re.match("aten|tenon", w) for w in words):
                yield f"{where}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # All ops whose names begin so are a list as well.
            words = [w for x in node.args for w in _words(x)]
            if node.func.attr == "startswith" and any(len(_beginning_with(w)) > 1 for w in words):
                yield f"{where}: {ast.unparse(node)}"


def _sources() -> list[Path]:
    # What is drawn or called to test ops says nothing of them.
    return [p for p in sorted(PACKAGE.rglob("*.py")) if "testing" not in p.parts]


@pytest.mark.slow
def test_python_has_no_other_table_of_ops() -> None:
    found = [name for file in _sources() for name in _lists_in(file)]
    assert [name for name in found if name not in OTHERS] == []
    assert sorted(OTHERS.keys() - set(found)) == []  # what is allowed is there


def test_the_core_has_no_table_of_ops() -> None:
    own = [*PACKAGE.rglob("csrc/*.cpp"), *PACKAGE.rglob("native/*.cpp")]
    files = [*CORE.rglob("*.cpp"), *CORE.rglob("*.h"), *own]
    found = []
    for file in sorted(files):
        text = re.sub(r"//.*", "", file.read_text())
        text = re.sub(r'"\s*\n\s*"', "", text)
        for words in re.findall(r'"((?:[\w:.]+ )+[\w:.]+)"', text):
            if _is_list_of_ops(words.split()):
                found.append(f"{file.name}: {words}")
        for strings in re.findall(r'\{\s*("[\w:.]+"(?:,\s*"[\w:.]+")+),?\s*\}', text):
            if _is_list_of_ops(re.findall(r'"([^"]+)"', strings)):
                found.append(f"{file.name}: {strings}")
        found += [f"{file.name}: {c}" for c in re.findall(r'[=!]= "aten::\w+[^;]*', text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        '_SET = {"aten.sum", "aten.mean"}',
        'NAMES = frozenset(f"aten.{n}" for n in ("sum", "mean"))',
        'MORE = ("sum mean " "prod")',
        'SPLIT = "sum mean prod".split()',
        'FAMILIES = {"reductions": "sum mean", "others": "add"}',
        'CALLED = {"aten::sum": 1, "aten::mean": 2}',
        "THESE = (aten.sum.default, aten.mean.dim)",
        "CHECKED = {torch.ops.aten.sum.default: 1, torch.ops.aten.mean: 2}",
        'SAME_AS: dict[str, str] = {"sum": "nansum"}',
        'class A:\n    ops = ["add_", "mul_"]',
        'def f(name):\n    return name in ("aten::gelu.out", "aten::avg_pool3d.out")',
        '_MADE = ("aten.quantize_per_", "aten.empty_quantized", "aten.randint")',
        'def f(name):\n    return name.startswith("aten.as_strided")',
    ],
)
def test_a_list_of_ops_is_found(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "module.py").write_text(text)
    assert len(list(_lists_in(tmp_path / "module.py"))) == 1
