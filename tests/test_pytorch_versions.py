"""What differs between releases of PyTorch is in one place. An op that a release no longer has is
left out, and a misspelt one is an error."""

import ast
import re
from pathlib import Path

import pytest
import torch

import torch_tenon
from torch_tenon.ops.lowerings.library import enter_library
from torch_tenon.pytorch.versions import is_removed


def test_only_what_is_not_there_is_removed() -> None:
    assert is_removed("aten::cholesky") is not hasattr(torch.ops.aten, "cholesky")
    assert not is_removed("aten::add")
    enter_library(frozenset({"aten::cholesky"}))


def test_a_misspelt_op_is_an_error() -> None:
    with pytest.raises(AttributeError, match="choleskyy"):
        enter_library(frozenset({"aten::choleskyy"}))


def _asks_for_the_version(path: Path) -> bool:
    """Does a source compare PyTorch's version with another one?"""
    compared = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Compare))
    return any(re.search(r"torch\.__version__|torch\.version\b", ast.unparse(n)) for n in compared)


@pytest.mark.slow
def test_differences_between_releases_are_in_one_place() -> None:
    package = Path(torch_tenon.__file__).parent
    asking = {p.name for p in package.rglob("*.py") if _asks_for_the_version(p)}
    assert asking <= {"versions.py"}
    core = [p for p in (package.parent / "csrc").rglob("*") if p.suffix in (".h", ".cpp")]
    assert core and not [p.name for p in core if "TORCH_VERSION" in p.read_text()]


def test_a_version_that_is_asked_for_is_found(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    for text, asks in [
        ("if torch.__version__ >= '2.14': pass", True),
        ("new = parse(torch.version.__version__) > (2, 14)", True),
        ("key = (torch.__version__, 1)", False),
    ]:
        source.write_text(text)
        assert _asks_for_the_version(source) is asks
